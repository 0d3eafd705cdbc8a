// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Finer's gate: a look begins where ranges are at their end, and is soon over. */
#include <demeter/finer_gate.h>

#include "harness.h"

/* An epoch in which the tiers serve so many samples, and so many pages are promoted. */
static bool fg_epoch(struct demeter_finer_gate *gate, u64 fast, u64 slow, u64 promoted,
		     const struct demeter_finer *f)
{
	const struct demeter_finer_gate_epoch epoch = {
		.samples = { [DEMETER_FMEM] = fast, [DEMETER_SMEM] = slow },
		.promoted_pages = promoted,
	};

	return demeter_finer_gate_epoch(gate, &epoch, f);
}

/* Returns in which epoch it opens, at most @most. */
static u32 fg_opens(struct demeter_finer_gate *gate, u64 fast, u64 slow, u32 every, u32 most)
{
	u32 i;

	for (i = 0; i < most; i++)
		if (fg_epoch(gate, fast, slow, every && i % every == 0, NULL))
			break;
	return i;
}

static void fg_test_opens(struct test_tally *tally)
{
	struct demeter_finer *f = test_alloc(sizeof(*f));
	const struct demeter_finer_gate_epoch poor = { .samples = { 20, 80 }, .is_poor = true };
	struct demeter_finer_gate gate = { 0 };
	u32 i;

	/* Some epochs without a promotion, and then it does. */
	CHECK(fg_opens(&gate, 50, 50, 0, 100) < 20);
	CHECK(demeter_finer_gate_is_looking(&gate, f));
	/* Without memory for the counts nothing is looked at, and no pace held for it. */
	CHECK(!demeter_finer_gate_is_looking(&gate, NULL));
	/* Not while ranges still find something, not even now and then. */
	gate = (struct demeter_finer_gate){ 0 };
	CHECK_EQ(fg_opens(&gate, 50, 50, 1, 1000), 1000);
	CHECK_EQ(fg_opens(&gate, 50, 50, 5, 1000), 1000);
	CHECK(!demeter_finer_gate_is_looking(&gate, f));
	/* Once they have, soon. */
	CHECK(fg_opens(&gate, 50, 50, 0, 100) < 20);
	/* Not where FMEM serves most, or where there is next to no sample. */
	gate = (struct demeter_finer_gate){ 0 };
	CHECK_EQ(fg_opens(&gate, 90, 10, 0, 1000), 1000);
	gate = (struct demeter_finer_gate){ 0 };
	CHECK_EQ(fg_opens(&gate, 1, 9, 0, 1000), 1000);
	CHECK_EQ(fg_opens(&gate, 0, 0, 0, 1000), 1000);
	/* Until the accesses change. */
	CHECK(fg_opens(&gate, 20, 80, 0, 100) < 20);
	/* Not without means, and with them at once. */
	gate = (struct demeter_finer_gate){ 0 };
	for (i = 0; i < 1000; i++)
		CHECK(!demeter_finer_gate_epoch(&gate, &poor, NULL));
	CHECK_EQ(fg_opens(&gate, 20, 80, 0, 100), 0);
	test_free(f);
}

static void fg_test_shuts(struct test_tally *tally)
{
	struct demeter_finer *f = test_alloc(sizeof(*f));
	struct demeter_finer_gate gate = { 0 };
	u32 epochs, open = 0, all = 0, before = 0, shut;

	f->nr = 100;
	/* Looks that bring nothing are an ever smaller part of the time, but come again. */
	for (epochs = 0; epochs < 100000; epochs++) {
		bool is_open = fg_epoch(&gate, 25, 75, 0, gate.open ? f : NULL);

		open += is_open;
		all += is_open && !before;
		before = is_open;
	}
	CHECK(all >= 10 && all < 30);
	CHECK(open < 1000);
	/* Of a suspicion it waits for the end. */
	gate = (struct demeter_finer_gate){ 0 };
	fg_opens(&gate, 25, 75, 0, 100);
	f->denser = true;
	for (epochs = 0; epochs < 1000; epochs++)
		CHECK(fg_epoch(&gate, 25, 75, 0, f));
	f->denser = false;
	CHECK(!fg_epoch(&gate, 25, 75, 0, f));
	CHECK_EQ(gate.pauses, 1);
	/* No memory for the counts: no look. */
	gate = (struct demeter_finer_gate){ 0 };
	fg_opens(&gate, 25, 75, 0, 100);
	for (epochs = 0; epochs < 1000; epochs++)
		CHECK(fg_epoch(&gate, 25, 75, 0, NULL));
	CHECK_EQ(gate.pauses, 0);
	for (shut = 0; fg_epoch(&gate, 25, 75, 0, f); shut++)
		;
	CHECK(shut > 5 && shut < 50);
	test_free(f);
}

static void fg_test_divided(struct test_tally *tally)
{
	struct demeter_finer_gate gate = { .pauses = 3, .still = 8 };
	struct demeter_finer *f = test_alloc(sizeof(*f));
	u32 i;

	f->nr = 100;
	f->divided = 1;
	CHECK(fg_opens(&gate, 25, 75, 0, 100) < 20);
	/* While something is divided its samples must be counted, whoever serves them. */
	for (i = 0; i < 1000; i++)
		CHECK(fg_epoch(&gate, 95, 5, i % 2, f));
	CHECK(!demeter_finer_gate_is_looking(&gate, f));
	CHECK_EQ(gate.pauses, 0);
	/* When all went back, as after any other look. */
	f->divided = 0;
	for (i = 0; fg_epoch(&gate, 95, 5, 0, f); i++)
		;
	CHECK(i > 5 && i < 50);
	CHECK_EQ(gate.pauses, 1);
	test_free(f);
}

/*
 * With the counts themselves: a look is long enough for what concentrates, and short; the
 * sampler can make samples denser by @denser, a power of two.
 */
static void fg_look(struct test_tally *tally, u32 denser, u32 least, u32 most)
{
	enum { granules = 64, samples = 60 };
	static const u32 hot[] = { 0, 36, 73 };
	u32 i, k, epochs, extra;

	for (i = 0; i < ARRAY_SIZE(hot); i++) {
		struct demeter_finer_granule *granule = test_alloc(granules * sizeof(*granule));
		u16 *index = test_alloc(2 * granules * sizeof(*index));
		struct demeter_finer *f = test_alloc(sizeof(*f));
		struct demeter_finer_gate_epoch gate_epoch = {
			.samples = { [DEMETER_FMEM] = samples / 4,
				     [DEMETER_SMEM] = samples * 3 / 4 },
		};
		struct demeter_finer_gate gate = { 0 };
		u64 random = 11 + i;
		bool suspect = false;

		CHECK_EQ(demeter_finer_init(f, granule, granules, index, 2 * granules), 0);
		fg_opens(&gate, samples / 4, samples * 3 / 4, 0, 100);
		f->denser = denser;
		for (epochs = 0; epochs < 200 && gate.open && !suspect; epochs++) {
			f->eager = demeter_finer_gate_wants_denser(&gate, f);
			f->dense = denser && f->denser;
			extra = f->dense ? (samples << denser) - samples : 0;
			for (k = 0; k < samples + extra; k++) {
				u64 pick = test_random(&random);
				u32 page = (u32)(pick >> 32) % DEMETER_FINER_CELLS;
				u64 gva;

				if (hot[i] && (pick & 0xff) < 230)
					page %= hot[i];
				gva = (pick >> 8) % granules << DEMETER_FINER_SHIFT |
				      (u64)page << DEMETER_PAGE_SHIFT;
				demeter_finer_sample(f, 1, gva,
						     BIT_ULL(DEMETER_RATE_SHIFT) >>
							     (f->dense ? denser : 0));
			}
			demeter_finer_end_epoch(f, 50000000, 10000000000ULL);
			gate_epoch.extra = extra;
			demeter_finer_gate_epoch(&gate, &gate_epoch, f);
			/* When all has been seen, denser samples mean a suspicion. */
			suspect = f->denser && !f->eager;
		}
		CHECK_EQ(suspect, hot[i] > 0);
		CHECK_EQ(gate.open, hot[i] > 0);
		CHECK(epochs >= least && epochs <= most);
		test_free(f);
		test_free(index);
		test_free(granule);
	}
}

static void fg_test_look(struct test_tally *tally)
{
	/* Sixteen samples for each granule: at the usual pace in 17 epochs, or denser in some. */
	fg_look(tally, 0, 5, 30);
	fg_look(tally, 4, 2, 5);
}

/* Samples are denser until the look has seen what it needs, and while it may be something. */
static void fg_test_denser(struct test_tally *tally)
{
	struct demeter_finer *f = test_alloc(sizeof(*f));
	struct demeter_finer_gate gate = { 0 };
	struct demeter_finer_gate_epoch epoch = { .extra = 900 };

	CHECK(!demeter_finer_gate_wants_denser(&gate, NULL));
	CHECK(!demeter_finer_gate_wants_denser(&gate, f));
	fg_opens(&gate, 25, 75, 0, 100);
	CHECK(!demeter_finer_gate_wants_denser(&gate, NULL));
	CHECK(demeter_finer_gate_wants_denser(&gate, f));
	/* Those that are extra count, too: 64 granules' sixteen each. */
	f->denser = true;
	CHECK(demeter_finer_gate_epoch(&gate, &epoch, f));
	CHECK(demeter_finer_gate_wants_denser(&gate, f));
	CHECK(demeter_finer_gate_epoch(&gate, &epoch, f));
	CHECK(!demeter_finer_gate_wants_denser(&gate, f));
	f->denser = false;
	CHECK(!demeter_finer_gate_epoch(&gate, &epoch, f));
	/* Nor for what is divided. */
	gate = (struct demeter_finer_gate){ .open = true };
	f->divided = 1;
	CHECK(!demeter_finer_gate_wants_denser(&gate, f));
	test_free(f);
}

static const struct test_case finer_gate_tests[] = {
	{ "finer gate: opens where ranges are at their end", fg_test_opens },
	{ "finer gate: looks in vain grow rare", fg_test_shuts },
	{ "finer gate: stays open for what is divided", fg_test_divided },
	{ "finer gate: a look is long enough, and short", fg_test_look },
	{ "finer gate: samples are denser for as long as it takes", fg_test_denser },
};
