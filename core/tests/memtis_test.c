// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Memtis: bins, thresholds, the ladder of periods, and which huge pages are split. */
#include <demeter/peers/memtis.h>

#include "harness.h"

static void mt_test_bins(struct test_tally *tally)
{
	u64 seed = 3, round;

	CHECK_EQ(demeter_memtis_bin(0), 0);
	CHECK_EQ(demeter_memtis_bin(1), 1);
	/* One sample in a base page is worth 512 in a huge page. */
	CHECK_EQ(demeter_memtis_bin(512), 9);
	CHECK_EQ(demeter_memtis_bin(2 * 512), 10);
	CHECK_EQ(demeter_memtis_bin(~0ULL), DEMETER_MEMTIS_BINS - 1);
	for (round = 0; round < TEST_ROUNDS(1000); round++) {
		u64 units = test_nasty(&seed);

		/* Halving costs one bin, or the last one keeps it. */
		CHECK(demeter_memtis_bin(units) < DEMETER_MEMTIS_BINS);
		CHECK(demeter_memtis_bin(units) - demeter_memtis_bin(units / 2) <= 1);
	}
}

static void mt_test_thresholds(struct test_tally *tally)
{
	struct demeter_memtis_histogram histogram = { .pages = { 0 } };
	struct demeter_memtis_thresholds chosen;

	chosen = demeter_memtis_choose(&histogram, 1000);
	CHECK_EQ(chosen.hot, 1);
	CHECK_EQ(chosen.warm, 1);

	demeter_memtis_move(&histogram, DEMETER_MEMTIS_NOWHERE, 12, 400);
	demeter_memtis_move(&histogram, DEMETER_MEMTIS_NOWHERE, 10, 570);
	demeter_memtis_move(&histogram, DEMETER_MEMTIS_NOWHERE, 9, 1);
	/* 3 % are kept free: the 971st page has no room. */
	chosen = demeter_memtis_choose(&histogram, 1000);
	CHECK_EQ(chosen.hot, 10);
	CHECK_EQ(chosen.warm, 10);
	/* Less than three quarters are hot: the bin below is left where it is. */
	chosen = demeter_memtis_choose(&histogram, 999);
	CHECK_EQ(chosen.hot, 11);
	CHECK_EQ(chosen.warm, 10);
	/* The hottest bin is hot, however large. */
	demeter_memtis_move(&histogram, 10, 15, 570);
	demeter_memtis_move(&histogram, 12, 15, 400);
	CHECK_EQ(demeter_memtis_choose(&histogram, 100).hot, 15);

	demeter_memtis_move(&histogram, 15, DEMETER_MEMTIS_NOWHERE, 971);
	CHECK_EQ(histogram.pages[15], 0);
	CHECK_EQ(histogram.pages[9], 1);
}

static void mt_test_cooling(struct test_tally *tally)
{
	u32 count[256], i;
	struct demeter_memtis_histogram before = { .pages = { 0 } }, after = before;
	u64 seed = 5;

	for (i = 0; i < ARRAY_SIZE(count); i++) {
		count[i] = (u32)(test_random(&seed) % 40) * 512;
		demeter_memtis_move(&before, DEMETER_MEMTIS_NOWHERE, demeter_memtis_bin(count[i]),
				    1);
		demeter_memtis_move(&after, DEMETER_MEMTIS_NOWHERE,
				    demeter_memtis_bin(count[i] / 2), 1);
	}
	/* All that fits stays what it is, one bin lower. */
	CHECK(demeter_memtis_choose(&after, 100).hot <= demeter_memtis_choose(&before, 100).hot);
}

static bool mt_is_prime(u32 number)
{
	u32 i;

	for (i = 2; (u64)i * i <= number; i++)
		if (number % i == 0)
			return false;
	return number > 1;
}

static void mt_test_ladder(struct test_tally *tally)
{
	u32 step;

	CHECK_EQ(demeter_memtis_load_period(0), 199);
	CHECK_EQ(demeter_memtis_load_period(DEMETER_MEMTIS_LOAD_STEPS - 1), 19997);
	CHECK_EQ(demeter_memtis_load_period(~0U), 19997);
	CHECK_EQ(demeter_memtis_store_period(0), 100007);
	CHECK_EQ(demeter_memtis_store_period(DEMETER_MEMTIS_LOAD_STEPS - 1), 1500003);
	CHECK_EQ(demeter_memtis_store_period(~0U), 1500003);
	for (step = 0; step < DEMETER_MEMTIS_LOAD_STEPS; step++) {
		CHECK(mt_is_prime(demeter_memtis_load_period(step)));
		if (!step)
			continue;
		CHECK(demeter_memtis_load_period(step) > demeter_memtis_load_period(step - 1));
		CHECK(demeter_memtis_store_period(step) >= demeter_memtis_store_period(step - 1));
	}
	CHECK_EQ(demeter_memtis_step(3, 36, 30), 4);
	CHECK_EQ(demeter_memtis_step(3, 35, 30), 3);
	CHECK_EQ(demeter_memtis_step(3, 25, 30), 3);
	CHECK_EQ(demeter_memtis_step(3, 24, 30), 2);
	CHECK_EQ(demeter_memtis_step(0, 0, 30), 0);
	CHECK_EQ(demeter_memtis_step(DEMETER_MEMTIS_LOAD_STEPS - 1, 1000, 30),
		 DEMETER_MEMTIS_LOAD_STEPS - 1);
}

static void mt_test_skew(struct test_tally *tally)
{
	u32 *samples = test_alloc(DEMETER_MEMTIS_HUGE_PAGES * sizeof(*samples));
	u32 i, one, many;
	u64 seed = 7;

	CHECK_EQ(demeter_memtis_skew(samples, 1), 0);
	samples[100] = 512;
	one = demeter_memtis_skew(samples, 9);
	CHECK_EQ(one, 14); /* 512 * 512 / 11 */
	for (i = 0; i < DEMETER_MEMTIS_HUGE_PAGES; i++)
		samples[i] = 1;
	many = demeter_memtis_skew(samples, 9);
	CHECK_EQ(many, 0);
	/* None of them is hot. */
	CHECK_EQ(demeter_memtis_skew(samples, 10), 0);
	for (i = 0; i < TEST_ROUNDS(100); i++) {
		samples[i % DEMETER_MEMTIS_HUGE_PAGES] = (u32)test_nasty(&seed);
		CHECK(demeter_memtis_skew(samples, i % 16) < DEMETER_MEMTIS_SKEW_BINS);
	}
	test_free(samples);
}

static const struct demeter_memtis_period mt_period = {
	.samples = 10000,
	.hits = 4000,
	.base_hits = 9000,
	.huge_samples = 10000,
	.huge_pages = 100,
	.resident_pages = 30000,
	.fmem_pages = 8000,
	.gap_permille = 1500,
};

static void mt_test_split(struct test_tally *tally)
{
	struct demeter_memtis_splitting splitting = { .tried = false };
	struct demeter_memtis_period period = mt_period;

	CHECK(demeter_memtis_split_due(&period));
	period.fmem_pages = 10000;
	CHECK(!demeter_memtis_split_due(&period));
	period.fmem_pages = 8000;
	period.resident_pages = 40000;
	CHECK(!demeter_memtis_split_due(&period));

	/* (0.95 * 0.9 - 0.4) * 10000 samples / 100 a page * 1.5 * 0.4 */
	CHECK_EQ(demeter_memtis_split(&splitting, &mt_period), 27);
	/* It brought three percent and more: on. */
	period = mt_period;
	period.hits = 4300;
	CHECK(demeter_memtis_split(&splitting, &period) > 0);
	/* It brought less: never again. */
	period.hits = 4599;
	CHECK_EQ(demeter_memtis_split(&splitting, &period), 0);
	CHECK(splitting.off);
	CHECK_EQ(demeter_memtis_split(&splitting, &mt_period), 0);

	/* As good as base pages could be. */
	splitting = (struct demeter_memtis_splitting){ .tried = false };
	period.hits = 8600;
	CHECK_EQ(demeter_memtis_split(&splitting, &period), 0);
	CHECK(!splitting.off && !splitting.tried);
}

static void mt_test_split_nonsense(struct test_tally *tally)
{
	u64 seed = 9, round;

	for (round = 0; round < TEST_ROUNDS(2000); round++) {
		struct demeter_memtis_splitting splitting = { .tried = round & 1 };
		struct demeter_memtis_period period = {
			.samples = test_nasty(&seed),
			.hits = test_nasty(&seed),
			.base_hits = test_nasty(&seed),
			.huge_samples = test_nasty(&seed),
			.huge_pages = test_nasty(&seed),
			.gap_permille = test_nasty(&seed),
		};

		CHECK(demeter_memtis_split(&splitting, &period) <= period.huge_pages);
	}
}

static const struct test_case memtis_tests[] = {
	{ "memtis: bins of units", mt_test_bins },
	{ "memtis: thresholds fit FMEM", mt_test_thresholds },
	{ "memtis: cooling makes nothing hotter", mt_test_cooling },
	{ "memtis: the ladder is of primes and moves by one", mt_test_ladder },
	{ "memtis: skew of a huge page", mt_test_skew },
	{ "memtis: splits, and stops for good", mt_test_split },
	{ "memtis: splits no more than there is", mt_test_split_nonsense },
};
