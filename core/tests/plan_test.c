// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Plan: pays or does nothing; and the pipeline as a whole on a toy machine. */
#include <demeter/gain.h>
#include <demeter/math.h>
#include <demeter/plan.h>

#include "harness.h"
#include "machine.h"

#define PT_ENTRIES 40U
#define PT_STEPS   16U

/* A page that sees k samples an epoch is worth k ns over the horizon. */
static const struct demeter_plan_params pt_simple = {
	.sample_period = 1,
	.epoch_ns = 1000,
	.horizon_ns = 1000,
	.latency_gap_ps = 1000,
	.swap_cost_ns = 10,
	.move_cost_ns = 10,
	.hysteresis_permille = 500,
};

static void pt_entry(struct demeter_rank_entry *e, u64 samples, u64 fmem, u64 smem)
{
	memset(e, 0, sizeof(*e));
	e->rate = (2 * samples * (fmem + smem)) << DEMETER_RATE_SHIFT;
	e->pages[DEMETER_FMEM] = fmem;
	e->pages[DEMETER_SMEM] = smem;
	e->age_epochs = 1;
}

static void pt_test_bar(struct test_tally *tally)
{
	struct demeter_plan_state state = { 0 };
	struct demeter_plan_step step[4];
	struct demeter_plan plan = { .step = step, .capacity = 4 };
	struct demeter_rank_entry e[2];
	u64 hot;

	/* Cost 10 ns and hysteresis a half: more than 15 ns above the cold one. */
	for (hot = 0; hot < 40; hot++) {
		pt_entry(&e[0], hot, 0, 5);
		pt_entry(&e[1], 4, 7, 0);
		demeter_plan_make(&plan, &state, &pt_simple, e, 2, 0, 0);
		CHECK_EQ(plan.nr, hot > 19);
		CHECK_EQ(plan.swap_pages, hot > 19 ? 5 : 0);
		CHECK_EQ(plan.end, hot > 19 ? DEMETER_PLAN_DONE : DEMETER_PLAN_NO_GAIN);
	}
	/* In place already. */
	pt_entry(&e[0], 100, 5, 0);
	pt_entry(&e[1], 4, 0, 7);
	demeter_plan_make(&plan, &state, &pt_simple, e, 2, 0, 0);
	CHECK(plan.nr == 0 && plan.end == DEMETER_PLAN_DONE);
	/* Both tiers in one range: nothing to choose between. */
	pt_entry(&e[0], 100, 5, 5);
	demeter_plan_make(&plan, &state, &pt_simple, e, 1, 0, 0);
	CHECK(plan.nr == 0 && plan.end == DEMETER_PLAN_DONE);
	demeter_plan_make(&plan, &state, &pt_simple, e, 0, 0, 0);
	CHECK(plan.nr == 0 && plan.end == DEMETER_PLAN_DONE);
}

/* A range is believed for four epochs, twice as many with each that it lasts. */
static void pt_test_young(struct test_tally *tally)
{
	struct demeter_plan_params p = pt_simple;
	struct demeter_plan_state state = { 0 };
	struct demeter_plan_step step[4];
	struct demeter_plan plan = { .step = step, .capacity = 4 };
	struct demeter_rank_entry e[3];
	u32 age;

	/* A sample is worth 1 ns an epoch. */
	p.horizon_ns = 64000;
	p.swap_cost_ns = 100;
	for (age = 0; age < 8; age++) {
		pt_entry(&e[0], 10, 0, 5);
		pt_entry(&e[1], 0, 7, 0);
		e[0].age_epochs = age;
		demeter_plan_make(&plan, &state, &p, e, 2, 0, 0);
		/* 40 << age ns, more than 150 */
		CHECK_EQ(plan.swap_pages, age >= 2 ? 5 : 0);
		CHECK_EQ(plan.end, age >= 2 ? DEMETER_PLAN_DONE : DEMETER_PLAN_NO_GAIN);
		/* Into free memory: more than 15. */
		demeter_plan_make(&plan, &state, &p, e, 2, 5, 0);
		CHECK_EQ(plan.fill_pages, 5);
	}
	/* Hot enough, at once. */
	pt_entry(&e[0], 38, 0, 5);
	e[0].age_epochs = 0;
	demeter_plan_make(&plan, &state, &p, e, 2, 0, 0);
	CHECK_EQ(plan.swap_pages, 5);
	/* Never longer than the horizon, whatever the age. */
	p.horizon_ns = 3000;
	pt_entry(&e[0], 50, 0, 5);
	e[0].age_epochs = ~0U;
	demeter_plan_make(&plan, &state, &p, e, 2, 0, 0);
	CHECK_EQ(plan.swap_pages, 0);
	pt_entry(&e[0], 51, 0, 5);
	e[0].age_epochs = ~0U;
	demeter_plan_make(&plan, &state, &p, e, 2, 0, 0);
	CHECK_EQ(plan.swap_pages, 5);
	/* A young one is passed over and leaves its partner to the next. */
	p.horizon_ns = 64000;
	pt_entry(&e[0], 20, 0, 5);
	e[0].age_epochs = 0;
	pt_entry(&e[1], 10, 0, 6);
	e[1].age_epochs = 9;
	pt_entry(&e[2], 0, 6, 0);
	demeter_plan_make(&plan, &state, &p, e, 3, 0, 0);
	CHECK(plan.nr == 1 && step[0].hot == 1 && step[0].cold == 2 && step[0].pages == 6);
	CHECK_EQ(plan.end, DEMETER_PLAN_NO_GAIN);
}

static void pt_test_fill(struct test_tally *tally)
{
	struct demeter_plan_state state = { 0 };
	struct demeter_plan_step step[4];
	struct demeter_plan plan = { .step = step, .capacity = 4 };
	struct demeter_rank_entry e[4];

	pt_entry(&e[0], 100, 0, 5);
	pt_entry(&e[1], 60, 0, 5);
	pt_entry(&e[2], 15, 0, 5);
	pt_entry(&e[3], 0, 100, 0);
	/* Free FMEM first; the rest of the second range by swapping. */
	demeter_plan_make(&plan, &state, &pt_simple, e, 4, 8, 0);
	CHECK_EQ(plan.nr, 3);
	CHECK_EQ(plan.fill_pages, 8);
	CHECK_EQ(plan.swap_pages, 2);
	CHECK(step[1].kind == DEMETER_PLAN_FILL && step[1].hot == 1 && step[1].pages == 3);
	CHECK(step[2].kind == DEMETER_PLAN_SWAP && step[2].hot == 1 && step[2].cold == 3);
	CHECK_EQ(plan.end, DEMETER_PLAN_NO_GAIN);
	/* Room for all that pay, 15 ns are not more than 15. */
	demeter_plan_make(&plan, &state, &pt_simple, e, 4, 1000, 0);
	CHECK(plan.fill_pages == 10 && plan.swap_pages == 0);
	plan.capacity = 1;
	demeter_plan_make(&plan, &state, &pt_simple, e, 4, 8, 0);
	CHECK(plan.nr == 1 && plan.end == DEMETER_PLAN_FULL);
	plan.capacity = 0;
	plan.step = NULL;
	demeter_plan_make(&plan, &state, &pt_simple, e, 4, 8, 0);
	CHECK(plan.nr == 0 && plan.end == DEMETER_PLAN_FULL);
}

/* Pages hidden from the planner do not make the rest look hotter. */
static void pt_test_hidden(struct test_tally *tally)
{
	struct demeter_plan_state state = { 0 };
	struct demeter_plan_step step[4];
	struct demeter_plan plan = { .step = step, .capacity = 4 };
	struct demeter_rank_entry e[2];

	pt_entry(&e[0], 10, 95, 5);
	pt_entry(&e[1], 4, 7, 0);
	demeter_rank(e, 2);
	CHECK_EQ(e[0].resident, 100);
	e[0].pages[DEMETER_FMEM] = 0;
	demeter_plan_make(&plan, &state, &pt_simple, e, 2, 0, 0);
	CHECK(plan.nr == 0 && plan.end == DEMETER_PLAN_NO_GAIN);
}

static void pt_test_tokens(struct test_tally *tally)
{
	struct demeter_plan_params p = pt_simple;
	struct demeter_plan_state state = { 0 };
	struct demeter_plan_step step[4];
	struct demeter_plan plan = { .step = step, .capacity = 4 };
	struct demeter_rank_entry e[2];
	u64 now = 5000000000ULL, total = 0;
	u32 i;

	pt_entry(&e[0], 1000, 0, 1000);
	pt_entry(&e[1], 0, 1000, 0);
	p.rate_pages_per_s = 100;
	p.burst_pages = 50;
	demeter_plan_make(&plan, &state, &p, e, 2, 0, now);
	CHECK_EQ(plan.swap_pages, 25); /* two tokens a pair */
	CHECK_EQ(plan.end, DEMETER_PLAN_NO_TOKENS);
	demeter_plan_make(&plan, &state, &p, e, 2, 0, now += 100000000);
	CHECK_EQ(plan.swap_pages, 5);
	demeter_plan_make(&plan, &state, &p, e, 2, 3, now += 100000000);
	CHECK_EQ(plan.fill_pages, 3);
	CHECK_EQ(plan.swap_pages, 3);
	demeter_plan_make(&plan, &state, &p, e, 2, 0, now - 1000000000);
	CHECK_EQ(plan.swap_pages, 0); /* a clock that jumps back earns nothing */
	demeter_plan_make(&plan, &state, &p, e, 2, 0, now += 1000000000000000ULL);
	CHECK_EQ(plan.swap_pages, 25);
	/* A slow rate keeps its fractions: 2 pages/s in steps of 0.3 s. */
	p.rate_pages_per_s = 2;
	for (i = 0; i < 100; i++) {
		demeter_plan_make(&plan, &state, &p, e, 2, 0, now += 300000000);
		total += plan.swap_pages;
	}
	CHECK(total >= 29 && total <= 30);
	/* No depth given: what a second brings. */
	memset(&state, 0, sizeof(state));
	p.burst_pages = 0;
	p.rate_pages_per_s = 40;
	demeter_plan_make(&plan, &state, &p, e, 2, 0, now);
	CHECK_EQ(plan.swap_pages, 20);
}

static u64 pt_pick(u64 *seed)
{
	/* Half plausible, half absurd. */
	return test_random(seed) & 1 ? test_nasty(seed) : test_random(seed) % 100000;
}

/* Whatever comes in, the plan moves only what is there. */
static void pt_test_nasty(struct test_tally *tally)
{
	struct demeter_rank_entry *e = test_alloc(PT_ENTRIES * sizeof(*e));
	struct demeter_plan_step *step = test_alloc(PT_STEPS * sizeof(*step));
	struct demeter_plan_state state = { 0 };
	u64 seed = 23;
	u32 round, i;

	for (round = 0; round < TEST_ROUNDS(20000); round++) {
		struct demeter_plan plan = { .step = step };
		struct demeter_plan_params p;
		u32 nr = (u32)(test_random(&seed) % PT_ENTRIES);
		u64 free_pages = pt_pick(&seed), fill = 0, swap = 0, before;

		plan.capacity = (u32)(test_random(&seed) % PT_STEPS);
		memset(&p, 0, sizeof(p));
		p.sample_period = pt_pick(&seed);
		p.epoch_ns = pt_pick(&seed);
		p.latency_gap_ps = pt_pick(&seed);
		p.horizon_ns = pt_pick(&seed);
		p.swap_cost_ns = pt_pick(&seed);
		p.move_cost_ns = pt_pick(&seed);
		p.hysteresis_permille = (u32)pt_pick(&seed);
		p.significance = (u32)pt_pick(&seed) % 5;
		p.rate_pages_per_s = pt_pick(&seed);
		p.burst_pages = pt_pick(&seed);
		for (i = 0; i < nr; i++) {
			memset(&e[i], 0, sizeof(e[i]));
			e[i].start = pt_pick(&seed);
			e[i].end = pt_pick(&seed);
			e[i].rate = pt_pick(&seed);
			e[i].age_epochs = (u32)pt_pick(&seed);
			e[i].space = i;
			e[i].pages[DEMETER_FMEM] = pt_pick(&seed);
			e[i].pages[DEMETER_SMEM] = pt_pick(&seed);
		}
		if (round & 1) /* unranked input is allowed, too */
			demeter_rank(e, nr);
		demeter_plan_make(&plan, &state, &p, e, nr, free_pages, pt_pick(&seed));
		before = state.tokens_pages;
		CHECK(plan.nr <= plan.capacity);
		for (i = 0; i < plan.nr; i++) {
			struct demeter_plan_step *s = &step[i];

			CHECK(s->pages > 0 && s->hot < nr && s->cold < nr);
			CHECK(s->pages <= e[s->hot].pages[DEMETER_SMEM]);
			e[s->hot].pages[DEMETER_SMEM] -= s->pages;
			if (s->kind == DEMETER_PLAN_FILL) {
				fill = demeter_add_sat(fill, s->pages);
				CHECK(s->pages <= free_pages);
				free_pages -= s->pages;
				continue;
			}
			swap = demeter_add_sat(swap, s->pages);
			CHECK(s->hot < s->cold);
			CHECK(s->pages <= e[s->cold].pages[DEMETER_FMEM]);
			e[s->cold].pages[DEMETER_FMEM] -= s->pages;
		}
		CHECK_EQ(plan.fill_pages, fill);
		CHECK_EQ(plan.swap_pages, swap);
		if (p.rate_pages_per_s)
			CHECK(before <= demeter_max(p.burst_pages, p.rate_pages_per_s));
	}
	test_free(e);
	test_free(step);
}

/* Even access: no placement is better, so nothing may move. */
static void pt_test_uniform(struct test_tally *tally)
{
	u32 per_epoch, epoch;

	for (per_epoch = 20; per_epoch <= 20000; per_epoch *= 10) {
		struct machine *m = machine_new(448, 96, per_epoch);
		u32 epochs = TEST_ROUNDS(per_epoch < 20000 ? 5000 : 1000);
		u64 moved = 0;

		for (epoch = 0; epoch < epochs; epoch++) {
			machine_spray(m, per_epoch, 0, m->granules);
			moved += machine_epoch(m, 0);
			CHECK(m->plan.end == DEMETER_PLAN_NO_GAIN ||
			      m->plan.end == DEMETER_PLAN_DONE);
		}
		CHECK_EQ(moved, 0);
		test_free(m);
		test_yield();
	}
}

/* The same with many ranges at fixed bounds: the extremes of noise meet. */
static void pt_test_noise(struct test_tally *tally)
{
	u32 nr = 200, per_range, epoch, i, n;
	struct demeter_rank_entry *e = test_alloc(nr * sizeof(*e));
	struct demeter_plan_step *step = test_alloc(PT_STEPS * sizeof(*step));
	u64 *rate = test_alloc(nr * sizeof(*rate));
	struct demeter_plan plan = { .step = step, .capacity = PT_STEPS };
	struct demeter_plan_params params = machine_params;
	struct demeter_plan_state state = { 0 };
	u64 seed = 77, with = 0, without = 0;

	for (per_range = 1; per_range <= 100; per_range *= 10) {
		memset(rate, 0, nr * sizeof(*rate));
		for (epoch = 0; epoch < TEST_ROUNDS(1000); epoch++) {
			for (i = 0; i < nr; i++)
				rate[i] /= 2;
			for (n = 0; n < nr * per_range; n++)
				rate[test_random(&seed) % nr] += 1 << DEMETER_RATE_SHIFT;
			for (i = 0; i < nr; i++) {
				pt_entry(&e[i], 0, i % 5 ? 0 : 512, i % 5 ? 512 : 0);
				e[i].rate = rate[i];
				e[i].start = i;
			}
			demeter_rank(e, nr);
			params.significance = 2;
			demeter_plan_make(&plan, &state, &params, e, nr, 0, 0);
			with += plan.swap_pages;
			params.significance = 0;
			demeter_plan_make(&plan, &state, &params, e, nr, 0, 0);
			without += plan.swap_pages;
		}
		test_yield();
	}
	CHECK_EQ(with, 0);
	CHECK(without > 0); /* or the test tests nothing */
	test_free(e);
	test_free(step);
	test_free(rate);
}

/*
 * The paper's GUPS: 1/14 of the footprint, at its end, takes 90 % of accesses
 * and was touched last, so it starts in SMEM.
 */
static void pt_test_hotset(struct test_tally *tally)
{
	u32 per_epoch, epoch, found;

	for (per_epoch = 200; per_epoch <= 20000; per_epoch *= 10) {
		struct machine *m = machine_new(448, 96, per_epoch);
		u64 settling = 0, settled = 0, moved;

		found = 0;
		for (epoch = 1; epoch <= 300; epoch++) {
			machine_spray(m, per_epoch * 9 / 10, 416, 32);
			machine_spray(m, per_epoch / 10, 0, 448);
			moved = machine_epoch(m, 0);
			if (!found && machine_fmem(m, 416, 32) >= 31 * MACHINE_PAGES)
				found = epoch;
			if (epoch <= 100)
				settling += moved;
			else
				settled += moved;
			if (epoch == 100)
				machine_forget(m);
		}
		CHECK(found && found <= 60);
		CHECK_EQ(machine_fmem(m, 0, 448), 96 * MACHINE_PAGES);
		CHECK(settled <= 2 * MACHINE_PAGES);
		CHECK(m->fmem_samples * 100 >= m->samples * 89);
		test_print("# hotset, %u samples: in FMEM after %u epochs\n", per_epoch, found);
		test_print("# moved %llu, then %llu pages\n", (test_ull)settling,
			   (test_ull)settled);
		test_free(m);
		test_yield();
	}
}

/* The hot set moves: the plan follows, again and again, and ends in between. */
static void pt_test_phases(struct test_tally *tally)
{
	struct machine *m = machine_new(448, 96, 99);
	u32 phase, epoch;
	u64 late = 0;

	for (phase = 0; phase < 6; phase++) {
		u32 hot = phase * 397 % 416;

		for (epoch = 0; epoch < 80; epoch++) {
			u64 moved;

			machine_spray(m, 900, hot, 32);
			machine_spray(m, 100, 0, 448);
			moved = machine_epoch(m, 0);
			if (epoch >= 60)
				late += moved;
		}
		CHECK(machine_fmem(m, hot, 32) >= 31 * MACHINE_PAGES);
		CHECK_EQ(machine_fmem(m, 0, 448), 96 * MACHINE_PAGES);
	}
	CHECK(late <= 6 * MACHINE_PAGES);
	test_print("# phases: %llu pages moved in the late parts, at most %u ranges\n",
		   (test_ull)late, m->ranges.nr);
	test_free(m);
}

/* Skewed access without an edge: most of what an oracle gets, without churn. */
static void pt_test_skew(struct test_tally *tally)
{
	struct machine *m = machine_new(448, 96, 5);
	u64 moved = 0, late = 0;
	u32 epoch, i;

	for (epoch = 0; epoch < 300; epoch++) {
		for (i = 0; i < 2000; i++) {
			/* Triangular: density falls evenly from granule 447 to 0. */
			u32 a = (u32)(test_random(&m->seed) % 448);
			u32 b = (u32)(test_random(&m->seed) % 448);

			machine_sample(m, a > b ? a : b);
		}
		if (epoch == 150) {
			late = moved;
			machine_forget(m);
		}
		moved += machine_epoch(m, 0);
	}
	late = moved - late;
	/* The best 96 of 448 granules take 38 % here, even placement 21 %. */
	CHECK(m->fmem_samples * 100 >= m->samples * 33);
	/* No more than the whole of FMEM each 100 epochs once settled. */
	CHECK(late <= 96 * MACHINE_PAGES * 3 / 2);
	test_print("# skew: FMEM takes %llu %%, %llu pages moved, %llu in the second half\n",
		   (test_ull)(m->fmem_samples * 100 / m->samples), (test_ull)moved, (test_ull)late);
	test_free(m);
}

/* Between sockets hot pages gain less than the gap, and cold ones lose more than it. */
static void pt_test_remote(struct test_tally *tally)
{
	static const struct {
		u64 hot, cold, remote_ps;
		bool pays;
	} pair[] = {
		{ 40, 1, 0, true },	  { 40, 0, 600, true }, { 40, 1, 600, false },
		{ 100, 4, 600, true },	  { 100, 16, 0, true }, { 100, 16, 600, false },
		{ 4000, 0, 1000, false }, /* what is remote is no faster than SMEM */
		{ 4000, 0, 5000, false },
	};
	struct demeter_plan_params params = pt_simple;
	struct demeter_plan_state state = { 0 };
	struct demeter_plan_step step[4];
	struct demeter_plan plan = { .step = step, .capacity = 4 };
	struct demeter_placement placement;
	struct demeter_rank_entry e[2];
	u32 i;

	for (i = 0; i < ARRAY_SIZE(pair); i++) {
		params.remote_ps = pair[i].remote_ps;
		pt_entry(&e[0], pair[i].hot, 0, 5);
		pt_entry(&e[1], pair[i].cold, 7, 0);
		demeter_plan_make(&plan, &state, &params, e, 2, 0, 0);
		CHECK_EQ(plan.swap_pages, pair[i].pays ? 5 : 0);
		if (!pair[i].pays)
			continue;
		demeter_placement_init(&placement, &step[0], e);
		CHECK_EQ(placement.remote_ps, pair[i].remote_ps);
		/* Into free FMEM nothing is lost. */
		demeter_plan_make(&plan, &state, &params, e, 2, 100, 0);
		CHECK_EQ(plan.fill_pages, 5);
	}
}

static const struct test_case plan_tests[] = {
	{ "plan: a swap must gain more than its cost", pt_test_bar },
	{ "plan: young ranges are believed for a short time", pt_test_young },
	{ "plan: free FMEM first", pt_test_fill },
	{ "plan: hidden pages", pt_test_hidden },
	{ "plan: token bucket", pt_test_tokens },
	{ "plan: between sockets hot pages gain less, cold ones lose more", pt_test_remote },
	{ "plan: absurd input moves only what is there", pt_test_nasty },
	{ "plan: even access moves nothing", pt_test_uniform },
	{ "plan: noise over many ranges moves nothing", pt_test_noise },
	{ "plan: a hot set is moved once", pt_test_hotset },
	{ "plan: a moving hot set is followed", pt_test_phases },
	{ "plan: skewed access without churn", pt_test_skew },
};
