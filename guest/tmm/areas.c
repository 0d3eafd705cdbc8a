// SPDX-License-Identifier: GPL-2.0-only
/*
 * Areas: which parts of an address space are managed, in any layout.
 *
 * All mappings that hold data are looked at, wherever they lie: heap, static
 * arrays, what was mapped low or high, shared memory and files. Between those that
 * lie far apart the address space is cut (core/areas.c). Code and the main stack
 * stay out: the one is small and shared, the other as hot as its top.
 *
 * A process may have tens of thousands of mappings. mmap_lock is held for a few
 * hundred of them at a time, and let go in between; what changes meanwhile is seen
 * the next time.
 */
#define pr_fmt(fmt) "demeter: " fmt

#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/sched.h>

#include "scan.h"
#include "tmm.h"
#include "vma.h"

/* Mappings looked at under mmap_lock: some ten microseconds. */
#define VMAS_AT_ONCE   256
/* Areas are looked at again after this many epochs, changed or not. */
#define REFRESH_EPOCHS 8
/* One more epoch between looks for so many mappings. */
#define VMAS_AN_EPOCH  4096
/* Gaps that divide are at least so many granules wide (64 MiB of 2 MiB). */
#define GAP_GRANULES   32

static bool is_due(const struct demeter_target *target)
{
	const struct mm_struct *mm = target->mm;
	u32 age = target->ranges.epoch - target->seen_epoch;

	if (!target->seen_epoch)
		return true;
	if (age <= target->seen_map_count / VMAS_AN_EPOCH)
		return false;
	return age >= REFRESH_EPOCHS || target->seen_brk != READ_ONCE(mm->brk) ||
	       target->seen_total_vm != READ_ONCE(mm->total_vm) ||
	       target->seen_map_count != READ_ONCE(mm->map_count);
}

/* What is never sampled would look cold, however hot it is. */
static bool is_unseen(const struct vm_area_struct *vma)
{
	const struct demeter_sampler_ops *ops = demeter_sampler_active();

	return ops && ops->sees_mapping && !ops->sees_mapping(vma);
}

/**
 * demeter_vma_is_left_out() - is a mapping left out of walks here
 * @vma: the mapping, mmap_lock held
 *
 * For page-table walks of the worker.
 *
 * Return: whether the sampler does not see it, or another target has it in its
 * ranges.
 */
bool demeter_vma_is_left_out(const struct vm_area_struct *vma)
{
	return is_unseen(vma) || demeter_shared_elsewhere(vma);
}

/* Add some mappings from @at on; sets @at to where to go on, 0 at the end. */
static void add_some(struct demeter_areas *areas, struct demeter_shared_list *shared,
		     struct demeter_target *target, unsigned long *at)
{
	VMA_ITERATOR(vmi, target->mm, *at);
	struct vm_area_struct *vma;
	u32 nr = 0;

	for_each_vma(vmi, vma) {
		/* One that has grown downwards since may begin below. */
		unsigned long start = max(vma->vm_start, *at);

		if (nr++ == VMAS_AT_ONCE) {
			*at = start;
			return;
		}
		if (demeter_vma_is_managed(vma) && !is_unseen(vma) &&
		    !demeter_shared_note(target, shared, vma))
			demeter_areas_add(areas, start, vma->vm_end);
	}
	*at = 0;
}

/**
 * demeter_target_refresh_areas() - follow the layout of an address space
 * @target: the target, mm_users held
 *
 * Nothing is done where nothing has changed. Where mmap_lock is contended, the old
 * areas do for another epoch.
 */
void demeter_target_refresh_areas(struct demeter_target *target)
{
	u64 granule = target->ranges.params.granule_bytes;
	struct mm_struct *mm = target->mm;
	u64 held_ns;
	unsigned long brk, total_vm, at = 0;
	struct demeter_shared_list shared = {};
	struct demeter_areas areas;
	int map_count;

	if (!is_due(target))
		return;
	brk = READ_ONCE(mm->brk);
	total_vm = READ_ONCE(mm->total_vm);
	map_count = READ_ONCE(mm->map_count);
	demeter_areas_begin(&areas, granule, granule * GAP_GRANULES);
	do {
		/* Who has begun goes on: many mappings take many holds of the lock. */
		if (!(at ? demeter_scan_lock(mm) : mmap_read_trylock(mm)))
			return;
		held_ns = demeter_worker_clock();
		add_some(&areas, &shared, target, &at);
		held_ns = demeter_worker_clock() - held_ns;
		mmap_read_unlock(mm);
		demeter_stats_max(&demeter_stats.mmap_lock_held_max_ns, held_ns);
		cond_resched();
	} while (at && !demeter_worker_should_stop());
	if (at)
		return;
	/* Whose ranges an object is in changes what is resident, if not how much. */
	if (memcmp(&target->shared, &shared, sizeof(shared)))
		target->pass.wanted = true;
	demeter_shared_set(target, &shared);
	target->seen_epoch = target->ranges.epoch;
	target->seen_brk = brk;
	target->seen_total_vm = total_vm;
	target->seen_map_count = map_count;
	if (demeter_ranges_set_areas(&target->ranges, areas.area, areas.nr))
		pr_warn_once("areas of process %d were not accepted; next: report it\n",
			     target->pid);
}
