// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Finer: granules are divided where accesses concentrate, and only where that pays. */
#include <demeter/finer.h>
#include <demeter/math.h>

#include "harness.h"

#define FT_GRANULES 64U
#define FT_EPOCH_NS 50000000ULL
#define FT_BYTES    BIT_ULL(DEMETER_FINER_SHIFT)
#define FT_WEIGHT   ((u32)BIT_ULL(DEMETER_RATE_SHIFT))
/* Samples that an access stands for, and where FMEM's cut is: samples a granule. */
#define FT_PERIOD   4093U

struct ft_machine {
	struct demeter_finer finer;
	struct demeter_finer_granule granule[FT_GRANULES];
	u16 index[2 * FT_GRANULES];
	struct demeter_finer_params params;
	u64 random;
};

/* Each of the granules gets @samples an epoch; what a page at the cut gets is as much. */
static struct ft_machine *ft_new(u64 seed, u32 samples)
{
	struct ft_machine *m = test_alloc(sizeof(*m));

	demeter_finer_init(&m->finer, m->granule, FT_GRANULES, m->index, 2 * FT_GRANULES);
	m->random = seed;
	m->params.cut_density = (2ULL * samples << (DEMETER_RATE_SHIFT + DEMETER_DENSITY_SHIFT)) /
				DEMETER_FINER_CELLS;
	m->params.sample_period = FT_PERIOD;
	m->params.epoch_ns = FT_EPOCH_NS;
	m->params.latency_gap_ps = 108000;
	m->params.walk_ps = 40000;
	m->params.horizon_ns = 10000000000ULL;
	m->params.swap_cost_ns = 3000;
	m->params.split_cost_ns = 100000;
	m->params.hysteresis_permille = 250;
	m->params.significance = 2;
	return m;
}

/* One of the granule's pages: of @hot pages nine times of ten; @hot 0: of all alike. */
static u64 ft_page(struct ft_machine *m, u32 granule, u32 hot)
{
	u64 pick = test_random(&m->random);
	u32 page = (u32)(pick >> 32) % DEMETER_FINER_CELLS;

	if (hot && (pick & 0xff) < 230)
		page = ((u32)(pick >> 32) % hot * 13 + granule) % DEMETER_FINER_CELLS;
	return granule * FT_BYTES + ((u64)page << DEMETER_PAGE_SHIFT) + (pick >> 16 & 0xfff);
}

/* Returns how many granules were divided. */
static u32 ft_run(struct ft_machine *m, u32 epochs, u32 granules, u32 samples, u32 hot, bool huge)
{
	struct demeter_finer_estimate estimate;
	u32 before = m->finer.divided, i, k;

	while (epochs--) {
		for (i = 0; i < granules; i++)
			for (k = 0; k < samples; k++)
				demeter_finer_sample(&m->finer, 1, ft_page(m, i, hot), FT_WEIGHT);
		demeter_finer_end_epoch(&m->finer, FT_EPOCH_NS, m->params.horizon_ns);
		for (i = 0; i < FT_GRANULES; i++) {
			struct demeter_finer_granule *g = &m->granule[i];

			if (!demeter_finer_is_due(g))
				continue;
			if (demeter_finer_estimate(&m->finer, g, &m->params, huge, &estimate))
				demeter_finer_divide(&m->finer, g);
			else
				demeter_finer_keep(&m->finer, g);
		}
	}
	return m->finer.divided - before;
}

/* Whatever the number of samples, what is accessed alike stays whole. */
static void ft_test_uniform(struct test_tally *tally)
{
	static const u32 samples[] = { 1, 3, 10, 40, 200 };
	u32 i, seed;

	for (i = 0; i < ARRAY_SIZE(samples); i++) {
		for (seed = 0; seed < 4; seed++) {
			struct ft_machine *m = ft_new(seed + 10 * i, samples[i]);

			/* Not even where it is free. */
			m->params.walk_ps = 0;
			m->params.swap_cost_ns = 0;
			m->params.split_cost_ns = 0;
			CHECK_EQ(ft_run(m, 200, 40, samples[i], 0, true), 0);
			CHECK(!m->finer.denser);
			test_free(m);
		}
	}
}

static void ft_test_concentrated(struct test_tally *tally)
{
	static const u32 hot[] = { 1, 4, 36 };
	struct demeter_rank_entry class[DEMETER_FINER_CLASSES];
	u64 all[DEMETER_FINER_WORDS], none[DEMETER_FINER_WORDS], select[DEMETER_FINER_WORDS];
	u32 i, k;

	memset(all, 0xff, sizeof(all));
	memset(none, 0, sizeof(none));
	for (i = 0; i < ARRAY_SIZE(hot); i++) {
		struct ft_machine *m = ft_new(i, 3);
		u64 pages = 0, known = 0;

		CHECK_EQ(ft_run(m, 100, 40, 3, hot[i], true), 40);
		for (k = 0; k < FT_GRANULES; k++)
			if (m->granule[k].state == DEMETER_FINER_DIVIDED)
				demeter_finer_locate(&m->granule[k], k & 1 ? all : none,
						     k & 1 ? none : all);
		ft_run(m, 10, 40, 3, hot[i], true);
		demeter_finer_classes(&m->finer, 1, class);
		for (k = 0; k < DEMETER_FINER_CLASSES; k++) {
			pages += class[k].pages[DEMETER_FMEM] + class[k].pages[DEMETER_SMEM];
			known += class[k].rate;
		}
		CHECK_EQ(pages, 40 * DEMETER_FINER_CELLS);
		/* 120 samples an epoch, twice that decayed; the classes have their order. */
		CHECK(known > 200 << DEMETER_RATE_SHIFT && known < 280 << DEMETER_RATE_SHIFT);
		demeter_rank(class, DEMETER_FINER_CLASSES);
		CHECK_EQ(class[0].part, DEMETER_FINER_PART + DEMETER_FINER_CLASSES - 1);
		/* The hottest class is hot pages, and those only. */
		CHECK_EQ(demeter_finer_select(&m->granule[1], DEMETER_FINER_CLASSES - 1,
					      DEMETER_SMEM, select),
			 0);
		k = demeter_finer_select(&m->granule[1], DEMETER_FINER_CLASSES - 1, DEMETER_FMEM,
					 select);
		CHECK(k <= hot[i] + 1 && (hot[i] > 4 || k >= hot[i]));
		test_free(m);
	}
}

/* Heat that falls off as 1 / rank within a granule. */
static void ft_test_zipf(struct test_tally *tally)
{
	struct ft_machine *m = ft_new(3, 10);
	struct demeter_finer_estimate estimate;
	u32 i;

	m->params.walk_ps = 20000;
	for (i = 0; i < 400; i++) {
		u64 pick = test_random(&m->random);
		/* 512^u - 1 has about that density. */
		u32 page = (1U << (pick % 10)) - 1;

		page += (u32)(pick >> 32) % (page + 1);
		demeter_finer_sample(&m->finer, 1, (u64)(page % 512) << DEMETER_PAGE_SHIFT,
				     FT_WEIGHT);
		if (i % 10 == 9)
			demeter_finer_end_epoch(&m->finer, FT_EPOCH_NS, m->params.horizon_ns);
	}
	CHECK(demeter_finer_estimate(&m->finer, m->granule, &m->params, true, &estimate));
	CHECK(estimate.pages > 16 && estimate.pages < 256);
	CHECK(estimate.covered > m->granule->samples / 3);
	CHECK(estimate.gain_ns > estimate.cost_ns);
	test_free(m);
}

/* Longer walks, dear exchanges, or room for all: each keeps the granule whole. */
static void ft_test_price(struct test_tally *tally)
{
	struct ft_machine *m = ft_new(1, 3);

	m->params.walk_ps = m->params.latency_gap_ps;
	CHECK_EQ(ft_run(m, 60, 40, 3, 36, true), 0);
	/* What is of base pages already has no longer walks. */
	CHECK_EQ(ft_run(m, 60, 40, 3, 36, false), 40);
	test_free(m);

	m = ft_new(1, 3);
	m->params.swap_cost_ns = 10000000;
	CHECK_EQ(ft_run(m, 60, 40, 3, 36, true), 0);
	test_free(m);

	m = ft_new(1, 3);
	m->params.cut_density = 0;
	CHECK_EQ(ft_run(m, 60, 40, 3, 36, true), 0);
	test_free(m);

	/* So hot that all of it belongs into FMEM, but for what could take its place. */
	m = ft_new(1, 3);
	m->params.cut_density /= 100;
	CHECK_EQ(ft_run(m, 60, 40, 3, 36, true), 0);
	test_free(m);
}

/* The estimate says what the chosen pages get in samples to come, not in those seen. */
static void ft_test_unbiased(struct test_tally *tally)
{
	static const u32 hot[] = { 0, 8, 36 };
	u64 expected = 0, got = 0;
	u32 i, k, round;

	for (i = 0; i < ARRAY_SIZE(hot); i++) {
		for (round = 0; round < 50; round++) {
			struct ft_machine *m = ft_new(round, 1);
			struct demeter_finer_granule *g = m->granule;
			struct demeter_finer_estimate estimate;

			/* Whatever is chosen by some samples, at a cut of no doubt. */
			m->params.significance = 0;
			m->params.cut_density /= 2;
			for (k = 0; k < 120; k++)
				demeter_finer_sample(&m->finer, 1, ft_page(m, 0, hot[i]),
						     FT_WEIGHT);
			for (k = 0; k < 120; k++)
				demeter_finer_end_epoch(&m->finer, FT_EPOCH_NS, ~0ULL);
			demeter_finer_estimate(&m->finer, g, &m->params, false, &estimate);
			for (k = 0; estimate.least && k < 120; k++) {
				u32 page = (u32)(ft_page(m, 0, hot[i]) >> DEMETER_PAGE_SHIFT);

				u32 n = (u32)g->count[0][page] + g->count[1][page];

				got += n >= estimate.least;
			}
			expected += estimate.covered;
			test_free(m);
		}
	}
	CHECK(expected > 5000);
	CHECK(got * 100 > expected * 95 && got * 100 < expected * 105);
}

/* Divided granules stay so while accesses concentrate, and come back whole for good. */
static void ft_test_no_flapping(struct test_tally *tally)
{
	struct ft_machine *m = ft_new(9, 10);
	u64 cut_density = m->params.cut_density;
	u32 first = 0, i;

	CHECK_EQ(ft_run(m, 50, 40, 10, 36, true), 40);
	/* That the others were divided lowers the cut: no reason to go back. */
	m->params.cut_density = 0;
	ft_run(m, 200, 40, 10, 36, true);
	CHECK_EQ(m->finer.divided, 40);
	for (i = 0; i < 100 && m->finer.divided; i++) {
		ft_run(m, 1, 40, 10, 0, true);
		if (!first && m->finer.divided < 40)
			first = m->finer.window;
	}
	CHECK_EQ(m->finer.divided, 0);
	/* Not divided at once when they concentrate again: eight windows after it went back. */
	m->params.cut_density = cut_density;
	CHECK(m->finer.window < first + 7);
	while (m->finer.window < first + 7) {
		ft_run(m, 1, 40, 10, 36, true);
		CHECK_EQ(m->finer.divided, 0);
	}
	ft_run(m, 200, 40, 10, 36, true);
	CHECK_EQ(m->finer.divided, 40);
	test_free(m);
}

/* Returns after how many samples of one granule of many it speaks for dividing it. */
static u32 ft_samples_needed(u32 divided)
{
	struct ft_machine *m = ft_new(5, 3);
	struct demeter_finer_estimate estimate;
	struct demeter_finer_granule *g;
	bool speaks = false;
	u32 i;

	for (i = 1; i < FT_GRANULES; i++)
		demeter_finer_sample(&m->finer, 1, i * FT_BYTES, FT_WEIGHT);
	demeter_finer_sample(&m->finer, 1, ft_page(m, 0, 24), FT_WEIGHT);
	g = demeter_finer_find(&m->finer, 1, 0);
	g->epochs[0] = 40;
	m->finer.divided = divided;
	for (i = 1; i < 1000 && !speaks; i++) {
		demeter_finer_sample(&m->finer, 1, ft_page(m, 0, 24), FT_WEIGHT);
		speaks = demeter_finer_estimate(&m->finer, g, &m->params, true, &estimate);
	}
	test_free(m);
	return i;
}

/* Where many were worth it, less is needed to believe it of another one. */
static void ft_test_others(struct test_tally *tally)
{
	u32 alone = ft_samples_needed(0), half = ft_samples_needed(FT_GRANULES / 2 - 1);

	CHECK(alone < 300);
	CHECK(half * 5 < alone * 4);
	CHECK(ft_samples_needed(FT_GRANULES - 1) <= half);
}

/* Epochs that hold more samples, and fewer, over and over: as many accesses a second. */
static void ft_test_held(struct test_tally *tally)
{
	u32 turn, held, checked, seed;

	for (seed = 0; seed < 3; seed++) {
		struct ft_machine *m = ft_new(seed, 80);
		struct demeter_finer_granule *g;
		u64 samples, k;

		for (turn = 0; turn < 200; turn++) {
			/* Up by one, down to nothing. */
			held = turn % 4;
			m->finer.held = held;
			samples = 20ULL << held;
			ft_run(m, 1 + (u32)(test_random(&m->random) % 3), 1, (u32)samples, 0, true);
			g = demeter_finer_find(&m->finer, 1, 0);
			if (turn < 8)
				continue;
			/* Twice an epoch's samples; some epochs are not aged yet. */
			CHECK(demeter_finer_rate(&m->finer, g) >= samples << DEMETER_RATE_SHIFT);
			CHECK(demeter_finer_rate(&m->finer, g) <= 5 * samples
									  << DEMETER_RATE_SHIFT);
		}
		/* Divided, epochs are seen to one by one: exact, as what is its own. */
		for (turn = checked = 0; turn < 200; turn++) {
			/* Its pages being what they are, it may be given back. */
			if (g->state != DEMETER_FINER_DIVIDED)
				demeter_finer_divide(&m->finer, g);
			held = turn % 4;
			m->finer.held = held;
			samples = 20ULL << held;
			g->carried = 1024;
			for (k = 0; k < samples; k++)
				demeter_finer_sample(&m->finer, 1, ft_page(m, 0, 24), FT_WEIGHT);
			demeter_finer_end_epoch(&m->finer, FT_EPOCH_NS, m->params.horizon_ns);
			if (!turn || g->state != DEMETER_FINER_DIVIDED)
				continue;
			CHECK_EQ(g->carried, held ? 512 : 64);
			if (turn < 100)
				continue;
			checked++;
			CHECK(demeter_finer_rate(&m->finer, g) >= 39 * samples / 20
									  << DEMETER_RATE_SHIFT);
			CHECK(demeter_finer_rate(&m->finer, g) <= 41 * samples / 20
									  << DEMETER_RATE_SHIFT);
		}
		CHECK(checked > 50);
		test_free(m);
	}
}

/* The end of a window does not make a granule wait that was about to be estimated. */
static void ft_test_window(struct test_tally *tally)
{
	struct ft_machine *m = ft_new(6, 3);
	struct demeter_finer_granule *g;
	u32 i;

	for (i = 0; i < 100; i++)
		demeter_finer_sample(&m->finer, 1, ft_page(m, 0, 24), FT_WEIGHT);
	g = demeter_finer_find(&m->finer, 1, 0);
	g->asked = 80;
	CHECK(demeter_finer_is_due(g));
	for (i = 0; i < 10 && !m->finer.window; i++)
		demeter_finer_end_epoch(&m->finer, m->params.horizon_ns, m->params.horizon_ns);
	CHECK_EQ(m->finer.window, 1);
	for (i = 0; i < 3; i++)
		demeter_finer_sample(&m->finer, 1, 0, FT_WEIGHT);
	CHECK(demeter_finer_is_due(g));
	test_free(m);
}

static void ft_test_denser(struct test_tally *tally)
{
	struct ft_machine *m = ft_new(4, 1);
	u32 dense = 0, run = 0, most = 0, i;

	ft_run(m, 20, 40, 1, 36, true);
	CHECK(m->finer.denser);
	/* Where estimates lead to nothing, it ends. */
	m->params.cut_density = 0;
	for (i = 0; i < 2000; i++) {
		m->finer.dense = m->finer.denser;
		ft_run(m, 1, 40, 1, 36, true);
		dense += m->finer.denser;
	}
	CHECK(dense > 100 && dense < 600);
	test_free(m);
	/* Where they cannot be denser it costs no credit, and is soon no longer asked for. */
	m = ft_new(4, 1);
	m->params.cut_density = 0;
	for (dense = 0, i = 0; i < 2000; i++) {
		u32 before = m->finer.credit;

		ft_run(m, 1, 40, 1, 36, true);
		CHECK(m->finer.credit >= before);
		dense += m->finer.denser;
		run = m->finer.denser ? run + 1 : 0;
		most = run > most ? run : most;
	}
	CHECK(dense > 16 && dense < 2000 / 8);
	CHECK_EQ(most, 16);
	test_free(m);
}

/* More granules than there is room for: those under a look give way. */
static void ft_test_room(struct test_tally *tally)
{
	struct ft_machine *m = ft_new(4, 4);
	bool seen[3 * FT_GRANULES] = { false };
	u32 round, i, nr = 0;

	for (round = 0; round < 40; round++) {
		CHECK_EQ(ft_run(m, 20, ARRAY_SIZE(seen), 4, 0, true), 0);
		for (i = 0; i < ARRAY_SIZE(seen); i++)
			seen[i] |= !!demeter_finer_find(&m->finer, 1, i * FT_BYTES);
	}
	for (i = 0; i < ARRAY_SIZE(seen); i++)
		nr += seen[i];
	CHECK_EQ(nr, ARRAY_SIZE(seen));
	CHECK(m->finer.denied > 0);
	CHECK(m->finer.nr <= FT_GRANULES);
	test_free(m);
}

static void ft_test_hide(struct test_tally *tally)
{
	struct ft_machine *m = ft_new(2, 10);
	struct demeter_leaf *leaf = test_alloc(sizeof(*leaf));
	struct demeter_leaf *leaves[1] = { leaf };
	struct demeter_resident resident = {
		.leaf = leaves, .capacity = 1, .nr = 1, .cell_shift = DEMETER_MAX_CELL_SHIFT
	};
	struct demeter_rank_entry e[2];
	u32 i;

	for (i = 0; i < 8; i++) {
		leaf->cells.pages[i][DEMETER_SMEM] = 512;
		leaf->sum[DEMETER_SMEM] += 512;
	}
	memset(e, 0, sizeof(e));
	e[0].end = 5 * FT_BYTES;
	e[1].start = e[0].end;
	e[1].end = 8 * FT_BYTES;
	CHECK_EQ(ft_run(m, 50, 3, 10, 8, true), 3);
	demeter_resident_sum(&resident, e, 2);
	e[0].rate = 1ULL << 40;
	demeter_finer_hide(&m->finer, 1, &resident, e, 2);
	CHECK_EQ(e[0].pages[DEMETER_SMEM], 2 * 512);
	CHECK_EQ(e[1].pages[DEMETER_SMEM], 3 * 512);
	CHECK_EQ(demeter_finer_undivided(&m->finer, 1, FT_BYTES, 8 * FT_BYTES), FT_BYTES);
	CHECK_EQ(demeter_finer_undivided(&m->finer, 1, 3 * FT_BYTES, 8 * FT_BYTES), 8 * FT_BYTES);
	/* Others know nothing of it. */
	CHECK_EQ(demeter_finer_undivided(&m->finer, 2, 0, 8 * FT_BYTES), 8 * FT_BYTES);
	test_free(leaf);
	test_free(m);
}

static void ft_test_nasty(struct test_tally *tally)
{
	struct ft_machine *m = ft_new(5, 1);
	struct demeter_rank_entry class[DEMETER_FINER_CLASSES];
	struct demeter_finer_estimate estimate;
	u32 round, i;

	for (round = 0; round < TEST_ROUNDS(20000); round++) {
		u64 gva = test_nasty(&m->random);
		struct demeter_finer_params params = {
			.cut_density = test_nasty(&m->random),
			.sample_period = test_nasty(&m->random),
			.epoch_ns = test_nasty(&m->random),
			.latency_gap_ps = test_nasty(&m->random),
			.walk_ps = test_nasty(&m->random),
			.horizon_ns = test_nasty(&m->random),
			.swap_cost_ns = test_nasty(&m->random),
			.split_cost_ns = test_nasty(&m->random),
			.hysteresis_permille = (u32)test_nasty(&m->random),
			.significance = (u32)test_nasty(&m->random),
		};

		for (i = 0; i < round % 40; i++)
			demeter_finer_sample(&m->finer, round % 3, gva ^ (u64)i << 12,
					     (u32)test_nasty(&m->random));
		demeter_finer_end_epoch(&m->finer, test_nasty(&m->random), test_nasty(&m->random));
		for (i = 0; i < FT_GRANULES; i++) {
			struct demeter_finer_granule *g = &m->granule[i];

			if (!g->state)
				continue;
			if (demeter_finer_estimate(&m->finer, g, &params, round & 1, &estimate) &&
			    round % 5 == 0)
				demeter_finer_divide(&m->finer, g);
			else if (round % 7 == 0)
				demeter_finer_drop(&m->finer, g, (u32)test_nasty(&m->random) % 4);
			else if (g->state == DEMETER_FINER_LOOK)
				demeter_finer_keep(&m->finer, g);
		}
		demeter_finer_classes(&m->finer, round % 3, class);
		CHECK(m->finer.divided <= m->finer.nr && m->finer.nr <= FT_GRANULES);
	}
	test_free(m);
}

/* Divide the granule that begins at @start. */
static void ft_divide_at(struct ft_machine *m, u64 start)
{
	demeter_finer_sample(&m->finer, 1, start, FT_WEIGHT);
	demeter_finer_divide(&m->finer, demeter_finer_find(&m->finer, 1, start));
}

/* Parts without a divided granule, of ranges that are small and larger than all memory. */
static void ft_test_whole(struct test_tally *tally)
{
	static const u64 ends[] = { 8 * FT_BYTES, ~0ULL };
	struct ft_machine *m = ft_new(1, 3);
	u32 i;

	for (i = 0; i < ARRAY_SIZE(ends); i++) {
		u64 at = 0;

		CHECK_EQ(demeter_finer_whole(&m->finer, 1, &at, ends[i]), ends[i]);
		CHECK_EQ(at, 0);
	}
	ft_divide_at(m, 2 * FT_BYTES);
	ft_divide_at(m, 3 * FT_BYTES);
	ft_divide_at(m, 6 * FT_BYTES);
	for (i = 0; i < ARRAY_SIZE(ends); i++) {
		u64 end = ends[i], at = FT_BYTES + 5;

		CHECK_EQ(demeter_finer_undivided(&m->finer, 1, 0, end), 2 * FT_BYTES);
		CHECK_EQ(demeter_finer_undivided(&m->finer, 1, 3 * FT_BYTES + 9, end),
			 3 * FT_BYTES + 9);
		CHECK_EQ(demeter_finer_undivided(&m->finer, 1, 7 * FT_BYTES, end), end);
		CHECK_EQ(demeter_finer_undivided(&m->finer, 2, 0, end), end);
		CHECK_EQ(demeter_finer_whole(&m->finer, 1, &at, end), 2 * FT_BYTES);
		CHECK_EQ(at, FT_BYTES + 5);
		/* Not nothing, where it begins in what is divided. */
		at = 2 * FT_BYTES + 5;
		CHECK_EQ(demeter_finer_whole(&m->finer, 1, &at, end), 6 * FT_BYTES);
		CHECK_EQ(at, 4 * FT_BYTES);
		at = 6 * FT_BYTES;
		CHECK_EQ(demeter_finer_whole(&m->finer, 1, &at, end), end);
		CHECK_EQ(at, 7 * FT_BYTES);
	}
	for (i = 0; i < 2; i++) {
		u64 at = (2 + i) * FT_BYTES;

		CHECK_EQ(demeter_finer_whole(&m->finer, 1, &at, 4 * FT_BYTES - 9), at);
		CHECK_EQ(at, 4 * FT_BYTES - 9);
	}
	test_free(m);
}

/* Longer walks are paid where there was a huge page, and for as long as moves are credited. */
static void ft_test_walks(struct test_tally *tally)
{
	struct ft_machine *m = ft_new(1, 3);
	u32 epochs = (u32)(m->params.horizon_ns / FT_EPOCH_NS), epoch, i;
	u64 walked[2] = { 0 };

	for (i = 0; i < 2; i++) {
		ft_divide_at(m, i * FT_BYTES);
		m->granule[i].was_huge = i == 0;
	}
	for (epoch = 0; epoch < 2 * epochs; epoch++) {
		demeter_finer_end_epoch(&m->finer, FT_EPOCH_NS, m->params.horizon_ns);
		demeter_finer_sample(&m->finer, 1, FT_BYTES, FT_WEIGHT);
		CHECK_EQ(m->finer.walked, walked[0] + walked[1]);
		/* By the weight of a sample, however often its page was met. */
		for (i = 0; i < 4; i++)
			demeter_finer_sample(&m->finer, 1, i << DEMETER_PAGE_SHIFT, FT_WEIGHT / 4);
		walked[epoch + 1 >= epochs] = m->finer.walked - walked[0] * (epoch + 1 >= epochs);
	}
	CHECK_EQ(walked[0], (epochs - 1) * FT_WEIGHT);
	CHECK_EQ(walked[1], 0);
	test_free(m);
}

/* What was divided and is idle goes back to its range, unless all sleep. */
static void ft_test_idle(struct test_tally *tally)
{
	static const u32 samples[] = { 1, 3, 10, 100 };
	u32 windows, i, k;

	for (i = 0; i < ARRAY_SIZE(samples); i++) {
		struct ft_machine *m = ft_new(1, samples[i]);

		CHECK_EQ(ft_run(m, 600, 40, samples[i], 4, true), 40);
		/* A night without any sample: each window ends by the horizon. */
		windows = m->finer.window;
		ft_run(m, 2000, 0, 0, 4, true);
		CHECK(m->finer.window > windows + 5);
		CHECK_EQ(m->finer.divided, 40);
		/* Hot by turns, for shorter than that is promised to last. */
		for (k = 0; k < 20; k++) {
			ft_run(m, 40, 20, samples[i], 4, true);
			ft_run(m, 40, 40, samples[i], 4, true);
		}
		CHECK_EQ(m->finer.divided, 40);
		/* The first of them are accessed as before, the rest not at all. */
		ft_run(m, 800, 20, samples[i], 4, true);
		CHECK_EQ(m->finer.divided, 20);
		/* All of it evenly: what goes back is its space's own yet for some epochs. */
		for (k = 0; k < 4000 && m->finer.divided; k++)
			ft_run(m, 1, 20, samples[i], 0, true);
		CHECK_EQ(m->finer.divided, 0);
		CHECK(demeter_finer_has(&m->finer, 1));
		ft_run(m, 2, 20, samples[i], 0, true);
		CHECK(demeter_finer_has(&m->finer, 1));
		ft_run(m, 20, 20, samples[i], 0, true);
		CHECK(!demeter_finer_has(&m->finer, 1));
		test_free(m);
	}
}

/* Where all granules have one, who comes waits for those that are idle, and for no others. */
static void ft_test_full(struct test_tally *tally)
{
	struct ft_machine *m = ft_new(1, 10);
	u32 i;

	CHECK_EQ(ft_run(m, 400, FT_GRANULES, 10, 4, true), FT_GRANULES);
	ft_run(m, 2000, 0, 0, 4, true);
	CHECK_EQ(m->finer.divided, FT_GRANULES);
	for (i = 0; i < 20; i++) {
		ft_run(m, 40, FT_GRANULES / 2, 10, 4, true);
		ft_run(m, 40, FT_GRANULES, 10, 4, true);
	}
	CHECK_EQ(m->finer.divided, FT_GRANULES);
	/* Other memory altogether: of theirs nothing is divided any more. */
	for (i = 0; i < 1000 * FT_GRANULES; i++) {
		demeter_finer_sample(&m->finer, 2, ft_page(m, i % FT_GRANULES, 4), FT_WEIGHT);
		if (i % FT_GRANULES == 0)
			demeter_finer_end_epoch(&m->finer, FT_EPOCH_NS, m->params.horizon_ns);
	}
	CHECK_EQ(m->finer.divided, 0);
	CHECK(!demeter_finer_find(&m->finer, 1, 0));
	CHECK(demeter_finer_find(&m->finer, 2, 0));
	/* It ends, and all are there for others. */
	demeter_finer_leave(&m->finer, 2);
	CHECK_EQ(m->finer.nr, 0);
	test_free(m);
}

/* Who holds a lock lets go of it: a failed attempt is no verdict, but several are. */
static void ft_test_fail(struct test_tally *tally)
{
	struct ft_machine *m = ft_new(1, 3);
	struct demeter_finer_granule *g;
	u32 attempts = 0, window = 0, i;

	for (i = 0; i < 100000 && (i < 2 || m->finer.nr); i++) {
		demeter_finer_sample(&m->finer, 1, (u64)(i % 4) << DEMETER_PAGE_SHIFT, FT_WEIGHT);
		if (i % 8 == 0)
			demeter_finer_end_epoch(&m->finer, FT_EPOCH_NS, m->params.horizon_ns);
		g = demeter_finer_find(&m->finer, 1, 0);
		if (!g || !demeter_finer_is_due(g))
			continue;
		/* Once in a window. */
		CHECK(!attempts || m->finer.window > window);
		window = m->finer.window;
		g->asked = g->samples;
		demeter_finer_fail(&m->finer, g);
		attempts++;
	}
	CHECK_EQ(attempts, 4);
	CHECK_EQ(m->finer.nr, 0);
	/* It is not looked at for a while then. */
	demeter_finer_sample(&m->finer, 1, 0, FT_WEIGHT);
	CHECK(!demeter_finer_find(&m->finer, 1, 0));
	test_free(m);
}

/* What is given up is left alone for as long as was asked for, and what stays is found. */
static void ft_test_drop(struct test_tally *tally)
{
	static const u32 windows[] = { 1, 8 };
	u32 i, k, until, divided, nr, looked = 0;

	for (i = 0; i < ARRAY_SIZE(windows); i++) {
		struct ft_machine *m = ft_new(7, 10);
		struct demeter_finer_granule *g;

		CHECK_EQ(ft_run(m, 40, 4, 10, 36, true), 4);
		g = demeter_finer_find(&m->finer, 1, FT_BYTES);
		nr = m->finer.nr;
		divided = m->finer.divided;
		until = m->finer.window + windows[i];
		demeter_finer_drop(&m->finer, g, windows[i]);
		CHECK_EQ(m->finer.nr, nr - 1);
		CHECK_EQ(m->finer.divided, divided - 1);
		/* Its slot is free: no more is dropped of it. */
		demeter_finer_drop(&m->finer, g, 100);
		CHECK_EQ(m->finer.nr, nr - 1);
		for (k = 0; k < 4; k++)
			CHECK_EQ(!demeter_finer_find(&m->finer, 1, k * FT_BYTES), k == 1);
		/* Samples are its range's again. */
		CHECK(!demeter_finer_sample(&m->finer, 1, FT_BYTES, FT_WEIGHT));
		for (k = 0; k < 100000 && m->finer.window < until; k++) {
			looked += !!demeter_finer_find(&m->finer, 1, FT_BYTES);
			ft_run(m, 1, 4, 10, 36, true);
		}
		CHECK_EQ(m->finer.window, until);
		CHECK_EQ(looked, 0);
		ft_run(m, 40, 4, 10, 36, true);
		g = demeter_finer_find(&m->finer, 1, FT_BYTES);
		CHECK(g && g->state == DEMETER_FINER_DIVIDED);
		test_free(m);
	}
}

static const struct test_case finer_tests[] = {
	{ "finer: uniform accesses divide nothing", ft_test_uniform },
	{ "finer: few hot pages do, and are told apart", ft_test_concentrated },
	{ "finer: so does heat that falls off", ft_test_zipf },
	{ "finer: not at any price", ft_test_price },
	{ "finer: estimates come true", ft_test_unbiased },
	{ "finer: nothing flaps", ft_test_no_flapping },
	{ "finer: what holds for others is believed sooner", ft_test_others },
	{ "finer: a window's end costs no time", ft_test_window },
	{ "finer: whatever an epoch holds", ft_test_held },
	{ "finer: denser samples are asked for, and not for ever", ft_test_denser },
	{ "finer: granules take turns", ft_test_room },
	{ "finer: longer walks are paid for a time", ft_test_walks },
	{ "finer: what goes idle goes back, unless all sleep", ft_test_idle },
	{ "finer: a full table waits for the idle", ft_test_full },
	{ "finer: a failed attempt is no verdict", ft_test_fail },
	{ "finer: what was given up is left alone for a while", ft_test_drop },
	{ "finer: ranges go without what is divided", ft_test_hide },
	{ "finer: ranges are searched around what is divided", ft_test_whole },
	{ "finer: any numbers at all", ft_test_nasty },
};
