// SPDX-License-Identifier: GPL-2.0-only
/*
 * The guest is out of memory: give pages back rather than have a task killed.
 *
 * Runs in the task that found no memory, which may hold locks that the node's
 * work waits for; the work holds its lock only while it neither allocates nor
 * waits, and here it is only tried for. Nothing is allocated: reports have one
 * slot left for this. The slowest tier goes first, as it is the guest that
 * must survive, not its placement.
 */
#include <linux/atomic.h>
#include <linux/cpuset.h>
#include <linux/delay.h>
#include <linux/jiffies.h>
#include <linux/moduleparam.h>
#include <linux/oom.h>

#include "balloon.h"

#define ANSWER_TIMEOUT msecs_to_jiffies(100)
#define RETRY_TIME     msecs_to_jiffies(5)
#define LOCK_ATTEMPTS  1000

static unsigned int oom_pages = 1024;
module_param(oom_pages, uint, 0644);
MODULE_PARM_DESC(oom_pages, "Pages to give back when the guest runs out of memory, default 1024");

static atomic64_t deflated_pages;
static atomic64_t kills;

u64 demeter_oom_deflated_pages(void)
{
	return atomic64_read(&deflated_pages);
}

/*
 * In how many seconds the guest was out of memory and had nothing to give back: a task is
 * killed then, as a rule. The kernel's own count of kills has those of a cgroup's limit as
 * well, which no memory of the host's helps.
 */
u64 demeter_oom_kills(void)
{
	return atomic64_read(&kills);
}

static bool lock_soon(struct demeter_balloon_node *node)
{
	unsigned int i;

	for (i = 0; i < LOCK_ATTEMPTS; i++) {
		if (mutex_trylock(&node->lock))
			return true;
		usleep_range(500, 1000);
	}
	return false;
}

static bool has_device(struct demeter_balloon_node *node)
{
	return node->vq && !node->disabled && !virtqueue_is_broken(node->vq);
}

/* Take what the device has not been told of; without one that works the rest, too (DRV-17). */
static u64 take_unasked(struct demeter_balloon_node *node, u64 most_pages)
{
	while (most_pages) {
		struct page *page = demeter_page_store_take(&node->kept, most_pages);

		if (!page && !has_device(node))
			page = demeter_page_store_take(&node->held, most_pages);
		if (!page)
			break;
		most_pages -= min(most_pages, 1ULL << page_private(page));
		list_add(&page->lru, &node->back);
	}
	return demeter_node_unlock(node);
}

/*
 * Has the device taken a DEFLATE since? Whoever collects the answer, here or the
 * node's work, gives the pages back. Or for a resync: does it know pages that it can be
 * asked for? Before it has been told of all that were kept nothing else may be sent.
 */
static bool answered(struct demeter_balloon_node *node, u64 deflated_before, bool resync)
{
	bool done;

	if (!mutex_trylock(&node->lock))
		return false;
	demeter_reports_collect(node);
	if (resync)
		done = !node->kept.nr_pages && node->held.nr_pages;
	else
		done = node->nr_deflated_pages != deflated_before;
	done = done || !node->vq;
	demeter_node_unlock(node);
	return done;
}

/* Collects by itself, as the node's work may be waiting for memory. */
static bool wait_for_answer(struct demeter_balloon_node *node, u64 deflated_before, bool resync)
{
	unsigned long end = jiffies + ANSWER_TIMEOUT;
	bool done;
	int seen;

	for (;;) {
		seen = atomic_read(&node->news);
		done = answered(node, deflated_before, resync);
		if (done || !time_before(jiffies, end))
			break;
		/* Short, as the lock may have been taken just then. */
		wait_event_timeout(node->answered, atomic_read(&node->news) != seen, RETRY_TIME);
	}
	/* What was taken here brings no interrupt that would wake the node's work. */
	demeter_node_kick(node);
	return done;
}

/*
 * A host that has stopped answering can be told a few times more only, as many
 * as there are slots: tell it more each time.
 */
static u64 pages_to_ask_for(struct demeter_balloon_node *node)
{
	u64 pages = max(READ_ONCE(oom_pages), 1U);
	struct demeter_report_slot *slot;

	list_for_each_entry(slot, &node->slots_sent, link)
		if (slot->abandoned)
			pages *= 4;
	return pages;
}

/* No answer in time: take the pages of unanswered DEFLATE reports (DRV-17). */
static void abandon(struct demeter_balloon_node *node)
{
	struct demeter_report_slot *slot;

	if (!lock_soon(node))
		return;
	demeter_reports_collect(node);
	list_for_each_entry(slot, &node->slots_sent, link) {
		if (slot->op != VIRTIO_DEMETER_DEFLATE || slot->abandoned)
			continue;
		slot->abandoned = true;
		node->deflating_pages -= slot->nr_pages;
		node->nr_deflated_pages += slot->nr_pages;
		list_splice_init(&slot->pages, &node->back);
	}
	demeter_node_unlock(node);
}

/*
 * Can nothing be asked for before the host has answered? It need not be waited for until HELLO is
 * sent, which says how many pages are kept by then, nor once it was told of too many.
 */
static bool is_resyncing(struct demeter_balloon_node *node)
{
	return has_device(node) && !node->hello_due && !node->kept_broken &&
	       (node->kept.nr_pages || (node->inflating_pages && !node->held.nr_pages));
}

/* Return: pages that the guest has got back meanwhile. */
static u64 relieve(struct demeter_balloon_node *node)
{
	struct demeter_report_slot *slot = NULL;
	u64 freed, before;
	bool sent;

	if (!lock_soon(node))
		return 0;
	node->oom = true;
	WRITE_ONCE(node->interrupt, true);
	demeter_reports_collect(node);
	if (is_resyncing(node)) {
		freed = demeter_node_unlock(node);
		if (freed)
			return freed;
		wait_for_answer(node, 0, true);
		if (!lock_soon(node))
			return 0;
		demeter_reports_collect(node);
	}
	if (!has_device(node) || node->kept.nr_pages) {
		/* The device never learns of these: both sides go on counting alike (DRV-5). */
		node->kept_broken = !node->hello_due;
		return take_unasked(node, max(READ_ONCE(oom_pages), 1U));
	}
	before = node->nr_deflated_pages;
	if (node->held.nr_pages && !node->hello_due)
		slot = demeter_report_get(node, true);
	if (slot)
		demeter_deflate_some(node, slot, pages_to_ask_for(node));
	sent = node->deflating_pages;
	freed = demeter_node_unlock(node);
	if (!sent || freed)
		return freed;
	if (!wait_for_answer(node, before, false))
		abandon(node);
	return READ_ONCE(node->nr_deflated_pages) - before;
}

/*
 * The kernel asks before it looks at what the task is bound to. A tier that has pages to spare
 * is probably not what is lacking, and if it gave more, a task bound to the other one would
 * empty this one's balloon first, in vain.
 */
static bool is_lacking(int nid)
{
	return node_state(nid, N_MEMORY) && node_isset(nid, cpuset_current_mems_allowed) &&
	       demeter_node_usable_pages(nid) < max(READ_ONCE(oom_pages), 1U);
}

static u64 relieve_nodes(bool lacking)
{
	u64 pages = 0;
	int nid;

	for (nid = VIRTIO_DEMETER_MAX_NODES - 1; nid >= 0 && !pages; nid--)
		if (is_lacking(nid) == lacking)
			pages = relieve(&demeter_balloon.nodes[nid]);
	return pages;
}

/* Has a second passed since then? If so, then is now. Under the kernel's oom_lock. */
static bool once_in_a_second(unsigned long *then)
{
	if (time_before(jiffies, *then + HZ))
		return false;
	*then = jiffies;
	return true;
}

static int on_oom(struct notifier_block *self, unsigned long unused, void *data)
{
	static unsigned long last_try, last_kill;
	u64 pages = relieve_nodes(true);
	unsigned long *freed = data;

	/*
	 * Nor must a task die that lacks a large block, another zone, or memory of its kernel's,
	 * which keeps to no cpuset. It is helped seldom enough to empty no balloon.
	 */
	if (!pages && once_in_a_second(&last_try))
		pages = relieve_nodes(false);
	if (pages) {
		atomic64_add(pages, &deflated_pages);
		*freed += pages;
		demeter_statistics_push(VIRTIO_DEMETER_EVENT_OOM);
		return NOTIFY_OK;
	}
	/*
	 * Somebody before may have helped. And while a victim is on its way out, each task that
	 * lacks memory asks again and again: that is one kill.
	 */
	if (!*freed && once_in_a_second(&last_kill)) {
		atomic64_inc(&kills);
		demeter_statistics_push(VIRTIO_DEMETER_EVENT_OOM);
	}
	return NOTIFY_OK;
}

static struct notifier_block oom_notifier = { .notifier_call = on_oom };

int demeter_oom_init(void)
{
	return register_oom_notifier(&oom_notifier);
}

void demeter_oom_exit(void)
{
	unregister_oom_notifier(&oom_notifier);
}
