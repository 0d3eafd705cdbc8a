// SPDX-License-Identifier: GPL-2.0-only
/*
 * Targets: the managed address spaces.
 *
 * A target holds mm_count of its address space (the structure, so that its
 * address is not reused) and never mm_users for longer than one stage of an
 * epoch, so that a process exits when it wants to. The worker notices and
 * forgets it.
 *
 * Writers hold demeter_lock. The drain looks a target up by mm under RCU and
 * reads nothing of it but @mm and @space.
 */
#define pr_fmt(fmt) "demeter: " fmt

#include <linux/cgroup.h>
#include <linux/hashtable.h>
#include <linux/mm.h>
#include <linux/pid.h>
#include <linux/rculist.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/slab.h>
#include <linux/xarray.h>

#include "ledger.h"
#include "tmm.h"
#include "trace.h"

/* Address spaces taken on in one go. */
#define DISCOVER_MAX	   16
/* One more epoch between looks at the process list for this many processes. */
#define DISCOVER_PROCESSES 512
/* Areas are looked at again after this many epochs, changed or not. */
#define REFRESH_EPOCHS	   8

enum { AREA_HEAP, AREA_MMAP };

static DEFINE_HASHTABLE(targets_by_mm, 7);
static DEFINE_XARRAY_ALLOC1(targets_by_space);
static u32 next_space;
static u32 nr_targets;

/* Under demeter_lock. */
static struct cgroup *target_cgroup;
static char target_cgroup_path[256];
static u32 discover_wait;

/**
 * demeter_targets_space_of() - number of a managed address space
 * @mm: address space, only compared
 * @space: out
 *
 * Safe in any context.
 *
 * Return: whether @mm is managed.
 */
bool demeter_targets_space_of(const struct mm_struct *mm, u32 *space)
{
	struct demeter_target *target;
	bool found = false;

	rcu_read_lock();
	hash_for_each_possible_rcu(targets_by_mm, target, node, (unsigned long)mm) {
		if (target->mm == mm) {
			*space = target->space;
			found = true;
			break;
		}
	}
	rcu_read_unlock();
	return found;
}

/**
 * demeter_target_of() - the target with a number
 * @space: number of the address space
 *
 * Return: the target, valid under demeter_lock, or NULL when it is gone.
 */
struct demeter_target *demeter_target_of(u32 space)
{
	lockdep_assert_held(&demeter_lock);
	return xa_load(&targets_by_space, space);
}

/**
 * demeter_target_next() - walk the targets
 * @space: where to go on from, 0 to begin; set to the number of the one returned
 *
 * Return: the next target, or NULL.
 */
struct demeter_target *demeter_target_next(u32 *space)
{
	unsigned long index = *space + 1ul;
	struct demeter_target *target;

	lockdep_assert_held(&demeter_lock);
	target = xa_find(&targets_by_space, &index, U32_MAX, XA_PRESENT);
	if (target)
		*space = index;
	return target;
}

/**
 * demeter_targets_nr() - how many address spaces are managed
 *
 * Return: their number.
 */
u32 demeter_targets_nr(void)
{
	return READ_ONCE(nr_targets);
}

static void ranges_params_now(struct demeter_ranges_params *params)
{
	*params = (struct demeter_ranges_params){
		.split_samples = READ_ONCE(demeter_params.split_samples),
		.significance = READ_ONCE(demeter_params.significance),
		.vcpus = num_online_cpus(),
		.merge_epochs = READ_ONCE(demeter_params.merge_epochs),
		.granule_bytes = READ_ONCE(demeter_params.granule_bytes),
	};
}

static void target_free(struct demeter_target *target)
{
	kvfree(target->range);
	kvfree(target->count);
	kvfree(target->spare);
	kfree_rcu(target, rcu);
}

static int target_add(struct mm_struct *mm, pid_t pid, enum demeter_origin origin)
{
	struct demeter_ranges_params params;
	struct demeter_target *target;
	u32 unused;
	int ret;

	lockdep_assert_held(&demeter_lock);
	if (demeter_targets_space_of(mm, &unused))
		return 0;
	if (nr_targets >= DEMETER_MAX_TARGETS)
		return -ENOSPC;
	target = kzalloc(sizeof(*target), GFP_KERNEL);
	if (!target)
		return -ENOMEM;
	target->range = kvcalloc(DEMETER_TARGET_RANGES, sizeof(*target->range), GFP_KERNEL);
	target->count = kvcalloc(DEMETER_TARGET_RANGES, sizeof(*target->count), GFP_KERNEL);
	target->spare = kvcalloc(DEMETER_TARGET_RANGES, sizeof(*target->spare), GFP_KERNEL);
	ret = -ENOMEM;
	if (!target->range || !target->count || !target->spare)
		goto fail;
	ranges_params_now(&params);
	ret = demeter_ranges_init(&target->ranges, target->range, DEMETER_TARGET_RANGES, &params);
	if (ret)
		goto fail;
	target->mm = mm;
	target->pid = pid;
	target->origin = origin;
	ret = xa_alloc_cyclic(&targets_by_space, &target->space, target, xa_limit_32b, &next_space,
			      GFP_KERNEL);
	if (ret < 0)
		goto fail;
	mmgrab(mm);
	hash_add_rcu(targets_by_mm, &target->node, (unsigned long)mm);
	WRITE_ONCE(nr_targets, nr_targets + 1);
	demeter_ledger_add(target->space, pid, origin);
	trace_demeter_target(true, target->space, pid, origin);
	return 0;
fail:
	target_free(target);
	return ret;
}

static void target_remove(struct demeter_target *target)
{
	lockdep_assert_held(&demeter_lock);
	trace_demeter_target(false, target->space, target->pid, target->origin);
	hash_del_rcu(&target->node);
	xa_erase(&targets_by_space, target->space);
	WRITE_ONCE(nr_targets, nr_targets - 1);
	demeter_ledger_forget(target->space);
	mmdrop(target->mm);
	target_free(target);
}

static void targets_forget_dead(void)
{
	struct demeter_target *target;
	u32 space = 0;

	while ((target = demeter_target_next(&space))) {
		if (!atomic_read(&target->mm->mm_users))
			target_remove(target);
	}
}

/* The address space of a process, with mm_users held, and its thread group. */
static struct mm_struct *mm_of_pid(pid_t nr, pid_t *tgid)
{
	struct pid *pid = find_get_pid(nr);
	struct task_struct *task;
	struct mm_struct *mm = NULL;

	task = get_pid_task(pid, PIDTYPE_PID);
	put_pid(pid);
	if (!task)
		return NULL;
	if (!(task->flags & PF_KTHREAD))
		mm = get_task_mm(task);
	*tgid = task_tgid_nr(task);
	put_task_struct(task);
	return mm;
}

/**
 * demeter_targets_add_pid() - manage the address space of a process
 * @pid: the process, as its writer sees it
 *
 * Return: 0, -ESRCH, -ENOSPC or -ENOMEM.
 */
int demeter_targets_add_pid(pid_t pid)
{
	struct mm_struct *mm;
	pid_t tgid;
	int ret;

	mm = mm_of_pid(pid, &tgid);
	if (!mm)
		return -ESRCH;
	mutex_lock(&demeter_lock);
	targets_forget_dead();
	ret = target_add(mm, tgid, DEMETER_BY_PID);
	mutex_unlock(&demeter_lock);
	mmput(mm);
	return ret;
}

/**
 * demeter_targets_remove_pid() - manage the address space of a process no more
 * @pid: the process, as its writer sees it
 *
 * Return: 0, -ESRCH when there is no such process, -ENOENT when it is not managed.
 */
int demeter_targets_remove_pid(pid_t pid)
{
	struct mm_struct *mm;
	pid_t tgid;
	u32 space;
	int ret = -ENOENT;

	mm = mm_of_pid(pid, &tgid);
	if (!mm)
		return -ESRCH;
	mutex_lock(&demeter_lock);
	if (demeter_targets_space_of(mm, &space)) {
		target_remove(demeter_target_of(space));
		ret = 0;
	}
	mutex_unlock(&demeter_lock);
	mmput(mm);
	return ret;
}

#ifdef CONFIG_CGROUPS
static bool in_target_cgroup(struct task_struct *task)
{
	return target_cgroup && task_under_cgroup_hierarchy(task, target_cgroup);
}

static int cgroup_find(const char *path, struct cgroup **found)
{
	*found = cgroup_get_from_path(path);
	return PTR_ERR_OR_ZERO(*found);
}

static void cgroup_forget(struct cgroup *cgroup)
{
	if (cgroup)
		cgroup_put(cgroup);
}
#else
static bool in_target_cgroup(struct task_struct *task)
{
	return false;
}

static int cgroup_find(const char *path, struct cgroup **found)
{
	return -EOPNOTSUPP;
}

static void cgroup_forget(struct cgroup *cgroup)
{
}
#endif

/**
 * demeter_targets_set_cgroup() - manage every process of a cgroup and below
 * @path: from the root of the unified hierarchy, "" for none
 *
 * Targets of the cgroup before are given up.
 *
 * Return: 0 or a negative errno.
 */
int demeter_targets_set_cgroup(const char *path)
{
	struct demeter_target *target;
	struct cgroup *cgroup = NULL;
	u32 space = 0;
	int ret;

	if (strlen(path) >= sizeof(target_cgroup_path))
		return -ENAMETOOLONG;
	if (*path) {
		ret = cgroup_find(path, &cgroup);
		if (ret)
			return ret;
	}
	mutex_lock(&demeter_lock);
	while ((target = demeter_target_next(&space))) {
		if (target->origin == DEMETER_BY_CGROUP)
			target_remove(target);
	}
	swap(cgroup, target_cgroup);
	strscpy(target_cgroup_path, path, sizeof(target_cgroup_path));
	discover_wait = 0;
	mutex_unlock(&demeter_lock);
	cgroup_forget(cgroup);
	return 0;
}

/**
 * demeter_targets_cgroup_path() - the managed cgroup
 * @buf: where to print it, with a newline
 * @size: of @buf
 *
 * Return: characters printed.
 */
ssize_t demeter_targets_cgroup_path(char *buf, size_t size)
{
	ssize_t ret;

	mutex_lock(&demeter_lock);
	ret = scnprintf(buf, size, "%s\n", target_cgroup_path);
	mutex_unlock(&demeter_lock);
	return ret;
}

struct candidate {
	struct mm_struct *mm;
	pid_t tgid;
	enum demeter_origin origin;
};

static bool wanted(struct task_struct *task, struct mm_struct *mm, u64 min_bytes,
		   enum demeter_origin *origin)
{
	if (in_target_cgroup(task)) {
		*origin = DEMETER_BY_CGROUP;
		return true;
	}
	*origin = DEMETER_BY_SIZE;
	return min_bytes && (u64)get_mm_counter(mm, MM_ANONPAGES) << PAGE_SHIFT >= min_bytes;
}

/**
 * demeter_targets_discover() - take on processes by cgroup and by size
 *
 * Cheap enough for every epoch: a few words of each process are read, and with
 * many processes it is done less often.
 */
void demeter_targets_discover(void)
{
	u64 min_bytes = READ_ONCE(demeter_params.auto_min_bytes);
	struct candidate found[DISCOVER_MAX];
	struct task_struct *task;
	u32 seen = 0, nr = 0, i, unused;

	lockdep_assert_held(&demeter_lock);
	if (!min_bytes && !target_cgroup)
		return;
	if (discover_wait) {
		discover_wait--;
		return;
	}
	rcu_read_lock();
	for_each_process(task) {
		struct mm_struct *mm;

		seen++;
		if (task->flags & PF_KTHREAD)
			continue;
		task_lock(task);
		mm = task->mm;
		if (mm && !demeter_targets_space_of(mm, &unused) &&
		    wanted(task, mm, min_bytes, &found[nr].origin)) {
			mmgrab(mm);
			found[nr].mm = mm;
			found[nr++].tgid = task_tgid_nr(task);
		}
		task_unlock(task);
		if (nr == DISCOVER_MAX)
			break;
	}
	rcu_read_unlock();
	discover_wait = nr == DISCOVER_MAX ? 0 : seen / DISCOVER_PROCESSES;
	for (i = 0; i < nr; i++) {
		if (target_add(found[i].mm, found[i].tgid, found[i].origin))
			pr_warn_ratelimited("process %d is not managed: no memory, or too many\n",
					    found[i].tgid);
		mmdrop(found[i].mm);
	}
}

static bool vma_is_managed(const struct vm_area_struct *vma)
{
	return !vma->vm_file && !vma->vm_ops &&
	       !(vma->vm_flags & (VM_HUGETLB | VM_IO | VM_PFNMAP | VM_MIXEDMAP | VM_EXEC));
}

/*
 * The two areas: heap from start_brk up, mmap area from mmap_base down. Each
 * is clipped to what anonymous mappings span, so that the first split does not
 * halve an empty address space. Code, data and stack lie outside.
 */
static void refresh_areas(struct demeter_target *target)
{
	u64 granule = READ_ONCE(demeter_params.granule_bytes);
	struct mm_struct *mm = target->mm;
	u64 heap_start, heap_end, start = 0, end = 0;
	struct vm_area_struct *vma;
	u32 epoch = target->ranges.epoch;

	if (target->seen_epoch && target->seen_brk == READ_ONCE(mm->brk) &&
	    target->seen_total_vm == READ_ONCE(mm->total_vm) &&
	    target->seen_map_count == READ_ONCE(mm->map_count) &&
	    epoch - target->seen_epoch < REFRESH_EPOCHS)
		return;
	/* Busy with page faults or mappings: the old areas do for another epoch. */
	if (!mmap_read_trylock(mm))
		return;
	target->seen_epoch = epoch;
	target->seen_brk = mm->brk;
	target->seen_total_vm = mm->total_vm;
	target->seen_map_count = mm->map_count;
	heap_start = round_down(mm->start_brk, granule);
	heap_end = mm->brk > mm->start_brk ? round_up(mm->brk, granule) : heap_start;
	{
		VMA_ITERATOR(vmi, mm, mm->brk);

		for_each_vma(vmi, vma) {
			if (vma->vm_start >= mm->mmap_base)
				break;
			if (vma->vm_start < mm->brk || !vma_is_managed(vma))
				continue;
			if (!end)
				start = vma->vm_start;
			end = vma->vm_end;
		}
	}
	mmap_read_unlock(mm);
	start = max(round_down(start, granule), heap_end);
	end = max(round_up(end, granule), start);
	/*
	 * Areas must not overlap on the way: shrink to nothing never hurts, as
	 * the two lie far apart in any layout Linux makes.
	 */
	if (demeter_ranges_set_area(&target->ranges, AREA_HEAP, heap_start, heap_end) ||
	    demeter_ranges_set_area(&target->ranges, AREA_MMAP, start, end))
		pr_warn_once("areas of process %d were not accepted\n", target->pid);
}

/**
 * demeter_targets_refresh() - forget who exited; follow parameters and layouts
 */
void demeter_targets_refresh(void)
{
	struct demeter_ranges_params params;
	struct demeter_target *target;
	u32 space = 0;

	lockdep_assert_held(&demeter_lock);
	ranges_params_now(&params);
	while ((target = demeter_target_next(&space))) {
		if (!mmget_not_zero(target->mm)) {
			target_remove(target);
			continue;
		}
		/* A new granule may not fit the old bounds: begin anew then. */
		if (memcmp(&params, &target->ranges.params, sizeof(params)) &&
		    demeter_ranges_set_params(&target->ranges, &params)) {
			demeter_ranges_init(&target->ranges, target->range, DEMETER_TARGET_RANGES,
					    &params);
			target->seen_epoch = 0;
		}
		refresh_areas(target);
		mmput(target->mm);
	}
}

/**
 * demeter_targets_exit() - forget all targets
 */
void demeter_targets_exit(void)
{
	struct demeter_target *target;
	u32 space = 0;

	mutex_lock(&demeter_lock);
	while ((target = demeter_target_next(&space)))
		target_remove(target);
	mutex_unlock(&demeter_lock);
	xa_destroy(&targets_by_space);
	cgroup_forget(target_cgroup);
	target_cgroup = NULL;
}
