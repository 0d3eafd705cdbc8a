/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Rank: the ranges of all managed address spaces in one order, hottest first.
 * Density is decayed samples per resident page (per page of the range while
 * none is known to be resident); equal densities are ordered by age, younger
 * first (a younger range has the tighter bounds), then by space and address. With
 * groups (see <demeter/groups.h>) there is such an order for each.
 */
#ifndef DEMETER_RANK_H
#define DEMETER_RANK_H

#include <demeter/ranges.h>

/* Density is fixed point: rate << DEMETER_DENSITY_SHIFT per page. */
#define DEMETER_DENSITY_SHIFT 16

/**
 * struct demeter_rank_entry - one range as the planner sees it
 * @start: first byte of guest virtual address
 * @end: one past the last byte
 * @rate: decayed samples (fixed point, DEMETER_RATE_SHIFT)
 * @density: filled by demeter_rank(): rate per resident page
 * @pages: resident pages (4 KiB) per tier, counted by the caller
 * @resident: filled by demeter_rank(): sum of @pages then. What an access rate
 *	is divided by, so that a caller may hide @pages from the planner later
 * @age_epochs: epochs since the range got its bounds; comparable between
 *	address spaces, which each count their own epochs
 * @space: caller's number of the address space
 * @group: caller's number of its group: groups are ranked one after the other
 * @part: 0 for a range; else pages scattered over it, see <demeter/finer.h>
 */
struct demeter_rank_entry {
	u64 start;
	u64 end;
	u64 rate;
	u64 density;
	u64 pages[DEMETER_TIERS];
	u64 resident;
	u32 age_epochs;
	u32 space;
	u32 group;
	u32 part;
};

u32 demeter_rank_gather(const struct demeter_ranges *rs, u32 space,
			struct demeter_rank_entry *entries, u32 nr, u32 capacity);
void demeter_rank(struct demeter_rank_entry *entries, u32 nr);
u32 demeter_rank_cut(const struct demeter_rank_entry *entries, u32 nr, u64 fmem_budget_pages);
u64 demeter_rank_digest(const struct demeter_rank_entry *entries, u32 nr, u64 seed);

#endif /* DEMETER_RANK_H */
