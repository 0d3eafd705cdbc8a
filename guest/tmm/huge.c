// SPDX-License-Identifier: GPL-2.0-only
/*
 * Making sizes match, see huge.h.
 */
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/mempolicy.h>
#include <linux/mman.h>
#include <linux/mmzone.h>
#include <linux/page_counter.h>
#include <linux/pagemap.h>
#include <linux/sched.h>
#include <linux/static_call.h>
#include <linux/stringify.h>

#include "../compat/huge_memory.h"
#include "huge.h"
#include "kernel_calls.h"
#include "symbols.h"

/* 4 KiB pages in free THPs beyond those wanted, for watermarks and for others. */
#define SPARE_HUGE_PAGES (4 * HPAGE_PMD_NR)

DEMETER_DEFINE_CALL(do_madvise);
DEMETER_DEFINE_CALL(split);

/* What the administrator has said of huge pages; of sizes, NULL: this kernel has none. */
static const unsigned long *thp_flags;
static const unsigned long *orders_always;
static const unsigned long *orders_inherit;
static bool can_collapse;
static bool can_split;

void demeter_huge_resolve(void)
{
	thp_flags = (const unsigned long *)demeter_symbol_address("transparent_hugepage_flags");
	/* Linux 6.8 and newer: a choice for each size. */
	orders_always = (const unsigned long *)demeter_symbol_address("huge_anon_orders_always");
	orders_inherit = (const unsigned long *)demeter_symbol_address("huge_anon_orders_inherit");
	can_collapse = thp_flags && demeter_symbol_aim_call(do_madvise, "do_madvise");
	can_split = demeter_symbol_aim_call(split, __stringify(DEMETER_COMPAT_SPLIT));
}

/*
 * 4 KiB pages that a node can give as THPs, right away and above its watermarks. Collapsing
 * allocates THPs: where none is free that reclaims and compacts memory, and compaction
 * waits until no more than a sixteenth of a node's pages is isolated. If those are ours,
 * without end: with tiers of tens of megabytes the worker hung in it.
 */
static u64 free_huge_pages(int nid)
{
	struct pglist_data *node = NODE_DATA(nid);
	u64 sum = 0;
	u32 at, order;

	for (at = 0; at < MAX_NR_ZONES; at++) {
		struct zone *zone = &node->node_zones[at];
		u64 huge = 0, free, reserved;

		if (!populated_zone(zone))
			continue;
		for (order = HPAGE_PMD_ORDER; order < ARRAY_SIZE(zone->free_area); order++)
			huge += READ_ONCE(zone->free_area[order].nr_free) << order;
		free = zone_page_state(zone, NR_FREE_PAGES);
		reserved = high_wmark_pages(zone) + zone->lowmem_reserve[ZONE_MOVABLE];
		sum += min(huge, free > reserved ? free - reserved : 0);
	}
	return sum > SPARE_HUGE_PAGES ? sum - SPARE_HUGE_PAGES : 0;
}

/*
 * 4 KiB pages that the memory cgroups of @mm may still be charged. A collapse holds the
 * new THP beside its base pages for a while: at its limit a cgroup would have memory
 * reclaimed for that, or be throttled, and its program pay for what it did not ask for.
 */
static u64 chargeable_pages(struct mm_struct *mm)
{
	u64 pages = U64_MAX;
#ifdef CONFIG_MEMCG
	struct mem_cgroup *memcg = get_mem_cgroup_from_mm(mm), *at;

	for (at = memcg; at; at = parent_mem_cgroup(at)) {
		u64 limit = min(READ_ONCE(at->memory.max), READ_ONCE(at->memory.high));
		u64 used = page_counter_read(&at->memory);

		pages = min(pages, limit > used ? limit - used : 0);
	}
	mem_cgroup_put(memcg);
#endif
	return pages;
}

/*
 * Is everything to be in THPs? MADV_COLLAPSE, which a program uses for itself, asks nobody.
 */
static bool is_wanted(void)
{
	bool all = READ_ONCE(*thp_flags) & BIT(TRANSPARENT_HUGEPAGE_FLAG);

	if (!orders_always || !orders_inherit)
		return all;
	if (READ_ONCE(*orders_always) & BIT(HPAGE_PMD_ORDER))
		return true;
	return all && READ_ONCE(*orders_inherit) & BIT(HPAGE_PMD_ORDER);
}

/*
 * Where the range that may be collapsed ends: before the first mapping that is not
 * anonymous, or that a policy binds. @start: there is none; also while somebody
 * keeps mmap_lock, which MADV_COLLAPSE would wait for.
 */
static u64 collapsible_end(struct mm_struct *mm, u64 start, u64 end)
{
	struct vm_area_struct *vma;

	if (!demeter_scan_lock(mm))
		return start;
	VMA_ITERATOR(vmi, mm, start);
	for_each_vma_range(vmi, vma, end) {
		if (vma_is_anonymous(vma) && !vma_policy(vma))
			continue;
		end = max_t(u64, vma->vm_start, start);
		break;
	}
	mmap_read_unlock(mm);
	return round_down(end, HPAGE_PMD_SIZE);
}

/*
 * Are all base pages of a granule there, most of them on @from->nid, where the THP will be
 * then? What is swapped out, or was never touched, would be read or zeroed for it.
 */
static bool is_full(const struct demeter_huge_source *from, u64 start)
{
	int node[DEMETER_TIERS] = { [DEMETER_SMEM] = from->nid, [DEMETER_FMEM] = from->to_nid };
	struct demeter_scan_granule found;
	u32 here, there;

	if (demeter_scan_granule(from->mm, start, node, &found) || found.huge || found.mixed)
		return false;
	here = bitmap_weight((unsigned long *)found.where[DEMETER_SMEM], HPAGE_PMD_NR);
	there = bitmap_weight((unsigned long *)found.where[DEMETER_FMEM], HPAGE_PMD_NR);
	return here + there == HPAGE_PMD_NR && here > there;
}

/* Not more than there are THPs by now: others take them, too, and a call takes its time. */
static bool collapse_part(const struct demeter_huge_source *from, u64 start, u64 end)
{
	u64 pages = (end - start) >> PAGE_SHIFT;

	/* One at a time is charged, and its base pages let go of. */
	if (free_huge_pages(from->nid) < pages || chargeable_pages(from->mm) < 2 * HPAGE_PMD_NR)
		return false;
	static_call(demeter_sc_do_madvise)(from->mm, start, end - start, MADV_COLLAPSE);
	return true;
}

bool demeter_huge_collapse(const struct demeter_huge_source *from, u64 max_pages)
{
	u64 start = round_up(from->collapse_from, HPAGE_PMD_SIZE);
	u64 end = round_down(from->end, HPAGE_PMD_SIZE), at;
	bool tried = false;

	if (!can_collapse || start >= end || !is_wanted())
		return false;
	max_pages = min(round_up(max_pages, HPAGE_PMD_NR), free_huge_pages(from->nid));
	end = min(end, start + (round_down(max_pages, HPAGE_PMD_NR) << PAGE_SHIFT));
	end = max(end, start);
	end = collapsible_end(from->mm, start, end);
	for (at = start; at < end; at += HPAGE_PMD_SIZE) {
		if (is_full(from, at))
			continue;
		/* As few calls as can be: each drains the LRU caches of all CPUs. */
		if (start < at)
			tried |= collapse_part(from, start, at);
		start = at + HPAGE_PMD_SIZE;
	}
	if (start < at)
		tried |= collapse_part(from, start, at);
	/* New THPs wait in this CPU's cache; only what is on the LRU can be isolated. */
	if (tried)
		demeter_call(lru_add_drain)();
	return tried;
}

static int split_folio_onto(struct folio *folio, struct list_head *tails)
{
#if DEMETER_COMPAT_SPLIT_ORDER
	return static_call(demeter_sc_split)(&folio->page, tails, 0);
#else
	return static_call(demeter_sc_split)(&folio->page, tails);
#endif
}

u64 demeter_huge_split(struct demeter_folio_list *list, u64 max_pages)
{
	struct folio *folio, *next;
	u64 done = 0;

	if (!can_split)
		return 0;
	list_for_each_entry_safe(folio, next, &list->huge, lru) {
		u64 pages = folio_nr_pages(folio);
		LIST_HEAD(tails);
		int ret;

		if (done >= max_pages)
			break;
		if (!folio_trylock(folio))
			continue;
		/* Each tail comes back with a reference of ours, as the THP has one. */
		ret = split_folio_onto(folio, &tails);
		folio_unlock(folio);
		if (ret)
			continue;
		list_move_tail(&folio->lru, &list->small);
		list_splice_tail(&tails, &list->small);
		list->huge_pages -= pages;
		list->small_pages += pages;
		done += pages;
		cond_resched();
	}
	return done;
}

void demeter_huge_match(const struct demeter_huge_source *from, struct demeter_folio_list *hot,
			struct demeter_folio_list *cold, struct demeter_refusals *why)
{
	u64 pages = demeter_folio_list_pages(hot);

	if (from->mm && hot->small_pages >= HPAGE_PMD_NR && cold->huge_pages > hot->huge_pages) {
		/* Only what is on the LRU can be collapsed. */
		demeter_folio_list_putback(hot);
		demeter_huge_collapse(from, pages);
		demeter_scan_isolate(from->mm, from->start, from->end, from->nid, from->to_nid,
				     pages, hot, why);
	}
	if (hot->small_pages > cold->small_pages && cold->huge_pages > hot->huge_pages)
		demeter_huge_split(cold, min(hot->small_pages - cold->small_pages,
					     cold->huge_pages - hot->huge_pages));
	else if (cold->small_pages > hot->small_pages && hot->huge_pages > cold->huge_pages)
		demeter_huge_split(hot, min(cold->small_pages - hot->small_pages,
					    hot->huge_pages - cold->huge_pages));
}
