// SPDX-License-Identifier: GPL-2.0-only
/*
 * What is shown of tiers and nodes: the directories tiers/ and nodes/ of
 * /sys/kernel/mm/demeter. Every file is described in docs/abi.
 *
 * nodes/ has a directory for each node of a tier. They are made anew when managing
 * begins, and stay when it ends.
 */
#define pr_fmt(fmt) "demeter: " fmt

#include <linux/kobject.h>
#include <linux/mm.h>
#include <linux/printk.h>
#include <linux/sysfs.h>

#include "tiers.h"
#include "tmm.h"

static struct kobject *tiers_dir;
static struct kobject *tier_dir[DEMETER_TIERS];
static struct kobject *nodes_dir;
/* By column and tier; demeter_control_lock. */
static struct kobject *node_dir[DEMETER_MAX_COLUMNS][DEMETER_TIERS];

static const char *const tier_names[] = {
	[DEMETER_FMEM] = "fmem",
	[DEMETER_SMEM] = "smem",
};

static u64 present_pages(int nid)
{
	return node_online(nid) ? NODE_DATA(nid)->node_present_pages : 0;
}

static u64 resident_pages(int nid)
{
	return READ_ONCE(demeter_node_stats[nid].resident_pages);
}

static u64 arrived_pages(int nid)
{
	return READ_ONCE(demeter_node_stats[nid].arrived_pages);
}

/* tiers/fmem/ and tiers/smem/: sums over the nodes */

static enum demeter_tier tier_of_dir(const struct kobject *kobj)
{
	return kobj == tier_dir[DEMETER_SMEM] ? DEMETER_SMEM : DEMETER_FMEM;
}

static ssize_t sum_show(const struct kobject *kobj, u64 (*of_node)(int nid), char *buf)
{
	const nodemask_t *nodes = &demeter_tiers.nodes[tier_of_dir(kobj)];
	u64 sum = 0;
	int nid;

	for_each_node_mask(nid, *nodes)
		sum += of_node(nid);
	return sysfs_emit(buf, "%llu\n", sum);
}

static ssize_t nodes_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	const nodemask_t *nodes = &demeter_tiers.nodes[tier_of_dir(kobj)];

	return sysfs_emit(buf, "%*pbl\n", nodemask_pr_args(nodes));
}

#define TIER_SUM(_name, _of_node)                                                                  \
	static ssize_t tier_##_name##_show(struct kobject *kobj, struct kobj_attribute *attr,      \
					   char *buf)                                              \
	{                                                                                          \
		return sum_show(kobj, _of_node, buf);                                              \
	}                                                                                          \
	static struct kobj_attribute tier_##_name##_attr =                                         \
		__ATTR(_name, 0444, tier_##_name##_show, NULL)

static struct kobj_attribute nodes_attr = __ATTR_RO(nodes);
TIER_SUM(total_pages, present_pages);
TIER_SUM(free_pages, demeter_tiers_free_pages);
TIER_SUM(resident_pages, resident_pages);

static struct attribute *tier_attrs[] = { &nodes_attr.attr, &tier_total_pages_attr.attr,
					  &tier_free_pages_attr.attr,
					  &tier_resident_pages_attr.attr, NULL };
static const struct attribute_group tier_group = { .attrs = tier_attrs };

/* nodes/nodeN/ */

/* The slot of a node's directory, -1 when it is being removed. */
static int slot_of_dir(const struct kobject *kobj)
{
	int slot;

	for (slot = 0; slot < DEMETER_MAX_COLUMNS * DEMETER_TIERS; slot++)
		if (READ_ONCE(node_dir[slot / DEMETER_TIERS][slot % DEMETER_TIERS]) == kobj)
			return slot;
	return -1;
}

static int node_of_dir(const struct kobject *kobj)
{
	int slot = slot_of_dir(kobj);

	return slot < 0 ? NUMA_NO_NODE
			: demeter_tiers.node[slot / DEMETER_TIERS][slot % DEMETER_TIERS];
}

static ssize_t node_show(const struct kobject *kobj, u64 (*of_node)(int nid), char *buf)
{
	int nid = node_of_dir(kobj);

	return nid < 0 ? -ENODEV : sysfs_emit(buf, "%llu\n", of_node(nid));
}

static ssize_t tier_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	int slot = slot_of_dir(kobj);

	return slot < 0 ? -ENODEV : sysfs_emit(buf, "%s\n", tier_names[slot % DEMETER_TIERS]);
}

/* Nodes of the other tier that it is paired with. */
static ssize_t paired_with_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	int slot = slot_of_dir(kobj);
	u32 column = slot / DEMETER_TIERS, i;
	nodemask_t nodes = NODE_MASK_NONE;

	if (slot < 0)
		return -ENODEV;
	for (i = 0; i < demeter_tiers.nr_near; i++) {
		const struct demeter_route *route = &demeter_tiers.route[i];

		if (slot % DEMETER_TIERS == DEMETER_FMEM && route->to == column)
			node_set(demeter_tiers.node[route->from][DEMETER_SMEM], nodes);
		if (slot % DEMETER_TIERS == DEMETER_SMEM && route->from == column)
			node_set(demeter_tiers.node[route->to][DEMETER_FMEM], nodes);
	}
	return sysfs_emit(buf, "%*pbl\n", nodemask_pr_args(&nodes));
}

#define NODE_VALUE(_name, _of_node)                                                                \
	static ssize_t node_##_name##_show(struct kobject *kobj, struct kobj_attribute *attr,      \
					   char *buf)                                              \
	{                                                                                          \
		return node_show(kobj, _of_node, buf);                                             \
	}                                                                                          \
	static struct kobj_attribute node_##_name##_attr =                                         \
		__ATTR(_name, 0444, node_##_name##_show, NULL)

static struct kobj_attribute tier_attr = __ATTR_RO(tier);
static struct kobj_attribute paired_with_attr = __ATTR_RO(paired_with);
NODE_VALUE(total_pages, present_pages);
NODE_VALUE(free_pages, demeter_tiers_free_pages);
NODE_VALUE(resident_pages, resident_pages);
NODE_VALUE(arrived_pages, arrived_pages);

static struct attribute *node_attrs[] = { &tier_attr.attr,
					  &paired_with_attr.attr,
					  &node_total_pages_attr.attr,
					  &node_free_pages_attr.attr,
					  &node_resident_pages_attr.attr,
					  &node_arrived_pages_attr.attr,
					  NULL };
static const struct attribute_group node_group = { .attrs = node_attrs };

static void nodes_remove(void)
{
	int slot;

	for (slot = 0; slot < DEMETER_MAX_COLUMNS * DEMETER_TIERS; slot++) {
		struct kobject **dir = &node_dir[slot / DEMETER_TIERS][slot % DEMETER_TIERS];
		struct kobject *old = *dir;

		WRITE_ONCE(*dir, NULL);
		/* Waits for who reads its files: they take no lock. */
		if (old)
			kobject_del(old);
		kobject_put(old);
	}
}

/**
 * demeter_tiers_sysfs_nodes() - make the directories of the nodes in use
 *
 * A directory that cannot be made is left out, and said so: nothing depends on it.
 */
void demeter_tiers_sysfs_nodes(void)
{
	int slot;

	if (!nodes_dir)
		return;
	nodes_remove();
	for (slot = 0; slot < DEMETER_MAX_COLUMNS * DEMETER_TIERS; slot++) {
		int nid = demeter_tiers.node[slot / DEMETER_TIERS][slot % DEMETER_TIERS];
		struct kobject *dir;
		char name[16];

		if (slot / DEMETER_TIERS >= demeter_tiers.columns || nid < 0)
			continue;
		snprintf(name, sizeof(name), "node%d", nid);
		dir = kobject_create_and_add(name, nodes_dir);
		if (!dir || sysfs_create_group(dir, &node_group)) {
			pr_warn("figures of node %d are not shown: no memory\n", nid);
			kobject_put(dir);
			continue;
		}
		WRITE_ONCE(node_dir[slot / DEMETER_TIERS][slot % DEMETER_TIERS], dir);
	}
}

/**
 * demeter_tiers_sysfs_init() - make the directories
 * @root: their parent
 *
 * Return: 0 or a negative errno.
 */
int demeter_tiers_sysfs_init(struct kobject *root)
{
	int tier, ret = 0;

	tiers_dir = kobject_create_and_add("tiers", root);
	nodes_dir = kobject_create_and_add("nodes", root);
	if (!tiers_dir || !nodes_dir)
		return -ENOMEM;
	for (tier = 0; tier < DEMETER_TIERS && !ret; tier++) {
		tier_dir[tier] = kobject_create_and_add(tier_names[tier], tiers_dir);
		ret = tier_dir[tier] ? sysfs_create_group(tier_dir[tier], &tier_group) : -ENOMEM;
	}
	return ret;
}

/**
 * demeter_tiers_sysfs_exit() - remove them
 */
void demeter_tiers_sysfs_exit(void)
{
	int tier;

	/* Somebody may be quick to write to the file "enabled". */
	mutex_lock(&demeter_control_lock);
	nodes_remove();
	for (tier = 0; tier < DEMETER_TIERS; tier++)
		kobject_put(tier_dir[tier]);
	kobject_put(nodes_dir);
	kobject_put(tiers_dir);
	nodes_dir = NULL;
	mutex_unlock(&demeter_control_lock);
}
