// SPDX-License-Identifier: GPL-2.0-only
/*
 * Groups in sysfs: groups/add, groups/remove, and a directory for each group.
 *
 * What is written is described in docs/abi/sysfs-kernel-mm-demeter.
 */
#define pr_fmt(fmt) "demeter: " fmt

#include <linux/kobject.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/sysfs.h>

#include "cgroups.h"
#include "tmm.h"

/*
 * Protects the directories. Taken before demeter_lock, and by none of the files in
 * them: removing one waits for whoever uses its files.
 */
static DEFINE_MUTEX(dirs_lock);
static struct kobject *groups_dir;
static struct kobject *dirs[DEMETER_SLOTS];

/* The slot of a group's directory; that of a file in use does not change. */
static u32 slot_of(const struct kobject *dir)
{
	u32 slot;

	for (slot = DEMETER_SLOTS - 1; slot && READ_ONCE(dirs[slot]) != dir; slot--)
		;
	return slot;
}

static ssize_t cgroup_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	u32 slot = slot_of(kobj);

	return slot ? demeter_cgroups_path(slot, buf, PAGE_SIZE) : -ENODEV;
}

/**
 * demeter_cgroups_path_store() - choose the cgroup of a slot, as written to a file
 * @slot: the slot
 * @buf: what was written
 * @count: its length
 *
 * Return: @count or a negative errno.
 */
ssize_t demeter_cgroups_path_store(u32 slot, const char *buf, size_t count)
{
	char *path = kstrndup(buf, count, GFP_KERNEL);
	int ret;

	if (!path)
		return -ENOMEM;
	ret = demeter_cgroups_set_path(slot, strim(path));
	kfree(path);
	return ret ?: count;
}

static ssize_t cgroup_store(struct kobject *kobj, struct kobj_attribute *attr, const char *buf,
			    size_t count)
{
	u32 slot = slot_of(kobj);

	return slot ? demeter_cgroups_path_store(slot, buf, count) : -ENODEV;
}

static ssize_t state_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	static const char *const words[] = {
		[DEMETER_CGROUP_NONE] = "none",
		[DEMETER_CGROUP_PRESENT] = "present",
		[DEMETER_CGROUP_GONE] = "gone",
	};

	return sysfs_emit(buf, "%s\n", words[demeter_cgroups_state(slot_of(kobj))]);
}

static ssize_t floor_bytes_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%llu\n", demeter_cgroups_limits(slot_of(kobj)).floor_bytes);
}

static ssize_t floor_bytes_store(struct kobject *kobj, struct kobj_attribute *attr, const char *buf,
				 size_t count)
{
	u32 slot = slot_of(kobj);
	u64 bytes;
	int ret;

	if (!slot)
		return -ENODEV;
	ret = kstrtou64(buf, 0, &bytes);
	return ret ?: demeter_cgroups_set_limits(slot, &bytes, NULL) ?: count;
}

static ssize_t cap_bytes_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	u64 cap_bytes = demeter_cgroups_limits(slot_of(kobj)).cap_bytes;

	if (cap_bytes == DEMETER_NO_CAP)
		return sysfs_emit(buf, "max\n");
	return sysfs_emit(buf, "%llu\n", cap_bytes);
}

static ssize_t cap_bytes_store(struct kobject *kobj, struct kobj_attribute *attr, const char *buf,
			       size_t count)
{
	u64 bytes = DEMETER_NO_CAP;
	u32 slot = slot_of(kobj);
	int ret = 0;

	if (!slot)
		return -ENODEV;
	if (!sysfs_streq(buf, "max"))
		ret = kstrtou64(buf, 0, &bytes);
	return ret ?: demeter_cgroups_set_limits(slot, NULL, &bytes) ?: count;
}

#define USAGE(_name, _value)                                                                       \
	static ssize_t _name##_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)  \
	{                                                                                          \
		return sysfs_emit(buf, "%llu\n", demeter_cgroups_usage(slot_of(kobj))._value);     \
	}                                                                                          \
	static struct kobj_attribute _name##_attr = __ATTR_RO(_name)

USAGE(fmem_bytes, fmem_pages << PAGE_SHIFT);
USAGE(smem_bytes, smem_pages << PAGE_SHIFT);
USAGE(worth_bytes, worth_pages << PAGE_SHIFT);
USAGE(due_bytes, due_pages << PAGE_SHIFT);
USAGE(processes, processes);

static struct kobj_attribute cgroup_attr = __ATTR_RW(cgroup);
static struct kobj_attribute state_attr = __ATTR_RO(state);
static struct kobj_attribute floor_bytes_attr = __ATTR_RW(floor_bytes);
static struct kobj_attribute cap_bytes_attr = __ATTR_RW(cap_bytes);

static struct attribute *group_attrs[] = {
	&cgroup_attr.attr,	&state_attr.attr,
	&floor_bytes_attr.attr, &cap_bytes_attr.attr,
	&fmem_bytes_attr.attr,	&smem_bytes_attr.attr,
	&worth_bytes_attr.attr, &due_bytes_attr.attr,
	&processes_attr.attr,	NULL,
};

static const struct attribute_group group_files = { .attrs = group_attrs };

/* Take a group's files away, then the group. */
static void dir_remove(u32 slot)
{
	lockdep_assert_held(&dirs_lock);
	if (!dirs[slot])
		return;
	kobject_del(dirs[slot]);
	kobject_put(dirs[slot]);
	WRITE_ONCE(dirs[slot], NULL);
	demeter_cgroups_remove(slot);
}

static int dir_add(const char *name)
{
	int slot = demeter_cgroups_add(name), ret;
	struct kobject *dir;

	if (slot < 0)
		return slot;
	dir = kobject_create_and_add(name, groups_dir);
	if (!dir) {
		demeter_cgroups_remove(slot);
		return -ENOMEM;
	}
	WRITE_ONCE(dirs[slot], dir);
	ret = sysfs_create_group(dir, &group_files);
	if (ret)
		dir_remove(slot);
	return ret;
}

/* @act on the group that is named in @buf. */
static ssize_t name_store(const char *buf, size_t count, int (*act)(const char *name))
{
	char *name = kstrndup(buf, count, GFP_KERNEL);
	int ret;

	if (!name)
		return -ENOMEM;
	mutex_lock(&dirs_lock);
	ret = act(strim(name));
	mutex_unlock(&dirs_lock);
	kfree(name);
	return ret ?: count;
}

static int remove_by_name(const char *name)
{
	int slot = demeter_cgroups_find(name);

	if (slot < 0 || !*name) {
		pr_err("there is no group \"%s\"; next: see /sys/kernel/mm/demeter/groups\n", name);
		return -ENOENT;
	}
	dir_remove(slot);
	return 0;
}

static ssize_t add_store(struct kobject *kobj, struct kobj_attribute *attr, const char *buf,
			 size_t count)
{
	return name_store(buf, count, dir_add);
}

static ssize_t remove_store(struct kobject *kobj, struct kobj_attribute *attr, const char *buf,
			    size_t count)
{
	return name_store(buf, count, remove_by_name);
}

static struct kobj_attribute add_attr = __ATTR_WO(add);
static struct kobj_attribute remove_attr = __ATTR_WO(remove);
static struct attribute *groups_attrs[] = { &add_attr.attr, &remove_attr.attr, NULL };
static const struct attribute_group groups_files = { .attrs = groups_attrs };

/**
 * demeter_cgroups_sysfs_init() - make the directory groups
 * @parent: where
 *
 * Return: 0 or a negative errno.
 */
int demeter_cgroups_sysfs_init(struct kobject *parent)
{
	groups_dir = kobject_create_and_add("groups", parent);
	return groups_dir ? sysfs_create_group(groups_dir, &groups_files) : -ENOMEM;
}

/**
 * demeter_cgroups_sysfs_exit() - remove it and all groups; waits for users of the files
 */
void demeter_cgroups_sysfs_exit(void)
{
	u32 slot;

	if (!groups_dir)
		return;
	/* First: nobody adds any more. */
	sysfs_remove_group(groups_dir, &groups_files);
	mutex_lock(&dirs_lock);
	for (slot = 1; slot < DEMETER_SLOTS; slot++)
		dir_remove(slot);
	mutex_unlock(&dirs_lock);
	kobject_put(groups_dir);
	groups_dir = NULL;
}
