// SPDX-License-Identifier: GPL-2.0-only
/*
 * Execute: carry out a plan.
 *
 * Steps are gathered until their folios make a batch worth one TLB flush, then
 * exchanged, or moved into free FMEM. What a batch cost is measured in CPU time
 * and fed back to the planner. Ranges whose pages were refused are left alone
 * for a while, twice as long each time.
 */
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>

#include "huge.h"
#include "ledger.h"
#include "relocate.h"
#include "scan.h"
#include "tmm.h"
#include "trace.h"

/* Of 4 KiB pages; first guesses until something was measured. */
#define SWAP_COST_NS	  3000
#define MOVE_COST_NS	  2000
/* THPs on one side of a batch: each keeps 2 MiB from its process meanwhile. */
#define BATCH_HUGE_PAGES  (8 * HPAGE_PMD_NR)
/* Epochs that a refused range is left alone, at most, as a power of two. */
#define BACK_OFF_MAX	  6
/* Epochs without filling after FMEM that counts as free took nothing. */
#define FILL_PAUSE_EPOCHS 32

static u64 swap_cost_ns = SWAP_COST_NS;
static u64 move_cost_ns = MOVE_COST_NS;
static u64 fill_paused_until_epoch; /* demeter_lock, as the next */
static u64 refusing_pages;	    /* free FMEM that took nothing, while paused */

/**
 * struct batch - steps whose folios are isolated but not yet moved
 * @kind: what all of them are
 * @hot: folios in SMEM
 * @cold: folios in FMEM
 * @first: first step
 * @nr: number of steps
 * @ns: CPU time spent on finding the folios
 * @ledger: who is told of it
 */
struct batch {
	enum demeter_plan_kind kind;
	struct demeter_folio_list hot;
	struct demeter_folio_list cold;
	u32 first;
	u32 nr;
	u64 ns;
	struct demeter_ledger_run ledger;
};

/**
 * demeter_swap_cost_ns() - measured cost of exchanging a pair of 4 KiB pages
 *
 * Return: nanoseconds of CPU time, a moving average.
 */
u64 demeter_swap_cost_ns(void)
{
	return READ_ONCE(swap_cost_ns);
}

/**
 * demeter_move_cost_ns() - measured cost of moving a 4 KiB page into free FMEM
 *
 * Return: nanoseconds of CPU time, a moving average.
 */
u64 demeter_move_cost_ns(void)
{
	return READ_ONCE(move_cost_ns);
}

/**
 * demeter_fillable_pages() - how much free FMEM is worth trying to fill this epoch
 * @room_pages: free FMEM
 *
 * Free pages that are no THP cannot take one. The planner would fill before it
 * swaps, so free FMEM that refuses what is hot has to be forgotten for a while. Not
 * so what came free since: a balloon gave it back, or a process ended.
 *
 * Return: pages that may take what is hot. Caller holds demeter_lock.
 */
u64 demeter_fillable_pages(u64 room_pages)
{
	if (demeter_stats.epochs >= fill_paused_until_epoch)
		return room_pages;
	refusing_pages = min(refusing_pages, room_pages);
	return room_pages - refusing_pages >= HPAGE_PMD_NR ? room_pages - refusing_pages : 0;
}

static void learn(u64 *average_ns, u64 spent_ns, u64 pages)
{
	u64 average = *average_ns * 7;

	if (pages)
		WRITE_ONCE(*average_ns, max(1ull, (average + div64_u64(spent_ns, pages)) / 8));
}

static void charge(enum demeter_stage stage, u64 ns)
{
	WRITE_ONCE(demeter_stats.stage_ns[stage], demeter_stats.stage_ns[stage] + ns);
}

static void note_refusals(const struct demeter_refusals *why)
{
	int i;

	for (i = DEMETER_OK + 1; i < DEMETER_REFUSALS; i++) {
		if (!why->pages[i])
			continue;
		demeter_stats.refused.pages[i] += why->pages[i];
		trace_demeter_refused(i, why->pages[i]);
	}
}

/* A range was tried on @tier: count it anew, and leave it alone if that failed. */
static void note_outcome(const struct demeter_rank_entry *entry, enum demeter_tier tier, bool moved)
{
	struct demeter_target *target = demeter_target_of(entry->space);
	struct demeter_count *count;

	count = target ? demeter_target_count(target, entry->start) : NULL;
	if (!count)
		return;
	count->stale = true;
	if (moved) {
		count->back_off[tier] = 0;
		return;
	}
	count->retry_epoch[tier] = target->ranges.epoch + (1u << count->back_off[tier]);
	if (count->back_off[tier] < BACK_OFF_MAX)
		count->back_off[tier]++;
}

static void batch_flush(struct batch *batch, const struct demeter_plan *plan,
			const struct demeter_rank_entry *ranked, struct demeter_refusals *why)
{
	u64 wanted = demeter_folio_list_pages(&batch->hot);
	u64 start = demeter_worker_clock();
	bool fill = batch->kind == DEMETER_PLAN_FILL;
	u64 moved = 0, ns;
	bool well;
	u32 i;

	if (!batch->nr)
		return;
	if (!fill) {
		moved = demeter_relocate_exchange(&batch->hot, &batch->cold,
						  READ_ONCE(demeter_params.batch_pairs), why, NULL);
		ns = demeter_worker_clock() - start;
		charge(DEMETER_STAGE_RELOCATE, ns);
		learn(&swap_cost_ns, batch->ns + ns, moved);
		demeter_stats.demoted_pages += moved;
		trace_demeter_exchange(wanted, moved, ns);
	} else {
		moved = demeter_relocate_migrate(&batch->hot, demeter_params.fmem_node, why, NULL);
		ns = demeter_worker_clock() - start;
		charge(DEMETER_STAGE_MIGRATE, ns);
		learn(&move_cost_ns, batch->ns + ns, moved);
		demeter_stats.filled_pages += moved;
		trace_demeter_fill(wanted, moved, ns);
	}
	demeter_stats.promoted_pages += moved;
	demeter_ledger_moved(&batch->ledger, batch->first, batch->nr, moved, why);
	well = wanted && moved * 4 >= wanted;
	for (i = batch->first; i < batch->first + batch->nr; i++) {
		const struct demeter_plan_step *step = &plan->step[i];

		/* What did not fit into free FMEM may still be swapped: no fault of its own. */
		note_outcome(&ranked[step->hot], DEMETER_SMEM, well || fill);
		if (!fill)
			note_outcome(&ranked[step->cold], DEMETER_FMEM, well);
	}
	if (fill && !well) {
		fill_paused_until_epoch = demeter_stats.epochs + FILL_PAUSE_EPOCHS;
		refusing_pages = demeter_relocate_room(demeter_params.fmem_node);
	}
	batch->nr = 0;
	batch->ns = 0;
}

static u64 isolate(const struct demeter_rank_entry *entry, int nid, u64 pages,
		   struct demeter_folio_list *list, struct demeter_refusals *why)
{
	struct demeter_target *target = demeter_target_of(entry->space);
	u64 before = demeter_folio_list_pages(list);

	if (!target || !mmget_not_zero(target->mm))
		return 0;
	demeter_scan_isolate(target->mm, entry->start, entry->end, nid, pages, list, why);
	mmput(target->mm);
	return demeter_folio_list_pages(list) - before;
}

static void splice(struct demeter_folio_list *to, struct demeter_folio_list *from)
{
	list_splice_tail_init(&from->small, &to->small);
	list_splice_tail_init(&from->huge, &to->huge);
	to->small_pages += from->small_pages;
	to->huge_pages += from->huge_pages;
	from->small_pages = 0;
	from->huge_pages = 0;
}

/* Bring both sides to the same orders; @skip_pages were dealt with in batches before. */
static void match_sizes(const struct demeter_rank_entry *entry, u64 skip_pages,
			struct demeter_folio_list *hot, struct demeter_folio_list *cold,
			struct demeter_refusals *why)
{
	struct demeter_target *target = demeter_target_of(entry->space);
	struct demeter_huge_source from = {
		.mm = target && mmget_not_zero(target->mm) ? target->mm : NULL,
		.start = entry->start,
		.end = entry->end,
		.collapse_from = entry->start + (skip_pages << PAGE_SHIFT),
		.nid = demeter_params.smem_node,
	};

	demeter_huge_match(&from, hot, cold, why);
	if (from.mm)
		mmput(from.mm);
}

/* Isolate what one step moves. Large steps are cut: returns pages taken of @left. */
static u64 batch_add(struct batch *batch, const struct demeter_plan_step *step, u64 left,
		     const struct demeter_rank_entry *ranked, struct demeter_refusals *why)
{
	u64 start = demeter_worker_clock();
	struct demeter_folio_list hot, cold;
	u64 hot_pages, cold_pages = 0, skip_pages, ns;

	demeter_folio_list_init(&hot);
	demeter_folio_list_init(&cold);
	skip_pages = step->pages - left;
	left = min_t(u64, left, BATCH_HUGE_PAGES);
	hot_pages = isolate(&ranked[step->hot], demeter_params.smem_node, left, &hot, why);
	if (!hot_pages)
		note_outcome(&ranked[step->hot], DEMETER_SMEM, false);
	if (hot_pages && step->kind == DEMETER_PLAN_SWAP) {
		cold_pages = isolate(&ranked[step->cold], demeter_params.fmem_node, hot_pages,
				     &cold, why);
		if (!cold_pages)
			note_outcome(&ranked[step->cold], DEMETER_FMEM, false);
		else
			match_sizes(&ranked[step->hot], skip_pages, &hot, &cold, why);
		hot_pages = min(demeter_folio_list_pages(&hot), cold_pages);
	}
	splice(&batch->hot, &hot);
	splice(&batch->cold, &cold);
	ns = demeter_worker_clock() - start;
	charge(DEMETER_STAGE_SCAN, ns);
	batch->ns += ns;
	return hot_pages;
}

static bool batch_is_full(const struct batch *batch)
{
	u64 pairs = READ_ONCE(demeter_params.batch_pairs);

	return batch->hot.small_pages >= pairs || batch->cold.small_pages >= pairs ||
	       batch->hot.huge_pages >= BATCH_HUGE_PAGES ||
	       batch->cold.huge_pages >= BATCH_HUGE_PAGES;
}

/* What is isolated already would be found again, and refused: one batch, one try. */
static bool batch_overlaps(const struct batch *batch, const struct demeter_plan *plan,
			   const struct demeter_plan_step *step)
{
	u32 i;

	for (i = batch->first; i < batch->first + batch->nr; i++) {
		const struct demeter_plan_step *other = &plan->step[i];

		if (other->hot == step->hot ||
		    (step->kind == DEMETER_PLAN_SWAP && other->cold == step->cold))
			return true;
	}
	return false;
}

/**
 * demeter_execute() - carry out a plan
 * @plan: the plan
 * @ranked: the entries it refers to
 *
 * Stops early when the worker is asked to. Caller holds demeter_lock.
 */
void demeter_execute(const struct demeter_plan *plan, const struct demeter_rank_entry *ranked)
{
	struct demeter_refusals why = {};
	struct batch batch = {};
	u32 i;

	demeter_ledger_begin(&batch.ledger, plan, ranked);
	if (!plan->nr)
		return;
	demeter_folio_list_init(&batch.hot);
	demeter_folio_list_init(&batch.cold);
	for (i = 0; i < plan->nr && !demeter_worker_should_stop(); i++) {
		const struct demeter_plan_step *step = &plan->step[i];
		u64 left = step->pages;

		trace_demeter_step(step, &ranked[step->hot],
				   step->kind == DEMETER_PLAN_SWAP ? &ranked[step->cold] : NULL);
		if (step->kind != batch.kind || batch_overlaps(&batch, plan, step)) {
			batch_flush(&batch, plan, ranked, &why);
			batch.kind = step->kind;
		}
		while (left && !demeter_worker_should_stop()) {
			u64 taken = batch_add(&batch, step, left, ranked, &why);

			demeter_ledger_isolated(&batch.ledger, i, taken, &why);
			if (!batch.nr)
				batch.first = i;
			batch.nr = i + 1 - batch.first;
			left -= min(left, taken);
			if (left || batch_is_full(&batch)) {
				batch_flush(&batch, plan, ranked, &why);
				cond_resched();
			}
			if (!taken)
				break;
		}
	}
	batch_flush(&batch, plan, ranked, &why);
	demeter_ledger_end(&batch.ledger);
	note_refusals(&why);
}
