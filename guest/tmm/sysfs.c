// SPDX-License-Identifier: GPL-2.0-only
/*
 * Sysfs: /sys/kernel/mm/demeter, one value per file. Every file is described
 * in docs/abi/sysfs-kernel-mm-demeter.
 */
#define pr_fmt(fmt) "demeter: " fmt

#include <linux/kernel.h>
#include <linux/kobject.h>
#include <linux/mm.h>
#include <linux/string.h>
#include <linux/sysfs.h>

#include "finer.h"
#include "ledger.h"
#include "relocate.h"
#include "symbols.h"
#include "tiers.h"
#include "tmm.h"
#include "touch.h"

static struct kobject *root_dir;
static struct kobject *params_dir;
static struct kobject *targets_dir;
static struct kobject *stats_dir;
static struct kobject *refused_dir;
static struct kobject *time_dir;
static struct kobject *sampler_dir;
static struct kobject *touch_dir;
static struct kobject *epoch_dir;
static struct kobject *pace_dir;
static struct kobject *finer_dir;

/* params/ and the other numbers that can be set */

enum param_kind {
	PARAM_PLAIN,	    /* the worker reads it at the next epoch */
	PARAM_POWER_OF_TWO, /* the same */
	PARAM_SAMPLER,	    /* the sampler must be restarted */
};

struct param {
	struct kobj_attribute attr;
	unsigned long *value;
	unsigned long min;
	unsigned long max;
	enum param_kind kind;
};

static ssize_t param_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	struct param *param = container_of(attr, struct param, attr);

	return sysfs_emit(buf, "%lu\n", READ_ONCE(*param->value));
}

static int param_set(struct param *param, unsigned long value)
{
	if (value < param->min || value > param->max)
		return -EINVAL;
	if (param->kind == PARAM_POWER_OF_TWO && !is_power_of_2(value))
		return -EINVAL;
	WRITE_ONCE(*param->value, value);
	return param->kind == PARAM_SAMPLER ? demeter_sampler_restart() : 0;
}

static ssize_t param_store(struct kobject *kobj, struct kobj_attribute *attr, const char *buf,
			   size_t count)
{
	struct param *param = container_of(attr, struct param, attr);
	unsigned long value;
	int ret;

	ret = kstrtoul(buf, 0, &value);
	if (ret)
		return ret;
	mutex_lock(&demeter_control_lock);
	ret = param_set(param, value);
	mutex_unlock(&demeter_control_lock);
	return ret ?: count;
}

#define PARAM(_name, _min, _max, _kind)                                                            \
	static struct param param_##_name = {                                                      \
		.attr = __ATTR(_name, 0644, param_show, param_store),                              \
		.value = &demeter_params._name,                                                    \
		.min = (_min),                                                                     \
		.max = (_max),                                                                     \
		.kind = (_kind),                                                                   \
	}

PARAM(sample_period, 1, 1ul << 31, PARAM_SAMPLER);
PARAM(latency_threshold_ns, 0, 65535, PARAM_SAMPLER);
PARAM(epoch_ms, 10, 60000, PARAM_PLAIN);
PARAM(split_samples, 1, 1000000, PARAM_PLAIN);
PARAM(significance, 0, 1000, PARAM_PLAIN);
PARAM(merge_epochs, 1, 1000000, PARAM_PLAIN);
PARAM(granule_bytes, PAGE_SIZE, 1ul << 40, PARAM_POWER_OF_TWO);
PARAM(horizon_ms, 1, 86400000, PARAM_PLAIN);
PARAM(hysteresis_permille, 0, 1000000, PARAM_PLAIN);
PARAM(rate_pages_per_s, 0, 1ul << 40, PARAM_PLAIN);
PARAM(latency_gap_ns, 0, 1000000, PARAM_PLAIN);
PARAM(batch_pairs, DEMETER_BATCH_PAIRS_MIN, DEMETER_BATCH_PAIRS_MAX, PARAM_PLAIN);
PARAM(auto_min_bytes, 0, ULONG_MAX, PARAM_PLAIN);
PARAM(finer, DEMETER_FINER_OFF, DEMETER_FINER_AUTO, PARAM_PLAIN);
PARAM(finer_walk_ns, 0, 100000, PARAM_PLAIN);

static struct attribute *params_attrs[] = {
	&param_sample_period.attr.attr,
	&param_latency_threshold_ns.attr.attr,
	&param_epoch_ms.attr.attr,
	&param_split_samples.attr.attr,
	&param_significance.attr.attr,
	&param_merge_epochs.attr.attr,
	&param_granule_bytes.attr.attr,
	&param_horizon_ms.attr.attr,
	&param_hysteresis_permille.attr.attr,
	&param_rate_pages_per_s.attr.attr,
	&param_latency_gap_ns.attr.attr,
	&param_batch_pairs.attr.attr,
	&param_finer.attr.attr,
	&param_finer_walk_ns.attr.attr,
	NULL,
};

static const struct attribute_group params_group = { .attrs = params_attrs };

/* params/fmem_node and smem_node: lists of nodes */

static ssize_t tier_nodes_store(enum demeter_tier tier, const char *buf, size_t count)
{
	int ret = -EBUSY;

	mutex_lock(&demeter_control_lock);
	if (!demeter_is_enabled())
		ret = demeter_tiers_set(tier, buf);
	mutex_unlock(&demeter_control_lock);
	return ret ?: count;
}

static ssize_t tier_nodes_show(enum demeter_tier tier, char *buf)
{
	ssize_t ret;

	mutex_lock(&demeter_control_lock);
	ret = demeter_tiers_show(tier, buf);
	mutex_unlock(&demeter_control_lock);
	return ret;
}

#define TIER_NODES(_name, _tier)                                                                   \
	static ssize_t _name##_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)  \
	{                                                                                          \
		return tier_nodes_show(_tier, buf);                                                \
	}                                                                                          \
	static ssize_t _name##_store(struct kobject *kobj, struct kobj_attribute *attr,            \
				     const char *buf, size_t count)                                \
	{                                                                                          \
		return tier_nodes_store(_tier, buf, count);                                        \
	}                                                                                          \
	static struct kobj_attribute _name##_attr = __ATTR_RW(_name)

TIER_NODES(fmem_node, DEMETER_FMEM);
TIER_NODES(smem_node, DEMETER_SMEM);

static struct attribute *tier_nodes_attrs[] = { &fmem_node_attr.attr, &smem_node_attr.attr, NULL };
static const struct attribute_group tier_nodes_group = { .attrs = tier_nodes_attrs };

static int param_check(const struct param *param)
{
	unsigned long value = *param->value;

	if (value >= param->min && value <= param->max &&
	    (param->kind != PARAM_POWER_OF_TWO || is_power_of_2(value)))
		return 0;
	pr_err("%s=%lu is not accepted; next: use %lu to %lu%s\n", param->attr.attr.name, value,
	       param->min, param->max, param->kind == PARAM_POWER_OF_TWO ? ", a power of two" : "");
	return -EINVAL;
}

/**
 * demeter_params_check() - are the parameters given at load time in bounds
 *
 * Return: 0, or -EINVAL with the culprit in the kernel log.
 */
int demeter_params_check(void)
{
	int i, ret = 0;

	for (i = 0; params_attrs[i]; i++)
		ret = ret ?: param_check(container_of(params_attrs[i], struct param, attr.attr));
	return ret;
}

/* enabled, sampler */

static ssize_t enabled_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%d\n", demeter_is_enabled());
}

static ssize_t enabled_store(struct kobject *kobj, struct kobj_attribute *attr, const char *buf,
			     size_t count)
{
	bool on;
	int ret;

	ret = kstrtobool(buf, &on);
	if (ret)
		return ret;
	mutex_lock(&demeter_control_lock);
	if (on)
		ret = demeter_enable();
	else
		demeter_disable();
	mutex_unlock(&demeter_control_lock);
	return ret ?: count;
}

static ssize_t sampler_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%s\n", demeter_sampler_choice());
}

static ssize_t sampler_store(struct kobject *kobj, struct kobj_attribute *attr, const char *buf,
			     size_t count)
{
	char name[16];
	int ret;

	if (count >= sizeof(name))
		return -EINVAL;
	strscpy(name, buf, sizeof(name));
	mutex_lock(&demeter_control_lock);
	ret = demeter_sampler_choose(strim(name));
	mutex_unlock(&demeter_control_lock);
	return ret ?: count;
}

static struct kobj_attribute enabled_attr = __ATTR_RW(enabled);
static ssize_t sampler_delivery_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%s\n", demeter_sampler_delivery());
}

static struct kobj_attribute sampler_attr = __ATTR_RW(sampler);
static struct kobj_attribute sampler_delivery_attr = __ATTR_RO(sampler_delivery);
static struct attribute *root_attrs[] = { &enabled_attr.attr, &sampler_attr.attr,
					  &sampler_delivery_attr.attr, NULL };
static const struct attribute_group root_group = { .attrs = root_attrs };

/* targets/ */

static ssize_t pid_store(const char *buf, size_t count, int (*act)(pid_t pid))
{
	int ret, pid;

	ret = kstrtoint(buf, 10, &pid);
	if (ret)
		return ret;
	if (pid <= 0)
		return -EINVAL;
	return act(pid) ?: count;
}

static ssize_t pid_add_store(struct kobject *kobj, struct kobj_attribute *attr, const char *buf,
			     size_t count)
{
	return pid_store(buf, count, demeter_targets_add_pid);
}

static ssize_t pid_remove_store(struct kobject *kobj, struct kobj_attribute *attr, const char *buf,
				size_t count)
{
	return pid_store(buf, count, demeter_targets_remove_pid);
}

static ssize_t cgroup_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return demeter_cgroups_path(0, buf, PAGE_SIZE);
}

static ssize_t cgroup_store(struct kobject *kobj, struct kobj_attribute *attr, const char *buf,
			    size_t count)
{
	return demeter_cgroups_path_store(0, buf, count);
}

static struct kobj_attribute pid_add_attr = __ATTR_WO(pid_add);
static struct kobj_attribute pid_remove_attr = __ATTR_WO(pid_remove);
static struct kobj_attribute cgroup_attr = __ATTR_RW(cgroup);
static struct attribute *targets_attrs[] = {
	&pid_add_attr.attr,
	&pid_remove_attr.attr,
	&cgroup_attr.attr,
	&param_auto_min_bytes.attr.attr,
	NULL,
};

static const struct attribute_group targets_group = { .attrs = targets_attrs };

/* stats/ */

#define STAT(_name, _value)                                                                        \
	static ssize_t _name##_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)  \
	{                                                                                          \
		return sysfs_emit(buf, "%llu\n", (u64)(_value));                                   \
	}                                                                                          \
	static struct kobj_attribute _name##_attr = __ATTR_RO(_name)

STAT(samples, READ_ONCE(demeter_stats.samples));
STAT(lost_samples, READ_ONCE(demeter_stats.lost_samples));
STAT(stray_samples, demeter_stats_stray_samples());
STAT(fmem_samples, READ_ONCE(demeter_stats.tier_samples[DEMETER_FMEM]));
STAT(smem_samples, READ_ONCE(demeter_stats.tier_samples[DEMETER_SMEM]));
STAT(epochs, READ_ONCE(demeter_stats.epochs));
STAT(targets, demeter_targets_nr());
STAT(ranges, READ_ONCE(demeter_stats.ranges));
STAT(splits, READ_ONCE(demeter_stats.splits));
STAT(merges, READ_ONCE(demeter_stats.merges));
STAT(promoted_pages, READ_ONCE(demeter_stats.promoted_pages));
STAT(demoted_pages, READ_ONCE(demeter_stats.demoted_pages));
STAT(filled_pages, READ_ONCE(demeter_stats.filled_pages));
STAT(refused_pages, demeter_stats_refused_pages());
STAT(swap_cost_ns, demeter_swap_cost_ns());
STAT(move_cost_ns, demeter_move_cost_ns());
STAT(numa_balancing, demeter_numa_balancing_mode());

STAT(latency_gap_ps, demeter_latency_gap_ps());

static struct attribute *stats_attrs[] = {
	&samples_attr.attr,
	&lost_samples_attr.attr,
	&stray_samples_attr.attr,
	&fmem_samples_attr.attr,
	&smem_samples_attr.attr,
	&epochs_attr.attr,
	&targets_attr.attr,
	&ranges_attr.attr,
	&splits_attr.attr,
	&merges_attr.attr,
	&promoted_pages_attr.attr,
	&demoted_pages_attr.attr,
	&filled_pages_attr.attr,
	&refused_pages_attr.attr,
	&swap_cost_ns_attr.attr,
	&move_cost_ns_attr.attr,
	&numa_balancing_attr.attr,
	&latency_gap_ps_attr.attr,
	NULL,
};

static const struct attribute_group stats_group = { .attrs = stats_attrs };

/* stats/sampler/ */

#define CPU_STAT(_name)                                                                            \
	STAT(_name, demeter_stats_cpu_sum(offsetof(struct demeter_cpu_stats, _name)))

CPU_STAT(traced_records);
CPU_STAT(handled_records);
CPU_STAT(unused_records);
CPU_STAT(lost_records);
CPU_STAT(throttled);
CPU_STAT(switches);
STAT(restarts, READ_ONCE(demeter_stats.sampler_restarts));
STAT(dead_cpus, READ_ONCE(demeter_stats.sampler_dead_cpus));

static struct attribute *sampler_stats_attrs[] = {
	&traced_records_attr.attr, &handled_records_attr.attr, &unused_records_attr.attr,
	&lost_records_attr.attr,   &throttled_attr.attr,       &restarts_attr.attr,
	&dead_cpus_attr.attr,	   &switches_attr.attr,	       NULL,
};

static const struct attribute_group sampler_stats_group = { .attrs = sampler_stats_attrs };

/* stats/epoch/ */

STAT(denied_splits, READ_ONCE(demeter_stats.denied_splits));
STAT(unranked_ranges, READ_ONCE(demeter_stats.unranked_ranges));
STAT(compared_mappings, READ_ONCE(demeter_stats.compared_mappings));
STAT(walked_entries, READ_ONCE(demeter_stats.walked_entries));
STAT(unwalked_bytes, READ_ONCE(demeter_stats.unwalked_bytes));
STAT(lock_held_max_ns, READ_ONCE(demeter_stats.lock_held_max_ns));
STAT(mmap_lock_held_max_ns, READ_ONCE(demeter_stats.mmap_lock_held_max_ns));
STAT(cpu_max_ns, READ_ONCE(demeter_stats.epoch_max_ns));

static struct attribute *epoch_attrs[] = {
	&denied_splits_attr.attr,	  &unranked_ranges_attr.attr, &compared_mappings_attr.attr,
	&walked_entries_attr.attr,	  &unwalked_bytes_attr.attr,  &lock_held_max_ns_attr.attr,
	&mmap_lock_held_max_ns_attr.attr, &cpu_max_ns_attr.attr,      NULL,
};

static const struct attribute_group epoch_group = { .attrs = epoch_attrs };

/* stats/refused/ and stats/time_ns/: a file for each index of an array */

static struct kobj_attribute refused_attr[DEMETER_REFUSALS];
static struct attribute *refused_attrs[DEMETER_REFUSALS];
static const struct attribute_group refused_group = { .attrs = refused_attrs };

static ssize_t refused_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%llu\n",
			  READ_ONCE(demeter_stats.refused.pages[attr - refused_attr]));
}

static const char *const stage_names[] = {
	[DEMETER_STAGE_DRAIN] = "drain",     [DEMETER_STAGE_CLASSIFY] = "classify",
	[DEMETER_STAGE_RANK] = "rank",	     [DEMETER_STAGE_PLAN] = "plan",
	[DEMETER_STAGE_SCAN] = "scan",	     [DEMETER_STAGE_RELOCATE] = "relocate",
	[DEMETER_STAGE_MIGRATE] = "migrate",
};

static struct kobj_attribute time_attr[ARRAY_SIZE(stage_names)];
static struct attribute *time_attrs[ARRAY_SIZE(stage_names) + 1];
static const struct attribute_group time_group = { .attrs = time_attrs };

static ssize_t time_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%llu\n", demeter_stats_stage_ns(attr - time_attr));
}

static void indexed_attrs_init(void)
{
	int i;

	for (i = DEMETER_OK + 1; i < DEMETER_REFUSALS; i++) {
		sysfs_attr_init(&refused_attr[i].attr);
		refused_attr[i].attr.name = demeter_refusal_names[i];
		refused_attr[i].attr.mode = 0444;
		refused_attr[i].show = refused_show;
		refused_attrs[i - 1] = &refused_attr[i].attr;
	}
	for (i = 0; i < ARRAY_SIZE(stage_names); i++) {
		sysfs_attr_init(&time_attr[i].attr);
		time_attr[i].attr.name = stage_names[i];
		time_attr[i].attr.mode = 0444;
		time_attr[i].show = time_show;
		time_attrs[i] = &time_attr[i].attr;
	}
}

static int dir_make(struct kobject **dir, const char *name, struct kobject *parent,
		    const struct attribute_group *group)
{
	*dir = kobject_create_and_add(name, parent);
	return *dir ? sysfs_create_group(*dir, group) : -ENOMEM;
}

/**
 * demeter_sysfs_init() - make /sys/kernel/mm/demeter
 *
 * Return: 0 or a negative errno.
 */
int demeter_sysfs_init(void)
{
	struct kernfs_node *mm_node = kernfs_find_and_get(kernel_kobj->sd, "mm");
	int ret;

	if (!mm_node) {
		pr_err("there is no /sys/kernel/mm; next: use a kernel with CONFIG_SYSFS\n");
		return -ENOENT;
	}
	indexed_attrs_init();
	/* Its kobject is not exported; a directory of sysfs knows its own, and this one stays. */
	ret = dir_make(&root_dir, "demeter", mm_node->priv, &root_group);
	kernfs_put(mm_node);
	if (!ret)
		ret = dir_make(&params_dir, "params", root_dir, &params_group);
	if (!ret)
		ret = sysfs_create_group(params_dir, &tier_nodes_group);
	if (!ret)
		ret = demeter_tiers_sysfs_init(root_dir);
	if (!ret)
		ret = dir_make(&targets_dir, "targets", root_dir, &targets_group);
	if (!ret)
		ret = demeter_cgroups_sysfs_init(root_dir);
	if (!ret)
		ret = dir_make(&stats_dir, "stats", root_dir, &stats_group);
	if (!ret)
		ret = demeter_ledger_sysfs_init(stats_dir);
	if (!ret)
		ret = dir_make(&refused_dir, "refused", stats_dir, &refused_group);
	if (!ret)
		ret = dir_make(&time_dir, "time_ns", stats_dir, &time_group);
	if (!ret)
		ret = dir_make(&sampler_dir, "sampler", stats_dir, &sampler_stats_group);
	if (!ret)
		ret = sysfs_create_group(sampler_dir, &demeter_form_stats_group);
	if (!ret)
		ret = dir_make(&touch_dir, "touch", stats_dir, &demeter_touch_stats_group);
	if (!ret)
		ret = dir_make(&epoch_dir, "epoch", stats_dir, &epoch_group);
	if (!ret)
		ret = dir_make(&pace_dir, "pace", stats_dir, &demeter_pacing_stats_group);
	if (!ret)
		ret = dir_make(&finer_dir, "finer", stats_dir, &demeter_finer_stats_group);
	if (!ret)
		ret = demeter_dump_init(root_dir);
	if (ret)
		demeter_sysfs_exit();
	return ret;
}

/**
 * demeter_sysfs_exit() - remove /sys/kernel/mm/demeter; waits for its users
 */
void demeter_sysfs_exit(void)
{
	if (root_dir)
		demeter_dump_exit(root_dir);
	demeter_cgroups_sysfs_exit();
	demeter_tiers_sysfs_exit();
	/* Never made after one that failed, and putting NULL does nothing. */
	kobject_put(touch_dir);
	kobject_put(finer_dir);
	kobject_put(pace_dir);
	kobject_put(epoch_dir);
	kobject_put(sampler_dir);
	kobject_put(time_dir);
	kobject_put(refused_dir);
	kobject_put(stats_dir);
	kobject_put(targets_dir);
	kobject_put(params_dir);
	kobject_put(root_dir);
}
