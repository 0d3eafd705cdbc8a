// SPDX-License-Identifier: GPL-2.0-only
/*
 * Blocks that are in use, emptied by moving their pages elsewhere.
 *
 * Blocks that are half free already come before free ones, for a small part of a
 * request: what moves out of them fills smaller gaps, so that the guest keeps its
 * free memory in whole blocks, as if it had been started smaller.
 *
 * This is how a tier shrinks that is full of data: alloc_contig_range() migrates
 * movable pages to free memory of the same node while there is some, and to
 * other nodes after that. A request makes two passes over its node: whole
 * blocks first, then pieces of blocks that some pages cannot leave. Each place
 * is tried once.
 */
#include <linux/gfp.h>
#include <linux/mm.h>
#include <linux/page_ref.h>
#include <linux/mmzone.h>
#include <linux/page-flags.h>

#include "../compat/contig.h"
#include "balloon.h"

#define PIECE_ORDER	  5
#define MAX_FAILED_PIECES 16384 /* of one request: bounds what a hopeless one costs */
#define HALF_FREE_SHARE	  16	/* of a request's blocks */
#define HALF_FREE_AT_ONCE 2	/* of a report, so that the host does not wait for it */
#define HALF_FREE_LOOKS	  64	/* with the zone's lock held */
#define HALF_FREE_ORDERS  3	/* of a free page, below a block's, that make it worth a look */

static void start_pass(struct demeter_balloon_node *node, unsigned int order)
{
	node->evacuate_order = order;
	node->evacuate_left = NODE_DATA(node->nid)->node_spanned_pages >> order;
	node->evacuate_failed = 0;
}

void demeter_evacuate_restart(struct demeter_balloon_node *node, u64 missing_pages)
{
	start_pass(node, pageblock_order);
	node->half_free_left = div_u64(missing_pages >> pageblock_order, HALF_FREE_SHARE);
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
static bool looks_movable(struct demeter_balloon_node *node, unsigned long pfn, unsigned int order)
{
	struct page *first = pfn_to_online_page(pfn);
	struct page *last = pfn_to_online_page(pfn + (1UL << order) - 1);

	if (!first || !last || page_zone(first) != page_zone(last) ||
	    page_to_nid(first) != node->nid)
		return false;
#ifdef CONFIG_ZONE_DMA
	if (page_zonenum(first) == ZONE_DMA)
		return false;
#endif
	/* For a page of hugetlbfs the kernel would reclaim until it can replace it. */
	return !PageOffline(first) && !PageReserved(first) && !PageSlab(first) &&
	       !PageHuge(first) && page_zonenum(first) <= ZONE_MOVABLE;
}

static bool take_place(struct demeter_taking *taking, unsigned long pfn, unsigned int order)
{
	struct page *page = pfn_to_page(pfn);
	unsigned long i;

	if (demeter_alloc_contig_range(pfn, pfn + (1UL << order), GFP_KERNEL | __GFP_NOWARN))
		return false;
	/*
	 * Every page has a reference now; a held one has it at its head alone. Who looked at
	 * the page that was here (GUP) may have another for a moment, and would drop it from
	 * whoever has the page next.
	 */
	for (i = 1; i < 1UL << order; i++) {
		if (!page_ref_freeze(page + i, 1))
			break;
	}
	if (i == 1UL << order) {
		demeter_taken(taking, page, order);
		return true;
	}
	while (--i)
		page_ref_unfreeze(page + i, 1);
	for (i = 0; i < 1UL << order; i++)
		__free_page(page + i);
	return false;
}

/* Free pages of a block; the zone's lock is held. */
static unsigned long free_pages_of(unsigned long pfn)
{
	unsigned long i = 0, nr_free = 0;

	while (i < pageblock_nr_pages) {
		struct page *page = pfn_to_page(pfn + i);
		unsigned long nr = 1;

		if (PageBuddy(page)) {
			/* A block at the edge of a zone may belong to another's lock. */
			nr <<= min_t(unsigned long, page_private(page), pageblock_order);
			nr_free += nr;
		}
		i += nr;
	}
	return nr_free;
}

/* Blocks of movable memory that are at least half free, but not free. */
static unsigned int find_half_free(struct zone *zone, unsigned long *pfns, unsigned int room)
{
	unsigned int nr = 0, looks = 0, order, i;
	unsigned long flags;

	spin_lock_irqsave(&zone->lock, flags);
	for (order = pageblock_order - 1; order >= pageblock_order - HALF_FREE_ORDERS; order--) {
		struct page *page;

		list_for_each_entry(page, &zone->free_area[order].free_list[MIGRATE_MOVABLE],
				    buddy_list) {
			unsigned long pfn = ALIGN_DOWN(page_to_pfn(page), pageblock_nr_pages);

			if (nr == room || looks++ == HALF_FREE_LOOKS)
				goto out_unlock;
			for (i = 0; i < nr && pfns[i] != pfn; i++)
				;
			if (i == nr && free_pages_of(pfn) >= pageblock_nr_pages / 2)
				pfns[nr++] = pfn;
		}
	}
out_unlock:
	spin_unlock_irqrestore(&zone->lock, flags);
	return nr;
}

/**
 * demeter_take_half_free() - empty blocks that are half free and take them
 * @taking: what for
 *
 * Each that was found counts against the request, whether it could be emptied or not.
 *
 * Return: pages taken.
 */
u64 demeter_take_half_free(struct demeter_taking *taking)
{
	struct demeter_balloon_node *node = taking->node;
	pg_data_t *pgdat = NODE_DATA(node->nid);
	u64 before = taking->left_pages;
	unsigned long pfns[HALF_FREE_AT_ONCE];
	int z;

	for (z = ZONE_MOVABLE; z >= 0 && node->half_free_left; z--) {
		unsigned int room = min_t(u64, node->half_free_left, HALF_FREE_AT_ONCE);
		struct zone *zone = demeter_zone_to_take(pgdat, z);
		unsigned int nr = zone ? find_half_free(zone, pfns, room) : 0;

		while (nr-- && taking->left_pages >= pageblock_nr_pages && taking->left_ranges &&
		       !READ_ONCE(node->interrupt)) {
			cond_resched();
			node->half_free_left--;
			if (looks_movable(node, pfns[nr], pageblock_order))
				take_place(taking, pfns[nr], pageblock_order);
		}
	}
	taking->evacuated_pages += before - taking->left_pages;
	return before - taking->left_pages;
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
		unsigned int order = node->evacuate_order;
		unsigned long pfn = next_place(node);

		cond_resched();
		if (!looks_movable(node, pfn, order))
			continue;
		/* Others need the memory too: what moves out has to go somewhere. */
		if (demeter_spare_pages() < 1UL << order)
			break;
		if (take_place(taking, pfn, order) || order != PIECE_ORDER)
			continue;
		if (++node->evacuate_failed >= MAX_FAILED_PIECES)
			node->evacuate_left = 0;
	}
	taking->evacuated_pages += before - taking->left_pages;
	return before - taking->left_pages;
}
