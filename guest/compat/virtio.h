/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * linux/virtio_config.h: what changed between 6.1 and 7.x.
 *
 * Drop a block when the oldest supported kernel is newer than the version it
 * names; drop the file when no block is left. Written 2026-11.
 */
#ifndef DEMETER_COMPAT_VIRTIO_H
#define DEMETER_COMPAT_VIRTIO_H

#include <linux/version.h>
#include <linux/virtio_config.h>

/* Most queues that demeter_find_vqs() is asked for. */
#define DEMETER_COMPAT_MAX_VQS 8

/* 6.11 (2024-09) put names and callbacks into one array. Older side may go with 6.1. */
static inline int demeter_find_vqs(struct virtio_device *vdev, unsigned int nr,
				   struct virtqueue *vqs[], vq_callback_t *callbacks[],
				   const char *const names[])
{
#if KERNEL_VERSION(6, 11, 0) <= LINUX_VERSION_CODE
	struct virtqueue_info info[DEMETER_COMPAT_MAX_VQS] = {};
	unsigned int i;

	for (i = 0; i < nr; i++) {
		info[i].name = names[i];
		info[i].callback = callbacks[i];
	}
	return virtio_find_vqs(vdev, nr, vqs, info, NULL);
#else
	return virtio_find_vqs(vdev, nr, vqs, callbacks, names, NULL);
#endif
}

#endif /* DEMETER_COMPAT_VIRTIO_H */
