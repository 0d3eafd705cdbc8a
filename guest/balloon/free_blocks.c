// SPDX-License-Identifier: GPL-2.0-only
/*
 * Free blocks, taken without allocating them.
 *
 * Allocation would zero them (init_on_alloc, Debian's default), only for the
 * host to drop them next. So blocks of a pageblock and more go straight from
 * the buddy allocator's free lists to the balloon, the way free page reporting
 * borrows them, with the zone's lock held for a few dozen at a time.
 *
 * What this must care for itself, as it is no allocation: the watermarks of the
 * zone; the small DMA zone, which ordinary allocations cannot use up either;
 * and blocks set aside for others (CMA, high-order atomic, isolated).
 */
#include <linux/mm.h>
#include <linux/mmzone.h>

#include "../compat/page_order.h"
#include "balloon.h"

#define BLOCKS_PER_LOCK 32

/* Pages that can leave the zone with enough staying for its other users. */
static unsigned long spare_pages(struct zone *zone)
{
	unsigned long free = zone_page_state(zone, NR_FREE_PAGES);
	unsigned long reserve = high_wmark_pages(zone) + zone->lowmem_reserve[ZONE_NORMAL];

	return free > reserve ? free - reserve : 0;
}

/* Take up to BLOCKS_PER_LOCK blocks of one order; the zone's lock is held. */
static unsigned int isolate_order(struct demeter_taking *taking, struct zone *zone,
				  unsigned int order, struct list_head *taken)
{
	static const int types[] = { MIGRATE_MOVABLE, MIGRATE_RECLAIMABLE, MIGRATE_UNMOVABLE };
	u64 left = min_t(u64, taking->left_pages, spare_pages(zone));
	unsigned int room = min_t(unsigned int, taking->left_ranges, BLOCKS_PER_LOCK);
	unsigned int nr = 0;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(types); i++) {
		struct list_head *list = &zone->free_area[order].free_list[types[i]];

		while (nr < room && left >= 1ULL << order && !list_empty(list)) {
			/* The tail: it has been free for longest, and is out of caches. */
			struct page *page = list_last_entry(list, struct page, buddy_list);

			if (!demeter_isolate_free_page(page, order))
				return nr;
			list_add_tail(&page->lru, taken);
			left -= 1ULL << order;
			nr++;
		}
	}
	return nr;
}

/* Return: pages taken of this order, until there are no more or not wanted. */
static u64 take_order(struct demeter_taking *taking, struct zone *zone, unsigned int order)
{
	u64 before = taking->left_pages;

	while (taking->left_pages >= 1ULL << order && taking->left_ranges &&
	       !READ_ONCE(taking->node->interrupt)) {
		struct page *page, *next;
		unsigned long flags;
		unsigned int nr;
		LIST_HEAD(taken);

		spin_lock_irqsave(&zone->lock, flags);
		nr = isolate_order(taking, zone, order, &taken);
		spin_unlock_irqrestore(&zone->lock, flags);
		if (!nr)
			break;
		list_for_each_entry_safe(page, next, &taken, lru) {
			init_page_count(page);
			demeter_taken(taking, page, order);
		}
		cond_resched();
	}
	return before - taking->left_pages;
}

/**
 * demeter_take_free_blocks() - take free blocks of a node, the largest first
 * @taking: what for
 *
 * Return: pages taken.
 */
u64 demeter_take_free_blocks(struct demeter_taking *taking)
{
	pg_data_t *pgdat = NODE_DATA(taking->node->nid);
	unsigned int order;
	u64 taken = 0;
	int i;

	if (!demeter_can_isolate_free_page())
		return 0;
	for (order = DEMETER_MAX_PAGE_ORDER; order >= pageblock_order; order--) {
		for (i = ZONE_MOVABLE; i >= 0; i--) {
			struct zone *zone = &pgdat->node_zones[i];

#ifdef CONFIG_ZONE_DMA
			if (i == ZONE_DMA)
				continue;
#endif
			if (populated_zone(zone))
				taken += take_order(taking, zone, order);
		}
	}
	taking->free_block_pages += taken;
	return taken;
}
