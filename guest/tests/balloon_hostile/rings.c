// SPDX-License-Identifier: GPL-2.0-only
/*
 * Rings that make no sense (DEV-17), written past the virtio core into the
 * last report queue, which is of no use afterwards. The device may answer with
 * length 0 or stop the queue; what counts is that its other queues go on.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/delay.h>
#include <linux/gfp.h>
#include <linux/io.h>
#include <linux/mm.h>
#include <linux/virtio_ring.h>

#include "hostile.h"

#define SETTLE_MS	 300
#define INDIRECT_ENTRIES 65535u

struct raw_ring {
	struct virtqueue *vq;
	struct vring_desc *desc;
	struct vring_avail *avail;
	unsigned int size;
	struct vring_desc *table;
	u64 page_gpa;
};

static void set(struct vring_desc *desc, u64 gpa, u32 length, u16 flags, u16 next)
{
	desc->addr = (__force __virtio64)cpu_to_le64(gpa);
	desc->len = (__force __virtio32)cpu_to_le32(length);
	desc->flags = (__force __virtio16)cpu_to_le16(flags);
	desc->next = (__force __virtio16)cpu_to_le16(next);
}

/* Make @head available, @times over. */
static void offer(struct raw_ring *ring, const char *what, u16 head, u16 times)
{
	u16 index = le16_to_cpu((__force __le16)ring->avail->idx);

	ring->avail->ring[index % ring->size] = (__force __virtio16)cpu_to_le16(head);
	virtio_wmb(false);
	ring->avail->idx = (__force __virtio16)cpu_to_le16(index + times);
	virtio_mb(false);
	virtqueue_notify(ring->vq);
	msleep(SETTLE_MS);
	pr_info("sent %s\n", what);
}

static void attack(struct raw_ring *ring)
{
	u64 gpa = ring->page_gpa, table = virt_to_phys(ring->table);
	unsigned int i;

	set(&ring->desc[0], gpa, 16, VRING_DESC_F_NEXT, 0);
	offer(ring, "a descriptor that is its own next", 0, 1);
	set(&ring->desc[0], gpa, ~0u, VRING_DESC_F_NEXT, 1);
	set(&ring->desc[1], gpa, ~0u, VRING_DESC_F_NEXT, 0);
	offer(ring, "two descriptors of 4 GiB in a circle", 0, 1);
	set(&ring->desc[0], 1ULL << 45, 64, 0, 0);
	offer(ring, "a descriptor outside memory", 0, 1);
	set(&ring->desc[0], ~0ULL - 8, 64, VRING_DESC_F_WRITE, 0);
	offer(ring, "a descriptor that wraps", 0, 1);
	set(&ring->desc[0], gpa, 64, VRING_DESC_F_NEXT, 0xffff);
	offer(ring, "a next outside the table", 0, 1);

	for (i = 0; i < INDIRECT_ENTRIES; i++)
		set(&ring->table[i], gpa, 4096, VRING_DESC_F_NEXT, (i + 1) % INDIRECT_ENTRIES);
	set(&ring->desc[0], table, INDIRECT_ENTRIES * sizeof(*ring->table), VRING_DESC_F_INDIRECT,
	    0);
	offer(ring, "an indirect circle of 65535", 0, 1);
	set(&ring->table[0], table, INDIRECT_ENTRIES * sizeof(*ring->table), VRING_DESC_F_INDIRECT,
	    0);
	offer(ring, "an indirect table in itself", 0, 1);
	set(&ring->desc[0], table, 7, VRING_DESC_F_INDIRECT, 0);
	offer(ring, "an indirect table of 7 bytes", 0, 1);
	offer(ring, "a head outside the table", ring->size + 5, 1);
	offer(ring, "an available index 1000 ahead", 0, 1000);
	offer(ring, "an available index that went back", 0, 0xffff);
}

void hostile_rings(struct hostile *h)
{
	struct virtqueue *vq = h->vqs[VIRTIO_DEMETER_VQ_REPORT + h->nr_nodes - 1];
	struct raw_ring ring = {
		.vq = vq,
		.desc = phys_to_virt(virtqueue_get_desc_addr(vq)),
		.avail = phys_to_virt(virtqueue_get_avail_addr(vq)),
		.size = virtqueue_get_vring_size(vq),
		.page_gpa = hostile_own_gpa(h, 0),
	};
	int got;

	h->table = (void *)__get_free_pages(GFP_KERNEL, HOSTILE_TABLE_ORDER);
	ring.table = h->table;
	if (!ring.table) {
		hostile_verdict(h, "memory for the ring attacks", 0, -ENOMEM);
		return;
	}
	attack(&ring);
	hostile_report(h, VIRTIO_DEMETER_HELLO, 0, 0, 0);
	got = hostile_exchange(h, VIRTIO_DEMETER_VQ_REPORT, sizeof(*h->out), sizeof(*h->ack));
	hostile_verdict(h, "DEV-17 another queue works after all that", VIRTIO_DEMETER_OK, got);
}
