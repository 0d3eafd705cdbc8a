/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Groups: FMEM apportioned between groups of address spaces.
 *
 * A group may have a floor and a cap of FMEM. Within them all groups are ranked
 * together: what is hottest is worth most, whose it is does not matter.
 *
 * - The floor is guaranteed as far as the group has that much worth holding: pages
 *   whose accesses save more over the horizon than it costs to move them. Of what it
 *   has above that, anybody may take what is colder; up to that, it takes the coldest
 *   pages of groups that are above theirs, however hot these are.
 * - No page comes to a group at its cap. One that is above it (memory is allocated
 *   where the kernel likes) gives up its coldest pages: to others that want theirs
 *   promoted, else to SMEM.
 * - Swaps inside a group change nobody's share and are always allowed.
 *
 * If the floors come to more than there is, all are lowered in proportion.
 *
 * Group 0 is that of the address spaces which are in none; it may have limits, too.
 */
#ifndef DEMETER_GROUPS_H
#define DEMETER_GROUPS_H

#include <demeter/plan.h>

#define DEMETER_NO_CAP (~0ULL)

/**
 * struct demeter_group_cursor - a position in a group's part of the ranking
 * @pages: left there by the steps so far, 0 when not looked at yet
 * @worth: of one of them, as the planner takes it for this side
 * @doubt: what of @worth is caution
 * @at: the entry; on the cold side one past it
 */
struct demeter_group_cursor {
	u64 pages;
	u64 worth;
	u64 doubt;
	u32 at;
};

/**
 * struct demeter_group - one group
 * @floor_pages: FMEM that it is guaranteed
 * @cap_pages: most FMEM that it may have, DEMETER_NO_CAP for any
 * @fmem_pages: FMEM that it has; the planner goes on counting
 * @worth_pages: out: pages that are worth holding in FMEM
 * @due_pages: out: what of the floor it is due
 * @hot: the planner's, as all below
 * @cold: likewise
 * @first: its first entry in the ranking
 * @nr: how many entries it has
 * @promoted_end: one past the last entry that pages were promoted from
 * @demoted_first: the first entry that pages were demoted from
 */
struct demeter_group {
	u64 floor_pages;
	u64 cap_pages;
	u64 fmem_pages;
	u64 worth_pages;
	u64 due_pages;
	struct demeter_group_cursor hot;
	struct demeter_group_cursor cold;
	u32 first;
	u32 nr;
	u32 promoted_end;
	u32 demoted_first;
};

/**
 * struct demeter_groups - all groups
 * @group: caller's array, by number of the group
 * @nr: its length, at least 1
 * @unit_shift: log2 of the pages that move as one at most. Between groups, limits
 *	are kept by counting in whole units: to within one of them
 */
struct demeter_groups {
	struct demeter_group *group;
	u32 nr;
	u32 unit_shift;
};

void demeter_groups_set_due(struct demeter_groups *gs, u64 free_pages);
u64 demeter_groups_room(const struct demeter_groups *gs, const struct demeter_group *g);
u64 demeter_groups_spare(const struct demeter_groups *gs, const struct demeter_group *g);
u64 demeter_groups_need(const struct demeter_groups *gs, const struct demeter_group *g);
u64 demeter_groups_excess(const struct demeter_group *g);
void demeter_groups_moved(const struct demeter_groups *gs, struct demeter_group *taker,
			  struct demeter_group *giver, u64 pages);

/* plan_groups.c */
void demeter_plan_make_grouped(struct demeter_plan *plan, struct demeter_plan_state *state,
			       const struct demeter_plan_params *params,
			       const struct demeter_rank_entry *ranked, u32 nr,
			       struct demeter_groups *gs, u64 free_fmem_pages, u64 now_ns);

#endif /* DEMETER_GROUPS_H */
