// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * What core/ costs: ns per sample and us per epoch (end_epoch, gather, rank,
 * plan) by number of ranges, and a hot 2 MiB found in 64 TiB. Best of several
 * rounds, wall clock of this machine. usage: bench [JSON file]
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <demeter/channel.h>
#include <demeter/plan.h>

#include "harness.h"

#define GRANULE	    (2ULL << 20)
#define MOST_RANGES 1024U
#define STEPS	    256U
#define ROUNDS	    9U
#define SAMPLES	    200000U
#define EPOCHS	    200U

struct bench {
	struct demeter_ranges ranges;
	struct demeter_range memory[MOST_RANGES];
	struct demeter_rank_entry entry[MOST_RANGES];
	struct demeter_plan_step step[STEPS];
	struct demeter_plan_state state;
};

static struct bench b;
static u64 gva[SAMPLES];

static const struct demeter_plan_params economy = {
	.sample_period = 4093,
	.epoch_ns = 500000000,
	.latency_gap_ps = 107900,
	.horizon_ns = 10000000000ULL,
	.swap_cost_ns = 3000,
	.move_cost_ns = 2000,
	.hysteresis_permille = 500,
	.significance = 2,
};

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* As many ranges as asked for: an area whose edge is busy grows by a new one. */
static void fill(u32 wanted)
{
	struct demeter_ranges_params p = DEMETER_RANGES_PARAMS_DEFAULT;
	u32 i;

	p.merge_epochs = ~0U;
	p.split_samples = DEMETER_MAX_SPLIT_SAMPLES;
	demeter_ranges_init(&b.ranges, b.memory, MOST_RANGES, &p);
	for (i = 0; i < wanted; i++) {
		demeter_ranges_set_area(&b.ranges, 0, 0, (i + 1) * GRANULE);
		demeter_ranges_sample(&b.ranges, i * GRANULE);
	}
}

static double sample_ns(u64 span, u64 *seed)
{
	double best = 1e18;
	u32 round, i;

	for (i = 0; i < SAMPLES; i++)
		gva[i] = test_random(seed) % span;
	for (round = 0; round < ROUNDS; round++) {
		double start = now_ns(), spent;

		for (i = 0; i < SAMPLES; i++)
			demeter_ranges_sample(&b.ranges, gva[i]);
		spent = (now_ns() - start) / SAMPLES;
		best = spent < best ? spent : best;
	}
	return best;
}

static void one_epoch(u64 fmem_below)
{
	struct demeter_plan plan = { .step = b.step, .capacity = STEPS };
	u32 nr, i;

	demeter_ranges_end_epoch(&b.ranges, NULL);
	nr = demeter_rank_gather(&b.ranges, 0, b.entry, 0, MOST_RANGES);
	for (i = 0; i < nr; i++) {
		u64 pages = (b.entry[i].end - b.entry[i].start) / DEMETER_PAGE_BYTES;

		b.entry[i].pages[b.entry[i].end > fmem_below] = pages;
	}
	demeter_rank(b.entry, nr);
	demeter_plan_make(&plan, &b.state, &economy, b.entry, nr, 0, 0);
}

/* The samples in between are not timed. */
static double epoch_us(u64 span, u64 *seed)
{
	double best = 1e18;
	u32 round, epoch, i;

	for (round = 0; round < ROUNDS; round++) {
		double spent = 0;

		for (epoch = 0; epoch < EPOCHS; epoch++) {
			double start;

			for (i = 0; i < 2000; i++)
				demeter_ranges_sample(&b.ranges, test_random(seed) % span);
			start = now_ns();
			one_epoch(span / 5);
			spent += now_ns() - start;
		}
		spent /= 1e3 * EPOCHS;
		best = spent < best ? spent : best;
	}
	return best;
}

static double channel_ns(void)
{
	static struct demeter_channel_slot slot[1024];
	struct demeter_channel ch;
	struct demeter_sample s = { 0 };
	double best = 1e18;
	u32 round, lap, i;

	demeter_channel_init(&ch, slot, 1024);
	for (round = 0; round < ROUNDS; round++) {
		double start = now_ns(), spent;

		for (lap = 0; lap < 200; lap++) {
			for (i = 0; i < 1024; i++)
				demeter_channel_push(&ch, &s);
			for (i = 0; i < 1024; i++)
				demeter_channel_pop(&ch, &s);
		}
		spent = (now_ns() - start) / (200 * 1024);
		best = spent < best ? spent : best;
	}
	return best;
}

int main(int argc, char **argv)
{
	static const u32 sizes[] = { 10, 100, 1000 };
	static const struct demeter_ranges_params params = DEMETER_RANGES_PARAMS_DEFAULT;
	u64 seed = 1, hot = 0x2345 * GRANULE, huge = 1ULL << 46;
	FILE *json = argc > 1 && argv[1][0] ? fopen(argv[1], "w") : NULL;
	u32 i, epoch, most = 0, found = 0, splits = 0;
	double ns, us;

	if (argc > 1 && argv[1][0] && !json) {
		fprintf(stderr, "bench: cannot write %s: %s\n", argv[1], strerror(errno));
		return 1;
	}
	ns = channel_ns();
	printf("channel: %.1f ns to push and pop a sample\n", ns);
	if (json)
		fprintf(json, "{\n  \"format\": 1,\n  \"channel_ns\": %.2f,\n  \"ranges\": [", ns);
	for (i = 0; i < ARRAY_SIZE(sizes); i++) {
		fill(sizes[i]);
		ns = sample_ns(sizes[i] * GRANULE, &seed);
		us = epoch_us(sizes[i] * GRANULE, &seed);
		printf("%4u ranges: %.1f ns a sample, %.1f us an epoch\n", b.ranges.nr, ns, us);
		if (json)
			fprintf(json,
				"%s\n    {\"ranges\": %u, \"sample_ns\": %.2f, \"epoch_us\": %.2f}",
				i ? "," : "", b.ranges.nr, ns, us);
	}

	/* 9 of 10 samples in one granule of 64 TiB. */
	demeter_ranges_init(&b.ranges, b.memory, MOST_RANGES, &params);
	demeter_ranges_set_area(&b.ranges, 0, 0, huge);
	us = 0;
	for (epoch = 1; epoch <= 200; epoch++) {
		double start;

		for (i = 0; i < 2000; i++) {
			u64 x = test_random(&seed);

			demeter_ranges_sample(&b.ranges, i % 10 ? hot + x % GRANULE : x % huge);
		}
		start = now_ns();
		one_epoch(huge / 5);
		us += (now_ns() - start) / 1e3;
		most = b.ranges.nr > most ? b.ranges.nr : most;
		if (!found && demeter_ranges_find(&b.ranges, hot)->end -
					      demeter_ranges_find(&b.ranges, hot)->start ==
				      GRANULE) {
			found = epoch;
			splits = (u32)b.ranges.splits;
		}
	}
	us /= 200;
	printf("64 TiB: hot 2 MiB found with %u splits in %u epochs, at most %u ranges, %.1f us an epoch\n",
	       splits, found, most, us);
	if (json) {
		fprintf(json,
			"\n  ],\n  \"space_64_tib\": {\"splits\": %u, \"epochs\": %u, "
			"\"most_ranges\": %u, \"epoch_us\": %.2f}\n}\n",
			splits, found, most, us);
		if (fclose(json)) {
			fprintf(stderr, "bench: cannot write %s: %s\n", argv[1], strerror(errno));
			return 1;
		}
	}
	return 0;
}
