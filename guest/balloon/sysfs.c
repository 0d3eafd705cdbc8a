// SPDX-License-Identifier: GPL-2.0-only
/*
 * /sys/module/demeter_balloon/nodeN/: what the balloons are doing. Their
 * documentation is docs/abi/sysfs-module-demeter-balloon.
 */
#include <linux/kobject.h>
#include <linux/module.h>
#include <linux/sysfs.h>

#include "balloon.h"

static struct demeter_balloon_node *to_node(struct kobject *kobj)
{
	unsigned int i;

	for (i = 0; i < VIRTIO_DEMETER_MAX_NODES; i++)
		if (demeter_balloon.nodes[i].kobj == kobj)
			return &demeter_balloon.nodes[i];
	return NULL; /* no attribute exists outside these directories */
}

struct node_attribute {
	struct kobj_attribute attr;
	u64 (*value)(struct demeter_balloon_node *node);
};

static ssize_t node_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	struct node_attribute *attribute = container_of(attr, struct node_attribute, attr);
	struct demeter_balloon_node *node = to_node(kobj);
	u64 value;

	if (!node)
		return -ENODEV;
	mutex_lock(&node->lock);
	value = attribute->value(node);
	mutex_unlock(&node->lock);
	return sysfs_emit(buf, "%llu\n", value);
}

#define NODE_ATTRIBUTE(name, expression)                                                           \
	static u64 name##_value(struct demeter_balloon_node *node)                                 \
	{                                                                                          \
		return expression;                                                                 \
	}                                                                                          \
	static struct node_attribute name##_attribute = {                                          \
		.attr = __ATTR(name, 0444, node_show, NULL),                                       \
		.value = name##_value,                                                             \
	}

NODE_ATTRIBUTE(balloon_pages, demeter_node_pages(node));
NODE_ATTRIBUTE(target_pages, node->target_pages);
NODE_ATTRIBUTE(resizing, node->resizing);
NODE_ATTRIBUTE(disabled, node->disabled);
NODE_ATTRIBUTE(last_resize_us, node->last_resize_us);
NODE_ATTRIBUTE(inflated_pages, node->nr_inflated_pages);
NODE_ATTRIBUTE(deflated_pages, node->nr_deflated_pages);
NODE_ATTRIBUTE(free_block_pages, node->nr_free_block_pages);
NODE_ATTRIBUTE(evacuated_pages, node->nr_evacuated_pages);
NODE_ATTRIBUTE(refused_reports, node->nr_refused);

static struct attribute *node_attributes[] = {
	&balloon_pages_attribute.attr.attr,
	&target_pages_attribute.attr.attr,
	&resizing_attribute.attr.attr,
	&disabled_attribute.attr.attr,
	&last_resize_us_attribute.attr.attr,
	&inflated_pages_attribute.attr.attr,
	&deflated_pages_attribute.attr.attr,
	&free_block_pages_attribute.attr.attr,
	&evacuated_pages_attribute.attr.attr,
	&refused_reports_attribute.attr.attr,
	NULL,
};

static const struct attribute_group node_group = { .attrs = node_attributes };

int demeter_sysfs_init(void)
{
	unsigned int i;
	char name[16];
	int ret;

	for (i = 0; i < VIRTIO_DEMETER_MAX_NODES; i++) {
		struct demeter_balloon_node *node = &demeter_balloon.nodes[i];

		snprintf(name, sizeof(name), "node%u", i);
		node->kobj = kobject_create_and_add(name, &THIS_MODULE->mkobj.kobj);
		ret = node->kobj ? sysfs_create_group(node->kobj, &node_group) : -ENOMEM;
		if (ret) {
			demeter_sysfs_exit();
			return ret;
		}
	}
	return 0;
}

void demeter_sysfs_exit(void)
{
	unsigned int i;

	for (i = 0; i < VIRTIO_DEMETER_MAX_NODES; i++) {
		kobject_put(demeter_balloon.nodes[i].kobj);
		demeter_balloon.nodes[i].kobj = NULL;
	}
}
