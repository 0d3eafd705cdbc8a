// SPDX-License-Identifier: GPL-2.0-only
/*
 * Page-table walks over a range of an address space.
 *
 * demeter_scan_isolate() takes folios off the LRU right under the page-table
 * lock that makes their mapping stable, so the exchange needs no second lookup.
 * The page tables are never changed here: a PMD that maps a THP is handled as
 * one entry and the walker is told not to descend, or it would split it.
 */
#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/mmap_lock.h>
#include <linux/delay.h>
#include <linux/sched/signal.h>
#include <linux/vmstat.h>
#include <demeter/resident.h>

#include "folio_check.h"
#include "kernel_calls.h"
#include "binding.h"
#include "scan.h"
#include "vma.h"

/* Range walked in one go under mmap_lock: 2048 page-table entries at most. */
#define DEMETER_SCAN_CHUNK_BYTES (8UL << 20)
/* The same where mappings are so many that they may be a page each: 512 of them. */
#define DEMETER_SCAN_CROWD_BYTES PMD_SIZE
#define DEMETER_SCAN_CROWD	 4096

/* What the visit of a mapping costs, in entries of a page table. */
#define DEMETER_SCAN_MAPPING_ENTRIES 4

/* Pages that are looked at to compare how much of two mappings is there. */
#define DEMETER_SCAN_PROBES 64

/* Some ten milliseconds. */
#define DEMETER_SCAN_LOCK_TRIES 128

/* The walker's callbacks may stop it by returning this. */
#define DEMETER_SCAN_STOP 1
/* The same, understood of the test of a mapping, too. */
#define DEMETER_SCAN_OVER (-EAGAIN)

void demeter_folio_list_init(struct demeter_folio_list *list)
{
	INIT_LIST_HEAD(&list->small);
	INIT_LIST_HEAD(&list->huge);
	INIT_LIST_HEAD(&list->other);
	list->small_pages = 0;
	list->huge_pages = 0;
	list->other_pages = 0;
}

static void demeter_putback_each(struct list_head *folios)
{
	struct folio *folio, *next;

	list_for_each_entry_safe(folio, next, folios, lru) {
		list_del(&folio->lru);
		demeter_folio_putback(folio);
	}
}

void demeter_folio_list_putback(struct demeter_folio_list *list)
{
	demeter_putback_each(&list->small);
	demeter_putback_each(&list->huge);
	demeter_putback_each(&list->other);
	demeter_folio_list_init(list);
}

/*
 * Take mmap_lock for reading, but do not wait for it for ever: whoever holds it may be
 * stuck, and nobody could stop the worker then.
 */
bool demeter_scan_lock(struct mm_struct *mm)
{
	u32 tries;

	for (tries = 0; tries < DEMETER_SCAN_LOCK_TRIES; tries++) {
		if (mmap_read_trylock(mm))
			return true;
		usleep_range(50, 200);
	}
	return false;
}

/* Walk [start, end) in one hold of mmap_lock. */
static int demeter_scan_once(struct mm_struct *mm, u64 start, u64 end,
			     const struct mm_walk_ops *ops, void *private)
{
	int ret;

	if (fatal_signal_pending(current) || !demeter_scan_lock(mm))
		return -EINTR;
	ret = demeter_call(walk_page_range)(mm, start, end, ops, private);
	mmap_read_unlock(mm);
	return ret;
}

/* Where a chunk that begins at @at ends: no THP straddles two. */
static u64 demeter_scan_chunk_end(const struct mm_struct *mm, u64 at, u64 end)
{
	bool crowd = READ_ONCE(mm->map_count) > DEMETER_SCAN_CROWD;
	u64 chunk = crowd ? DEMETER_SCAN_CROWD_BYTES : DEMETER_SCAN_CHUNK_BYTES;

	return min((at | (chunk - 1)) + 1, end);
}

static u64 demeter_scan_last(u64 end)
{
	return min_t(u64, PAGE_ALIGN(end), TASK_SIZE_MAX);
}

void demeter_folio_list_refuse_other(const struct demeter_folio_list *list,
				     struct demeter_refusals *why)
{
	struct folio *folio;

	list_for_each_entry(folio, &list->other, lru)
		demeter_refuse(why,
			       folio_test_anon(folio) ? DEMETER_REFUSED_MIXED_SIZE
						      : DEMETER_REFUSED_FILE,
			       folio_nr_pages(folio));
}

/* Walk [start, end) in chunks, dropping mmap_lock in between. */
static int demeter_scan_chunks(struct mm_struct *mm, u64 start, u64 end,
			       const struct mm_walk_ops *ops, void *private)
{
	u64 at = start & PAGE_MASK, last = demeter_scan_last(end);
	int ret = 0;

	while (at < last && !ret) {
		u64 next = demeter_scan_chunk_end(mm, at, last);

		ret = demeter_scan_once(mm, at, next, ops, private);
		at = next;
		cond_resched();
	}
	return ret == DEMETER_SCAN_STOP ? 0 : ret;
}

/*
 * Common to both walks: the page behind a PTE, if there is one to look at.
 * Callers hold the page-table lock.
 */
static struct page *demeter_pte_page(pte_t pte)
{
	if (!pte_present(pte) || demeter_pte_devmap(pte) || !pfn_valid(pte_pfn(pte)))
		return NULL;
	return pte_page(pte);
}

/*
 * Call @visit for a PMD that maps a huge page, under its lock, and keep the
 * walker from descending. Anything else is left to the walker, or to the next
 * scan when it is empty, swapped out, migrating or has just changed its kind.
 */
static int demeter_visit_pmd(pmd_t *pmdp, unsigned long addr, unsigned long next,
			     struct mm_walk *walk,
			     int (*visit)(struct mm_walk *walk, struct folio *folio, u64 pages,
					  unsigned long addr))
{
	pmd_t pmd = pmdp_get_lockless(pmdp);
	spinlock_t *ptl; /* makes the mapping stable, and with it the folio */
	int ret = 0;

	if (pmd_present(pmd) && !pmd_trans_huge(pmd))
		return 0;

	walk->action = ACTION_CONTINUE;
	ptl = pmd_lock(walk->mm, pmdp);
	pmd = *pmdp;
	if (pmd_present(pmd) && pmd_trans_huge(pmd) && pfn_valid(pmd_pfn(pmd)))
		ret = visit(walk, page_folio(pmd_page(pmd)), (next - addr) >> PAGE_SHIFT, addr);
	spin_unlock(ptl);
	return ret;
}

/* Skip what is not managed, or not here, whatever range it lies in. */
static int demeter_scan_test_walk(unsigned long start, unsigned long end, struct mm_walk *walk)
{
	return !demeter_vma_is_walked(walk->vma) || demeter_vma_is_left_out(walk->vma);
}

/* Place of a base page in the bitmaps of its granule. */
static u32 demeter_granule_bit(unsigned long addr)
{
	return (addr & ~HPAGE_PMD_MASK) >> PAGE_SHIFT;
}

static bool demeter_granule_test(const u64 *bits, unsigned long addr)
{
	u32 bit = demeter_granule_bit(addr);

	return bits[bit / 64] >> (bit % 64) & 1;
}

static void demeter_granule_set(u64 *bits, unsigned long addr)
{
	u32 bit = demeter_granule_bit(addr);

	bits[bit / 64] |= 1ull << (bit % 64);
}

/* ---- isolation ---- */

struct demeter_isolate {
	int nid;
	u64 at; /* end of the last entry looked at */
	u64 budget_pages;
	struct demeter_folio_list *out;
	struct demeter_refusals *why;
	struct demeter_binding binding;
	struct folio *last;		/* large, on @out: its other pages come next */
	const u64 *only;		/* bit for each base page that is wanted, NULL: all are */
	u64 got[DEMETER_GRANULE_WORDS]; /* of those, the ones taken */
};

static int demeter_isolate_folio(struct demeter_isolate *iso, struct folio *folio, u64 pages,
				 bool by_pmd, struct vm_area_struct *vma, unsigned long addr)
{
	enum demeter_refusal reason;

	if (folio == iso->last)
		return 0;
	reason = demeter_folio_check(folio);
	if (reason == DEMETER_OK && (vma->vm_flags & VM_LOCKED))
		reason = DEMETER_REFUSED_MLOCKED;
	/*
	 * A private mapping of shared memory, such as that of a snapshot which many clones
	 * of a VM begin with: what is not written yet belongs to all of them alike. It is
	 * in the ranges of each, and whoever finds it cold would demote it for all.
	 */
	if (reason == DEMETER_OK && !(vma->vm_flags & VM_SHARED) && !folio_test_anon(folio) &&
	    demeter_folio_is_mapped_often(folio))
		reason = DEMETER_REFUSED_SHARED;
	if (reason == DEMETER_OK && !demeter_binding_allows(&iso->binding, vma, addr))
		reason = DEMETER_REFUSED_POLICY;
	/* The mapping's reference keeps the folio: its page-table lock is held. */
	if (reason == DEMETER_OK && !demeter_isolated(demeter_call(folio_isolate_lru)(folio)))
		reason = DEMETER_REFUSED_LRU;
	if (reason != DEMETER_OK) {
		demeter_refuse(iso->why, reason, pages);
		return 0;
	}

	/* Whole, however little of it the range covers. */
	pages = folio_nr_pages(folio);
	demeter_folio_count_isolated(folio, (long)pages);
	if (!demeter_folio_is_exchangeable(folio)) {
		list_add_tail(&folio->lru, &iso->out->other);
		iso->out->other_pages += pages;
	} else if (by_pmd) {
		list_add_tail(&folio->lru, &iso->out->huge);
		iso->out->huge_pages += pages;
	} else {
		list_add_tail(&folio->lru, &iso->out->small);
		iso->out->small_pages += pages;
	}
	if (folio_test_large(folio))
		iso->last = folio;
	iso->budget_pages -= min(iso->budget_pages, pages);
	return iso->budget_pages ? 0 : DEMETER_SCAN_STOP;
}

static int demeter_isolate_pte(pte_t *ptep, unsigned long addr, unsigned long next,
			       struct mm_walk *walk)
{
	struct demeter_isolate *iso = walk->private;
	struct page *page;
	u64 before;
	pte_t pte;
	int ret;

	iso->at = next;
	if (iso->only && !demeter_granule_test(iso->only, addr))
		return 0;
	pte = ptep_get(ptep);
	page = demeter_pte_page(pte);
	if (!page || page_to_nid(page) != iso->nid)
		return 0;
	if (is_zero_pfn(pte_pfn(pte))) {
		demeter_refuse(iso->why, DEMETER_REFUSED_ZERO_PAGE, 1);
		return 0;
	}
	if (pte_special(pte)) {
		demeter_refuse(iso->why, DEMETER_REFUSED_SPECIAL, 1);
		return 0;
	}
	before = demeter_folio_list_pages(iso->out);
	ret = demeter_isolate_folio(iso, page_folio(page), 1, false, walk->vma, addr);
	if (demeter_folio_list_pages(iso->out) != before)
		demeter_granule_set(iso->got, addr);
	return ret;
}

static int demeter_isolate_huge(struct mm_walk *walk, struct folio *folio, u64 pages,
				unsigned long addr)
{
	struct demeter_isolate *iso = walk->private;

	if (folio_nid(folio) != iso->nid || iso->only)
		return 0;
	/* In anonymous memory, a PMD without an anonymous folio is the huge zero page. */
	if (vma_is_anonymous(walk->vma) && !folio_test_anon(folio)) {
		demeter_refuse(iso->why, DEMETER_REFUSED_ZERO_PAGE, pages);
		return 0;
	}
	return demeter_isolate_folio(iso, folio, HPAGE_PMD_NR, true, walk->vma, addr);
}

static int demeter_isolate_pmd(pmd_t *pmdp, unsigned long addr, unsigned long next,
			       struct mm_walk *walk)
{
	struct demeter_isolate *iso = walk->private;
	int ret;

	ret = demeter_visit_pmd(pmdp, addr, next, walk, demeter_isolate_huge);
	if (walk->action == ACTION_CONTINUE)
		iso->at = next;
	return ret;
}

static int demeter_isolate_hugetlb(pte_t *ptep, unsigned long hmask, unsigned long addr,
				   unsigned long next, struct mm_walk *walk)
{
	struct demeter_isolate *iso = walk->private;
	pte_t pte = READ_ONCE(*ptep);

	if (pte_present(pte) && page_to_nid(pte_page(pte)) == iso->nid)
		demeter_refuse(iso->why, DEMETER_REFUSED_HUGETLB, (next - addr) >> PAGE_SHIFT);
	return 0;
}

static const struct mm_walk_ops demeter_isolate_ops = { .pmd_entry = demeter_isolate_pmd,
							.pte_entry = demeter_isolate_pte,
							.hugetlb_entry = demeter_isolate_hugetlb,
							.test_walk = demeter_scan_test_walk,
							DEMETER_WALK_RDLOCK };

static void demeter_isolate_begin(struct demeter_isolate *iso, struct mm_struct *mm, int to_nid)
{
	demeter_binding_init(&iso->binding, mm, iso->nid, to_nid);
	/* What this CPU put back or faulted in just now may wait in its batch. */
	demeter_call(lru_add_drain)();
}

int demeter_scan_isolate(struct mm_struct *mm, u64 start, u64 end, int nid, int to_nid,
			 u64 max_pages, struct demeter_folio_list *out,
			 struct demeter_refusals *why)
{
	struct demeter_isolate iso = {
		.nid = nid,
		.budget_pages = max_pages,
		.out = out,
		.why = why,
	};

	if (!max_pages)
		return 0;
	demeter_isolate_begin(&iso, mm, to_nid);
	return demeter_scan_chunks(mm, start, end, &demeter_isolate_ops, &iso);
}

int demeter_scan_isolate_slice(struct mm_struct *mm, u64 *at, u64 end, int nid, int to_nid,
			       u64 max_pages, struct demeter_folio_list *out,
			       struct demeter_refusals *why)
{
	u64 start = *at & PAGE_MASK;
	u64 next = demeter_scan_chunk_end(mm, start, demeter_scan_last(end));
	struct demeter_isolate iso = {
		.nid = nid,
		.at = start,
		.budget_pages = max_pages,
		.out = out,
		.why = why,
	};
	int ret;

	if (!max_pages)
		return 0;
	if (start >= next) {
		*at = end;
		return 0;
	}
	demeter_isolate_begin(&iso, mm, to_nid);
	ret = demeter_scan_once(mm, start, next, &demeter_isolate_ops, &iso);
	/* The end of a slice that found nothing more is the end of its range. */
	*at = ret ? iso.at : next;
	return ret == DEMETER_SCAN_STOP ? 0 : ret;
}

int demeter_scan_isolate_pages(struct mm_struct *mm, u64 start, u64 *pages, int nid, int to_nid,
			       u64 max_pages, struct demeter_folio_list *out,
			       struct demeter_refusals *why)
{
	struct demeter_isolate iso = {
		.nid = nid,
		.budget_pages = max_pages,
		.out = out,
		.why = why,
		.only = pages,
	};
	u32 first = find_first_bit((unsigned long *)pages, HPAGE_PMD_NR);
	u32 last = find_last_bit((unsigned long *)pages, HPAGE_PMD_NR);
	int ret = 0;

	if (max_pages && first < HPAGE_PMD_NR) {
		demeter_isolate_begin(&iso, mm, to_nid);
		ret = demeter_scan_once(mm, start + ((u64)first << PAGE_SHIFT),
					start + ((u64)(last + 1) << PAGE_SHIFT),
					&demeter_isolate_ops, &iso);
	}
	memcpy(pages, iso.got, sizeof(iso.got));
	return ret == DEMETER_SCAN_STOP ? 0 : ret;
}

/* ---- a few pages of many ---- */

static int demeter_probe_folio(struct mm_walk *walk, struct folio *folio, u64 pages,
			       unsigned long addr)
{
	u32 *found = walk->private;

	(*found)++;
	return 0;
}

static int demeter_probe_pmd(pmd_t *pmdp, unsigned long addr, unsigned long next,
			     struct mm_walk *walk)
{
	return demeter_visit_pmd(pmdp, addr, next, walk, demeter_probe_folio);
}

static int demeter_probe_pte(pte_t *ptep, unsigned long addr, unsigned long next,
			     struct mm_walk *walk)
{
	u32 *found = walk->private;

	*found += pte_present(ptep_get(ptep));
	return 0;
}

static const struct mm_walk_ops demeter_probe_ops = { .pmd_entry = demeter_probe_pmd,
						      .pte_entry = demeter_probe_pte,
						      DEMETER_WALK_RDLOCK };

u32 demeter_scan_probe(struct mm_struct *mm, u64 start, u64 end)
{
	u64 stride = max_t(u64, (end - start) / DEMETER_SCAN_PROBES & PAGE_MASK, PAGE_SIZE);
	u32 found = 0, i;

	for (i = 0; i < DEMETER_SCAN_PROBES && start < end; i++, start += stride)
		demeter_call(walk_page_range)(mm, start, start + PAGE_SIZE, &demeter_probe_ops,
					      &found);
	return found;
}

/* ---- base pages of a granule ---- */

struct demeter_granule_walk {
	const int *node;
	struct demeter_scan_granule *found;
};

/* Tier of @nid, or DEMETER_TIERS. */
static u32 demeter_granule_tier(const struct demeter_granule_walk *granule, int nid)
{
	u32 tier;

	for (tier = 0; tier < DEMETER_TIERS; tier++)
		if (granule->node[tier] == nid)
			break;
	return tier;
}

static int demeter_granule_huge(struct mm_walk *walk, struct folio *folio, u64 pages,
				unsigned long addr)
{
	struct demeter_granule_walk *granule = walk->private;
	u32 tier = demeter_granule_tier(granule, folio_nid(folio));

	/* In anonymous memory, what is not anonymous is the zero page. */
	if (tier == DEMETER_TIERS || (vma_is_anonymous(walk->vma) && !folio_test_anon(folio)))
		return 0;
	granule->found->huge = true;
	granule->found->tier = tier;
	memset(granule->found->where[tier], 0xff, sizeof(granule->found->where[tier]));
	return 0;
}

static int demeter_granule_pmd(pmd_t *pmdp, unsigned long addr, unsigned long next,
			       struct mm_walk *walk)
{
	return demeter_visit_pmd(pmdp, addr, next, walk, demeter_granule_huge);
}

static int demeter_granule_pte(pte_t *ptep, unsigned long addr, unsigned long next,
			       struct mm_walk *walk)
{
	struct demeter_granule_walk *granule = walk->private;
	pte_t pte = ptep_get(ptep);
	struct page *page = demeter_pte_page(pte);
	u32 tier;

	if (!page || pte_special(pte) || is_zero_pfn(pte_pfn(pte)))
		return 0;
	tier = demeter_granule_tier(granule, page_to_nid(page));
	if (tier == DEMETER_TIERS)
		return 0;
	demeter_granule_set(granule->found->where[tier], addr);
	granule->found->mixed |= folio_test_large(page_folio(page));
	return 0;
}

static const struct mm_walk_ops demeter_granule_ops = { .pmd_entry = demeter_granule_pmd,
							.pte_entry = demeter_granule_pte,
							.test_walk = demeter_scan_test_walk,
							DEMETER_WALK_RDLOCK };

int demeter_scan_granule(struct mm_struct *mm, u64 start, const int *node,
			 struct demeter_scan_granule *found)
{
	struct demeter_granule_walk granule = { .node = node, .found = found };

	*found = (struct demeter_scan_granule){};
	return demeter_scan_once(mm, start, start + HPAGE_PMD_SIZE, &demeter_granule_ops, &granule);
}

/* ---- counting ---- */

struct demeter_count_walk {
	struct demeter_scan_slice *slice;
	u64 base; /* address of the first cell */
	u64 from; /* where the slice began */
	u64 at;	  /* the entry that is looked at */
	u64 stop; /* where the slice ended early */
};

static void demeter_count_add(struct demeter_count_walk *count, u32 slot, u64 pages)
{
	const struct demeter_scan_slice *slice = count->slice;
	u64 at = count->at - count->base, end = at + (pages << PAGE_SHIFT);

	/* A huge page may cover many cells; nothing covers parts of several. */
	while (at < end) {
		u64 cell = at >> slice->cell_shift;
		u64 next = min((cell + 1) << slice->cell_shift, end);

		slice->cells[slot / DEMETER_TIERS].pages[cell][slot % DEMETER_TIERS] +=
			(next - at) >> PAGE_SHIFT;
		at = next;
	}
}

static int demeter_count_folio(struct mm_walk *walk, struct folio *folio, u64 pages,
			       unsigned long addr)
{
	struct demeter_count_walk *count = walk->private;
	int slot = count->slice->slot_of_node[folio_nid(folio)];

	/* In anonymous memory, what is not anonymous is the zero page, small or huge. */
	if (vma_is_anonymous(walk->vma) && !folio_test_anon(folio))
		return 0;
	if (slot >= 0)
		demeter_count_add(count, slot, pages);
	return 0;
}

static int demeter_count_pte(pte_t *ptep, unsigned long addr, unsigned long next,
			     struct mm_walk *walk)
{
	struct demeter_count_walk *count = walk->private;
	pte_t pte = ptep_get(ptep);
	struct page *page = demeter_pte_page(pte);

	count->at = addr;
	count->slice->entries++;
	if (!page || pte_special(pte))
		return 0;
	return demeter_count_folio(walk, page_folio(page), 1, addr);
}

/* May the slice end at @addr? Says so once it has done its work. */
static bool demeter_count_is_over(struct demeter_count_walk *count, unsigned long addr)
{
	if (count->slice->entries < count->slice->max_entries)
		return false;
	/*
	 * A mapping may begin inside a cell: the slice ends before the cell, which the
	 * next one then counts whole, but never where it began.
	 */
	count->stop = addr & ~((1ull << count->slice->cell_shift) - 1);
	return count->stop > count->from;
}

/* A mapping costs its visit, with page tables or without. */
static int demeter_count_test_walk(unsigned long start, unsigned long end, struct mm_walk *walk)
{
	struct demeter_count_walk *count = walk->private;

	if (demeter_count_is_over(count, start))
		return DEMETER_SCAN_OVER;
	count->slice->entries += DEMETER_SCAN_MAPPING_ENTRIES;
	return demeter_scan_test_walk(start, end, walk);
}

static int demeter_count_pmd(pmd_t *pmdp, unsigned long addr, unsigned long next,
			     struct mm_walk *walk)
{
	struct demeter_count_walk *count = walk->private;

	count->at = addr;
	if (demeter_count_is_over(count, addr))
		return DEMETER_SCAN_OVER;
	count->slice->entries++;
	return demeter_visit_pmd(pmdp, addr, next, walk, demeter_count_folio);
}

static const struct mm_walk_ops demeter_count_ops = { .pmd_entry = demeter_count_pmd,
						      .pte_entry = demeter_count_pte,
						      .test_walk = demeter_count_test_walk,
						      DEMETER_WALK_RDLOCK };

int demeter_scan_cells(struct mm_struct *mm, u64 *at, u64 end, struct demeter_scan_slice *slice)
{
	u64 leaf_bytes = (u64)DEMETER_LEAF_CELLS << slice->cell_shift;
	struct demeter_count_walk count = {
		.slice = slice,
		.base = *at & ~(leaf_bytes - 1),
		.from = *at,
	};
	u64 last = demeter_scan_last(end);
	int ret = 0;

	if (*at < last)
		ret = demeter_scan_once(mm, *at, last, &demeter_count_ops, &count);
	if (ret == -EINTR)
		return ret;
	*at = ret == DEMETER_SCAN_OVER ? count.stop : end;
	return 0;
}
