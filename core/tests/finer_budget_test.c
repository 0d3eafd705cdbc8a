// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Finer's budget: a 160th of the time at most, or what it has gained. */
#include <demeter/finer_budget.h>

#include "harness.h"

#define FB_YOUTH_NS 10000000000ULL
#define FB_EPOCH_NS 50000000ULL
#define FB_YOUNG    160

/* An epoch of one program that has run for @run_ns with it, and gained so much in it. */
static void fb_earn(struct demeter_finer_budget *budget, u64 run_ns, s64 gained_ns)
{
	struct demeter_finer_budget_epoch epoch = {
		.passed_ns = FB_EPOCH_NS,
		.young_ns = run_ns < FB_YOUTH_NS ? FB_EPOCH_NS : 0,
		.run_ns = run_ns,
		.gained_ns = gained_ns,
	};

	demeter_finer_budget_earn(budget, &epoch, FB_YOUTH_NS);
}

/* Of one that has run for its youth and spent nothing. */
static struct demeter_finer_budget fb_old(void)
{
	struct demeter_finer_budget budget = {};
	u64 run_ns;

	for (run_ns = FB_EPOCH_NS; run_ns <= 2 * FB_YOUTH_NS; run_ns += FB_EPOCH_NS)
		fb_earn(&budget, run_ns, 0);
	return budget;
}

/*
 * Returns what is spent in @epochs, from the first on, by who spends all that there is, on what
 * gains @gain_permille of it in each second afterwards.
 */
static u64 fb_spent_ns(u32 epochs, u32 gain_permille)
{
	struct demeter_finer_budget budget = {};
	u64 spent_ns = 0;
	u32 epoch;

	for (epoch = 1; epoch <= epochs; epoch++) {
		fb_earn(&budget, epoch * FB_EPOCH_NS,
			(s64)(spent_ns * gain_permille / 1000 * FB_EPOCH_NS / 1000000000));
		while (budget.left_ns > 0) {
			demeter_finer_budget_spend(&budget, 1000000);
			spent_ns += 1000000;
		}
	}
	return spent_ns;
}

static void fb_test_bounded(struct test_tally *tally)
{
	u32 epochs;

	/* What gains nothing takes a 160th, whenever it ends: and the last that was spent. */
	for (epochs = 1; epochs <= 400; epochs++)
		CHECK(fb_spent_ns(epochs, 0) <= epochs * FB_EPOCH_NS / FB_YOUNG + 1000000);
	CHECK(fb_spent_ns(200, 0) >= FB_YOUTH_NS / FB_YOUNG - 1000000);
	/* After that a fifth of one percent. */
	CHECK(fb_spent_ns(2000, 0) <= FB_YOUTH_NS / FB_YOUNG + FB_YOUTH_NS * 9 / 500 + 1000000);
	/* What gains pays for more, and then for all. */
	CHECK(fb_spent_ns(200, 1000) > 4 * fb_spent_ns(200, 0));
	CHECK(fb_spent_ns(400, 1000) > 40 * fb_spent_ns(200, 0));
}

static void fb_test_kept(struct test_tally *tally)
{
	struct demeter_finer_budget budget = fb_old();
	u32 i;

	/* A quiet day saves no more than was there, nor does a windfall. */
	CHECK_EQ(budget.left_ns, FB_YOUTH_NS / FB_YOUNG);
	for (i = 0; i < 100000; i++)
		fb_earn(&budget, FB_YOUTH_NS, 1000000);
	CHECK_EQ(budget.left_ns, FB_YOUTH_NS / FB_YOUNG);
	/* What took longer than expected, or loses, is to be made up for first. */
	demeter_finer_budget_spend(&budget, FB_YOUTH_NS);
	CHECK(budget.left_ns < 0);
	budget = fb_old();
	fb_earn(&budget, FB_YOUTH_NS, -1000000000);
	CHECK(budget.left_ns < 0);
	/* However much it lost, so much within a youth; what was spent, all of it. */
	for (i = 0; i < FB_YOUTH_NS / FB_EPOCH_NS; i++)
		fb_earn(&budget, FB_YOUTH_NS, 0);
	CHECK(budget.left_ns > -(s64)(FB_YOUTH_NS / FB_EPOCH_NS));
	demeter_finer_budget_spend(&budget, FB_YOUTH_NS);
	fb_earn(&budget, FB_YOUTH_NS, -1000000000);
	CHECK(budget.left_ns < -(s64)(FB_YOUTH_NS * 98 / 100));
}

/* A young program beside old ones, and where nobody is left. */
static void fb_test_several(struct test_tally *tally)
{
	struct demeter_finer_budget_epoch epoch = { .passed_ns = FB_EPOCH_NS };
	struct demeter_finer_budget budget = fb_old();
	u64 run_ns, spent_ns = 0;
	s64 left_ns;
	u32 i;

	/* What was saved is not for who has just begun, however that is spent. */
	for (run_ns = FB_EPOCH_NS; run_ns < FB_YOUTH_NS / 2; run_ns += FB_EPOCH_NS) {
		fb_earn(&budget, run_ns, 0);
		while (budget.left_ns > 0) {
			demeter_finer_budget_spend(&budget, 100000);
			spent_ns += 100000;
		}
		CHECK(spent_ns <= run_ns / FB_YOUNG + 100000);
	}
	/* It comes back when that has gone, once, and no faster than it is earned. */
	for (spent_ns = 0, i = 0; i < 4000; i++) {
		fb_earn(&budget, FB_YOUTH_NS, 0);
		while (budget.left_ns > 0) {
			demeter_finer_budget_spend(&budget, 100000);
			spent_ns += 100000;
		}
		CHECK(spent_ns <= 2 * (i + 1) * FB_EPOCH_NS / 500 + 200000);
	}
	CHECK(spent_ns >= 4000 * FB_EPOCH_NS / 500 + FB_YOUTH_NS / FB_YOUNG * 9 / 10);
	CHECK(spent_ns <= 4000 * FB_EPOCH_NS / 500 + FB_YOUTH_NS / FB_YOUNG + 200000);
	budget = fb_old();
	/* By its pages, a young one has so much earned as if it was alone, and no more. */
	demeter_finer_budget_spend(&budget, FB_YOUTH_NS / FB_YOUNG);
	left_ns = budget.left_ns;
	epoch.young_ns = FB_EPOCH_NS / 10;
	epoch.run_ns = FB_YOUTH_NS * 9 / 10;
	demeter_finer_budget_earn(&budget, &epoch, FB_YOUTH_NS);
	CHECK_EQ(budget.left_ns - left_ns,
		 FB_EPOCH_NS / 10 / FB_YOUNG + FB_EPOCH_NS * 9 / 10 / 500);
	/* Where nothing is managed nothing is earned, and no debt is left to who comes next. */
	demeter_finer_budget_spend(&budget, FB_YOUTH_NS);
	epoch = (struct demeter_finer_budget_epoch){ .passed_ns = FB_EPOCH_NS };
	for (i = 0; i < 10; i++)
		demeter_finer_budget_earn(&budget, &epoch, FB_YOUTH_NS);
	CHECK_EQ(budget.left_ns, 0);
	fb_earn(&budget, FB_EPOCH_NS, 0);
	CHECK_EQ(budget.left_ns, FB_EPOCH_NS / FB_YOUNG);
	/* Nor is what was saved, laid aside or not. */
	budget = fb_old();
	fb_earn(&budget, FB_EPOCH_NS, 0);
	CHECK(budget.aside_ns > 0);
	demeter_finer_budget_earn(&budget, &epoch, FB_YOUTH_NS);
	CHECK_EQ(budget.left_ns + budget.aside_ns, 0);
	/* All of an epoch is young at most. */
	epoch.run_ns = FB_YOUTH_NS;
	epoch.young_ns = 100 * FB_EPOCH_NS;
	demeter_finer_budget_earn(&budget, &epoch, FB_YOUTH_NS);
	CHECK_EQ(budget.left_ns, FB_EPOCH_NS / FB_YOUNG);
}

/* Samples say it: what chance gives and takes is neither gain nor loss. */
static void fb_test_noise(struct test_tally *tally)
{
	static const u64 passed_ns[] = { FB_EPOCH_NS, 10 * FB_EPOCH_NS };
	u32 i, k;

	for (i = 0; i < ARRAY_SIZE(passed_ns); i++) {
		struct demeter_finer_budget budget = fb_old();
		u64 random = 1, spent_ns = 0, epochs = 600000000000ULL / passed_ns[i];

		for (k = 0; k < epochs; k++) {
			struct demeter_finer_budget_epoch epoch = {
				.passed_ns = passed_ns[i],
				.run_ns = FB_YOUTH_NS,
			};

			/* Ten milliseconds to and fro, and one of gain each second. */
			epoch.gained_ns = (s64)(test_random(&random) >> 32) % 20000000 - 10000000;
			epoch.gained_ns += (s64)(passed_ns[i] / 1000);
			demeter_finer_budget_earn(&budget, &epoch, FB_YOUTH_NS);
			while (budget.left_ns > 0) {
				demeter_finer_budget_spend(&budget, 100000);
				spent_ns += 100000;
			}
		}
		/* Without any there are 1200 ms, and 1300 with half of what was gained. */
		CHECK(spent_ns > 900000000 && spent_ns < 2600000000);
	}
}

static void fb_test_look(struct test_tally *tally)
{
	struct demeter_finer_budget budget;
	u32 epochs[2] = { 0 }, i;

	/* A look begins when it can be paid to its end: later where there is more to look at. */
	for (i = 0; i < ARRAY_SIZE(epochs); i++) {
		u32 granules = i ? 100000 : 140;

		budget = (struct demeter_finer_budget){};
		while (!demeter_finer_budget_covers_look(&budget, granules, FB_YOUTH_NS) &&
		       epochs[i] < 1000)
			fb_earn(&budget, ++epochs[i] * FB_EPOCH_NS, 0);
	}
	CHECK(epochs[0] >= 120 && epochs[0] < 130);
	CHECK(epochs[1] > epochs[0] && epochs[1] * FB_EPOCH_NS <= FB_YOUTH_NS);
	demeter_finer_budget_spend(&budget, FB_YOUTH_NS / 200);
	CHECK(!demeter_finer_budget_covers_look(&budget, 100000, FB_YOUTH_NS));
	/* Nothing to look at costs nothing, but for who is in debt. */
	CHECK(demeter_finer_budget_covers_look(&budget, 0, FB_YOUTH_NS));
	demeter_finer_budget_spend(&budget, FB_YOUTH_NS);
	CHECK(!demeter_finer_budget_covers_look(&budget, 0, FB_YOUTH_NS));
	CHECK(!demeter_finer_budget_covers_look(&budget, ~0ULL, ~0ULL));
}

/* Denser samples: no more in an epoch than a quarter of what is left, whatever it was before. */
static void fb_test_records(struct test_tally *tally)
{
	static const u64 record_ns = 1800;
	u64 cpus;

	for (cpus = 1; cpus <= 1024; cpus *= 2) {
		struct demeter_finer_budget budget = fb_old();
		u64 records = cpus * 250, extra;
		s64 left_ns = budget.left_ns;
		u32 shift, i;

		demeter_finer_budget_extra_records(&budget, records, 0);
		/* A few quiet epochs do not have it forget. */
		for (i = 0; i < 5; i++)
			demeter_finer_budget_extra_records(&budget, 1, 0);
		shift = demeter_finer_budget_shift(&budget, record_ns, 4);
		extra = demeter_finer_budget_extra_records(&budget, records << shift, shift);
		CHECK_EQ(extra, records * ((1U << shift) - 1));
		demeter_finer_budget_bear(&budget, extra * record_ns, FB_YOUTH_NS);
		CHECK(budget.left_ns >= left_ns / 2);
		CHECK(cpus > 1 ? cpus < 128 || !shift : shift == 4);
	}
	/* What nobody could know is made up for within a youth; without money there are none. */
	{
		struct demeter_finer_budget budget = fb_old();

		demeter_finer_budget_bear(&budget, 100 * FB_YOUTH_NS, FB_YOUTH_NS);
		CHECK_EQ(budget.left_ns, -(s64)(FB_YOUTH_NS / 500));
		CHECK_EQ(demeter_finer_budget_shift(&budget, record_ns, 4), 0);
	}
}

static void fb_test_extremes(struct test_tally *tally)
{
	static const u64 ns[] = { 0, 1, 1ULL << 40, 1ULL << 62, ~0ULL };
	struct demeter_finer_budget budget;
	u32 i, k;

	for (i = 0; i < ARRAY_SIZE(ns); i++) {
		budget = (struct demeter_finer_budget){};
		for (k = 0; k < ARRAY_SIZE(ns) * ARRAY_SIZE(ns); k++) {
			struct demeter_finer_budget_epoch epoch = {
				.passed_ns = ns[k / ARRAY_SIZE(ns)],
				.young_ns = ns[(k + 2 * i) % ARRAY_SIZE(ns)],
				.run_ns = ns[(k + i) % ARRAY_SIZE(ns)],
				.gained_ns = (s64)ns[k % ARRAY_SIZE(ns)],
			};
			s64 before = budget.left_ns;

			demeter_finer_budget_spend(&budget, ns[k % ARRAY_SIZE(ns)]);
			CHECK(budget.left_ns <= before);
			demeter_finer_budget_earn(&budget, &epoch, ns[i]);
			CHECK(budget.left_ns <= (s64)(BIT_ULL(61) / FB_YOUNG));
			CHECK(budget.aside_ns >= 0);
			demeter_finer_budget_bear(&budget, ns[k % ARRAY_SIZE(ns)], ns[i]);
			demeter_finer_budget_extra_records(&budget, ns[i], k);
			CHECK(demeter_finer_budget_shift(&budget, ns[k % ARRAY_SIZE(ns)], 4) <= 4);
		}
	}
}

static const struct test_case finer_budget_tests[] = {
	{ "finer budget: bounded by time, or paid by what is gained", fb_test_bounded },
	{ "finer budget: little is saved up, and losses are made up for", fb_test_kept },
	{ "finer budget: chance is no loss", fb_test_noise },
	{ "finer budget: young and old programs, and none", fb_test_several },
	{ "finer budget: denser samples are within it", fb_test_records },
	{ "finer budget: a look begins when it can be paid", fb_test_look },
	{ "finer budget: extreme times", fb_test_extremes },
};
