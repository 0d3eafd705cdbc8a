// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Finer's budget: one percent of the time at most, or what it has gained. */
#include <demeter/finer_budget.h>

#include "harness.h"

#define FB_HORIZON_NS 10000000000ULL
#define FB_EPOCH_NS   50000000ULL

/*
 * Returns what is spent in @epochs, from the first on, by who spends all that there is, on what
 * gains @gain_permille of it in each second afterwards.
 */
static u64 fb_spent_ns(u32 epochs, u32 gain_permille)
{
	struct demeter_finer_budget budget;
	u64 spent_ns = 0;
	u32 epoch;

	demeter_finer_budget_init(&budget, 0, FB_HORIZON_NS);
	for (epoch = 1; epoch <= epochs; epoch++) {
		s64 gained_ns = (s64)(spent_ns * gain_permille / 1000 * FB_EPOCH_NS / 1000000000);

		demeter_finer_budget_earn(&budget, FB_EPOCH_NS, gained_ns, epoch * FB_EPOCH_NS,
					  FB_HORIZON_NS);
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

	/* What gains nothing takes one percent, whenever it ends: and the last that was spent. */
	for (epochs = 1; epochs <= 400; epochs++)
		CHECK(fb_spent_ns(epochs, 0) <= epochs * FB_EPOCH_NS / 100 + 1000000);
	CHECK(fb_spent_ns(200, 0) >= FB_HORIZON_NS / 100 - 1000000);
	/* After the horizon a fifth of one percent. */
	CHECK(fb_spent_ns(2000, 0) <= FB_HORIZON_NS * (100 + 9 * 20) / 10000 + 1000000);
	/* What gains pays for more, and then for all. */
	CHECK(fb_spent_ns(200, 1000) > 4 * fb_spent_ns(200, 0));
	CHECK(fb_spent_ns(400, 1000) > 40 * fb_spent_ns(200, 0));
}

static void fb_test_kept(struct test_tally *tally)
{
	struct demeter_finer_budget budget;
	u32 i;

	/* A quiet day saves no more than was there to begin with, nor does a windfall. */
	demeter_finer_budget_init(&budget, FB_HORIZON_NS, FB_HORIZON_NS);
	CHECK_EQ(budget.left_ns, FB_HORIZON_NS / 100);
	for (i = 0; i < 100000; i++)
		demeter_finer_budget_earn(&budget, FB_EPOCH_NS, 1000000, i * FB_EPOCH_NS,
					  FB_HORIZON_NS);
	CHECK_EQ(budget.left_ns, FB_HORIZON_NS / 100);
	/* It is not for who has just begun, however long there was something else. */
	demeter_finer_budget_earn(&budget, FB_EPOCH_NS, 0, FB_EPOCH_NS, FB_HORIZON_NS);
	CHECK_EQ(budget.left_ns, FB_EPOCH_NS / 100);
	/* What took longer than expected, or loses, is to be made up for first. */
	demeter_finer_budget_spend(&budget, FB_HORIZON_NS);
	CHECK(budget.left_ns < 0);
	demeter_finer_budget_init(&budget, FB_HORIZON_NS, FB_HORIZON_NS);
	demeter_finer_budget_earn(&budget, FB_EPOCH_NS, -1000000000, FB_HORIZON_NS, FB_HORIZON_NS);
	CHECK(budget.left_ns < 0);
	/* However much it lost, so much within a horizon; what was spent, all of it. */
	for (i = 0; i < FB_HORIZON_NS / FB_EPOCH_NS; i++)
		demeter_finer_budget_earn(&budget, FB_EPOCH_NS, 0, FB_HORIZON_NS, FB_HORIZON_NS);
	CHECK(budget.left_ns > -(s64)(FB_HORIZON_NS / FB_EPOCH_NS));
	demeter_finer_budget_spend(&budget, FB_HORIZON_NS);
	demeter_finer_budget_earn(&budget, FB_EPOCH_NS, -1000000000, FB_HORIZON_NS, FB_HORIZON_NS);
	CHECK(budget.left_ns < -(s64)(FB_HORIZON_NS * 99 / 100));
}

static void fb_test_look(struct test_tally *tally)
{
	struct demeter_finer_budget budget;
	u32 epochs[2] = { 0 }, i;

	/* A look begins when it can be paid to its end: later where there is more to look at. */
	for (i = 0; i < ARRAY_SIZE(epochs); i++) {
		u32 granules = i ? 100000 : 140;

		demeter_finer_budget_init(&budget, 0, FB_HORIZON_NS);
		while (!demeter_finer_budget_covers_look(&budget, granules, FB_HORIZON_NS) &&
		       epochs[i] < 1000)
			demeter_finer_budget_earn(&budget, FB_EPOCH_NS, 0,
						  ++epochs[i] * FB_EPOCH_NS, FB_HORIZON_NS);
	}
	CHECK(epochs[0] >= 70 && epochs[0] < 90);
	CHECK(epochs[1] > epochs[0] && epochs[1] * FB_EPOCH_NS <= FB_HORIZON_NS);
	demeter_finer_budget_spend(&budget, FB_HORIZON_NS / 200);
	CHECK(!demeter_finer_budget_covers_look(&budget, 100000, FB_HORIZON_NS));
	/* Nothing to look at costs nothing, but for who is in debt. */
	CHECK(demeter_finer_budget_covers_look(&budget, 0, FB_HORIZON_NS));
	demeter_finer_budget_spend(&budget, FB_HORIZON_NS);
	CHECK(!demeter_finer_budget_covers_look(&budget, 0, FB_HORIZON_NS));
	CHECK(!demeter_finer_budget_covers_look(&budget, ~0ULL, ~0ULL));
}

static void fb_test_extremes(struct test_tally *tally)
{
	static const u64 ns[] = { 0, 1, 1ULL << 40, 1ULL << 62, ~0ULL };
	struct demeter_finer_budget budget;
	u32 i, k;

	for (i = 0; i < ARRAY_SIZE(ns); i++) {
		demeter_finer_budget_init(&budget, ns[i], ns[i]);
		CHECK(budget.left_ns >= 0);
		for (k = 0; k < ARRAY_SIZE(ns) * ARRAY_SIZE(ns); k++) {
			s64 before = budget.left_ns;

			demeter_finer_budget_spend(&budget, ns[k % ARRAY_SIZE(ns)]);
			CHECK(budget.left_ns <= before);
			demeter_finer_budget_earn(&budget, ns[k / ARRAY_SIZE(ns)],
						  (s64)ns[k % ARRAY_SIZE(ns)],
						  ns[(k + i) % ARRAY_SIZE(ns)], ns[i]);
			CHECK(budget.left_ns <= (s64)(BIT_ULL(61) / 100));
		}
	}
}

static const struct test_case finer_budget_tests[] = {
	{ "finer budget: bounded by time, or paid by what is gained", fb_test_bounded },
	{ "finer budget: little is saved up, and losses are made up for", fb_test_kept },
	{ "finer budget: a look begins when it can be paid", fb_test_look },
	{ "finer budget: extreme times", fb_test_extremes },
};
