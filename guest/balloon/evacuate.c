// SPDX-License-Identifier: GPL-2.0-only
/*
 * Blocks that are in use, emptied by moving their pages elsewhere.
 *
 * This is how a tier shrinks that is full of data: alloc_contig_range() migrates
 * movable pages to free memory of the same node while there is some, and to
 * other nodes after that. A request makes two passes over its node: whole
 * blocks first, then pieces of blocks that some pages cannot leave. Each place
 * is tried once.
 */
#include <linux/gfp.h>
#include <linux/mm.h>
#include <linux/mmzone.h>
#include <linux/page-flags.h>

#include "../compat/contig.h"
#include "balloon.h"

#define PIECE_ORDER	  5
#define MAX_FAILED_PIECES 16384 /* of one request: bounds what a hopeless one costs */

static void start_pass(struct demeter_balloon_node *node, unsigned int order)
{
	node->evacuate_order = order;
	node->evacuate_left = NODE_DATA(node->nid)->node_spanned_pages >> order;
	node->evacuate_failed = 0;
}

void demeter_evacuate_restart(struct demeter_balloon_node *node)
{
	start_pass(node, pageblock_order);
}

/* Goes round the node, from where the last request stopped. */
static unsigned long next_place(struct demeter_balloon_node *node)
{
	pg_data_t *pgdat = NODE_DATA(node->nid);
	unsigned long nr_pages = 1UL << node->evacuate_order;
	unsigned long pfn = ALIGN(node->evacuate_pfn, nr_pages);

	if (pfn < pgdat->node_start_pfn || pfn + nr_pages > pgdat_end_pfn(pgdat))
		pfn = ALIGN(pgdat->node_start_pfn, nr_pages);
	node->evacuate_pfn = pfn + nr_pages;
	node->evacuate_left--;
	return pfn;
}

/* Is there any use in trying? Wrong answers only cost time. */
static bool looks_movable(struct demeter_balloon_node *node, unsigned long pfn)
{
	struct page *first = pfn_to_online_page(pfn);
	struct page *last = pfn_to_online_page(pfn + (1UL << node->evacuate_order) - 1);

	if (!first || !last || page_zone(first) != page_zone(last) ||
	    page_to_nid(first) != node->nid)
		return false;
#ifdef CONFIG_ZONE_DMA
	if (page_zonenum(first) == ZONE_DMA)
		return false;
#endif
	return !PageOffline(first) && !PageReserved(first) && !PageSlab(first) &&
	       page_zonenum(first) <= ZONE_MOVABLE;
}

static bool take_place(struct demeter_taking *taking, unsigned long pfn)
{
	unsigned int order = taking->node->evacuate_order;
	struct page *page = pfn_to_page(pfn);
	unsigned long i;

	if (demeter_alloc_contig_range(pfn, pfn + (1UL << order), GFP_KERNEL | __GFP_NOWARN))
		return false;
	/* Every page has a reference now; a held one has it at its head alone. */
	for (i = 1; i < 1UL << order; i++)
		set_page_count(page + i, 0);
	demeter_taken(taking, page, order);
	return true;
}

/**
 * demeter_take_evacuated() - empty places of a node and take them
 * @taking: what for
 * @pieces: also smaller ones than a block, if all blocks have been tried
 *
 * Return: pages taken.
 */
u64 demeter_take_evacuated(struct demeter_taking *taking, bool pieces)
{
	struct demeter_balloon_node *node = taking->node;
	u64 before = taking->left_pages;

	if (pieces && node->evacuate_order != PIECE_ORDER)
		start_pass(node, PIECE_ORDER);
	while (node->evacuate_left && taking->left_pages >= 1ULL << node->evacuate_order &&
	       taking->left_ranges && !READ_ONCE(node->interrupt)) {
		unsigned long pfn = next_place(node);

		cond_resched();
		if (!looks_movable(node, pfn))
			continue;
		/* Others need the memory too: what moves out has to go somewhere. */
		if (demeter_spare_pages() < 1UL << node->evacuate_order)
			break;
		if (take_place(taking, pfn) || node->evacuate_order != PIECE_ORDER)
			continue;
		if (++node->evacuate_failed >= MAX_FAILED_PIECES)
			node->evacuate_left = 0;
	}
	taking->evacuated_pages += before - taking->left_pages;
	return before - taking->left_pages;
}
