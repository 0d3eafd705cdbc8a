// SPDX-License-Identifier: GPL-2.0-only
/*
 * Free blocks, taken without allocating them.
 *
 * Allocation would zero them (init_on_alloc, Debian's default), only for the
 * host to drop them next. So they go straight from the buddy allocator's free
 * lists to the balloon, the way free page reporting borrows them, with the
 * zone's lock held for a few dozen at a time.
 *
 * Most are of a pageblock and more. What is free in pageblocks of the kernel's own
 * memory is taken before those, as far as it is not too small: it cannot become
 * a huge page, as its neighbours do not move, and no more do the balloon's. A guest
 * that was larger has more of that than one that was started with the size, and if
 * it kept it, less of its free memory would be huge pages. Too much of it even stops
 * Linux from promoting any: above the high watermark it asks for a free huge page
 * and finds none, while kswapd, which would make one, has nothing to do. What is
 * free among movable pages is left alone: it closes when those move.
 *
 * What this must care for itself, as it is no allocation: the watermarks of the
 * zone; the small DMA zone, which ordinary allocations cannot use up either;
 * and blocks set aside for others (CMA, high-order atomic, isolated).
 */
#include <linux/mm.h>
#include <linux/mmzone.h>

#include "../compat/page_order.h"
#include "balloon.h"

#define BLOCKS_PER_LOCK	  32
#define LEAST_PIECE_ORDER 5
#define PIECES_SHARE	  16 /* of a request: what keeps the host's huge pages whole */

/**
 * struct free_kind - which free lists
 * @types: migrate types, the first ones first
 * @nr_types: their number
 * @most_order: first order
 * @least_order: last order
 */
struct free_kind {
	int types[3];
	size_t nr_types;
	unsigned int most_order;
	unsigned int least_order;
};

/**
 * demeter_zone_to_take() - a zone of a node, if the balloon may take from it at all
 * @pgdat: the node
 * @index: of the zone
 *
 * Return: NULL if it has no memory, or is the small DMA zone.
 */
struct zone *demeter_zone_to_take(pg_data_t *pgdat, int index)
{
	struct zone *zone = &pgdat->node_zones[index];

#ifdef CONFIG_ZONE_DMA
	if (index == ZONE_DMA)
		return NULL;
#endif
	return populated_zone(zone) ? zone : NULL;
}

/* Pages that can leave the zone with enough staying for its other users. */
static unsigned long spare_pages(struct zone *zone)
{
	unsigned long free = zone_page_state(zone, NR_FREE_PAGES);
	unsigned long reserve = demeter_zone_kept_pages(zone) + zone->watermark_boost;

	return free > reserve ? free - reserve : 0;
}

/* Take up to BLOCKS_PER_LOCK blocks of one order; the zone's lock is held. */
static unsigned int isolate_order(struct demeter_taking *taking, struct zone *zone,
				  const struct free_kind *kind, unsigned int order,
				  struct list_head *taken)
{
	u64 left = min_t(u64, taking->left_pages, spare_pages(zone));
	unsigned int room = min_t(unsigned int, taking->left_ranges, BLOCKS_PER_LOCK);
	unsigned int nr = 0;
	size_t i;

	for (i = 0; i < kind->nr_types; i++) {
		struct list_head *list = &zone->free_area[order].free_list[kind->types[i]];

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
static u64 take_order(struct demeter_taking *taking, struct zone *zone,
		      const struct free_kind *kind, unsigned int order)
{
	u64 before = taking->left_pages;

	while (taking->left_pages >= 1ULL << order && taking->left_ranges &&
	       !READ_ONCE(taking->node->interrupt)) {
		struct page *page, *next;
		unsigned long flags;
		unsigned int nr;
		LIST_HEAD(taken);

		spin_lock_irqsave(&zone->lock, flags);
		nr = isolate_order(taking, zone, kind, order, &taken);
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

static u64 take_kind(struct demeter_taking *taking, const struct free_kind *kind)
{
	pg_data_t *pgdat = NODE_DATA(taking->node->nid);
	unsigned int order = kind->most_order;
	u64 taken = 0;
	int i;

	if (!demeter_can_isolate_free_page())
		return 0;
	for (; order >= kind->least_order; order--) {
		for (i = ZONE_MOVABLE; i >= 0; i--) {
			struct zone *zone = demeter_zone_to_take(pgdat, i);

			if (zone)
				taken += take_order(taking, zone, kind, order);
		}
	}
	taking->free_block_pages += taken;
	return taken;
}

/**
 * demeter_take_free_blocks() - take free blocks of a node, the largest first
 * @taking: what for
 *
 * Return: pages taken.
 */
u64 demeter_take_free_blocks(struct demeter_taking *taking)
{
	const struct free_kind kind = {
		.types = { MIGRATE_MOVABLE, MIGRATE_RECLAIMABLE, MIGRATE_UNMOVABLE },
		.nr_types = 3,
		.most_order = DEMETER_MAX_PAGE_ORDER,
		.least_order = pageblock_order,
	};

	return take_kind(taking, &kind);
}

/* How much of a request demeter_take_kernel_pieces() may serve. */
void demeter_kernel_pieces_restart(struct demeter_balloon_node *node, u64 missing_pages)
{
	node->piece_pages_left = div_u64(missing_pages, PIECES_SHARE);
}

/**
 * demeter_take_kernel_pieces() - take what is free beside the kernel's own memory
 * @taking: what for
 *
 * Return: pages taken.
 */
u64 demeter_take_kernel_pieces(struct demeter_taking *taking)
{
	const struct free_kind kind = {
		.types = { MIGRATE_UNMOVABLE, MIGRATE_RECLAIMABLE },
		.nr_types = 2,
		.most_order = pageblock_order - 1,
		.least_order = LEAST_PIECE_ORDER,
	};
	u64 wanted_pages = taking->left_pages, taken;

	taking->left_pages = min(wanted_pages, taking->node->piece_pages_left);
	taken = take_kind(taking, &kind);
	taking->left_pages = wanted_pages - taken;
	taking->node->piece_pages_left -= taken;
	return taken;
}
