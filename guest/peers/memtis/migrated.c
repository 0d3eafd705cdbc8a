// SPDX-License-Identifier: GPL-2.0-only
/*
 * kmigrated: one kthread a node, at a fixed pace.
 *
 * That of FMEM demotes what is below the warm bin, as much as is missing for the hot pages
 * that wait in SMEM and for the free part of FMEM; it also halves counts and splits. That
 * of SMEM promotes what is hot, into memory that is free. Pages move by 32 at most, in
 * MIGRATE_ASYNC, and are found by their counts, not on LRU lists.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/bitmap.h>
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/math64.h>
#include <linux/mm.h>
#include <linux/mmzone.h>
#include <linux/sched/mm.h>
#include <linux/vmstat.h>

#include "../contract.h"
#include "binding.h"
#include "huge.h"
#include "memtis.h"
#include "relocate.h"
#include "symbols.h"
#include "vma.h"

/* Pages isolated at once. */
#define BATCH_PAGES	  32
/* Part of a process that is looked at while there is nothing to demote. */
#define IDLE_PART	  8
#define DEMOTION_PERCENT  2
#define PROMOTION_PERCENT 3
#define HISTOGRAM_PERCENT 97
#define GRANULE_PAGES	  HPAGE_PMD_NR
#define GRANULE_END	  TASK_SIZE_MAX

#define demeter_type_node_page_state node_page_state
DEMETER_DEFINE_CALL(node_page_state);

static struct task_struct *kmigrated[DEMETER_TIERS];
/* Pages that wait in SMEM for room; SMEM's kmigrated tells FMEM's. */
static atomic64_t hot_pages_on_smem;
/* Did the last look at all of FMEM find something to demote? FMEM's kmigrated's. */
static bool found_cold;

/**
 * struct room - memory of FMEM, in 4 KiB pages
 * @all: free or of programs
 * @free: free
 * @low: below this the allocator has gone to SMEM
 * @high: below this nobody may take it for a promotion
 */
struct room {
	u64 all;
	u64 free;
	u64 low;
	u64 high;
};

static struct room look_at_room(void)
{
	pg_data_t *pgdat = NODE_DATA(memtis_node[DEMETER_FMEM]);
	struct room room = {};
	int i;

	for (i = 0; i < MAX_NR_ZONES; i++) {
		struct zone *zone = &pgdat->node_zones[i];

		if (!populated_zone(zone))
			continue;
		room.free += zone_page_state(zone, NR_FREE_PAGES);
		room.low += low_wmark_pages(zone);
		room.high += high_wmark_pages(zone) + zone->lowmem_reserve[ZONE_MOVABLE];
	}
	room.all = room.free + demeter_call(node_page_state)(pgdat, NR_ACTIVE_ANON) +
		   demeter_call(node_page_state)(pgdat, NR_INACTIVE_ANON) +
		   demeter_call(node_page_state)(pgdat, NR_ISOLATED_ANON);
	return room;
}

/* What is kept free: a part of FMEM, but no less than the kernel does. */
static u64 reserve_pages(const struct room *room, u32 percent)
{
	return max(div_u64(room->all * percent, 100), room->high);
}

u64 memtis_fmem_pages(void)
{
	struct room room = look_at_room();
	u64 reserve = reserve_pages(&room, PROMOTION_PERCENT);

	/* The thresholds leave that part free themselves. */
	return div_u64((room.all - min(reserve, room.all)) * 100, HISTOGRAM_PERCENT);
}

static void note_refused(const struct demeter_refusals *why)
{
	u64 pages = 0;
	u32 i;

	for (i = 0; i < DEMETER_REFUSALS; i++)
		pages += why->pages[i];
	atomic64_add(pages, &memtis_stats.refused_pages);
}

/**
 * struct batch - what is to be moved within 2 MiB
 * @space: where; its mm_users held
 * @start: first byte
 * @pages: base pages
 * @huge: or all of it, as one page
 * @to: tier
 */
struct batch {
	struct memtis_space *space;
	u64 start;
	u64 pages[DEMETER_GRANULE_WORDS];
	bool huge;
	enum demeter_tier to;
};

/* The first pages of a bitmap move over to another. */
static void take_some(u64 *from, u64 *some, u32 count)
{
	u32 bit;

	bitmap_zero((unsigned long *)some, GRANULE_PAGES);
	for_each_set_bit(bit, (unsigned long *)from, GRANULE_PAGES) {
		if (!count--)
			break;
		__set_bit(bit, (unsigned long *)some);
		__clear_bit(bit, (unsigned long *)from);
	}
}

/* Move a batch; at most @limit pages, or one huge page. Returns pages moved. */
static u64 move(struct batch *batch, u64 limit, u64 *spent_ns)
{
	int from = memtis_node[!batch->to], to = memtis_node[batch->to];
	struct mm_struct *mm = batch->space->mm;
	struct demeter_scan_granule now;
	struct demeter_refusals why = {};
	struct demeter_folio_list list;
	u64 begin_ns = ktime_get_ns(), moved = 0;

	demeter_folio_list_init(&list);
	if (batch->huge) {
		demeter_scan_isolate(mm, batch->start, batch->start + HPAGE_PMD_SIZE, from, to,
				     GRANULE_PAGES, &list, &why);
		moved = demeter_relocate_migrate(&list, to, &why, NULL);
	}
	while (!batch->huge && moved < limit &&
	       !bitmap_empty((unsigned long *)batch->pages, GRANULE_PAGES)) {
		u64 some[DEMETER_GRANULE_WORDS];

		take_some(batch->pages, some, min_t(u64, BATCH_PAGES, limit - moved));
		demeter_scan_isolate_pages(mm, batch->start, some, from, to, BATCH_PAGES, &list,
					   &why);
		moved += demeter_relocate_migrate(&list, to, &why, NULL);
		cond_resched();
	}
	note_refused(&why);
	if (!demeter_scan_granule(mm, batch->start, memtis_node, &now)) {
		mutex_lock(&memtis_lock);
		memtis_refresh(batch->space, batch->start, &now);
		mutex_unlock(&memtis_lock);
	}
	*spent_ns += ktime_get_ns() - begin_ns;
	return moved;
}

static bool is_hot(u64 units)
{
	return demeter_memtis_bin(units) >= memtis_state.thresholds.hot;
}

/* ---- FMEM's ---- */

static bool is_cold(u64 units)
{
	return demeter_memtis_bin(units) < memtis_state.thresholds.warm;
}

/* What of 2 MiB is to be demoted. */
static bool choose_cold(struct batch *batch, const struct demeter_scan_granule *found)
{
	struct memtis_huge *huge;
	u32 bit;

	bitmap_zero((unsigned long *)batch->pages, GRANULE_PAGES);
	batch->huge = false;
	batch->to = DEMETER_SMEM;
	mutex_lock(&memtis_lock);
	memtis_refresh(batch->space, batch->start, found);
	if (found->huge) {
		huge = xa_load(&batch->space->huges, batch->start >> HPAGE_PMD_SHIFT);
		batch->huge = found->tier == DEMETER_FMEM && is_cold(huge ? huge->units : 0);
	} else {
		for_each_set_bit(bit, (unsigned long *)found->where[DEMETER_FMEM], GRANULE_PAGES) {
			u64 addr = batch->start + ((u64)bit << PAGE_SHIFT);

			if (is_cold(memtis_units(batch->space, addr)))
				__set_bit(bit, (unsigned long *)batch->pages);
		}
	}
	mutex_unlock(&memtis_lock);
	return batch->huge || !bitmap_empty((unsigned long *)batch->pages, GRANULE_PAGES);
}

/* The next 2 MiB with something managed in it; false at the end. */
static bool next_granule(struct mm_struct *mm, u64 *at)
{
	struct vm_area_struct *vma = NULL;

	if (!demeter_scan_lock(mm))
		return false;
	{
		VMA_ITERATOR(vmi, mm, *at);

		for_each_vma(vmi, vma) {
			if (!demeter_vma_is_managed(vma))
				continue;
			*at = max_t(u64, *at, round_down(vma->vm_start, HPAGE_PMD_SIZE));
			break;
		}
	}
	mmap_read_unlock(mm);
	return vma;
}

/* Demote from a process; returns pages demoted. */
static u64 demote_from(struct memtis_space *space, u64 wanted, bool *found_any, u64 *spent_ns)
{
	u64 granules = get_mm_rss(space->mm) / GRANULE_PAGES + 1, seen = 0, done = 0;
	u64 at = space->hand;
	bool wrapped = false, found_here = false;

	if (!found_cold)
		granules = granules / IDLE_PART + 1;
	while (done < wanted && seen < granules && !kthread_should_stop()) {
		struct batch batch = { .space = space };
		struct demeter_scan_granule found;

		if (at >= GRANULE_END || !next_granule(space->mm, &at)) {
			if (wrapped)
				break;
			wrapped = true;
			at = 0;
			continue;
		}
		batch.start = at;
		at += HPAGE_PMD_SIZE;
		if (demeter_scan_granule(space->mm, batch.start, memtis_node, &found))
			break;
		/* Empty ones are not counted: nothing was looked at. */
		seen += found.huge ||
			!bitmap_empty((unsigned long *)found.where, 2 * GRANULE_PAGES);
		if (choose_cold(&batch, &found)) {
			found_here = true;
			done += move(&batch, wanted - done, spent_ns);
		}
		cond_resched();
	}
	space->hand = at;
	*found_any |= found_here;
	return done;
}

static void demote(u64 *spent_ns)
{
	struct room room = look_at_room();
	u64 hot = atomic64_read(&hot_pages_on_smem), wanted, target;
	struct memtis_space *space = NULL;
	bool found_any = false;

	if (!hot && room.free >= reserve_pages(&room, DEMOTION_PERCENT))
		return;
	target = hot + reserve_pages(&room, PROMOTION_PERCENT);
	wanted = target > room.free ? target - room.free : 0;
	if (room.free < room.low)
		wanted += memtis_params.direct_pages;
	while (wanted && (space = memtis_space_next(space))) {
		u64 done = demote_from(space, wanted, &found_any, spent_ns);

		atomic64_add(done, &memtis_stats.demoted_pages);
		wanted -= min(wanted, done);
	}
	memtis_space_leave(space);
	found_cold = found_any;
}

/* ---- SMEM's ---- */

/* Base pages of a process that wait in SMEM. Under memtis_lock. */
static u64 waiting_pages(struct memtis_space *space)
{
	struct memtis_huge *huge;
	unsigned long index;
	void *entry;
	u64 pages = 0;

	xa_for_each_marked(&space->pages, index, entry, MEMTIS_ON_SMEM)
		pages += is_hot(xa_to_value(entry));
	xa_for_each(&space->huges, index, huge)
		pages += huge->tier == DEMETER_SMEM && is_hot(huge->units) ? GRANULE_PAGES : 0;
	return pages;
}

/* The next 2 MiB from @at on with hot base pages in SMEM, and which. */
static bool next_hot_pages(struct batch *batch, u64 at)
{
	unsigned long index = at >> PAGE_SHIFT, first;
	struct xarray *pages = &batch->space->pages;
	void *entry;

	bitmap_zero((unsigned long *)batch->pages, GRANULE_PAGES);
	batch->huge = false;
	mutex_lock(&memtis_lock);
	entry = xa_find(pages, &index, ULONG_MAX, MEMTIS_ON_SMEM);
	while (entry && !is_hot(xa_to_value(entry)))
		entry = xa_find_after(pages, &index, ULONG_MAX, MEMTIS_ON_SMEM);
	first = round_down(index, GRANULE_PAGES);
	batch->start = (u64)first << PAGE_SHIFT;
	while (entry && index < first + GRANULE_PAGES) {
		if (is_hot(xa_to_value(entry)))
			__set_bit(index - first, (unsigned long *)batch->pages);
		entry = xa_find_after(pages, &index, ULONG_MAX, MEMTIS_ON_SMEM);
	}
	mutex_unlock(&memtis_lock);
	return !bitmap_empty((unsigned long *)batch->pages, GRANULE_PAGES);
}

static bool next_hot_huge(struct batch *batch, u64 at)
{
	unsigned long index = at >> HPAGE_PMD_SHIFT;
	struct memtis_huge *huge;

	batch->huge = false;
	mutex_lock(&memtis_lock);
	xa_for_each_start(&batch->space->huges, index, huge, index) {
		if (huge->tier != DEMETER_SMEM || !is_hot(huge->units))
			continue;
		batch->start = (u64)index << HPAGE_PMD_SHIFT;
		batch->huge = true;
		break;
	}
	mutex_unlock(&memtis_lock);
	return batch->huge;
}

/* What may be taken of FMEM now. */
static u64 promotion_room(void)
{
	struct room room = look_at_room();
	u64 reserve = reserve_pages(&room, PROMOTION_PERCENT);

	return room.free > reserve ? room.free - reserve : 0;
}

static void promote_from(struct memtis_space *space, u64 *spent_ns,
			 bool (*next)(struct batch *batch, u64 at))
{
	struct batch batch = { .space = space, .to = DEMETER_FMEM };
	u64 at = 0, room;

	while (next(&batch, at) && !kthread_should_stop()) {
		room = promotion_room();
		if (!room || (batch.huge && room < GRANULE_PAGES))
			break;
		atomic64_add(move(&batch, room, spent_ns), &memtis_stats.promoted_pages);
		at = batch.start + HPAGE_PMD_SIZE;
		cond_resched();
	}
}

static void promote(u64 *spent_ns)
{
	struct memtis_space *space = NULL;
	u64 waiting = 0;

	while ((space = memtis_space_next(space))) {
		if (kthread_should_stop())
			break;
		promote_from(space, spent_ns, next_hot_huge);
		promote_from(space, spent_ns, next_hot_pages);
		mutex_lock(&memtis_lock);
		waiting += waiting_pages(space);
		mutex_unlock(&memtis_lock);
	}
	memtis_space_leave(space);
	atomic64_set(&hot_pages_on_smem, waiting);
}

/* ---- splitting ---- */

/**
 * struct skewed - the huge page accessed most unevenly
 * @mm: where; only compared
 * @index: number of 2 MiB
 * @skew: how unevenly
 * @tier: where it is
 */
struct skewed {
	struct mm_struct *mm;
	unsigned long index;
	u32 skew;
	enum demeter_tier tier;
};

static void compare_skew(struct memtis_space *space, struct skewed *most)
{
	struct memtis_huge *huge;
	unsigned long index;

	mutex_lock(&memtis_lock);
	xa_for_each(&space->huges, index, huge) {
		u32 skew;

		if (demeter_memtis_bin(huge->units) >= DEMETER_MEMTIS_EXEMPT_BIN)
			continue;
		skew = demeter_memtis_skew(huge->samples, memtis_state.base_thresholds.hot);
		if (skew > most->skew)
			*most = (struct skewed){ space->mm, index, skew, huge->tier };
	}
	mutex_unlock(&memtis_lock);
}

static void split_at(struct memtis_space *space, const struct skewed *which)
{
	u64 start = (u64)which->index << HPAGE_PMD_SHIFT;
	struct demeter_scan_granule now;
	struct demeter_refusals why = {};
	struct demeter_folio_list list;

	demeter_folio_list_init(&list);
	demeter_scan_isolate(space->mm, start, start + HPAGE_PMD_SIZE, memtis_node[which->tier], -1,
			     GRANULE_PAGES, &list, &why);
	if (demeter_huge_split(&list, GRANULE_PAGES))
		atomic64_inc(&memtis_stats.split_huge_pages);
	demeter_folio_list_putback(&list);
	if (demeter_scan_granule(space->mm, start, memtis_node, &now))
		return;
	mutex_lock(&memtis_lock);
	memtis_refresh(space, start, &now);
	mutex_unlock(&memtis_lock);
}

static bool split_one(void)
{
	struct memtis_space *space = NULL;
	struct skewed most = {};

	while ((space = memtis_space_next(space)))
		compare_skew(space, &most);
	if (!most.skew)
		return false;
	while ((space = memtis_space_next(space))) {
		if (space->mm != most.mm)
			continue;
		split_at(space, &most);
		break;
	}
	memtis_space_leave(space);
	return true;
}

static void split(void)
{
	u64 left, count;

	mutex_lock(&memtis_lock);
	count = min(memtis_state.splits, memtis_params.split_batch);
	memtis_state.splits -= count;
	mutex_unlock(&memtis_lock);
	for (left = count; left; left--)
		if (!split_one())
			break;
}

static void cool(void)
{
	mutex_lock(&memtis_lock);
	while (memtis_state.coolings) {
		memtis_state.coolings--;
		memtis_cool();
		/* Counts are halves now: by the old thresholds all that is hot would be cold. */
		memtis_choose_thresholds();
		atomic64_inc(&memtis_stats.coolings);
	}
	mutex_unlock(&memtis_lock);
}

/* CPU time of a round, shared out as wall time was. */
static void note_time(u64 exec_ns, u64 wall_ns, u64 migrate_ns)
{
	u64 migrate = wall_ns ? mul_u64_u64_div_u64(exec_ns, min(migrate_ns, wall_ns), wall_ns) : 0;

	atomic64_add(migrate, &demeter_peer_stage_ns[DEMETER_PEER_MIGRATE]);
	atomic64_add(exec_ns - migrate, &demeter_peer_stage_ns[DEMETER_PEER_CLASSIFY]);
}

static int kmigrated_run(void *data)
{
	enum demeter_tier tier = (uintptr_t)data;
	u64 exec_ns = 0;

	while (!kthread_should_stop()) {
		u64 begin_ns = ktime_get_ns(), migrate_ns = 0, wall_ns;

		if (tier == DEMETER_FMEM) {
			cool();
			demote(&migrate_ns);
			split();
		} else {
			promote(&migrate_ns);
		}
		wall_ns = ktime_get_ns() - begin_ns;
		schedule_timeout_interruptible(msecs_to_jiffies(memtis_params.kmigrated_ms));
		/* Exact when it has just slept. */
		note_time(current->se.sum_exec_runtime - exec_ns, wall_ns, migrate_ns);
		exec_ns = current->se.sum_exec_runtime;
	}
	return 0;
}

int memtis_migrated_start(void)
{
	uintptr_t tier;

	if (!demeter_symbol_aim_call(node_page_state, "node_page_state")) {
		pr_err("this kernel has no function node_page_state; next: use Debian's 6.12\n");
		return -ENOENT;
	}
	demeter_binding_resolve();
	demeter_huge_resolve();
	atomic64_set(&hot_pages_on_smem, 0);
	found_cold = true;
	for (tier = 0; tier < DEMETER_TIERS; tier++) {
		kmigrated[tier] =
			kthread_run(kmigrated_run, (void *)tier, "kmigrated%d", memtis_node[tier]);
		if (!IS_ERR(kmigrated[tier]))
			continue;
		if (tier)
			kthread_stop(kmigrated[DEMETER_FMEM]);
		return PTR_ERR(kmigrated[tier]);
	}
	return 0;
}

void memtis_migrated_stop(void)
{
	kthread_stop(kmigrated[DEMETER_SMEM]);
	kthread_stop(kmigrated[DEMETER_FMEM]);
}
