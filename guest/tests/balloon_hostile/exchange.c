// SPDX-License-Identifier: GPL-2.0-only
/*
 * One buffer to the device and back, of any content and any size.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/delay.h>
#include <linux/mm.h>
#include <linux/scatterlist.h>

#include "hostile.h"

#define ANSWER_TIMEOUT_MS 5000

u64 hostile_own_gpa(struct hostile *h, unsigned int node)
{
	return page_to_phys(h->own[node]);
}

/* Begin a report; the ranges come after. */
void hostile_report(struct hostile *h, u16 op, u16 node, u32 flags, u32 nr_ranges)
{
	memset(h->out, 0, sizeof(*h->out));
	h->out->op = cpu_to_le16(op);
	h->out->node = cpu_to_le16(node);
	h->out->flags = cpu_to_le32(flags);
	h->out->nr_ranges = cpu_to_le32(nr_ranges);
}

struct virtio_demeter_range *hostile_range(struct hostile *h, unsigned int i, u64 gpa, u64 nr_pages)
{
	struct virtio_demeter_range *range = (void *)(h->out + 1);

	range[i].gpa = cpu_to_le64(gpa);
	range[i].nr_pages = cpu_to_le64(nr_pages);
	return &range[i];
}

/**
 * hostile_exchange() - send what is in the buffer
 * @h: the device
 * @queue: on which queue
 * @out_bytes: how much the device may read
 * @in_bytes: how much it may write
 *
 * Return: the status it wrote, or HOSTILE_NO_ANSWER, or HOSTILE_EMPTY_USED.
 */
int hostile_exchange(struct hostile *h, unsigned int queue, size_t out_bytes, size_t in_bytes)
{
	struct scatterlist out, in, *sgs[2];
	unsigned int nr_out = 0, nr_in = 0, length_bytes, waited_ms;

	h->ack->status = cpu_to_le32(~0);
	if (out_bytes) {
		sg_init_one(&out, h->out, out_bytes);
		sgs[nr_out++] = &out;
	}
	if (in_bytes) {
		sg_init_one(&in, h->ack, in_bytes);
		sgs[nr_out + nr_in++] = &in;
	}
	if (virtqueue_add_sgs(h->vqs[queue], sgs, nr_out, nr_in, h, GFP_KERNEL))
		return HOSTILE_NO_ANSWER;
	virtqueue_kick(h->vqs[queue]);
	for (waited_ms = 0; waited_ms < ANSWER_TIMEOUT_MS; waited_ms++) {
		if (virtqueue_get_buf(h->vqs[queue], &length_bytes))
			return length_bytes < sizeof(*h->ack) ? HOSTILE_EMPTY_USED
							      : (int)le32_to_cpu(h->ack->status);
		usleep_range(500, 1000);
	}
	return HOSTILE_NO_ANSWER;
}

void hostile_verdict(struct hostile *h, const char *name, int want, int got)
{
	if (want == got) {
		h->nr_ok++;
		pr_info("ok %s\n", name);
	} else {
		h->nr_bad++;
		pr_err("not ok %s: wanted %d, got %d\n", name, want, got);
	}
}
