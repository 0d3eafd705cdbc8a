// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ledger, see ledger.h; its file is described in uapi/demeter_ledger.h.
 *
 * Two books. One has an account for each address space, which nothing is ever
 * taken out of but into the account of those gone: their sums are the module's
 * totals, page for page. The other is a ring of the latest decisions.
 *
 * A batch may hold the folios of several steps, and says how many of them it
 * moved, not which: those are shared out in proportion to what each step put in,
 * so that the shares add up.
 */
#include <linux/build_bug.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/timekeeping.h>
#include <linux/xarray.h>
#include <demeter/judge.h>
#include <demeter/math.h>
#include <demeter_ledger.h>

#include "finer.h"
#include "ledger.h"
#include "tiers.h"
#include "tmm.h"
#include "trace.h"

/* Reasons told apart for one decision; pages refused for others are counted. */
#define DECISION_REASONS 4

enum decision_state { FREE, RUNNING, OPEN, SETTLED, EMPTY, DROPPED };

/**
 * struct decision - one step of a plan
 * @number: from 0 since load
 * @time_ns: when it was taken
 * @epoch: epochs ended before
 * @kind: fill or swap
 * @source: what sampled then, DEMETER_LEDGER_*
 * @state: where it stands
 * @pid: thread groups of the hot and the cold side
 * @imposed: by a limit of a group, so nothing to judge by
 * @planned_pages: to be moved each way
 * @pending_pages: isolated and not yet moved
 * @refused_pages: of both sides
 * @why: the first reasons met, and their pages
 * @placement: what was moved, promised and gained
 */
struct decision {
	u64 number;
	u64 time_ns;
	u64 epoch;
	enum demeter_plan_kind kind;
	u32 source;
	enum decision_state state;
	pid_t pid[2];
	bool imposed;
	u64 planned_pages;
	u64 pending_pages;
	u64 refused_pages;
	struct {
		u32 reason;
		u64 pages;
	} why[DECISION_REASONS];
	struct demeter_placement placement;
};

/**
 * struct account - what one address space was given and cost
 * @space: its number
 * @pid: its thread group
 * @origin: how it came to be managed
 * @decisions: taken for it
 * @promoted_pages: moved to FMEM
 * @demoted_pages: moved to SMEM
 * @filled_pages: of @promoted_pages, into free memory
 * @predicted_ns: of decisions taken for it
 * @realised_ns: the same
 * @refused: pages not moved in steps taken for it
 * @judge: whether moving for it pays
 */
struct account {
	u32 space;
	pid_t pid;
	int origin;
	u64 decisions;
	u64 promoted_pages;
	u64 demoted_pages;
	u64 filled_pages;
	u64 predicted_ns;
	s64 realised_ns;
	struct demeter_refusals refused;
	struct demeter_judge judge;
};

/* Protects all that follows. Innermost. */
static DEFINE_MUTEX(ledger_lock);
static DEFINE_XARRAY(accounts);
static struct account gone = { .origin = DEMETER_LEDGER_GONE };
static u32 nr_accounts;
static struct decision *ring;
static struct demeter_ledger_totals totals;
/* No decision before this one is open. */
static u64 first_open;

static struct account *account_of(u32 space)
{
	return xa_load(&accounts, space) ?: &gone;
}

static struct decision *slot_of(u64 number)
{
	return &ring[number % DEMETER_LEDGER_DECISIONS];
}

/* The decision that is a step of a run; NULL when it is overwritten. */
static struct decision *decision_of(const struct demeter_ledger_run *run, u32 step)
{
	struct decision *decision = slot_of(run->base + step);

	return decision->number == run->base + step ? decision : NULL;
}

static void settle(struct decision *decision)
{
	u64 predicted_ns = demeter_placement_predicted_ns(&decision->placement);

	if (!decision->imposed)
		demeter_judge_settle(&account_of(decision->placement.hot.space)->judge,
				     &decision->placement, decision->time_ns);
	decision->state = SETTLED;
	totals.open--;
	totals.settled++;
	totals.settled_predicted_ns += predicted_ns;
	totals.settled_realised_ns += decision->placement.realised_ns;
	trace_demeter_settled(decision->number, decision->placement.hot.space,
			      decision->placement.pages, predicted_ns,
			      decision->placement.realised_ns);
}

/**
 * demeter_ledger_init() - open the books
 *
 * Return: 0 or -ENOMEM.
 */
int demeter_ledger_init(void)
{
	BUILD_BUG_ON(DEMETER_REFUSALS > DEMETER_LEDGER_MAX_REASONS);
	ring = demeter_table_alloc(DEMETER_LEDGER_DECISIONS, sizeof(*ring));
	return ring ? 0 : -ENOMEM;
}

/**
 * demeter_ledger_exit() - close the books; nobody else uses them any more
 */
void demeter_ledger_exit(void)
{
	struct account *account;
	unsigned long space;

	xa_for_each(&accounts, space, account)
		kfree(account);
	xa_destroy(&accounts);
	kvfree(ring);
	ring = NULL;
}

/**
 * demeter_ledger_add() - open an account
 * @space: number of the address space
 * @pid: its thread group, for people to read
 * @origin: how it came to be managed
 *
 * Without memory for it, what belongs to it goes to the account of those gone.
 */
void demeter_ledger_add(u32 space, pid_t pid, int origin)
{
	struct account *account = kzalloc(sizeof(*account), GFP_KERNEL);

	if (!account)
		return;
	account->space = space;
	account->pid = pid;
	account->origin = origin;
	mutex_lock(&ledger_lock);
	if (xa_insert(&accounts, space, account, GFP_KERNEL))
		kfree(account);
	else
		nr_accounts++;
	mutex_unlock(&ledger_lock);
}

/**
 * demeter_ledger_forget() - an address space is not managed any more
 * @space: its number
 *
 * What was moved for it has gained what it has gained.
 */
void demeter_ledger_forget(u32 space)
{
	struct account *account;
	u64 number;
	int i;

	mutex_lock(&ledger_lock);
	for (number = first_open; number < totals.decisions; number++) {
		struct decision *decision = slot_of(number);

		if (decision->number == number && decision->state == OPEN &&
		    decision->placement.hot.space == space)
			settle(decision);
	}
	account = xa_erase(&accounts, space);
	if (account) {
		nr_accounts--;
		gone.decisions += account->decisions;
		gone.promoted_pages += account->promoted_pages;
		gone.demoted_pages += account->demoted_pages;
		gone.filled_pages += account->filled_pages;
		gone.predicted_ns += account->predicted_ns;
		gone.realised_ns += account->realised_ns;
		for (i = 0; i < DEMETER_REFUSALS; i++)
			gone.refused.pages[i] += account->refused.pages[i];
	}
	mutex_unlock(&ledger_lock);
	kfree(account);
}

static void decide(u64 number, const struct demeter_plan_step *step,
		   const struct demeter_rank_entry *ranked, u64 now_ns)
{
	struct decision *decision = slot_of(number);
	struct account *account = account_of(ranked[step->hot].space);

	if (decision->state == OPEN) {
		if (!decision->imposed)
			demeter_judge_conclude(&account_of(decision->placement.hot.space)->judge,
					       &decision->placement, decision->time_ns);
		totals.open--;
	}
	if (decision->state == OPEN || decision->state == RUNNING)
		totals.dropped++;
	*decision = (struct decision){
		.number = number,
		.time_ns = now_ns,
		.epoch = READ_ONCE(demeter_stats.epochs),
		.kind = step->kind,
		.source = demeter_sampler_source(),
		.state = RUNNING,
		.pid = { account->pid },
		.imposed = step->imposed,
		.planned_pages = step->pages,
	};
	demeter_placement_init(&decision->placement, step, ranked);
	if (step->kind != DEMETER_PLAN_FILL)
		decision->pid[1] = account_of(ranked[step->cold].space)->pid;
	account->decisions++;
}

/**
 * demeter_ledger_begin() - a plan was made and is to be carried out
 * @run: to be handed to the calls that follow
 * @plan: the plan
 * @ranked: the entries it refers to
 */
void demeter_ledger_begin(struct demeter_ledger_run *run, const struct demeter_plan *plan,
			  const struct demeter_rank_entry *ranked)
{
	u64 now_ns = ktime_get_ns();
	u32 i;

	mutex_lock(&ledger_lock);
	*run = (struct demeter_ledger_run){ .base = totals.decisions, .nr = plan->nr };
	totals.decisions += plan->nr;
	if (plan->end < DEMETER_PLAN_ENDS)
		totals.plans[plan->end]++;
	for (i = 0; i < plan->nr; i++)
		decide(run->base + i, &plan->step[i], ranked, now_ns);
	mutex_unlock(&ledger_lock);
}

static void refuse(struct decision *decision, enum demeter_refusal reason, u64 pages)
{
	int i;

	decision->refused_pages += pages;
	for (i = 0; i < DECISION_REASONS; i++) {
		if (decision->why[i].pages && decision->why[i].reason != reason)
			continue;
		decision->why[i].reason = reason;
		decision->why[i].pages += pages;
		return;
	}
}

/* Of @pages the share of a step that put in what lies from @before to @after of @all. */
static u64 share_of(u64 pages, u64 before, u64 after, u64 all)
{
	return demeter_mul_div(pages, after, all) - demeter_mul_div(pages, before, all);
}

/* What a step has moved: @pages up, and @demoted_pages down. */
static void book_moved(struct decision *decision, u64 pages, u64 demoted_pages)
{
	struct demeter_placement *placement = &decision->placement;
	struct account *hot = account_of(placement->hot.space);
	u64 predicted_ns = demeter_placement_predicted_ns(placement), cost_ns;

	if (decision->kind == DEMETER_PLAN_DEMOTE) {
		placement->pages += demoted_pages;
		hot->demoted_pages += demoted_pages;
		return;
	}
	cost_ns = pages * (decision->kind == DEMETER_PLAN_FILL ? demeter_move_cost_ns()
							       : demeter_swap_cost_ns());
	placement->pages += pages;
	placement->cost_ns += cost_ns;
	totals.paged_cost_ns += placement->hot.part ? cost_ns : 0;
	predicted_ns = demeter_placement_predicted_ns(placement) - predicted_ns;
	totals.predicted_ns += predicted_ns;
	if (decision->state == SETTLED)
		totals.settled_predicted_ns += predicted_ns;
	hot->predicted_ns += predicted_ns;
	hot->promoted_pages += pages;
	if (decision->kind == DEMETER_PLAN_FILL)
		hot->filled_pages += pages;
	else
		account_of(placement->cold.space)->demoted_pages += demoted_pages;
}

/* Refusals since the last call belong to the steps from @first to @last. */
static void book_refused(struct demeter_ledger_run *run, u32 first, u32 last, u64 all,
			 const struct demeter_refusals *why)
{
	int reason;

	for (reason = DEMETER_OK + 1; reason < DEMETER_REFUSALS; reason++) {
		u64 pages = why->pages[reason] - run->seen.pages[reason];
		u64 before = 0;
		u32 i;

		for (i = first; pages && i <= last; i++) {
			struct decision *decision = decision_of(run, i);
			u64 after, share;

			if (!decision)
				continue;
			after = i == last ? all : before + decision->pending_pages;
			share = all ? share_of(pages, before, after, all) : i == last ? pages : 0;
			before = after;
			if (!share)
				continue;
			refuse(decision, reason, share);
			account_of(decision->placement.hot.space)->refused.pages[reason] += share;
		}
	}
	run->seen = *why;
}

/**
 * demeter_ledger_isolated() - folios of a step were isolated
 * @run: the plan
 * @step: which of its steps
 * @pages: 4 KiB pages to be moved each way
 * @why: refusals of the whole plan so far
 */
void demeter_ledger_isolated(struct demeter_ledger_run *run, u32 step, u64 pages,
			     const struct demeter_refusals *why)
{
	struct decision *decision;

	mutex_lock(&ledger_lock);
	book_refused(run, step, step, 0, why);
	decision = decision_of(run, step);
	if (decision)
		decision->pending_pages += pages;
	mutex_unlock(&ledger_lock);
}

/**
 * demeter_ledger_moved() - a batch was moved
 * @run: the plan
 * @first: its first step in the batch
 * @nr: how many steps are
 * @pages: 4 KiB pages promoted
 * @demoted_pages: 4 KiB pages demoted for them
 * @why: refusals of the whole plan so far
 */
void demeter_ledger_moved(struct demeter_ledger_run *run, u32 first, u32 nr, u64 pages,
			  u64 demoted_pages, const struct demeter_refusals *why)
{
	u32 last = first + nr - 1, i;
	u64 before = 0, all = 0;

	mutex_lock(&ledger_lock);
	for (i = first; i <= last; i++) {
		struct decision *decision = decision_of(run, i);

		all += decision ? decision->pending_pages : 0;
	}
	book_refused(run, first, last, all, why);
	for (i = first; i <= last; i++) {
		struct decision *decision = decision_of(run, i);
		u64 after;

		if (!decision)
			continue;
		after = i == last ? all : before + decision->pending_pages;
		/* Nothing isolated and yet moved cannot be, but would have to add up. */
		if (all)
			book_moved(decision, share_of(pages, before, after, all),
				   share_of(demoted_pages, before, after, all));
		else if (i == last)
			book_moved(decision, pages, demoted_pages);
		decision->pending_pages = 0;
		before = after;
	}
	mutex_unlock(&ledger_lock);
}

/**
 * demeter_ledger_end() - a plan was carried out
 * @run: the plan
 */
void demeter_ledger_end(struct demeter_ledger_run *run)
{
	u32 i;

	mutex_lock(&ledger_lock);
	for (i = 0; i < run->nr; i++) {
		struct decision *decision = decision_of(run, i);

		if (!decision || decision->state != RUNNING)
			continue;
		if (demeter_placement_is_open(&decision->placement)) {
			decision->state = OPEN;
			totals.open++;
			/* Its address space may be gone by now, and nobody would age it. */
			if (!xa_load(&accounts, decision->placement.hot.space))
				settle(decision);
		} else {
			decision->state = EMPTY;
			totals.empty++;
		}
	}
	mutex_unlock(&ledger_lock);
}

/* Is @side a class of base pages where nothing is divided any more? Nobody samples it then. */
static bool is_unseen(const struct demeter_placement_side *side, u32 space,
		      const struct demeter_rank_entry *classes)
{
	return side->part && side->space == space && (!classes || !classes->part);
}

/* What it gains from now on is not known, which is no proof that it was a mistake. */
static void drop(struct decision *decision)
{
	/* Turned off, nothing more of the kind comes; else who divides in vain is to be stopped. */
	if (READ_ONCE(demeter_params.finer) && !decision->imposed)
		demeter_judge_conclude(&account_of(decision->placement.hot.space)->judge,
				       &decision->placement, decision->time_ns);
	decision->state = DROPPED;
	totals.open--;
	totals.dropped++;
}

/* An epoch of @space is over: what did @decision gain by it? */
static void realise(struct decision *decision, u32 space, const struct demeter_ranges *ranges,
		    const struct demeter_rank_entry *classes, u64 samples)
{
	u64 passed_ns = demeter_pacing_passed_ns();
	struct demeter_placement *placement = &decision->placement;
	s64 ns;

	if (is_unseen(&placement->hot, space, classes) ||
	    is_unseen(&placement->cold, space, classes)) {
		drop(decision);
		return;
	}
	ns = demeter_placement_realise(placement, ranges, classes, space,
				       demeter_accesses_per_sample(), demeter_latency_gap_ps());
	totals.realised_ns += ns;
	if (placement->hot.part)
		totals.paged_realised_ns += ns;
	account_of(placement->hot.space)->realised_ns += ns;
	if (placement->hot.space != space)
		return;
	demeter_placement_age(placement, passed_ns);
	if (samples)
		demeter_placement_forget(placement, passed_ns);
	if (!demeter_placement_is_open(placement))
		settle(decision);
}

static u64 horizon_ns(void)
{
	return READ_ONCE(demeter_params.horizon_ms) * NSEC_PER_MSEC;
}

/* All decisions of the account were brought up to date: does moving for it pay? */
static void judge(struct account *account)
{
	u64 now_ns = ktime_get_ns();

	if (!demeter_judge_epoch(&account->judge, now_ns, demeter_pacing_passed_ns(), horizon_ns()))
		return;
	totals.stops++;
	trace_demeter_stopped(account->space, account->judge.until_ns - now_ns,
			      account->judge.all_stops);
}

/**
 * demeter_ledger_realise() - an epoch of an address space is over
 * @space: its number
 * @ranges: its classification
 * @samples: samples that it got; without any nothing is judged
 *
 * For the worker, while sampling is on.
 */
void demeter_ledger_realise(u32 space, const struct demeter_ranges *ranges, u64 samples)
{
	const struct demeter_rank_entry *classes = demeter_finer_classes_of(space);
	struct account *account;
	bool passed_open = false;
	u64 number;

	mutex_lock(&ledger_lock);
	account = account_of(space);
	if (totals.decisions - first_open > DEMETER_LEDGER_DECISIONS)
		first_open = totals.decisions - DEMETER_LEDGER_DECISIONS;
	for (number = first_open; number < totals.decisions; number++) {
		struct decision *decision = slot_of(number);

		if (decision->number != number)
			continue;
		if (decision->state == OPEN && (decision->placement.hot.space == space ||
						decision->placement.cold.space == space))
			realise(decision, space, ranges, classes, samples);
		/* Without samples nothing new was realised: to be heard once is enough. */
		if (samples && decision->state == OPEN && !decision->imposed &&
		    decision->placement.hot.space == space)
			demeter_judge_hear(&account->judge, &decision->placement, decision->time_ns,
					   demeter_pacing_passed_ns(), horizon_ns());
		if (decision->state == OPEN || decision->state == RUNNING)
			passed_open = true;
		else if (!passed_open)
			first_open = number + 1;
	}
	if (samples && account != &gone)
		judge(account);
	mutex_unlock(&ledger_lock);
}

/* Pages that were promoted for @account since its stop to where @side was demoted from. */
static u64 returned_pages(const struct account *account, const struct demeter_placement_side *side)
{
	u64 number, pages = 0;

	for (number = totals.decisions; number-- > first_open;) {
		const struct decision *decision = slot_of(number);
		const struct demeter_placement *placement = &decision->placement;

		if (decision->number != number || decision->time_ns < account->judge.since_ns)
			break;
		if (placement->hot.space == account->space && placement->hot.start < side->end &&
		    side->start < placement->hot.end)
			pages += placement->pages;
	}
	return pages;
}

/* What a decision from before the stop has demoted is accessed more than what it promoted. */
static bool may_return(const struct decision *decision, const struct account *account)
{
	const struct demeter_placement *placement = &decision->placement;

	/* Asked first what is known at once. */
	return decision->state == OPEN && decision->kind == DEMETER_PLAN_SWAP &&
	       placement->cold.space == account->space && placement->recent_ns < 0 &&
	       demeter_judge_may_return(&account->judge, placement, decision->time_ns,
					returned_pages(account, &placement->cold));
}

/**
 * demeter_ledger_is_stopped() - does moving for an address space not pay at present
 * @space: its number
 * @returns: out: where the planner may undo what was done, if that is so
 *
 * Return: whether nothing else is to be promoted.
 */
bool demeter_ledger_is_stopped(u32 space, struct demeter_ledger_returns *returns)
{
	struct account *account;
	bool stopped;
	u64 number;

	returns->nr = 0;
	mutex_lock(&ledger_lock);
	account = account_of(space);
	stopped = demeter_judge_is_stopped(&account->judge, ktime_get_ns());
	for (number = first_open; stopped && number < totals.decisions; number++) {
		const struct decision *decision = slot_of(number);

		if (returns->nr == DEMETER_LEDGER_RETURNS)
			break;
		if (decision->number != number || !may_return(decision, account))
			continue;
		returns->part[returns->nr].start = decision->placement.cold.start;
		returns->part[returns->nr++].end = decision->placement.cold.end;
	}
	mutex_unlock(&ledger_lock);
	return stopped;
}

/**
 * demeter_ledger_paged() - what placing base pages of divided granules has come to
 * @cost_ns: out: what moving them took, a total since load, in nanoseconds
 *
 * Return: latency saved, a total since load, in nanoseconds; a loss is negative.
 */
s64 demeter_ledger_paged(u64 *cost_ns)
{
	s64 ns;

	mutex_lock(&ledger_lock);
	ns = totals.paged_realised_ns;
	*cost_ns = totals.paged_cost_ns;
	mutex_unlock(&ledger_lock);
	return ns;
}

/**
 * demeter_ledger_totals() - sums since load
 * @to: where to put them
 */
void demeter_ledger_totals(struct demeter_ledger_totals *to)
{
	u64 now_ns = ktime_get_ns();
	struct account *account;
	unsigned long space;

	mutex_lock(&ledger_lock);
	*to = totals;
	xa_for_each(&accounts, space, account)
		to->stopped_targets += demeter_judge_is_stopped(&account->judge, now_ns);
	mutex_unlock(&ledger_lock);
}

/* Numbers of the exported file are our own enums, which may not change without it. */
static_assert(DEMETER_BY_PID == DEMETER_LEDGER_BY_PID);
static_assert(DEMETER_BY_CGROUP == DEMETER_LEDGER_BY_CGROUP);
static_assert(DEMETER_BY_SIZE == DEMETER_LEDGER_BY_SIZE);
static_assert(DEMETER_PLAN_FILL == DEMETER_LEDGER_FILL);
static_assert(DEMETER_PLAN_SWAP == DEMETER_LEDGER_SWAP);
static_assert(DEMETER_PLAN_DEMOTE == DEMETER_LEDGER_DEMOTE);

static void account_copy(struct demeter_ledger_target *to, const struct account *from)
{
	*to = (struct demeter_ledger_target){
		.space = from->space,
		.pid = from->pid,
		.origin = from->origin,
		.decisions = from->decisions,
		.promoted_pages = from->promoted_pages,
		.demoted_pages = from->demoted_pages,
		.filled_pages = from->filled_pages,
		.predicted_ns = from->predicted_ns,
		.realised_ns = from->realised_ns,
	};
	memcpy(to->refused_pages, from->refused.pages, sizeof(from->refused.pages));
}

static void decision_copy(struct demeter_ledger_decision *to, const struct decision *from)
{
	const struct demeter_placement *placement = &from->placement;
	int i;

	*to = (struct demeter_ledger_decision){
		.number = from->number,
		.time_ns = from->time_ns,
		.epoch = from->epoch,
		.kind = from->kind,
		.source = from->source,
		.state = from->state == SETTLED || from->state == DROPPED ? DEMETER_LEDGER_SETTLED
			 : !from->placement.pages			  ? DEMETER_LEDGER_EMPTY
									  : DEMETER_LEDGER_OPEN,
		.hot_space = placement->hot.space,
		.hot_pid = from->pid[0],
		.hot_start = placement->hot.start,
		.hot_end = placement->hot.end,
		.cold_space = placement->cold.space,
		.cold_pid = from->pid[1],
		.cold_start = placement->cold.start,
		.cold_end = placement->cold.end,
		.planned_pages = from->planned_pages,
		.moved_pages = placement->pages,
		.refused_pages = from->refused_pages,
		.lasts_ns = placement->lasts_ns,
		.age_ns = placement->age_ns,
		.predicted_ns = demeter_placement_predicted_ns(placement),
		.realised_ns = placement->realised_ns,
	};
	for (i = 0; i < DECISION_REASONS; i++) {
		if (from->why[i].pages <= to->reason_pages)
			continue;
		to->reason = from->why[i].reason;
		to->reason_pages = from->why[i].pages;
	}
}

static void header_fill(struct demeter_ledger_header *header, u32 nr_decisions)
{
	*header = (struct demeter_ledger_header){
		.magic = DEMETER_LEDGER_MAGIC,
		.version = DEMETER_LEDGER_VERSION,
		.header_bytes = sizeof(*header),
		.reason_bytes = DEMETER_LEDGER_REASON_BYTES,
		.target_bytes = sizeof(struct demeter_ledger_target),
		.decision_bytes = sizeof(struct demeter_ledger_decision),
		.nr_reasons = DEMETER_REFUSALS,
		.nr_targets = nr_accounts + 1,
		.nr_decisions = nr_decisions,
		.time_ns = ktime_get_ns(),
		.epochs = READ_ONCE(demeter_stats.epochs),
		.decisions = totals.decisions,
		.open_decisions = totals.open,
		.settled_decisions = totals.settled,
		.dropped_decisions = totals.dropped,
		.empty_decisions = totals.empty,
		.predicted_ns = totals.predicted_ns,
		.realised_ns = totals.realised_ns,
		.settled_predicted_ns = totals.settled_predicted_ns,
		.settled_realised_ns = totals.settled_realised_ns,
	};
}

/**
 * demeter_ledger_snapshot() - copy both books
 * @data: out: to be freed by kvfree()
 * @bytes: out: its length
 *
 * Return: 0 or -ENOMEM.
 */
int demeter_ledger_snapshot(void **data, size_t *bytes)
{
	struct demeter_ledger_decision *decision;
	struct demeter_ledger_target *target;
	struct demeter_ledger_header *header;
	struct account *account;
	unsigned long space;
	size_t length;
	u32 nr, i;
	char *name;
	int ret = -ENOMEM;

	mutex_lock(&ledger_lock);
	nr = min_t(u64, totals.decisions, DEMETER_LEDGER_DECISIONS);
	length = sizeof(*header) + DEMETER_REFUSALS * DEMETER_LEDGER_REASON_BYTES +
		 (nr_accounts + 1) * sizeof(*target) + nr * sizeof(*decision);
	header = kvzalloc(length, GFP_KERNEL);
	if (!header)
		goto unlock;
	header_fill(header, nr);
	name = (char *)(header + 1);
	for (i = 0; i < DEMETER_REFUSALS; i++, name += DEMETER_LEDGER_REASON_BYTES)
		strscpy(name, demeter_refusal_names[i], DEMETER_LEDGER_REASON_BYTES);
	target = (void *)name;
	account_copy(target++, &gone);
	xa_for_each(&accounts, space, account)
		account_copy(target++, account);
	decision = (void *)target;
	for (i = 0; i < nr; i++)
		decision_copy(decision++, slot_of(totals.decisions - nr + i));
	*data = header;
	*bytes = length;
	ret = 0;
unlock:
	mutex_unlock(&ledger_lock);
	return ret;
}
