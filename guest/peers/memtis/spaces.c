// SPDX-License-Identifier: GPL-2.0-only
/*
 * Hotness of pages, by address space and address.
 *
 * The published system keeps it in pages of page tables and in struct page. Here it is in
 * two XArrays an address space: base pages with at least one sample are values, huge
 * pages have a struct. What has none is not there, and is cold. An entry whose page has
 * gone or changed its size is found out when it is next sampled or moved.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "memtis.h"

#define MEMTIS_GFP     (GFP_KERNEL | __GFP_NORETRY | __GFP_NOWARN)
#define HUGE_SHIFT     (HPAGE_PMD_SHIFT - PAGE_SHIFT)
/* Entries between two looks at whether somebody else should run. */
#define MEMTIS_RESCHED 1024

/* See memtis.h for what it protects. */
DEFINE_MUTEX(memtis_lock);
LIST_HEAD(memtis_spaces);
struct memtis_state memtis_state;

static u64 base_units(u32 samples)
{
	return (u64)samples * DEMETER_MEMTIS_HUGE_PAGES;
}

static u32 base_bin(u32 samples)
{
	return samples ? demeter_memtis_bin(base_units(samples)) : DEMETER_MEMTIS_NOWHERE;
}

static u32 units_bin(u64 units)
{
	return units ? demeter_memtis_bin(units) : DEMETER_MEMTIS_NOWHERE;
}

/* A base page's units change. */
static void account_base(u64 from, u64 to)
{
	demeter_memtis_move(&memtis_state.histogram, units_bin(from), units_bin(to), 1);
	demeter_memtis_move(&memtis_state.base_histogram, units_bin(from), units_bin(to), 1);
}

static void account_huge(u64 from, u64 to)
{
	demeter_memtis_move(&memtis_state.histogram, units_bin(from), units_bin(to), HPAGE_PMD_NR);
}

/* Those of a base page of a huge one. */
static void account_part(u32 from, u32 to)
{
	demeter_memtis_move(&memtis_state.base_histogram, base_bin(from), base_bin(to), 1);
}

static void huge_forget(struct memtis_space *space, unsigned long index, struct memtis_huge *huge)
{
	u32 i;

	account_huge(huge->units, 0);
	for (i = 0; i < DEMETER_MEMTIS_HUGE_PAGES; i++)
		account_part(huge->samples[i], 0);
	xa_erase(&space->huges, index);
	kfree(huge);
	memtis_state.period.huge_pages--;
}

static void page_forget(struct memtis_space *space, unsigned long index, void *entry)
{
	account_base(xa_to_value(entry), 0);
	xa_erase(&space->pages, index);
	atomic64_dec(&memtis_stats.tracked_pages);
}

static void space_forget(struct memtis_space *space)
{
	struct memtis_huge *huge;
	unsigned long index;
	void *entry;

	lockdep_assert_held(&memtis_lock);
	list_del(&space->node);
	xa_for_each(&space->pages, index, entry)
		page_forget(space, index, entry);
	xa_for_each(&space->huges, index, huge)
		huge_forget(space, index, huge);
	xa_destroy(&space->pages);
	xa_destroy(&space->huges);
	memtis_space_put(space);
}

void memtis_spaces_reset(void)
{
	struct memtis_space *space, *next;

	mutex_lock(&memtis_lock);
	list_for_each_entry_safe(space, next, &memtis_spaces, node)
		space_forget(space);
	memtis_state = (struct memtis_state){
		.thresholds = { .hot = 1, .warm = 1 },
		.base_thresholds = { .hot = 1, .warm = 1 },
		.period.gap_permille = memtis_params.gap_permille,
	};
	atomic64_set(&memtis_stats.hot_bin, memtis_state.thresholds.hot);
	atomic64_set(&memtis_stats.warm_bin, memtis_state.thresholds.warm);
	mutex_unlock(&memtis_lock);
}

void memtis_space_put(struct memtis_space *space)
{
	if (!space || !refcount_dec_and_test(&space->users))
		return;
	mmdrop(space->mm);
	kfree(space);
}

struct memtis_space *memtis_space_find(struct mm_struct *mm)
{
	struct memtis_space *space;

	lockdep_assert_held(&memtis_lock);
	list_for_each_entry(space, &memtis_spaces, node) {
		if (space->mm != mm)
			continue;
		refcount_inc(&space->users);
		return space;
	}
	space = kzalloc(sizeof(*space), MEMTIS_GFP);
	if (!space)
		return NULL;
	xa_init(&space->pages);
	xa_init(&space->huges);
	/* Keeps its address from being used again while it is our name for it. */
	mmgrab(mm);
	space->mm = mm;
	refcount_set(&space->users, 2);
	list_add_tail(&space->node, &memtis_spaces);
	return space;
}

struct memtis_space *memtis_space_next(struct memtis_space *space)
{
	struct memtis_space *before = space, *next;

	mutex_lock(&memtis_lock);
	/* While its process lives it is on the list. */
	space = list_prepare_entry(space, &memtis_spaces, node);
	next = NULL;
	while (!list_is_last(&space->node, &memtis_spaces)) {
		next = list_next_entry(space, node);
		if (mmget_not_zero(next->mm)) {
			refcount_inc(&next->users);
			break;
		}
		space_forget(next);
		next = NULL;
	}
	mutex_unlock(&memtis_lock);
	memtis_space_leave(before);
	return next;
}

void memtis_space_leave(struct memtis_space *space)
{
	if (!space)
		return;
	mmput(space->mm);
	memtis_space_put(space);
}

/* The kernel has split a huge page, or we have: what it was counted for its parts is theirs. */
static int huge_to_pages(struct memtis_space *space, unsigned long index, struct memtis_huge *huge)
{
	u32 i;

	for (i = 0; i < DEMETER_MEMTIS_HUGE_PAGES; i++) {
		unsigned long page = (index << HUGE_SHIFT) + i;
		u64 units = base_units(huge->samples[i]);

		if (!units || xa_load(&space->pages, page))
			continue;
		if (xa_err(xa_store(&space->pages, page, xa_mk_value(units), MEMTIS_GFP)))
			break;
		account_base(0, units);
		atomic64_inc(&memtis_stats.tracked_pages);
		if (huge->tier == DEMETER_SMEM)
			xa_set_mark(&space->pages, page, MEMTIS_ON_SMEM);
	}
	huge_forget(space, index, huge);
	return i < DEMETER_MEMTIS_HUGE_PAGES ? -ENOMEM : 0;
}

static struct memtis_huge *pages_to_huge(struct memtis_space *space, unsigned long index)
{
	struct memtis_huge *huge = kzalloc(sizeof(*huge), MEMTIS_GFP);
	unsigned long first = index << HUGE_SHIFT, page;
	void *entry;

	if (!huge || xa_err(xa_store(&space->huges, index, huge, MEMTIS_GFP))) {
		kfree(huge);
		return NULL;
	}
	memtis_state.period.huge_pages++;
	xa_for_each_range(&space->pages, page, entry, first, first + HPAGE_PMD_NR - 1) {
		u32 samples = xa_to_value(entry) / DEMETER_MEMTIS_HUGE_PAGES;

		huge->samples[page - first] = samples;
		huge->units += samples;
		account_part(0, samples);
		page_forget(space, page, entry);
	}
	account_huge(0, huge->units);
	return huge;
}

/* Is a sample in a base page that would be hot? */
static void note_estimate(u64 units)
{
	if (demeter_memtis_bin(units) >= memtis_state.base_thresholds.hot)
		memtis_state.period.base_hits++;
}

static int count_huge(struct memtis_space *space, unsigned long addr, enum demeter_tier tier)
{
	unsigned long index = addr >> HPAGE_PMD_SHIFT;
	u32 part = (addr & ~HPAGE_PMD_MASK) >> PAGE_SHIFT;
	struct memtis_huge *huge = xa_load(&space->huges, index);

	if (!huge)
		huge = pages_to_huge(space, index);
	if (!huge)
		return -ENOMEM;
	huge->tier = tier;
	account_huge(huge->units, huge->units + 1);
	huge->units++;
	account_part(huge->samples[part], huge->samples[part] + 1);
	huge->samples[part]++;
	memtis_state.period.huge_samples++;
	note_estimate(base_units(huge->samples[part]));
	return 0;
}

static int count_base(struct memtis_space *space, unsigned long addr, enum demeter_tier tier)
{
	unsigned long index = addr >> PAGE_SHIFT;
	struct memtis_huge *huge = xa_load(&space->huges, index >> HUGE_SHIFT);
	XA_STATE(xas, &space->pages, index);
	u64 before, units;

	if (huge && huge_to_pages(space, index >> HUGE_SHIFT, huge))
		return -ENOMEM;
	do {
		void *entry;

		xas_lock(&xas);
		entry = xas_load(&xas);
		before = entry ? xa_to_value(entry) : 0;
		units = min_t(u64, before + DEMETER_MEMTIS_HUGE_PAGES, U32_MAX);
		xas_store(&xas, xa_mk_value(units));
		if (tier == DEMETER_SMEM)
			xas_set_mark(&xas, MEMTIS_ON_SMEM);
		else
			xas_clear_mark(&xas, MEMTIS_ON_SMEM);
		xas_unlock(&xas);
	} while (xas_nomem(&xas, MEMTIS_GFP));
	if (xas_error(&xas))
		return xas_error(&xas);
	if (!before)
		atomic64_inc(&memtis_stats.tracked_pages);
	account_base(before, units);
	note_estimate(units);
	return 0;
}

int memtis_count(struct memtis_space *space, unsigned long addr, bool huge, enum demeter_tier tier)
{
	int ret;

	lockdep_assert_held(&memtis_lock);
	ret = huge ? count_huge(space, addr, tier) : count_base(space, addr, tier);
	if (ret)
		return ret;
	memtis_state.period.samples++;
	if (tier == DEMETER_FMEM)
		memtis_state.period.hits++;
	return 0;
}

static void cool_pages(struct memtis_space *space)
{
	XA_STATE(xas, &space->pages, 0);
	u32 seen = 0;
	void *entry;

	xas_lock(&xas);
	xas_for_each(&xas, entry, ULONG_MAX)
	{
		u64 units = xa_to_value(entry) / 2;

		account_base(xa_to_value(entry), units);
		if (!units)
			atomic64_dec(&memtis_stats.tracked_pages);
		xas_store(&xas, units ? xa_mk_value(units) : NULL);
		if (++seen % MEMTIS_RESCHED)
			continue;
		xas_pause(&xas);
		xas_unlock(&xas);
		cond_resched();
		xas_lock(&xas);
	}
	xas_unlock(&xas);
}

static void cool_huges(struct memtis_space *space)
{
	struct memtis_huge *huge;
	unsigned long index;
	u32 i;

	xa_for_each(&space->huges, index, huge) {
		account_huge(huge->units, huge->units / 2);
		huge->units /= 2;
		for (i = 0; i < DEMETER_MEMTIS_HUGE_PAGES; i++) {
			account_part(huge->samples[i], huge->samples[i] / 2);
			huge->samples[i] /= 2;
		}
		if (!huge->units)
			huge_forget(space, index, huge);
		cond_resched();
	}
}

void memtis_cool(void)
{
	struct memtis_space *space;

	lockdep_assert_held(&memtis_lock);
	list_for_each_entry(space, &memtis_spaces, node) {
		cool_pages(space);
		cool_huges(space);
	}
}

u64 memtis_units(struct memtis_space *space, unsigned long addr)
{
	void *entry;

	lockdep_assert_held(&memtis_lock);
	entry = xa_load(&space->pages, addr >> PAGE_SHIFT);
	return entry ? xa_to_value(entry) : 0;
}

void memtis_refresh(struct memtis_space *space, unsigned long start,
		    const struct demeter_scan_granule *found)
{
	unsigned long first = start >> PAGE_SHIFT, index;
	struct memtis_huge *huge = xa_load(&space->huges, start >> HPAGE_PMD_SHIFT);
	void *entry;

	lockdep_assert_held(&memtis_lock);
	if (huge && found->huge)
		huge->tier = found->tier;
	else if (huge)
		huge_to_pages(space, start >> HPAGE_PMD_SHIFT, huge);
	xa_for_each_range(&space->pages, index, entry, first, first + HPAGE_PMD_NR - 1) {
		u32 page = index - first;

		if (found->huge)
			continue;
		if (found->where[DEMETER_SMEM][page / 64] >> (page % 64) & 1)
			xa_set_mark(&space->pages, index, MEMTIS_ON_SMEM);
		else if (found->where[DEMETER_FMEM][page / 64] >> (page % 64) & 1)
			xa_clear_mark(&space->pages, index, MEMTIS_ON_SMEM);
		else
			page_forget(space, index, entry);
	}
}
