// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Pace: sparse while nothing happens, awake when something does. */
#include <demeter/math.h>
#include <demeter/pace.h>

#include "harness.h"

/* A program of so many samples a tick at full pace, of which SMEM serves a share. */
struct pc_program {
	u64 samples;
	u64 smem_permille;
	u64 resident_pages;
	u64 seed;
};

/* Ticks until the epoch ends; what is sampled thins out with the pace. */
static u32 pc_epoch(struct demeter_pace *pace, struct pc_program *program,
		    const struct demeter_pace_epoch *epoch)
{
	static const struct demeter_pace_epoch nothing = { .ranges = 100 };
	u32 ticks = 0;
	bool over;

	do {
		struct demeter_pace_tick tick = { .resident_pages = program->resident_pages };
		u64 i, u;

		/* Each access of the program is sampled with the same chance. */
		for (i = 0; i < program->samples * 2; i++) {
			if (test_random(&program->seed) & ((2ULL << pace->sparse) - 1))
				continue;
			u = test_random(&program->seed) % 1000;
			tick.samples[u < program->smem_permille ? DEMETER_SMEM : DEMETER_FMEM]++;
		}
		over = demeter_pace_tick(pace, &tick);
		ticks++;
	} while (!over && ticks < 100);
	demeter_pace_end_epoch(pace, epoch ? epoch : &nothing);
	return ticks;
}

static u32 pc_ticks(struct demeter_pace *pace, struct pc_program *program, u32 ticks)
{
	u32 epochs = 0;

	while (ticks) {
		ticks -= (u32)demeter_min(ticks, pc_epoch(pace, program, NULL));
		epochs++;
	}
	return epochs;
}

static void pc_test_sparse(struct test_tally *tally)
{
	struct pc_program program = { 75, 100, 100000, 1 };
	struct demeter_pace pace = { .most = DEMETER_PACE_MAX_SHIFT };

	pc_ticks(&pace, &program, 20);
	CHECK(pace.shift < DEMETER_PACE_MAX_SHIFT);
	pc_ticks(&pace, &program, 200);
	CHECK_EQ(pace.shift, DEMETER_PACE_MAX_SHIFT);
	/* Chance alone does not wake it: ten thousand ticks in little more than an eighth. */
	CHECK(pc_ticks(&pace, &program, 10000) < 10000 / 8 + 50);
	/* Nor do twice as many samples, where their number says nothing. */
	pace.by_share_alone = true;
	program.samples *= 2;
	CHECK(pc_ticks(&pace, &program, 1000) < 1000 / 8 + 5);
	pace.by_share_alone = false;
	program.samples *= 2;
	CHECK(pc_ticks(&pace, &program, 1000) > 1000 / 8 + 5);
	program.samples /= 4;
	/* Where samples are made of what is known, quiet is believed later. */
	memset(&pace, 0, sizeof(pace));
	pace.most = DEMETER_PACE_MAX_SHIFT;
	pace.by_share_alone = true;
	pc_ticks(&pace, &program, 60);
	CHECK_EQ(pace.shift, 0);
	pc_ticks(&pace, &program, 600);
	CHECK_EQ(pace.shift, DEMETER_PACE_MAX_SHIFT);
	/* Whose sampler cannot be slowed is never stretched. */
	memset(&pace, 0, sizeof(pace));
	CHECK_EQ(pc_ticks(&pace, &program, 500), 500);
	CHECK_EQ(pace.shift, 0);
}

static void pc_stretch(struct demeter_pace *pace, struct pc_program *program)
{
	memset(pace, 0, sizeof(*pace));
	pace->most = DEMETER_PACE_MAX_SHIFT;
	pc_ticks(pace, program, 200);
}

static void pc_test_wakes(struct test_tally *tally)
{
	struct pc_program program = { 75, 100, 100000, 1 };
	struct demeter_pace pace;
	u32 ticks, round;

	for (round = 0; round < 50; round++) {
		/* What is hot is suddenly in SMEM: seen within two ticks. */
		program = (struct pc_program){ 75, 100, 100000, round };
		pc_stretch(&pace, &program);
		program.smem_permille = 900;
		ticks = pc_epoch(&pace, &program, NULL);
		CHECK(ticks <= 3);
		CHECK_EQ(pace.shift, 0);
		/* Four times the accesses. */
		pc_stretch(&pace, &program);
		program.samples *= 4;
		ticks = pc_epoch(&pace, &program, NULL);
		CHECK(ticks <= 4);
		CHECK_EQ(pace.shift, 0);
		/* A new process. */
		pc_stretch(&pace, &program);
		program.resident_pages += program.resident_pages / 4;
		CHECK_EQ(pc_epoch(&pace, &program, NULL), 1);
		CHECK_EQ(pace.shift, 0);
		/* Less of everything is no reason to look. */
		pc_stretch(&pace, &program);
		program.samples /= 8;
		CHECK_EQ(pc_epoch(&pace, &program, NULL), 8);
		CHECK_EQ(pace.shift, DEMETER_PACE_MAX_SHIFT);
	}
}

/* Of who accesses little, samples stay dense until a long epoch holds enough to learn from. */
static void pc_test_few(struct test_tally *tally)
{
	static const struct {
		u64 samples;
		u32 sparse;
	} of[] = { { 0, 0 }, { 2, 0 }, { 9, 1 }, { 22, 2 }, { 48, 3 }, { 75, 3 }, { 1000, 3 } };
	struct demeter_pace_epoch learned = { .ranges = 100, .splits = 10 };
	struct pc_program program;
	struct demeter_pace pace;
	u32 i, k, held, quiet;

	for (i = 0; i < ARRAY_SIZE(of); i++) {
		program = (struct pc_program){ of[i].samples, 100, 100000, i };
		memset(&pace, 0, sizeof(pace));
		pace.most = DEMETER_PACE_MAX_SHIFT;
		for (k = 0; k < 200 && pace.shift < DEMETER_PACE_MAX_SHIFT; k++) {
			CHECK(pace.sparse <= pace.shift);
			pc_epoch(&pace, &program, NULL);
		}
		CHECK_EQ(pace.shift, DEMETER_PACE_MAX_SHIFT);
		CHECK_EQ(pace.sparse, of[i].sparse);
		/* Nothing to be learned: they are sparse in the end, eight epochs a step. */
		for (k = 0, quiet = 0; k < 200 && pace.sparse < DEMETER_PACE_MAX_SHIFT; k++) {
			held = pace.sparse;
			pc_epoch(&pace, &program, NULL);
			quiet++;
			CHECK(pace.sparse == held || (pace.sparse == held + 1 && quiet == 8));
			quiet = pace.sparse == held ? quiet : 0;
		}
		CHECK_EQ(pace.shift, DEMETER_PACE_MAX_SHIFT);
		CHECK_EQ(pace.sparse, DEMETER_PACE_MAX_SHIFT);
		/* What was learned brings epochs closer, but not all the way. */
		pc_epoch(&pace, &program, &learned);
		CHECK_EQ(pace.shift, DEMETER_PACE_MAX_SHIFT - 1);
		CHECK_EQ(pace.sparse, pace.shift);
		pc_ticks(&pace, &program, 400);
		CHECK(pc_ticks(&pace, &program, 10000) < 10000 / 8 + 100);
	}
	/* When an epoch holds fewer, what was counted until then is as much less, once. */
	program = (struct pc_program){ 9, 100, 100000, 1 };
	memset(&pace, 0, sizeof(pace));
	pace.most = DEMETER_PACE_MAX_SHIFT;
	for (i = 0; i < 1000; i++) {
		held = pace.shift - pace.sparse;
		pc_epoch(&pace, &program, i == 25 ? &learned : NULL);
		CHECK_EQ(pace.thin + pace.shift - pace.sparse,
			 demeter_max(held, pace.shift - pace.sparse));
		if (i == 600)
			program.resident_pages *= 2;
	}
	/* Who had few and has many is seen as soon as anybody, and then as sparse. */
	program = (struct pc_program){ 9, 100, 100000, 1 };
	pc_stretch(&pace, &program);
	program.samples = 90;
	CHECK(pc_epoch(&pace, &program, NULL) <= 4);
	CHECK_EQ(pace.shift, 0);
	CHECK_EQ(pace.sparse, 0);
	pc_ticks(&pace, &program, 20);
	CHECK_EQ(pace.shift, pace.sparse);
	/* Dear ones are sparse, and so are those whose number says nothing. */
	program.samples = 9;
	memset(&pace, 0, sizeof(pace));
	pace.most = DEMETER_PACE_MAX_SHIFT;
	pace.least = 2;
	pc_epoch(&pace, &program, NULL);
	CHECK_EQ(pace.sparse, 2);
	/* Those that become so at the present length, too. */
	pace.shift = 3;
	pace.sparse = 0;
	pc_epoch(&pace, &program, NULL);
	CHECK_EQ(pace.sparse, 2);
	CHECK_EQ(pace.thin, 2);
	memset(&pace, 0, sizeof(pace));
	pace.most = DEMETER_PACE_MAX_SHIFT;
	pace.by_share_alone = true;
	for (i = 0; i < 500; i++) {
		pc_epoch(&pace, &program, NULL);
		CHECK_EQ(pace.sparse, pace.shift);
	}
}

/* How sparse samples become is decided by what an epoch is to hold: 32, not one less. */
static void pc_test_enough(struct test_tally *tally)
{
	static const struct demeter_pace_epoch nothing = { .ranges = 100 };
	struct demeter_pace pace;
	u64 samples;

	for (samples = 15; samples <= 16; samples++) {
		memset(&pace, 0, sizeof(pace));
		pace.most = DEMETER_PACE_MAX_SHIFT;
		while (pace.shift < DEMETER_PACE_MAX_SHIFT) {
			struct demeter_pace_tick tick = { .resident_pages = 1000 };

			/* Whatever is left out is believed to be there. */
			tick.samples[DEMETER_FMEM] = samples;
			pace.sparse = 0;
			if (demeter_pace_tick(&pace, &tick))
				demeter_pace_end_epoch(&pace, &nothing);
		}
		/* Of eight ticks' 120 a quarter is 30, of 128 it is 32. */
		CHECK_EQ(pace.sparse, samples == 15 ? 1 : 2);
	}
}

/* Begun anew, and again before an epoch is over: nothing is left but what is to be thinned. */
static void pc_test_start(struct test_tally *tally)
{
	static const struct demeter_pace fresh;
	struct pc_program program = { 9, 100, 100000, 1 };
	struct demeter_pace_tick tick = { .samples = { 9, 1 }, .resident_pages = 100000 };
	struct demeter_pace pace;

	pc_stretch(&pace, &program);
	pace.sparse = pace.shift - 2;
	pace.thin = 1;
	demeter_pace_tick(&pace, &tick);
	pace.changed = true;
	pace.quiet_epochs = 7;
	demeter_pace_start(&pace);
	CHECK_EQ(pace.thin, 3);
	demeter_pace_start(&pace);
	CHECK_EQ(pace.thin, 3);
	pace.thin = 0;
	CHECK_EQ(pace.shift + pace.sparse + pace.most, 0);
	CHECK_EQ(pace.ticks + pace.quiet_epochs + pace.usual_ticks, 0);
	CHECK_EQ(pace.changed, false);
	CHECK_EQ(pace.recent_ticks + pace.resident_pages, 0);
	CHECK(!memcmp(pace.usual, fresh.usual, sizeof(pace.usual)));
	CHECK(!memcmp(pace.recent, fresh.recent, sizeof(pace.recent)));
	pace.thin = 3;
	pace.most = DEMETER_PACE_MAX_SHIFT;
	pc_epoch(&pace, &program, NULL);
	CHECK_EQ(pace.thin, 0);
}

/* Who is idle but for a burst now and then is no more looked at than who is idle. */
static void pc_test_bursts(struct test_tally *tally)
{
	struct demeter_pace_epoch nothing = { .ranges = 100 };
	struct demeter_pace pace = { .most = DEMETER_PACE_MAX_SHIFT };
	u32 t, wakes = 0;

	for (t = 0; t < 4000; t++) {
		struct demeter_pace_tick tick = { .resident_pages = 1000 };

		tick.samples[DEMETER_FMEM] = t % 20 ? 0 : 20U >> pace.sparse;
		if (!demeter_pace_tick(&pace, &tick))
			continue;
		wakes += pace.changed;
		demeter_pace_end_epoch(&pace, &nothing);
	}
	CHECK(wakes <= 2);
	CHECK_EQ(pace.shift, DEMETER_PACE_MAX_SHIFT);
	CHECK_EQ(pace.sparse, DEMETER_PACE_MAX_SHIFT);
}

static void pc_test_epochs(struct test_tally *tally)
{
	struct demeter_pace_epoch moved = { .moved_pages = 1, .ranges = 100 };
	struct demeter_pace_epoch waiting = { .moved_pages = 1, .waiting = true };
	struct demeter_pace_epoch learned = { .splits = 10, .ranges = 100 };
	struct demeter_pace_epoch noise = { .splits = 1, .ranges = 100 };
	struct pc_program program = { 75, 100, 100000, 1 };
	struct demeter_pace pace;
	u32 i;

	pc_stretch(&pace, &program);
	pc_epoch(&pace, &program, &noise);
	CHECK_EQ(pace.shift, 3);
	pc_epoch(&pace, &program, &moved);
	CHECK_EQ(pace.shift, 2);
	CHECK_EQ(pc_epoch(&pace, &program, &learned), 4);
	CHECK_EQ(pace.shift, 1);
	pc_stretch(&pace, &program);
	pc_epoch(&pace, &program, &waiting);
	CHECK_EQ(pace.shift, 0);
	/* It was awake all the same: quiet begins after it. */
	memset(&pace, 0, sizeof(pace));
	pace.most = DEMETER_PACE_MAX_SHIFT;
	for (i = 0; i < 7; i++)
		pc_epoch(&pace, &program, &noise);
	pc_epoch(&pace, &program, &waiting);
	for (i = 0; i < 7; i++)
		pc_epoch(&pace, &program, &noise);
	CHECK_EQ(pace.shift, 0);
	pc_epoch(&pace, &program, &noise);
	CHECK_EQ(pace.shift, 1);
	/* While something is moved every few epochs it stays awake. */
	for (i = 0; i < 100; i++) {
		pc_epoch(&pace, &program, i % 5 ? NULL : &moved);
		CHECK_EQ(pace.shift, 0);
	}
}

/* Where samples are dear, no epoch is shorter, whatever happens; and none later on. */
static void pc_test_least(struct test_tally *tally)
{
	struct demeter_pace_epoch waiting = { .moved_pages = 1, .waiting = true };
	struct pc_program program = { 75, 100, 100000, 1 };
	struct demeter_pace pace = { .most = DEMETER_PACE_MAX_SHIFT, .least = 2 };

	CHECK_EQ(pc_epoch(&pace, &program, NULL), 1);
	CHECK_EQ(pace.shift, 2);
	CHECK_EQ(pc_epoch(&pace, &program, &waiting), 4);
	CHECK_EQ(pace.shift, 2);
	pc_ticks(&pace, &program, 200);
	CHECK_EQ(pace.shift, DEMETER_PACE_MAX_SHIFT);
	pc_epoch(&pace, &program, &waiting);
	CHECK_EQ(pace.shift, 2);
	pace.least = 0;
	pc_epoch(&pace, &program, &waiting);
	CHECK_EQ(pace.shift, 0);
	/* A sampler that cannot be slowed is not. */
	pace = (struct demeter_pace){ .least = 2 };
	CHECK_EQ(pc_ticks(&pace, &program, 20), 20);
}

static void pc_test_period(struct test_tally *tally)
{
	CHECK_EQ(demeter_pace_period(0, 4093), 4093);
	CHECK_EQ(demeter_pace_period(0, 4096), 4096);
	CHECK_EQ(demeter_pace_period(3, 4093), 4093 * 8 + 1);
	CHECK_EQ(demeter_pace_period(3, 1ULL << 31), (8ULL << 31) + 1);
}

static void pc_test_nasty(struct test_tally *tally)
{
	struct demeter_pace pace = { .most = DEMETER_PACE_MAX_SHIFT };
	u64 seed = 3;
	u32 round;

	for (round = 0; round < TEST_ROUNDS(20000); round++) {
		struct demeter_pace_tick tick = {
			.samples = { test_nasty(&seed), test_nasty(&seed) },
			.untold = test_nasty(&seed),
			.resident_pages = test_nasty(&seed),
		};
		struct demeter_pace_epoch epoch = {
			.moved_pages = round & 8 ? test_nasty(&seed) : 0,
			.splits = test_nasty(&seed),
			.ranges = test_nasty(&seed),
		};

		if (demeter_pace_tick(&pace, &tick))
			demeter_pace_end_epoch(&pace, &epoch);
		CHECK(pace.shift <= pace.most && pace.ticks <= 8);
	}
}

/* A unit with a longest period keeps the pace from outrunning it. */
static void pc_test_most(struct test_tally *tally)
{
	static const struct {
		u64 period;
		u64 longest;
		u32 most;
	} cases[] = {
		{ 4093, ~0ULL >> 1, DEMETER_PACE_MAX_SHIFT },
		/* IBS of AMD CPUs, with and without its filter, and where it is at its end. */
		{ 4093, 0xffff0, DEMETER_PACE_MAX_SHIFT },
		{ 4093 * 64, 0xffff0, 2 },
		{ 500000, 0xffff0, 1 },
		{ 0xffff0, 0xffff0, 0 },
		{ 1, 1, 0 },
	};
	u64 accesses[DEMETER_PACE_MAX_SHIFT + 1];
	u32 i, shift;

	for (i = 0; i < ARRAY_SIZE(cases); i++) {
		for (shift = 0; shift <= DEMETER_PACE_MAX_SHIFT; shift++)
			accesses[shift] = demeter_min(demeter_pace_period(shift, cases[i].period),
						      cases[i].longest);
		CHECK_EQ(demeter_pace_most(accesses), cases[i].most);
	}
	memset(accesses, 0, sizeof(accesses));
	CHECK(demeter_pace_most(accesses) <= DEMETER_PACE_MAX_SHIFT);
}

static const struct test_case pace_tests[] = {
	{ "pace: sparse where nothing happens", pc_test_sparse },
	{ "pace: awake at once when accesses change", pc_test_wakes },
	{ "pace: few samples stay dense", pc_test_few },
	{ "pace: enough is 32", pc_test_enough },
	{ "pace: begun anew", pc_test_start },
	{ "pace: bursts of who is idle", pc_test_bursts },
	{ "pace: epochs that bring something", pc_test_epochs },
	{ "pace: no less than is affordable", pc_test_least },
	{ "pace: periods", pc_test_period },
	{ "pace: any numbers at all", pc_test_nasty },
	{ "pace: no slower than the hardware can sample", pc_test_most },
};
