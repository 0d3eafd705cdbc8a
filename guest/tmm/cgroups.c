// SPDX-License-Identifier: GPL-2.0-only
/*
 * Cgroups, see cgroups.h.
 *
 * The cgroup of an address space is that of its owner, whoever of its tasks is seen,
 * and it is asked for anew each epoch: processes are moved without a word to us. Who
 * is found in a cgroup just before another is chosen is not taken on: what was found
 * has a generation.
 *
 * A cgroup that is removed takes its processes along, but a service that is started
 * again has one of the same path. So a slot keeps its path, and takes up what comes
 * to be there.
 */
#define pr_fmt(fmt) "demeter: " fmt

#include <linux/cgroup.h>
#include <linux/ctype.h>
#include <linux/mm.h>
#include <linux/mmzone.h>
#include <linux/nodemask.h>
#include <linux/overflow.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "cgroups.h"
#include "tmm.h"

#define PATH_BYTES 256

/**
 * struct slot - a cgroup whose processes are managed
 * @name: of the group; empty while there is none. Slot 0 has none
 * @path: of the cgroup, from the root of the hierarchy; empty for none
 * @cgroup: what is there; NULL for none. Holds a reference
 * @limits: of the group
 * @usage: of the group, from the worker
 */
struct slot {
	char name[DEMETER_GROUP_NAME_BYTES];
	char path[PATH_BYTES];
	struct cgroup __rcu *cgroup;
	struct demeter_group_limits limits;
	struct demeter_group_usage usage;
};

/* Written under demeter_lock; @cgroup is read under RCU, too. */
static struct slot slots[DEMETER_SLOTS];
/* Slots with a path, and changes of any; written under demeter_lock. */
static u32 nr_paths;
static u32 generation;

/**
 * demeter_cgroups_any() - is any cgroup managed
 *
 * Return: whether there may be processes of one.
 */
bool demeter_cgroups_any(void)
{
	return READ_ONCE(nr_paths);
}

/**
 * demeter_cgroups_generation() - has any slot been changed
 *
 * Return: a number that is another one after each change.
 */
u32 demeter_cgroups_generation(void)
{
	return READ_ONCE(generation);
}

#ifdef CONFIG_CGROUPS
static bool is_online(const struct cgroup *cgroup)
{
	return READ_ONCE(cgroup->self.flags) & CSS_ONLINE;
}

static struct cgroup *look_up(const char *path)
{
	return cgroup_get_from_path(path);
}

static int full_path(struct cgroup *cgroup, char *path)
{
	int length = cgroup_path(cgroup, path, PATH_BYTES);

	return length < 0 || length >= PATH_BYTES ? -ENAMETOOLONG : 0;
}

static void forget(struct cgroup *cgroup)
{
	if (cgroup)
		cgroup_put(cgroup);
}

/* Whose cgroup counts: without its owner being known, that of the one that was found. */
static struct task_struct *owner_of(struct mm_struct *mm, struct task_struct *task)
{
#ifdef CONFIG_MEMCG
	return rcu_dereference(mm->owner) ?: task;
#else
	return task;
#endif
}

/**
 * demeter_cgroups_slot_of() - the slot of an address space
 * @mm: the address space
 * @task: one of its tasks, or NULL
 *
 * The innermost of the groups' cgroups that it is in, else slot 0 if it is in that
 * one. Call under RCU.
 *
 * Return: the slot, -ENOENT when it is in none, or -ESRCH when it cannot be told.
 */
int demeter_cgroups_slot_of(struct mm_struct *mm, struct task_struct *task)
{
	struct cgroup *cgroup, *innermost = NULL;
	int slot, found = -ENOENT;

	task = owner_of(mm, task);
	if (!task)
		return -ESRCH;
	for (slot = 1; slot < DEMETER_SLOTS; slot++) {
		cgroup = rcu_dereference(slots[slot].cgroup);
		if (!cgroup || (innermost && cgroup->level <= innermost->level) ||
		    !task_under_cgroup_hierarchy(task, cgroup))
			continue;
		innermost = cgroup;
		found = slot;
	}
	if (innermost)
		return found;
	cgroup = rcu_dereference(slots[0].cgroup);
	return cgroup && task_under_cgroup_hierarchy(task, cgroup) ? 0 : -ENOENT;
}
#else
static bool is_online(const struct cgroup *cgroup)
{
	return false;
}

static struct cgroup *look_up(const char *path)
{
	return ERR_PTR(-EOPNOTSUPP);
}

static int full_path(struct cgroup *cgroup, char *path)
{
	return -EOPNOTSUPP;
}

static void forget(struct cgroup *cgroup)
{
}

int demeter_cgroups_slot_of(struct mm_struct *mm, struct task_struct *task)
{
	return -ENOENT;
}
#endif

static struct cgroup *cgroup_locked(u32 slot)
{
	return rcu_dereference_protected(slots[slot].cgroup, lockdep_is_held(&demeter_lock));
}

/* Put @cgroup into a slot. Returns what was there. */
static struct cgroup *exchange(u32 slot, struct cgroup *cgroup)
{
	struct cgroup *old = cgroup_locked(slot);

	rcu_assign_pointer(slots[slot].cgroup, cgroup);
	WRITE_ONCE(generation, generation + 1);
	return old;
}

/* The group that has this cgroup, 0 for none. */
static u32 slot_with(const struct cgroup *cgroup)
{
	u32 slot;

	for (slot = 1; slot < DEMETER_SLOTS; slot++)
		if (cgroup_locked(slot) == cgroup)
			return slot;
	return 0;
}

static bool is_lost(u32 slot)
{
	struct cgroup *cgroup = cgroup_locked(slot);

	return *slots[slot].path && (!cgroup || !is_online(cgroup));
}

/* Take up what is at the path of a slot now, if anything is and no group has it. */
static void renew(u32 slot)
{
	static char path[PATH_BYTES]; /* The worker's. */
	struct cgroup *cgroup;
	u64 since_ns;

	since_ns = demeter_registry_lock();
	strscpy(path, slots[slot].path, sizeof(path));
	demeter_registry_unlock(since_ns);
	cgroup = look_up(path);
	if (IS_ERR(cgroup))
		cgroup = NULL;
	since_ns = demeter_registry_lock();
	if (is_lost(slot) && !strcmp(path, slots[slot].path) && cgroup != cgroup_locked(slot) &&
	    !(cgroup && slot && slot_with(cgroup)))
		cgroup = exchange(slot, cgroup);
	demeter_registry_unlock(since_ns);
	forget(cgroup);
}

/**
 * demeter_cgroups_look_after() - follow cgroups that come and go
 *
 * For the worker.
 */
void demeter_cgroups_look_after(void)
{
	DECLARE_BITMAP(lost, DEMETER_SLOTS) = {};
	u64 since_ns = demeter_registry_lock();
	u32 slot;

	for (slot = 0; slot < DEMETER_SLOTS; slot++)
		if (is_lost(slot))
			__set_bit(slot, lost);
	demeter_registry_unlock(since_ns);
	for (slot = 0; slot < DEMETER_SLOTS; slot++)
		if (test_bit(slot, lost))
			renew(slot);
}

static const char *what(u32 slot)
{
	return slot ? slots[slot].name : "targets";
}

/* Put @cgroup, whose reference is handed over, and its path into a slot. */
static int put(u32 slot, struct cgroup *cgroup, const char *path)
{
	u64 since_ns = demeter_registry_lock();
	u32 other = slot && cgroup ? slot_with(cgroup) : 0;
	int ret = 0;

	if (other && other != slot) {
		pr_err("%s: the cgroup %s is that of the group %s; next: remove that one first\n",
		       what(slot), path, what(other));
		ret = -EEXIST;
	} else {
		WRITE_ONCE(nr_paths, nr_paths - !!*slots[slot].path + !!*path);
		strscpy(slots[slot].path, path, sizeof(slots[slot].path));
		slots[slot].usage = (struct demeter_group_usage){};
		cgroup = exchange(slot, cgroup);
		demeter_targets_regroup();
	}
	demeter_registry_unlock(since_ns);
	forget(cgroup);
	return ret;
}

/**
 * demeter_cgroups_set_path() - choose the cgroup of a slot
 * @slot: the slot
 * @path: from the root of the unified hierarchy, "" for none
 *
 * Targets that are in no managed cgroup any more are given up.
 *
 * Return: 0 or a negative errno, with the cause in the kernel log.
 */
int demeter_cgroups_set_path(u32 slot, const char *path)
{
	struct cgroup *cgroup;
	char *full;
	int ret;

	if (!*path)
		return put(slot, NULL, "");
	cgroup = look_up(path);
	if (IS_ERR(cgroup)) {
		pr_err("%s: there is no cgroup \"%s\" in the unified hierarchy (%ld); next: make it, or give its path from the root, such as /system.slice\n",
		       what(slot), path, PTR_ERR(cgroup));
		return PTR_ERR(cgroup);
	}
	full = kmalloc(PATH_BYTES, GFP_KERNEL);
	ret = full ? full_path(cgroup, full) : -ENOMEM;
	if (ret)
		forget(cgroup);
	else
		ret = put(slot, cgroup, full);
	kfree(full);
	return ret;
}

/**
 * demeter_cgroups_path() - the cgroup of a slot
 * @slot: the slot
 * @buf: where to print it, with a newline
 * @size: of @buf
 *
 * Return: characters printed.
 */
ssize_t demeter_cgroups_path(u32 slot, char *buf, size_t size)
{
	u64 since_ns = demeter_registry_lock();
	ssize_t ret;

	ret = scnprintf(buf, size, "%s\n", slots[slot].path);
	demeter_registry_unlock(since_ns);
	return ret;
}

/**
 * demeter_cgroups_state() - where the cgroup of a slot is
 * @slot: the slot
 *
 * Return: whether there is one.
 */
enum demeter_cgroup_state demeter_cgroups_state(u32 slot)
{
	enum demeter_cgroup_state state = DEMETER_CGROUP_PRESENT;
	u64 since_ns = demeter_registry_lock();

	if (!*slots[slot].path)
		state = DEMETER_CGROUP_NONE;
	else if (is_lost(slot))
		state = DEMETER_CGROUP_GONE;
	demeter_registry_unlock(since_ns);
	return state;
}

static bool name_is_well(const char *name)
{
	size_t length = strlen(name), i;

	if (!length || length >= DEMETER_GROUP_NAME_BYTES || !isalnum(*name))
		return false;
	for (i = 0; i < length; i++)
		if (!isalnum(name[i]) && !strchr("._-", name[i]))
			return false;
	/* Files of the same directory. */
	return strcmp(name, "add") && strcmp(name, "remove");
}

/**
 * demeter_cgroups_add() - make a group, of nothing yet
 * @name: its name
 *
 * Return: its slot, or a negative errno with the cause in the kernel log.
 */
int demeter_cgroups_add(const char *name)
{
	u64 since_ns;
	u32 slot;
	int ret;

	if (!name_is_well(name)) {
		pr_err("\"%s\" cannot be the name of a group; next: use up to %d letters, digits, '.', '_' and '-', a letter or digit first, and neither \"add\" nor \"remove\"\n",
		       name, DEMETER_GROUP_NAME_BYTES - 1);
		return -EINVAL;
	}
	if (demeter_cgroups_find(name) >= 0) {
		pr_err("there is a group %s; next: use it, or remove it first\n", name);
		return -EEXIST;
	}
	since_ns = demeter_registry_lock();
	for (slot = 1; slot < DEMETER_SLOTS && *slots[slot].name; slot++)
		;
	ret = slot < DEMETER_SLOTS ? slot : -ENOSPC;
	if (ret > 0) {
		slots[slot].limits = (struct demeter_group_limits){ .cap_bytes = DEMETER_NO_CAP };
		slots[slot].usage = (struct demeter_group_usage){};
		strscpy(slots[slot].name, name, sizeof(slots[slot].name));
		WRITE_ONCE(generation, generation + 1);
	}
	demeter_registry_unlock(since_ns);
	if (ret < 0)
		pr_err("no more than %d groups can be had; next: remove one\n",
		       DEMETER_NAMED_GROUPS);
	return ret;
}

/**
 * demeter_cgroups_find() - find a group
 * @name: its name
 *
 * Return: its slot, or -ENOENT.
 */
int demeter_cgroups_find(const char *name)
{
	u64 since_ns = demeter_registry_lock();
	int ret = -ENOENT;
	u32 slot;

	for (slot = 1; slot < DEMETER_SLOTS && ret < 0; slot++)
		if (!strcmp(slots[slot].name, name))
			ret = slot;
	demeter_registry_unlock(since_ns);
	return ret;
}

/**
 * demeter_cgroups_remove() - give up a group, its limits and its processes
 * @slot: its slot
 */
void demeter_cgroups_remove(u32 slot)
{
	u64 since_ns;

	demeter_cgroups_set_path(slot, "");
	since_ns = demeter_registry_lock();
	*slots[slot].name = '\0';
	demeter_registry_unlock(since_ns);
}

/**
 * demeter_cgroups_limits() - the limits of a group
 * @slot: its slot
 *
 * Return: as they were set.
 */
struct demeter_group_limits demeter_cgroups_limits(u32 slot)
{
	struct demeter_group_limits limits;
	u64 since_ns = demeter_registry_lock();

	limits = slots[slot].limits;
	demeter_registry_unlock(since_ns);
	return limits;
}

/* All floors, if that of @slot were @floor_bytes. */
static u64 floors_with(u32 slot, u64 floor_bytes)
{
	u64 sum = floor_bytes;
	u32 i;

	for (i = 1; i < DEMETER_SLOTS; i++)
		if (i != slot && *slots[i].name &&
		    check_add_overflow(sum, slots[i].limits.floor_bytes, &sum))
			return U64_MAX;
	return sum;
}

static int limits_check(u32 slot, const struct demeter_group_limits *limits, u64 all)
{
	u64 sum = floors_with(slot, limits->floor_bytes);

	if (limits->floor_bytes > limits->cap_bytes) {
		pr_err("%s: a floor of %llu bytes is above the cap of %llu; next: raise cap_bytes or lower floor_bytes first\n",
		       what(slot), limits->floor_bytes, limits->cap_bytes);
		return -EINVAL;
	}
	/* To lower one is always allowed: FMEM may have become less since. */
	if (sum > all && limits->floor_bytes > slots[slot].limits.floor_bytes) {
		pr_err("%s: with a floor of %llu bytes all floors come to %llu, and FMEM has %llu; next: lower other floors first\n",
		       what(slot), limits->floor_bytes, sum, all);
		return -ENOSPC;
	}
	return 0;
}

/**
 * demeter_cgroups_set_limits() - set the limits of a group
 * @slot: its slot
 * @floor_bytes: FMEM that it is guaranteed, or NULL: as it is
 * @cap_bytes: most FMEM that it may have, or NULL: as it is
 *
 * Return: 0; -EINVAL for a floor above the cap; -ENOSPC when all floors come to more
 * than there is FMEM. The kernel log says so.
 */
int demeter_cgroups_set_limits(u32 slot, const u64 *floor_bytes, const u64 *cap_bytes)
{
	struct demeter_group_limits limits;
	u64 since_ns, all;
	int ret;

	mutex_lock(&demeter_control_lock); /* For the nodes that were chosen. */
	all = demeter_tiers_fmem_pages() << PAGE_SHIFT;
	mutex_unlock(&demeter_control_lock);
	since_ns = demeter_registry_lock();
	limits = slots[slot].limits;
	if (floor_bytes)
		limits.floor_bytes = *floor_bytes;
	if (cap_bytes)
		limits.cap_bytes = *cap_bytes;
	ret = limits_check(slot, &limits, all);
	if (!ret)
		slots[slot].limits = limits;
	demeter_registry_unlock(since_ns);
	return ret;
}

/**
 * demeter_cgroups_usage() - what a group has
 * @slot: its slot
 *
 * Return: numbers of the last epoch.
 */
struct demeter_group_usage demeter_cgroups_usage(u32 slot)
{
	struct demeter_group_usage usage;
	u64 since_ns = demeter_registry_lock();

	usage = slots[slot].usage;
	demeter_registry_unlock(since_ns);
	return usage;
}

/**
 * demeter_cgroups_begin() - the groups as this epoch will see them
 * @shares: out
 *
 * For the worker.
 */
void demeter_cgroups_begin(struct demeter_group_shares *shares)
{
	u64 since_ns = demeter_registry_lock();
	u32 slot;

	memset(shares, 0, sizeof(*shares));
	shares->generation = generation;
	shares->group[0].cap_pages = DEMETER_NO_CAP;
	for (slot = 1; slot < DEMETER_SLOTS; slot++) {
		const struct slot *from = &slots[slot];
		struct demeter_group *to = &shares->group[slot];

		to->cap_pages = DEMETER_NO_CAP;
		if (!*from->name)
			continue;
		shares->named = true;
		to->floor_pages = from->limits.floor_bytes >> PAGE_SHIFT;
		if (from->limits.cap_bytes != DEMETER_NO_CAP)
			to->cap_pages = from->limits.cap_bytes >> PAGE_SHIFT;
	}
	demeter_registry_unlock(since_ns);
}

/**
 * demeter_cgroups_count() - count what a target has for its group
 * @shares: as begun
 * @target: the target
 *
 * For the worker. What cannot be moved, or not now, counts as well.
 */
void demeter_cgroups_count(struct demeter_group_shares *shares, const struct demeter_target *target)
{
	u32 slot = READ_ONCE(target->group), column, i;
	struct demeter_group_usage *usage = &shares->usage[slot];

	usage->processes++;
	for (column = 0; column < demeter_tiers.columns; column++) {
		const struct demeter_resident *resident = &target->resident[column];

		for (i = 0; i < resident->nr; i++) {
			usage->fmem_pages += resident->leaf[i]->sum[DEMETER_FMEM];
			usage->smem_pages += resident->leaf[i]->sum[DEMETER_SMEM];
		}
	}
	shares->group[slot].fmem_pages = usage->fmem_pages;
}

/**
 * demeter_cgroups_end() - the plan is made: show what it was made with
 * @shares: as planned with
 *
 * For the worker.
 */
void demeter_cgroups_end(struct demeter_group_shares *shares)
{
	u64 since_ns = demeter_registry_lock();
	u32 slot;

	/* A slot that was given to another group meanwhile has nothing of it. */
	for (slot = 1; slot < DEMETER_SLOTS && shares->generation == generation; slot++) {
		shares->usage[slot].worth_pages = shares->group[slot].worth_pages;
		shares->usage[slot].due_pages = shares->group[slot].due_pages;
		slots[slot].usage = shares->usage[slot];
	}
	demeter_registry_unlock(since_ns);
}

/**
 * demeter_cgroups_exit() - forget all groups; no targets are left, and no files
 */
void demeter_cgroups_exit(void)
{
	u32 slot;

	for (slot = 0; slot < DEMETER_SLOTS; slot++)
		demeter_cgroups_remove(slot);
}
