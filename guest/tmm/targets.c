// SPDX-License-Identifier: GPL-2.0-only
/*
 * Targets: the managed address spaces.
 *
 * A target holds mm_count of its address space (the structure, so that its
 * address is not reused) and never mm_users for longer than one stage of an
 * epoch, so that a process exits when it wants to. The worker notices and
 * forgets it.
 *
 * Writers hold demeter_lock, for as long as it takes to link or unlink a target.
 * Whoever walks the targets does so under demeter_targets_read_lock(), and one
 * that was found stays until that is unlocked, removed or not. The drain looks a
 * target up by mm under RCU and reads nothing of it but @mm and @space.
 */
#define pr_fmt(fmt) "demeter: " fmt

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
/* Ranges that a target begins with, and that it may have however small it is. */
#define FIRST_RANGES	   64
#define LEAST_RANGES	   256
/* Ranges of one target at most, and of all, shared by size. */
#define MOST_RANGES	   16384
#define ALL_RANGES	   32768

static DEFINE_HASHTABLE(targets_by_mm, 7);
static DEFINE_XARRAY_ALLOC1(targets_by_space);
DEFINE_STATIC_SRCU(targets_srcu);
static u32 next_space;
static u32 nr_targets;

/* The worker's: epochs to wait, unless cgroups are of another generation. */
static u32 discover_wait;
static u32 discover_generation;

/**
 * demeter_targets_read_lock() - keep targets from being freed
 *
 * Sleeping is fine, and nobody waits for it.
 *
 * Return: for demeter_targets_read_unlock().
 */
int demeter_targets_read_lock(void)
{
	int index = srcu_read_lock(&targets_srcu);

	__release(&targets_srcu); /* For sparse: the caller has it. */
	return index;
}

/**
 * demeter_targets_read_unlock() - use no target any more
 * @index: as returned when it was locked
 */
void demeter_targets_read_unlock(int index)
{
	__acquire(&targets_srcu); /* For sparse: the caller had it. */
	srcu_read_unlock(&targets_srcu, index);
}

/**
 * demeter_registry_lock() - take demeter_lock, and note for how long
 *
 * Return: for demeter_registry_unlock().
 */
u64 demeter_registry_lock(void)
{
	mutex_lock(&demeter_lock);
	return demeter_worker_clock();
}

/**
 * demeter_registry_unlock() - give it back
 * @since_ns: as returned when it was locked
 */
void demeter_registry_unlock(u64 since_ns)
{
	u64 held_ns = demeter_worker_clock() - since_ns;

	mutex_unlock(&demeter_lock);
	demeter_stats_max(&demeter_stats.lock_held_max_ns, held_ns);
}

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
 * Return: the target, valid until demeter_targets_read_unlock() or under
 * demeter_lock, or NULL when it is gone.
 */
struct demeter_target *demeter_target_of(u32 space)
{
	return xa_load(&targets_by_space, space);
}

/**
 * demeter_target_next() - walk the targets
 * @space: where to go on from, 0 to begin; set to the number of the one returned
 *
 * Return: the next target, valid as from demeter_target_of(), or NULL.
 */
struct demeter_target *demeter_target_next(u32 *space)
{
	unsigned long index = *space + 1ul;
	struct demeter_target *target;

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

/**
 * demeter_targets_hold() - the managed address spaces
 * @mm: out: each with mm_count held
 * @capacity: its length
 *
 * Takes demeter_lock.
 *
 * Return: their number.
 */
u32 demeter_targets_hold(struct mm_struct **mm, u32 capacity)
{
	struct demeter_target *target;
	u32 space = 0, nr = 0;

	mutex_lock(&demeter_lock);
	while (nr < capacity && (target = demeter_target_next(&space))) {
		mmgrab(target->mm);
		mm[nr++] = target->mm;
	}
	mutex_unlock(&demeter_lock);
	return nr;
}

static void ranges_params_now(struct demeter_ranges_params *params)
{
	*params = (struct demeter_ranges_params){
		.split_samples = READ_ONCE(demeter_params.split_samples),
		.significance = READ_ONCE(demeter_params.significance),
		.vcpus = 1, /* samples speak for themselves: <demeter/ranges.h> */
		.merge_epochs = READ_ONCE(demeter_params.merge_epochs),
		.granule_bytes = READ_ONCE(demeter_params.granule_bytes),
	};
}

static void target_free(struct demeter_target *target)
{
	demeter_recount_forget(target);
	kvfree(target->ranges.range);
	kvfree(target->count);
	kvfree(target->spare);
	/* The drain may still compare its mm. */
	kfree_rcu(target, rcu);
}

static void target_free_srcu(struct rcu_head *head)
{
	struct demeter_target *target = container_of(head, struct demeter_target, rcu);

	mmdrop(target->mm);
	target_free(target);
}

static struct demeter_target *target_alloc(struct mm_struct *mm, pid_t pid,
					   enum demeter_origin origin, u32 group)
{
	struct demeter_target *target = kzalloc(sizeof(*target), GFP_KERNEL);
	struct demeter_ranges_params params;
	struct demeter_range *range;

	if (!target)
		return NULL;
	range = kvcalloc(FIRST_RANGES, sizeof(*range), GFP_KERNEL);
	ranges_params_now(&params);
	if (!range || demeter_ranges_init(&target->ranges, range, FIRST_RANGES, &params)) {
		kvfree(range);
		kfree(target);
		return NULL;
	}
	mutex_init(&target->lock);
	target->mm = mm;
	target->pid = pid;
	target->origin = origin;
	target->group = group;
	demeter_recount_forget(target);
	return target;
}

static int target_link(struct demeter_target *target)
{
	u32 unused;
	int ret;

	lockdep_assert_held(&demeter_lock);
	if (demeter_targets_space_of(target->mm, &unused))
		return -EEXIST;
	if (nr_targets >= DEMETER_MAX_TARGETS)
		return -ENOSPC;
	ret = xa_alloc_cyclic(&targets_by_space, &target->space, target, xa_limit_32b, &next_space,
			      GFP_KERNEL);
	if (ret < 0)
		return ret;
	mmgrab(target->mm);
	hash_add_rcu(targets_by_mm, &target->node, (unsigned long)target->mm);
	WRITE_ONCE(nr_targets, nr_targets + 1);
	demeter_ledger_add(target->space, target->pid, target->origin);
	trace_demeter_target(true, target->space, target->pid, target->origin);
	return 0;
}

/* @generation: of the cgroups when @group was found. */
static int target_add(struct mm_struct *mm, pid_t pid, enum demeter_origin origin, u32 group,
		      u32 generation)
{
	struct demeter_target *target = target_alloc(mm, pid, origin, group);
	u64 since_ns;
	int ret;

	if (!target)
		return -ENOMEM;
	since_ns = demeter_registry_lock();
	/* Cgroups were changed meanwhile: the next look finds it, if it is still wanted. */
	ret = generation == demeter_cgroups_generation() ? target_link(target) : -EAGAIN;
	demeter_registry_unlock(since_ns);
	if (ret)
		target_free(target);
	return ret == -EEXIST ? 0 : ret;
}

static void target_remove(struct demeter_target *target)
{
	lockdep_assert_held(&demeter_lock);
	trace_demeter_target(false, target->space, target->pid, target->origin);
	hash_del_rcu(&target->node);
	xa_erase(&targets_by_space, target->space);
	WRITE_ONCE(nr_targets, nr_targets - 1);
	demeter_ledger_forget(target->space);
	demeter_shared_forget(target);
	call_srcu(&targets_srcu, &target->rcu, target_free_srcu);
}

static void targets_forget_dead(void)
{
	struct demeter_target *target;
	u64 since_ns = demeter_registry_lock();
	u32 space = 0;

	while ((target = demeter_target_next(&space))) {
		if (!atomic_read(&target->mm->mm_users))
			target_remove(target);
	}
	demeter_registry_unlock(since_ns);
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
	targets_forget_dead();
	/* The worker finds its group. */
	do {
		ret = target_add(mm, tgid, DEMETER_BY_PID, 0, demeter_cgroups_generation());
	} while (ret == -EAGAIN);
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
	u64 since_ns;
	pid_t tgid;
	u32 space;
	int ret = -ENOENT;

	mm = mm_of_pid(pid, &tgid);
	if (!mm)
		return -ESRCH;
	since_ns = demeter_registry_lock();
	if (demeter_targets_space_of(mm, &space)) {
		target_remove(demeter_target_of(space));
		ret = 0;
	}
	demeter_registry_unlock(since_ns);
	mmput(mm);
	return ret;
}

/**
 * demeter_targets_regroup() - follow processes from cgroup to cgroup
 *
 * Those that came with a cgroup and are in none that is managed are given up.
 */
void demeter_targets_regroup(void)
{
	struct demeter_target *target;
	u32 space = 0;

	lockdep_assert_held(&demeter_lock);
	while ((target = demeter_target_next(&space))) {
		int slot;

		rcu_read_lock();
		slot = demeter_cgroups_slot_of(target->mm, NULL);
		rcu_read_unlock();
		if (slot == -ENOENT && target->origin == DEMETER_BY_CGROUP)
			target_remove(target);
		else if (slot != -ESRCH)
			WRITE_ONCE(target->group, max(slot, 0));
	}
}

/**
 * struct candidate - a process to take on
 * @mm: its address space; holds mm_count
 * @tgid: thread group
 * @origin: why
 * @group: slot of its group
 * @pages: how large it is: anonymous and shared memory that it has mapped in
 */
struct candidate {
	struct mm_struct *mm;
	pid_t tgid;
	enum demeter_origin origin;
	u32 group;
	u64 pages;
};

/*
 * Shared memory counts for each process that has mapped it in: nearly all that a database
 * has lies there, and all that use much of it are wanted, as samples of others would find no
 * ranges. It lies in the ranges of one of them (shared_objects.c).
 */
static bool wanted(struct task_struct *task, u64 min_bytes, struct candidate *candidate)
{
	int slot = demeter_cgroups_any() ? demeter_cgroups_slot_of(candidate->mm, task) : -ENOENT;

	candidate->pages = get_mm_counter(candidate->mm, MM_ANONPAGES) +
			   get_mm_counter(candidate->mm, MM_SHMEMPAGES);
	if (slot >= 0) {
		candidate->group = slot;
		candidate->origin = DEMETER_BY_CGROUP;
		return true;
	}
	candidate->origin = DEMETER_BY_SIZE;
	return min_bytes && candidate->pages << PAGE_SHIFT >= min_bytes;
}

/* Keep the @max largest of all, largest first; of equals, those found first. */
static u32 candidates_insert(struct candidate *found, u32 nr, u32 max,
			     const struct candidate *candidate)
{
	u32 at = nr;

	while (at && found[at - 1].pages < candidate->pages)
		at--;
	if (at == max)
		return nr;
	if (nr == max)
		mmdrop(found[--nr].mm);
	memmove(&found[at + 1], &found[at], (nr - at) * sizeof(*found));
	found[at] = *candidate;
	mmgrab(candidate->mm);
	return nr + 1;
}

/* The largest processes that are wanted and not managed. Returns how many. */
static u32 candidates_find(struct candidate *found, u32 max, u64 min_bytes)
{
	struct task_struct *leader, *task;
	u32 seen = 0, nr = 0, unused;

	rcu_read_lock();
	for_each_process(leader) {
		struct candidate candidate = {};

		seen++;
		if (leader->flags & PF_KTHREAD)
			continue;
		/* The first thread may have ended, and its memory gone on. */
		for_each_thread(leader, task) {
			task_lock(task);
			candidate.mm = task->mm;
			candidate.tgid = task_tgid_nr(task);
			if (candidate.mm && !demeter_targets_space_of(candidate.mm, &unused) &&
			    wanted(task, min_bytes, &candidate))
				nr = candidates_insert(found, nr, max, &candidate);
			task_unlock(task);
			if (candidate.mm)
				break;
		}
	}
	rcu_read_unlock();
	discover_wait = nr == max ? 0 : seen / DISCOVER_PROCESSES;
	return nr;
}

/**
 * demeter_targets_discover() - take on processes by cgroup and by size
 *
 * The largest first. Cheap enough for every epoch: a few words of each process are
 * read, with many processes it is done less often, and with as many targets as
 * there can be not at all.
 */
void demeter_targets_discover(void)
{
	u64 min_bytes = READ_ONCE(demeter_params.auto_min_bytes);
	struct candidate found[DISCOVER_MAX];
	u32 room = DEMETER_MAX_TARGETS - min_t(u32, demeter_targets_nr(), DEMETER_MAX_TARGETS);
	u32 generation, nr, i;
	u64 since_ns;

	if (demeter_cgroups_any()) {
		demeter_cgroups_look_after();
		since_ns = demeter_registry_lock();
		demeter_targets_regroup();
		demeter_registry_unlock(since_ns);
	} else if (!min_bytes) {
		return;
	}
	generation = demeter_cgroups_generation();
	if (discover_wait && generation == discover_generation) {
		discover_wait--;
		return;
	}
	discover_generation = generation;
	if (!room) {
		pr_warn_once("no more than %u processes are managed; next: raise auto_min_bytes\n",
			     DEMETER_MAX_TARGETS);
		return;
	}
	nr = candidates_find(found, min_t(u32, room, DISCOVER_MAX), min_bytes);
	for (i = 0; i < nr; i++) {
		int ret = target_add(found[i].mm, found[i].tgid, found[i].origin, found[i].group,
				     generation);

		if (ret && ret != -EAGAIN)
			pr_warn_ratelimited("process %d is not managed (%d); next: free memory\n",
					    found[i].tgid, ret);
		mmdrop(found[i].mm);
	}
}

/* New parameters. A new granule may not fit the old bounds: begin anew then. */
static void refresh_params(struct demeter_target *target,
			   const struct demeter_ranges_params *params)
{
	struct demeter_ranges *rs = &target->ranges;
	u64 since_ns;

	if (!memcmp(params, &rs->params, sizeof(*params)))
		return;
	if (demeter_ranges_set_params(rs, params)) {
		demeter_ranges_init(rs, rs->range, rs->capacity, params);
		target->seen_epoch = 0;
		target->samples_seen = 0;
		target->denied_seen = 0;
		/* Epochs begin anew: none of those published means anything any more. */
		since_ns = demeter_target_lock(target);
		target->nr_counts = 0;
		demeter_target_unlock(target, since_ns);
	}
	if (demeter_resident_cell_shift(params->granule_bytes) != target->resident->cell_shift)
		demeter_recount_forget(target);
}

/* What walks have counted. */
static u64 counted_pages(const struct demeter_target *target)
{
	u64 pages = 0;
	u32 column, tier, i;

	for (column = 0; column < demeter_tiers.columns; column++)
		for (i = 0; i < target->resident[column].nr; i++)
			for (tier = 0; tier < DEMETER_TIERS; tier++)
				pages += target->resident[column].leaf[i]->sum[tier];
	return pages;
}

/*
 * Resident pages that lie in the ranges of @target. The kernel counts shared memory for
 * each process that maps it: a pool would count a hundred times, its owner would get a
 * hundredth of the ranges, and whoever connects or exits would look like a great change. So
 * where a part is left to others it is what walks have counted, which is an epoch old.
 */
static u64 own_pages(const struct demeter_target *target)
{
	return demeter_shared_any_elsewhere(target) ? counted_pages(target)
						    : target->resident_pages;
}

/* Room for all splits of the next epoch, as far as the target's share goes. */
static void refresh_room(struct demeter_target *target, u64 all_pages)
{
	u64 share = mul_u64_u64_div_u64(ALL_RANGES, target->own_pages, max(all_pages, 1ull));
	u32 most = clamp_t(u64, share, LEAST_RANGES, MOST_RANGES);
	u32 capacity = demeter_ranges_room_wanted(&target->ranges, most);
	struct demeter_range *range;

	if (capacity == target->ranges.capacity)
		return;
	range = kvcalloc(capacity, sizeof(*range), GFP_KERNEL | __GFP_NOWARN);
	kvfree(demeter_ranges_grow(&target->ranges, range, capacity));
}

/**
 * demeter_targets_refresh() - forget who exited; follow parameters and layouts
 *
 * For the worker.
 */
void demeter_targets_refresh(void)
{
	struct demeter_ranges_params params;
	struct demeter_target *target;
	u64 all_pages = 0;
	u32 space = 0;

	ranges_params_now(&params);
	while ((target = demeter_target_next(&space))) {
		if (!mmget_not_zero(target->mm)) {
			targets_forget_dead();
			continue;
		}
		target->resident_pages = get_mm_rss(target->mm);
		refresh_params(target, &params);
		demeter_target_refresh_areas(target);
		mmput_async(target->mm);
		target->own_pages = own_pages(target);
		all_pages += target->own_pages;
	}
	space = 0;
	while ((target = demeter_target_next(&space)))
		refresh_room(target, all_pages);
}

/**
 * demeter_targets_exit() - forget all targets
 */
void demeter_targets_exit(void)
{
	struct demeter_target *target;
	u64 since_ns = demeter_registry_lock();
	u32 space = 0;

	while ((target = demeter_target_next(&space)))
		target_remove(target);
	demeter_registry_unlock(since_ns);
	srcu_barrier(&targets_srcu);
	xa_destroy(&targets_by_space);
}
