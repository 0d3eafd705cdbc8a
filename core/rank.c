// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Rank: see <demeter/rank.h>.
 *
 * The paper ranks by access count over size of the range. Here the count is
 * divided by resident pages: a range of a sparse heap is as hot as the pages
 * that exist in it, and only those can be moved.
 */
#include <demeter/digest.h>
#include <demeter/math.h>
#include <demeter/rank.h>

static u64 rank_resident(const struct demeter_rank_entry *e)
{
	return demeter_add_sat(e->pages[DEMETER_FMEM], e->pages[DEMETER_SMEM]);
}

static u64 rank_density(const struct demeter_rank_entry *e)
{
	u64 pages = rank_resident(e);

	if (pages == 0)
		pages = demeter_sub_sat(e->end, e->start) >> DEMETER_PAGE_SHIFT;
	return demeter_mul_div(e->rate, 1ULL << DEMETER_DENSITY_SHIFT, demeter_max(pages, 1));
}

/* Does @a rank after @b? A total order: no two of a part share space and start. */
static bool rank_after(const struct demeter_rank_entry *a, const struct demeter_rank_entry *b)
{
	if (a->group != b->group)
		return a->group > b->group;
	if (a->density != b->density)
		return a->density < b->density;
	if (a->age_epochs != b->age_epochs)
		return a->age_epochs > b->age_epochs;
	if (a->space != b->space)
		return a->space > b->space;
	if (a->start != b->start)
		return a->start > b->start;
	if (a->part != b->part)
		return a->part > b->part;
	return a->end > b->end;
}

/* Let the entry at @root sink to where no child ranks after it. */
static void rank_sink(struct demeter_rank_entry *entries, u32 root, u32 nr)
{
	struct demeter_rank_entry sinking = entries[root];
	u64 child;

	for (; (child = 2 * (u64)root + 1) < nr; root = (u32)child) {
		if (child + 1 < nr && rank_after(&entries[child + 1], &entries[child]))
			child++;
		if (!rank_after(&entries[child], &sinking))
			break;
		entries[root] = entries[child];
	}
	entries[root] = sinking;
}

/**
 * demeter_rank_gather - append the ranges of one address space
 * @rs: the ranges
 * @space: caller's number of the address space
 * @entries: array to append to; resident pages start at 0
 * @nr: entries in use
 * @capacity: length of @entries
 *
 * Return: entries in use now. What does not fit is left out.
 */
u32 demeter_rank_gather(const struct demeter_ranges *rs, u32 space,
			struct demeter_rank_entry *entries, u32 nr, u32 capacity)
{
	u32 i;

	for (i = 0; i < rs->nr && nr < capacity; i++, nr++) {
		const struct demeter_range *r = &rs->range[i];
		struct demeter_rank_entry *e = &entries[nr];

		memset(e, 0, sizeof(*e));
		e->start = r->start;
		e->end = r->end;
		e->rate = r->rate;
		e->age_epochs = rs->epoch - r->born_epoch;
		e->space = space;
	}
	return nr;
}

/**
 * demeter_rank - order ranges, hottest first
 * @entries: sorted in place, densities filled in
 * @nr: how many
 *
 * Heap sort: no recursion, no memory, and no input that makes it slow. The
 * order is total, so the result does not depend on the order before.
 */
void demeter_rank(struct demeter_rank_entry *entries, u32 nr)
{
	u32 i;

	for (i = 0; i < nr; i++) {
		entries[i].resident = rank_resident(&entries[i]);
		entries[i].density = rank_density(&entries[i]);
	}
	for (i = nr / 2; i-- > 0;)
		rank_sink(entries, i, nr);
	for (i = nr; i-- > 1;) {
		struct demeter_rank_entry last = entries[0];

		entries[0] = entries[i];
		entries[i] = last;
		rank_sink(entries, 0, i);
	}
}

/**
 * demeter_rank_cut - how many leading ranges fit into FMEM
 * @entries: ranked
 * @nr: how many
 * @fmem_budget_pages: pages of FMEM shared by all of them
 *
 * Return: the number of leading entries whose resident pages fit as a whole.
 */
u32 demeter_rank_cut(const struct demeter_rank_entry *entries, u32 nr, u64 fmem_budget_pages)
{
	u32 i;

	for (i = 0; i < nr; i++) {
		u64 pages = rank_resident(&entries[i]);

		if (pages > fmem_budget_pages)
			break;
		fmem_budget_pages -= pages;
	}
	return i;
}

/**
 * demeter_rank_digest - one number for a ranking
 * @entries: ranked
 * @nr: how many
 * @seed: 0, or a digest to continue
 *
 * Return: the digest.
 */
u64 demeter_rank_digest(const struct demeter_rank_entry *entries, u32 nr, u64 seed)
{
	u64 digest = demeter_digest_start(seed);
	u32 i;

	digest = demeter_digest_add(digest, nr);
	for (i = 0; i < nr; i++) {
		const struct demeter_rank_entry *e = &entries[i];

		digest = demeter_digest_add(digest, e->space);
		digest = demeter_digest_add(digest, e->start);
		digest = demeter_digest_add(digest, e->end);
		digest = demeter_digest_add(digest, e->density);
		digest = demeter_digest_add(digest, e->pages[DEMETER_FMEM]);
		digest = demeter_digest_add(digest, e->pages[DEMETER_SMEM]);
	}
	return digest;
}
