/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What Nimble decides, as pure functions: how much of a list is looked at, which list a page
 * belongs to, and which pages are moved how. guest/peers/nimble/ does what follows from it.
 */
#ifndef DEMETER_PEERS_NIMBLE_H
#define DEMETER_PEERS_NIMBLE_H

#include <demeter/deps.h>

/**
 * struct demeter_nimble_lists - 4 KiB pages that could be moved
 * @hot_huge: of THPs in SMEM that are active
 * @hot_base: of other pages there
 * @cold_huge: of THPs in FMEM that are inactive
 * @cold_base: of other pages there
 * @room: free in FMEM
 * @huge: of one THP; at least 1
 */
struct demeter_nimble_lists {
	u64 hot_huge;
	u64 hot_base;
	u64 cold_huge;
	u64 cold_base;
	u64 room;
	u64 huge;
};

/**
 * struct demeter_nimble_plan - 4 KiB pages to be moved, in this order
 * @fill_huge: of THPs, into what is free
 * @fill_base: of other pages, into what is free
 * @exchange: of THPs, each way, by exchange
 * @trade: of other pages: so many out, then as many in
 */
struct demeter_nimble_plan {
	u64 fill_huge;
	u64 fill_base;
	u64 exchange;
	u64 trade;
};

/**
 * demeter_nimble_share() - how much of a list is looked at
 * @pages: length of the list
 * @permille: part of it; published: 500
 *
 * Return: pages, rounded up, so that every page is looked at some time.
 */
u64 demeter_nimble_share(u64 pages, u64 permille);

/**
 * demeter_nimble_plan() - what to move
 * @lists: what could be
 *
 * Return: the plan.
 */
struct demeter_nimble_plan demeter_nimble_plan(const struct demeter_nimble_lists *lists);

#endif /* DEMETER_PEERS_NIMBLE_H */
