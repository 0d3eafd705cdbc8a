/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Resident: how many pages of each tier are where in one address space.
 *
 * Counts are kept by cell, of one granule but never more than 2 MiB, and not by
 * range: ranges come and go with every split and merge, cells stay. So the count
 * of any range is a sum, a move is arithmetic, and page tables are only walked to
 * correct what the kernel did on its own, a slice at a time.
 *
 * Where a tier has several nodes there is a count for each pair of them.
 *
 * Cells lie in leaves of 512, and only parts of the address space in which
 * something was found have one: 2 KiB for each GiB at 2 MiB a cell.
 */
#ifndef DEMETER_RESIDENT_H
#define DEMETER_RESIDENT_H

#include <demeter/deps.h>
#include <demeter/rank.h>

#define DEMETER_LEAF_CELLS     512U
/* So that a cell's pages, huge or not, fit its counters: 2 MiB. */
#define DEMETER_MAX_CELL_SHIFT 21U

/**
 * struct demeter_cells - pages by cell and tier, of one leaf's worth of addresses
 * @pages: 4 KiB pages
 */
struct demeter_cells {
	u16 pages[DEMETER_LEAF_CELLS][DEMETER_TIERS];
};

/**
 * struct demeter_leaf - cells of the address space
 * @start: address of the first one
 * @sum: of all cells, by tier
 * @cells: the cells
 */
struct demeter_leaf {
	u64 start;
	u64 sum[DEMETER_TIERS];
	struct demeter_cells cells;
};

/**
 * struct demeter_resident - what is resident in one address space
 * @leaf: caller's array, sorted by address
 * @capacity: its length
 * @nr: leaves in use
 * @cell_shift: log2 of the bytes of a cell
 *
 * Not synchronised: one owner at a time.
 */
struct demeter_resident {
	struct demeter_leaf **leaf;
	u32 capacity;
	u32 nr;
	u32 cell_shift;
};

u32 demeter_resident_cell_shift(u64 granule_bytes);
u64 demeter_resident_leaf_bytes(const struct demeter_resident *res);
int demeter_resident_set(struct demeter_resident *res, u64 start, u64 end,
			 const struct demeter_cells *cells, struct demeter_leaf *spare);
u64 demeter_resident_move(struct demeter_resident *res, u64 start, u64 end, enum demeter_tier from,
			  u64 pages);
u64 demeter_resident_move_between(struct demeter_resident *res, struct demeter_resident *other,
				  u64 start, u64 end, enum demeter_tier from, u64 pages,
				  struct demeter_leaf **spare);
u64 demeter_resident_next(const struct demeter_resident *res, u64 start, u64 end,
			  enum demeter_tier tier, u64 *stop);
void demeter_resident_add(const struct demeter_resident *res, struct demeter_rank_entry *entries,
			  u32 nr);
void demeter_resident_sum(const struct demeter_resident *res, struct demeter_rank_entry *entries,
			  u32 nr);

#endif /* DEMETER_RESIDENT_H */
