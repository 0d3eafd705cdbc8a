// SPDX-License-Identifier: GPL-2.0-only
/*
 * Execute: carry out a plan.
 *
 * Steps are gathered until their folios make a batch worth one TLB flush, then
 * exchanged, or moved into free FMEM. What a batch cost is measured in CPU time
 * and fed back to the planner, and what moved is booked where it came from. Each
 * range is searched from where the search ended last time, and only where pages
 * are known to be. Ranges whose pages were refused are left alone for a while,
 * twice as long each time.
 */
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>

#include "finer.h"
#include "huge.h"
#include "ledger.h"
#include "relocate.h"
#include "scan.h"
#include "tmm.h"
#include "trace.h"

/* THPs on one side of a batch: each keeps 2 MiB from its process meanwhile. */
#define BATCH_HUGE_PAGES  (8 * HPAGE_PMD_NR)
/* Pages of a batch from which on it counts as an eighth of what is known of costs. */
#define LEARN_PAGES	  128u
/* Epochs that a refused range is left alone, at most, as a power of two. */
#define BACK_OFF_MAX	  6
/* Epochs without filling after FMEM that counts as free took nothing. */
#define FILL_PAUSE_EPOCHS 32
/* Epochs in which an unused cost loses most of what it is above the first guess. */
#define FORGET_EPOCHS	  64

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
	return READ_ONCE(demeter_context.swap_cost_ns);
}

/**
 * demeter_move_cost_ns() - measured cost of moving a 4 KiB page into free FMEM
 *
 * Return: nanoseconds of CPU time, a moving average.
 */
u64 demeter_move_cost_ns(void)
{
	return READ_ONCE(demeter_context.move_cost_ns);
}

/**
 * demeter_fillable_pages() - how much free FMEM is worth trying to fill this epoch
 * @column: of the fast node
 * @room_pages: what is free there
 *
 * Free pages that are no THP cannot take one. The planner would fill before it
 * swaps, so free FMEM that refuses what is hot has to be forgotten for a while. Not
 * so what came free since: a balloon gave it back, or a process ended.
 *
 * For the worker.
 *
 * Return: pages that may take what is hot.
 */
u64 demeter_fillable_pages(u32 column, u64 room_pages)
{
	struct demeter_context *ctx = &demeter_context;
	u64 *refusing_pages = &ctx->refusing_pages[column];
	u64 more;

	if (demeter_stats.epochs >= ctx->fill_paused_until_epoch[column])
		return room_pages;
	*refusing_pages = min(*refusing_pages, room_pages);
	more = room_pages - *refusing_pages;
	return more >= HPAGE_PMD_NR ? more : 0;
}

/*
 * Where base pages are placed by themselves many batches have a few pages. Such a one
 * costs more for each, and says less: it weighs less then.
 */
static void learn(u64 *average_ns, u64 spent_ns, u64 pages)
{
	u64 weight = demeter_finer_table ? min_t(u64, pages, LEARN_PAGES) : LEARN_PAGES, average;

	if (!pages)
		return;
	average = *average_ns * (8 * LEARN_PAGES - weight) + div64_u64(spent_ns, pages) * weight;
	WRITE_ONCE(*average_ns, max(1ull, average / (8 * LEARN_PAGES)));
}

/*
 * What was dear once need not stay so, and what is too dear is not tried again: where
 * nothing is measured, a cost returns to the first guess.
 */
static void forget(u64 *average_ns, u64 guess_ns)
{
	u64 average = *average_ns;

	if (average > guess_ns)
		WRITE_ONCE(*average_ns, average - DIV_ROUND_UP(average - guess_ns, FORGET_EPOCHS));
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

/* A range was tried on @tier: leave it alone for a while if that failed. */
static void note_outcome(const struct demeter_context *ctx, const struct demeter_rank_entry *entry,
			 enum demeter_tier tier, bool moved)
{
	bool far = demeter_route_is_far(&ctx->route);
	struct demeter_target *target = demeter_target_of(entry->space);
	struct demeter_count *count;
	u64 since_ns;

	if (entry->part) {
		demeter_finer_outcome(entry, tier, moved);
		return;
	}
	count = target ? demeter_target_count(target, entry->start) : NULL;
	if (!count)
		return;
	since_ns = demeter_target_lock(target);
	if (moved) {
		count->back_off[far][tier] = 0;
	} else {
		count->retry_epoch[far][tier] =
			target->ranges.epoch + (1u << count->back_off[far][tier]);
		if (count->back_off[far][tier] < BACK_OFF_MAX)
			count->back_off[far][tier]++;
	}
	demeter_target_unlock(target, since_ns);
}

/* Node of @tier on the way of the plan. */
static int node_of(const struct demeter_context *ctx, enum demeter_tier tier)
{
	u32 column = tier == DEMETER_FMEM ? ctx->route.to : ctx->route.from;

	return demeter_tiers.node[column][tier];
}

/* What is known of the pages that @target has there. */
static struct demeter_resident *resident_of(const struct demeter_context *ctx,
					    struct demeter_target *target, enum demeter_tier tier)
{
	return &target->resident[tier == DEMETER_FMEM ? ctx->route.to : ctx->route.from];
}

/* @pages of @entry left @tier; they were found between @start and @end. */
static void book(struct demeter_context *ctx, const struct demeter_rank_entry *entry,
		 enum demeter_tier tier, u64 start, u64 end, u64 pages)
{
	enum demeter_tier to = tier == DEMETER_FMEM ? DEMETER_SMEM : DEMETER_FMEM;
	struct demeter_target *target = demeter_target_of(entry->space);
	struct demeter_resident *here, *there;

	/* Those are looked up again. */
	if (entry->part || !target)
		return;
	here = resident_of(ctx, target, tier);
	there = resident_of(ctx, target, to);
	/* Nothing may ever have been found of that pair of nodes there. */
	if (here != there)
		demeter_recount_room(ctx, there);
	if (demeter_resident_move_between(here, there, start, end, tier, pages, &ctx->spare_leaf) <
	    pages)
		target->pass.wanted = true;
}

/* @pages came to the node of @tier. */
static void arrive(const struct demeter_context *ctx, enum demeter_tier tier, u64 pages)
{
	struct demeter_node_stats *stats = &demeter_node_stats[node_of(ctx, tier)];

	WRITE_ONCE(stats->arrived_pages, stats->arrived_pages + pages);
}

/*
 * Book what a batch has moved. Which of its folios stayed is not told, so what did
 * is taken as spread evenly over its steps; the next pass corrects it.
 */
static void batch_book(struct demeter_context *ctx, const struct batch *batch, u64 moved)
{
	u64 taken = 0, seen = 0, booked = 0;
	u32 last = batch->first + batch->nr, i;

	for (i = batch->first; i < last; i++)
		taken += ctx->span[i].pages;
	moved = min(moved, taken);
	for (i = batch->first; i < last && moved; i++) {
		const struct demeter_plan_step *step = &ctx->plan.step[i];
		const struct demeter_span *span = &ctx->span[i];
		u64 share;

		seen += span->pages;
		share = mul_u64_u64_div_u64(moved, seen, taken) - booked;
		booked += share;
		if (step->kind != DEMETER_PLAN_DEMOTE)
			book(ctx, &ctx->entries[step->hot], DEMETER_SMEM, span->hot_from,
			     span->hot_to, share);
		if (step->kind != DEMETER_PLAN_FILL)
			book(ctx, &ctx->entries[step->cold], DEMETER_FMEM, span->cold_from,
			     span->cold_to, share);
	}
}

static void batch_flush(struct demeter_context *ctx, struct batch *batch,
			struct demeter_refusals *why)
{
	bool demote = batch->kind == DEMETER_PLAN_DEMOTE;
	u64 warm = demeter_folio_list_pages(&batch->hot);
	u64 cool = demeter_folio_list_pages(&batch->cold);
	u64 wanted = demote ? cool : warm;
	u64 start = demeter_worker_clock();
	bool fill = batch->kind == DEMETER_PLAN_FILL;
	int fmem_nid = node_of(ctx, DEMETER_FMEM);
	u64 moved = 0, demoted = 0, ns;
	bool well;
	u32 i;

	if (!batch->nr)
		return;
	if (demote) {
		demoted = demeter_relocate_migrate(&batch->cold, node_of(ctx, DEMETER_SMEM), why,
						   NULL);
		ns = demeter_worker_clock() - start;
		charge(DEMETER_STAGE_MIGRATE, ns);
		demeter_stats.demoted_pages += demoted;
		trace_demeter_demote(wanted, demoted, ns);
	} else if (!fill) {
		struct demeter_traded traded;

		traded = demeter_relocate_trade(&batch->hot, &batch->cold, fmem_nid,
						node_of(ctx, DEMETER_SMEM),
						READ_ONCE(demeter_params.batch_pairs), why);
		moved = traded.promoted_pages;
		ns = demeter_worker_clock() - start;
		charge(DEMETER_STAGE_RELOCATE, ns);
		learn(&ctx->swap_cost_ns, batch->ns + ns, moved);
		demoted = traded.demoted_pages;
		demeter_stats.demoted_pages += demoted;
		trace_demeter_exchange(wanted, moved, ns);
	} else {
		moved = demeter_relocate_migrate(&batch->hot, fmem_nid, why, NULL);
		ns = demeter_worker_clock() - start;
		charge(DEMETER_STAGE_MIGRATE, ns);
		learn(&ctx->move_cost_ns, batch->ns + ns, moved);
		demeter_stats.filled_pages += moved;
		trace_demeter_fill(wanted, moved, ns);
	}
	demeter_finer_flushed(warm == moved && cool == demoted);
	demeter_stats.promoted_pages += moved;
	arrive(ctx, DEMETER_FMEM, moved);
	arrive(ctx, DEMETER_SMEM, demoted);
	batch_book(ctx, batch, demote ? demoted : moved);
	demeter_ledger_moved(&batch->ledger, batch->first, batch->nr, moved, demoted, why);
	/*
	 * Where nothing could be isolated, that was noted then, and says nothing
	 * about the room in FMEM: what is bound to SMEM must not keep others out.
	 */
	well = (demote ? demoted : moved) * 4 >= wanted;
	for (i = batch->first; wanted && i < batch->first + batch->nr; i++) {
		const struct demeter_plan_step *step = &ctx->plan.step[i];

		/* What did not fit into free FMEM may still be swapped: no fault of its own. */
		if (!demote)
			note_outcome(ctx, &ctx->entries[step->hot], DEMETER_SMEM, well || fill);
		if (!fill)
			note_outcome(ctx, &ctx->entries[step->cold], DEMETER_FMEM, well);
	}
	if (fill && !well) {
		ctx->fill_paused_until_epoch[ctx->route.to] =
			demeter_stats.epochs + FILL_PAUSE_EPOCHS;
		ctx->refusing_pages[ctx->route.to] = demeter_relocate_room(fmem_nid);
	}
	batch->nr = 0;
	batch->ns = 0;
}

/* Take up to @pages of @tier from [@at, @end), where they are known to be. */
static u64 isolate_between(const struct demeter_context *ctx, struct demeter_target *target,
			   enum demeter_tier tier, u64 at, u64 end, u64 pages,
			   struct demeter_folio_list *list, struct demeter_refusals *why)
{
	int nid = node_of(ctx, tier);
	int to_nid = node_of(ctx, tier == DEMETER_FMEM ? DEMETER_SMEM : DEMETER_FMEM);
	const struct demeter_resident *resident = resident_of(ctx, target, tier);
	u64 before = demeter_folio_list_pages(list), taken = 0, stop, held_ns;

	while (at < end && taken < pages && !demeter_worker_should_stop()) {
		at = demeter_resident_next(resident, at, end, tier, &stop);
		if (at >= end)
			break;
		if (demeter_finer_skip(target, &at, &stop))
			continue;
		held_ns = demeter_worker_clock();
		if (demeter_scan_isolate_slice(target->mm, &at, stop, nid, to_nid, pages - taken,
					       list, why))
			break;
		held_ns = demeter_worker_clock() - held_ns;
		demeter_stats_max(&demeter_stats.mmap_lock_held_max_ns, held_ns);
		taken = demeter_folio_list_pages(list) - before;
		cond_resched();
	}
	return at;
}

/*
 * Take up to @pages of @tier from a range, from where the last search ended, and
 * from its beginning when nothing is left above. [*from, *to) is what was searched.
 */
static u64 isolate(const struct demeter_context *ctx, const struct demeter_rank_entry *entry,
		   enum demeter_tier tier, u64 pages, struct demeter_folio_list *list,
		   struct demeter_refusals *why, u64 *from, u64 *to)
{
	struct demeter_target *target = demeter_target_of(entry->space);
	struct demeter_count *count;
	u64 since_ns, taken;

	*from = entry->start;
	*to = entry->start;
	if (entry->part)
		return demeter_finer_isolate(entry, tier, pages, list, why);
	if (!target || !mmget_not_zero(target->mm))
		return 0;
	count = demeter_target_count(target, entry->start);
	if (count)
		*from = clamp(count->next[tier], entry->start, entry->end);
	*to = isolate_between(ctx, target, tier, *from, entry->end, pages, list, why);
	if (!demeter_folio_list_pages(list) && *from > entry->start) {
		*to = isolate_between(ctx, target, tier, entry->start, *from, pages, list, why);
		*from = entry->start;
	}
	mmput_async(target->mm);
	if (count) {
		since_ns = demeter_target_lock(target);
		count->next[tier] = *to;
		demeter_target_unlock(target, since_ns);
	}
	taken = demeter_folio_list_pages(list);
	if (!taken)
		target->pass.wanted = true;
	return taken;
}

static void splice(struct demeter_folio_list *to, struct demeter_folio_list *from)
{
	list_splice_tail_init(&from->small, &to->small);
	list_splice_tail_init(&from->huge, &to->huge);
	list_splice_tail_init(&from->other, &to->other);
	to->small_pages += from->small_pages;
	to->huge_pages += from->huge_pages;
	to->other_pages += from->other_pages;
	from->small_pages = 0;
	from->huge_pages = 0;
	from->other_pages = 0;
}

/* Bring both sides to the same orders; hot pages were found from @from on. */
static void match_sizes(const struct demeter_context *ctx, const struct demeter_rank_entry *entry,
			u64 from, struct demeter_folio_list *hot, struct demeter_folio_list *cold,
			struct demeter_refusals *why)
{
	struct demeter_target *target = entry->part ? NULL : demeter_target_of(entry->space);
	u64 end = demeter_finer_around(entry, &from);
	struct demeter_huge_source source = {
		.mm = target && mmget_not_zero(target->mm) ? target->mm : NULL,
		.start = from,
		.end = end,
		.collapse_from = from,
		.nid = node_of(ctx, DEMETER_SMEM),
		.to_nid = node_of(ctx, DEMETER_FMEM),
	};

	demeter_huge_match(&source, hot, cold, why);
	if (source.mm)
		mmput_async(source.mm);
}

/* Cold pages of a step that gives FMEM back. */
static u64 add_demotion(const struct demeter_context *ctx, const struct demeter_rank_entry *cool,
			u64 left, struct demeter_folio_list *cold, struct demeter_refusals *why,
			struct demeter_span *span)
{
	u64 pages =
		isolate(ctx, cool, DEMETER_FMEM, left, cold, why, &span->cold_from, &span->cold_to);

	if (!pages)
		note_outcome(ctx, cool, DEMETER_FMEM, false);
	return pages;
}

/* Hot pages of a step, and of a swap as many cold ones. */
static u64 add_promotion(struct demeter_context *ctx, const struct demeter_plan_step *step,
			 u64 left, struct demeter_folio_list *hot, struct demeter_folio_list *cold,
			 struct demeter_refusals *why, struct demeter_span *span)
{
	const struct demeter_rank_entry *warm = &ctx->entries[step->hot];
	const struct demeter_rank_entry *cool = &ctx->entries[step->cold];
	u64 hot_pages, cold_pages, huge_pages;

	hot_pages =
		isolate(ctx, warm, DEMETER_SMEM, left, hot, why, &span->hot_from, &span->hot_to);
	if (!hot_pages)
		note_outcome(ctx, warm, DEMETER_SMEM, false);
	if (!hot_pages || step->kind != DEMETER_PLAN_SWAP)
		return hot_pages;
	cold_pages = isolate(ctx, cool, DEMETER_FMEM, hot_pages, cold, why, &span->cold_from,
			     &span->cold_to);
	huge_pages = hot->huge_pages;
	if (!cold_pages)
		note_outcome(ctx, cool, DEMETER_FMEM, false);
	else
		match_sizes(ctx, warm, span->hot_from, hot, cold, why);
	/* A collapse takes more in than was found at first. */
	if (hot->huge_pages != huge_pages)
		span->hot_to = warm->end;
	return min(demeter_folio_list_pages(hot), cold_pages);
}

/* Isolate what step @at moves. Large steps are cut: returns pages taken of @left. */
static u64 batch_add(struct demeter_context *ctx, struct batch *batch, u32 at, u64 left,
		     struct demeter_refusals *why)
{
	const struct demeter_plan_step *step = &ctx->plan.step[at];
	u64 start = demeter_worker_clock(), ns;
	struct demeter_span *span = &ctx->span[at];
	struct demeter_folio_list hot, cold;

	demeter_folio_list_init(&hot);
	demeter_folio_list_init(&cold);
	*span = (struct demeter_span){};
	left = min_t(u64, left, BATCH_HUGE_PAGES);
	if (step->kind == DEMETER_PLAN_DEMOTE)
		span->pages = add_demotion(ctx, &ctx->entries[step->cold], left, &cold, why, span);
	else
		span->pages = add_promotion(ctx, step, left, &hot, &cold, why, span);
	splice(&batch->hot, &hot);
	splice(&batch->cold, &cold);
	ns = demeter_worker_clock() - start;
	charge(DEMETER_STAGE_SCAN, ns);
	batch->ns += ns;
	return span->pages;
}

static bool batch_is_full(const struct batch *batch)
{
	u64 pairs = READ_ONCE(demeter_params.batch_pairs);

	return batch->hot.small_pages >= pairs || batch->cold.small_pages >= pairs ||
	       batch->hot.other_pages >= pairs || batch->cold.other_pages >= pairs ||
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
		    (step->kind != DEMETER_PLAN_FILL && other->cold == step->cold))
			return true;
	}
	return false;
}

/**
 * demeter_execute_nothing() - no plan of this epoch had a step
 * @ctx: the worker's
 */
void demeter_execute_nothing(struct demeter_context *ctx)
{
	forget(&ctx->swap_cost_ns, DEMETER_FIRST_SWAP_COST_NS);
	forget(&ctx->move_cost_ns, DEMETER_FIRST_MOVE_COST_NS);
}

/**
 * demeter_execute() - carry out the plan
 * @ctx: the plan, and the entries it refers to
 *
 * For the worker. Stops early when it is asked to.
 */
void demeter_execute(struct demeter_context *ctx)
{
	const struct demeter_plan *plan = &ctx->plan;
	struct demeter_refusals why = {};
	struct batch batch = {};
	u32 i;

	demeter_ledger_begin(&batch.ledger, plan, ctx->entries);
	if (!plan->nr)
		return;
	demeter_folio_list_init(&batch.hot);
	demeter_folio_list_init(&batch.cold);
	for (i = 0; i < plan->nr && !demeter_worker_should_stop(); i++) {
		const struct demeter_plan_step *step = &plan->step[i];
		u64 left = step->pages;

		trace_demeter_step(step, &ctx->entries[step->hot],
				   step->kind != DEMETER_PLAN_FILL ? &ctx->entries[step->cold]
								   : NULL);
		if (step->kind != batch.kind || batch_overlaps(&batch, plan, step)) {
			batch_flush(ctx, &batch, &why);
			batch.kind = step->kind;
		}
		while (left && !demeter_worker_should_stop()) {
			u64 taken = batch_add(ctx, &batch, i, left, &why);

			demeter_ledger_isolated(&batch.ledger, i, taken, &why);
			if (!batch.nr)
				batch.first = i;
			batch.nr = i + 1 - batch.first;
			left -= min(left, taken);
			if (left || batch_is_full(&batch)) {
				batch_flush(ctx, &batch, &why);
				cond_resched();
			}
			if (!taken)
				break;
		}
	}
	batch_flush(ctx, &batch, &why);
	demeter_ledger_end(&batch.ledger);
	note_refusals(&why);
}
