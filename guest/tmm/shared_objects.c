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
 * One process may map an object more than once, too: ring buffers, emulators, collectors
 * of garbage. The largest such view has the object in its ranges, of equals the first by
 * address, unless another has more than twice as many of its pages in its page tables. What
 * of an address space does not fit its list of objects counts for each view.
 *
 * An object is known by the address of its mapping, which is only compared. Should
 * it be reused before the areas are looked at again, samples go astray until then.
 */
#include <linux/fs.h>
#include <linux/hashtable.h>
#include <linux/mm.h>
#include <linux/mutex.h>

#include "scan.h"
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

/*
 * What is in the ranges of a target, by object: a server has thousands of processes, and
 * each is looked at again whenever its mappings change.
 */
static DEFINE_HASHTABLE(owners, 10);
/*
 * Protects @owners, and @owned and @is_forgotten of every target. The worker takes it
 * below mmap_lock, whoever removes a target below demeter_lock. A mutex, as an object
 * that thousands map in parts has a long list.
 */
static DEFINE_MUTEX(owners_lock);

static const struct demeter_shared *part_of(const struct demeter_shared_owned *owned)
{
	return &owned->target->shared.part[owned - owned->target->owned];
}

/*
 * Who else has all of @part in its ranges? Whom it finds is valid as from
 * demeter_target_of().
 */
static const struct demeter_shared *find_owner(const struct demeter_target *target,
					       const struct demeter_shared *part, u32 *space)
{
	const struct demeter_shared *found = NULL;
	u64 own_pages = object_pages(target->mm), compared = 0;
	struct demeter_shared_owned *owned;

	mutex_lock(&owners_lock);
	hash_for_each_possible(owners, owned, node, (unsigned long)part->mapping) {
		const struct demeter_target *other = owned->target;

		if (other == target)
			continue;
		compared++;
		if (!same_object(part, part_of(owned)) || own_pages > 2 * object_pages(other->mm))
			continue;
		/* The lowest number was managed first. */
		if (!found || other->space < *space) {
			found = part_of(owned);
			*space = other->space;
		}
	}
	mutex_unlock(&owners_lock);
	WRITE_ONCE(demeter_stats.compared_mappings, demeter_stats.compared_mappings + compared);
	return found;
}

/* Where @part begins in @whole, which has all of it. */
static u64 start_in(const struct demeter_shared *whole, const struct demeter_shared *part)
{
	return whole->start + ((u64)(part->first_page - whole->first_page) << PAGE_SHIFT);
}

/*
 * Can @view, which has all of @part, stand for it? Both are of one address space, mmap_lock
 * held. Not where its page tables have less than half of what those of @part have.
 */
static bool can_lead(struct demeter_target *target, const struct demeter_shared *view,
		     const struct demeter_shared *part)
{
	u64 start = start_in(view, part), bytes = part->end - part->start;

	return 2 * demeter_scan_probe(target->mm, start, start + bytes) >=
	       demeter_scan_probe(target->mm, part->start, part->end);
}

/* Leave @part to a view of the same address space that is before it on the list, if any. */
static bool follow_view(struct demeter_target *target, const struct demeter_shared_list *list,
			struct demeter_shared *part)
{
	const struct demeter_shared *view;

	for (view = list->part; view < part; view++) {
		if (view->owner_space || !same_object(part, view) || !can_lead(target, view, part))
			continue;
		part->owner_space = target->space;
		part->owner_start = start_in(view, part);
		return true;
	}
	return false;
}

/* Leave to @view, the last on the list, what is before it and part of it. */
static void lead_views(struct demeter_target *target, struct demeter_shared_list *list,
		       const struct demeter_shared *view)
{
	struct demeter_shared *part, *other;

	for (part = list->part; part < view; part++) {
		if (part->owner_space || !same_object(part, view) || !can_lead(target, view, part))
			continue;
		part->owner_space = target->space;
		part->owner_start = start_in(view, part);
		/* So are those that were left to it. */
		for (other = list->part; other < view; other++)
			if (other != part && other->owner_space == target->space &&
			    other->owner_start >= part->start && other->owner_start < part->end)
				other->owner_start += part->owner_start - part->start;
	}
}

static void forget_owned(struct demeter_target *target)
{
	u32 i;

	lockdep_assert_held(&owners_lock);
	for (i = 0; i < DEMETER_MAX_SHARED; i++)
		hash_del(&target->owned[i].node);
}

/**
 * demeter_shared_set() - what is known of shared objects of an address space is now this
 * @target: the address space
 * @list: as demeter_shared_note() made it
 *
 * For the worker.
 */
void demeter_shared_set(struct demeter_target *target, const struct demeter_shared_list *list)
{
	u32 i;

	mutex_lock(&owners_lock);
	forget_owned(target);
	target->shared = *list;
	/* One that is removed meanwhile would stay in the hash for ever. */
	for (i = 0; i < list->nr && !target->is_forgotten; i++) {
		struct demeter_shared_owned *owned = &target->owned[i];

		if (list->part[i].owner_space)
			continue;
		owned->target = target;
		hash_add(owners, &owned->node, (unsigned long)list->part[i].mapping);
	}
	mutex_unlock(&owners_lock);
}

/**
 * demeter_shared_forget() - nobody shall find an address space by its objects any more
 * @target: the address space, which is being removed
 *
 * Readers that have found it may use it until demeter_targets_read_unlock().
 */
void demeter_shared_forget(struct demeter_target *target)
{
	mutex_lock(&owners_lock);
	forget_owned(target);
	target->is_forgotten = true;
	mutex_unlock(&owners_lock);
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
 * Return: whether another target has it in its ranges, or another mapping of this one
 * that was found before.
 */
bool demeter_shared_note(struct demeter_target *target, struct demeter_shared_list *list,
			 const struct vm_area_struct *vma)
{
	const struct demeter_shared *theirs;
	struct demeter_shared *part;
	u32 space = 0;

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
	if (follow_view(target, list, part))
		return true;
	theirs = find_owner(target, part, &space);
	if (!theirs) {
		lead_views(target, list, part);
		return false;
	}
	part->owner_space = space;
	part->owner_start = start_in(theirs, part);
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
 * demeter_shared_any_elsewhere() - is anything that it maps left out of its walks
 * @target: the address space
 *
 * For the worker.
 *
 * Return: whether the kernel's count of its pages holds more than its ranges do.
 */
bool demeter_shared_any_elsewhere(const struct demeter_target *target)
{
	u32 i;

	for (i = 0; i < target->shared.nr; i++)
		if (target->shared.part[i].owner_space)
			return true;
	return false;
}

/**
 * demeter_shared_elsewhere() - is this mapping in the ranges of another one, or target
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
