/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Gain: what a placement was said to save, and what it then saved.
 *
 * The planner promises that each page of a step saves so many picoseconds while
 * the placement lasts. Afterwards the samples say what the same addresses were
 * really accessed: those promoted save the latency gap with each access, those
 * demoted for them cost it. Both are kept until the promise has run out, so that
 * one can be held against the other.
 *
 * Places are told by address, not by page: what a later step moves back still
 * counts for the step that brought it, and against the one that moved it back.
 * Sums are right, and a step that was undone shows what was given up.
 *
 * Both together with what moving cost tell early whether a step will have paid.
 */
#ifndef DEMETER_GAIN_H
#define DEMETER_GAIN_H

#include <demeter/finer.h>
#include <demeter/plan.h>

/**
 * struct demeter_placement_side - one of the two ranges of a step
 * @start: first byte
 * @end: one past the last byte, 0 when there is no such side
 * @resident_pages: resident pages of the range when it was planned
 * @rate: decayed samples when it was last looked at
 * @space: the caller's number of the address space
 * @part: see struct demeter_rank_entry
 */
struct demeter_placement_side {
	u64 start;
	u64 end;
	u64 resident_pages;
	u64 rate;
	u32 space;
	u32 part;
};

/**
 * struct demeter_placement - a step that was carried out
 * @hot: where pages came from SMEM; for a demotion only the space
 * @cold: where as many went there; none for a fill
 * @pages: how many were moved
 * @gain_ps: promised for each of them over @lasts_ns
 * @lasts_ns: how long the promise runs
 * @remote_ps: see struct demeter_plan_params
 * @age_ns: how long it has run
 * @realised_ns: latency that was saved so far, less what was caused
 * @cost_ns: what moving the pages cost; the caller adds it up
 * @recent_ns: of @realised_ns what is of late, decayed
 * @recent_age_ns: of @age_ns likewise
 * @grown_ns: what @realised_ns was when it last grew by much
 * @grown_age_ns: @age_ns then
 * @quiet_ns: since then, without epochs that say nothing
 */
struct demeter_placement {
	struct demeter_placement_side hot;
	struct demeter_placement_side cold;
	u64 pages;
	u64 gain_ps;
	u64 lasts_ns;
	u64 remote_ps;
	u64 age_ns;
	s64 realised_ns;
	u64 cost_ns;
	s64 recent_ns;
	u64 recent_age_ns;
	s64 grown_ns;
	u64 grown_age_ns;
	u64 quiet_ns;
};

void demeter_placement_init(struct demeter_placement *p, const struct demeter_plan_step *step,
			    const struct demeter_rank_entry *ranked);
u64 demeter_placement_predicted_ns(const struct demeter_placement *p);
bool demeter_placement_is_open(const struct demeter_placement *p);
s64 demeter_placement_realise(struct demeter_placement *p, const struct demeter_ranges *rs,
			      const struct demeter_rank_entry *classes, u32 space,
			      u64 sample_period, u64 latency_gap_ps);
void demeter_placement_age(struct demeter_placement *p, u64 epoch_ns);
void demeter_placement_forget(struct demeter_placement *p, u64 epoch_ns);
bool demeter_placement_is_over(const struct demeter_placement *p, u64 epoch_ns);
s64 demeter_placement_outlook_ns(const struct demeter_placement *p);
u64 demeter_gain_rate(const struct demeter_ranges *rs, u64 start, u64 end);

#endif /* DEMETER_GAIN_H */
