// SPDX-License-Identifier: GPL-2.0-only
/*
 * Where pages to inflate come from.
 *
 * In this order: for the first report of a request free blocks, so that the host has
 * something to do; for a small part of the request, what is free beside the kernel's
 * own memory (free_blocks.c) and blocks that are half free already (evacuate.c);
 * free blocks, which most of it is; blocks that can be emptied (evacuate.c), which
 * costs copying but keeps huge pages possible and the host's work small; smaller
 * pieces that are free, largest first; pieces that can be emptied; and single pages
 * by reclaim. All come from the node that was asked for. The guest keeps a floor of
 * available memory throughout, and no step may wake the OOM killer.
 */
#include <linux/gfp.h>
#include <linux/mm.h>
#include <linux/moduleparam.h>
#include <linux/vmstat.h>

#include "balloon.h"

#define RECLAIM_ATTEMPTS 4

static unsigned long floor_kib = 32768;
module_param(floor_kib, ulong, 0644);
MODULE_PARM_DESC(floor_kib,
		 "Available memory (KiB) that inflating leaves the guest, default 32768");

/**
 * demeter_spare_pages() - what the whole guest can do without
 *
 * Return: available pages above the floor.
 */
u64 demeter_spare_pages(void)
{
	long available = si_mem_available();
	u64 floor = (u64)READ_ONCE(floor_kib) >> (PAGE_SHIFT - 10);

	return available > 0 && (u64)available > floor ? (u64)available - floor : 0;
}

/**
 * demeter_taken() - account for a page that was found
 * @taking: what for
 * @page: head, with the only reference
 * @order: its order
 */
void demeter_taken(struct demeter_taking *taking, struct page *page, unsigned int order)
{
	demeter_page_hold(page, order);
	list_add_tail(&page->lru, taking->pages);
	taking->left_pages -= min(taking->left_pages, 1ULL << order);
	taking->left_ranges--;
}

/*
 * Pages of the balloon cannot be moved, so they should come from blocks of the
 * same kind; a node with movable memory alone leaves no choice.
 */
static struct page *allocate(int nid, unsigned int order, bool reclaim)
{
	gfp_t gfp =
		__GFP_HIGHMEM | __GFP_THISNODE | __GFP_NOMEMALLOC | __GFP_NORETRY | __GFP_NOWARN;
	struct page *page;

	if (reclaim)
		gfp |= __GFP_RECLAIM | __GFP_IO | __GFP_FS;
	page = alloc_pages_node(nid, gfp, order);
	if (!page && populated_zone(&NODE_DATA(nid)->node_zones[ZONE_MOVABLE]))
		page = alloc_pages_node(nid, gfp | __GFP_MOVABLE, order);
	return page;
}

/* Free memory in pieces, the largest first. */
static u64 take_free_pieces(struct demeter_taking *taking)
{
	u64 before = taking->left_pages;
	unsigned int order = pageblock_order;

	while (taking->left_pages && taking->left_ranges && !READ_ONCE(taking->node->interrupt)) {
		struct page *page;

		order = min_t(unsigned int, order, ilog2(taking->left_pages));
		page = allocate(taking->node->nid, order, false);
		if (page)
			demeter_taken(taking, page, order);
		else if (order)
			order--;
		else
			break;
		cond_resched();
	}
	return before - taking->left_pages;
}

/* Memory that the kernel can free by itself. One attempt may fail by bad luck. */
static u64 take_reclaimed(struct demeter_taking *taking)
{
	u64 before = taking->left_pages;
	unsigned int attempts = RECLAIM_ATTEMPTS;

	while (taking->left_pages && taking->left_ranges && attempts && demeter_spare_pages() &&
	       !READ_ONCE(taking->node->interrupt)) {
		struct page *page = allocate(taking->node->nid, 0, true);

		if (page)
			demeter_taken(taking, page, 0);
		else
			attempts--;
		cond_resched();
	}
	return before - taking->left_pages;
}

/**
 * demeter_take_pages() - find pages to inflate
 * @taking: how many, at most; what was found afterwards
 *
 * Return: false if there are none to be had.
 */
bool demeter_take_pages(struct demeter_taking *taking)
{
	u64 taken = 0;

	taking->left_pages = min(taking->left_pages, demeter_spare_pages());
	/* What is found at once keeps the host busy while the guest looks for the rest. */
	if (taking->first)
		taken = demeter_take_free_blocks(taking);
	if (!taken) {
		taken = demeter_take_kernel_pieces(taking);
		taken += demeter_take_half_free(taking);
		taken += demeter_take_free_blocks(taking);
	}
	if (!taken)
		taken = demeter_take_evacuated(taking, false);
	if (!taken || taking->left_pages < pageblock_nr_pages)
		taken += take_free_pieces(taking);
	if (!taken)
		taken = demeter_take_evacuated(taking, true);
	return taken || take_reclaimed(taking);
}
