// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pages of 2 MiB by address space and address.
 *
 * The published system manages what a program maps in one call of at least 1 GiB, and is told
 * of every page by the fault that fills it. Here the policy thread goes through large mappings
 * to see which pages there are. A page is in one tier: that where most of it is.
 */
#include <linux/bitmap.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "hemem.h"
#include "vma.h"

#define HEMEM_GFP     (GFP_KERNEL | __GFP_NORETRY | __GFP_NOWARN)
/* Of a process, a round: programs reserve terabytes. */
#define LOOK_GRANULES 1024u

/* See hemem.h for what it protects. */
DEFINE_MUTEX(hemem_lock);
LIST_HEAD(hemem_spaces);
struct demeter_hemem hemem;

void hemem_page_forget(struct hemem_granule *granule)
{
	lockdep_assert_held(&hemem_lock);
	demeter_hemem_remove(&hemem, &granule->page);
	xa_erase(&granule->space->pages, granule->start >> HPAGE_PMD_SHIFT);
	kfree(granule);
}

static void space_forget(struct hemem_space *space)
{
	struct hemem_granule *granule;
	unsigned long index;

	lockdep_assert_held(&hemem_lock);
	list_del(&space->node);
	xa_for_each(&space->pages, index, granule)
		hemem_page_forget(granule);
	xa_destroy(&space->pages);
	mmdrop(space->mm);
	kfree(space);
}

void hemem_pages_reset(void)
{
	struct hemem_space *space, *next;

	mutex_lock(&hemem_lock);
	list_for_each_entry_safe(space, next, &hemem_spaces, node)
		space_forget(space);
	hemem = (struct demeter_hemem){
		.rules = {
			.hot_reads = hemem_params.hot_reads,
			.hot_writes = hemem_params.hot_writes,
			.cooling_samples = hemem_params.cooling_samples,
			.writes_first = hemem_params.writes_first,
		},
	};
	mutex_unlock(&hemem_lock);
}

struct hemem_space *hemem_space_find(struct mm_struct *mm)
{
	struct hemem_space *space;

	lockdep_assert_held(&hemem_lock);
	list_for_each_entry(space, &hemem_spaces, node)
		if (space->mm == mm)
			return space;
	space = kzalloc(sizeof(*space), HEMEM_GFP);
	if (!space)
		return NULL;
	xa_init(&space->pages);
	/* Keeps its address from being used again while it is our name for it. */
	mmgrab(mm);
	space->mm = mm;
	list_add_tail(&space->node, &hemem_spaces);
	return space;
}

static u32 resident(const struct demeter_scan_granule *found, enum demeter_tier tier)
{
	if (found->huge)
		return found->tier == tier ? HPAGE_PMD_NR : 0;
	return bitmap_weight((const unsigned long *)found->where[tier], HPAGE_PMD_NR);
}

bool hemem_tier_of(const struct demeter_scan_granule *found, enum demeter_tier *tier)
{
	u32 fast = resident(found, DEMETER_FMEM), slow = resident(found, DEMETER_SMEM);

	*tier = fast >= slow ? DEMETER_FMEM : DEMETER_SMEM;
	return fast || slow;
}

static void page_add(struct hemem_space *space, u64 start, enum demeter_tier tier)
{
	struct hemem_granule *granule = kzalloc(sizeof(*granule), HEMEM_GFP);

	if (!granule)
		return;
	granule->space = space;
	granule->start = start;
	granule->seen = true;
	mutex_lock(&hemem_lock);
	if (xa_err(xa_store(&space->pages, start >> HPAGE_PMD_SHIFT, granule, HEMEM_GFP)))
		kfree(granule);
	else
		demeter_hemem_add(&hemem, &granule->page, tier);
	mutex_unlock(&hemem_lock);
}

/*
 * Look at a page. A known one may be in another tier by now: given back and filled again,
 * swapped out and in. Only this thread removes pages. False if it could not be looked at.
 */
static bool page_look(struct hemem_space *space, u64 start)
{
	struct hemem_granule *granule = xa_load(&space->pages, start >> HPAGE_PMD_SHIFT);
	struct demeter_scan_granule found;
	enum demeter_tier tier;

	if (demeter_scan_granule(space->mm, start, hemem_node, &found))
		return false;
	if (!hemem_tier_of(&found, &tier))
		return true; /* The sweep forgets it. */
	if (!granule) {
		page_add(space, start, tier);
		return true;
	}
	granule->seen = true;
	if (granule->page.tier != tier) {
		mutex_lock(&hemem_lock);
		demeter_hemem_moved(&hemem, &granule->page, tier);
		mutex_unlock(&hemem_lock);
	}
	return true;
}

/* The next mapping from @at on that is managed: 1, 0 at the end, -EAGAIN if not to be seen. */
static int next_mapping(struct mm_struct *mm, u64 *at, u64 *end)
{
	struct vm_area_struct *vma;
	bool found = false;

	if (!demeter_scan_lock(mm))
		return -EAGAIN;
	{
		VMA_ITERATOR(vmi, mm, *at);

		for_each_vma(vmi, vma) {
			if (!demeter_vma_is_managed(vma) ||
			    vma->vm_end - vma->vm_start < hemem_params.least_mapping_bytes)
				continue;
			*at = max_t(u64, *at, round_down(vma->vm_start, HPAGE_PMD_SIZE));
			*end = vma->vm_end;
			found = *at < *end;
			if (found)
				break;
		}
	}
	mmap_read_unlock(mm);
	return found;
}

/* A pass is over: what it did not come across is gone. */
static void space_sweep(struct hemem_space *space)
{
	struct hemem_granule *granule;
	unsigned long index;

	mutex_lock(&hemem_lock);
	xa_for_each(&space->pages, index, granule) {
		if (!granule->seen)
			hemem_page_forget(granule);
		else
			granule->seen = false;
	}
	mutex_unlock(&hemem_lock);
	space->hand = 0;
}

static void space_look(struct hemem_space *space)
{
	u32 left = LOOK_GRANULES;
	u64 end;
	int ret;

	while ((ret = next_mapping(space->mm, &space->hand, &end)) > 0) {
		for (; space->hand < end; space->hand += HPAGE_PMD_SIZE) {
			/* The next round goes on here; nothing that was not reached is gone. */
			if (!left-- || kthread_should_stop() || !page_look(space, space->hand))
				return;
			cond_resched();
		}
	}
	if (!ret)
		space_sweep(space);
}

void hemem_pages_look(void)
{
	struct hemem_space *space, *next;

	mutex_lock(&hemem_lock);
	/* Others add to its end only. */
	list_for_each_entry_safe(space, next, &hemem_spaces, node) {
		if (!mmget_not_zero(space->mm)) {
			space_forget(space);
			continue;
		}
		mutex_unlock(&hemem_lock);
		space_look(space);
		mmput_async(space->mm);
		mutex_lock(&hemem_lock);
		next = list_next_entry(space, node);
	}
	mutex_unlock(&hemem_lock);
}
