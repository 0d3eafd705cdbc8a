// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Rank: a total order, the same from any starting order. */
#include <demeter/rank.h>

#include "harness.h"

#define KT_MAX 300U

static void kt_fill(struct demeter_rank_entry *entries, u32 nr, u64 seed)
{
	u32 i;

	for (i = 0; i < nr; i++) {
		struct demeter_rank_entry *e = &entries[i];

		memset(e, 0, sizeof(*e));
		e->space = (u32)(test_random(&seed) % 3);
		e->start = (u64)i << 21;
		e->end = e->start + (1ULL << 21);
		/* Few distinct values, so that ties are common. */
		e->rate = (test_random(&seed) % 4) << 8;
		e->age_epochs = (u32)(test_random(&seed) % 3);
		e->pages[DEMETER_FMEM] = test_random(&seed) % 3;
		e->pages[DEMETER_SMEM] = test_random(&seed) % 3;
	}
}

static void kt_test_order(struct test_tally *tally)
{
	struct demeter_rank_entry *a = test_alloc(KT_MAX * sizeof(*a));
	u64 seed = 11, digest;
	u32 nr, i, round;

	for (round = 0; round < TEST_ROUNDS(200); round++) {
		nr = (u32)(test_random(&seed) % (KT_MAX + 1));
		kt_fill(a, nr, round);
		demeter_rank(a, nr);
		for (i = 1; i < nr; i++) {
			CHECK(a[i - 1].density >= a[i].density);
			if (a[i - 1].density == a[i].density)
				CHECK(a[i - 1].age_epochs <= a[i].age_epochs);
		}
		digest = demeter_rank_digest(a, nr, 0);
		for (i = nr; i > 1; i--) {
			u32 other = (u32)(test_random(&seed) % i);
			struct demeter_rank_entry swap = a[i - 1];

			a[i - 1] = a[other];
			a[other] = swap;
		}
		demeter_rank(a, nr);
		CHECK_EQ(demeter_rank_digest(a, nr, 0), digest);
	}
	test_free(a);
}

static void kt_test_density(struct test_tally *tally)
{
	struct demeter_rank_entry e[4];

	memset(e, 0, sizeof(e));
	/* Equal counts: per resident page, not per byte of range. */
	e[0].start = 0x1000000;
	e[0].end = 0x2000000;
	e[0].rate = 1000 << 8;
	e[0].pages[DEMETER_SMEM] = 4;
	e[1].start = 0x200000;
	e[1].end = 0x400000;
	e[1].rate = 1000 << 8;
	e[1].pages[DEMETER_FMEM] = 512;
	/* Nothing resident: per page of the range; turned round: at least one. */
	e[2].end = 0x200000;
	e[2].rate = 512 << 8;
	e[3].start = ~0ULL;
	e[3].rate = ~0ULL;
	demeter_rank(e, 4);
	CHECK_EQ(e[0].start, ~0ULL);
	CHECK_EQ(e[0].density, ~0ULL);
	CHECK_EQ(e[1].start, 0x1000000);
	CHECK_EQ(e[2].start, 0x200000);
	CHECK_EQ(e[3].density, 1ULL << (8 + DEMETER_DENSITY_SHIFT));
	demeter_rank(e, 0);
	demeter_rank(NULL, 0);
}

static void kt_test_gather(struct test_tally *tally)
{
	static const struct demeter_ranges_params params = DEMETER_RANGES_PARAMS_DEFAULT;
	struct demeter_rank_entry e[3];
	struct demeter_range memory[8];
	struct demeter_ranges rs;
	u32 i;

	CHECK_EQ(demeter_ranges_init(&rs, memory, 8, &params), 0);
	rs.epoch = ~0U; /* ages survive the wrap */
	CHECK_EQ(demeter_ranges_set_area(&rs, 0, 0, 4 << 20), 0);
	CHECK_EQ(demeter_ranges_set_area(&rs, 2, 8 << 20, 12 << 20), 0);
	for (i = 0; i < 5; i++)
		demeter_ranges_end_epoch(&rs, NULL);
	CHECK_EQ(demeter_rank_gather(&rs, 7, e, 1, 3), 3);
	CHECK_EQ(e[1].space, 7);
	CHECK_EQ(e[1].age_epochs, 5);
	CHECK_EQ(e[2].start, 8 << 20);
	CHECK_EQ(demeter_rank_gather(&rs, 8, e, 3, 3), 3);
	CHECK_EQ(demeter_rank_gather(&rs, 8, NULL, 0, 0), 0);
}

static void kt_test_cut(struct test_tally *tally)
{
	struct demeter_rank_entry e[4];
	u32 i;

	memset(e, 0, sizeof(e));
	for (i = 0; i < 3; i++) {
		e[i].pages[DEMETER_FMEM] = 4;
		e[i].pages[DEMETER_SMEM] = 6;
	}
	e[3].pages[DEMETER_FMEM] = ~0ULL;
	e[3].pages[DEMETER_SMEM] = ~0ULL;
	CHECK_EQ(demeter_rank_cut(e, 4, 0), 0);
	CHECK_EQ(demeter_rank_cut(e, 4, 9), 0);
	CHECK_EQ(demeter_rank_cut(e, 4, 10), 1);
	CHECK_EQ(demeter_rank_cut(e, 4, 29), 2);
	CHECK_EQ(demeter_rank_cut(e, 4, ~0ULL - 1), 3);
	CHECK_EQ(demeter_rank_cut(e, 0, 5), 0);
}

static const struct test_case rank_tests[] = {
	{ "rank: one order from any", kt_test_order },
	{ "rank: density per resident page", kt_test_density },
	{ "rank: gather", kt_test_gather },
	{ "rank: cut at the budget", kt_test_cut },
};
