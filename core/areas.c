// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Areas: see <demeter/areas.h>.
 *
 * To cut at the n - 1 largest gaps, it is enough to keep the n - 1 largest of
 * those seen so far: a gap that n - 1 others exceed will never be among the
 * largest. Of equal gaps the one at the lower address is closed.
 */
#include <demeter/areas.h>
#include <demeter/math.h>

/**
 * demeter_areas_begin - start with no area
 * @areas: what to initialise
 * @granule_bytes: bounds are rounded outwards to it; a power of two, from one page
 *	to 2^62
 * @min_gap_bytes: gaps below this do not divide
 *
 * Return: 0, or -EINVAL.
 */
int demeter_areas_begin(struct demeter_areas *areas, u64 granule_bytes, u64 min_gap_bytes)
{
	if (!areas || granule_bytes < DEMETER_PAGE_BYTES || granule_bytes > (1ULL << 62) ||
	    (granule_bytes & (granule_bytes - 1)))
		return -EINVAL;
	memset(areas, 0, sizeof(*areas));
	areas->granule_bytes = granule_bytes;
	areas->min_gap_bytes = demeter_max(min_gap_bytes, 1);
	return 0;
}

static u64 areas_gap_after(const struct demeter_areas *areas, u32 at)
{
	return areas->area[at + 1].start - areas->area[at].end;
}

/* Close the smallest gap, unless it is larger than @gap. Returns whether it did. */
static bool areas_close_one(struct demeter_areas *areas, u64 gap)
{
	u32 best = 0, i;

	for (i = 1; i + 1 < areas->nr; i++)
		if (areas_gap_after(areas, i) < areas_gap_after(areas, best))
			best = i;
	if (areas_gap_after(areas, best) > gap)
		return false;
	areas->area[best].end = areas->area[best + 1].end;
	areas->nr--;
	memmove(&areas->area[best + 1], &areas->area[best + 2],
		(size_t)(areas->nr - best - 1) * sizeof(areas->area[0]));
	return true;
}

/**
 * demeter_areas_add - add a mapping
 * @areas: the areas
 * @start: first byte; not below the start of the mapping added last
 * @end: one past the last byte
 *
 * Return: 0, or -EINVAL for an empty mapping or one out of order. Nothing has
 * changed then.
 */
int demeter_areas_add(struct demeter_areas *areas, u64 start, u64 end)
{
	u64 mask = areas->granule_bytes - 1;
	struct demeter_area *last = areas->nr ? &areas->area[areas->nr - 1] : NULL;
	u64 gap;

	if (start >= end)
		return -EINVAL;
	start &= ~mask;
	end = end > ~mask ? ~mask : (end + mask) & ~mask;
	/* All that the last, incomplete granule of the address space would hold. */
	if (start >= end)
		return -EINVAL;
	if (!last) {
		areas->area[areas->nr++] = (struct demeter_area){ .start = start, .end = end };
		return 0;
	}
	if (start < last->start)
		return -EINVAL;
	gap = demeter_sub_sat(start, last->end);
	if (gap < areas->min_gap_bytes ||
	    (areas->nr == DEMETER_MAX_AREAS && !areas_close_one(areas, gap))) {
		last->end = demeter_max(last->end, end);
		return 0;
	}
	areas->area[areas->nr++] = (struct demeter_area){ .start = start, .end = end };
	return 0;
}
