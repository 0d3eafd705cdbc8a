// SPDX-License-Identifier: GPL-2.0-only
/*
 * The half of a manager that all have: sysfs, and the order of events.
 *
 * Included once by each module (frame.c of its folder), so that no objects are
 * shared between modules.
 */
#include <linux/kernfs.h>
#include <linux/kobject.h>
#include <linux/kstrtox.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/sysfs.h>

#include "../contract.h"
#include "replace.h"
#include "symbols.h"

atomic64_t demeter_peer_stage_ns[DEMETER_PEER_STAGES];

static const struct demeter_peer_stat stage_stats[] = {
	{ "track_ns", &demeter_peer_stage_ns[DEMETER_PEER_TRACK] },
	{ "classify_ns", &demeter_peer_stage_ns[DEMETER_PEER_CLASSIFY] },
	{ "migrate_ns", &demeter_peer_stage_ns[DEMETER_PEER_MIGRATE] },
	{}
};

/**
 * struct host_file - a file of params/ or stats/
 * @attribute: for sysfs
 * @param: what it shows, or NULL
 * @stat: what it shows, or NULL
 */
struct host_file {
	struct kobj_attribute attribute;
	const struct demeter_peer_param *param;
	const struct demeter_peer_stat *stat;
};

/**
 * struct host_folder - params/ or stats/
 * @files: its files
 * @attributes: the same as sysfs wants them
 * @group: the same as a whole
 */
struct host_folder {
	struct host_file *files;
	struct attribute **attributes;
	struct attribute_group group;
};

#define HOST_FOLDER "demeter_peer"

static struct kobject *host_kobj;
static struct host_folder params_folder;
static struct host_folder stats_folder;

/* Protects host_enabled, the values of parameters, and the calls of start and stop. */
static DEFINE_MUTEX(host_lock);
static bool host_enabled;

static struct host_file *file_of(struct kobj_attribute *attribute)
{
	return container_of(attribute, struct host_file, attribute);
}

static ssize_t stat_show(struct kobject *kobj, struct kobj_attribute *attribute, char *buf)
{
	return sysfs_emit(buf, "%lld\n", atomic64_read(file_of(attribute)->stat->value));
}

static ssize_t param_show(struct kobject *kobj, struct kobj_attribute *attribute, char *buf)
{
	return sysfs_emit(buf, "%llu\n", READ_ONCE(*file_of(attribute)->param->value));
}

static ssize_t param_store(struct kobject *kobj, struct kobj_attribute *attribute, const char *buf,
			   size_t count)
{
	const struct demeter_peer_param *param = file_of(attribute)->param;
	u64 value;
	int ret;

	ret = kstrtou64(buf, 0, &value);
	if (ret)
		return ret;
	if (value < param->min || value > param->max) {
		pr_err("%s: %s=%llu is refused; next: choose from %llu to %llu\n",
		       demeter_peer_this.name, param->name, value, param->min, param->max);
		return -ERANGE;
	}
	mutex_lock(&host_lock);
	if (host_enabled)
		ret = -EBUSY;
	else
		WRITE_ONCE(*param->value, value);
	mutex_unlock(&host_lock);
	return ret ?: count;
}

static ssize_t name_show(struct kobject *kobj, struct kobj_attribute *attribute, char *buf)
{
	return sysfs_emit(buf, "%s\n", demeter_peer_this.name);
}

static ssize_t enabled_show(struct kobject *kobj, struct kobj_attribute *attribute, char *buf)
{
	return sysfs_emit(buf, "%d\n", READ_ONCE(host_enabled));
}

static int host_enable(bool on)
{
	int ret = 0;

	lockdep_assert_held(&host_lock);
	if (on == host_enabled)
		return 0;
	/* Cannot be unloaded meanwhile: stopping can fail for good, unloading could not. */
	if (on) {
		ret = demeter_peer_this.start();
		if (!ret)
			__module_get(THIS_MODULE);
	} else {
		demeter_peer_this.stop();
		module_put(THIS_MODULE);
	}
	if (!ret)
		WRITE_ONCE(host_enabled, on);
	return ret;
}

static ssize_t enabled_store(struct kobject *kobj, struct kobj_attribute *attribute,
			     const char *buf, size_t count)
{
	bool on;
	int ret;

	ret = kstrtobool(buf, &on);
	if (ret)
		return ret;
	mutex_lock(&host_lock);
	ret = host_enable(on);
	mutex_unlock(&host_lock);
	return ret ?: count;
}

static struct kobj_attribute name_attribute = __ATTR_RO(name);
static struct kobj_attribute enabled_attribute = __ATTR_RW(enabled);
static struct attribute *host_attributes[] = {
	&name_attribute.attr,
	&enabled_attribute.attr,
	NULL,
};

static const struct attribute_group host_group = { .attrs = host_attributes };

static int folder_make(struct host_folder *folder, const char *name, size_t files)
{
	size_t i;

	folder->files = kcalloc(files, sizeof(*folder->files), GFP_KERNEL);
	folder->attributes = kcalloc(files + 1, sizeof(*folder->attributes), GFP_KERNEL);
	if ((files && !folder->files) || !folder->attributes)
		return -ENOMEM;
	for (i = 0; i < files; i++) {
		sysfs_attr_init(&folder->files[i].attribute.attr);
		folder->attributes[i] = &folder->files[i].attribute.attr;
	}
	folder->group.name = name;
	folder->group.attrs = folder->attributes;
	return 0;
}

static void folder_free(struct host_folder *folder)
{
	kfree(folder->files);
	kfree(folder->attributes);
}

static int params_make(void)
{
	const struct demeter_peer_param *params = demeter_peer_this.params;
	size_t count = 0, i;
	int ret;

	while (params && params[count].name)
		count++;
	ret = folder_make(&params_folder, "params", count);
	for (i = 0; !ret && i < count; i++) {
		params_folder.files[i].param = &params[i];
		params_folder.files[i].attribute = (struct kobj_attribute){
			.attr = { .name = params[i].name, .mode = 0644 },
			.show = param_show,
			.store = param_store,
		};
	}
	return ret;
}

static size_t stats_count(const struct demeter_peer_stat *stats)
{
	size_t count = 0;

	while (stats && stats[count].name)
		count++;
	return count;
}

static void stats_fill(struct host_file *files, const struct demeter_peer_stat *stats)
{
	size_t i;

	for (i = 0; i < stats_count(stats); i++) {
		files[i].stat = &stats[i];
		files[i].attribute = (struct kobj_attribute){
			.attr = { .name = stats[i].name, .mode = 0444 },
			.show = stat_show,
		};
	}
}

static int stats_make(void)
{
	size_t own = stats_count(demeter_peer_this.stats);
	int ret = folder_make(&stats_folder, "stats", own + stats_count(stage_stats));

	if (ret)
		return ret;
	stats_fill(stats_folder.files, demeter_peer_this.stats);
	stats_fill(stats_folder.files + own, stage_stats);
	return 0;
}

/* Make HOST_FOLDER below /sys/kernel/mm, whose kobject is not exported but known to sysfs. */
static int host_folder_make(void)
{
	struct kernfs_node *mm_node = kernfs_find_and_get(kernel_kobj->sd, "mm");
	struct kernfs_node *other;
	int ret = 0;

	if (!mm_node)
		return -ENOENT;
	other = kernfs_find_and_get(mm_node, HOST_FOLDER);
	if (other) {
		pr_err("another manager is loaded; next: unload it before %s\n",
		       demeter_peer_this.name);
		kernfs_put(other);
		ret = -EBUSY;
	} else {
		host_kobj = kobject_create_and_add(HOST_FOLDER, mm_node->priv);
		if (!host_kobj)
			ret = -ENOMEM;
	}
	kernfs_put(mm_node);
	return ret;
}

static int __init host_init(void)
{
	int ret = demeter_symbols_resolve();

	if (ret)
		return ret;
	ret = params_make() ?: stats_make() ?: host_folder_make();
	if (ret)
		goto free;
	ret = sysfs_create_group(host_kobj, &host_group) ?:
	      sysfs_create_group(host_kobj, &params_folder.group) ?:
	      sysfs_create_group(host_kobj, &stats_folder.group);
	if (!ret)
		return 0;
	kobject_put(host_kobj);
free:
	folder_free(&params_folder);
	folder_free(&stats_folder);
	return ret;
}

static void __exit host_exit(void)
{
	/* Waits for whoever is in one of the files; nobody comes after. */
	kobject_put(host_kobj);
	folder_free(&params_folder);
	folder_free(&stats_folder);
}

module_init(host_init);
module_exit(host_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("A published memory manager, for comparison with Demeter");
