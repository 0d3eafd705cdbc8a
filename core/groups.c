// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Groups: see <demeter/groups.h>. What each may take and must give; plan_groups.c
 * makes steps of it.
 */
#include <demeter/groups.h>
#include <demeter/math.h>

/* What of @pages is whole units. */
static u64 groups_units(const struct demeter_groups *gs, u64 pages)
{
	return pages >> gs->unit_shift << gs->unit_shift;
}

/**
 * demeter_groups_set_due - what of its floor each group is due
 * @gs: groups with limits, what they have and what is worth holding
 * @free_pages: FMEM that nobody has
 */
void demeter_groups_set_due(struct demeter_groups *gs, u64 free_pages)
{
	u64 all = free_pages, due = 0;
	u32 i;

	for (i = 0; i < gs->nr; i++) {
		struct demeter_group *g = &gs->group[i];

		g->due_pages = demeter_min(g->floor_pages, g->cap_pages);
		g->due_pages = demeter_min(g->due_pages, g->worth_pages);
		due = demeter_add_sat(due, g->due_pages);
		all = demeter_add_sat(all, g->fmem_pages);
	}
	if (due <= all)
		return;
	for (i = 0; i < gs->nr; i++) {
		struct demeter_group *g = &gs->group[i];

		g->due_pages = demeter_mul_div(g->due_pages, all, due);
	}
}

/**
 * demeter_groups_room - what a group may still take of others, or of free FMEM
 * @gs: all groups
 * @g: the group
 *
 * Return: pages, whole units.
 */
u64 demeter_groups_room(const struct demeter_groups *gs, const struct demeter_group *g)
{
	if (g->cap_pages == DEMETER_NO_CAP)
		return DEMETER_NO_CAP;
	return groups_units(gs, demeter_sub_sat(g->cap_pages, g->fmem_pages));
}

/**
 * demeter_groups_spare - what others may take of a group
 * @gs: all groups
 * @g: the group
 *
 * Return: pages, whole units.
 */
u64 demeter_groups_spare(const struct demeter_groups *gs, const struct demeter_group *g)
{
	return groups_units(gs, demeter_sub_sat(g->fmem_pages, g->due_pages));
}

/**
 * demeter_groups_need - what a group may take however hot it is with others
 * @gs: all groups
 * @g: the group
 *
 * Return: pages.
 */
u64 demeter_groups_need(const struct demeter_groups *gs, const struct demeter_group *g)
{
	return demeter_min(demeter_sub_sat(g->due_pages, g->fmem_pages),
			   demeter_groups_room(gs, g));
}

/**
 * demeter_groups_excess - what a group must give up
 * @g: the group
 *
 * Return: pages.
 */
u64 demeter_groups_excess(const struct demeter_group *g)
{
	return demeter_sub_sat(g->fmem_pages, g->cap_pages);
}

/**
 * demeter_groups_moved - FMEM goes from one group to another
 * @gs: all groups
 * @taker: who gets it, or NULL: nobody, it is free
 * @giver: who had it, or NULL: nobody, it was free
 * @pages: how much
 *
 * A page that is moved may take the rest of its unit along, so whole ones count.
 */
void demeter_groups_moved(const struct demeter_groups *gs, struct demeter_group *taker,
			  struct demeter_group *giver, u64 pages)
{
	u64 part = pages - groups_units(gs, pages);

	if (taker == giver)
		return;
	if (part)
		pages = demeter_add_sat(pages - part, 1ULL << gs->unit_shift);
	if (taker)
		taker->fmem_pages = demeter_add_sat(taker->fmem_pages, pages);
	if (giver)
		giver->fmem_pages = demeter_sub_sat(giver->fmem_pages, pages);
}
