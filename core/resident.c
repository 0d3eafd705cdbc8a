// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Resident: see <demeter/resident.h>.
 */
#include <demeter/math.h>
#include <demeter/resident.h>

/**
 * demeter_resident_cell_shift - size of the cells that suit a granule
 * @granule_bytes: smallest range, a power of two
 *
 * Return: log2 of the bytes of a cell.
 */
u32 demeter_resident_cell_shift(u64 granule_bytes)
{
	u32 shift = demeter_log2(granule_bytes);

	return (u32)demeter_max(demeter_min(shift, DEMETER_MAX_CELL_SHIFT), DEMETER_PAGE_SHIFT);
}

/**
 * demeter_resident_leaf_bytes - addresses that a leaf stands for
 * @res: what is resident
 *
 * Leaves begin at multiples of it.
 *
 * Return: bytes.
 */
u64 demeter_resident_leaf_bytes(const struct demeter_resident *res)
{
	return (u64)DEMETER_LEAF_CELLS << res->cell_shift;
}

/* First leaf that ends above @gva; @res->nr when there is none. */
static u32 resident_search(const struct demeter_resident *res, u64 gva)
{
	u64 bytes = demeter_resident_leaf_bytes(res);
	u32 low = 0, high = res->nr;

	while (low < high) {
		u32 mid = low + (high - low) / 2;

		if (gva - res->leaf[mid]->start < bytes || gva < res->leaf[mid]->start)
			high = mid;
		else
			low = mid + 1;
	}
	return low;
}

static bool cells_are_empty(const struct demeter_cells *cells, u32 from, u32 to)
{
	u32 i, any = 0;

	for (i = from; i < to; i++)
		any |= cells->pages[i][DEMETER_FMEM] | cells->pages[i][DEMETER_SMEM];
	return !any;
}

/* Cells of @leaf that [start, end) reaches into: [*from, *to). */
static void leaf_clip(const struct demeter_resident *res, const struct demeter_leaf *leaf,
		      u64 start, u64 end, u32 *from, u32 *to)
{
	u64 bytes = demeter_resident_leaf_bytes(res);
	u64 first = demeter_sub_sat(start, leaf->start);
	u64 last = demeter_min(demeter_sub_sat(end, leaf->start), bytes);
	u64 cell_mask = (1ULL << res->cell_shift) - 1;

	*from = (u32)(demeter_min(first, bytes) >> res->cell_shift);
	*to = (u32)((last + cell_mask) >> res->cell_shift);
}

/* @spare is the leaf at @base from now on; there is room in the array. */
static void leaf_insert(struct demeter_resident *res, u32 at, u64 base, struct demeter_leaf *spare)
{
	memset(spare, 0, sizeof(*spare));
	spare->start = base;
	memmove(&res->leaf[at + 1], &res->leaf[at],
		(size_t)(res->nr - at) * sizeof(struct demeter_leaf *));
	res->leaf[at] = spare;
	res->nr++;
}

/**
 * demeter_resident_set - take over what a walk has counted
 * @res: what is resident
 * @start: first address walked
 * @end: one past the last, in the same leaf as @start; both multiples of a cell
 * @cells: what was found, by cell of that leaf
 * @spare: a leaf to use when there is none yet, or NULL
 *
 * Return: 1 when @spare is in use now; 0 when it was not needed; -ENOMEM when it
 * was and there is none; -ENOSPC when the array of leaves is full; -EINVAL for
 * bounds that make no sense. Nothing has changed after an error.
 */
int demeter_resident_set(struct demeter_resident *res, u64 start, u64 end,
			 const struct demeter_cells *cells, struct demeter_leaf *spare)
{
	u64 bytes = demeter_resident_leaf_bytes(res), base = start & ~(bytes - 1);
	u32 at, from, to, i, tier;
	struct demeter_leaf *leaf;
	int used = 0;

	if (start >= end || end - base > bytes || ((start | end) & ((1ULL << res->cell_shift) - 1)))
		return -EINVAL;
	from = (u32)((start - base) >> res->cell_shift);
	to = (u32)((end - base) >> res->cell_shift);
	at = resident_search(res, start);
	if (at == res->nr || res->leaf[at]->start != base) {
		if (cells_are_empty(cells, from, to))
			return 0;
		if (!spare)
			return -ENOMEM;
		if (res->nr == res->capacity)
			return -ENOSPC;
		leaf_insert(res, at, base, spare);
		used = 1;
	}
	leaf = res->leaf[at];
	for (i = from; i < to; i++) {
		for (tier = 0; tier < DEMETER_TIERS; tier++) {
			leaf->sum[tier] -= leaf->cells.pages[i][tier];
			leaf->cells.pages[i][tier] = cells->pages[i][tier];
			leaf->sum[tier] += leaf->cells.pages[i][tier];
		}
	}
	return used;
}

/**
 * demeter_resident_move - book pages that were moved to the other tier
 * @res: what is resident
 * @start: first address that they may come from
 * @end: one past the last
 * @from: the tier that they were in
 * @pages: how many, 4 KiB each
 *
 * They are taken from the lowest cells first.
 *
 * Return: pages booked; fewer than @pages when fewer were known to be there.
 */
u64 demeter_resident_move(struct demeter_resident *res, u64 start, u64 end, enum demeter_tier from,
			  u64 pages)
{
	enum demeter_tier to = from == DEMETER_FMEM ? DEMETER_SMEM : DEMETER_FMEM;
	u64 left = pages;
	u32 at, i, last;

	for (at = resident_search(res, start); at < res->nr && left; at++) {
		struct demeter_leaf *leaf = res->leaf[at];

		if (leaf->start >= end)
			break;
		leaf_clip(res, leaf, start, end, &i, &last);
		for (; i < last && left; i++) {
			u16 *cell = leaf->cells.pages[i];
			u16 taken = (u16)demeter_min(cell[from], left);

			taken = (u16)demeter_min(taken, 0xffffU - cell[to]);
			cell[from] -= taken;
			cell[to] += taken;
			leaf->sum[from] -= taken;
			leaf->sum[to] += taken;
			left -= taken;
		}
	}
	return pages - left;
}

/* The cells of @res that @leaf's addresses have: @spare where nothing was found there yet. */
static struct demeter_leaf *leaf_like(struct demeter_resident *res, const struct demeter_leaf *leaf,
				      struct demeter_leaf **spare)
{
	u32 at = resident_search(res, leaf->start);

	if (at < res->nr && res->leaf[at]->start == leaf->start)
		return res->leaf[at];
	if (!*spare || res->nr == res->capacity)
		return NULL;
	leaf_insert(res, at, leaf->start, *spare);
	*spare = NULL;
	return res->leaf[at];
}

/**
 * demeter_resident_move_between - the same, into a tier that is counted elsewhere
 * @res: what is resident, with the tier that they were in
 * @other: the same address space, with the tier that they went to; cells of the same
 *	size. May be @res
 * @start: first address that they may come from
 * @end: one past the last
 * @from: the tier that they were in
 * @pages: how many, 4 KiB each
 * @spare: a leaf to use where @other has none, if it has room for one; NULL afterwards
 *	when it is in use
 *
 * Return: pages booked on both sides; fewer than @pages when fewer were known to be
 * there, or when nothing was known of @other where they are and @spare did not do: a
 * walk finds them.
 */
u64 demeter_resident_move_between(struct demeter_resident *res, struct demeter_resident *other,
				  u64 start, u64 end, enum demeter_tier from, u64 pages,
				  struct demeter_leaf **spare)
{
	enum demeter_tier to = from == DEMETER_FMEM ? DEMETER_SMEM : DEMETER_FMEM;
	u64 left = pages, booked = 0;
	u32 at, i, last;

	if (res == other)
		return demeter_resident_move(res, start, end, from, pages);
	for (at = resident_search(res, start); at < res->nr && left; at++) {
		struct demeter_leaf *leaf = res->leaf[at], *into = NULL;

		if (leaf->start >= end)
			break;
		leaf_clip(res, leaf, start, end, &i, &last);
		for (; i < last && left; i++) {
			u16 taken = (u16)demeter_min(leaf->cells.pages[i][from], left);
			u16 put = 0;

			if (!taken)
				continue;
			if (!into)
				into = leaf_like(other, leaf, spare);
			if (into)
				put = (u16)demeter_min(taken, 0xffffU - into->cells.pages[i][to]);
			leaf->cells.pages[i][from] -= taken;
			leaf->sum[from] -= taken;
			left -= taken;
			if (!put)
				continue;
			into->cells.pages[i][to] += put;
			into->sum[to] += put;
			booked += put;
		}
	}
	return booked;
}

/**
 * demeter_resident_next - where the next pages of a tier are
 * @res: what is resident
 * @start: first address to look at
 * @end: one past the last
 * @tier: the tier
 * @stop: out: one past the last address of cells in a row that hold some
 *
 * Return: where they begin, or @end when there are none.
 */
u64 demeter_resident_next(const struct demeter_resident *res, u64 start, u64 end,
			  enum demeter_tier tier, u64 *stop)
{
	u32 at, i, last;

	*stop = end;
	for (at = resident_search(res, start); at < res->nr; at++) {
		const struct demeter_leaf *leaf = res->leaf[at];
		u64 found;

		if (leaf->start >= end)
			break;
		if (!leaf->sum[tier])
			continue;
		leaf_clip(res, leaf, start, end, &i, &last);
		while (i < last && !leaf->cells.pages[i][tier])
			i++;
		if (i == last)
			continue;
		found = leaf->start + ((u64)i << res->cell_shift);
		while (i < last && leaf->cells.pages[i][tier])
			i++;
		*stop = demeter_min(end, leaf->start + ((u64)i << res->cell_shift));
		return demeter_max(start, found);
	}
	return end;
}

/* Pages of the part of a cell at @cell_start that lies in [start, end). */
static u64 cell_share(const struct demeter_resident *res, u64 cell_start, u64 start, u64 end,
		      u64 pages)
{
	u64 from = demeter_max(cell_start, start);
	u64 to = demeter_min(cell_start + (1ULL << res->cell_shift), end);

	/* Differences of rounded parts, so that those of a whole cell add up to it. */
	return (pages * ((to - cell_start) >> DEMETER_PAGE_SHIFT) >>
		(res->cell_shift - DEMETER_PAGE_SHIFT)) -
	       (pages * ((from - cell_start) >> DEMETER_PAGE_SHIFT) >>
		(res->cell_shift - DEMETER_PAGE_SHIFT));
}

static void leaf_add(const struct demeter_resident *res, const struct demeter_leaf *leaf,
		     struct demeter_rank_entry *e)
{
	u32 from, to, i, tier;

	leaf_clip(res, leaf, e->start, e->end, &from, &to);
	if (from == 0 && to == DEMETER_LEAF_CELLS && e->start <= leaf->start &&
	    e->end - leaf->start >= demeter_resident_leaf_bytes(res)) {
		for (tier = 0; tier < DEMETER_TIERS; tier++)
			e->pages[tier] += leaf->sum[tier];
		return;
	}
	for (i = from; i < to; i++) {
		u64 at = leaf->start + ((u64)i << res->cell_shift);
		const u16 *cell = leaf->cells.pages[i];

		for (tier = 0; tier < DEMETER_TIERS; tier++)
			e->pages[tier] +=
				at >= e->start && e->end - at >= 1ULL << res->cell_shift
					? cell[tier]
					: cell_share(res, at, e->start, e->end, cell[tier]);
	}
}

/**
 * demeter_resident_add - add the pages of each of many ranges
 * @res: what is resident
 * @entries: ranges of the address space, sorted by address, disjoint; their
 *	@pages grow
 * @nr: how many
 *
 * What of a cell belongs to a range that is smaller is taken by size.
 */
void demeter_resident_add(const struct demeter_resident *res, struct demeter_rank_entry *entries,
			  u32 nr)
{
	u64 bytes = demeter_resident_leaf_bytes(res);
	u32 at = nr ? resident_search(res, entries[0].start) : 0, i;

	for (i = 0; i < nr; i++) {
		struct demeter_rank_entry *e = &entries[i];

		while (at < res->nr && e->start >= res->leaf[at]->start &&
		       e->start - res->leaf[at]->start >= bytes)
			at++;
		for (; at < res->nr && res->leaf[at]->start < e->end; at++) {
			leaf_add(res, res->leaf[at], e);
			/* The next range may begin in this leaf. */
			if (e->end - res->leaf[at]->start < bytes)
				break;
		}
	}
}

/**
 * demeter_resident_sum - pages of each of many ranges
 * @res: what is resident
 * @entries: as for demeter_resident_add(); their @pages are set
 * @nr: how many
 */
void demeter_resident_sum(const struct demeter_resident *res, struct demeter_rank_entry *entries,
			  u32 nr)
{
	u32 i;

	for (i = 0; i < nr; i++)
		memset(entries[i].pages, 0, sizeof(entries[i].pages));
	demeter_resident_add(res, entries, nr);
}
