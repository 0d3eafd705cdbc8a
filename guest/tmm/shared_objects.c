// SPDX-License-Identifier: GPL-2.0-only
/*
 * Shared objects: memory that several targets map is counted once.
 *
 * A database has one buffer pool and many processes. To each of them most of the
 * pool is cold, and pages that all use would be demoted by those who do not. So one
 * target has an object in its ranges, and the samples of the others go there, at the
 * same place of the object: the one that was managed first, unless another has more
 * than twice as much of its files and shared memory mapped in, as pages are found
 * through the page tables of that one target. When it is gone, the next target whose
 * areas are looked at takes over.
 *
 * An object is known by the address of its mapping, which is only compared. Should
 * it be reused before the areas are looked at again, samples go astray until then.
 */
#include <linux/fs.h>
#include <linux/mm.h>

#include "tmm.h"
#include "vma.h"

static bool same_object(const struct demeter_shared *a, const struct demeter_shared *b)
{
	return a->mapping == b->mapping && b->first_page <= a->first_page &&
	       a->first_page + ((a->end - a->start) >> PAGE_SHIFT) <=
		       b->first_page + ((b->end - b->start) >> PAGE_SHIFT);
}

static u64 object_pages(struct mm_struct *mm)
{
	return get_mm_counter(mm, MM_FILEPAGES) + get_mm_counter(mm, MM_SHMEMPAGES);
}

/* Who else has all of @part in its ranges? */
static const struct demeter_shared *find_owner(const struct demeter_target *target,
					       const struct demeter_shared *part, u32 *space)
{
	struct demeter_target *other;
	u64 own_pages = object_pages(target->mm);
	u32 i;

	*space = 0;
	while ((other = demeter_target_next(space))) {
		if (other == target || own_pages > 2 * object_pages(other->mm))
			continue;
		for (i = 0; i < other->shared.nr; i++) {
			const struct demeter_shared *theirs = &other->shared.part[i];

			if (!theirs->owner_space && same_object(part, theirs))
				return theirs;
		}
	}
	return NULL;
}

/**
 * demeter_shared_note() - a mapping was found while areas are looked at
 * @target: its address space
 * @list: what is known of shared objects there so far; the mapping is added
 * @vma: the mapping, mmap_lock held
 *
 * For the worker. What is below a granule, or does not fit on the list, counts for
 * everybody.
 *
 * Return: whether another target has it in its ranges.
 */
bool demeter_shared_note(struct demeter_target *target, struct demeter_shared_list *list,
			 const struct vm_area_struct *vma)
{
	const struct demeter_shared *theirs;
	struct demeter_shared *part;
	u32 space;

	if (!(vma->vm_flags & VM_SHARED) || !vma->vm_file ||
	    vma->vm_end - vma->vm_start < target->ranges.params.granule_bytes ||
	    list->nr == DEMETER_MAX_SHARED)
		return false;
	part = &list->part[list->nr++];
	*part = (struct demeter_shared){
		.mapping = vma->vm_file->f_mapping,
		.start = vma->vm_start,
		.end = vma->vm_end,
		.first_page = vma->vm_pgoff,
	};
	theirs = find_owner(target, part, &space);
	if (!theirs)
		return false;
	part->owner_space = space;
	part->owner_start =
		theirs->start + ((u64)(part->first_page - theirs->first_page) << PAGE_SHIFT);
	return true;
}

/**
 * demeter_shared_place() - whose ranges a sample belongs to
 * @target: address space in which it was taken
 * @gva: address of it; set to that in the address space returned
 *
 * For the worker.
 *
 * Return: @target or another one, or NULL when that is gone.
 */
struct demeter_target *demeter_shared_place(struct demeter_target *target, u64 *gva)
{
	u32 i;

	for (i = 0; i < target->shared.nr; i++) {
		const struct demeter_shared *part = &target->shared.part[i];

		if (!part->owner_space || *gva < part->start || *gva >= part->end)
			continue;
		*gva += part->owner_start - part->start;
		return demeter_target_of(part->owner_space);
	}
	return target;
}

/**
 * demeter_shared_elsewhere() - has another target this mapping in its ranges
 * @vma: the mapping, mmap_lock held
 *
 * For page-table walks of the worker, which alone changes what is asked here.
 *
 * Return: whether walks leave it out.
 */
bool demeter_shared_elsewhere(const struct vm_area_struct *vma)
{
	struct demeter_target *target;
	u32 space, i;

	if (!(vma->vm_flags & VM_SHARED) || !demeter_targets_space_of(vma->vm_mm, &space))
		return false;
	target = demeter_target_of(space);
	for (i = 0; target && i < target->shared.nr; i++) {
		const struct demeter_shared *part = &target->shared.part[i];

		if (part->owner_space && vma->vm_start < part->end && part->start < vma->vm_end)
			return true;
	}
	return false;
}
