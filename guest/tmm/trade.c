// SPDX-License-Identifier: GPL-2.0-only
/*
 * Balanced relocation of what the exchange cannot: demote, then promote into the
 * room. See demeter_relocate_trade().
 */
#include <linux/mm.h>
#include <linux/mmzone.h>

#include "folio_check.h"
#include "huge.h"
#include "relocate.h"

/* Move whole folios from the end of a list, @pages at most; returns what was moved. */
static u64 take_from(struct list_head *from, u64 *from_pages, u64 pages, struct list_head *to,
		     u64 *to_pages)
{
	struct folio *folio, *next;
	u64 taken = 0;

	list_for_each_entry_safe_reverse(folio, next, from, lru) {
		u64 size = folio_nr_pages(folio);

		if (size > pages - taken)
			continue;
		list_move_tail(&folio->lru, to);
		taken += size;
		if (taken == pages)
			break;
	}
	*from_pages -= taken;
	*to_pages += taken;
	return taken;
}

static void take_other(struct demeter_folio_list *from, struct demeter_folio_list *to)
{
	list_splice_tail_init(&from->other, &to->other);
	to->other_pages += from->other_pages;
	from->other_pages = 0;
}

static void take_one(struct folio *folio, u64 *from_pages, struct demeter_folio_list *to)
{
	u64 pages = folio_nr_pages(folio);

	list_move_tail(&folio->lru, &to->other);
	*from_pages -= pages;
	to->other_pages += pages;
}

/* The same of folios whose partners are of another memory cgroup, where that matters. */
static void take_foreign(struct list_head *hot, u64 *hot_pages, struct demeter_folio_list *up,
			 struct list_head *cold, u64 *cold_pages, struct demeter_folio_list *down)
{
	struct list_head *at = cold->next;
	struct folio *folio, *next;

	list_for_each_entry_safe(folio, next, hot, lru) {
		struct folio *partner = list_entry(at, struct folio, lru);

		if (at == cold)
			break;
		at = at->next;
		if (demeter_relocate_may_exchange(folio, partner))
			continue;
		take_one(folio, hot_pages, up);
		take_one(partner, cold_pages, down);
	}
}

/*
 * Let 4 KiB pages of @from that find no partner in @against make up for what @to
 * lacks; a THP is split if there is nothing else.
 */
static void make_up(struct demeter_folio_list *from, const struct demeter_folio_list *against,
		    struct demeter_folio_list *to, u64 lacks_pages)
{
	u64 spare = from->small_pages - min(from->small_pages, against->small_pages);
	u64 huge = from->huge_pages - min(from->huge_pages, against->huge_pages);

	if (spare < lacks_pages && huge)
		spare += demeter_huge_split(from, min(lacks_pages - spare, huge));
	take_from(&from->small, &from->small_pages, min(spare, lacks_pages), &to->small,
		  &to->small_pages);
}

/* Give back what is above @pages. */
static void limit(struct demeter_folio_list *list, u64 pages)
{
	struct demeter_folio_list kept;

	demeter_folio_list_init(&kept);
	pages -= take_from(&list->other, &list->other_pages, pages, &kept.other, &kept.other_pages);
	take_from(&list->small, &list->small_pages, pages, &kept.small, &kept.small_pages);
	demeter_folio_list_putback(list);
	list_splice_tail_init(&kept.other, &list->other);
	list_splice_tail_init(&kept.small, &list->small);
	list->other_pages = kept.other_pages;
	list->small_pages = kept.small_pages;
}

struct demeter_traded demeter_relocate_trade(struct demeter_folio_list *hot,
					     struct demeter_folio_list *cold, int fmem_nid,
					     int smem_nid, u32 batch_pairs,
					     struct demeter_refusals *why)
{
	struct demeter_folio_list up, down;
	struct demeter_traded traded;
	u64 freed;

	demeter_folio_list_init(&up);
	demeter_folio_list_init(&down);
	take_other(hot, &up);
	take_other(cold, &down);
	take_foreign(&hot->huge, &hot->huge_pages, &up, &cold->huge, &cold->huge_pages, &down);
	take_foreign(&hot->small, &hot->small_pages, &up, &cold->small, &cold->small_pages, &down);
	if (up.other_pages > down.other_pages)
		make_up(cold, hot, &down, up.other_pages - down.other_pages);
	else if (down.other_pages > up.other_pages)
		make_up(hot, cold, &up, down.other_pages - up.other_pages);

	traded.promoted_pages = demeter_relocate_exchange(hot, cold, batch_pairs, why, NULL);
	traded.demoted_pages = traded.promoted_pages;

	limit(&down, min(demeter_folio_list_pages(&up), demeter_folio_list_pages(&down)));
	freed = demeter_relocate_migrate_into(&down, smem_nid, 0, why);
	limit(&up, freed);
	traded.promoted_pages += demeter_relocate_migrate_into(&up, fmem_nid, freed, why);
	traded.demoted_pages += freed;
	return traded;
}
