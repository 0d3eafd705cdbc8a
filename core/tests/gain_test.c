// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Gain: what was promised, what came of it, and that sums are right. */
#include <demeter/gain.h>
#include <demeter/math.h>

#include "harness.h"
#include "machine.h"

#define GT_GRANULE (2ULL << 20)
#define GT_RANGES  4U
#define GT_STEPS   32U
#define GT_BASE	   BIT_ULL(32)

/* One area of eight granules; @memory has room for GT_RANGES. */
static void gt_ranges(struct demeter_ranges *rs, struct demeter_range *memory)
{
	static const struct demeter_ranges_params params = DEMETER_RANGES_PARAMS_DEFAULT;

	memset(memory, 0, GT_RANGES * sizeof(*memory));
	demeter_ranges_init(rs, memory, GT_RANGES, &params);
	demeter_ranges_set_area(rs, 0, GT_BASE, GT_BASE + 8 * GT_GRANULE);
}

static void gt_test_rate(struct test_tally *tally)
{
	struct demeter_range memory[GT_RANGES];
	struct demeter_ranges rs;
	u64 end = GT_BASE + 8 * GT_GRANULE;

	gt_ranges(&rs, memory);
	/* Made by hand: two granules, then six. */
	rs.nr = 2;
	rs.range[0].end = GT_BASE + 2 * GT_GRANULE;
	rs.range[0].rate = 1000;
	rs.range[1] = rs.range[0];
	rs.range[1].start = rs.range[0].end;
	rs.range[1].end = end;
	rs.range[1].rate = 600;
	CHECK_EQ(demeter_gain_rate(&rs, GT_BASE, end), 1600);
	CHECK_EQ(demeter_gain_rate(&rs, 0, ~0ULL), 1600);
	CHECK_EQ(demeter_gain_rate(&rs, GT_BASE, GT_BASE + GT_GRANULE), 500);
	CHECK_EQ(demeter_gain_rate(&rs, GT_BASE + GT_GRANULE, GT_BASE + 4 * GT_GRANULE), 700);
	CHECK_EQ(demeter_gain_rate(&rs, GT_BASE + 4 * GT_GRANULE, end), 400);
	CHECK_EQ(demeter_gain_rate(&rs, end, ~0ULL), 0);
	CHECK_EQ(demeter_gain_rate(&rs, 0, GT_BASE), 0);
	CHECK_EQ(demeter_gain_rate(&rs, end, GT_BASE), 0);
	rs.nr = 0;
	CHECK_EQ(demeter_gain_rate(&rs, 0, ~0ULL), 0);
}

/* Steady accesses realise what they are worth, and no more once the time is over. */
static void gt_test_steady(struct test_tally *tally)
{
	struct demeter_plan_step step = { .kind = DEMETER_PLAN_FILL, .gain_ps = 3000 };
	struct demeter_rank_entry e[2];
	struct demeter_placement p;
	struct demeter_range memory[GT_RANGES];
	struct demeter_ranges rs;
	u32 epoch;

	gt_ranges(&rs, memory);
	memset(e, 0, sizeof(e));
	e[0].start = GT_BASE;
	e[0].end = GT_BASE + 8 * GT_GRANULE;
	e[0].resident = 4096;
	e[0].rate = 200ULL << DEMETER_RATE_SHIFT;
	e[0].space = 7;
	step.lasts_ns = 20;
	demeter_placement_init(&p, &step, e);
	CHECK(!demeter_placement_is_open(&p));
	CHECK_EQ(demeter_placement_predicted_ns(&p), 0);
	/* Half the pages are moved; a steady 100 samples an epoch, decayed: 200. */
	p.pages = 2048;
	CHECK_EQ(demeter_placement_predicted_ns(&p), 6144);
	rs.range[0].rate = 200ULL << DEMETER_RATE_SHIFT;
	/* Another space, and then no gap: nothing. */
	CHECK_EQ(demeter_placement_realise(&p, &rs, NULL, 8, 1000, 100000), 0);
	CHECK_EQ(demeter_placement_realise(&p, &rs, NULL, 7, 1000, 0), 0);
	for (epoch = 1; epoch <= 4; epoch++) {
		/* 100 samples x 1000 accesses x 100 ns x half */
		CHECK_EQ(demeter_placement_realise(&p, &rs, NULL, 7, 1000, 100000),
			 epoch <= 2 ? 5000000 : 0);
		demeter_placement_age(&p, 10);
		CHECK_EQ(demeter_placement_is_open(&p), epoch < 2);
	}
	CHECK_EQ(p.realised_ns, 10000000);
	/* More pages than are resident are no more than all of them. */
	p.age_ns = 0;
	p.pages = 1 << 20;
	CHECK_EQ(demeter_placement_realise(&p, &rs, NULL, 7, 1000, 100000), 10000000);
	/* Epochs that hold an eighth of the samples: 1600 decayed ones were worth 200. */
	p.hot.rate = 1600ULL << DEMETER_RATE_SHIFT;
	rs.thin = 3;
	CHECK_EQ(demeter_placement_realise(&p, &rs, NULL, 7, 1000, 100000), 10000000);
	rs.thin = 0;
	CHECK_EQ(demeter_placement_realise(&p, &rs, NULL, 7, 1000, 100000), 10000000);
	/* A class of pages alike, whose rate is in samples of the epoch that ends. */
	memset(e, 0, sizeof(e));
	e[1].resident = p.hot.resident_pages;
	e[1].rate = 200ULL << DEMETER_RATE_SHIFT;
	p.hot.part = DEMETER_FINER_PART + 1;
	p.hot.rate = 1600ULL << DEMETER_RATE_SHIFT;
	rs.thin = 3;
	CHECK_EQ(demeter_placement_realise(&p, &rs, e, 7, 1000, 100000), 10000000);
	rs.thin = 0;
	CHECK_EQ(demeter_placement_realise(&p, &rs, e, 7, 1000, 100000), 10000000);
}

/* What is demoted costs, in its own space; what comes back is even. */
static void gt_test_swap(struct test_tally *tally)
{
	struct demeter_plan_step step = { .kind = DEMETER_PLAN_SWAP, .hot = 0, .cold = 1 };
	struct demeter_rank_entry e[2];
	struct demeter_placement there, back;
	struct demeter_range memory[GT_RANGES];
	struct demeter_ranges rs;
	u32 i;

	gt_ranges(&rs, memory);
	memset(e, 0, sizeof(e));
	for (i = 0; i < 2; i++) {
		e[i].start = GT_BASE + i * 4 * GT_GRANULE;
		e[i].end = e[i].start + 4 * GT_GRANULE;
		e[i].resident = 2048;
		e[i].rate = (i ? 200ULL : 600ULL) << DEMETER_RATE_SHIFT;
		e[i].space = 1;
	}
	step.lasts_ns = 100;
	demeter_placement_init(&there, &step, e);
	step.hot = 1;
	step.cold = 0;
	demeter_placement_init(&back, &step, e);
	there.pages = 2048;
	back.pages = 2048;
	/* Three quarters of the accesses in the hot half, by a split. */
	rs.nr = 2;
	rs.range[1] = rs.range[0];
	rs.range[0].end = e[0].end;
	rs.range[1].start = e[0].end;
	rs.range[0].rate = 600ULL << DEMETER_RATE_SHIFT;
	rs.range[1].rate = 200ULL << DEMETER_RATE_SHIFT;
	CHECK_EQ((u64)demeter_placement_realise(&there, &rs, NULL, 1, 1, 1000), 200);
	CHECK_EQ((u64)demeter_placement_realise(&back, &rs, NULL, 1, 1, 1000), (u64)-200);
	CHECK_EQ((u64)(there.realised_ns + back.realised_ns), 0);
	/* A cold side elsewhere costs when that space has its epoch. */
	there.cold.space = 2;
	CHECK_EQ((u64)demeter_placement_realise(&there, &rs, NULL, 1, 1, 1000), 300);
	CHECK_EQ((u64)demeter_placement_realise(&there, &rs, NULL, 2, 1, 1000), (u64)-100);
	/* From another socket it costs what is remote on top. */
	there.remote_ps = 500;
	CHECK_EQ((u64)demeter_placement_realise(&there, &rs, NULL, 2, 1, 1000), (u64)-150);
}

/* A hot spot that has moved on saves nothing, however hot it was before. */
static void gt_test_over(struct test_tally *tally)
{
	struct demeter_plan_step step = { .kind = DEMETER_PLAN_FILL, .gain_ps = 3000 };
	struct demeter_range memory[GT_RANGES];
	struct demeter_rank_entry e[1];
	struct demeter_placement p;
	struct demeter_ranges rs;
	u32 epoch;

	gt_ranges(&rs, memory);
	memset(e, 0, sizeof(e));
	e[0].start = GT_BASE;
	e[0].end = GT_BASE + 8 * GT_GRANULE;
	e[0].resident = 4096;
	step.lasts_ns = 1000;
	/* Five epochs of 100 samples, then none but for ten in the third epoch. */
	for (epoch = 0; epoch < 5; epoch++)
		rs.range[0].rate = rs.range[0].rate / 2 + (100ULL << DEMETER_RATE_SHIFT);
	e[0].rate = rs.range[0].rate;
	demeter_placement_init(&p, &step, e);
	p.pages = 4096;
	p.cost_ns = 1000;
	for (epoch = 1; epoch <= 8; epoch++) {
		u64 samples = epoch == 3 ? 10 : 0;

		rs.range[0].rate = rs.range[0].rate / 2 + (samples << DEMETER_RATE_SHIFT);
		CHECK_EQ(demeter_placement_realise(&p, &rs, NULL, 0, 1, 1000), samples);
		demeter_placement_age(&p, 10);
		demeter_placement_forget(&p, 10);
	}
	CHECK_EQ(p.realised_ns, 10);
	/* What it will have saved: somewhat more than it has, and not what it was thought to. */
	CHECK(demeter_placement_outlook_ns(&p) >= 10 && demeter_placement_outlook_ns(&p) < 200);
}

/* On the toy machine with steady heat the planner, which is cautious, keeps its word. */
/* It is over when it has been quiet for as long as it had been growing, and no sooner. */
static void gt_test_is_over(struct test_tally *tally)
{
	struct demeter_placement p = { .pages = 1, .lasts_ns = DEMETER_U64_MAX };
	u32 epoch, over = 0;

	for (epoch = 1; epoch <= 40; epoch++) {
		/* For ten epochs, and now and then a little. */
		p.realised_ns += epoch <= 10 ? 100 : 1;
		demeter_placement_age(&p, 1000);
		demeter_placement_forget(&p, 1000);
		if (!over && demeter_placement_is_over(&p, 1000))
			over = epoch;
	}
	CHECK(over >= 22 && over <= 26);
	CHECK(p.grown_age_ns >= 8000 && p.grown_age_ns <= 10000);
	/* It comes back: whatever was taken for its end was none. */
	for (epoch = 0; epoch < 4; epoch++) {
		p.realised_ns += 100;
		demeter_placement_age(&p, 1000);
		demeter_placement_forget(&p, 1000);
	}
	CHECK(!demeter_placement_is_over(&p, 1000));
	/* What saves as much each epoch never is; nor is what nobody accesses meanwhile. */
	memset(&p, 0, sizeof(p));
	p.pages = 1;
	p.lasts_ns = DEMETER_U64_MAX;
	for (epoch = 0; epoch < 1000; epoch++) {
		p.realised_ns += 100;
		demeter_placement_age(&p, 1000);
		demeter_placement_forget(&p, 1000);
		CHECK(!demeter_placement_is_over(&p, 1000));
	}
	for (epoch = 0; epoch < 5000; epoch++)
		demeter_placement_age(&p, 1000);
	CHECK(!demeter_placement_is_over(&p, 1000));
}

static void gt_test_kept(struct test_tally *tally)
{
	struct machine *m = machine_new(64, 16, 3);
	struct demeter_placement *p = test_alloc(GT_STEPS * sizeof(*p));
	u64 predicted = 0;
	s64 realised = 0;
	u32 nr = 0, epoch, i;

	for (epoch = 0; epoch < 60; epoch++) {
		/* 8 hot granules in SMEM, the rest barely touched. */
		machine_spray(m, 800, 40, 8);
		machine_spray(m, 50, 0, 64);
		machine_epoch(m, 0);
		for (i = 0; i < nr; i++) {
			demeter_placement_realise(&p[i], &m->ranges, NULL, 0,
						  m->params.sample_period,
						  m->params.latency_gap_ps);
			demeter_placement_age(&p[i], m->params.epoch_ns);
		}
		for (i = 0; i < m->plan.nr && nr < GT_STEPS; i++) {
			demeter_placement_init(&p[nr], &m->step[i], m->entry);
			CHECK(p[nr].gain_ps && p[nr].lasts_ns);
			CHECK(p[nr].lasts_ns <= m->params.horizon_ns);
			p[nr++].pages = m->step[i].pages;
		}
	}
	CHECK(nr > 0);
	for (i = 0; i < nr; i++) {
		if (demeter_placement_is_open(&p[i]))
			continue;
		predicted += demeter_placement_predicted_ns(&p[i]);
		realised += p[i].realised_ns;
	}
	CHECK(predicted > 0);
	CHECK(realised >= (s64)(predicted / 2));
	CHECK(realised <= (s64)(predicted * 4));
	test_free(p);
	test_free(m);
}

/* Any numbers at all: no trap, no sign that flips. */
static void gt_test_nasty(struct test_tally *tally)
{
	struct demeter_range memory[GT_RANGES];
	struct demeter_ranges rs;
	u64 seed = 11;
	u32 round;

	gt_ranges(&rs, memory);
	for (round = 0; round < TEST_ROUNDS(20000); round++) {
		struct demeter_plan_step step = { .kind = (enum demeter_plan_kind)(round & 1) };
		struct demeter_rank_entry e;
		struct demeter_placement p;
		s64 before, change;

		memset(&e, 0, sizeof(e));
		e.start = test_nasty(&seed);
		e.end = test_nasty(&seed);
		e.resident = test_nasty(&seed);
		step.gain_ps = test_nasty(&seed);
		step.lasts_ns = test_nasty(&seed);
		rs.range[0].rate = test_nasty(&seed);
		demeter_placement_init(&p, &step, &e);
		p.pages = test_nasty(&seed);
		p.realised_ns = (s64)test_nasty(&seed);
		before = p.realised_ns;
		if (before < -(s64)(DEMETER_U64_MAX >> 1))
			continue;
		change = demeter_placement_realise(&p, &rs, NULL, 0, test_nasty(&seed),
						   test_nasty(&seed));
		/* One range for both sides of a swap: what it saves it costs. */
		if (step.kind == DEMETER_PLAN_SWAP)
			CHECK_EQ((u64)change, 0);
		else
			CHECK(change >= 0 && p.realised_ns >= before);
		demeter_placement_age(&p, test_nasty(&seed));
		demeter_placement_forget(&p, test_nasty(&seed));
		demeter_placement_outlook_ns(&p);
		CHECK(demeter_placement_predicted_ns(&p) >= p.pages / 1000 * (p.gain_ps > 0));
	}
}

static const struct test_case gain_tests[] = {
	{ "gain: accesses of a span, whatever its ranges are", gt_test_rate },
	{ "gain: steady accesses, until the time is over", gt_test_steady },
	{ "gain: what is demoted costs", gt_test_swap },
	{ "gain: a hot spot that has moved on saves nothing", gt_test_over },
	{ "gain: when it is over", gt_test_is_over },
	{ "gain: a cautious planner keeps its word", gt_test_kept },
	{ "gain: any numbers at all", gt_test_nasty },
};
