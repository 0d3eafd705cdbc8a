// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Finer: what of a divided granule is ranked and moved, see <demeter/finer.h>. A part
 * of finer.c, which includes this file where it needs it.
 *
 * The pages of a divided granule with as many samples are a class. The ranking gets
 * each class as an entry of its own in place of the granule, whose samples its range
 * does not have.
 */
/**
 * demeter_finer_locate - where the pages of a granule are
 * @g: the granule
 * @fmem: bit for each page that is in FMEM
 * @smem: bit for each page that is in SMEM
 */
void demeter_finer_locate(struct demeter_finer_granule *g, const u64 *fmem, const u64 *smem)
{
	memcpy(g->where[DEMETER_FMEM], fmem, sizeof(g->where[DEMETER_FMEM]));
	memcpy(g->where[DEMETER_SMEM], smem, sizeof(g->where[DEMETER_SMEM]));
	finer_sum(g);
}

/**
 * demeter_finer_select - the pages of a class
 * @g: a granule
 * @class: the class
 * @tier: where they are
 * @select: out: DEMETER_FINER_WORDS words, a bit for each page
 *
 * Return: how many.
 */
u32 demeter_finer_select(const struct demeter_finer_granule *g, u32 class, enum demeter_tier tier,
			 u64 *select)
{
	u32 cell, nr = 0;

	memset(select, 0, DEMETER_FINER_WORDS * sizeof(*select));
	if (!g->pages[class][tier])
		return 0;
	for (cell = 0; cell < DEMETER_FINER_CELLS; cell++) {
		if (!finer_test(g->where[tier], cell) || finer_class(finer_count(g, cell)) != class)
			continue;
		select[cell / 64] |= 1ULL << (cell % 64);
		nr++;
	}
	return nr;
}

/* @samples of @g as a decayed count would have them, << 16 more. */
static u64 finer_decayed(const struct demeter_finer *f, const struct demeter_finer_granule *g,
			 u64 samples)
{
	u64 weight = finer_weight(f, g);
	u64 epochs = (u64)g->epochs[0] + g->epochs[1];

	if (!g->samples || !epochs)
		return 0;
	weight = demeter_mul_div(weight << FINER_SHIFT, 2 * samples, g->samples);
	return div64_u64(weight, epochs);
}

/**
 * demeter_finer_rate - all samples of a granule
 * @f: the granules
 * @g: the granule
 *
 * Return: decayed samples, fixed point, like the rate of a range.
 */
u64 demeter_finer_rate(const struct demeter_finer *f, const struct demeter_finer_granule *g)
{
	return finer_decayed(f, g, g->samples) >> FINER_SHIFT;
}

static bool finer_is_apart(const struct demeter_finer_granule *g, u32 space)
{
	return g->space == space && (g->state == DEMETER_FINER_DIVIDED || g->settle);
}

/**
 * demeter_finer_has - may an address space have granules of its own
 * @f: the granules
 * @space: its number
 *
 * Return: whether any of it may be divided, or have been until a moment ago.
 */
bool demeter_finer_has(const struct demeter_finer *f, u32 space)
{
	return f->spaces & finer_space_bit(space);
}

/**
 * demeter_finer_undivided - where the first divided granule begins
 * @f: the granules
 * @space: address space
 * @start: first address to look at
 * @end: one past the last
 *
 * Return: where one begins that lies, at least partly, in [@start, @end), or @end.
 */
u64 demeter_finer_undivided(const struct demeter_finer *f, u32 space, u64 start, u64 end)
{
	u64 at = start >> DEMETER_FINER_SHIFT << DEMETER_FINER_SHIFT, first = end;
	u64 nr = start < end && f->divided && demeter_finer_has(f, space)
			 ? ((end - at) >> DEMETER_FINER_SHIFT) + 1
			 : 0;
	u64 i;

	/* A look at each granule of the range, in order, or at each that is known. */
	for (i = 0; i < demeter_min(nr, f->capacity) && (nr > f->capacity || first == end); i++) {
		const struct demeter_finer_granule *g = &f->granule[i];

		if (nr <= f->capacity)
			g = demeter_finer_find(f, space, at + (i << DEMETER_FINER_SHIFT));
		if (g && g->state == DEMETER_FINER_DIVIDED && g->space == space && g->start >= at)
			first = demeter_min(first, g->start);
	}
	return start < end ? demeter_max(first, start) : end;
}

/**
 * demeter_finer_whole - the first part of a range that has no divided granule
 * @f: the granules
 * @space: address space
 * @start: where the range begins; moved behind the divided granules there
 * @end: one past its last address
 *
 * Return: one past the last address of that part; @start when all is divided.
 */
u64 demeter_finer_whole(const struct demeter_finer *f, u32 space, u64 *start, u64 end)
{
	u64 stop = demeter_finer_undivided(f, space, *start, end);

	for (; stop == *start && stop < end; stop = demeter_finer_undivided(f, space, *start, end))
		*start = demeter_min(stop | ((1ULL << DEMETER_FINER_SHIFT) - 1), end - 1) + 1;
	return stop;
}

/* The entry that holds @at, or the first one above. */
static u32 finer_search(const struct demeter_rank_entry *entries, u32 nr, u64 at)
{
	u32 low = 0, high = nr;

	while (low < high) {
		u32 mid = low + (high - low) / 2;

		if (entries[mid].end <= at)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

/**
 * demeter_finer_hide - take divided granules out of their ranges
 * @f: the granules
 * @space: address space
 * @resident: what is resident in it
 * @entries: its ranges, sorted by address, with their pages
 * @nr: how many
 */
void demeter_finer_hide(const struct demeter_finer *f, u32 space,
			const struct demeter_resident *resident, struct demeter_rank_entry *entries,
			u32 nr)
{
	u32 i, at, tier;

	if (!demeter_finer_has(f, space))
		return;
	for (i = 0; i < f->capacity && (f->divided || f->settle); i++) {
		const struct demeter_finer_granule *g = &f->granule[i];
		u64 end = g->start + (1ULL << DEMETER_FINER_SHIFT);

		if (!finer_is_apart(g, space))
			continue;
		at = finer_search(entries, nr, g->start);
		for (; at < nr && entries[at].start < end; at++) {
			struct demeter_rank_entry *e = &entries[at], on;
			u64 part;

			memset(&on, 0, sizeof(on));
			on.start = demeter_max(e->start, g->start);
			on.end = demeter_min(e->end, end);
			demeter_resident_sum(resident, &on, 1);
			for (tier = 0; tier < DEMETER_TIERS; tier++)
				e->pages[tier] = demeter_sub_sat(e->pages[tier], on.pages[tier]);
			part = demeter_mul_div(g->carried, on.end - on.start, end - g->start);
			e->rate = demeter_sub_sat(e->rate, part);
		}
	}
}

/**
 * demeter_finer_classes - the pages of divided granules as the planner sees them
 * @f: the granules
 * @space: address space
 * @entries: out: DEMETER_FINER_CLASSES entries: pages and rates of the classes; from
 *	the first granule that is divided to the last, if any
 */
void demeter_finer_classes(const struct demeter_finer *f, u32 space,
			   struct demeter_rank_entry *entries)
{
	u64 start = DEMETER_U64_MAX, end = 0;
	u32 i, k, tier;

	memset(entries, 0, DEMETER_FINER_CLASSES * sizeof(*entries));
	for (i = 0; i < f->capacity && f->divided && demeter_finer_has(f, space); i++) {
		const struct demeter_finer_granule *g = &f->granule[i];

		if (g->state != DEMETER_FINER_DIVIDED || g->space != space)
			continue;
		start = demeter_min(start, g->start);
		end = demeter_max(end, g->start + (1ULL << DEMETER_FINER_SHIFT));
		for (k = 0; k < DEMETER_FINER_CLASSES; k++) {
			struct demeter_rank_entry *e = &entries[k];

			e->rate = demeter_add_sat(e->rate, finer_decayed(f, g, g->known[k]));
			for (tier = 0; tier < DEMETER_TIERS; tier++)
				e->pages[tier] += g->pages[k][tier];
		}
	}
	for (k = 0; k < DEMETER_FINER_CLASSES && end; k++) {
		entries[k].start = start;
		entries[k].end = end;
		entries[k].rate >>= FINER_SHIFT;
		entries[k].space = space;
		entries[k].age_epochs = FINER_AGE;
		entries[k].part = DEMETER_FINER_PART + k;
	}
}
