// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Delivery: the cheaper way, kept while there is no reason against it. */
#include <demeter/delivery.h>

#include "harness.h"

#define DV_TICK_NS 50000000ULL

static const struct demeter_delivery_costs dv_costs = { .switch_ns = 7000, .record_ns = 8000 };

/* The same tick again and again; how often the way is changed. */
static u32 dv_ticks(struct demeter_delivery *delivery, u64 switches, u64 records, u32 ticks)
{
	struct demeter_delivery_tick tick = {
		.tick_ns = DV_TICK_NS,
		.switches = switches,
		.records = records,
	};
	u32 changes = 0;

	while (ticks--)
		changes += demeter_delivery_tick(delivery, &dv_costs, &tick);
	return changes;
}

static void dv_test_both_ways(struct test_tally *tally)
{
	struct demeter_delivery delivery = {};

	/* A program that computes, one that answers, and the first again. */
	CHECK_EQ(dv_ticks(&delivery, 10, 100, 20), 0);
	CHECK(!delivery.each);
	CHECK_EQ(dv_ticks(&delivery, 500, 100, 20), 1);
	CHECK(delivery.each);
	CHECK_EQ(dv_ticks(&delivery, 10, 100, 20), 1);
	CHECK(!delivery.each);
	/* At once, where it never was another. */
	memset(&delivery, 0, sizeof(delivery));
	CHECK_EQ(dv_ticks(&delivery, 500, 100, 1), 1);
}

static void dv_test_steady(struct test_tally *tally)
{
	struct demeter_delivery delivery = {};
	u32 round, changes = 0;

	/* Either way costs the same, and now the one, now the other a little less. */
	for (round = 0; round < 1000; round++)
		changes += dv_ticks(&delivery, round & 1 ? 120 : 100, round & 1 ? 80 : 100, 1);
	CHECK_EQ(changes, 0);
	/* Next to nothing is saved: an idle machine. */
	memset(&delivery, 0, sizeof(delivery));
	CHECK_EQ(dv_ticks(&delivery, 6, 0, 100), 0);
	/* From one to the other all the time: no more often than it may. */
	for (round = 0; round < 1000; round++)
		changes += dv_ticks(&delivery, round & 1 ? 5000 : 0, round & 1 ? 0 : 5000, 1);
	CHECK(changes <= 1000 / 8);
}

static void dv_test_unknown(struct test_tally *tally)
{
	const struct demeter_delivery_costs unknown = { .record_ns = 8000 };
	struct demeter_delivery_tick tick = { .tick_ns = DV_TICK_NS, .switches = 5000 };
	struct demeter_delivery delivery = {};
	u32 i;

	for (i = 0; i < 100; i++)
		CHECK(!demeter_delivery_tick(&delivery, &unknown, &tick));
	CHECK_EQ(demeter_delivery_cost_ns(&delivery, &unknown, 0), 0);
}

static void dv_test_throttled(struct test_tally *tally)
{
	struct demeter_delivery_tick tick = { .tick_ns = DV_TICK_NS, .switches = 5000 };
	struct demeter_delivery delivery = {};

	CHECK(demeter_delivery_tick(&delivery, &dv_costs, &tick));
	tick.throttled = true;
	CHECK(demeter_delivery_tick(&delivery, &dv_costs, &tick));
	CHECK(!delivery.each);
	/* Not again so soon, and batches know no throttling. */
	CHECK_EQ(dv_ticks(&delivery, 5000, 0, 100), 0);
	CHECK(!demeter_delivery_tick(&delivery, &dv_costs, &tick));
	CHECK_EQ(dv_ticks(&delivery, 5000, 0, 100), 1);
}

/* Records by an interrupt get cheaper with sparser samples; switches do not. */
static void dv_test_costs(struct test_tally *tally)
{
	struct demeter_delivery_tick tick = {
		.tick_ns = DV_TICK_NS,
		.switches = 500,
		.records = 100,
		.shift = 1,
	};
	struct demeter_delivery delivery = {};
	u32 i;

	for (i = 0; i < 64; i++)
		demeter_delivery_tick(&delivery, &dv_costs, &tick);
	CHECK_EQ(demeter_delivery_cost_ns(&delivery, &dv_costs, 0) / 10000, 160);
	CHECK_EQ(demeter_delivery_cost_ns(&delivery, &dv_costs, 1) / 10000, 80);
	CHECK_EQ(demeter_delivery_cost_ns(&delivery, &dv_costs, 3) / 10000, 20);
	tick.switches = 20;
	for (i = 0; i < 64; i++)
		demeter_delivery_tick(&delivery, &dv_costs, &tick);
	CHECK_EQ(demeter_delivery_cost_ns(&delivery, &dv_costs, 1) / 10000, 14);
}

static void dv_test_least_shift(struct test_tally *tally)
{
	const u64 cost_ns[] = { 1000, 500, 250, 125 };

	CHECK_EQ(demeter_delivery_least_shift(cost_ns, 1000, 0, 3), 0);
	CHECK_EQ(demeter_delivery_least_shift(cost_ns, 999, 0, 3), 1);
	CHECK_EQ(demeter_delivery_least_shift(cost_ns, 300, 0, 3), 2);
	CHECK_EQ(demeter_delivery_least_shift(cost_ns, 0, 0, 3), 3);
	CHECK_EQ(demeter_delivery_least_shift(cost_ns, 0, 9, 2), 2);
	/* Back when there is room to spare, and not at the edge. */
	CHECK_EQ(demeter_delivery_least_shift(cost_ns, 1100, 1, 3), 1);
	CHECK_EQ(demeter_delivery_least_shift(cost_ns, 1400, 3, 3), 0);
}

static void dv_test_nasty(struct test_tally *tally)
{
	struct demeter_delivery delivery = {};
	u64 seed = 5;
	u32 round, shift;

	for (round = 0; round < TEST_ROUNDS(20000); round++) {
		struct demeter_delivery_costs costs = { test_nasty(&seed), test_nasty(&seed) };
		struct demeter_delivery_tick tick = {
			.tick_ns = test_nasty(&seed),
			.switches = test_nasty(&seed),
			.records = test_nasty(&seed),
			.shift = (u32)test_nasty(&seed),
			.throttled = round & 1,
		};
		bool before = delivery.each;
		u64 cost_ns[4];

		CHECK_EQ(demeter_delivery_tick(&delivery, &costs, &tick), delivery.each != before);
		for (shift = 0; shift < 4; shift++)
			cost_ns[shift] = demeter_delivery_cost_ns(&delivery, &costs, shift);
		CHECK(cost_ns[0] >= cost_ns[1] && cost_ns[1] >= cost_ns[3]);
		CHECK(demeter_delivery_least_shift(cost_ns, tick.tick_ns, tick.shift, 3) <= 3);
	}
}

static void dv_test_tried_again(struct test_tally *tally)
{
	/* A third of what batches are thought to cost: interrupts, unless batches are on trial. */
	const struct demeter_delivery_costs costs = { .switch_ns = 9000, .record_ns = 3000 };
	const struct demeter_delivery_tick tick = { .tick_ns = 50000000,
						    .switches = 1000,
						    .records = 1000 };
	struct demeter_delivery delivery = {};
	u32 i, ticks = 0;

	for (i = 0; i < 20; i++)
		demeter_delivery_tick(&delivery, &costs, &tick);
	CHECK(delivery.each);
	demeter_delivery_try_batches(&delivery);
	for (i = 0; i < 20 && !delivery.each; i++, ticks++)
		demeter_delivery_tick(&delivery, &costs, &tick);
	CHECK(ticks > 4 && delivery.each);
}

static const struct test_case delivery_tests[] = {
	{ "delivery: the cheaper way, back and forth", dv_test_both_ways },
	{ "delivery: not changed for little", dv_test_steady },
	{ "delivery: batches while costs are not known", dv_test_unknown },
	{ "delivery: no interrupts where they are throttled", dv_test_throttled },
	{ "delivery: what it costs at each pace", dv_test_costs },
	{ "delivery: how sparse is affordable", dv_test_least_shift },
	{ "delivery: batches for a while, to measure them", dv_test_tried_again },
	{ "delivery: any numbers at all", dv_test_nasty },
};
