// SPDX-License-Identifier: GPL-2.0-only
/*
 * Requests: what the device asks for.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/mm.h>
#include <linux/nodemask.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>
#include <linux/virtio.h>

#include "balloon.h"

static void offer(struct virtio_demeter_request *request)
{
	struct scatterlist in;

	sg_init_one(&in, request, sizeof(*request));
	/* There is room for every buffer, so only a broken queue refuses one. */
	if (virtqueue_add_inbuf(demeter_balloon.requests, &in, 1, request, GFP_KERNEL))
		pr_warn_once("the request queue is broken\n");
}

/* DRV-9. */
static bool acceptable(const struct virtio_demeter_request *request, unsigned int length_bytes)
{
	u16 node = le16_to_cpu(request->node);

	if (length_bytes != sizeof(*request) || request->flags || request->reserved)
		return false;
	switch (le16_to_cpu(request->op)) {
	case VIRTIO_DEMETER_STATISTICS:
		return true;
	case VIRTIO_DEMETER_RESIZE:
		return node < demeter_balloon.nr_nodes && node_state(node, N_MEMORY);
	default:
		return false;
	}
}

static void execute(const struct virtio_demeter_request *request, unsigned int length_bytes)
{
	u16 nid = le16_to_cpu(request->node);
	u64 id = le64_to_cpu(request->id);
	struct demeter_balloon_node *node;

	/* What the device did not write is not to be read as an id. */
	if (length_bytes < sizeof(request->id))
		id = 0;
	if (acceptable(request, length_bytes) &&
	    le16_to_cpu(request->op) == VIRTIO_DEMETER_STATISTICS) {
		demeter_statistics_push(VIRTIO_DEMETER_EVENT_REQUESTED);
		return;
	}
	node = &demeter_balloon.nodes[nid < demeter_balloon.nr_nodes ? nid : 0];
	mutex_lock(&node->lock);
	if (acceptable(request, length_bytes))
		demeter_node_resize(node, id, le64_to_cpu(request->target_pages));
	else
		demeter_node_done(node, id, VIRTIO_DEMETER_REFUSED);
	demeter_node_unlock(node);
	demeter_node_kick(node);
}

static void request_work(struct work_struct *work)
{
	unsigned int length_bytes;
	bool any = false;

	while (READ_ONCE(demeter_balloon.attached) && demeter_nodes_can_take_request()) {
		struct virtio_demeter_request *buffer, request;

		buffer = virtqueue_get_buf(demeter_balloon.requests, &length_bytes);
		if (!buffer)
			break;
		request = *buffer;
		execute(&request, length_bytes);
		offer(buffer);
		any = true;
	}
	if (any)
		virtqueue_kick(demeter_balloon.requests);
}

void demeter_request_arrived(struct virtqueue *vq)
{
	queue_work(demeter_balloon.wq, &demeter_balloon.request_work);
}

int demeter_requests_init(void)
{
	INIT_WORK(&demeter_balloon.request_work, request_work);
	demeter_balloon.request_buffers =
		kcalloc(DEMETER_NR_REQUESTS, sizeof(*demeter_balloon.request_buffers), GFP_KERNEL);
	return demeter_balloon.request_buffers ? 0 : -ENOMEM;
}

/* The device is ready: let it ask. */
void demeter_requests_start(void)
{
	unsigned int i;

	for (i = 0; i < DEMETER_NR_REQUESTS; i++)
		offer(&demeter_balloon.request_buffers[i]);
	virtqueue_kick(demeter_balloon.requests);
}

void demeter_requests_exit(void)
{
	kfree(demeter_balloon.request_buffers);
}
