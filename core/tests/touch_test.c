// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Touch: rates are right, samples are not surer than the touches they rest on. */
#include <demeter/math.h>
#include <demeter/ranges.h>
#include <demeter/touch.h>

#include "harness.h"

#define TT_GRANULE  (2ULL << 20)
#define TT_S	    1000000000ULL
#define TT_BASE	    BIT_ULL(32)
#define TT_GRANULES 256U
#define TT_TICK_NS  16000000ULL
#define TT_TICKS    4U /* an epoch */

/* -ln(u) * 2^16 for a random u: an exponential variate of mean 1, from log2 by squaring. */
static u64 tt_exponential(u64 *seed)
{
	u64 u = test_random(seed) | 1, x, log2 = 0;
	u32 top = demeter_log2(u), bit;

	x = u << (63 - top) >> 32; /* [2^31, 2^32) */
	for (bit = 0; bit < 16; bit++) {
		x = (x * x) >> 31;
		log2 <<= 1;
		if (x >> 32) {
			x >>= 1;
			log2 |= 1;
		}
	}
	log2 += (u64)top << 16;
	/* 64 - log2(u), times ln 2 */
	return (((64ULL << 16) - log2) * 45426) >> 16;
}

/* Time until the next access at a rate, in ns. */
static u64 tt_wait(u64 *seed, u64 per_s)
{
	return per_s ? demeter_mul_div(tt_exponential(seed), TT_S, per_s << 16) : ~0ULL;
}

/**
 * struct tt_space - a toy of what the guest does: granules, marks, a clock
 * @rate: true accesses of each granule a second
 * @touch: what is known of it
 * @left_ns: until the mark is touched, 0 = none armed
 * @since_ns: for how long it has been armed and not noted
 */
struct tt_space {
	u64 rate[TT_GRANULES];
	struct demeter_touch touch[TT_GRANULES];
	u64 left_ns[TT_GRANULES];
	u64 since_ns[TT_GRANULES];
	u64 accesses[TT_GRANULES];
	u32 follow[1024];
	u32 nr_follow;
	u32 next;
	u32 turn;
	u64 mean;
	u64 accesses_per_sample;
	u64 most_per_s;
	u64 carry;
	u64 seed;
	u64 bytes; /* armed at a time */
	u64 touches;
};

static struct tt_space *tt_new(u64 seed, u64 bytes)
{
	struct tt_space *s = test_alloc(sizeof(*s));

	s->seed = seed;
	s->most_per_s = DEMETER_U64_MAX;
	s->bytes = bytes;
	return s;
}

static void tt_arm(struct tt_space *s, u32 g)
{
	u64 part = TT_GRANULE / s->bytes, exposure;

	if (s->left_ns[g]) {
		/* Still armed: another page may be luckier. */
		exposure = demeter_touch_exposure(s->since_ns[g], s->bytes, TT_GRANULE);
		demeter_touch_note(&s->touch[g], exposure, false, s->mean);
	}
	demeter_touch_look(&s->touch[g], true);
	s->left_ns[g] = tt_wait(&s->seed, s->rate[g]);
	s->left_ns[g] = demeter_add_sat(demeter_mul_sat(s->left_ns[g], part), 1);
	s->since_ns[g] = 0;
}

static void tt_run(struct tt_space *s, u64 ns)
{
	u32 g;

	for (g = 0; g < TT_GRANULES; g++) {
		if (!s->left_ns[g])
			continue;
		if (s->left_ns[g] > ns) {
			s->left_ns[g] -= ns;
			s->since_ns[g] += ns;
			continue;
		}
		s->since_ns[g] += s->left_ns[g];
		s->left_ns[g] = 0;
		demeter_touch_note(&s->touch[g],
				   demeter_touch_exposure(s->since_ns[g], s->bytes, TT_GRANULE),
				   true, s->mean);
		s->touches++;
	}
}

/* One epoch: ticks, estimates, samples into @ranges if there are any. Returns samples. */
static u64 tt_epoch(struct tt_space *s, u32 arms, struct demeter_ranges *ranges)
{
	struct demeter_touch_sum sum = { 0 };
	u64 *x = s->accesses, follow = 0, samples = 0, known, k;
	u64 most = demeter_touch_accesses(s->most_per_s, TT_TICKS * TT_TICK_NS);
	u32 tick, i, g;

	for (tick = 0; tick < TT_TICKS; tick++) {
		for (i = 0; i < arms; i++) {
			bool turn = i & 1 || s->next >= s->nr_follow;

			g = turn ? demeter_touch_explore(&s->turn, TT_GRANULES)
				 : s->follow[s->next++];
			if (!s->left_ns[g] ||
			    demeter_touch_has_dwelt(s->since_ns[g], s->bytes, TT_GRANULE))
				tt_arm(s, g);
		}
		tt_run(s, TT_TICK_NS);
	}
	for (g = 0; g < TT_GRANULES; g++) {
		u64 rate;

		if (s->left_ns[g]) {
			u64 seen = demeter_touch_exposure(s->since_ns[g], s->bytes, TT_GRANULE);

			demeter_touch_note(&s->touch[g], seen, false, s->mean);
			s->since_ns[g] = 0;
		}
		rate = demeter_touch_rate(&s->touch[g], s->mean);
		x[g] = demeter_touch_accesses(rate, TT_TICKS * TT_TICK_NS);
		demeter_touch_add(&sum, &s->touch[g], x[g], most);
	}
	s->most_per_s = demeter_touch_most(&sum, TT_TICKS * TT_TICK_NS);
	known = s->mean;
	s->mean = demeter_touch_mean(&sum, known);
	if (!known)
		return 0;
	s->accesses_per_sample =
		demeter_touch_accesses_per_sample(&sum, s->accesses_per_sample, 4096);
	s->nr_follow = 0;
	s->next = 0;
	for (g = 0; g < TT_GRANULES; g++) {
		k = demeter_touch_share(&s->carry, x[g], s->accesses_per_sample);
		samples += k;
		while (ranges && k--)
			demeter_ranges_sample(ranges, TT_BASE + g * TT_GRANULE +
							      test_random(&s->seed) % TT_GRANULE);
		k = demeter_touch_share(&follow, demeter_min(x[g], most),
					sum.counted / (arms * TT_TICKS / 2) + 1);
		while (k-- && s->nr_follow < 1024)
			s->follow[s->nr_follow++] = g;
	}
	/* Turns of one granule must not follow each other. */
	for (i = s->nr_follow; i > 1; i--) {
		u32 other = (u32)(test_random(&s->seed) % i);
		u32 kept = s->follow[i - 1];

		s->follow[i - 1] = s->follow[other];
		s->follow[other] = kept;
	}
	return samples;
}

static void tt_test_estimate(struct test_tally *tally)
{
	static const u64 rates[] = { 40, 1877, 219700 };
	u32 i, k, rounds = TEST_ROUNDS(4000);
	u64 seed = 3;

	for (i = 0; i < ARRAY_SIZE(rates); i++) {
		struct demeter_touch touch = { 0 };
		u64 sum = 0;

		for (k = 0; k < rounds; k++) {
			u64 wait = tt_wait(&seed, rates[i]);

			demeter_touch_note(&touch, demeter_touch_exposure(wait, 1, 1), true,
					   rates[i]);
			sum += demeter_touch_rate(&touch, rates[i]);
		}
		sum /= rounds;
		/* A mean of 1/E over 8 touches is biased upwards by about 1/7. */
		CHECK(sum > rates[i] * 9 / 10 && sum < rates[i] * 14 / 10);
	}
}

static void tt_test_page_for_granule(struct test_tally *tally)
{
	struct demeter_touch whole = { 0 }, page = { 0 };
	u32 i;

	/* One page of 512 is touched a 512th as often. */
	for (i = 0; i < 8; i++) {
		demeter_touch_note(&whole, demeter_touch_exposure(5000, TT_GRANULE, TT_GRANULE),
				   true, 1000);
		demeter_touch_note(&page, demeter_touch_exposure(5000 * 512, 4096, TT_GRANULE),
				   true, 1000);
	}
	CHECK_EQ(demeter_touch_rate(&whole, 1000), demeter_touch_rate(&page, 1000));
	/* Where half of the looks find nothing, the rest is worth half. */
	for (i = 0; i < 64; i++)
		demeter_touch_look(&page, i & 1);
	CHECK(demeter_touch_rate(&page, 1000) < demeter_touch_rate(&whole, 1000) * 6 / 10);
	CHECK(demeter_touch_rate(&page, 1000) > demeter_touch_rate(&whole, 1000) * 4 / 10);
	for (i = 0; i < 64; i++)
		demeter_touch_look(&page, false);
	CHECK(demeter_touch_rate(&page, 1000) < demeter_touch_rate(&whole, 1000) / 8);
}

static void tt_test_change(struct test_tally *tally)
{
	struct demeter_touch touch = { 0 };
	u32 i;

	/* Nothing known: average. */
	CHECK_EQ(demeter_touch_rate(&touch, 5000), 5000);
	/* One touch at once is no proof of anything. */
	demeter_touch_note(&touch, 0, true, 5000);
	CHECK(demeter_touch_rate(&touch, 5000) <= 5 * 5000);
	for (i = 0; i < 20; i++)
		demeter_touch_note(&touch, demeter_touch_exposure(5000, 1, 1), true, 5000);
	CHECK(demeter_touch_rate(&touch, 5000) > 50000);
	/* Untouched for a tick: as cold as what is remembered, spread over it; then half of it. */
	demeter_touch_note(&touch, demeter_touch_exposure(TT_TICK_NS, 1, 1), false, 5000);
	CHECK(demeter_touch_rate(&touch, 5000) < (DEMETER_TOUCH_MEMORY + 1) * TT_S / TT_TICK_NS);
	demeter_touch_note(&touch, demeter_touch_exposure(TT_TICK_NS, 1, 1), false, 5000);
	CHECK(demeter_touch_rate(&touch, 5000) < 1000);
	/* Three soon touches: hot, whatever was before. */
	for (i = 0; i < 100; i++)
		demeter_touch_note(&touch, demeter_touch_exposure(TT_TICK_NS, 1, 1), false, 5000);
	for (i = 0; i < 3; i++)
		demeter_touch_note(&touch, demeter_touch_exposure(5000, 1, 1), true, 5000);
	CHECK(demeter_touch_rate(&touch, 5000) > 40000);
}

/* GUPS: 20 hot granules of 256, by whole granules and by pages. */
static void tt_find_hot(struct test_tally *tally, u64 bytes)
{
	struct tt_space *s = tt_new(11, bytes);
	u32 g, epoch, found = 0;
	u64 coldest = ~0ULL;

	for (g = 0; g < TT_GRANULES; g++)
		s->rate[g] = g >= 100 && g < 120 ? 219700 : 1877;
	for (epoch = 0; epoch < 16; epoch++)
		tt_epoch(s, 32, NULL);
	for (g = 100; g < 120; g++)
		coldest = demeter_min(coldest, demeter_touch_rate(&s->touch[g], s->mean));
	for (g = 0; g < TT_GRANULES; g++)
		found += (g < 100 || g >= 120) &&
			 demeter_touch_rate(&s->touch[g], s->mean) >= coldest;
	CHECK(found <= 2);
	CHECK(coldest > 20000);
	test_free(s);
}

static void tt_test_find_hot(struct test_tally *tally)
{
	tt_find_hot(tally, TT_GRANULE);
	tt_find_hot(tally, 4096);
}

/* All granules alike: splits in so many epochs, and the samples that were taken. */
static u64 tt_false_splits(struct demeter_range *memory, u64 bytes, u64 rate, u32 epochs,
			   u64 *samples)
{
	static const struct demeter_ranges_params params = DEMETER_RANGES_PARAMS_DEFAULT;
	struct tt_space *s = tt_new(17, bytes);
	struct demeter_ranges rs;
	u32 epoch, g;

	demeter_ranges_init(&rs, memory, 256, &params);
	demeter_ranges_set_area(&rs, 0, TT_BASE, TT_BASE + TT_GRANULES * TT_GRANULE);
	for (g = 0; g < TT_GRANULES; g++)
		s->rate[g] = rate;
	for (epoch = 0; epoch < epochs; epoch++) {
		*samples += tt_epoch(s, 32, &rs);
		demeter_ranges_end_epoch(&rs, NULL);
	}
	test_free(s);
	return rs.splits;
}

/* The same from a source of independent samples. */
static u64 tt_false_splits_poisson(struct demeter_range *memory, u64 samples, u32 epochs)
{
	static const struct demeter_ranges_params params = DEMETER_RANGES_PARAMS_DEFAULT;
	struct demeter_ranges rs;
	u64 seed = 31, left;
	u32 epoch;

	demeter_ranges_init(&rs, memory, 256, &params);
	demeter_ranges_set_area(&rs, 0, TT_BASE, TT_BASE + TT_GRANULES * TT_GRANULE);
	for (epoch = 0; epoch < epochs; epoch++) {
		for (left = samples / epochs; left; left--)
			demeter_ranges_sample(&rs, TT_BASE + test_random(&seed) %
								     (TT_GRANULES * TT_GRANULE));
		demeter_ranges_end_epoch(&rs, NULL);
	}
	return rs.splits;
}

static void tt_test_noise(struct test_tally *tally)
{
	struct demeter_range *memory = test_alloc(256 * sizeof(*memory));
	u32 epochs = TEST_ROUNDS(600), k;

	for (k = 0; k < 2; k++) {
		u64 samples = 0, splits, chance;

		splits = tt_false_splits(memory, k ? TT_GRANULE : 4096, k ? 200000 : 2000, epochs,
					 &samples);
		chance = tt_false_splits_poisson(memory, samples, epochs);
		test_print("# touch: %llu splits of nothing by %llu samples, %llu by chance\n",
			   (test_ull)splits, (test_ull)samples, (test_ull)chance);
		CHECK(samples > epochs * 16);
		CHECK(splits <= 2 * chance + 6);
	}
	test_free(memory);
}

static void tt_test_ranges_find_hot(struct test_tally *tally)
{
	static const struct demeter_ranges_params params = DEMETER_RANGES_PARAMS_DEFAULT;
	struct demeter_range *memory = test_alloc(256 * sizeof(*memory));
	struct tt_space *s = tt_new(23, TT_GRANULE);
	struct demeter_ranges rs;
	u64 hot = 0, cold = 0;
	u32 epoch, g;

	demeter_ranges_init(&rs, memory, 256, &params);
	demeter_ranges_set_area(&rs, 0, TT_BASE, TT_BASE + TT_GRANULES * TT_GRANULE);
	for (g = 0; g < TT_GRANULES; g++)
		s->rate[g] = g >= 100 && g < 120 ? 219700 : 1877;
	for (epoch = 0; epoch < 40; epoch++) {
		tt_epoch(s, 32, &rs);
		demeter_ranges_end_epoch(&rs, NULL);
	}
	for (g = 0; g < TT_GRANULES; g++) {
		struct demeter_range *r = demeter_ranges_find(&rs, TT_BASE + g * TT_GRANULE);
		u64 density = r ? r->rate / ((r->end - r->start) / TT_GRANULE) : 0;

		if (g >= 100 && g < 120)
			hot += density;
		else
			cold += density;
	}
	CHECK(hot / 20 > 10 * (cold / (TT_GRANULES - 20)));
	test_free(s);
	test_free(memory);
}

static void tt_test_shares(struct test_tally *tally)
{
	u32 turn = 0, seen[7] = { 0 }, i;
	u64 carry = 0, sum = 0, total = 0;
	u64 seed = 5;

	for (i = 0; i < 1000; i++) {
		u64 amount = test_random(&seed) % 100;

		total += amount;
		sum += demeter_touch_share(&carry, amount, 37);
	}
	CHECK_EQ(sum, total / 37);
	for (i = 0; i < 700; i++)
		seen[demeter_touch_explore(&turn, 7)]++;
	for (i = 0; i < 7; i++)
		CHECK(seen[i] > 90 && seen[i] < 110);
}

/* So many epochs of half a second in which a page costs so much; what they cost in all. */
static u64 tt_spend(struct demeter_touch_purse *purse, u64 page_ns, u64 epochs, u32 shift)
{
	u64 sum = 0;

	while (epochs--) {
		u64 spent = purse->pages_per_s * page_ns / 2;

		demeter_touch_budget(purse, spent, TT_S / 2, 2500, shift);
		sum += spent;
	}
	return sum;
}

static void tt_test_budget(struct test_tally *tally)
{
	struct demeter_touch_purse purse = {};

	/* 4 us each, a limit of 3.125 ms a second: so many in the end. */
	tt_spend(&purse, 4000, 200, 0);
	CHECK(purse.pages_per_s > 750 && purse.pages_per_s < 800);
	/* Cheap: four times as many as usual, as there is something to learn. */
	tt_spend(&purse, 100, 200, 0);
	CHECK_EQ(purse.pages_per_s, 10000);
	/* And where there is not, a part of the usual. */
	tt_spend(&purse, 100, 1, 3);
	CHECK_EQ(purse.pages_per_s, 312);
	/* However dear, a few are left. */
	tt_spend(&purse, TT_S, 20, 0);
	CHECK_EQ(purse.pages_per_s, 50);
}

/* Who has just begun looks closer, and so does who has been sparse; neither for long. */
static void tt_test_saved(struct test_tally *tally)
{
	struct demeter_touch_purse purse = {};
	u64 spent, sparse;

	tt_spend(&purse, 2000, 1, 0);
	spent = tt_spend(&purse, 2000, 2, 0);
	CHECK(spent > 10000000);
	/* 3.1 ms were saved, and ten seconds bring 31.3. */
	spent += tt_spend(&purse, 2000, 18, 0);
	CHECK(spent > 25000000 && spent < 42000000);
	spent = tt_spend(&purse, 2000, 20, 0);
	CHECK(spent < 36000000);
	/* Ten seconds at an eighth of the pace save nearly all of it. */
	tt_spend(&purse, 2000, 1, 3);
	sparse = tt_spend(&purse, 2000, 20, 3);
	CHECK(sparse < 7000000);
	tt_spend(&purse, 2000, 1, 0);
	spent = tt_spend(&purse, 2000, 2, 0);
	CHECK(spent > 4000000);
}

/* Whatever pages cost by turns, the share is kept in the long run: what was dear is owed. */
static void tt_test_noisy_cost(struct test_tally *tally)
{
	static const u64 permille[][4] = {
		{ 100, 1900, 100, 1900 },
		{ 100, 100, 1900, 1900 },
		{ 1000, 1000, 1000, 1000 },
		{ 50, 50, 50, 3850 },
	};
	u32 kind, page_ns, i;

	for (kind = 0; kind < 4; kind++) {
		for (page_ns = 2000; page_ns <= 8000; page_ns *= 2) {
			struct demeter_touch_purse purse = {};
			u64 spent = 0, worst = 0, window = 0;

			for (i = 0; i < 2000; i++) {
				u64 now = tt_spend(&purse, page_ns * permille[kind][i % 4] / 1000,
						   1, 0);

				spent += now;
				window += now;
				if (i % 20 == 19) {
					worst = demeter_max(worst, window);
					window = 0;
				}
			}
			CHECK(spent < 1000 * TT_S / 300);
			/* Ten seconds hold what was saved, too; but who was cheap until now, and */
			/* costs eighty times as much at once, is told so only afterwards. */
			CHECK(kind == 3 || worst < 10 * TT_S / 75);
		}
	}
}

static void tt_test_nasty(struct test_tally *tally)
{
	u32 i, rounds = TEST_ROUNDS(100000);
	u64 seed = 29, carry = 0, before = 0;
	struct demeter_touch_purse purse;

	for (i = 0; i < rounds; i++) {
		struct demeter_touch touch = { 0 };
		struct demeter_touch_sum sum = { 0 };
		u64 mean = test_nasty(&seed), x, k;

		for (k = 0; k < 6; k++) {
			demeter_touch_note(&touch,
					   demeter_touch_exposure(test_nasty(&seed),
								  test_nasty(&seed),
								  test_nasty(&seed)),
					   test_random(&seed) & 1, mean);
			demeter_touch_look(&touch, test_random(&seed) & 1);
			x = demeter_touch_accesses(demeter_touch_rate(&touch, mean),
						   test_nasty(&seed));
			demeter_touch_add(&sum, &touch, x, test_nasty(&seed));
		}
		CHECK(touch.absent <= 256);
		CHECK(touch.touches <= 9 * 256);
		before = demeter_touch_accesses_per_sample(&sum, before, test_nasty(&seed));
		CHECK(before >= 1);
		demeter_touch_share(&carry, test_nasty(&seed), before);
		CHECK(carry < before);
		carry = 0;
		purse = (struct demeter_touch_purse){ test_nasty(&seed), test_nasty(&seed),
						      (s64)test_nasty(&seed) };
		demeter_touch_budget(&purse, test_nasty(&seed), test_nasty(&seed), 1000,
				     (u32)test_nasty(&seed));
		CHECK(purse.pages_per_s <= 4000);
	}
}

/* Hot ones among hundreds of cold: the mean must follow, or none is believed to be hot. */
static void tt_test_few_hot(struct test_tally *tally)
{
	struct tt_space *s = tt_new(31, TT_GRANULE);
	u64 rate;
	u32 g, i;

	for (g = 0; g < TT_GRANULES; g++)
		s->rate[g] = 10;
	for (i = 0; i < 50; i++)
		tt_epoch(s, 40, NULL);
	CHECK(s->mean && s->mean < 100);
	for (g = 100; g < 103; g++)
		s->rate[g] = 100000;
	for (i = 0; i < 100; i++)
		tt_epoch(s, 40, NULL);
	for (g = 100; g < 103; g++) {
		rate = demeter_touch_rate(&s->touch[g], s->mean);
		CHECK(rate > 25000 && rate < 400000);
	}
	test_free(s);
}

/* Whoever is a small part of a granule makes room soon, and the whole of it never. */
static void tt_test_dwell(struct test_tally *tally)
{
	u64 ms = 1000000, page = 4096, large = 2 << 20;

	CHECK(!demeter_touch_has_dwelt(10 * ms - 1, page, large));
	CHECK(demeter_touch_has_dwelt(10 * ms, page, large));
	CHECK(!demeter_touch_has_dwelt(1000000 * ms, large, large));
	CHECK(!demeter_touch_has_dwelt(1000000 * ms, 2 * large, large));
	CHECK(!demeter_touch_has_dwelt(50 * ms - 1, large, 16 * large));
	CHECK(demeter_touch_has_dwelt(50 * ms, large, 16 * large));
	CHECK(demeter_touch_has_dwelt(10 * ms, large, 32 * large));
	CHECK(!demeter_touch_has_dwelt(1000000 * ms, page, page));
}

/* Two that are a hundred times as hot as the hot ones leave these their samples. */
static void tt_test_dominators(struct test_tally *tally)
{
	struct tt_space *s = tt_new(37, TT_GRANULE);
	u64 accesses;
	u32 g, i;

	for (g = 0; g < TT_GRANULES; g++)
		s->rate[g] = g < 2 ? 10000000 : g < 22 ? 100000 : 10;
	for (i = 0; i < 100; i++) {
		tt_epoch(s, 40, NULL);
		for (accesses = 0, g = 2; g < 22; g++)
			accesses += s->accesses[g];
		/* An epoch's samples of twenty granules. */
		CHECK(i < 60 || accesses / s->accesses_per_sample >= 16);
	}
	test_free(s);
}

/* A clock that goes back is no time at all, and what it makes up for is not counted twice. */
static void tt_test_passed(struct test_tally *tally)
{
	u64 before = 0, seed = 5, now = 0, most = 0, sum = 0;
	u32 i;

	CHECK_EQ(demeter_touch_passed(&before, 1000), 1000);
	CHECK_EQ(demeter_touch_passed(&before, 999), 0);
	CHECK_EQ(before, 1000);
	CHECK_EQ(demeter_touch_passed(&before, 1001), 1);
	before = 0;
	for (i = 0; i < 1000; i++) {
		now = demeter_sub_sat(now + test_random(&seed) % 100, 40);
		most = demeter_max(most, now);
		sum += demeter_touch_passed(&before, now);
		CHECK_EQ(sum, most);
	}
}

static const struct test_case touch_tests[] = {
	{ "touch: a rate is what it is, at any rate", tt_test_estimate },
	{ "touch: a page stands for its granule", tt_test_page_for_granule },
	{ "touch: what turns cold or hot is seen soon", tt_test_change },
	{ "touch: hot granules are found, by huge and by small pages", tt_test_find_hot },
	{ "touch: few hot granules among many cold ones", tt_test_few_hot },
	{ "touch: a small part of a granule makes room soon", tt_test_dwell },
	{ "touch: a few of the hottest do not hide the hot", tt_test_dominators },
	{ "touch: samples are not surer than touches", tt_test_noise },
	{ "touch: ranges find the hot spot from its samples", tt_test_ranges_find_hot },
	{ "touch: shares and turns are even", tt_test_shares },
	{ "touch: the budget keeps to its part of the time", tt_test_budget },
	{ "touch: costs that vary are paid all the same", tt_test_noisy_cost },
	{ "touch: what was saved is spent where there is something to learn", tt_test_saved },
	{ "touch: no time passes when a clock goes back", tt_test_passed },
	{ "touch: survives any input", tt_test_nasty },
};
