// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pages out of the guest's use, and back.
 *
 * A held page is one that the guest's kernel neither uses nor manages: it is
 * marked offline, so that a crash dump leaves it out and hibernation does not
 * save it, and it does not count as managed. Only its head has a reference; its
 * head's lru links it and private has its order.
 *
 * Contents need no care here. What comes back from the host is either as it
 * was or zeros (DRV-19), and a free page may hold anything: with init_on_alloc
 * it is zeroed when it is next allocated, with init_on_free and with page
 * poisoning __free_pages() writes what they expect of a free page.
 */
#include <linux/mm.h>
#include <linux/page-flags.h>

#include "balloon.h"

/**
 * demeter_zone_kept_pages() - free pages of a zone that a program cannot have at leisure
 * @zone: which one
 *
 * Below the high mark kswapd does not rest, and below the lowest a program gets
 * nothing. What a zone keeps from allocations that can use a zone above (two GiB of
 * DMA32 in a guest of 512 GiB and more) they cannot have at all; counted as the kernel
 * counts it in MemAvailable. The boost of the marks after fragmentation is left out: it
 * comes and goes within seconds, and is no want of memory.
 *
 * Return: pages, not bounded by what the zone has.
 */
unsigned long demeter_zone_kept_pages(struct zone *zone)
{
	long most = 0;
	int i;

	for (i = 0; i < MAX_NR_ZONES; i++)
		most = max(most, zone->lowmem_reserve[i]);
	return zone->_watermark[WMARK_HIGH] + most;
}

/**
 * demeter_zone_usable_pages() - free pages of a zone beyond those that it keeps
 * @zone: which one
 *
 * Return: pages. Those set aside for atomic allocations of several pages are none, even if
 * they are in use; kernels before 6.13 count so themselves.
 */
unsigned long demeter_zone_usable_pages(struct zone *zone)
{
	unsigned long free = zone_page_state(zone, NR_FREE_PAGES);
	unsigned long kept = demeter_zone_kept_pages(zone) + zone->nr_reserved_highatomic;

	return free > kept ? free - kept : 0;
}

/**
 * demeter_node_usable_pages() - what programs can have of a node before the kernel makes room
 * @nid: of the node; it has memory
 *
 * Return: pages.
 */
u64 demeter_node_usable_pages(int nid)
{
	struct zone *zones = NODE_DATA(nid)->node_zones;
	u64 pages = 0;
	int i;

	for (i = 0; i < MAX_NR_ZONES; i++)
		pages += demeter_zone_usable_pages(&zones[i]);
	return pages;
}

void demeter_page_store_init(struct demeter_page_store *store)
{
	INIT_LIST_HEAD(&store->blocks);
	INIT_LIST_HEAD(&store->pieces);
	store->nr_pages = 0;
}

/**
 * demeter_page_hold() - take a page out of the guest's account
 * @page: head, with the only reference
 * @order: its order; private of the head remembers it
 */
void demeter_page_hold(struct page *page, unsigned int order)
{
	unsigned long i;

	for (i = 0; i < 1UL << order; i++)
		__SetPageOffline(page + i);
	set_page_private(page, order);
	adjust_managed_page_count(page, -(1L << order));
}

/**
 * demeter_pages_give_back() - let the guest use held pages again
 * @pages: list of them; empty afterwards
 *
 * Return: how many pages that were.
 */
u64 demeter_pages_give_back(struct list_head *pages)
{
	struct page *page, *next;
	u64 nr_pages = 0;

	list_for_each_entry_safe(page, next, pages, lru) {
		unsigned int order = page_private(page);
		unsigned long i;

		list_del(&page->lru);
		set_page_private(page, 0);
		for (i = 0; i < 1UL << order; i++)
			__ClearPageOffline(page + i);
		adjust_managed_page_count(page, 1L << order);
		__free_pages(page, order);
		nr_pages += 1ULL << order;
		cond_resched();
	}
	return nr_pages;
}

void demeter_page_store_add(struct demeter_page_store *store, struct page *page)
{
	unsigned int order = page_private(page);

	list_add(&page->lru, order >= pageblock_order ? &store->blocks : &store->pieces);
	store->nr_pages += 1ULL << order;
}

void demeter_page_store_splice(struct demeter_page_store *store, struct list_head *pages)
{
	struct page *page, *next;

	list_for_each_entry_safe(page, next, pages, lru) {
		list_del(&page->lru);
		demeter_page_store_add(store, page);
	}
}

static void split(struct demeter_page_store *store, struct page *page)
{
	unsigned int order = page_private(page);
	unsigned long i;

	list_del(&page->lru);
	split_page(page, order);
	for (i = 0; i < 1UL << order; i++) {
		set_page_private(page + i, 0);
		list_add(&page[i].lru, &store->pieces);
	}
}

/**
 * demeter_page_store_take() - take a page out of a store
 * @store: where from
 * @most_pages: how large it may be
 *
 * Pieces go first: they are what splits up the guest's free memory. One that is
 * too large is split into single pages, as only the rest of a size needs it.
 *
 * Return: its head, or NULL if the store is empty or @most_pages is 0.
 */
struct page *demeter_page_store_take(struct demeter_page_store *store, u64 most_pages)
{
	struct page *page;

	if (!most_pages)
		return NULL;
	page = list_first_entry_or_null(&store->pieces, struct page, lru);
	if (!page)
		page = list_first_entry_or_null(&store->blocks, struct page, lru);
	if (!page)
		return NULL;
	if (1ULL << page_private(page) > most_pages) {
		split(store, page);
		page = list_first_entry(&store->pieces, struct page, lru);
	}
	list_del(&page->lru);
	store->nr_pages -= 1ULL << page_private(page);
	return page;
}
