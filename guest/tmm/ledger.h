/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Ledger: every decision of the planner and what came of it.
 *
 * The worker opens a run for each plan it carries out, says what it isolated and
 * moved for which step, and ends it; at the end of each epoch it has the gain of
 * what was moved before brought up to date. What decides is the planner; but where
 * moving turned out not to pay, the ledger says so (core/judge.c), and nothing is
 * promoted for that address space for a while (stopped.c).
 *
 * One mutex of its own, innermost: whoever calls may hold any other lock.
 */
#ifndef DEMETER_LEDGER_KERNEL_H
#define DEMETER_LEDGER_KERNEL_H

#include <linux/types.h>

#include <demeter/gain.h>

#include "refusal.h"

struct demeter_group;
struct kobject;

/*
 * Decisions remembered. No plan has more steps, so that none overwrites its own and
 * everything finds the account it belongs to.
 */
#define DEMETER_LEDGER_DECISIONS 1024
/* Ends of plans, see enum demeter_plan_end. */
#define DEMETER_PLAN_ENDS	 (DEMETER_PLAN_FULL + 1)

/**
 * struct demeter_ledger_run - a plan on its way
 * @base: number of the decision that is its first step
 * @nr: steps
 * @seen: refusals that have found their step
 */
struct demeter_ledger_run {
	u64 base;
	u32 nr;
	struct demeter_refusals seen;
};

/* Ranges that an address space may have back while it is stopped, at most. */
#define DEMETER_LEDGER_RETURNS 16

/**
 * struct demeter_ledger_returns - what was demoted in vain
 * @part: where it lies
 * @nr: length of @part
 */
struct demeter_ledger_returns {
	struct {
		u64 start;
		u64 end;
	} part[DEMETER_LEDGER_RETURNS];
	u32 nr;
};

/**
 * struct demeter_ledger_totals - sums since load
 * @decisions: taken
 * @open: whose time is not over yet
 * @settled: whose time is over, or whose address space is gone
 * @dropped: overwritten before that, or of base pages that are not sampled as such any more
 * @empty: for which nothing was moved
 * @predicted_ns: latency that what was moved saves, by the planner's word
 * @realised_ns: latency that it saved so far, by the samples
 * @paged_realised_ns: of that, by base pages of granules that are divided
 * @paged_cost_ns: what moving those took
 * @settled_predicted_ns: of those settled
 * @settled_realised_ns: of those settled
 * @stops: times that moving was stopped for an address space as it did not pay
 * @stopped_targets: address spaces stopped now
 * @plans: plans by where they ended
 *
 * @decisions is the sum of the four after it, but while a plan is on its way.
 */
struct demeter_ledger_totals {
	u64 decisions;
	u64 open;
	u64 settled;
	u64 dropped;
	u64 empty;
	u64 predicted_ns;
	s64 realised_ns;
	s64 paged_realised_ns;
	u64 paged_cost_ns;
	u64 settled_predicted_ns;
	s64 settled_realised_ns;
	u64 stops;
	u32 stopped_targets;
	u64 plans[DEMETER_PLAN_ENDS];
};

/* ledger.c */
int demeter_ledger_init(void);
void demeter_ledger_exit(void);
void demeter_ledger_add(u32 space, pid_t pid, int origin);
void demeter_ledger_forget(u32 space);
void demeter_ledger_begin(struct demeter_ledger_run *run, const struct demeter_plan *plan,
			  const struct demeter_rank_entry *ranked);
void demeter_ledger_isolated(struct demeter_ledger_run *run, u32 step, u64 pages,
			     const struct demeter_refusals *why);
void demeter_ledger_moved(struct demeter_ledger_run *run, u32 first, u32 nr, u64 pages,
			  u64 demoted_pages, const struct demeter_refusals *why);
void demeter_ledger_end(struct demeter_ledger_run *run);
void demeter_ledger_realise(u32 space, const struct demeter_ranges *ranges, u64 samples);
bool demeter_ledger_is_stopped(u32 space, struct demeter_ledger_returns *returns);
s64 demeter_ledger_paged(u64 *cost_ns);
void demeter_ledger_totals(struct demeter_ledger_totals *totals);
int demeter_ledger_snapshot(void **data, size_t *bytes);

/* stopped.c */
void demeter_stopped_hide(struct demeter_rank_entry *entries, u32 nr,
			  const struct demeter_group *groups);

/* ledger_sysfs.c */
int demeter_ledger_sysfs_init(struct kobject *stats);

#endif /* DEMETER_LEDGER_KERNEL_H */
