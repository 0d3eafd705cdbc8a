/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Plan: which ranges give and take pages this epoch.
 *
 * Walks the ranking from both ends: the hottest range with pages in SMEM is
 * paired with the coldest with pages in FMEM, as many pages of one as of the
 * other, until a swap no longer pays. A swap pays when
 *
 *   (access rate gap, cautious) x (latency gap) x (horizon)
 *	> (measured cost of a swap) x (1 + hysteresis).
 *
 * The horizon is shorter for a hot range whose bounds are new.
 *
 * Free FMEM is filled first, by promotion without demotion.
 */
#ifndef DEMETER_PLAN_H
#define DEMETER_PLAN_H

#include <demeter/rank.h>

/**
 * struct demeter_plan_params - the economics
 * @sample_period: accesses that one sample stands for
 * @epoch_ns: length of an epoch
 * @latency_gap_ps: SMEM latency minus FMEM latency
 * @remote_ps: latency that is added because the tiers are of two sockets: what
 *	comes from the one gains that much less, what goes to it loses that much
 *	more; 0 within a socket
 * @horizon_ns: how long a placement is expected to last at most
 * @swap_cost_ns: measured cost of exchanging one pair of 4 KiB pages
 * @move_cost_ns: measured cost of migrating one 4 KiB page into free FMEM
 * @hysteresis_permille: how much more than its cost a swap must gain
 * @significance: rates are taken this many standard deviations apart from
 *	each other, and more the more ranges are compared, so that sampling
 *	noise alone does not pay
 * @rate_pages_per_s: token bucket: pages relocated per second at most (a swap
 *	relocates two), 0 = no cap
 * @burst_pages: depth of the token bucket, 0 = what a second brings
 */
struct demeter_plan_params {
	u64 sample_period;
	u64 epoch_ns;
	u64 latency_gap_ps;
	u64 remote_ps;
	u64 horizon_ns;
	u64 swap_cost_ns;
	u64 move_cost_ns;
	u32 hysteresis_permille;
	u32 significance;
	u64 rate_pages_per_s;
	u64 burst_pages;
};

/**
 * struct demeter_plan_state - what the planner remembers between epochs
 * @tokens_pages: left in the bucket
 * @last_ns: when the bucket was filled last
 * @primed: false until the first plan
 */
struct demeter_plan_state {
	u64 tokens_pages;
	u64 last_ns;
	bool primed;
};

enum demeter_plan_kind {
	DEMETER_PLAN_FILL,   /* promote into free FMEM, nothing demoted */
	DEMETER_PLAN_SWAP,   /* promote from @hot, demote from @cold */
	DEMETER_PLAN_DEMOTE, /* demote from @cold, nothing promoted; @hot is the same */
};

/**
 * struct demeter_plan_step - one line of the plan
 * @kind: fill, swap, or demotion of a group that is above its cap
 * @hot: index into the ranked entries; pages leave SMEM
 * @cold: index into the ranked entries; pages leave FMEM (not of a fill)
 * @pages: how many of each
 * @gain_ps: latency that each of them surely saves over @lasts_ns, its cost not
 *	taken off: what the decision was based on
 * @lasts_ns: how long the placement is believed to last
 * @remote_ps: see struct demeter_plan_params
 * @imposed: by the floor or the cap of a group, whatever it gains
 */
struct demeter_plan_step {
	enum demeter_plan_kind kind;
	u32 hot;
	u32 cold;
	u64 pages;
	u64 gain_ps;
	u64 lasts_ns;
	u64 remote_ps;
	bool imposed;
};

enum demeter_plan_end {
	DEMETER_PLAN_DONE,	/* nothing hot left in SMEM above anything in FMEM */
	DEMETER_PLAN_NO_GAIN,	/* the next swap would not pay */
	DEMETER_PLAN_NO_TOKENS, /* rate cap */
	DEMETER_PLAN_FULL,	/* steps array full: the rest waits an epoch */
};

/**
 * struct demeter_plan - the outcome
 * @step: caller's array
 * @capacity: its length
 * @nr: steps in use
 * @fill_pages: sum over fill steps
 * @swap_pages: sum over swap steps (pairs)
 * @demote_pages: sum over demotions
 * @end: why the plan ends where it does
 */
struct demeter_plan {
	struct demeter_plan_step *step;
	u32 capacity;
	u32 nr;
	u64 fill_pages;
	u64 swap_pages;
	u64 demote_pages;
	enum demeter_plan_end end;
};

void demeter_plan_make(struct demeter_plan *plan, struct demeter_plan_state *state,
		       const struct demeter_plan_params *params,
		       const struct demeter_rank_entry *ranked, u32 nr, u64 free_fmem_pages,
		       u64 now_ns);
u64 demeter_plan_resident(const struct demeter_rank_entry *e);
u64 demeter_plan_digest(const struct demeter_plan *plan, u64 seed);

#endif /* DEMETER_PLAN_H */
