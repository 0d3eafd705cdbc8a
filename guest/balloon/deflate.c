// SPDX-License-Identifier: GPL-2.0-only
/*
 * Which held pages a report names: to be given back, or kept from before.
 */
#include <linux/mm.h>

#include "balloon.h"

/*
 * Move pages out of a store into a report, until it is full or has so many. If it shall have
 * no more than that, a larger one is split.
 */
static void fill(struct demeter_page_store *store, struct demeter_report_slot *slot, u64 nr_pages,
		 bool no_more)
{
	unsigned int ranges = demeter_balloon.max_ranges;

	while (ranges-- && nr_pages) {
		struct page *page = demeter_page_store_take(store, no_more ? nr_pages : U64_MAX);

		if (!page)
			break;
		list_add_tail(&page->lru, &slot->pages);
		nr_pages -= min(nr_pages, 1ULL << page_private(page));
	}
}

/**
 * demeter_deflate_some() - ask the device for pages back
 * @node: whose, with inflated pages
 * @slot: a free report
 * @most_pages: how many at most, not 0
 */
void demeter_deflate_some(struct demeter_balloon_node *node, struct demeter_report_slot *slot,
			  u64 most_pages)
{
	fill(&node->held, slot, most_pages, true);
	demeter_report_pages(node, slot, VIRTIO_DEMETER_DEFLATE, false);
}

/**
 * demeter_resync_some() - tell the device of pages kept from an earlier one
 * @node: whose, with such pages
 * @slot: a free report
 *
 * Until the answer the guest cannot have these back, whatever it lacks: so not too many at once.
 */
void demeter_resync_some(struct demeter_balloon_node *node, struct demeter_report_slot *slot)
{
	fill(&node->kept, slot, DEMETER_REPORT_PAGES, false);
	demeter_report_pages(node, slot, VIRTIO_DEMETER_INFLATED, true);
}
