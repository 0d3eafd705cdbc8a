// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Room: large address spaces, many hot spots, and arrays that grow or cannot.
 */
#include <demeter/ranges.h>

#include "harness.h"

#define ROOM_SPAN    BIT_ULL(40)
#define ROOM_GRANULE BIT_ULL(21)
#define ROOM_SPOTS   2000U
#define ROOM_MOST    16384U

static const struct demeter_ranges_params room_params = DEMETER_RANGES_PARAMS_DEFAULT;

/* Hot spot @i of a terabyte: a granule anywhere. */
static u64 room_spot(u64 i)
{
	u64 seed = i * 7919 + 1;

	return (test_random(&seed) % ROOM_SPAN) & ~(ROOM_GRANULE - 1);
}

static bool room_start(struct demeter_ranges *rs, u32 capacity)
{
	struct demeter_range *memory = test_alloc(capacity * sizeof(*memory));

	if (!memory || demeter_ranges_init(rs, memory, capacity, &room_params) ||
	    demeter_ranges_set_area(rs, 0, 0, ROOM_SPAN)) {
		test_free(memory);
		return false;
	}
	return true;
}

/* Nine of ten samples fall into spots, chosen evenly or (@skewed) by the cube. */
static void room_epoch(struct demeter_ranges *rs, u32 samples, bool skewed, u64 *seed)
{
	while (samples--) {
		u64 gva = test_random(seed) % ROOM_SPAN, pick = test_random(seed) % ROOM_SPOTS;

		if (skewed)
			pick = pick * pick * pick / (ROOM_SPOTS * ROOM_SPOTS);
		if (samples % 10)
			gva = room_spot(pick) + gva % ROOM_GRANULE;
		demeter_ranges_sample(rs, gva);
	}
	demeter_ranges_end_epoch(rs, NULL);
	test_yield();
}

/* Spots, or draws of one, that lie in a range of at most two granules. */
static u32 room_found(struct demeter_ranges *rs, bool skewed)
{
	u32 found = 0;
	u64 i;

	for (i = 0; i < ROOM_SPOTS; i++) {
		u64 pick = skewed ? i * i * i / (ROOM_SPOTS * ROOM_SPOTS) : i;
		const struct demeter_range *r = demeter_ranges_find(rs, room_spot(pick));

		found += r->end - r->start <= 2 * ROOM_GRANULE;
	}
	return found;
}

static bool room_grow(struct demeter_ranges *rs, u32 most)
{
	u32 capacity = demeter_ranges_room_wanted(rs, most);
	struct demeter_range *memory;

	if (capacity == rs->capacity)
		return true;
	memory = test_alloc(capacity * sizeof(*memory));
	if (!memory)
		return false;
	test_free(demeter_ranges_grow(rs, memory, capacity));
	return true;
}

static void room_test_grow(struct test_tally *tally)
{
	struct demeter_range small[2], large[4];
	struct demeter_ranges rs;

	CHECK_EQ(demeter_ranges_init(&rs, small, 2, &room_params), 0);
	CHECK_EQ(demeter_ranges_set_area(&rs, 0, 0, ROOM_SPAN), 0);
	CHECK(!demeter_ranges_grow(&rs, NULL, 4));
	CHECK(demeter_ranges_grow(&rs, large, 2) == large);
	CHECK_EQ(rs.capacity, 2);
	CHECK(demeter_ranges_grow(&rs, large, 4) == small);
	CHECK_EQ(rs.capacity, 4);
	CHECK_EQ(rs.range[0].end, ROOM_SPAN);
	CHECK(demeter_ranges_room_wanted(&rs, ROOM_MOST) >= 4 * rs.nr);
	CHECK_EQ(demeter_ranges_room_wanted(&rs, 5), 5);
	CHECK_EQ(demeter_ranges_room_wanted(&rs, 3), 4);
	rs.nr = ~0U;
	CHECK_EQ(demeter_ranges_room_wanted(&rs, ~0U), ~0U);
}

/*
 * 2000 hot spots in a terabyte, sampled as on a machine of 128 CPUs: they are
 * found but for a few that balance each other in one range, no split is denied
 * for want of room, and an array that grew took the same decisions as one that
 * had the room from the start.
 */
static void room_test_many_spots(struct test_tally *tally)
{
	struct demeter_ranges rs, ample;
	u64 seed = 1, again = 1;
	u32 epoch, found;

	if (!room_start(&rs, 64) || !room_start(&ample, ROOM_MOST)) {
		CHECK(!"memory");
		return;
	}
	for (epoch = 0; epoch < 30; epoch++) {
		CHECK(room_grow(&rs, ROOM_MOST));
		room_epoch(&rs, 50000, false, &seed);
		room_epoch(&ample, 50000, false, &again);
	}
	CHECK_EQ(rs.denied_splits, 0);
	CHECK(rs.capacity > 64);
	CHECK(rs.capacity <= ROOM_MOST);
	found = room_found(&rs, false);
	test_print("# %u of %u hot spots found, %u ranges\n", found, ROOM_SPOTS, rs.nr);
	CHECK(found >= ROOM_SPOTS * 95 / 100);
	CHECK_EQ(demeter_ranges_digest(&rs, 0), demeter_ranges_digest(&ample, 0));
	test_free(rs.range);
	test_free(ample.range);
}

/*
 * No room for all: those that most samples speak for get it, not those at the
 * highest addresses. With 512 ranges the hottest spots carry a third of the heat.
 */
static void room_test_short(struct test_tally *tally)
{
	struct demeter_ranges rs;
	u32 epoch, raised;
	u64 seed = 1;

	if (!room_start(&rs, 512)) {
		CHECK(!"memory");
		return;
	}
	for (epoch = 0; epoch < 60; epoch++)
		room_epoch(&rs, 20000, true, &seed);
	CHECK(rs.denied_splits > 0);
	CHECK(rs.tau_raise > 0);
	CHECK(room_found(&rs, true) >= ROOM_SPOTS / 5);

	/* With room enough tau comes back to what it was set to. */
	raised = rs.tau_raise;
	CHECK(room_grow(&rs, ROOM_MOST));
	for (epoch = 0; epoch < 8; epoch++) {
		CHECK(room_grow(&rs, ROOM_MOST));
		demeter_ranges_end_epoch(&rs, NULL);
	}
	CHECK(rs.tau_raise < raised);
	for (epoch = 0; epoch < 400; epoch++)
		demeter_ranges_end_epoch(&rs, NULL);
	CHECK_EQ(rs.tau_raise, 0);
	test_free(rs.range);
}

static const struct test_case room_tests[] = {
	{ "room: a longer array takes over", room_test_grow },
	{ "room: 2000 hot spots in a terabyte are found", room_test_many_spots },
	{ "room: too little of it goes to the hottest", room_test_short },
};
