// SPDX-License-Identifier: GPL-2.0-only
/*
 * Finer: how base pages of divided granules are ranked and moved, see finer.h.
 *
 * Each address space with divided granules has an entry in the ranking for each class
 * of pages, by their samples. Its ranges go without those granules.
 */
#include <linux/mm.h>
#include <linux/sched/mm.h>

#include "finer.h"
#include "scan.h"
#include "tmm.h"

/* Epochs that a refused class is left alone, at most, as a power of two. */
#define BACK_OFF_MAX 6

static struct demeter_rank_entry classes[DEMETER_FINER_CLASSES];

static u32 class_of(const struct demeter_rank_entry *entry)
{
	return entry->part - DEMETER_FINER_PART;
}

/**
 * demeter_finer_classes_of() - the classes of an address space now
 * @space: its number
 *
 * For the worker.
 *
 * Return: an entry for each class, valid until the next call; NULL when nothing is
 * divided.
 */
const struct demeter_rank_entry *demeter_finer_classes_of(u32 space)
{
	if (!demeter_finer_table || !demeter_finer_table->divided)
		return NULL;
	demeter_finer_classes(demeter_finer_table, space, classes);
	return classes;
}

/**
 * demeter_finer_room() - entries that are ranked beside the ranges
 *
 * Return: their number, at most.
 */
u32 demeter_finer_room(void)
{
	if (!demeter_finer_table || !demeter_finer_table->divided)
		return 0;
	return demeter_targets_nr() * DEMETER_FINER_CLASSES;
}

/**
 * demeter_finer_publish() - rank the pages of divided granules beside the ranges
 * @target: the address space
 * @entries: its ranges, whose pages and rates go without those granules then; room
 *	behind them
 * @own: how many ranges
 * @room: entries behind them
 *
 * Return: how many entries were added.
 */
u32 demeter_finer_publish(struct demeter_target *target, struct demeter_rank_entry *entries,
			  u32 own, u32 room)
{
	const struct demeter_rank_entry *of = demeter_finer_classes_of(target->space);
	u32 i, nr = 0;

	target->is_divided = of && of->part;
	if (!demeter_finer_table)
		return 0;
	demeter_finer_hide(demeter_finer_table, target->space, &target->resident[0], entries, own);
	/* Without room for all of them they stay where they are. */
	if (!target->is_divided || room < DEMETER_FINER_CLASSES)
		return 0;
	for (i = 0; i < DEMETER_FINER_CLASSES; i++) {
		if (!(of[i].pages[DEMETER_FMEM] | of[i].pages[DEMETER_SMEM]))
			continue;
		entries[own + nr] = of[i];
		entries[own + nr++].group = READ_ONCE(target->group);
	}
	return nr;
}

/**
 * demeter_finer_warm() - add to what is published of ranges what divided granules are sampled
 * @target: the address space
 * @counts: of its ranges, sorted by address
 * @nr: how many
 */
void demeter_finer_warm(const struct demeter_target *target, struct demeter_count *counts, u32 nr)
{
	const struct demeter_finer *f = demeter_finer_table;
	u32 i;

	if (!f || !f->divided || !demeter_finer_has(f, target->space))
		return;
	for (i = 0; i < f->capacity; i++) {
		const struct demeter_finer_granule *g = &f->granule[i];
		u32 low = 0, high = nr;

		if (g->state != DEMETER_FINER_DIVIDED || g->space != target->space)
			continue;
		while (low < high) {
			u32 mid = low + (high - low) / 2;

			if (counts[mid].end <= g->start)
				low = mid + 1;
			else
				high = mid;
		}
		if (low < nr)
			counts[low].rate += demeter_finer_rate(demeter_finer_table, g);
	}
}

/* Take it for moved: if it is not, demeter_finer_flushed() is told. */
static void take(struct demeter_target *target, struct demeter_finer_granule *g,
		 enum demeter_tier tier, const u64 *pages)
{
	enum demeter_tier to = tier == DEMETER_FMEM ? DEMETER_SMEM : DEMETER_FMEM;
	u64 where[DEMETER_TIERS][DEMETER_FINER_WORDS];
	u32 nr = bitmap_weight((unsigned long *)pages, DEMETER_FINER_CELLS), i;

	if (!nr)
		return;
	for (i = 0; i < DEMETER_FINER_WORDS; i++) {
		where[tier][i] = g->where[tier][i] & ~pages[i];
		where[to][i] = g->where[to][i] | pages[i];
	}
	demeter_finer_locate(g, where[DEMETER_FMEM], where[DEMETER_SMEM]);
	g->moving = true;
	demeter_resident_move(&target->resident[0], g->start, g->start + HPAGE_PMD_SIZE, tier, nr);
}

/**
 * demeter_finer_flushed() - what was isolated has been moved, or put back
 * @all: nothing of it was put back
 */
void demeter_finer_flushed(bool all)
{
	struct demeter_finer *f = demeter_finer_table;
	u32 i;

	for (i = 0; f && f->divided && i < f->capacity; i++) {
		struct demeter_finer_granule *g = &f->granule[i];

		/* It is looked up again in the next epoch. */
		g->stale |= g->moving && !all;
		g->moving = false;
	}
}

/**
 * demeter_finer_isolate() - isolate pages of a class
 * @entry: of the class
 * @tier: where
 * @pages: so many at most
 * @list: folios are appended
 * @why: refusals are added
 *
 * Return: pages taken.
 */
u64 demeter_finer_isolate(const struct demeter_rank_entry *entry, enum demeter_tier tier, u64 pages,
			  struct demeter_folio_list *list, struct demeter_refusals *why)
{
	int to_nid = demeter_tiers.node[0][tier == DEMETER_FMEM ? DEMETER_SMEM : DEMETER_FMEM];
	int nid = demeter_tiers.node[0][tier], ret;
	struct demeter_target *target = demeter_target_of(entry->space);
	u64 before = demeter_folio_list_pages(list), taken = 0;
	struct demeter_finer *f = demeter_finer_table;
	u32 class = class_of(entry), i;

	if (!f || !target || !mmget_not_zero(target->mm))
		return 0;
	for (i = 0; i < f->capacity && taken < pages && !demeter_worker_should_stop(); i++) {
		struct demeter_finer_granule *g = &f->granule[i];
		u64 select[DEMETER_FINER_WORDS], held_ns;

		if (g->state != DEMETER_FINER_DIVIDED || g->space != entry->space ||
		    g->taken[tier] & BIT(class) || !demeter_finer_select(g, class, tier, select))
			continue;
		held_ns = demeter_worker_clock();
		ret = demeter_scan_isolate_pages(target->mm, g->start, select, nid, to_nid,
						 pages - taken, list, why);
		held_ns = demeter_worker_clock() - held_ns;
		demeter_stats_max(&demeter_stats.mmap_lock_held_max_ns, held_ns);
		take(target, g, tier, select);
		if (ret)
			break;
		taken = demeter_folio_list_pages(list) - before;
		/* What is left of it was refused, and would be again. */
		if (taken < pages)
			g->taken[tier] |= BIT(class);
		cond_resched();
	}
	mmput_async(target->mm);
	return taken;
}

/**
 * demeter_finer_skip() - keep a search for pages of a range out of divided granules
 * @target: the address space
 * @at: where it goes on; moved behind a divided granule
 * @stop: where it ends; moved before one
 *
 * Return: whether @at was moved, and the search begins anew.
 */
bool demeter_finer_skip(const struct demeter_target *target, u64 *at, u64 *stop)
{
	u64 next;

	if (!demeter_finer_table)
		return false;
	next = demeter_finer_undivided(demeter_finer_table, target->space, *at, *stop);
	if (next == *at) {
		*at = (*at | (BIT_ULL(DEMETER_FINER_SHIFT) - 1)) + 1;
		return true;
	}
	*stop = next;
	return false;
}

/**
 * demeter_finer_around() - the first part of a range without a divided granule
 * @entry: the range
 * @from: from where on; moved behind the divided granules there
 *
 * Return: one past the last byte.
 */
u64 demeter_finer_around(const struct demeter_rank_entry *entry, u64 *from)
{
	if (!demeter_finer_table)
		return entry->end;
	return demeter_finer_whole(demeter_finer_table, entry->space, from, entry->end);
}

/**
 * demeter_finer_outcome() - a class was tried: leave it alone for a while if that failed
 * @entry: of the class
 * @tier: where its pages were
 * @moved: whether enough were moved
 */
void demeter_finer_outcome(const struct demeter_rank_entry *entry, enum demeter_tier tier,
			   bool moved)
{
	struct demeter_target *target = demeter_target_of(entry->space);
	struct demeter_refused_class *refused;

	if (!target)
		return;
	refused = &target->refused[class_of(entry)][tier];
	if (moved) {
		refused->back_off = 0;
		return;
	}
	refused->retry_epoch = demeter_stats.epochs + (1u << refused->back_off);
	if (refused->back_off < BACK_OFF_MAX)
		refused->back_off++;
}

/**
 * demeter_finer_back_off() - hide from the planner what would only be refused again
 * @entry: of a class
 */
void demeter_finer_back_off(struct demeter_rank_entry *entry)
{
	const struct demeter_target *target = demeter_target_of(entry->space);
	u32 tier;

	for (tier = 0; target && tier < DEMETER_TIERS; tier++)
		if (target->refused[class_of(entry)][tier].retry_epoch > demeter_stats.epochs)
			entry->pages[tier] = 0;
}
