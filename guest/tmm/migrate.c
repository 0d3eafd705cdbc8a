// SPDX-License-Identifier: GPL-2.0-only
/*
 * Migration into free memory: while FMEM has room, filling it beats exchanging.
 *
 * The allocator stays on the node it was asked for, reclaims nothing, wakes
 * nobody, and leaves what lies below the high watermarks to the kernel, so that
 * promotion never pushes anything else out.
 */
#include <linux/ktime.h>
#include <linux/migrate.h>
#include <linux/mm.h>

#include "folio_check.h"
#include "kernel_calls.h"
#include "relocate.h"

/**
 * struct demeter_migrate - what the allocation callback needs
 * @nid: node to allocate on
 * @room_pages: free pages it may still take
 * @out_of_room: it had to refuse an allocation
 */
struct demeter_migrate {
	int nid;
	u64 room_pages;
	bool out_of_room;
};

/* The allocation callback of migrate_pages(). */
static struct demeter_migratable *demeter_new_folio(struct demeter_migratable *from,
						    unsigned long private)
{
	struct demeter_migrate *migrate = (struct demeter_migrate *)private;
	struct folio *src = demeter_migratable_folio(from);
	gfp_t gfp = GFP_HIGHUSER_MOVABLE | __GFP_THISNODE | __GFP_NOWARN | __GFP_NOMEMALLOC;
	u64 pages = folio_nr_pages(src);
	struct folio *dst = NULL;

	if (folio_test_large(src))
		gfp |= GFP_TRANSHUGE_LIGHT;
	if (migrate->room_pages >= pages)
		dst = __folio_alloc(gfp & ~__GFP_RECLAIM, folio_order(src), migrate->nid, NULL);
	if (dst)
		migrate->room_pages -= pages;
	else
		migrate->out_of_room = true;
	return demeter_folio_migratable(dst);
}

/* Move one list of folios; returns pages moved, the list is empty afterwards. */
static u64 demeter_migrate_list(struct list_head *folios, u64 *list_pages, int nid, u64 freed_pages,
				struct demeter_refusals *why)
{
	struct demeter_migrate migrate = {
		.nid = nid,
		.room_pages = max(demeter_relocate_room(nid), freed_pages),
	};
	unsigned int moved = 0;
	u64 left;

	if (list_empty(folios))
		return 0;
	/* MR_NUMA_MISPLACED: a THP for which there is no room is not split. */
	demeter_call(migrate_pages)(folios, demeter_new_folio, NULL, (unsigned long)&migrate,
				    MIGRATE_ASYNC, MR_NUMA_MISPLACED, &moved);
	left = *list_pages - min_t(u64, moved, *list_pages);
	if (left)
		demeter_refuse(why,
			       migrate.out_of_room ? DEMETER_REFUSED_NO_ROOM
						   : DEMETER_REFUSED_MIGRATE,
			       left);
	if (!list_empty(folios))
		demeter_call(putback_movable_pages)(folios);
	*list_pages = 0;
	return moved;
}

u64 demeter_relocate_migrate_into(struct demeter_folio_list *folios, int nid, u64 freed_pages,
				  struct demeter_refusals *why)
{
	u64 moved;

	moved = demeter_migrate_list(&folios->huge, &folios->huge_pages, nid, freed_pages, why);
	moved += demeter_migrate_list(&folios->small, &folios->small_pages, nid,
				      freed_pages - min(moved, freed_pages), why);
	moved += demeter_migrate_list(&folios->other, &folios->other_pages, nid,
				      freed_pages - min(moved, freed_pages), why);
	demeter_folio_list_init(folios);
	return moved;
}

u64 demeter_relocate_migrate(struct demeter_folio_list *folios, int nid,
			     struct demeter_refusals *why, u64 *spent_ns)
{
	u64 begin = ktime_get_ns();
	u64 moved = demeter_relocate_migrate_into(folios, nid, 0, why);

	if (spent_ns)
		*spent_ns += ktime_get_ns() - begin;
	return moved;
}
