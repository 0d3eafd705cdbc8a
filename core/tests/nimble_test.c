// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Nimble: parts of lists, and what is moved how. */
#include <demeter/peers/nimble.h>

#include "harness.h"

static void nb_test_share(struct test_tally *tally)
{
	CHECK_EQ(demeter_nimble_share(0, 500), 0);
	CHECK_EQ(demeter_nimble_share(1, 500), 1);
	CHECK_EQ(demeter_nimble_share(1001, 500), 501);
	CHECK_EQ(demeter_nimble_share(1001, 1000), 1001);
	CHECK_EQ(demeter_nimble_share(1001, 5000), 1001);
	CHECK_EQ(demeter_nimble_share(1000, 0), 0);
}

static void nb_test_plan(struct test_tally *tally)
{
	struct demeter_nimble_lists lists = {
		.hot_huge = 5 * 512,
		.hot_base = 300,
		.cold_huge = 2 * 512,
		.cold_base = 100,
		.room = 700,
		.huge = 512,
	};
	struct demeter_nimble_plan plan = demeter_nimble_plan(&lists);

	/* One THP fits, and what it leaves is for others. */
	CHECK_EQ(plan.fill_huge, 512);
	CHECK_EQ(plan.fill_base, 188);
	CHECK_EQ(plan.exchange, 2 * 512);
	CHECK_EQ(plan.trade, 100);
	/* A THP is exchanged for a THP, or not at all. */
	lists.room = 0;
	lists.cold_huge = 0;
	lists.cold_base = 5000;
	plan = demeter_nimble_plan(&lists);
	CHECK_EQ(plan.fill_huge + plan.fill_base + plan.exchange, 0);
	CHECK_EQ(plan.trade, 300);
}

static void nb_test_plan_nonsense(struct test_tally *tally)
{
	u64 seed = 13, round;

	for (round = 0; round < TEST_ROUNDS(2000); round++) {
		struct demeter_nimble_lists lists = {
			.hot_huge = test_nasty(&seed),
			.hot_base = test_nasty(&seed),
			.cold_huge = test_nasty(&seed),
			.cold_base = test_nasty(&seed),
			.room = test_nasty(&seed),
			.huge = 512,
		};
		struct demeter_nimble_plan plan = demeter_nimble_plan(&lists);

		CHECK(plan.fill_huge <= lists.hot_huge && plan.fill_base <= lists.hot_base);
		CHECK(plan.fill_huge <= lists.room &&
		      plan.fill_base <= lists.room - plan.fill_huge);
		CHECK(plan.exchange <= lists.hot_huge - plan.fill_huge);
		CHECK(plan.exchange <= lists.cold_huge && plan.trade <= lists.cold_base);
		CHECK(plan.trade <= lists.hot_base - plan.fill_base);
		CHECK_EQ(plan.fill_huge % 512 + plan.exchange % 512, 0);
	}
}

static const struct test_case nimble_tests[] = {
	{ "nimble: half of a list", nb_test_share },
	{ "nimble: fills, exchanges, trades", nb_test_plan },
	{ "nimble: moves no more than there is", nb_test_plan_nonsense },
};
