// SPDX-License-Identifier: GPL-2.0-only
/*
 * Reports: what the device is told about the pages of a node, and its answers.
 *
 * A node has a fixed number of report slots, allocated when the device comes,
 * so that reporting never allocates. The pages of a report on its way belong to
 * its slot; the answer decides where they go. Everything here is called with
 * the node's lock held, save demeter_reports_init() and demeter_report_answered().
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/list_sort.h>
#include <linux/mm.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>
#include <linux/virtio.h>

#include "balloon.h"

static void free_slot(struct demeter_report_slot *slot)
{
	kfree(slot->ack);
	kfree(slot->message);
	kfree(slot);
}

static struct demeter_report_slot *make_slot(void)
{
	size_t message_bytes = struct_size((struct demeter_report_message *)NULL, ranges,
					   demeter_balloon.max_ranges);
	struct demeter_report_slot *slot = kzalloc(sizeof(*slot), GFP_KERNEL);

	if (!slot)
		return NULL;
	INIT_LIST_HEAD(&slot->pages);
	slot->ack = kmalloc(sizeof(*slot->ack), GFP_KERNEL);
	slot->message = kmalloc(message_bytes, GFP_KERNEL);
	if (slot->ack && slot->message)
		return slot;
	free_slot(slot);
	return NULL;
}

/**
 * demeter_reports_init() - get slots for a new device
 * @node: whose; its lock is not held, as the OOM killer wants it while memory is allocated
 * @vq: its report queue
 *
 * Return: 0 or -ENOMEM.
 */
int demeter_reports_init(struct demeter_balloon_node *node, struct virtqueue *vq)
{
	struct demeter_report_slot *slot, *next;
	LIST_HEAD(slots);
	unsigned int i;

	for (i = 0; i < DEMETER_NR_REPORTS; i++) {
		slot = make_slot();
		if (!slot)
			goto out_free;
		list_add(&slot->link, &slots);
	}
	mutex_lock(&node->lock);
	list_splice(&slots, &node->slots_free);
	node->nr_slots_free += DEMETER_NR_REPORTS;
	node->vq = vq;
	node->disabled = false;
	node->hello_due = true;
	node->kept_broken = false;
	demeter_node_unlock(node);
	return 0;

out_free:
	list_for_each_entry_safe(slot, next, &slots, link)
		free_slot(slot);
	return -ENOMEM;
}

/**
 * demeter_reports_exit() - the device is gone: take stock
 * @node: whose; its queue has been reset
 *
 * Pages in reports without an answer are kept like the inflated ones: the
 * device may or may not have taken note of them.
 */
void demeter_reports_exit(struct demeter_balloon_node *node)
{
	struct demeter_report_slot *slot, *next;

	list_splice_init(&node->slots_sent, &node->slots_free);
	list_for_each_entry_safe(slot, next, &node->slots_free, link) {
		list_del(&slot->link);
		demeter_page_store_splice(&node->kept, &slot->pages);
		free_slot(slot);
	}
	demeter_page_store_splice(&node->kept, &node->held.pieces);
	demeter_page_store_splice(&node->kept, &node->held.blocks);
	node->held.nr_pages = 0;
	node->nr_slots_free = 0;
	node->inflating_pages = 0;
	node->deflating_pages = 0;
	node->resizing = false;
	node->nr_done = 0;
	node->hello_due = false;
	node->vq = NULL;
}

/**
 * demeter_report_get() - get a slot
 * @node: whose
 * @last: also the last one, which is there for an out-of-memory guest
 *
 * Return: a slot without pages, or NULL while all are on their way.
 */
struct demeter_report_slot *demeter_report_get(struct demeter_balloon_node *node, bool last)
{
	struct demeter_report_slot *slot;

	if (node->nr_slots_free <= (last ? 0 : 1))
		return NULL;
	slot = list_first_entry(&node->slots_free, struct demeter_report_slot, link);
	list_del(&slot->link);
	node->nr_slots_free--;
	slot->nr_pages = 0;
	slot->resync = false;
	slot->abandoned = false;
	return slot;
}

void demeter_report_put(struct demeter_balloon_node *node, struct demeter_report_slot *slot)
{
	list_add(&slot->link, &node->slots_free);
	node->nr_slots_free++;
}

static int by_address(void *unused, const struct list_head *a, const struct list_head *b)
{
	return list_entry(a, struct page, lru) > list_entry(b, struct page, lru);
}

/* Write the pages of a slot as ranges, in order of address and joined. */
static u32 fill_ranges(struct demeter_report_slot *slot)
{
	struct virtio_demeter_range *range = slot->message->ranges;
	u64 start = 0, end = 0;
	u32 nr = 0;
	struct page *page;

	slot->nr_pages = 0;
	list_sort(NULL, &slot->pages, by_address);
	list_for_each_entry(page, &slot->pages, lru) {
		u64 nr_pages = 1ULL << page_private(page);
		u64 pfn = page_to_pfn(page);

		if (!nr || pfn != end) {
			start = pfn;
			nr++;
		}
		end = pfn + nr_pages;
		range[nr - 1].gpa = cpu_to_le64(start << VIRTIO_DEMETER_PAGE_SHIFT);
		range[nr - 1].nr_pages = cpu_to_le64(end - start);
		slot->nr_pages += nr_pages;
	}
	return nr;
}

static void refuse(struct demeter_balloon_node *node, struct demeter_report_slot *slot, u32 status)
{
	node->nr_refused++;
	if (status == VIRTIO_DEMETER_E_DISABLED) {
		if (!node->disabled)
			pr_err("node %d: the host has disabled the balloon; next: see the log of its daemon\n",
			       node->nid);
		node->disabled = true;
		return;
	}
	pr_warn_ratelimited("node %d: report refused by the host (op %u, %llu pages): status %u\n",
			    node->nid, slot->op, slot->nr_pages, status);
	/* Another try would end the same way. */
	node->stuck = true;
	if (slot->op == VIRTIO_DEMETER_HELLO)
		node->disabled = true;
}

/* The answer to a report decides where its pages go. */
static void settle(struct demeter_balloon_node *node, struct demeter_report_slot *slot, u32 status)
{
	bool ok = status == VIRTIO_DEMETER_OK;

	if (!ok)
		refuse(node, slot, status);
	if (slot->op == VIRTIO_DEMETER_INFLATED) {
		node->inflating_pages -= slot->nr_pages;
		if (ok) {
			demeter_page_store_splice(&node->held, &slot->pages);
			if (!slot->resync)
				node->nr_inflated_pages += slot->nr_pages;
		} else {
			list_splice_init(&slot->pages, &node->back);
		}
	} else if (slot->op == VIRTIO_DEMETER_DEFLATE && !slot->abandoned) {
		node->deflating_pages -= slot->nr_pages;
		if (ok) {
			list_splice_init(&slot->pages, &node->back);
			node->nr_deflated_pages += slot->nr_pages;
		} else {
			demeter_page_store_splice(&node->held, &slot->pages);
		}
	}
	demeter_report_put(node, slot);
}

static void send(struct demeter_balloon_node *node, struct demeter_report_slot *slot, u64 id,
		 u32 flags, u32 nr_ranges, u32 result, u64 current_pages)
{
	struct virtio_demeter_report *report = &slot->message->report;
	struct scatterlist out, in, *sgs[2] = { &out, &in };

	report->id = cpu_to_le64(id);
	report->op = cpu_to_le16(slot->op);
	report->node = cpu_to_le16(node->nid);
	report->flags = cpu_to_le32(flags);
	report->nr_ranges = cpu_to_le32(nr_ranges);
	report->result = cpu_to_le32(result);
	report->current_pages = cpu_to_le64(current_pages);
	slot->ack->status = cpu_to_le32(VIRTIO_DEMETER_E_MALFORMED);
	slot->ack->bad_range = 0;

	sg_init_one(&out, slot->message, struct_size(slot->message, ranges, nr_ranges));
	sg_init_one(&in, slot->ack, sizeof(*slot->ack));
	if (virtqueue_add_sgs(node->vq, sgs, 1, 1, slot, GFP_NOWAIT)) {
		/* The queue is larger than all slots, so it can only be broken. */
		if (!node->disabled)
			pr_warn("node %d: the report queue is broken\n", node->nid);
		node->disabled = true;
		settle(node, slot, VIRTIO_DEMETER_E_DISABLED);
		return;
	}
	list_add_tail(&slot->link, &node->slots_sent);
	virtqueue_kick(node->vq);
}

/**
 * demeter_report_pages() - send INFLATED or DEFLATE
 * @node: whose
 * @slot: with pages
 * @op: which
 * @resync: these were kept from an earlier device
 */
void demeter_report_pages(struct demeter_balloon_node *node, struct demeter_report_slot *slot,
			  u16 op, bool resync)
{
	u32 nr_ranges = fill_ranges(slot);
	bool own = resync || !node->resizing || node->oom || node->unloading;

	slot->op = op;
	slot->resync = resync;
	if (op == VIRTIO_DEMETER_INFLATED)
		node->inflating_pages += slot->nr_pages;
	else
		node->deflating_pages += slot->nr_pages;
	send(node, slot, own ? 0 : node->request_id, resync ? VIRTIO_DEMETER_INFLATED_RESYNC : 0,
	     nr_ranges, 0, node->held.nr_pages + node->inflating_pages);
}

/**
 * demeter_report_plain() - send HELLO or DONE
 * @node: whose
 * @slot: without pages
 * @op: which
 * @id: of the request that ended, for DONE
 * @result: how, for DONE
 */
void demeter_report_plain(struct demeter_balloon_node *node, struct demeter_report_slot *slot,
			  u16 op, u64 id, u32 result)
{
	bool hello = op == VIRTIO_DEMETER_HELLO;
	bool resync = hello && node->kept.nr_pages;

	slot->op = op;
	send(node, slot, id, resync ? VIRTIO_DEMETER_HELLO_RESYNC : 0, 0, result,
	     hello ? node->kept.nr_pages : node->held.nr_pages + node->inflating_pages);
}

/**
 * demeter_reports_collect() - act on the answers that have come
 * @node: whose
 */
void demeter_reports_collect(struct demeter_balloon_node *node)
{
	struct demeter_report_slot *slot;
	unsigned int length_bytes;

	if (!node->vq)
		return;
	while ((slot = virtqueue_get_buf(node->vq, &length_bytes))) {
		u32 status = le32_to_cpu(slot->ack->status);

		if (length_bytes < sizeof(*slot->ack))
			status = VIRTIO_DEMETER_E_MALFORMED;
		list_del(&slot->link);
		settle(node, slot, status);
	}
}

/* Callback of a report queue: the work goes on. */
void demeter_report_answered(struct virtqueue *vq)
{
	struct demeter_balloon_node *node =
		&demeter_balloon.nodes[vq->index - VIRTIO_DEMETER_VQ_REPORT];

	demeter_node_kick(node);
	demeter_node_tell(node);
}
