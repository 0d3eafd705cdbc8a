// SPDX-License-Identifier: GPL-2.0-only
/*
 * A hostile guest, for tests of virtio-demeter-balloon devices.
 *
 * Loading the module takes the device and runs all probes; the last line in the
 * kernel log is "N passed, M failed". The device is disabled in the end, if it
 * does as the specification says. Never load this outside a test.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/mm.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/slab.h>
#include <linux/virtio_config.h>

#include "../../compat/virtio.h"
#include "hostile.h"

static bool rings = true;
module_param(rings, bool, 0444);
MODULE_PARM_DESC(rings, "Attack the rings as well, default 1");

static bool exhaust = true;
module_param(exhaust, bool, 0444);
MODULE_PARM_DESC(exhaust, "Violate until the device is disabled, default 1");

static void ignore(struct virtqueue *vq)
{
}

static int prepare(struct hostile *h)
{
	static const char *const names[] = { "request", "statistics", "r0", "r1", "r2", "r3" };
	vq_callback_t *callbacks[] = { ignore, ignore, ignore, ignore, ignore, ignore };
	struct virtio_demeter_config config;
	unsigned int i;

	virtio_cread_bytes(h->vdev, 0, &config, sizeof(config));
	h->nr_nodes = le16_to_cpu(config.nr_nodes);
	h->max_ranges = le32_to_cpu(config.max_ranges);
	if (le32_to_cpu(config.magic) != VIRTIO_DEMETER_MAGIC || !h->nr_nodes ||
	    h->nr_nodes > VIRTIO_DEMETER_MAX_NODES || h->max_ranges > 65536)
		return -ENODEV;
	h->out =
		kzalloc(sizeof(*h->out) + (h->max_ranges + 1) * sizeof(struct virtio_demeter_range),
			GFP_KERNEL);
	h->ack = kzalloc(sizeof(*h->ack), GFP_KERNEL);
	for (i = 0; i < ARRAY_SIZE(h->own) && i < h->nr_nodes; i++)
		h->own[i] = alloc_pages_node(i, GFP_KERNEL | __GFP_THISNODE, 0);
	if (!h->out || !h->ack || !h->own[0])
		return -ENOMEM;
	return demeter_find_vqs(h->vdev, VIRTIO_DEMETER_VQ_REPORT + h->nr_nodes, h->vqs, callbacks,
				names);
}

static void release(struct hostile *h)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(h->own); i++)
		if (h->own[i])
			__free_page(h->own[i]);
	free_pages((unsigned long)h->table, HOSTILE_TABLE_ORDER);
	kfree(h->ack);
	kfree(h->out);
	kfree(h);
}

static int probe(struct virtio_device *vdev)
{
	struct hostile *h = kzalloc(sizeof(*h), GFP_KERNEL);
	int ret;

	if (!h)
		return -ENOMEM;
	h->vdev = vdev;
	ret = prepare(h);
	if (ret) {
		release(h);
		return ret;
	}
	vdev->priv = h;
	virtio_device_ready(vdev);
	hostile_reports(h);
	if (rings)
		hostile_rings(h);
	if (exhaust)
		hostile_exhaust(h);
	pr_info("%u passed, %u failed\n", h->nr_ok, h->nr_bad);
	return 0;
}

static void remove(struct virtio_device *vdev)
{
	virtio_reset_device(vdev);
	vdev->config->del_vqs(vdev);
	release(vdev->priv);
}

static const struct virtio_device_id ids[] = {
	{ VIRTIO_DEMETER_ID, VIRTIO_DEV_ANY_ID },
	{ 0 },
};

static struct virtio_driver hostile_driver = {
	.driver.name = KBUILD_MODNAME,
	.id_table = ids,
	.probe = probe,
	.remove = remove,
};

module_virtio_driver(hostile_driver);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Hostile guest for tests of virtio-demeter-balloon devices");
