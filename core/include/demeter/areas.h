/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Areas: the few parts of an address space that hold all that is managed.
 *
 * An address space is almost empty: programs lie at its bottom, at the bottom of
 * its upper half or wherever they were told to, and what they map lies terabytes
 * away. The first split of a range that spanned all of it would halve nothing. So
 * the mappings are cut at the largest gaps between them. This is the rule by which
 * DAMON (SeongJae Park, Linux mm/damon/vaddr.c) finds its initial regions, for any
 * number of areas, in one pass and in memory of fixed size.
 */
#ifndef DEMETER_AREAS_H
#define DEMETER_AREAS_H

#include <demeter/deps.h>

#define DEMETER_MAX_AREAS 16

/**
 * struct demeter_area - a part of an address space
 * @start: first byte
 * @end: one past the last byte; equal to @start when unused
 */
struct demeter_area {
	u64 start;
	u64 end;
};

/**
 * struct demeter_areas - areas in the making
 * @area: sorted by address, disjoint, on the granule
 * @nr: how many there are
 * @granule_bytes: bounds are rounded to it
 * @min_gap_bytes: smaller gaps do not divide
 */
struct demeter_areas {
	struct demeter_area area[DEMETER_MAX_AREAS];
	u32 nr;
	u64 granule_bytes;
	u64 min_gap_bytes;
};

int demeter_areas_begin(struct demeter_areas *areas, u64 granule_bytes, u64 min_gap_bytes);
int demeter_areas_add(struct demeter_areas *areas, u64 start, u64 end);

#endif /* DEMETER_AREAS_H */
