// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Ranges: see <demeter/ranges.h>.
 *
 * The paper splits a range when the access counts of its parts differ by more
 * than tau and significantly at alpha, both scaled by the number of vCPUs;
 * halves all counts each epoch; and merges neighbours that have both decayed
 * to zero. Here:
 *
 * - Counts are kept by quarter, not by half. Three contrasts (lower against
 *   upper half, middle against outside, even against odd quarters) see a hot
 *   spot that straddles the middle, which two equal halves would hide.
 * - The halves of a half are known quarters, so a half may be split once more
 *   in the same epoch: two levels of the tree an epoch instead of one.
 * - What a range inherits has no known place inside it. It counts for the rate,
 *   is no evidence for the next split, and is then divided as the samples seen
 *   since lie (less what could be noise): spread evenly instead, it would make
 *   the cold neighbours of a hot spot look warm for several epochs.
 * - The part of the threshold in samples (tau) and the one in standard
 *   deviations (alpha) must both be exceeded: tau alone splits every busy range
 *   on noise, alpha alone every idle one.
 * - Neighbours merge when their densities have not differed for tau_merge
 *   epochs in a row, idle or not: without it (the published artifact never
 *   merges) a moving hot spot leaves its trail behind forever.
 * - The array is bounded, by what the caller lets it grow to. When it is full,
 *   the coldest pairs of alike neighbours make room; if that is not enough splits
 *   are denied and counted, and tau rises until those left fit. It need not follow
 *   the CPUs: what more of them sample, alpha sees.
 *
 * Counts of differently sized parts are compared by the same rule as equal
 * ones. With n samples in the whole and a share p of its size in the part,
 * the part's excess over its fair share is d = |x - p n| and has the variance
 * p (1 - p) n. For halves, d is half of the difference between them, and
 * "difference >= tau, difference^2 > alpha^2 n" becomes
 *
 *	2 d >= tau  and  d^2 > alpha^2 p (1 - p) n.
 *
 * Halving each epoch makes the true variance a third smaller than this says,
 * so alpha = 2 stands for about 2.4 standard deviations.
 */
#include <demeter/math.h>
#include <demeter/ranges.h>

/*
 * Keeps every sum of rates far from wrapping. 2^32 hits in each quarter and
 * epoch, the most there can be, stay below it.
 */
#define RANGES_MAX_RATE BIT_ULL(52)

/* demeter_ranges.tau_raise is in parts of this, and never above the second. */
#define RANGES_RAISE_UNIT 256U
#define RANGES_MAX_RAISE  BIT_ULL(20)

/* How often one epoch may look for a pair to merge when the array is full. */
#define RANGES_MAX_ROOM_SEARCHES 16

static u64 ranges_granules(const struct demeter_range *r, u32 shift)
{
	return (r->end - r->start) >> shift;
}

/* First byte of quarter @k; @k == DEMETER_QUARTERS is the end of the range. */
static u64 ranges_bound(const struct demeter_range *r, u32 shift, u32 k)
{
	u64 granules = ranges_granules(r, shift);

	return r->start + (((granules * k) / DEMETER_QUARTERS) << shift);
}

static u32 ranges_quarter_of(const struct demeter_range *r, u32 shift, u64 gva)
{
	u64 granules = ranges_granules(r, shift);
	u64 at = (gva - r->start) >> shift;

	return (at >= granules / 4) + (at >= granules / 2) + (at >= granules * 3 / 4);
}

static void ranges_clear(struct demeter_range *r, u64 start, u64 end, u32 area, u32 epoch)
{
	memset(r, 0, sizeof(*r));
	r->start = start;
	r->end = end;
	r->area = area;
	r->born_epoch = epoch;
}

/* The part of the rate whose quarter is known. */
static u64 ranges_located(const struct demeter_range *r)
{
	u64 sum = 0;
	u32 k;

	for (k = 0; k < DEMETER_QUARTERS; k++)
		sum += r->quarter[k];
	return sum;
}

/*
 * What @r holds below address @at, counts taken as evenly spread within their
 * quarter. Differences of this sum are conserved whatever the rounding.
 */
static u64 ranges_below(const struct demeter_range *r, u32 shift, u64 at, bool hits)
{
	u64 sum = 0;
	u32 k;

	for (k = 0; k < DEMETER_QUARTERS; k++) {
		u64 from = ranges_bound(r, shift, k);
		u64 to = ranges_bound(r, shift, k + 1);
		u64 held = hits ? r->hits[k] : r->quarter[k];

		if (at >= to) {
			sum += held;
			continue;
		}
		if (at > from && held)
			sum += demeter_mul_div(held, (at - from) >> DEMETER_PAGE_SHIFT,
					       (to - from) >> DEMETER_PAGE_SHIFT);
		break;
	}
	return sum;
}

/* The same for the whole rate: what has no place is divided as the rest lies. */
static u64 ranges_rate_below(const struct demeter_range *r, u32 shift, u64 at)
{
	u64 located = ranges_located(r);
	u64 below = ranges_below(r, shift, at, false);
	u64 part = below, whole = located;

	if (at <= r->start)
		return 0;
	if (at >= r->end)
		return r->rate;
	if (located == 0) {
		part = (at - r->start) >> DEMETER_PAGE_SHIFT;
		whole = (r->end - r->start) >> DEMETER_PAGE_SHIFT;
	}
	return below + demeter_mul_div(r->rate - located, part, whole);
}

/* Add to @to what @from holds inside the bounds of @to. */
static void ranges_pour(struct demeter_range *to, u32 to_shift, const struct demeter_range *from,
			u32 from_shift)
{
	u64 rate_below = ranges_below(from, from_shift, to->start, false);
	u64 hits_below = ranges_below(from, from_shift, to->start, true);
	u32 k;

	for (k = 0; k < DEMETER_QUARTERS; k++) {
		u64 bound = ranges_bound(to, to_shift, k + 1);
		u64 rate = ranges_below(from, from_shift, bound, false);
		u64 hits = ranges_below(from, from_shift, bound, true);

		to->quarter[k] = demeter_min(to->quarter[k] + (rate - rate_below),
					     RANGES_MAX_RATE / DEMETER_QUARTERS);
		to->hits[k] = (u32)demeter_min((u64)to->hits[k] + (hits - hits_below), (u32)~0U);
		rate_below = rate;
		hits_below = hits;
	}
	to->rate = demeter_min(to->rate + ranges_rate_below(from, from_shift, to->end) -
				       ranges_rate_below(from, from_shift, to->start),
			       RANGES_MAX_RATE);
}

/* Give @r new bounds; it keeps the samples that lie inside them. */
static void ranges_reshape(struct demeter_range *r, u32 shift, u64 start, u64 end, u32 epoch)
{
	struct demeter_range old = *r;

	ranges_clear(r, start, end, old.area, epoch);
	ranges_pour(r, shift, &old, shift);
}

static struct demeter_range ranges_union(const struct demeter_ranges *rs,
					 const struct demeter_range *a,
					 const struct demeter_range *b)
{
	struct demeter_range both;

	ranges_clear(&both, a->start, b->end, a->area, rs->epoch);
	ranges_pour(&both, rs->granule_shift, a, rs->granule_shift);
	ranges_pour(&both, rs->granule_shift, b, rs->granule_shift);
	both.alike_epochs = b->alike_epochs;
	return both;
}

/*
 * Do @x of @n samples differ from the fair share of a part of @size granules
 * out of @whole, by the threshold @tau and significantly?
 */
static bool ranges_differ(const struct demeter_ranges *rs, u64 x, u64 size, u64 n, u64 whole,
			  u64 tau)
{
	u64 alpha = rs->params.significance;
	u64 expected, distance, variance;

	if (size == 0 || size >= whole)
		return false;
	expected = demeter_mul_div(n, size, whole);
	distance = x > expected ? x - expected : expected - x;
	if (2 * distance < tau)
		return false;
	variance = demeter_mul_div(expected, whole - size, whole);
	return demeter_wide_above(demeter_mul_wide(distance, distance),
				  demeter_mul_wide(alpha * alpha << DEMETER_RATE_SHIFT, variance));
}

static u64 ranges_tau(const struct demeter_ranges *rs)
{
	u64 tau = ((u64)rs->params.split_samples * rs->params.vcpus) << DEMETER_RATE_SHIFT;

	return tau + demeter_mul_div(tau, rs->tau_raise, RANGES_RAISE_UNIT);
}

/* Granules in quarter @k of a range of @granules. */
static u64 ranges_quarter_size(u64 granules, u32 k)
{
	return granules * (k + 1) / DEMETER_QUARTERS - granules * k / DEMETER_QUARTERS;
}

/*
 * Are the parts of @r different enough to tell them apart? Only samples whose
 * place is known are asked, and fewer than tau of them say nothing.
 */
static bool ranges_wants_split(const struct demeter_ranges *rs, const struct demeter_range *r)
{
	/* Quarters on one side of each contrast. */
	static const u8 contrast[][2] = { { 0, 1 }, { 1, 2 }, { 0, 2 } };
	u64 whole = ranges_granules(r, rs->granule_shift);
	u64 located = ranges_located(r), tau = ranges_tau(rs);
	u32 i;

	if (whole < 2 || located < tau)
		return false;
	for (i = 0; i < ARRAY_SIZE(contrast); i++) {
		u32 a = contrast[i][0], b = contrast[i][1];
		u64 size = ranges_quarter_size(whole, a) + ranges_quarter_size(whole, b);

		if (ranges_differ(rs, r->quarter[a] + r->quarter[b], size, located, whole, tau))
			return true;
	}
	return false;
}

/*
 * Of @inherited, with no known place, the share of a part of @size granules out
 * of @whole in which @x of @n samples were seen since. The part's excess counts
 * only as far as it is significant: noise in a few new samples must not be
 * magnified by many old ones.
 */
static u64 ranges_share(const struct demeter_ranges *rs, u64 inherited, u64 x, u64 size, u64 n,
			u64 whole)
{
	u64 alpha = rs->params.significance;
	u64 expected = demeter_mul_div(n, size, whole);
	u64 variance = demeter_mul_div(expected, whole - size, whole);
	u64 noise = demeter_sqrt(demeter_mul_sat(alpha * alpha << DEMETER_RATE_SHIFT, variance));

	if (x > expected)
		x = demeter_max(demeter_sub_sat(x, noise), expected);
	else
		x = demeter_min(x + noise, expected);
	return demeter_mul_div(inherited, x, n);
}

/* The same for the half of @r that consists of the quarters @k and @k + 1. */
static bool ranges_half_wants_split(const struct demeter_ranges *rs, const struct demeter_range *r,
				    u32 k)
{
	u64 granules = ranges_granules(r, rs->granule_shift);
	u64 lower = ranges_quarter_size(granules, k);
	u64 upper = ranges_quarter_size(granules, k + 1);
	u64 located = r->quarter[k] + r->quarter[k + 1], tau = ranges_tau(rs);

	return located >= tau &&
	       ranges_differ(rs, r->quarter[k], lower, located, lower + upper, tau);
}

/*
 * Neighbours count as alike below half of the threshold of a split, so that a
 * pair which was just worth a split is not at once worth a merge.
 */
static bool ranges_alike(const struct demeter_ranges *rs, const struct demeter_range *a,
			 const struct demeter_range *b)
{
	return !ranges_differ(rs, a->rate, ranges_granules(a, rs->granule_shift), a->rate + b->rate,
			      (b->end - a->start) >> rs->granule_shift, ranges_tau(rs) / 2);
}

static bool ranges_neighbours(const struct demeter_range *a, const struct demeter_range *b)
{
	return a->area == b->area && a->end == b->start;
}

static void ranges_insert_slot(struct demeter_ranges *rs, u32 at)
{
	memmove(&rs->range[at + 1], &rs->range[at], (size_t)(rs->nr - at) * sizeof(rs->range[0]));
	rs->nr++;
}

static void ranges_remove(struct demeter_ranges *rs, u32 at)
{
	memmove(&rs->range[at], &rs->range[at + 1],
		(size_t)(rs->nr - at - 1) * sizeof(rs->range[0]));
	rs->nr--;
}

/*
 * First range that ends above @gva; @rs->nr when there is none. Samples come in
 * no order, so a branch on each comparison would be mispredicted half the time.
 */
static u32 ranges_search(const struct demeter_ranges *rs, u64 gva)
{
	u32 base = 0, left = rs->nr;

	if (left == 0)
		return 0;
	while (left > 1) {
		u32 half = left / 2;

		base += rs->range[base + half - 1].end <= gva ? half : 0;
		left -= half;
	}
	return base + (rs->range[base].end <= gva);
}

static int ranges_check_params(const struct demeter_ranges_params *p)
{
	if (!p || p->split_samples == 0 || p->split_samples > DEMETER_MAX_SPLIT_SAMPLES ||
	    p->significance > DEMETER_MAX_SIGNIFICANCE || p->vcpus == 0 ||
	    p->vcpus > DEMETER_MAX_VCPUS || p->merge_epochs == 0)
		return -EINVAL;
	if (p->granule_bytes < DEMETER_PAGE_BYTES || p->granule_bytes > (1ULL << 62) ||
	    (p->granule_bytes & (p->granule_bytes - 1)))
		return -EINVAL;
	return 0;
}

/**
 * demeter_ranges_init - start with no area
 * @rs: what to initialise
 * @memory: array for the ranges; stays the caller's
 * @capacity: its length, at least 1
 * @params: copied
 *
 * Return: 0, or -EINVAL.
 */
int demeter_ranges_init(struct demeter_ranges *rs, struct demeter_range *memory, u32 capacity,
			const struct demeter_ranges_params *params)
{
	if (!rs || !memory || capacity == 0 || ranges_check_params(params))
		return -EINVAL;
	memset(rs, 0, sizeof(*rs));
	rs->range = memory;
	rs->capacity = capacity;
	rs->params = *params;
	rs->granule_shift = demeter_log2(params->granule_bytes);
	return 0;
}

/**
 * demeter_ranges_set_params - change the parameters of a running classifier
 * @rs: the ranges
 * @params: copied
 *
 * A finer granule is always possible; a coarser one only while every bound
 * still lies on it.
 *
 * Return: 0, or -EINVAL with nothing changed.
 */
int demeter_ranges_set_params(struct demeter_ranges *rs, const struct demeter_ranges_params *params)
{
	u32 old_shift = rs->granule_shift, shift, i;

	if (ranges_check_params(params))
		return -EINVAL;
	shift = demeter_log2(params->granule_bytes);
	for (i = 0; i < rs->nr; i++)
		if ((rs->range[i].start | rs->range[i].end) & (params->granule_bytes - 1))
			return -EINVAL;
	if (shift != old_shift) {
		/* Quarters begin at granules, so theirs move. */
		for (i = 0; i < rs->nr; i++) {
			struct demeter_range old = rs->range[i];
			struct demeter_range *r = &rs->range[i];

			memset(r->quarter, 0, sizeof(r->quarter));
			memset(r->hits, 0, sizeof(r->hits));
			ranges_pour(r, shift, &old, old_shift);
		}
	}
	rs->params = *params;
	rs->granule_shift = shift;
	return 0;
}

/*
 * Merge the coldest pair of alike neighbours to free a slot; range @keep (which
 * may move, or be rs->nr for none) has no part in it.
 */
static bool ranges_make_room(struct demeter_ranges *rs, u32 *keep)
{
	u32 patience = demeter_max(rs->params.merge_epochs / 2, 1);
	u32 best = rs->nr, i;
	u64 best_rate = 0, best_size = 1;

	for (i = 0; i + 1 < rs->nr; i++) {
		struct demeter_range *a = &rs->range[i], *b = a + 1;
		u64 rate = a->rate + b->rate;
		u64 size = (b->end - a->start) >> DEMETER_PAGE_SHIFT;
		struct demeter_range both;

		if (i == *keep || i + 1 == *keep || a->alike_epochs < patience ||
		    !ranges_neighbours(a, b))
			continue;
		/* Compare rate / size by cross multiplication. */
		if (best != rs->nr && !demeter_wide_above(demeter_mul_wide(best_rate, size),
							  demeter_mul_wide(rate, best_size)))
			continue;
		both = ranges_union(rs, a, b);
		if (ranges_wants_split(rs, &both))
			continue;
		best = i;
		best_rate = rate;
		best_size = size;
	}
	if (best == rs->nr)
		return false;
	rs->range[best] = ranges_union(rs, &rs->range[best], &rs->range[best + 1]);
	ranges_remove(rs, best + 1);
	rs->merges++;
	if (*keep > best)
		--*keep;
	return true;
}

#include "ranges_areas.c"

/**
 * demeter_ranges_find - the range that holds an address
 * @rs: the ranges
 * @gva: guest virtual address
 *
 * Return: the range, or NULL.
 */
struct demeter_range *demeter_ranges_find(struct demeter_ranges *rs, u64 gva)
{
	u32 at = ranges_search(rs, gva);

	if (at == rs->nr || rs->range[at].start > gva)
		return NULL;
	return &rs->range[at];
}

/**
 * demeter_ranges_sample - count one sampled access
 * @rs: the ranges
 * @gva: guest virtual address
 *
 * Return: 0, or -ENOENT for an address outside every range (counted as stray).
 */
int demeter_ranges_sample(struct demeter_ranges *rs, u64 gva)
{
	return demeter_ranges_samples(rs, gva, 1);
}

/**
 * demeter_ranges_samples - count several sampled accesses of one place
 * @rs: the ranges
 * @gva: guest virtual address
 * @samples: their number
 *
 * Return: as demeter_ranges_sample().
 */
int demeter_ranges_samples(struct demeter_ranges *rs, u64 gva, u32 samples)
{
	struct demeter_range *r = demeter_ranges_find(rs, gva);
	u32 k;

	if (!r) {
		rs->strays += samples;
		return -ENOENT;
	}
	k = ranges_quarter_of(r, rs->granule_shift, gva);
	r->hits[k] += demeter_min(samples, (u32)~0U - r->hits[k]);
	rs->samples += samples;
	return 0;
}

/**
 * demeter_ranges_resume - epochs go on after a break, with counts of before
 * @rs: the ranges
 * @thin: @rs->thin of the epoch that begins
 *
 * What was counted in the epoch that was broken off is forgotten: how much of it was over
 * is not known.
 */
void demeter_ranges_resume(struct demeter_ranges *rs, u32 thin)
{
	u32 i, k;

	rs->thin = thin;
	for (i = 0; i < rs->nr; i++)
		for (k = 0; k < DEMETER_QUARTERS; k++)
			rs->range[i].hits[k] = 0;
}

static void ranges_decay(struct demeter_range *r, u32 thin)
{
	u64 inherited = (r->rate - ranges_located(r)) >> (1 + thin);
	u32 k;

	for (k = 0; k < DEMETER_QUARTERS; k++) {
		r->quarter[k] =
			(r->quarter[k] >> (1 + thin)) + ((u64)r->hits[k] << DEMETER_RATE_SHIFT);
		r->hits[k] = 0;
	}
	r->rate = ranges_located(r) + inherited;
}

/* Merge neighbours that have been alike for long enough, in one pass. */
static u32 ranges_merge(struct demeter_ranges *rs)
{
	u32 from, to = 0, merges = 0;

	if (rs->nr == 0)
		return 0;
	for (from = 0; from + 1 < rs->nr; from++) {
		struct demeter_range *a = &rs->range[from], *b = a + 1;

		if (!ranges_neighbours(a, b) || !ranges_alike(rs, a, b))
			a->alike_epochs = 0;
		else if (a->alike_epochs != (u32)~0U)
			a->alike_epochs++;
	}
	rs->range[rs->nr - 1].alike_epochs = 0;

	for (from = 1; from < rs->nr; from++) {
		struct demeter_range *a = &rs->range[to], *b = &rs->range[from];
		struct demeter_range both;

		/*
		 * A merge that just enlarged @a may have made it differ from @b,
		 * and a merge that would be split again is none.
		 */
		if (a->alike_epochs >= rs->params.merge_epochs && ranges_alike(rs, a, b)) {
			both = ranges_union(rs, a, b);
			if (!ranges_wants_split(rs, &both)) {
				*a = both;
				merges++;
				continue;
			}
		}
		rs->range[++to] = *b;
	}
	rs->nr = to + 1;
	return merges;
}

/* Splits that @r is worth: none, one, or one more in one or both halves. */
static u32 ranges_wanted_splits(const struct demeter_ranges *rs, const struct demeter_range *r)
{
	if (!ranges_wants_split(rs, r))
		return 0;
	return 1 + ranges_half_wants_split(rs, r, 0) + ranges_half_wants_split(rs, r, 2);
}

static u32 ranges_all_wanted_splits(const struct demeter_ranges *rs)
{
	u32 sum = 0, i;

	for (i = 0; i < rs->nr; i++)
		sum += ranges_wanted_splits(rs, &rs->range[i]);
	return sum;
}

/*
 * Split @whole by @splits at the granule next to its middle, and each half once
 * more if it wants that: the halves of a half are quarters of the whole, whose
 * counts are known. The next level would be guesswork and must wait. The parts
 * go to @part, lowest first.
 */
static void ranges_divide(const struct demeter_ranges *rs, const struct demeter_range *whole,
			  u32 splits, struct demeter_range *part)
{
	u32 shift = rs->granule_shift, k;
	bool upper = splits > 1 && ranges_half_wants_split(rs, whole, 2);
	bool lower = splits > 1U + upper && ranges_half_wants_split(rs, whole, 0);
	u64 rate[DEMETER_QUARTERS], old[DEMETER_QUARTERS];
	u64 from = whole->start, sum = 0, size, half, located, inherited;

	/* Rates of the quarters; those that stay together are added up below. */
	size = ranges_granules(whole, shift);
	half = size / 2;
	located = ranges_located(whole);
	inherited = whole->rate - located;
	memcpy(rate, whole->quarter, sizeof(rate));
	old[0] = ranges_share(rs, inherited, rate[0] + rate[1], half, located, size);
	old[2] = inherited - old[0];
	for (k = 0; k < DEMETER_QUARTERS; k += 2) {
		u64 side = k ? size - half : half;
		u64 share = old[k];

		if (k ? upper : lower)
			share = ranges_share(rs, old[k], rate[k], ranges_quarter_size(size, k),
					     rate[k] + rate[k + 1], side);
		rate[k] += share;
		rate[k + 1] += old[k] - share;
	}

	for (k = 0; k < DEMETER_QUARTERS; k++) {
		u64 to = ranges_bound(whole, shift, k + 1);

		sum += rate[k];
		if ((k == 0 && !lower) || (k == 2 && !upper))
			continue;
		ranges_clear(part, from, to, whole->area, rs->epoch);
		part->rate = sum;
		part++;
		sum = 0;
		from = to;
	}
}

/*
 * All splits in one pass from the last range to the first, each range going
 * straight to where it will be: moving the rest of the array for each split
 * would make an epoch with many of them quadratic.
 */
static void ranges_split(struct demeter_ranges *rs)
{
	u32 wanted = ranges_all_wanted_splits(rs), granted, searches, none, from, to;

	for (searches = 0; rs->capacity - rs->nr < wanted && searches < RANGES_MAX_ROOM_SEARCHES;
	     searches++) {
		none = rs->nr;
		if (!ranges_make_room(rs, &none))
			break;
	}
	if (searches)
		wanted = ranges_all_wanted_splits(rs);
	granted = (u32)demeter_min(wanted, rs->capacity - rs->nr);
	rs->denied_splits += wanted - granted;
	rs->splits += granted;

	from = rs->nr;
	to = rs->nr + granted;
	rs->nr = to;
	while (granted) {
		struct demeter_range whole = rs->range[--from];
		u32 splits = (u32)demeter_min(ranges_wanted_splits(rs, &whole), granted);

		to -= splits + 1;
		granted -= splits;
		if (!splits) {
			rs->range[to] = whole;
			continue;
		}
		if (from)
			rs->range[from - 1].alike_epochs = 0;
		ranges_divide(rs, &whole, splits, &rs->range[to]);
	}
}

/*
 * Which splits are denied must not hang on addresses: while some are, tau rises
 * epoch by epoch, until room is left for those that most samples speak for, and
 * comes back slowly once all find room.
 */
static void ranges_set_tau_raise(struct demeter_ranges *rs, bool denied)
{
	u32 raise = rs->tau_raise;

	if (denied)
		raise += (RANGES_RAISE_UNIT + raise) / 4;
	else
		raise -= (raise + 15) / 16;
	rs->tau_raise = (u32)demeter_min(raise, RANGES_MAX_RAISE);
}

/**
 * demeter_ranges_end_epoch - decay, merge, split
 * @rs: the ranges
 * @done: what changed; may be NULL
 */
void demeter_ranges_end_epoch(struct demeter_ranges *rs, struct demeter_ranges_epoch *done)
{
	u64 splits = rs->splits, merges = rs->merges, denied = rs->denied_splits;
	u32 i;

	rs->epoch++;
	for (i = 0; i < rs->nr; i++)
		ranges_decay(&rs->range[i], rs->thin);
	rs->merges += ranges_merge(rs);
	ranges_split(rs);
	ranges_set_tau_raise(rs, rs->denied_splits != denied);
	if (done) {
		done->splits = (u32)(rs->splits - splits);
		done->merges = (u32)(rs->merges - merges);
	}
}
