// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Room: how long the array of ranges should be, and a longer one in its place.
 *
 * A range may become four in one epoch. Whoever keeps four times the room that is
 * in use ahead of each epoch never has a split denied before the bound; what an
 * array started with then makes no difference to any decision.
 */
#include <demeter/math.h>
#include <demeter/ranges.h>

/* A range and its splits of one epoch. */
#define ROOM_PER_RANGE 4U
/* Areas may each bring a new range at both ends. */
#define ROOM_FOR_AREAS (2U * DEMETER_MAX_AREAS)

/**
 * demeter_ranges_room_wanted - how long the array should be before an epoch ends
 * @rs: the ranges
 * @most: the longest that the caller would make it
 *
 * Return: the capacity wanted: the present one, or a power of two times it, or
 * @most. Never less than the present one.
 */
u32 demeter_ranges_room_wanted(const struct demeter_ranges *rs, u32 most)
{
	u64 need = (u64)rs->nr * ROOM_PER_RANGE + ROOM_FOR_AREAS;
	u64 capacity = rs->capacity;

	while (capacity < need && capacity < most)
		capacity *= 2;
	return (u32)demeter_max(demeter_min(capacity, most), rs->capacity);
}

/**
 * demeter_ranges_grow - go on in a longer array
 * @rs: the ranges
 * @memory: the longer array; becomes that of @rs
 * @capacity: its length
 *
 * Return: the array to free: the one before, or @memory when it is not longer,
 * with nothing changed.
 */
struct demeter_range *demeter_ranges_grow(struct demeter_ranges *rs, struct demeter_range *memory,
					  u32 capacity)
{
	struct demeter_range *before = rs->range;

	if (!memory || capacity <= rs->capacity)
		return memory;
	memcpy(memory, before, rs->nr * sizeof(*before));
	rs->range = memory;
	rs->capacity = capacity;
	return before;
}
