// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Resident: sums, moves and splits agree with a page-by-page model. */
#include <demeter/resident.h>

#include "harness.h"

#define RES_LEAVES  8U
#define RES_CELLS   (RES_LEAVES * DEMETER_LEAF_CELLS)
#define RES_SHIFT   16U
#define RES_BASE    BIT_ULL(40)
#define RES_ENTRIES 16U

struct res_world {
	struct demeter_resident res;
	struct demeter_leaf *table[RES_LEAVES];
	struct demeter_leaf leaf[RES_LEAVES];
	u32 leaves;
	struct demeter_cells walk;
	u16 model[RES_CELLS][DEMETER_TIERS];
};

static struct res_world *res_new(void)
{
	struct res_world *w = test_alloc(sizeof(*w));

	w->res.leaf = w->table;
	w->res.capacity = RES_LEAVES;
	w->res.cell_shift = RES_SHIFT;
	return w;
}

static u64 res_address(u32 cell)
{
	return RES_BASE + ((u64)cell << RES_SHIFT);
}

/* Walk cells [from, to) of one leaf of the model. */
static int res_walk(struct res_world *w, u32 from, u32 to)
{
	u32 i;
	int ret;

	memset(&w->walk, 0, sizeof(w->walk));
	for (i = from; i < to; i++)
		memcpy(w->walk.pages[i % DEMETER_LEAF_CELLS], w->model[i], sizeof(w->model[i]));
	ret = demeter_resident_set(&w->res, res_address(from), res_address(to), &w->walk,
				   w->leaves < RES_LEAVES ? &w->leaf[w->leaves] : NULL);
	if (ret == 1)
		w->leaves++;
	return ret;
}

static u64 res_model_sum(const struct res_world *w, u32 from, u32 to, u32 tier)
{
	u64 sum = 0;

	for (; from < to; from++)
		sum += w->model[from][tier];
	return sum;
}

/* The first run of cells at or above @from. */
static void res_check_next(struct test_tally *tally, const struct res_world *w, u32 from)
{
	u32 first = from, last;
	u64 stop;

	while (first < RES_CELLS && !w->model[first][DEMETER_SMEM])
		first++;
	last = first;
	while (last < RES_CELLS && w->model[last][DEMETER_SMEM] &&
	       last / DEMETER_LEAF_CELLS == first / DEMETER_LEAF_CELLS)
		last++;
	CHECK_EQ(demeter_resident_next(&w->res, res_address(from), res_address(RES_CELLS),
				       DEMETER_SMEM, &stop),
		 res_address(first));
	CHECK_EQ(stop, first == RES_CELLS ? res_address(RES_CELLS) : res_address(last));
}

/* The whole, cut at random places. */
static void res_check(struct test_tally *tally, const struct res_world *w, u64 *seed)
{
	struct demeter_rank_entry e[RES_ENTRIES] = { 0 };
	u32 bound[RES_ENTRIES + 1], nr = 0, i, tier;

	for (bound[0] = 0; nr < RES_ENTRIES && bound[nr] < RES_CELLS; nr++) {
		u32 step = 1 + (u32)(test_random(seed) % (RES_CELLS / 6));

		bound[nr + 1] = bound[nr] + step < RES_CELLS ? bound[nr] + step : RES_CELLS;
		e[nr].start = res_address(bound[nr]);
		e[nr].end = res_address(bound[nr + 1]);
		e[nr].pages[0] = ~0ULL;
	}
	demeter_resident_sum(&w->res, e, nr);
	for (i = 0; i < nr; i++)
		for (tier = 0; tier < DEMETER_TIERS; tier++)
			CHECK_EQ(e[i].pages[tier], res_model_sum(w, bound[i], bound[i + 1], tier));
}

static void res_test_random(struct test_tally *tally)
{
	struct res_world *w = res_new();
	u64 seed = 3;
	u32 round, i;

	if (!w) {
		CHECK(!"memory");
		return;
	}
	for (round = 0; round < TEST_ROUNDS(2000); round++) {
		u32 from = (u32)(test_random(&seed) % RES_CELLS), to;
		u64 pages = test_random(&seed) % 200, booked, left;
		enum demeter_tier tier = test_random(&seed) % 2 ? DEMETER_FMEM : DEMETER_SMEM;

		/* What a walk of a part of one leaf finds is believed. */
		to = from + 1 + (u32)(test_random(&seed) % 100);
		if (to > (from | (DEMETER_LEAF_CELLS - 1)) + 1)
			to = (from | (DEMETER_LEAF_CELLS - 1)) + 1;
		for (i = from; i < to; i++) {
			w->model[i][0] = (u16)(test_random(&seed) % 9);
			w->model[i][1] = (u16)(test_random(&seed) % 9);
		}
		CHECK(res_walk(w, from, to) >= 0);

		/* A move is arithmetic, lowest cells first. */
		to = from + 1 + (u32)(test_random(&seed) % 2000);
		if (to > RES_CELLS)
			to = RES_CELLS;
		booked = demeter_resident_move(&w->res, res_address(from), res_address(to), tier,
					       pages);
		for (left = pages, i = from; i < to; i++) {
			u16 can = w->model[i][tier] < left ? w->model[i][tier] : (u16)left;

			w->model[i][tier] -= can;
			w->model[i][!tier] += can;
			left -= can;
		}
		CHECK_EQ(booked, pages - left);
		res_check_next(tally, w, from);
		if (round % 50 == 0) {
			res_check(tally, w, &seed);
			test_yield();
		}
	}
	CHECK_EQ(w->leaves, RES_LEAVES);
	test_free(w);
}

static void res_test_edges(struct test_tally *tally)
{
	struct demeter_rank_entry e[3] = { 0 };
	struct res_world *w = res_new();

	if (!w) {
		CHECK(!"memory");
		return;
	}
	CHECK_EQ(demeter_resident_cell_shift(BIT_ULL(12)), 12);
	CHECK_EQ(demeter_resident_cell_shift(BIT_ULL(21)), 21);
	CHECK_EQ(demeter_resident_cell_shift(BIT_ULL(40)), DEMETER_MAX_CELL_SHIFT);

	/* Nothing found needs no leaf; something does. */
	CHECK_EQ(res_walk(w, 3, 10), 0);
	CHECK_EQ(w->res.nr, 0);
	w->model[5][DEMETER_SMEM] = 7;
	memcpy(w->walk.pages[5], w->model[5], sizeof(w->model[5]));
	CHECK_EQ(demeter_resident_set(&w->res, res_address(3), res_address(10), &w->walk, NULL),
		 -ENOMEM);
	w->res.capacity = 0;
	CHECK_EQ(res_walk(w, 3, 10), -ENOSPC);
	w->res.capacity = RES_LEAVES;
	CHECK_EQ(res_walk(w, 3, 10), 1);
	CHECK_EQ(res_walk(w, 3, 3), -EINVAL);
	CHECK_EQ(demeter_resident_set(&w->res, res_address(0), res_address(513), &w->walk, NULL),
		 -EINVAL);
	CHECK_EQ(demeter_resident_set(&w->res, res_address(0) + 1, res_address(5), &w->walk, NULL),
		 -EINVAL);

	/* Ranges smaller than a cell share it by size, and lose nothing. */
	e[0].start = res_address(5);
	e[0].end = res_address(5) + 5 * DEMETER_PAGE_BYTES;
	e[1].start = e[0].end;
	e[1].end = res_address(5) + 9 * DEMETER_PAGE_BYTES;
	e[2].start = e[1].end;
	e[2].end = res_address(6);
	demeter_resident_sum(&w->res, e, 3);
	CHECK_EQ(e[0].pages[DEMETER_SMEM] + e[1].pages[DEMETER_SMEM] + e[2].pages[DEMETER_SMEM], 7);
	CHECK_EQ(e[0].pages[DEMETER_SMEM], 2);

	/* No more is booked than is known to be there. */
	CHECK_EQ(demeter_resident_move(&w->res, 0, ~0ULL, DEMETER_FMEM, 5), 0);
	CHECK_EQ(demeter_resident_move(&w->res, 0, ~0ULL, DEMETER_SMEM, 100), 7);
	CHECK_EQ(demeter_resident_move(&w->res, 0, res_address(5), DEMETER_FMEM, 100), 0);
	e[0].end = res_address(6);
	demeter_resident_sum(&w->res, e, 1);
	CHECK_EQ(e[0].pages[DEMETER_FMEM], 7);
	CHECK_EQ(e[0].pages[DEMETER_SMEM], 0);
	test_free(w);
}

/* Two counts of one address space, a pair of nodes each: pages change from one to the other. */
static void res_test_between(struct test_tally *tally)
{
	struct res_world *near = res_new(), *far = res_new();
	struct demeter_rank_entry e = { .start = res_address(0), .end = res_address(600) };
	struct demeter_leaf *none = NULL, *spare = test_alloc(sizeof(*spare)), *used = spare;
	u32 capacity, i;

	for (i = 0; i < 8; i++)
		near->model[i][DEMETER_SMEM] = 16;
	near->model[512][DEMETER_SMEM] = 16;
	CHECK_EQ(res_walk(near, 0, 512), 1);
	CHECK_EQ(res_walk(near, 512, 1024), 1);
	far->model[3][DEMETER_FMEM] = 5;
	CHECK_EQ(res_walk(far, 0, 512), 1);

	CHECK_EQ(demeter_resident_move_between(&near->res, &far->res, res_address(2), ~0ULL,
					       DEMETER_SMEM, 20, &none),
		 20);
	demeter_resident_sum(&near->res, &e, 1);
	CHECK_EQ(e.pages[DEMETER_SMEM], 9 * 16 - 20);
	CHECK_EQ(e.pages[DEMETER_FMEM], 0);
	demeter_resident_sum(&far->res, &e, 1);
	CHECK_EQ(e.pages[DEMETER_FMEM], 25);
	CHECK_EQ(far->res.leaf[0]->cells.pages[2][DEMETER_FMEM], 16);
	CHECK_EQ(far->res.leaf[0]->cells.pages[3][DEMETER_FMEM], 9);
	demeter_resident_add(&near->res, &e, 1);
	CHECK_EQ(e.pages[DEMETER_FMEM] + e.pages[DEMETER_SMEM], 9 * 16 + 5);

	/* Back, as far as they are known; and where the other has no cells they only leave. */
	CHECK_EQ(demeter_resident_move_between(&far->res, &near->res, 0, ~0ULL, DEMETER_FMEM, 99,
					       &spare),
		 25);
	CHECK(spare == used);
	CHECK_EQ(demeter_resident_move_between(&near->res, &far->res, res_address(512), ~0ULL,
					       DEMETER_SMEM, 10, &none),
		 0);
	demeter_resident_sum(&near->res, &e, 1);
	CHECK_EQ(e.pages[DEMETER_SMEM], 9 * 16 + 5 - 10);
	CHECK_EQ(near->res.leaf[0]->sum[DEMETER_SMEM], 8 * 16 + 5);
	/* With a leaf for them they are known to be there, if the array has room. */
	capacity = far->res.capacity;
	far->res.capacity = far->res.nr;
	CHECK_EQ(demeter_resident_move_between(&near->res, &far->res, res_address(512), ~0ULL,
					       DEMETER_SMEM, 1, &spare),
		 0);
	CHECK(spare == used);
	far->res.capacity = capacity;
	CHECK_EQ(demeter_resident_move_between(&near->res, &far->res, res_address(512), ~0ULL,
					       DEMETER_SMEM, 3, &spare),
		 3);
	CHECK(!spare);
	CHECK_EQ(far->res.nr, 2);
	CHECK_EQ(far->res.leaf[1]->start, res_address(512));
	CHECK_EQ(far->res.leaf[1]->cells.pages[0][DEMETER_FMEM], 3);
	CHECK_EQ(far->res.leaf[1]->sum[DEMETER_FMEM], 3);
	/* One count for both tiers: as demeter_resident_move(). */
	CHECK_EQ(demeter_resident_move_between(&near->res, &near->res, 0, ~0ULL, DEMETER_SMEM, 7,
					       &none),
		 7);
	demeter_resident_sum(&near->res, &e, 1);
	CHECK_EQ(e.pages[DEMETER_FMEM], 7);
	test_free(used);
	test_free(far);
	test_free(near);
}

static const struct test_case resident_tests[] = {
	{ "resident: walks, moves and sums agree with a model", res_test_random },
	{ "resident: edges and senseless input", res_test_edges },
	{ "resident: moves between two pairs of nodes", res_test_between },
};
