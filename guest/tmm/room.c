// SPDX-License-Identifier: GPL-2.0-only
/*
 * Room of a node: what migration may take of it.
 */
#include <linux/mm.h>
#include <linux/mmzone.h>
#include <linux/nodemask.h>
#include <linux/vmstat.h>

#include "relocate.h"

u64 demeter_relocate_room(int nid)
{
	pg_data_t *pgdat;
	u64 room_pages = 0;
	int i;

	if (nid < 0 || nid >= MAX_NUMNODES || !node_online(nid))
		return 0;
	pgdat = NODE_DATA(nid);
	for (i = 0; i < MAX_NR_ZONES; i++) {
		struct zone *zone = &pgdat->node_zones[i];
		u64 free, reserved;

		if (!populated_zone(zone))
			continue;
		free = zone_page_state(zone, NR_FREE_PAGES);
		/* What low zones keep back from allocations that may go elsewhere. */
		reserved = high_wmark_pages(zone) + zone->lowmem_reserve[ZONE_MOVABLE];
		room_pages += free > reserved ? free - reserved : 0;
	}
	return room_pages;
}
