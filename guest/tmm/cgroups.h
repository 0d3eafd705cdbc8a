/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Cgroups: whose processes are managed, and in which group; the groups' limits.
 *
 * A slot is a cgroup of the unified hierarchy. Slot 0 is that of targets/cgroup, whose
 * processes are in no group; the others are groups with a name, a floor and a cap. The
 * number of a slot is that of the group in core/.
 *
 * Slots are written under demeter_lock. Who is in which is asked under RCU.
 */
#ifndef DEMETER_CGROUPS_H
#define DEMETER_CGROUPS_H

#include <linux/types.h>

#include <demeter/groups.h>

struct demeter_context;
struct demeter_target;
struct kobject;
struct mm_struct;
struct task_struct;

#define DEMETER_NAMED_GROUPS	 32
#define DEMETER_SLOTS		 (DEMETER_NAMED_GROUPS + 1)
#define DEMETER_GROUP_NAME_BYTES 32

/**
 * struct demeter_group_limits - what a group is granted
 * @floor_bytes: FMEM that it is guaranteed
 * @cap_bytes: most FMEM that it may have, DEMETER_NO_CAP for any
 */
struct demeter_group_limits {
	u64 floor_bytes;
	u64 cap_bytes;
};

/**
 * struct demeter_group_usage - what a group has, at the last epoch
 * @fmem_pages: in FMEM
 * @smem_pages: in SMEM
 * @worth_pages: of both, what is worth holding in FMEM
 * @due_pages: what of the floor it is due
 * @processes: managed address spaces
 */
struct demeter_group_usage {
	u64 fmem_pages;
	u64 smem_pages;
	u64 worth_pages;
	u64 due_pages;
	u64 processes;
};

/**
 * struct demeter_group_shares - what an epoch knows of the groups; the worker's
 * @named: is there any group
 * @group: for the planner, by slot
 * @usage: by slot
 * @generation: of the slots that this was taken from
 */
struct demeter_group_shares {
	bool named;
	struct demeter_group group[DEMETER_SLOTS];
	struct demeter_group_usage usage[DEMETER_SLOTS];
	u32 generation;
};

/* Where a group's cgroup is. */
enum demeter_cgroup_state { DEMETER_CGROUP_NONE, DEMETER_CGROUP_PRESENT, DEMETER_CGROUP_GONE };

/* cgroups.c */
bool demeter_cgroups_any(void);
u32 demeter_cgroups_generation(void);
int demeter_cgroups_slot_of(struct mm_struct *mm, struct task_struct *task);
void demeter_cgroups_look_after(void);
int demeter_cgroups_set_path(u32 slot, const char *path);
ssize_t demeter_cgroups_path(u32 slot, char *buf, size_t size);
enum demeter_cgroup_state demeter_cgroups_state(u32 slot);
int demeter_cgroups_add(const char *name);
int demeter_cgroups_find(const char *name);
void demeter_cgroups_remove(u32 slot);
struct demeter_group_limits demeter_cgroups_limits(u32 slot);
int demeter_cgroups_set_limits(u32 slot, const u64 *floor_bytes, const u64 *cap_bytes);
struct demeter_group_usage demeter_cgroups_usage(u32 slot);
void demeter_cgroups_begin(struct demeter_group_shares *shares);
void demeter_cgroups_count(struct demeter_group_shares *shares,
			   const struct demeter_target *target);
void demeter_cgroups_end(struct demeter_group_shares *shares);
void demeter_cgroups_exit(void);

/* cgroups_sysfs.c */
ssize_t demeter_cgroups_path_store(u32 slot, const char *buf, size_t count);
int demeter_cgroups_sysfs_init(struct kobject *parent);
void demeter_cgroups_sysfs_exit(void);

#endif /* DEMETER_CGROUPS_H */
