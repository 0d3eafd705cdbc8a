// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Finer's budget: one and a half percent of the time at most, or what it has gained. */
#include <demeter/finer_budget.h>

#include "harness.h"

#define FB_HORIZON_NS 10000000000ULL
#define FB_EPOCH_NS   50000000ULL

/*
 * Returns what is spent in @epochs by who spends all that there is, on what gains @gain_permille
 * of it in each second afterwards.
 */
static u64 fb_spent_ns(u32 epochs, u32 gain_permille)
{
	struct demeter_finer_budget budget;
	u64 spent_ns = 0;

	demeter_finer_budget_init(&budget, FB_HORIZON_NS);
	while (epochs--) {
		s64 gained_ns = (s64)(spent_ns * gain_permille / 1000 * FB_EPOCH_NS / 1000000000);

		demeter_finer_budget_earn(&budget, FB_EPOCH_NS, gained_ns, FB_HORIZON_NS);
		while (budget.left_ns > 0) {
			demeter_finer_budget_spend(&budget, 1000000);
			spent_ns += 1000000;
		}
	}
	return spent_ns;
}

static void fb_test_bounded(struct test_tally *tally)
{
	/* What gains nothing takes 1.5 % of the horizon, and a fifth of one percent later on. */
	CHECK(fb_spent_ns(200, 0) <= FB_HORIZON_NS * 15 / 1000 + 1000000);
	CHECK(fb_spent_ns(200, 0) > FB_HORIZON_NS / 80);
	CHECK(fb_spent_ns(2000, 0) <= FB_HORIZON_NS * 4 / 100);
	/* What gains pays for more, and then for all. */
	CHECK(fb_spent_ns(200, 1000) > 4 * fb_spent_ns(200, 0));
	CHECK(fb_spent_ns(400, 1000) > 40 * fb_spent_ns(200, 0));
}

static void fb_test_kept(struct test_tally *tally)
{
	struct demeter_finer_budget budget;
	u32 i;

	/* A quiet day saves no more than was there to begin with, nor does a windfall. */
	demeter_finer_budget_init(&budget, FB_HORIZON_NS);
	for (i = 0; i < 100000; i++)
		demeter_finer_budget_earn(&budget, FB_EPOCH_NS, 1000000, FB_HORIZON_NS);
	CHECK_EQ(budget.left_ns, FB_HORIZON_NS / 80);
	/* What took longer than expected, or loses, is to be made up for first. */
	demeter_finer_budget_spend(&budget, FB_HORIZON_NS);
	CHECK(budget.left_ns < 0);
	demeter_finer_budget_init(&budget, FB_HORIZON_NS);
	demeter_finer_budget_earn(&budget, FB_EPOCH_NS, -1000000000, FB_HORIZON_NS);
	CHECK(budget.left_ns < 0);
	/* However much it lost, so much within a horizon; what was spent, all of it. */
	for (i = 0; i < FB_HORIZON_NS / FB_EPOCH_NS; i++)
		demeter_finer_budget_earn(&budget, FB_EPOCH_NS, 0, FB_HORIZON_NS);
	CHECK(budget.left_ns > -(s64)(FB_HORIZON_NS / FB_EPOCH_NS));
	demeter_finer_budget_spend(&budget, FB_HORIZON_NS);
	demeter_finer_budget_earn(&budget, FB_EPOCH_NS, -1000000000, FB_HORIZON_NS);
	CHECK(budget.left_ns < -(s64)(FB_HORIZON_NS * 99 / 100));
}

static void fb_test_extremes(struct test_tally *tally)
{
	static const u64 ns[] = { 0, 1, 1ULL << 40, 1ULL << 62, ~0ULL };
	struct demeter_finer_budget budget;
	u32 i, k;

	for (i = 0; i < ARRAY_SIZE(ns); i++) {
		demeter_finer_budget_init(&budget, ns[i]);
		CHECK(budget.left_ns >= 0);
		for (k = 0; k < ARRAY_SIZE(ns) * ARRAY_SIZE(ns); k++) {
			s64 before = budget.left_ns;

			demeter_finer_budget_spend(&budget, ns[k % ARRAY_SIZE(ns)]);
			CHECK(budget.left_ns <= before);
			demeter_finer_budget_earn(&budget, ns[k / ARRAY_SIZE(ns)],
						  (s64)ns[k % ARRAY_SIZE(ns)], ns[i]);
			CHECK(budget.left_ns <= (s64)(BIT_ULL(61) / 80));
		}
	}
}

static const struct test_case finer_budget_tests[] = {
	{ "finer budget: bounded by time, or paid by what is gained", fb_test_bounded },
	{ "finer budget: little is saved up, and losses are made up for", fb_test_kept },
	{ "finer budget: extreme times", fb_test_extremes },
};
