// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Groups: floors are held, caps kept, and without either it is one ranking. */
#include <demeter/groups.h>
#include <demeter/math.h>

#include "harness.h"

#define UT_ENTRIES 40U
#define UT_STEPS   64U
#define UT_GROUPS  5U

/* A plan over few entries, with the economics of plan_test.c: bars of 15 ns a page. */
struct ut {
	struct demeter_rank_entry e[UT_ENTRIES];
	struct demeter_plan_step step[UT_STEPS];
	struct demeter_group group[UT_GROUPS];
	struct demeter_plan_params params;
	struct demeter_plan_state state;
	struct demeter_plan plan;
	struct demeter_groups gs;
	u64 now_ns;
	u32 nr;
};

static struct ut *ut_new(u32 groups)
{
	struct ut *u = test_alloc(sizeof(*u));
	u32 i;

	u->params = pt_simple;
	u->plan.step = u->step;
	u->plan.capacity = UT_STEPS;
	u->gs.group = u->group;
	u->gs.nr = groups;
	for (i = 0; i < groups; i++)
		u->group[i].cap_pages = DEMETER_NO_CAP;
	return u;
}

static void ut_add(struct ut *u, u32 group, u64 samples, u64 fmem, u64 smem)
{
	struct demeter_rank_entry *e = &u->e[u->nr];

	pt_entry(e, samples, fmem, smem);
	e->start = (u64)u->nr << 21;
	e->end = e->start + (1ULL << 21);
	e->group = group;
	u->nr++;
}

static u64 ut_held(const struct ut *u, u32 group, enum demeter_tier tier)
{
	u64 pages = 0;
	u32 i;

	for (i = 0; i < u->nr; i++)
		if (u->e[i].group == group)
			pages = demeter_add_sat(pages, u->e[i].pages[tier]);
	return pages;
}

static void ut_plan(struct ut *u, u64 free_pages)
{
	u32 i;

	demeter_rank(u->e, u->nr);
	for (i = 0; i < u->gs.nr; i++)
		u->group[i].fmem_pages = ut_held(u, i, DEMETER_FMEM);
	demeter_plan_make_grouped(&u->plan, &u->state, &u->params, u->e, u->nr, &u->gs, free_pages,
				  u->now_ns += u->params.epoch_ns);
}

/* Carry it out. Returns pages relocated. */
static u64 ut_apply(struct ut *u)
{
	u32 i;

	for (i = 0; i < u->plan.nr; i++) {
		const struct demeter_plan_step *s = &u->step[i];

		if (s->kind != DEMETER_PLAN_DEMOTE) {
			u->e[s->hot].pages[DEMETER_SMEM] -= s->pages;
			u->e[s->hot].pages[DEMETER_FMEM] += s->pages;
		}
		if (s->kind != DEMETER_PLAN_FILL) {
			u->e[s->cold].pages[DEMETER_FMEM] -= s->pages;
			u->e[s->cold].pages[DEMETER_SMEM] += s->pages;
		}
	}
	return u->plan.fill_pages + 2 * u->plan.swap_pages + u->plan.demote_pages;
}

/* Until nothing moves any more. Returns epochs, or 0 when it never ends. */
static u32 ut_settle(struct ut *u, u64 *free_pages)
{
	u32 epochs;

	for (epochs = 1; epochs < 20; epochs++) {
		ut_plan(u, *free_pages);
		if (!ut_apply(u))
			return epochs;
		*free_pages += u->plan.demote_pages;
		*free_pages -= u->plan.fill_pages;
	}
	return 0;
}

static void ut_test_floor(struct test_tally *tally)
{
	struct ut *u = ut_new(3);
	u64 free_pages = 0;

	/* 100 pages of FMEM; the second group is hotter and wants all of them. */
	ut_add(u, 1, 50, 60, 40);
	ut_add(u, 2, 500, 40, 160);
	u->group[1].floor_pages = 30;
	CHECK(ut_settle(u, &free_pages));
	CHECK_EQ(ut_held(u, 1, DEMETER_FMEM), 30);
	CHECK_EQ(ut_held(u, 2, DEMETER_FMEM), 70);
	CHECK_EQ(u->group[1].due_pages, 30);
	CHECK_EQ(u->group[1].worth_pages, 100);
	/* It is taken back from hotter pages, and no more than that. */
	u->group[1].floor_pages = 45;
	ut_plan(u, 0);
	CHECK(u->plan.nr == 1 && u->plan.swap_pages == 15);
	CHECK_EQ(u->step[0].gain_ps, 0); /* it costs somebody more than it gains */
	CHECK(ut_apply(u) && ut_settle(u, &free_pages));
	CHECK_EQ(ut_held(u, 1, DEMETER_FMEM), 45);
	/* Without a floor the hotter one has it all. */
	u->group[1].floor_pages = 0;
	CHECK(ut_settle(u, &free_pages));
	CHECK_EQ(ut_held(u, 1, DEMETER_FMEM), 0);
	test_free(u);
}

/* What is idle has no claim; half idle, half a claim. */
static void ut_test_worth(struct test_tally *tally)
{
	struct ut *u = ut_new(3);
	u64 free_pages = 0;

	ut_add(u, 1, 15, 90, 0); /* 15 ns are not more than the cost of a move */
	ut_add(u, 1, 16, 10, 0);
	ut_add(u, 2, 500, 0, 200);
	u->group[1].floor_pages = 50;
	CHECK(ut_settle(u, &free_pages));
	CHECK_EQ(u->group[1].worth_pages, 10);
	CHECK_EQ(ut_held(u, 1, DEMETER_FMEM), 10);
	CHECK_EQ(ut_held(u, 2, DEMETER_FMEM), 90);
	test_free(u);
}

/* A floor is the same, however far the memory is that would fill it. */
static void ut_test_far(struct test_tally *tally)
{
	struct ut *u = ut_new(3);
	u64 near_due;

	ut_add(u, 1, 60, 50, 0);
	ut_add(u, 2, 500, 0, 200);
	u->group[1].floor_pages = 50;
	ut_plan(u, 0);
	near_due = u->group[1].due_pages;
	CHECK_EQ(near_due, 50);
	u->params.remote_ps = u->params.latency_gap_ps - u->params.latency_gap_ps / 5;
	ut_plan(u, 0);
	CHECK_EQ(u->group[1].due_pages, near_due);
	CHECK(!ut_apply(u));
	test_free(u);
}

static void ut_test_cap(struct test_tally *tally)
{
	struct ut *u = ut_new(3);
	u64 free_pages = 0;

	ut_add(u, 1, 50, 60, 40);
	ut_add(u, 2, 500, 40, 160);
	u->group[2].cap_pages = 70;
	CHECK(ut_settle(u, &free_pages));
	CHECK_EQ(ut_held(u, 2, DEMETER_FMEM), 70);
	CHECK_EQ(ut_held(u, 1, DEMETER_FMEM), 30);
	/* Free FMEM goes to others, however hot it is. */
	free_pages = 100;
	CHECK(ut_settle(u, &free_pages));
	CHECK_EQ(ut_held(u, 2, DEMETER_FMEM), 70);
	CHECK_EQ(ut_held(u, 1, DEMETER_FMEM), 100);
	CHECK_EQ(free_pages, 30);
	/* Lowered: what nobody wants any more is demoted. */
	u->group[2].cap_pages = 50;
	ut_plan(u, free_pages);
	CHECK(u->plan.nr == 1 && u->step[0].kind == DEMETER_PLAN_DEMOTE);
	CHECK(u->step[0].hot == u->step[0].cold && u->plan.demote_pages == 20);
	CHECK(ut_apply(u) && ut_settle(u, &free_pages));
	CHECK_EQ(ut_held(u, 2, DEMETER_FMEM), 50);
	test_free(u);
}

/* Above its cap: by exchange where others want theirs promoted, the coldest first. */
static void ut_test_excess(struct test_tally *tally)
{
	struct ut *u = ut_new(3);

	ut_add(u, 1, 20, 0, 30);
	ut_add(u, 2, 500, 50, 0);
	ut_add(u, 2, 400, 50, 0);
	u->group[2].cap_pages = 60;
	ut_plan(u, 0);
	CHECK_EQ(u->plan.nr, 2);
	CHECK(u->step[0].kind == DEMETER_PLAN_SWAP && u->step[0].pages == 30);
	CHECK_EQ(u->e[u->step[0].cold].rate, (2 * 400 * 50) << DEMETER_RATE_SHIFT);
	CHECK(u->step[1].kind == DEMETER_PLAN_DEMOTE && u->step[1].pages == 10);
	/* One token a demoted page, two a pair. */
	u->params.rate_pages_per_s = 7;
	memset(&u->state, 0, sizeof(u->state));
	ut_plan(u, 0);
	CHECK_EQ(u->plan.swap_pages, 3);
	CHECK_EQ(u->plan.end, DEMETER_PLAN_NO_TOKENS);
	u->params.rate_pages_per_s = 0;
	u->plan.capacity = 1;
	ut_plan(u, 0);
	CHECK(u->plan.nr == 1 && u->plan.end == DEMETER_PLAN_FULL);
	test_free(u);
}

/* At its cap and at its floor a group still puts its own house in order. */
static void ut_test_inside(struct test_tally *tally)
{
	struct ut *u = ut_new(3);
	u64 free_pages = 0;

	ut_add(u, 1, 100, 0, 20);
	ut_add(u, 1, 30, 20, 0);
	ut_add(u, 2, 1000, 20, 20);
	u->group[1].floor_pages = 20;
	u->group[1].cap_pages = 20;
	u->group[2].cap_pages = 20;
	CHECK(ut_settle(u, &free_pages));
	CHECK_EQ(ut_held(u, 1, DEMETER_FMEM), 20);
	CHECK(u->e[0].rate == (2 * 100 * 20) << DEMETER_RATE_SHIFT &&
	      u->e[0].pages[DEMETER_FMEM] == 20);
	test_free(u);
}

/* More promised than there is: each gets its share of what is left. */
static void ut_test_scarce(struct test_tally *tally)
{
	struct ut *u = ut_new(4);
	u64 free_pages = 0;

	ut_add(u, 1, 50, 0, 300);
	ut_add(u, 2, 100, 0, 300);
	ut_add(u, 3, 500, 90, 0);
	u->group[1].floor_pages = 200;
	u->group[2].floor_pages = 100;
	CHECK(ut_settle(u, &free_pages));
	CHECK_EQ(ut_held(u, 1, DEMETER_FMEM), 60);
	CHECK_EQ(ut_held(u, 2, DEMETER_FMEM), 30);
	test_free(u);
}

/* Limits are kept in whole units, whatever a step takes along. */
static void ut_test_units(struct test_tally *tally)
{
	struct demeter_group a = { .cap_pages = 1000, .fmem_pages = 400, .due_pages = 300 };
	struct demeter_group b = { .cap_pages = DEMETER_NO_CAP, .due_pages = 900 };
	struct demeter_groups gs = { .group = &a, .nr = 1, .unit_shift = 9 };

	CHECK_EQ(demeter_groups_room(&gs, &a), 512);
	CHECK_EQ(demeter_groups_spare(&gs, &a), 0);
	CHECK_EQ(demeter_groups_need(&gs, &b), 900);
	demeter_groups_moved(&gs, &a, NULL, 1);
	CHECK_EQ(a.fmem_pages, 912);
	CHECK_EQ(demeter_groups_room(&gs, &a), 0);
	CHECK_EQ(demeter_groups_spare(&gs, &a), 512);
	demeter_groups_moved(&gs, &b, &a, 512);
	CHECK(a.fmem_pages == 400 && b.fmem_pages == 512);
	demeter_groups_moved(&gs, NULL, &b, 513);
	CHECK_EQ(b.fmem_pages, 0);
	demeter_groups_moved(&gs, &a, &a, 5);
	CHECK_EQ(a.fmem_pages, 400);
	b.cap_pages = 100;
	CHECK_EQ(demeter_groups_need(&gs, &b), 0);
	b.fmem_pages = 101;
	CHECK_EQ(demeter_groups_excess(&b), 1);
	b.fmem_pages = DEMETER_U64_MAX;
	demeter_groups_moved(&gs, &b, &a, DEMETER_U64_MAX);
	CHECK(b.fmem_pages == DEMETER_U64_MAX && a.fmem_pages == 0);
}

/* One group without limits, or several: the plan, or the outcome, of no groups. */
static void ut_test_same(struct test_tally *tally)
{
	struct demeter_plan_step *step = test_alloc(UT_STEPS * sizeof(*step));
	u64 seed = 5;
	u32 round, i;

	for (round = 0; round < TEST_ROUNDS(2000); round++) {
		struct demeter_plan plain = { .step = step, .capacity = UT_STEPS };
		struct demeter_plan_state state = { 0 };
		struct ut *u = ut_new(1);
		u32 nr = (u32)(test_random(&seed) % UT_ENTRIES);
		u64 free_pages = round & 1 ? test_random(&seed) % 100 : 0;

		u->params.significance = (u32)(test_random(&seed) % 3);
		u->params.rate_pages_per_s = test_random(&seed) % 4 ? 0 : 100;
		for (i = 0; i < nr; i++)
			ut_add(u, 0, test_random(&seed) % 60, test_random(&seed) % 9,
			       test_random(&seed) % 9);
		ut_plan(u, free_pages);
		demeter_plan_make(&plain, &state, &u->params, u->e, nr, free_pages, u->now_ns);
		CHECK_EQ(u->plan.nr, plain.nr);
		CHECK(u->plan.nr == 0 || memcmp(u->step, step, plain.nr * sizeof(*step)) == 0);
		CHECK(u->plan.fill_pages == plain.fill_pages &&
		      u->plan.swap_pages == plain.swap_pages);
		test_free(u);
	}
	test_free(step);
}

/* Whatever comes in: only what is there moves, once, and within the limits. */
static void ut_test_nasty(struct test_tally *tally)
{
	u64 before[UT_GROUPS], seed = 99;
	u32 round, i;

	for (round = 0; round < TEST_ROUNDS(5000); round++) {
		struct ut *u = ut_new(UT_GROUPS);
		u32 nr = (u32)(test_random(&seed) % UT_ENTRIES), up[UT_GROUPS] = { 0 };
		u32 down[UT_GROUPS];
		u64 free_pages = test_random(&seed) & 1 ? 0 : test_random(&seed) % 1000;
		bool absurd = round % 5 == 0;

		u->plan.capacity = (u32)(test_random(&seed) % UT_STEPS);
		u->params.significance = (u32)(test_random(&seed) % 3);
		for (i = 0; i < nr; i++)
			ut_add(u, (u32)(test_random(&seed) % (UT_GROUPS + absurd)),
			       test_random(&seed) % 200, test_random(&seed) % 100,
			       test_random(&seed) % 100);
		for (i = 0; i < UT_GROUPS; i++) {
			struct demeter_group *g = &u->group[i];

			g->floor_pages = absurd ? test_nasty(&seed) : test_random(&seed) % 500;
			if (test_random(&seed) & 1)
				g->cap_pages =
					absurd ? test_nasty(&seed) : test_random(&seed) % 900;
			down[i] = ~0U;
		}
		ut_plan(u, free_pages);
		for (i = 0; i < UT_GROUPS; i++)
			before[i] = ut_held(u, i, DEMETER_FMEM);
		CHECK(u->plan.nr <= u->plan.capacity && u->plan.fill_pages <= free_pages);
		for (i = 0; i < u->plan.nr; i++) {
			const struct demeter_plan_step *s = &u->step[i];
			u32 hot = u->e[s->hot].group, cold = u->e[s->cold].group;

			CHECK(s->pages && s->hot < nr && s->cold < nr);
			CHECK(hot < UT_GROUPS && cold < UT_GROUPS);
			if (s->kind != DEMETER_PLAN_DEMOTE) {
				CHECK(s->pages <= u->e[s->hot].pages[DEMETER_SMEM]);
				up[hot] = demeter_max(up[hot], s->hot + 1);
			}
			if (s->kind != DEMETER_PLAN_FILL) {
				CHECK(s->pages <= u->e[s->cold].pages[DEMETER_FMEM]);
				down[cold] = demeter_min(down[cold], s->cold);
			}
		}
		ut_apply(u);
		for (i = 0; i < UT_GROUPS; i++) {
			const struct demeter_group *g = &u->group[i];
			u64 held = ut_held(u, i, DEMETER_FMEM);

			CHECK_EQ(held, g->fmem_pages);
			CHECK(up[i] <= down[i]); /* not to and fro */
			CHECK(held <= demeter_max(before[i], g->cap_pages));
			CHECK(held >= demeter_min(before[i], g->due_pages));
			CHECK(g->due_pages <= demeter_min(g->floor_pages, g->cap_pages));
		}
		test_free(u);
	}
}

/* Whatever the limits, there comes an end; and then they are kept. */
static void ut_test_settles(struct test_tally *tally)
{
	u64 seed = 1234;
	u32 round, i;

	for (round = 0; round < TEST_ROUNDS(1000); round++) {
		struct ut *u = ut_new(UT_GROUPS);
		u32 nr = 1 + (u32)(test_random(&seed) % 20);
		u64 free_pages = test_random(&seed) % 50;

		for (i = 0; i < nr; i++)
			ut_add(u, (u32)(test_random(&seed) % UT_GROUPS), test_random(&seed) % 200,
			       test_random(&seed) % 100, test_random(&seed) % 100);
		for (i = 0; i < UT_GROUPS; i++) {
			u->group[i].floor_pages = test_random(&seed) % 200;
			if (test_random(&seed) & 1)
				u->group[i].cap_pages = test_random(&seed) % 300;
		}
		CHECK(ut_settle(u, &free_pages));
		for (i = 0; i < UT_GROUPS; i++)
			CHECK(u->group[i].fmem_pages <= u->group[i].cap_pages);
		test_free(u);
	}
}

static const struct test_case groups_tests[] = {
	{ "groups: a floor is held, and taken back", ut_test_floor },
	{ "groups: only what is worth holding is guaranteed", ut_test_worth },
	{ "groups: a floor is the same along every route", ut_test_far },
	{ "groups: a cap is kept", ut_test_cap },
	{ "groups: what is above a cap is brought down", ut_test_excess },
	{ "groups: swaps inside are always allowed", ut_test_inside },
	{ "groups: floors beyond all FMEM are lowered alike", ut_test_scarce },
	{ "groups: whole units", ut_test_units },
	{ "groups: without limits one ranking", ut_test_same },
	{ "groups: absurd input, and the limits of a plan", ut_test_nasty },
	{ "groups: there is an end", ut_test_settles },
};
