// SPDX-License-Identifier: GPL-2.0-only
/*
 * Statistics: what the host is told about the guest's memory.
 *
 * One buffer is on its way at a time. What happens meanwhile is remembered as
 * an event, and goes out with the figures of the moment when the buffer comes
 * back; so a host that is slow to read makes events merge, not pile up.
 */
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/mmzone.h>
#include <linux/module.h>
#include <linux/nodemask.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>
#include <linux/virtio.h>
#include <linux/vmstat.h>

#include "../compat/vmstat.h"
#include "../tmm/provider.h"
#include "balloon.h"

#define PRESSURE_INTERVAL_MS 500
#define PRESSURE_STALL_US    50000 /* of an interval: a tenth */

struct statistics_message {
	struct virtio_demeter_statistics header;
	struct virtio_demeter_node_statistics nodes[VIRTIO_DEMETER_MAX_NODES];
};

/**
 * struct statistics_state - of statistics
 * @lock: protects @in_flight, @live and the statistics queue
 * @live: there is a device to send to
 * @in_flight: it has the message
 * @events: bit per enum virtio_demeter_event that is due; atomic
 * @message: the buffer
 * @sequence: of the next message; @push_work only
 * @pressure_some_us: at the last look
 * @pressure_sent: the last look sent an event
 * @push_work: sends what is due
 * @periodic_work: makes PERIODIC due
 * @pressure_work: looks for stalls
 */
static struct statistics_state {
	struct mutex lock; /* see above */
	bool live;
	bool in_flight;
	unsigned long events;
	struct statistics_message *message;
	u64 sequence;
	u64 pressure_some_us;
	bool pressure_sent;
	struct work_struct push_work;
	struct delayed_work periodic_work;
	struct delayed_work pressure_work;
} state;

static u64 node_state_pages(int nid, enum node_stat_item item)
{
	return max(atomic_long_read(&NODE_DATA(nid)->vm_stat[item]), 0L);
}

#ifdef CONFIG_NUMA_BALANCING
static u64 promoted_pages(int nid)
{
	return node_state_pages(nid, PGPROMOTE_SUCCESS);
}
#else
static u64 promoted_pages(int nid)
{
	return 0;
}
#endif

/* Reclaim counts demotion where pages leave: here, where they arrive. */
static u64 demoted_pages(int nid)
{
	static const enum node_stat_item items[] = DEMETER_DEMOTION_ITEMS;
	u64 sum = 0;
	size_t i;

	if (nid == 0 || !node_state(nid - 1, N_MEMORY))
		return 0;
	for (i = 0; i < ARRAY_SIZE(items); i++)
		sum += node_state_pages(nid - 1, items[i]);
	return sum;
}

static void fill_node(struct virtio_demeter_node_statistics *to, int nid)
{
	u64 managed_pages = 0, balloon_pages;
	pg_data_t *pgdat;
	int i;

	memset(to, 0, sizeof(*to));
	if (!node_state(nid, N_MEMORY))
		return;
	pgdat = NODE_DATA(nid);
	for (i = 0; i < MAX_NR_ZONES; i++)
		managed_pages += zone_managed_pages(&pgdat->node_zones[i]);
	balloon_pages = demeter_node_pages(&demeter_balloon.nodes[nid]);
	to->total_pages = cpu_to_le64(managed_pages + balloon_pages);
	to->free_pages = cpu_to_le64(demeter_node_usable_pages(nid));
	to->balloon_pages = cpu_to_le64(balloon_pages);
	to->anon_pages = cpu_to_le64(node_state_pages(nid, NR_ACTIVE_ANON) +
				     node_state_pages(nid, NR_INACTIVE_ANON));
	to->file_pages = cpu_to_le64(node_state_pages(nid, NR_ACTIVE_FILE) +
				     node_state_pages(nid, NR_INACTIVE_FILE));
	to->promoted_pages = cpu_to_le64(promoted_pages(nid));
	to->demoted_pages = cpu_to_le64(demoted_pages(nid));
}

static void fill_tier(struct statistics_message *message, const struct demeter_provider_tier *tier,
		      bool is_fmem)
{
	struct virtio_demeter_node_statistics *to;

	/* Whatever it says: it is another module's word. */
	if (tier->node < 0 || tier->node >= demeter_balloon.nr_nodes)
		return;
	to = &message->nodes[tier->node];
	to->hot_pages = cpu_to_le64(tier->hot_pages);
	if (is_fmem)
		le64_add_cpu(&to->promoted_pages, tier->arrived_pages);
	else
		le64_add_cpu(&to->demoted_pages, tier->arrived_pages);
}

/* What demeter.ko knows; false if it is not loaded or manages nothing. */
static bool fill_from_tmm(struct statistics_message *message)
{
	struct virtio_demeter_statistics *header = &message->header;
	typeof(demeter_provider_read) *read = symbol_get(demeter_provider_read);
	struct demeter_provider provider;
	int ret;

	if (!read)
		return false;
	ret = read(&provider);
	symbol_put(demeter_provider_read);
	if (ret)
		return false;
	fill_tier(message, &provider.fmem, true);
	fill_tier(message, &provider.smem, false);
	header->fmem_samples = cpu_to_le64(provider.fmem.samples);
	header->smem_samples = cpu_to_le64(provider.smem.samples);
	header->hot_wanted_pages = cpu_to_le64(provider.fmem.hot_pages + provider.smem.hot_pages);
	return true;
}

static u64 refaults(void)
{
	u64 sum = 0;
	int nid;

	for_each_node_state(nid, N_MEMORY) sum += node_state_pages(nid, WORKINGSET_REFAULT_ANON) +
						  node_state_pages(nid, WORKINGSET_REFAULT_FILE);
	return sum;
}

static void fill(struct statistics_message *message, u16 event)
{
	struct virtio_demeter_statistics *header = &message->header;
	u64 some_us, full_us;
	u32 valid = 0;
	unsigned int i;

	memset(header, 0, sizeof(*header));
	for (i = 0; i < demeter_balloon.nr_nodes; i++)
		fill_node(&message->nodes[i], i);
	if (demeter_pressure_read(&some_us, &full_us))
		valid |= VIRTIO_DEMETER_VALID_PSI;
	if (fill_from_tmm(message))
		valid |= VIRTIO_DEMETER_VALID_TMM;
	header->sequence = cpu_to_le64(state.sequence++);
	header->guest_time_ns = cpu_to_le64(ktime_get_boottime_ns());
	header->event = cpu_to_le16(event);
	header->nr_nodes = cpu_to_le16(demeter_balloon.nr_nodes);
	header->psi_memory_some_us = cpu_to_le64(some_us);
	header->psi_memory_full_us = cpu_to_le64(full_us);
	header->oom_kills = cpu_to_le64(demeter_oom_kills());
	header->oom_deflated_pages = cpu_to_le64(demeter_oom_deflated_pages());
	header->refaults = cpu_to_le64(refaults());
	header->valid = cpu_to_le32(valid);
}

/* The most telling event that is due; a request's answer must not be merged away. */
static int next_event(void)
{
	static const u16 order[] = {
		VIRTIO_DEMETER_EVENT_OOM,      VIRTIO_DEMETER_EVENT_REQUESTED,
		VIRTIO_DEMETER_EVENT_PRESSURE, VIRTIO_DEMETER_EVENT_RESIZED,
		VIRTIO_DEMETER_EVENT_PERIODIC,
	};
	size_t i;

	for (i = 0; i < ARRAY_SIZE(order); i++)
		if (test_and_clear_bit(order[i], &state.events)) {
			clear_bit(VIRTIO_DEMETER_EVENT_PERIODIC, &state.events);
			return order[i];
		}
	return -1;
}

static void push_work(struct work_struct *work)
{
	unsigned int length_bytes;
	struct scatterlist out;
	int event;

	mutex_lock(&state.lock);
	if (!state.live)
		goto out_unlock;
	if (virtqueue_get_buf(demeter_balloon.statistics, &length_bytes))
		state.in_flight = false;
	if (state.in_flight || READ_ONCE(demeter_balloon.nodes[0].disabled))
		goto out_unlock;
	event = next_event();
	if (event < 0)
		goto out_unlock;
	fill(state.message, event);
	sg_init_one(&out, state.message,
		    offsetof(struct statistics_message, nodes[demeter_balloon.nr_nodes]));
	if (virtqueue_add_outbuf(demeter_balloon.statistics, &out, 1, state.message, GFP_KERNEL))
		goto out_unlock;
	state.in_flight = true;
	virtqueue_kick(demeter_balloon.statistics);
out_unlock:
	mutex_unlock(&state.lock);
}

/**
 * demeter_statistics_push() - have statistics sent
 * @event: why
 *
 * May be called from anywhere, with or without a device.
 */
void demeter_statistics_push(u16 event)
{
	set_bit(event, &state.events);
	queue_work(demeter_balloon.wq, &state.push_work);
}

void demeter_statistics_returned(struct virtqueue *vq)
{
	queue_work(demeter_balloon.wq, &state.push_work);
}

static void periodic_work(struct work_struct *work)
{
	demeter_statistics_push(VIRTIO_DEMETER_EVENT_PERIODIC);
	queue_delayed_work(demeter_balloon.wq, &state.periodic_work,
			   msecs_to_jiffies(demeter_balloon.statistics_interval_ms));
}

static void pressure_work(struct work_struct *work)
{
	u64 some_us, full_us, stalled_us;

	if (!demeter_pressure_read(&some_us, &full_us))
		return;
	stalled_us = some_us - state.pressure_some_us;
	state.pressure_some_us = some_us;
	/* Every second look at most, which is once a second. */
	state.pressure_sent = stalled_us >= PRESSURE_STALL_US && !state.pressure_sent;
	if (state.pressure_sent)
		demeter_statistics_push(VIRTIO_DEMETER_EVENT_PRESSURE);
	queue_delayed_work(demeter_balloon.wq, &state.pressure_work,
			   msecs_to_jiffies(PRESSURE_INTERVAL_MS));
}

/* The device is ready. */
void demeter_statistics_start(void)
{
	u64 full_us;

	mutex_lock(&state.lock);
	state.live = true;
	state.in_flight = false;
	mutex_unlock(&state.lock);
	demeter_statistics_push(VIRTIO_DEMETER_EVENT_PERIODIC);
	if (demeter_balloon.statistics_interval_ms)
		queue_delayed_work(demeter_balloon.wq, &state.periodic_work,
				   msecs_to_jiffies(demeter_balloon.statistics_interval_ms));
	if (demeter_pressure_read(&state.pressure_some_us, &full_us))
		queue_delayed_work(demeter_balloon.wq, &state.pressure_work,
				   msecs_to_jiffies(PRESSURE_INTERVAL_MS));
}

/* The device is about to go. */
void demeter_statistics_stop(void)
{
	mutex_lock(&state.lock);
	state.live = false;
	mutex_unlock(&state.lock);
	cancel_delayed_work_sync(&state.periodic_work);
	cancel_delayed_work_sync(&state.pressure_work);
	cancel_work_sync(&state.push_work);
}

int demeter_statistics_init(void)
{
	mutex_init(&state.lock);
	INIT_WORK(&state.push_work, push_work);
	INIT_DELAYED_WORK(&state.periodic_work, periodic_work);
	INIT_DEFERRABLE_WORK(&state.pressure_work, pressure_work);
	state.message = kzalloc(sizeof(*state.message), GFP_KERNEL);
	return state.message ? 0 : -ENOMEM;
}

void demeter_statistics_exit(void)
{
	kfree(state.message);
}
