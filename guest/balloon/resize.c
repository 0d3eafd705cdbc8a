// SPDX-License-Identifier: GPL-2.0-only
/*
 * The work of a node: bring its balloon to its target, one report at a time.
 *
 * node_step() decides under the lock what comes next, so that a newer request,
 * a guest out of memory, a suspension and a device that goes away are seen between
 * any two reports. Order of precedence: HELLO, pages kept from an earlier device,
 * DONE of ended requests, then the request itself. Pages are only ever sent one way
 * at a time: before a change of direction all answers must have come.
 */
#include <linux/ktime.h>
#include <linux/mm.h>

#include "balloon.h"

enum node_step { STEP_WAIT, STEP_AGAIN, STEP_INFLATE };

/* What the balloon holds, if the device takes all that is on its way. */
static u64 coming_pages(struct demeter_balloon_node *node)
{
	return node->held.nr_pages + node->inflating_pages;
}

u64 demeter_node_pages(struct demeter_balloon_node *node)
{
	return coming_pages(node) + node->deflating_pages + node->kept.nr_pages;
}

/**
 * demeter_node_unlock() - drop the lock, then give back what is to be given back
 * @node: whose
 *
 * Return: pages that the guest got back.
 */
u64 demeter_node_unlock(struct demeter_balloon_node *node)
{
	LIST_HEAD(back);

	list_splice_init(&node->back, &back);
	mutex_unlock(&node->lock);
	return demeter_pages_give_back(&back);
}

void demeter_node_kick(struct demeter_balloon_node *node)
{
	queue_work(demeter_balloon.wq, &node->work);
}

/**
 * demeter_node_tell() - wake who waits for an answer, to look for it
 * @node: whose
 *
 * In any context but an NMI.
 */
void demeter_node_tell(struct demeter_balloon_node *node)
{
	atomic_inc(&node->news);
	wake_up(&node->answered);
}

/**
 * demeter_node_done() - have DONE sent
 * @node: whose; locked
 * @id: of the request that ended
 * @result: how
 */
void demeter_node_done(struct demeter_balloon_node *node, u64 id, u32 result)
{
	if (WARN_ON_ONCE(node->nr_done == ARRAY_SIZE(node->done)))
		return;
	node->done[node->nr_done].id = id;
	node->done[node->nr_done].result = result;
	node->nr_done++;
}

/* One request makes one DONE at most; the one being executed needs none yet. */
bool demeter_nodes_can_take_request(void)
{
	unsigned int i;

	for (i = 0; i < demeter_balloon.nr_nodes; i++)
		if (READ_ONCE(demeter_balloon.nodes[i].nr_done) >= DEMETER_NR_REQUESTS)
			return false;
	return true;
}

/**
 * demeter_node_resize() - a RESIZE came
 * @node: for which node; locked
 * @id: of the request
 * @target_pages: what it asks for
 */
void demeter_node_resize(struct demeter_balloon_node *node, u64 id, u64 target_pages)
{
	if (node->resizing)
		demeter_node_done(node, node->request_id, VIRTIO_DEMETER_SUPERSEDED);
	node->resizing = true;
	node->request_id = id;
	node->target_pages = target_pages;
	node->stuck = false;
	node->tried_again = false;
	node->oom = false;
	node->resize_started_ns = ktime_get_ns();
	WRITE_ONCE(node->interrupt, true);
	node->evacuate_fresh = true;
}

static void finish(struct demeter_balloon_node *node)
{
	u32 result = VIRTIO_DEMETER_FLOOR;

	if (node->held.nr_pages == node->target_pages)
		result = VIRTIO_DEMETER_REACHED;
	else if (node->oom)
		result = VIRTIO_DEMETER_OOM;
	node->resizing = false;
	node->last_resize_us = div_u64(ktime_get_ns() - node->resize_started_ns, NSEC_PER_USEC);
	demeter_node_done(node, node->request_id, result);
}

static void send_done(struct demeter_balloon_node *node, struct demeter_report_slot *slot)
{
	struct demeter_done done = node->done[0];

	node->nr_done--;
	memmove(&node->done[0], &node->done[1], node->nr_done * sizeof(node->done[0]));
	demeter_report_plain(node, slot, VIRTIO_DEMETER_DONE, done.id, done.result);
	/* Requests wait while there are too many to report. */
	queue_work(demeter_balloon.wq, &demeter_balloon.request_work);
	if (done.result != VIRTIO_DEMETER_SUPERSEDED && done.result != VIRTIO_DEMETER_REFUSED)
		node->resized = true;
}

/* Decide what is next and do it, unless it is to inflate: that needs no lock. */
static enum node_step node_step(struct demeter_balloon_node *node,
				struct demeter_report_slot **slot, u64 *missing_pages, bool *first)
{
	u64 target, coming = coming_pages(node);

	if (!node->vq || node->disabled)
		return STEP_WAIT;
	/* Unless the module's end waits for it. */
	if (READ_ONCE(demeter_balloon.paused) && !node->unloading)
		return STEP_WAIT;
	*slot = demeter_report_get(node, false);
	if (!*slot)
		return STEP_WAIT;
	if (node->hello_due) {
		node->hello_due = false;
		demeter_report_plain(node, *slot, VIRTIO_DEMETER_HELLO, 0, 0);
		return STEP_AGAIN;
	}
	if (node->kept.nr_pages) {
		demeter_resync_some(node, *slot);
		return STEP_AGAIN;
	}
	if (node->nr_done) {
		send_done(node, *slot);
		return STEP_AGAIN;
	}
	if (!node->resizing && !node->unloading)
		goto out_wait;

	target = node->unloading ? 0 : node->target_pages;
	if (coming < target && !node->stuck && !node->oom) {
		if (node->deflating_pages)
			goto out_wait;
		*missing_pages = min_t(u64, target - coming, DEMETER_REPORT_PAGES);
		*first = node->evacuate_fresh && target - coming > DEMETER_FIRST_REPORT_PAGES;
		if (*first)
			*missing_pages = DEMETER_FIRST_REPORT_PAGES;
		WRITE_ONCE(node->interrupt, false);
		if (node->evacuate_fresh) {
			demeter_evacuate_restart(node, target - coming);
			demeter_kernel_pieces_restart(node, target - coming);
			node->evacuate_fresh = false;
		}
		return STEP_INFLATE;
	}
	if (coming > target && !node->stuck) {
		if (node->inflating_pages)
			goto out_wait;
		demeter_deflate_some(node, *slot,
				     min_t(u64, coming - target, DEMETER_REPORT_PAGES));
		return STEP_AGAIN;
	}
	if (node->inflating_pages || node->deflating_pages || !node->resizing)
		goto out_wait;
	finish(node);
	demeter_report_put(node, *slot);
	return STEP_AGAIN;

out_wait:
	demeter_report_put(node, *slot);
	return STEP_WAIT;
}

/* Find pages without the lock, then see whether they are still wanted. */
static void inflate(struct demeter_balloon_node *node, struct demeter_report_slot *slot,
		    u64 missing_pages, bool first)
{
	struct demeter_taking taking = {
		.node = node,
		.first = first,
		.left_pages = missing_pages,
		.left_ranges = demeter_balloon.max_ranges,
		.pages = &slot->pages,
	};
	bool found = demeter_take_pages(&taking);
	u64 taken = 0;
	struct page *page;

	list_for_each_entry(page, &slot->pages, lru)
		taken += 1ULL << page_private(page);

	mutex_lock(&node->lock);
	if (!found && !node->interrupt) {
		/* What was in use for a moment may be free by now: all is tried twice. */
		node->stuck = node->tried_again;
		node->tried_again = true;
		node->evacuate_fresh = true;
	}
	if (found && node->vq && node->resizing && !node->oom && !node->unloading &&
	    coming_pages(node) + taken <= node->target_pages) {
		node->nr_free_block_pages += taking.free_block_pages;
		node->nr_evacuated_pages += taking.evacuated_pages;
		demeter_report_pages(node, slot, VIRTIO_DEMETER_INFLATED, false);
	} else {
		list_splice_init(&slot->pages, &node->back);
		demeter_report_put(node, slot);
	}
	demeter_node_unlock(node);
}

static void node_work(struct work_struct *work)
{
	struct demeter_balloon_node *node = container_of(work, struct demeter_balloon_node, work);
	struct demeter_report_slot *slot;
	enum node_step step;
	u64 missing_pages;
	bool first, resized;

	do {
		mutex_lock(&node->lock);
		demeter_reports_collect(node);
		step = node_step(node, &slot, &missing_pages, &first);
		resized = node->resized;
		node->resized = false;
		demeter_node_unlock(node);
		if (step == STEP_INFLATE)
			inflate(node, slot, missing_pages, first);
		if (resized) {
			demeter_refresh_watermarks();
			demeter_statistics_push(VIRTIO_DEMETER_EVENT_RESIZED);
		}
		cond_resched();
	} while (step != STEP_WAIT);
	demeter_node_tell(node);
}

void demeter_node_init(struct demeter_balloon_node *node, int nid)
{
	node->nid = nid;
	INIT_WORK(&node->work, node_work);
	init_waitqueue_head(&node->answered);
	mutex_init(&node->lock);
	INIT_LIST_HEAD(&node->slots_free);
	INIT_LIST_HEAD(&node->slots_sent);
	INIT_LIST_HEAD(&node->back);
	demeter_page_store_init(&node->held);
	demeter_page_store_init(&node->kept);
}
