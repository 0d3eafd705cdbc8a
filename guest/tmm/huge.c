// SPDX-License-Identifier: GPL-2.0-only
/*
 * Making sizes match, see huge.h.
 */
#include <linux/mm.h>
#include <linux/mempolicy.h>
#include <linux/mman.h>
#include <linux/mmzone.h>
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

/* What the administrator has said of huge pages. Of the rest, NULL: this kernel has none. */
static const unsigned long *thp_flags;
static const unsigned long *orders_always;
static const unsigned long *orders_inherit;
static const unsigned int *max_ptes_none;
static bool can_collapse;
static bool can_split;

/**
 * demeter_huge_resolve() - find the functions; call once, after the symbols
 *
 * Not finding them is no error: sizes are then not matched.
 */
void demeter_huge_resolve(void)
{
	thp_flags = (const unsigned long *)demeter_symbol_address("transparent_hugepage_flags");
	/* Linux 6.8 and newer: a choice for each size. */
	orders_always = (const unsigned long *)demeter_symbol_address("huge_anon_orders_always");
	orders_inherit = (const unsigned long *)demeter_symbol_address("huge_anon_orders_inherit");
	max_ptes_none = (const unsigned int *)demeter_symbol_address("khugepaged_max_ptes_none");
	can_collapse = thp_flags && demeter_symbol_aim_call(do_madvise, "do_madvise");
	can_split = demeter_symbol_aim_call(split, __stringify(DEMETER_COMPAT_SPLIT));
}

static u64 node_pages(const struct pglist_data *node, enum node_stat_item item)
{
	return max(atomic_long_read(&node->vm_stat[item]), 0L);
}

static bool has_free_huge(const struct pglist_data *node, u64 pages)
{
	u64 free_pages = 0;
	u32 at, order;

	for (at = 0; at < MAX_NR_ZONES; at++)
		for (order = HPAGE_PMD_ORDER; order < ARRAY_SIZE(node->node_zones[at].free_area);
		     order++)
			free_pages += READ_ONCE(node->node_zones[at].free_area[order].nr_free)
				      << order;
	return free_pages >= pages + SPARE_HUGE_PAGES;
}

/*
 * Collapsing allocates THPs. Where none is free that compacts memory, and compaction
 * waits until no more than a sixteenth of a node's pages is isolated. If those are
 * ours, without end: with tiers of tens of megabytes the worker hung in it.
 */
static bool compaction_would_wait(u64 pages)
{
	int nid;

	for_each_online_node(nid) {
		const struct pglist_data *node = NODE_DATA(nid);
		u64 isolated =
			node_pages(node, NR_ISOLATED_ANON) + node_pages(node, NR_ISOLATED_FILE);
		u64 listed = node_pages(node, NR_INACTIVE_ANON) + node_pages(node, NR_ACTIVE_ANON) +
			     node_pages(node, NR_INACTIVE_FILE) + node_pages(node, NR_ACTIVE_FILE);

		/* What others isolate meanwhile leaves it half of that. */
		if (isolated && isolated > listed / 32 && !has_free_huge(node, pages))
			return true;
	}
	return false;
}

/*
 * Is everything to be in THPs, and may one be made of a single page? MADV_COLLAPSE, which
 * a program uses for itself, asks nobody.
 */
static bool is_wanted(void)
{
	bool all = READ_ONCE(*thp_flags) & BIT(TRANSPARENT_HUGEPAGE_FLAG);

	if (max_ptes_none && READ_ONCE(*max_ptes_none) < HPAGE_PMD_NR - 1)
		return false;
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

/**
 * demeter_huge_collapse() - make THPs of the 4 KiB pages of a range
 * @mm: address space, mm_users held
 * @start: first byte
 * @end: one past the last byte
 * @max_pages: about so many 4 KiB pages, and no more
 *
 * Does nothing unless the system makes THPs of everything ("always"), however few of
 * the pages are there: whether a process wants them is not for us to decide. Nor while
 * so much is isolated that compaction would wait for it; nor to shared memory or what
 * a policy binds.
 *
 * Return: whether anything was tried.
 */
bool demeter_huge_collapse(struct mm_struct *mm, u64 start, u64 end, u64 max_pages)
{
	u64 stop;

	start = round_up(start, HPAGE_PMD_SIZE);
	end = round_down(end, HPAGE_PMD_SIZE);
	if (!can_collapse || start >= end || !is_wanted() || compaction_would_wait(max_pages))
		return false;
	stop = min(end, start + round_up(max_pages << PAGE_SHIFT, HPAGE_PMD_SIZE));
	stop = collapsible_end(mm, start, stop);
	if (start >= stop)
		return false;
	/*
	 * In one call, as each drains the LRU caches of all CPUs. Holes and pages that
	 * cannot be collapsed are skipped; no memory ends it. It reschedules itself.
	 */
	static_call(demeter_sc_do_madvise)(mm, start, stop - start, MADV_COLLAPSE);
	/* New THPs wait in this CPU's cache; only what is on the LRU can be isolated. */
	demeter_call(lru_add_drain)();
	return true;
}

static int split_folio_onto(struct folio *folio, struct list_head *tails)
{
#if DEMETER_COMPAT_SPLIT_ORDER
	return static_call(demeter_sc_split)(&folio->page, tails, 0);
#else
	return static_call(demeter_sc_split)(&folio->page, tails);
#endif
}

/**
 * demeter_huge_split() - split isolated THPs
 * @list: THPs move from @list->huge to @list->small
 * @max_pages: stop after this many 4 KiB pages
 *
 * Return: 4 KiB pages split.
 */
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
		demeter_huge_collapse(from->mm, from->collapse_from, from->end, pages);
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
