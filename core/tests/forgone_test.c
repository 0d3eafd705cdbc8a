// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Forgone: a stop ends where moving would pay, and does not where memory is hot by turns. */
#include <demeter/forgone.h>
#include <demeter/judge.h>
#include <demeter/math.h>

#include "harness.h"

#define FO_GRANULE    (2ULL << 20)
#define FO_RANGES     8U
#define FO_PAGES      512U
#define FO_BASE	      BIT_ULL(32)
#define FO_EPOCH_NS   50000000ULL
#define FO_HORIZON_NS 10000000000ULL
#define FO_PERIOD     4096ULL
#define FO_GAP_PS     100000ULL
/* Of a page: 512 are as much as 6 samples of an access to SMEM more or less, and as 60. */
#define FO_COST_NS    5000ULL
#define FO_DEAR_NS    50000ULL
#define FO_SPACE      3U

/* Ranges of a granule each: the first half lies in FMEM, the other one in SMEM. */
struct fo_machine {
	struct demeter_forgone forgone;
	struct demeter_ranges rs;
	struct demeter_range memory[FO_RANGES];
	struct demeter_rank_entry ranked[FO_RANGES];
	u64 page_cost_ns;
	u64 epoch;
	u32 stops;
};

static struct fo_machine *fo_new(u64 page_cost_ns)
{
	static const struct demeter_ranges_params params = DEMETER_RANGES_PARAMS_DEFAULT;
	struct fo_machine *m = test_alloc(sizeof(*m));
	u32 i;

	memset(m, 0, sizeof(*m));
	m->page_cost_ns = page_cost_ns;
	m->stops = 1;
	demeter_ranges_init(&m->rs, m->memory, FO_RANGES, &params);
	demeter_ranges_set_area(&m->rs, 0, FO_BASE, FO_BASE + FO_RANGES * FO_GRANULE);
	m->rs.nr = FO_RANGES;
	for (i = 0; i < FO_RANGES; i++) {
		m->rs.range[i] = m->rs.range[0];
		m->rs.range[i].start = FO_BASE + i * FO_GRANULE;
		m->rs.range[i].end = m->rs.range[i].start + FO_GRANULE;
	}
	return m;
}

/* An epoch with so many samples in each range; whether the stop ends with it. */
static bool fo_epoch(struct fo_machine *m, const u32 *samples)
{
	u64 all = 0;
	bool pays;
	u32 i;

	for (i = 0; i < FO_RANGES; i++) {
		all += samples[i];
		m->rs.range[i].rate =
			m->rs.range[i].rate / 2 + ((u64)samples[i] << DEMETER_RATE_SHIFT);
		m->ranked[i] = (struct demeter_rank_entry){
			.start = m->rs.range[i].start,
			.end = m->rs.range[i].end,
			.rate = m->rs.range[i].rate,
			.space = FO_SPACE,
		};
		m->ranked[i].pages[i < FO_RANGES / 2 ? DEMETER_FMEM : DEMETER_SMEM] = FO_PAGES;
	}
	m->epoch++;
	demeter_rank(m->ranked, FO_RANGES);
	pays = demeter_forgone_epoch(&m->forgone, &m->rs, m->stops, all, FO_PERIOD, FO_GAP_PS,
				     FO_EPOCH_NS);
	if (!pays && demeter_forgone_wants(&m->forgone))
		demeter_forgone_begin(&m->forgone, FO_SPACE, m->ranked, FO_RANGES, m->page_cost_ns,
				      FO_HORIZON_NS);
	return pays;
}

/* Epochs until the stop ends, so many at most, of a program that always accesses the same. */
static u32 fo_settled(struct fo_machine *m, const u32 *samples, u32 most)
{
	u32 epoch = 0;

	while (epoch < most && !fo_epoch(m, samples))
		epoch++;
	return epoch;
}

static void fo_test_settled(struct test_tally *tally)
{
	static const u32 in_smem[FO_RANGES] = { 4, 4, 4, 4, 4, 24, 4, 4 };
	static const u32 in_fmem[FO_RANGES] = { 4, 4, 24, 4, 4, 4, 4, 4 };
	struct fo_machine *m = fo_new(FO_COST_NS);
	u32 epochs = fo_settled(m, in_smem, 1000);

	/* 20 samples an epoch more than what would have gone: 2 epochs for the least of them. */
	CHECK(epochs >= 2 && epochs <= 4);
	test_free(m);
	/* What is hot lies in FMEM already. */
	m = fo_new(FO_COST_NS);
	CHECK_EQ(fo_settled(m, in_fmem, 1000), 1000);
	test_free(m);
}

/* A range is hot for two epochs, then the next one in SMEM. */
static u32 fo_wanders(struct fo_machine *m, u32 epochs)
{
	u32 ends = 0;

	while (epochs--) {
		u32 samples[FO_RANGES] = { 20, 20, 20, 20, 20, 20, 20, 20 };

		samples[FO_RANGES / 2 + m->epoch / 2 % (FO_RANGES / 2)] = 80;
		ends += fo_epoch(m, samples);
	}
	return ends;
}

static void fo_test_wanders(struct test_tally *tally)
{
	static const u32 settled[FO_RANGES] = { 20, 20, 20, 20, 20, 20, 20, 80 };
	struct fo_machine *m = fo_new(FO_DEAR_NS);

	CHECK_EQ(fo_wanders(m, 2000), 0);
	/* Then it settles, and what was in vain before is no reason to wait for long. */
	CHECK(fo_settled(m, settled, 1000) <= 12);
	test_free(m);
}

/*
 * Hot for an epoch, and every fifth for four: that one alone would pay for itself, but not
 * for the four before it.
 */
static void fo_test_lucky(struct test_tally *tally)
{
	struct fo_machine *m = fo_new(FO_DEAR_NS);
	u32 round, epoch, ends = 0;

	for (round = 0; round < 1000; round++) {
		u32 samples[FO_RANGES] = { 20, 20, 20, 20, 20, 20, 20, 20 };

		samples[round * 3 % FO_RANGES] = 80;
		for (epoch = 0; epoch < (round % 5 == 4 ? 4 : 1); epoch++)
			ends += fo_epoch(m, samples);
	}
	CHECK_EQ(ends, 0);
	test_free(m);
}

/* Two places are hot by turns of two epochs: what came would have to go again. */
static void fo_test_alternates(struct test_tally *tally)
{
	struct fo_machine *m = fo_new(FO_DEAR_NS);
	u32 epoch, ends = 0;

	for (epoch = 0; epoch < 2000; epoch++) {
		u32 samples[FO_RANGES] = {};

		samples[epoch / 2 % 2 ? 0 : FO_RANGES - 1] = 80;
		samples[1] = samples[2] = samples[3] = 80;
		ends += fo_epoch(m, samples);
	}
	CHECK_EQ(ends, 0);
	test_free(m);
}

/* One that would have paid is not enough after one that cost much and brought nothing. */
static void fo_test_held_against(struct test_tally *tally)
{
	static const u32 settled[FO_RANGES] = { 4, 4, 4, 4, 4, 24, 4, 4 };
	struct fo_machine *m = fo_new(FO_COST_NS);
	u32 alone = fo_settled(m, settled, 1000), after;

	test_free(m);
	m = fo_new(FO_COST_NS);
	m->forgone.cost_ns = 16 * FO_PAGES * FO_COST_NS;
	after = fo_settled(m, settled, 1000);
	CHECK(after > 2 * alone);
	CHECK(after < 1000);
	test_free(m);
}

/* The more stops in a row, the more it takes; what stays hot has it in the end. */
static void fo_test_in_a_row(struct test_tally *tally)
{
	static const u32 settled[FO_RANGES] = { 20, 20, 20, 20, 20, 80, 20, 20 };
	u32 stops, epochs, before = 0;

	for (stops = 1; stops <= DEMETER_JUDGE_MAX_STOPS; stops++) {
		struct fo_machine *m = fo_new(FO_DEAR_NS);

		m->stops = stops;
		epochs = fo_settled(m, settled, 1000);
		CHECK(epochs + 2 >= 2 * before);
		CHECK(epochs < 1000);
		before = epochs;
		test_free(m);
	}
}

/* An address space whose memory lies in SMEM alone; and others' ranges, and base pages, are not its own. */
static void fo_test_choice(struct test_tally *tally)
{
	struct demeter_rank_entry ranked[3] = {
		{ .start = 1 << 21, .end = 2 << 21, .rate = 900, .space = FO_SPACE, .part = 2 },
		{ .start = 2 << 21, .end = 3 << 21, .rate = 800, .space = FO_SPACE + 1 },
		{ .start = 3 << 21, .end = 4 << 21, .rate = 700, .space = FO_SPACE },
	};
	struct demeter_forgone forgone = {};
	u32 i;

	for (i = 0; i < 3; i++)
		ranked[i].pages[DEMETER_SMEM] = FO_PAGES;
	demeter_rank(ranked, 3);
	demeter_forgone_begin(&forgone, FO_SPACE, ranked, 3, FO_COST_NS, FO_HORIZON_NS);
	CHECK_EQ(forgone.step.hot.start, 3 << 21);
	CHECK_EQ(forgone.step.cold.end, 0);
	CHECK_EQ(forgone.step.pages, FO_PAGES);
	memset(&forgone, 0, sizeof(forgone));
	demeter_forgone_begin(&forgone, FO_SPACE + 2, ranked, 3, FO_COST_NS, FO_HORIZON_NS);
	CHECK(demeter_forgone_wants(&forgone));
	/* Half of the one range is in FMEM: no part of it is hotter than the other. */
	ranked[2].pages[DEMETER_FMEM] = FO_PAGES;
	demeter_forgone_begin(&forgone, FO_SPACE, ranked, 3, FO_COST_NS, FO_HORIZON_NS);
	CHECK(demeter_forgone_wants(&forgone));
}

static void fo_test_nasty(struct test_tally *tally)
{
	struct fo_machine *m = fo_new(FO_COST_NS);
	u64 seed = 7;
	u32 round, i;

	for (round = 0; round < TEST_ROUNDS(20000); round++) {
		for (i = 0; i < FO_RANGES; i++) {
			struct demeter_rank_entry *e = &m->ranked[i];

			m->rs.range[i].rate = test_nasty(&seed);
			e->start = m->rs.range[i].start;
			e->end = m->rs.range[i].end;
			e->rate = m->rs.range[i].rate;
			e->space = FO_SPACE;
			e->pages[DEMETER_FMEM] = test_nasty(&seed) >> 1;
			e->pages[DEMETER_SMEM] = test_nasty(&seed) >> 1;
		}
		demeter_rank(m->ranked, FO_RANGES);
		demeter_forgone_epoch(&m->forgone, &m->rs, (u32)test_nasty(&seed),
				      test_nasty(&seed), test_nasty(&seed), test_nasty(&seed),
				      test_nasty(&seed));
		if (demeter_forgone_wants(&m->forgone))
			demeter_forgone_begin(&m->forgone, FO_SPACE, m->ranked, FO_RANGES,
					      test_nasty(&seed), test_nasty(&seed));
		CHECK(m->forgone.cost_ns <= DEMETER_U64_MAX >> 1);
	}
	test_free(m);
}

static const struct test_case forgone_tests[] = {
	{ "forgone: a program that has settled is no longer stopped", fo_test_settled },
	{ "forgone: one whose hot memory wanders is", fo_test_wanders },
	{ "forgone: one that is lucky now and then is", fo_test_lucky },
	{ "forgone: one whose places are hot by turns is", fo_test_alternates },
	{ "forgone: what was in vain is held against what pays", fo_test_held_against },
	{ "forgone: more is asked for after each stop", fo_test_in_a_row },
	{ "forgone: of its own ranges the hottest in SMEM", fo_test_choice },
	{ "forgone: any numbers at all", fo_test_nasty },
};
