// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Areas: the largest gaps, and that ranges keep what they learnt when areas change. */
#include <demeter/areas.h>
#include <demeter/ranges.h>

#include "harness.h"

#define AT_MIB	   BIT_ULL(20)
#define AT_GIB	   BIT_ULL(30)
#define AT_GRANULE (2 * AT_MIB)
#define AT_MIN_GAP (64 * AT_MIB)
#define AT_SPANS   40
#define AT_RANGES  64

static void at_test_bounds(struct test_tally *tally)
{
	struct demeter_areas areas;

	CHECK(demeter_areas_begin(NULL, AT_GRANULE, 0) == -EINVAL);
	CHECK(demeter_areas_begin(&areas, AT_GRANULE + 1, 0) == -EINVAL);
	CHECK(demeter_areas_begin(&areas, 2048, 0) == -EINVAL);
	CHECK_EQ(demeter_areas_begin(&areas, AT_GRANULE, AT_MIN_GAP), 0);
	CHECK(demeter_areas_add(&areas, 5, 5) == -EINVAL);
	CHECK_EQ(areas.nr, 0);
	CHECK_EQ(demeter_areas_add(&areas, AT_GIB + 4096, AT_GIB + 8192), 0);
	CHECK_EQ(areas.area[0].start, AT_GIB);
	CHECK_EQ(areas.area[0].end, AT_GIB + AT_GRANULE);
	/* In the same granule, next to it, and nearer than the smallest gap. */
	CHECK_EQ(demeter_areas_add(&areas, AT_GIB + 16384, AT_GIB + 20480), 0);
	CHECK_EQ(demeter_areas_add(&areas, AT_GIB + 60 * AT_MIB, AT_GIB + 61 * AT_MIB), 0);
	CHECK_EQ(areas.nr, 1);
	CHECK_EQ(areas.area[0].end, AT_GIB + 62 * AT_MIB);
	CHECK_EQ(demeter_areas_add(&areas, AT_GIB + 126 * AT_MIB, AT_GIB + 127 * AT_MIB), 0);
	CHECK_EQ(areas.nr, 2);
	CHECK(demeter_areas_add(&areas, AT_GIB, AT_GIB + 1) == -EINVAL);
	CHECK_EQ(areas.nr, 2);
	CHECK_EQ(demeter_areas_add(&areas, ~0ULL - 3 * AT_GRANULE, ~0ULL), 0);
	CHECK_EQ(areas.nr, 3);
	CHECK_EQ(areas.area[2].end, ~0ULL & ~(AT_GRANULE - 1));
	CHECK(demeter_areas_add(&areas, ~0ULL - 1, ~0ULL) == -EINVAL);
}

/*
 * The layouts that are seen: one program with its static arrays, its heap, a heap
 * at 2 GiB such as java's, and the mmap area, with small mappings between.
 */
static void at_test_layouts(struct test_tally *tally)
{
	static const u64 mapping[][2] = {
		{ 0x80000000, 0xa0000000 },	    /* a low heap */
		{ 0x555555560000, 0x555567560000 }, /* .data and .bss */
		{ 0x555567560000, 0x555567581000 }, /* heap */
		{ 0x7ffff0000000, 0x7ffff0021000 }, /* a thread's arena */
		{ 0x7ffff5400000, 0x7ffff7400000 }, /* an array */
		{ 0x7ffff7fc3000, 0x7ffff7fc5000 }, /* .bss of a library */
	};
	struct demeter_areas areas;
	u32 i;

	demeter_areas_begin(&areas, AT_GRANULE, 128 * AT_MIB);
	for (i = 0; i < ARRAY_SIZE(mapping); i++)
		CHECK_EQ(demeter_areas_add(&areas, mapping[i][0], mapping[i][1]), 0);
	CHECK_EQ(areas.nr, 3);
	CHECK_EQ(areas.area[0].start, 0x80000000);
	CHECK_EQ(areas.area[1].start, 0x555555400000);
	CHECK_EQ(areas.area[1].end, 0x555567600000);
	CHECK_EQ(areas.area[2].start, 0x7ffff0000000);
	CHECK_EQ(areas.area[2].end, 0x7ffff8000000);
}

/* One pass finds the gaps that sorting all of them finds. */
static void at_test_largest_gaps(struct test_tally *tally)
{
	u64 seed = 11, at, gap[AT_SPANS], start[AT_SPANS], end[AT_SPANS];
	struct demeter_areas areas;
	u32 round, i, k, larger, nr;

	for (round = 0; round < TEST_ROUNDS(2000); round++) {
		nr = 1 + (u32)(test_random(&seed) % AT_SPANS);
		demeter_areas_begin(&areas, AT_GRANULE, AT_GRANULE);
		for (i = 0, at = 0; i < nr; i++) {
			/* No two gaps are equal. */
			gap[i] = (1 + test_random(&seed) % 1000 * AT_SPANS + i) * AT_GRANULE;
			start[i] = at + gap[i];
			end[i] = start[i] + (1 + test_random(&seed) % 9) * AT_GRANULE;
			at = end[i];
			CHECK_EQ(demeter_areas_add(&areas, start[i] + test_random(&seed) % 4096,
						   end[i] - test_random(&seed) % 4096),
				 0);
		}
		CHECK_EQ(areas.nr, demeter_min(nr, DEMETER_MAX_AREAS));
		CHECK_EQ(areas.area[0].start, start[0]);
		CHECK_EQ(areas.area[areas.nr - 1].end, end[nr - 1]);
		for (i = 1; i < areas.nr; i++) {
			CHECK(areas.area[i - 1].start < areas.area[i - 1].end);
			/* Each gap left open is one of the largest. */
			for (k = 1; k < nr && start[k] != areas.area[i].start; k++)
				;
			CHECK(k < nr);
			if (k == nr)
				return;
			CHECK_EQ(areas.area[i - 1].end, end[k - 1]);
			for (at = gap[k], larger = 0, k = 1; k < nr; k++)
				larger += gap[k] > at;
			CHECK(larger < DEMETER_MAX_AREAS - 1);
		}
	}
}

static u64 at_rate_at(struct demeter_ranges *rs, u64 gva)
{
	const struct demeter_range *r = demeter_ranges_find(rs, gva);

	return r ? r->rate : 0;
}

static void at_check_shape(struct test_tally *tally, const struct demeter_ranges *rs,
			   const struct demeter_area *area, u32 nr)
{
	u32 i = 0, a;
	u64 at;

	for (a = 0; a < nr; a++) {
		CHECK_EQ(rs->area[a].start, area[a].start);
		for (at = area[a].start; i < rs->nr && rs->range[i].area == a; i++) {
			CHECK_EQ(rs->range[i].start, at);
			at = rs->range[i].end;
		}
		CHECK_EQ(at, area[a].end);
	}
	CHECK_EQ(i, rs->nr);
	CHECK(rs->nr <= rs->capacity);
}

/* An area that joins its neighbour, and leaves it again: nothing is forgotten. */
static void at_test_areas_join_and_part(struct test_tally *tally)
{
	static const struct demeter_area apart[] = { { 0, 64 * AT_MIB },
						     { AT_GIB, AT_GIB + 64 * AT_MIB },
						     { 8 * AT_GIB, 9 * AT_GIB } };
	static const struct demeter_area joined[] = { { 0, AT_GIB + 64 * AT_MIB },
						      { 8 * AT_GIB, 9 * AT_GIB } };
	static const struct demeter_area inserted[] = { { 0, 64 * AT_MIB },
							{ 256 * AT_MIB, 258 * AT_MIB },
							{ AT_GIB, AT_GIB + 64 * AT_MIB },
							{ 8 * AT_GIB, 9 * AT_GIB } };
	struct demeter_ranges_params p = DEMETER_RANGES_PARAMS_DEFAULT;
	struct demeter_range *memory = test_alloc(AT_RANGES * sizeof(*memory));
	struct demeter_ranges rs;
	u64 low, high, digest;
	u32 epoch, i;

	CHECK_EQ(demeter_ranges_init(&rs, memory, AT_RANGES, &p), 0);
	CHECK_EQ(demeter_ranges_set_areas(&rs, apart, 3), 0);
	at_check_shape(tally, &rs, apart, 3);
	for (epoch = 0; epoch < 12; epoch++) {
		for (i = 0; i < 1000; i++) {
			demeter_ranges_sample(&rs, AT_GRANULE * 5 + i);
			demeter_ranges_sample(&rs, AT_GIB + AT_GRANULE * 7 + i);
		}
		demeter_ranges_end_epoch(&rs, NULL);
	}
	low = at_rate_at(&rs, AT_GRANULE * 5);
	high = at_rate_at(&rs, AT_GIB + AT_GRANULE * 7);
	CHECK(low > 100 << DEMETER_RATE_SHIFT && high > 100 << DEMETER_RATE_SHIFT);
	digest = demeter_ranges_digest(&rs, 0);

	CHECK_EQ(demeter_ranges_set_areas(&rs, apart, 3), 0);
	CHECK_EQ(demeter_ranges_digest(&rs, 0), digest);
	CHECK_EQ(demeter_ranges_set_areas(&rs, joined, 2), 0);
	at_check_shape(tally, &rs, joined, 2);
	CHECK_EQ(at_rate_at(&rs, AT_GRANULE * 5), low);
	CHECK_EQ(at_rate_at(&rs, AT_GIB + AT_GRANULE * 7), high);
	CHECK_EQ(at_rate_at(&rs, 512 * AT_MIB), 0);
	CHECK_EQ(demeter_ranges_set_areas(&rs, inserted, 4), 0);
	at_check_shape(tally, &rs, inserted, 4);
	CHECK_EQ(at_rate_at(&rs, AT_GRANULE * 5), low);
	CHECK_EQ(at_rate_at(&rs, AT_GIB + AT_GRANULE * 7), high);
	CHECK_EQ(demeter_ranges_set_areas(&rs, inserted, 0), 0);
	CHECK_EQ(rs.nr, 0);

	CHECK(demeter_ranges_set_areas(&rs, apart, DEMETER_MAX_AREAS + 1) == -EINVAL);
	CHECK(demeter_ranges_set_areas(&rs, NULL, 1) == -EINVAL);
	rs.capacity = 2;
	CHECK(demeter_ranges_set_areas(&rs, apart, 3) == -ENOSPC);
	test_free(memory);
}

/* Any areas after any others, in little memory: the shape holds. */
static void at_test_churn(struct test_tally *tally)
{
	struct demeter_ranges_params p = DEMETER_RANGES_PARAMS_DEFAULT;
	struct demeter_range *memory = test_alloc(AT_RANGES * sizeof(*memory));
	struct demeter_areas areas;
	struct demeter_ranges rs;
	u64 seed = 5, at;
	u32 round, i, nr;

	p.split_samples = 1;
	p.significance = 0;
	for (round = 0; round < TEST_ROUNDS(4000); round++) {
		if (round % 64 == 0)
			CHECK_EQ(demeter_ranges_init(&rs, memory,
						     DEMETER_MAX_AREAS + round / 64 % 6, &p),
				 0);
		demeter_areas_begin(&areas, AT_GRANULE, AT_GRANULE);
		nr = (u32)(test_random(&seed) % 24);
		for (i = 0, at = test_random(&seed) % 64; i < nr; i++) {
			u64 start = at + test_random(&seed) % 6;

			at = start + 1 + test_random(&seed) % 20;
			CHECK_EQ(demeter_areas_add(&areas, start * AT_GRANULE, at * AT_GRANULE), 0);
		}
		CHECK_EQ(demeter_ranges_set_areas(&rs, areas.area, areas.nr), 0);
		at_check_shape(tally, &rs, areas.area, areas.nr);
		for (i = 0; i < 200; i++)
			demeter_ranges_sample(&rs, test_random(&seed) % (300 * AT_GRANULE));
		demeter_ranges_end_epoch(&rs, NULL);
		at_check_shape(tally, &rs, areas.area, areas.nr);
	}
	test_free(memory);
}

static const struct test_case areas_tests[] = {
	{ "areas: bounds, order, the smallest gap", at_test_bounds },
	{ "areas: layouts of programs", at_test_layouts },
	{ "areas: one pass finds the largest gaps", at_test_largest_gaps },
	{ "areas: ranges keep what they learnt when areas join and part",
	  at_test_areas_join_and_part },
	{ "areas: any after any others, in little memory", at_test_churn },
};
