// SPDX-License-Identifier: GPL-2.0-only
/*
 * Life of the driver: module, device found, removed, suspended, resumed.
 *
 * The balloons belong to the module, the queues to the device. A device that
 * leaves takes nothing with it: its pages are kept for grace_ms, and given back
 * if no device has come by then. Unloading gives back everything.
 *
 * A device can be ours without being attached: while it is suspended, and from a
 * resume that failed until it is removed. Then there are no queues.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/atomic.h>
#include <linux/crash_dump.h>
#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/notifier.h>
#include <linux/suspend.h>
#include <linux/virtio.h>
#include <linux/virtio_config.h>

#include "../compat/version.h"
#include "../compat/virtio.h"
#include "balloon.h"

/* Sizes on the wire are in pages of 4 KiB; so are those of this driver. */
static_assert(PAGE_SHIFT == VIRTIO_DEMETER_PAGE_SHIFT);
static_assert(VIRTIO_DEMETER_VQ_REPORT + VIRTIO_DEMETER_MAX_NODES <= DEMETER_COMPAT_MAX_VQS);

#define UNLOAD_TIMEOUT (5 * HZ) /* without progress */

static unsigned int grace_ms = 60000;
module_param(grace_ms, uint, 0644);
MODULE_PARM_DESC(grace_ms, "How long (ms) pages are kept for a removed device, default 60000");

struct demeter_balloon demeter_balloon;

static bool unloading; /* written before the driver is unregistered */

/* DRV-2: read the configuration, all of it, before anything is set up. */
static int read_config(struct virtio_device *vdev)
{
	struct virtio_demeter_config config;

	if (!virtio_has_feature(vdev, VIRTIO_F_VERSION_1)) {
		dev_err(&vdev->dev, "this is a legacy device; next: offer VIRTIO_F_VERSION_1\n");
		return -ENODEV;
	}
	virtio_cread_bytes(vdev, 0, &config, sizeof(config));
	if (le32_to_cpu(config.magic) != VIRTIO_DEMETER_MAGIC)
		return -ENODEV; /* another device with the same reserved ID */
	if (le16_to_cpu(config.version) != VIRTIO_DEMETER_VERSION) {
		dev_err(&vdev->dev,
			"the device speaks version %u, this driver %u; next: update the older one\n",
			le16_to_cpu(config.version), VIRTIO_DEMETER_VERSION);
		return -ENODEV;
	}
	if (!config.nr_nodes || le16_to_cpu(config.nr_nodes) > VIRTIO_DEMETER_MAX_NODES ||
	    !config.max_ranges) {
		dev_err(&vdev->dev,
			"the device has %u nodes and takes %u ranges; next: see its owner's log\n",
			le16_to_cpu(config.nr_nodes), le32_to_cpu(config.max_ranges));
		return -EINVAL;
	}
	demeter_balloon.nr_nodes = le16_to_cpu(config.nr_nodes);
	demeter_balloon.max_ranges = min_t(u32, le32_to_cpu(config.max_ranges), DEMETER_MAX_RANGES);
	demeter_balloon.statistics_interval_ms = le32_to_cpu(config.statistics_interval_ms);
	return 0;
}

static int find_queues(struct virtio_device *vdev, struct virtqueue *vqs[])
{
	static const char *const names[] = {
		"request", "statistics", "report0", "report1", "report2", "report3",
	};
	vq_callback_t *callbacks[ARRAY_SIZE(names)] = {
		demeter_request_arrived, demeter_statistics_returned, demeter_report_answered,
		demeter_report_answered, demeter_report_answered,     demeter_report_answered,
	};
	unsigned int nr = VIRTIO_DEMETER_VQ_REPORT + demeter_balloon.nr_nodes;
	unsigned int i;
	int ret;

	ret = demeter_find_vqs(vdev, nr, vqs, callbacks, names);
	if (ret)
		return ret;
	for (i = 0; i < nr; i++) {
		unsigned int needed = i == VIRTIO_DEMETER_VQ_REQUEST	  ? DEMETER_NR_REQUESTS
				      : i == VIRTIO_DEMETER_VQ_STATISTICS ? 1
									  : 2 * DEMETER_NR_REPORTS;

		if (virtqueue_get_vring_size(vqs[i]) >= needed)
			continue;
		dev_err(&vdev->dev,
			"queue %u has %u entries and needs %u; next: make the device's queues larger\n",
			i, virtqueue_get_vring_size(vqs[i]), needed);
		vdev->config->del_vqs(vdev);
		return -EINVAL;
	}
	return 0;
}

/* Keep pages no longer, from this node on. */
static void give_back_kept(unsigned int first_node)
{
	unsigned int i;

	for (i = first_node; i < VIRTIO_DEMETER_MAX_NODES; i++) {
		struct demeter_balloon_node *node = &demeter_balloon.nodes[i];

		mutex_lock(&node->lock);
		list_splice_init(&node->kept.pieces, &node->back);
		list_splice_init(&node->kept.blocks, &node->back);
		node->kept.nr_pages = 0;
		demeter_node_unlock(node);
	}
	demeter_refresh_watermarks();
}

/* Set up queues and start. The lifecycle lock is held. */
static int attach(struct virtio_device *vdev)
{
	struct virtqueue *vqs[VIRTIO_DEMETER_VQ_REPORT + VIRTIO_DEMETER_MAX_NODES];
	struct demeter_balloon_node *node;
	unsigned int i;
	int ret;

	ret = read_config(vdev);
	if (ret)
		return ret;
	ret = find_queues(vdev, vqs);
	if (ret)
		return ret;
	demeter_balloon.requests = vqs[VIRTIO_DEMETER_VQ_REQUEST];
	demeter_balloon.statistics = vqs[VIRTIO_DEMETER_VQ_STATISTICS];
	for (i = 0; i < demeter_balloon.nr_nodes; i++) {
		node = &demeter_balloon.nodes[i];
		ret = demeter_reports_init(node, vqs[VIRTIO_DEMETER_VQ_REPORT + i]);
		if (ret)
			goto out_free;
	}
	WRITE_ONCE(demeter_balloon.attached, true);
	/*
	 * Not waiting for it, as it may be waiting for the lifecycle lock; it will find
	 * the device attached.
	 */
	cancel_delayed_work(&demeter_balloon.grace_work);
	/* A smaller device than the last one will never ask for these. */
	give_back_kept(demeter_balloon.nr_nodes);
	virtio_device_ready(vdev);
	demeter_requests_start();
	demeter_statistics_start();
	for (i = 0; i < demeter_balloon.nr_nodes; i++)
		demeter_node_kick(&demeter_balloon.nodes[i]);
	return 0;

out_free:
	while (i--) {
		node = &demeter_balloon.nodes[i];
		mutex_lock(&node->lock);
		demeter_reports_exit(node);
		demeter_node_unlock(node);
	}
	demeter_balloon.requests = NULL;
	demeter_balloon.statistics = NULL;
	vdev->config->del_vqs(vdev);
	return ret;
}

/* Stop and let go of the queues, if there are any; pages stay. The lifecycle lock is held. */
static void detach(struct virtio_device *vdev)
{
	struct demeter_balloon_node *node;
	unsigned int i;

	if (!demeter_balloon.attached) {
		/* As a driver must leave it, also after a resume that failed. */
		virtio_reset_device(vdev);
		return;
	}
	/* From here on a node that is done makes nobody look at requests again. */
	WRITE_ONCE(demeter_balloon.attached, false);
	demeter_statistics_stop();
	for (i = 0; i < demeter_balloon.nr_nodes; i++)
		WRITE_ONCE(demeter_balloon.nodes[i].interrupt, true);
	/* No callback runs after the reset; one that ran before may have queued work. */
	virtio_reset_device(vdev);
	cancel_work_sync(&demeter_balloon.request_work);
	for (i = 0; i < demeter_balloon.nr_nodes; i++) {
		struct virtqueue *vq;

		node = &demeter_balloon.nodes[i];
		cancel_work_sync(&node->work);
		mutex_lock(&node->lock);
		demeter_reports_collect(node);
		vq = node->vq;
		while (virtqueue_detach_unused_buf(vq))
			;
		demeter_reports_exit(node);
		demeter_node_unlock(node);
		demeter_node_tell(node);
	}
	while (virtqueue_detach_unused_buf(demeter_balloon.requests))
		;
	while (virtqueue_detach_unused_buf(demeter_balloon.statistics))
		;
	cancel_work_sync(&demeter_balloon.request_work);
	demeter_balloon.requests = NULL;
	demeter_balloon.statistics = NULL;
	vdev->config->del_vqs(vdev);
}

static int probe(struct virtio_device *vdev)
{
	int ret = -EBUSY;

	mutex_lock(&demeter_balloon.lifecycle);
	if (demeter_balloon.vdev)
		dev_err(&vdev->dev,
			"there is a balloon device already; next: remove one of them\n");
	else
		ret = attach(vdev);
	if (!ret)
		demeter_balloon.vdev = vdev;
	mutex_unlock(&demeter_balloon.lifecycle);
	return ret;
}

/* There is no device to answer to. The lifecycle lock is held. */
static void grace_start(void)
{
	unsigned long grace = msecs_to_jiffies(READ_ONCE(grace_ms));

	demeter_balloon.grace_end = jiffies + grace;
	mod_delayed_work(demeter_balloon.wq, &demeter_balloon.grace_work, grace);
}

static void grace_work(struct work_struct *work)
{
	mutex_lock(&demeter_balloon.lifecycle);
	/* It may have waited for the lock while a device came and went again. */
	if (!demeter_balloon.attached && time_after_eq(jiffies, demeter_balloon.grace_end))
		give_back_kept(0);
	mutex_unlock(&demeter_balloon.lifecycle);
}

static u64 outstanding(struct demeter_balloon_node *node)
{
	u64 pages;

	mutex_lock(&node->lock);
	pages = node->disabled ? 0 : demeter_node_pages(node);
	demeter_node_unlock(node);
	return pages;
}

/* Wait for as long as there is progress. Returns pages that the device still has. */
static u64 wait_for_deflation(struct demeter_balloon_node *node)
{
	long left_jiffies = UNLOAD_TIMEOUT;
	u64 least = U64_MAX, now;
	int seen;

	for (;;) {
		seen = atomic_read(&node->news);
		now = outstanding(node);
		if (now < least) {
			least = now;
			left_jiffies = UNLOAD_TIMEOUT;
		}
		if (!now || !left_jiffies)
			return now;
		left_jiffies = wait_event_timeout(node->answered, atomic_read(&node->news) != seen,
						  left_jiffies);
	}
}

/* DRV-24: tell the device, for as long as it answers. */
static void deflate_all(void)
{
	unsigned int i;

	for (i = 0; i < demeter_balloon.nr_nodes; i++) {
		struct demeter_balloon_node *node = &demeter_balloon.nodes[i];

		mutex_lock(&node->lock);
		node->unloading = true;
		node->stuck = false;
		WRITE_ONCE(node->interrupt, true);
		demeter_node_unlock(node);
		demeter_node_kick(node);
	}
	for (i = 0; i < demeter_balloon.nr_nodes; i++) {
		struct demeter_balloon_node *node = &demeter_balloon.nodes[i];
		u64 now = wait_for_deflation(node);

		if (now)
			pr_warn("node %u: the host does not answer; %llu pages go back to the guest without its knowledge\n",
				i, now);
	}
}

static void remove(struct virtio_device *vdev)
{
	mutex_lock(&demeter_balloon.lifecycle);
	if (READ_ONCE(unloading) && demeter_balloon.attached)
		deflate_all();
	detach(vdev);
	demeter_balloon.vdev = NULL;
	if (!READ_ONCE(unloading))
		grace_start();
	mutex_unlock(&demeter_balloon.lifecycle);
}

/*
 * Suspend and hibernation: pages stay held, across however long it takes. An
 * image does not contain them, as they are marked offline.
 */
static int freeze(struct virtio_device *vdev)
{
	mutex_lock(&demeter_balloon.lifecycle);
	detach(vdev);
	mutex_unlock(&demeter_balloon.lifecycle);
	return 0;
}

static int restore(struct virtio_device *vdev)
{
	int ret;

	mutex_lock(&demeter_balloon.lifecycle);
	ret = attach(vdev);
	if (ret) {
		dev_err(&vdev->dev,
			"cannot go on after the suspension (error %d), pages are kept for %u ms; next: unbind the device and bind it again\n",
			ret, READ_ONCE(grace_ms));
		grace_start();
	}
	mutex_unlock(&demeter_balloon.lifecycle);
	return ret;
}

static void pause(bool paused)
{
	unsigned int i;

	WRITE_ONCE(demeter_balloon.paused, paused);
	for (i = 0; i < VIRTIO_DEMETER_MAX_NODES; i++) {
		struct demeter_balloon_node *node = &demeter_balloon.nodes[i];

		if (!paused) {
			demeter_node_kick(node);
			continue;
		}
		mutex_lock(&node->lock);
		WRITE_ONCE(node->interrupt, true);
		demeter_node_unlock(node);
	}
}

/*
 * The whole system is about to be suspended or is back, with success or without. Work is frozen
 * between two items of it, for which the kernel waits some seconds; inflating can take minutes.
 */
static int on_sleep(struct notifier_block *self, unsigned long event, void *unused)
{
	switch (event) {
	case PM_HIBERNATION_PREPARE:
	case PM_SUSPEND_PREPARE:
	case PM_RESTORE_PREPARE:
		pause(true);
		break;
	case PM_POST_HIBERNATION:
	case PM_POST_SUSPEND:
	case PM_POST_RESTORE:
		pause(false);
		break;
	}
	return NOTIFY_DONE;
}

static struct notifier_block sleep_notifier = { .notifier_call = on_sleep };

static const struct virtio_device_id ids[] = {
	{ VIRTIO_DEMETER_ID, VIRTIO_DEV_ANY_ID },
	{ 0 },
};
MODULE_DEVICE_TABLE(virtio, ids);

static struct virtio_driver driver = {
	.driver.name = KBUILD_MODNAME,
	.id_table = ids,
	.probe = probe,
	.remove = remove,
#ifdef CONFIG_PM_SLEEP
	.freeze = freeze,
	.restore = restore,
#endif
};

static int __init demeter_balloon_init(void)
{
	int ret, nid;

	/* It has just the memory that a dump takes; what the dump reads is marked offline. */
	if (is_kdump_kernel()) {
		pr_info("nothing is inflated in a kernel that takes a crash dump\n");
		return -ENODEV;
	}

	mutex_init(&demeter_balloon.lifecycle);
	INIT_DELAYED_WORK(&demeter_balloon.grace_work, grace_work);
	for (nid = 0; nid < VIRTIO_DEMETER_MAX_NODES; nid++)
		demeter_node_init(&demeter_balloon.nodes[nid], nid);
	demeter_kernel_symbols_find();

	demeter_balloon.wq =
		alloc_workqueue(KBUILD_MODNAME, WQ_UNBOUND | WQ_FREEZABLE | WQ_MEM_RECLAIM, 0);
	if (!demeter_balloon.wq)
		return -ENOMEM;
	ret = demeter_statistics_init();
	if (ret)
		goto out_wq;
	ret = demeter_requests_init();
	if (ret)
		goto out_statistics;
	ret = demeter_sysfs_init();
	if (ret)
		goto out_requests;
	ret = demeter_oom_init();
	if (ret)
		goto out_sysfs;
	ret = register_pm_notifier(&sleep_notifier);
	if (ret)
		goto out_oom;
	ret = register_virtio_driver(&driver);
	if (ret)
		goto out_sleep;
	return 0;

out_sleep:
	unregister_pm_notifier(&sleep_notifier);
out_oom:
	demeter_oom_exit();
out_sysfs:
	demeter_sysfs_exit();
out_requests:
	demeter_requests_exit();
out_statistics:
	demeter_statistics_exit();
out_wq:
	destroy_workqueue(demeter_balloon.wq);
	return ret;
}

static void __exit demeter_balloon_exit(void)
{
	WRITE_ONCE(unloading, true);
	unregister_virtio_driver(&driver);
	unregister_pm_notifier(&sleep_notifier);
	demeter_oom_exit();
	cancel_delayed_work_sync(&demeter_balloon.grace_work);
	give_back_kept(0);
	demeter_sysfs_exit();
	destroy_workqueue(demeter_balloon.wq);
	demeter_requests_exit();
	demeter_statistics_exit();
}

module_init(demeter_balloon_init);
module_exit(demeter_balloon_exit);
MODULE_LICENSE("GPL");
MODULE_VERSION(DEMETER_MODULE_VERSION);
MODULE_DESCRIPTION("Balloons of a guest's memory tiers");
