/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A hostile driver of virtio-demeter-balloon: what its parts share.
 *
 * Each probe is one line in the kernel log, "ok NAME" or "not ok NAME: why", and
 * cites the clause of docs/spec/virtio-demeter-balloon.md that it is about.
 */
#ifndef DEMETER_BALLOON_HOSTILE_H
#define DEMETER_BALLOON_HOSTILE_H

#include <linux/types.h>
#include <linux/virtio.h>

#include "virtio_demeter.h"

#define HOSTILE_TABLE_ORDER 8	 /* 65536 descriptors */
#define HOSTILE_NO_ANSWER   (-1) /* nothing came back in time */
#define HOSTILE_EMPTY_USED  (-2) /* the buffer came back unwritten */

/**
 * struct hostile - the device under attack
 * @vdev: it
 * @vqs: its queues
 * @nr_nodes: as in its configuration
 * @max_ranges: as in its configuration
 * @out: what is sent; room for @max_ranges + 1 ranges
 * @ack: what comes back
 * @own: one page of each of two nodes that this driver owns
 * @table: of indirect descriptors; the device may look at it until it is reset
 * @nr_ok: probes that went as they should
 * @nr_bad: probes that did not
 */
struct hostile {
	struct virtio_device *vdev;
	struct virtqueue *vqs[VIRTIO_DEMETER_VQ_REPORT + VIRTIO_DEMETER_MAX_NODES];
	unsigned int nr_nodes;
	u32 max_ranges;
	struct virtio_demeter_report *out;
	struct virtio_demeter_ack *ack;
	struct page *own[2];
	struct vring_desc *table;
	unsigned int nr_ok;
	unsigned int nr_bad;
};

/* exchange.c */
void hostile_report(struct hostile *h, u16 op, u16 node, u32 flags, u32 nr_ranges);
struct virtio_demeter_range *hostile_range(struct hostile *h, unsigned int i, u64 gpa,
					   u64 nr_pages);
int hostile_exchange(struct hostile *h, unsigned int queue, size_t out_bytes, size_t in_bytes);
void hostile_verdict(struct hostile *h, const char *name, int want, int got);
u64 hostile_own_gpa(struct hostile *h, unsigned int node);

/* reports.c */
void hostile_reports(struct hostile *h);
void hostile_exhaust(struct hostile *h);

/* rings.c */
void hostile_rings(struct hostile *h);

#endif /* DEMETER_BALLOON_HOSTILE_H */
