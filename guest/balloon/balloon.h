/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Driver of virtio-demeter-balloon devices: what its parts share.
 *
 * There is one balloon per NUMA node and at most one device. The balloons
 * outlive the device: after it went away they keep their pages for a grace
 * period, and the next device hears of them (docs/spec/virtio-demeter-balloon.md).
 *
 * A request becomes work of a node (resize.c), which takes pages from the
 * guest (inflate.c and what it calls) or gives them back (deflate.c, pages.c),
 * a report at a time (report.c). Nothing waits for the device: work that could
 * do no more ends, and the next answer starts it again. The exceptions are an
 * out-of-memory guest (oom.c) and unloading (main.c), with a time limit.
 */
#ifndef DEMETER_BALLOON_H
#define DEMETER_BALLOON_H

#include <linux/atomic.h>
#include <linux/kobject.h>
#include <linux/list.h>
#include <linux/mmzone.h>
#include <linux/mutex.h>
#include <linux/types.h>
#include <linux/virtio.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "virtio_demeter.h"

#define DEMETER_NR_REQUESTS	   8	/* request buffers that the device can fill at once */
#define DEMETER_NR_REPORTS	   8	/* reports of a node on their way at once */
#define DEMETER_MAX_RANGES	   1023 /* ranges of a report: 16 KiB with its header */
/*
 * Pages of a report: large enough to make its fixed cost vanish, small enough
 * that the host drops one while the guest collects the next.
 */
#define DEMETER_REPORT_PAGES	   8192
/* Of the first report of a request: the host, which has more to do, begins with it at once. */
#define DEMETER_FIRST_REPORT_PAGES 2048

/**
 * struct demeter_report_message - what the device reads
 * @report: the header
 * @ranges: as many as the header says
 */
struct demeter_report_message {
	struct virtio_demeter_report report;
	struct virtio_demeter_range ranges[];
};

/**
 * struct demeter_report_slot - one report on its way
 * @link: in demeter_balloon_node.slots_free or .slots_sent
 * @pages: what it reports, heads by page->lru, order in page->private
 * @nr_pages: their number in pages, whatever their order
 * @op: enum virtio_demeter_report_op
 * @resync: INFLATED that reports pages kept from an earlier device
 * @abandoned: DEFLATE whose pages were given back without an answer
 * @ack: written by the device
 * @message: report and ranges, read by the device
 */
struct demeter_report_slot {
	struct list_head link;
	struct list_head pages;
	u64 nr_pages;
	u16 op;
	bool resync;
	bool abandoned;
	struct virtio_demeter_ack *ack;
	struct demeter_report_message *message;
};

/**
 * struct demeter_page_store - pages out of the guest's use
 * @blocks: of pageblock_order and more
 * @pieces: smaller ones
 * @nr_pages: on both
 */
struct demeter_page_store {
	struct list_head blocks;
	struct list_head pieces;
	u64 nr_pages;
};

/**
 * struct demeter_done - a request that ended and whose DONE is not sent yet
 * @id: of the request
 * @result: enum virtio_demeter_result
 */
struct demeter_done {
	u64 id;
	u32 result;
};

/**
 * struct demeter_balloon_node - the balloon of one NUMA node
 * @nid: the node
 * @work: brings the balloon towards its target
 * @answered: woken by demeter_node_tell()
 * @news: times that the device may have answered a report, or the work got on
 * @interrupt: inflating must look at @lock's fields again; written under @lock,
 *	read without
 * @evacuate_pfn: where to look next for something to empty; @work only, as the
 *	following
 * @evacuate_order: size of what this pass over the node looks at
 * @evacuate_left: how many of them it has not looked at
 * @evacuate_failed: how many it could not empty
 * @half_free_left: how many half-free blocks it may still try to empty for this
 *	request; @work only
 * @piece_pages_left: how much free memory beside the kernel's own it may still take
 *	for this request; @work only
 * @lock: protects all that follows, and the report queue. Never held while
 *	memory is allocated or waited for, so that oom.c can take it.
 * @vq: report queue; NULL without a device
 * @hello_due: HELLO is yet to be sent
 * @disabled: the device takes nothing any more
 * @slots_free: report slots at hand
 * @slots_sent: report slots with the device
 * @nr_slots_free: length of @slots_free
 * @held: pages that the device knows as inflated
 * @kept: pages of an earlier device which this one does not know yet
 * @kept_broken: of those that HELLO announced, some are the guest's again
 * @inflating_pages: in INFLATED reports without an answer
 * @deflating_pages: in DEFLATE reports without an answer
 * @resizing: a RESIZE is being executed
 * @request_id: its id, or 0 for the driver's own account
 * @target_pages: its target
 * @stuck: no more can be reached of it
 * @tried_again: nothing more was found for it once already
 * @evacuate_fresh: all blocks are to be looked at for it, from the first on
 * @resized: a RESIZE ended and the statistics do not tell it yet
 * @oom: it met an out-of-memory guest
 * @unloading: give everything back and stay so
 * @back: pages to give back to the guest once @lock is dropped
 * @done: ended requests whose DONE is due, oldest first
 * @nr_done: their number
 * @nr_refused: reports that the device refused, since load
 * @nr_inflated_pages: pages inflated since load
 * @nr_deflated_pages: pages deflated since load
 * @nr_free_block_pages: of @nr_inflated_pages, taken as free blocks
 * @nr_evacuated_pages: of @nr_inflated_pages, emptied of what was in them
 * @last_resize_us: time that the last RESIZE took
 * @resize_started_ns: when the RESIZE being executed came
 * @kobj: directory in sysfs
 */
struct demeter_balloon_node {
	int nid;
	struct work_struct work;
	wait_queue_head_t answered;
	atomic_t news;
	bool interrupt;
	unsigned long evacuate_pfn;
	unsigned int evacuate_order;
	unsigned long evacuate_left;
	unsigned long evacuate_failed;
	u64 half_free_left;
	u64 piece_pages_left;

	struct mutex lock; /* see above */
	struct virtqueue *vq;
	bool hello_due;
	bool disabled;
	struct list_head slots_free;
	struct list_head slots_sent;
	unsigned int nr_slots_free;
	struct demeter_page_store held;
	struct demeter_page_store kept;
	bool kept_broken;
	u64 inflating_pages;
	u64 deflating_pages;
	bool resizing;
	u64 request_id;
	u64 target_pages;
	bool stuck;
	bool tried_again;
	bool oom;
	bool evacuate_fresh;
	bool resized;
	bool unloading;
	struct list_head back;
	struct demeter_done done[DEMETER_NR_REQUESTS];
	unsigned int nr_done;

	u64 nr_refused;
	u64 nr_inflated_pages;
	u64 nr_deflated_pages;
	u64 nr_free_block_pages;
	u64 nr_evacuated_pages;
	u64 last_resize_us;
	u64 resize_started_ns;
	struct kobject *kobj;
};

/**
 * struct demeter_balloon - all of it
 * @lifecycle: serialises probe, remove, freeze, restore and the end of grace
 * @vdev: the device; NULL without. Protected by @lifecycle, as the next two
 * @attached: it has queues; not while it is suspended, nor after a failed resume; requests are
 *	read only meanwhile
 * @paused: the system is about to be suspended, or is: nodes begin nothing; written by the
 *	kernel's notifier alone, before each node's @interrupt, and read under the node's lock
 * @grace_end: when (jiffies) pages are kept no longer, if no device comes
 * @requests: request queue; protected by @lifecycle and, in between, used by
 *	@request_work alone
 * @statistics: statistics queue; used under statistics.c's lock
 * @nr_nodes: of the device, 1 to VIRTIO_DEMETER_MAX_NODES
 * @max_ranges: of the device, at most DEMETER_MAX_RANGES
 * @statistics_interval_ms: of the device
 * @request_work: reads requests
 * @request_buffers: for the device to fill
 * @grace_work: gives kept pages back when no device has come
 * @wq: for all work
 * @nodes: one per node that a device can name
 */
struct demeter_balloon {
	struct mutex lifecycle; /* see above */
	struct virtio_device *vdev;
	bool attached;
	bool paused;
	unsigned long grace_end;
	struct virtqueue *requests;
	struct virtqueue *statistics;
	unsigned int nr_nodes;
	unsigned int max_ranges;
	unsigned int statistics_interval_ms;
	struct work_struct request_work;
	struct virtio_demeter_request *request_buffers;
	struct delayed_work grace_work;
	struct workqueue_struct *wq;
	struct demeter_balloon_node nodes[VIRTIO_DEMETER_MAX_NODES];
};

extern struct demeter_balloon demeter_balloon;

/* pages.c: pages out of the guest's use, and back */
void demeter_page_store_init(struct demeter_page_store *store);
void demeter_page_store_add(struct demeter_page_store *store, struct page *page);
void demeter_page_store_splice(struct demeter_page_store *store, struct list_head *pages);
struct page *demeter_page_store_take(struct demeter_page_store *store, u64 most_pages);
void demeter_page_hold(struct page *page, unsigned int order);
u64 demeter_pages_give_back(struct list_head *pages);
unsigned long demeter_zone_kept_pages(struct zone *zone);
unsigned long demeter_zone_usable_pages(struct zone *zone);
u64 demeter_node_usable_pages(int nid);

/**
 * struct demeter_taking - a search for pages to inflate
 * @node: whose
 * @left_pages: yet to be found
 * @left_ranges: entries that @pages may still get
 * @pages: what was found, held
 * @first: for the first report of a request, which the host waits for
 * @free_block_pages: of those, taken as free blocks
 * @evacuated_pages: of those, in blocks that were emptied
 */
struct demeter_taking {
	struct demeter_balloon_node *node;
	u64 left_pages;
	unsigned int left_ranges;
	struct list_head *pages;
	bool first;
	u64 free_block_pages;
	u64 evacuated_pages;
};

/* inflate.c */
bool demeter_take_pages(struct demeter_taking *taking);
void demeter_taken(struct demeter_taking *taking, struct page *page, unsigned int order);
u64 demeter_spare_pages(void);

/* free_blocks.c: free blocks, without allocating them */
struct zone *demeter_zone_to_take(pg_data_t *pgdat, int index);
u64 demeter_take_free_blocks(struct demeter_taking *taking);
void demeter_kernel_pieces_restart(struct demeter_balloon_node *node, u64 missing_pages);
u64 demeter_take_kernel_pieces(struct demeter_taking *taking);

/* evacuate.c: blocks whose pages can move elsewhere */
void demeter_evacuate_restart(struct demeter_balloon_node *node, u64 missing_pages);
u64 demeter_take_half_free(struct demeter_taking *taking);
u64 demeter_take_evacuated(struct demeter_taking *taking, bool pieces);

/* deflate.c */
void demeter_deflate_some(struct demeter_balloon_node *node, struct demeter_report_slot *slot,
			  u64 most_pages);
void demeter_resync_some(struct demeter_balloon_node *node, struct demeter_report_slot *slot);

/* report.c */
int demeter_reports_init(struct demeter_balloon_node *node, struct virtqueue *vq);
void demeter_reports_exit(struct demeter_balloon_node *node);
struct demeter_report_slot *demeter_report_get(struct demeter_balloon_node *node, bool last);
void demeter_report_put(struct demeter_balloon_node *node, struct demeter_report_slot *slot);
void demeter_report_pages(struct demeter_balloon_node *node, struct demeter_report_slot *slot,
			  u16 op, bool resync);
void demeter_report_plain(struct demeter_balloon_node *node, struct demeter_report_slot *slot,
			  u16 op, u64 id, u32 result);
void demeter_reports_collect(struct demeter_balloon_node *node);
void demeter_report_answered(struct virtqueue *vq);

/* resize.c */
void demeter_node_init(struct demeter_balloon_node *node, int nid);
void demeter_node_resize(struct demeter_balloon_node *node, u64 id, u64 target_pages);
void demeter_node_done(struct demeter_balloon_node *node, u64 id, u32 result);
bool demeter_nodes_can_take_request(void);
u64 demeter_node_pages(struct demeter_balloon_node *node);
u64 demeter_node_unlock(struct demeter_balloon_node *node);
void demeter_node_kick(struct demeter_balloon_node *node);
void demeter_node_tell(struct demeter_balloon_node *node);

/* request.c */
int demeter_requests_init(void);
void demeter_requests_start(void);
void demeter_requests_exit(void);
void demeter_request_arrived(struct virtqueue *vq);

/* oom.c */
int demeter_oom_init(void);
void demeter_oom_exit(void);
u64 demeter_oom_deflated_pages(void);
u64 demeter_oom_kills(void);

/* statistics.c */
int demeter_statistics_init(void);
void demeter_statistics_start(void);
void demeter_statistics_stop(void);
void demeter_statistics_exit(void);
void demeter_statistics_push(u16 event);
void demeter_statistics_returned(struct virtqueue *vq);

/* pressure.c */
bool demeter_pressure_read(u64 *some_us, u64 *full_us);

/* kernel_symbols.c: kernel functions that are not exported, where they can be had */
void demeter_kernel_symbols_find(void);
bool demeter_can_isolate_free_page(void);
int demeter_isolate_free_page(struct page *page, unsigned int order);
void demeter_refresh_watermarks(void);
bool demeter_psi_text(char *text, size_t size_bytes);

/* sysfs.c */
int demeter_sysfs_init(void);
void demeter_sysfs_exit(void);

#endif /* DEMETER_BALLOON_H */
