// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * What an epoch costs on a large machine: core/ itself over many address spaces,
 * as the worker calls it, with all that it is given simulated. 128 CPUs bring
 * 100 000 samples an epoch; nine of ten fall on hot granules. Every granule is
 * resident. Page tables are not walked and pages not moved: of a walk there is only
 * what core/ does with its result, for no fewer entries than an epoch looks at.
 * CPU time of this machine. Of all this demeter.ko does nothing under a lock; what it
 * does under one that grows with the ranges is to copy those of a space for a reader of
 * the file ranges, and that is timed. Its locks themselves are judged in guests
 * (tests/suites/epoch).
 *
 * Fails where an epoch takes more CPU, or such a copy longer, than it may, or where too
 * few hot spots are found.
 * Of those not found, each shares a range with as many others as hot in each quarter
 * of it: the samples then lie as evenly over the quarters as if all of it were warm,
 * and it is never split. The bench counts them apart, so that others would show.
 *
 * usage: epoch_bench [JSON file]
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <demeter/plan.h>
#include <demeter/resident.h>

#include "harness.h"

#define GRANULE	      (2ULL << 20)
#define GRANULE_PAGES 512U
#define FIRST_RANGES  64U
#define MOST_RANGES   16384U
#define ALL_RANGES    32768U
#define LEAST_RANGES  256U
#define MAX_SPACES    100U
#define STEPS	      4096U
#define CPUS	      128U
#define CPU_SAMPLES   781U /* an epoch */
#define EPOCHS	      60U
#define WALK_ENTRIES  262144U
#define COPIES	      3U
#define SWEEP_BYTES   (32U << 20)

#ifndef MOST_EPOCH_US
#define MOST_EPOCH_US 50000
#endif
#ifndef MOST_HELD_US
#define MOST_HELD_US 1000
#endif
#ifndef LEAST_FOUND_PERCENT
#define LEAST_FOUND_PERCENT 95
#endif

/**
 * struct shape - one machine
 * @name: for the report
 * @spaces: address spaces
 * @granules: of each
 * @spots: hot granules of each
 */
struct shape {
	const char *name;
	u32 spaces;
	u32 granules;
	u32 spots;
};

static const struct shape shapes[] = {
	{ "1 space of 1 TiB, 2000 hot spots", 1, 524288, 2000 },
	{ "100 spaces of 20 GiB, 20 hot spots each", 100, 10240, 20 },
};

struct space {
	struct demeter_ranges ranges;
	struct demeter_resident resident;
};

static struct space space[MAX_SPACES];
static struct demeter_rank_entry *entries, *copied;
static u8 *sweep;
static struct demeter_plan_step step[STEPS];

static const struct demeter_plan_params economy = {
	.sample_period = 4093,
	.epoch_ns = 500000000,
	.latency_gap_ps = 107900,
	.horizon_ns = 10000000000ULL,
	.swap_cost_ns = 3000,
	.move_cost_ns = 2000,
	.hysteresis_permille = 250,
	.significance = 2,
	.rate_pages_per_s = 262144,
};

static double cpu_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static u64 spot_of(const struct shape *shape, u32 s, u32 spot)
{
	u64 seed = ((u64)s << 32) + spot * 7919ULL + 1;

	return test_random(&seed) % shape->granules * GRANULE;
}

/* What a walk over one leaf finds: every fifth granule is in FMEM. */
static void walk_leaf(struct space *sp, u64 start, u64 end)
{
	struct demeter_cells cells = { 0 };
	struct demeter_leaf *leaf = test_alloc(sizeof(*leaf));
	u32 i;

	for (i = 0; i < (end - start) / GRANULE; i++)
		cells.pages[i][i % 5 ? DEMETER_SMEM : DEMETER_FMEM] = GRANULE_PAGES;
	if (demeter_resident_set(&sp->resident, start, end, &cells, leaf) != 1)
		test_free(leaf);
}

static u64 walk_space(const struct shape *shape, struct space *sp)
{
	u64 at, end = shape->granules * GRANULE, next;

	for (at = 0; at < end; at = next) {
		next = at + demeter_resident_leaf_bytes(&sp->resident);
		next = next < end ? next : end;
		walk_leaf(sp, at, next);
	}
	return shape->granules;
}

static void start(const struct shape *shape)
{
	static const struct demeter_ranges_params params = DEMETER_RANGES_PARAMS_DEFAULT;
	u32 s;

	for (s = 0; s < shape->spaces; s++) {
		struct space *sp = &space[s];

		memset(sp, 0, sizeof(*sp));
		demeter_ranges_init(&sp->ranges,
				    test_alloc(FIRST_RANGES * sizeof(struct demeter_range)),
				    FIRST_RANGES, &params);
		demeter_ranges_set_area(&sp->ranges, 0, 0, shape->granules * GRANULE);
		sp->resident.cell_shift = demeter_resident_cell_shift(GRANULE);
		sp->resident.capacity = shape->granules / DEMETER_LEAF_CELLS + 1;
		sp->resident.leaf = test_alloc(sp->resident.capacity * sizeof(void *));
		walk_space(shape, sp);
	}
}

static void finish(const struct shape *shape)
{
	u32 s, i;

	for (s = 0; s < shape->spaces; s++) {
		for (i = 0; i < space[s].resident.nr; i++)
			test_free(space[s].resident.leaf[i]);
		test_free(space[s].resident.leaf);
		test_free(space[s].ranges.range);
	}
}

static void sample(const struct shape *shape, u64 *seed)
{
	u32 i;

	for (i = 0; i < CPUS * CPU_SAMPLES; i++) {
		u32 s = (u32)(test_random(seed) % shape->spaces);
		u64 gva = test_random(seed) % (shape->granules * GRANULE);

		if (i % 10)
			gva = spot_of(shape, s, (u32)(test_random(seed) % shape->spots)) +
			      gva % GRANULE;
		demeter_ranges_sample(&space[s].ranges, gva);
	}
}

/* As targets.c does; the share of each is equal here. */
static void grow(const struct shape *shape, struct demeter_ranges *rs)
{
	u32 share = ALL_RANGES / shape->spaces;
	u32 most = share > MOST_RANGES ? MOST_RANGES : share < LEAST_RANGES ? LEAST_RANGES : share;
	u32 capacity = demeter_ranges_room_wanted(rs, most);

	if (capacity != rs->capacity)
		test_free(demeter_ranges_grow(rs, test_alloc(capacity * sizeof(*rs->range)),
					      capacity));
}

static u32 gather(const struct shape *shape)
{
	u32 nr = 0, before, s;

	for (s = 0; s < shape->spaces; s++) {
		before = nr;
		nr = demeter_rank_gather(&space[s].ranges, s, entries, nr, 2 * ALL_RANGES);
		demeter_resident_sum(&space[s].resident, entries + before, nr - before);
	}
	return nr;
}

/* All that was planned moves, and is booked. */
static void book(const struct demeter_plan *plan)
{
	u32 i;

	for (i = 0; i < plan->nr; i++) {
		const struct demeter_rank_entry *hot = &entries[plan->step[i].hot];
		const struct demeter_rank_entry *cold = &entries[plan->step[i].cold];

		demeter_resident_move(&space[hot->space].resident, hot->start, hot->end,
				      DEMETER_SMEM, plan->step[i].pages);
		if (plan->step[i].kind == DEMETER_PLAN_SWAP)
			demeter_resident_move(&space[cold->space].resident, cold->start, cold->end,
					      DEMETER_FMEM, plan->step[i].pages);
	}
}

/**
 * struct cost - what was measured
 * @epoch_us: mean of an epoch, samples excluded
 * @worst_epoch_us: the worst
 * @worst_space_us: worst time in which one space's ranges are in the making
 * @worst_held_us: time for the copy of one space's ranges, of the space where it is worst
 * @sample_us: what an epoch's samples took, mean
 * @ranges: at the end
 * @found: hot spots in a range of at most two granules
 * @even: others, in ranges with as many hot spots in each quarter
 * @denied: splits denied for want of room
 */
struct cost {
	double epoch_us;
	double worst_epoch_us;
	double worst_space_us;
	double worst_held_us;
	double sample_us;
	u32 ranges;
	u32 found;
	u32 even;
	u64 denied;
};

static void one_epoch(const struct shape *shape, struct demeter_plan_state *state, u32 epoch,
		      struct cost *cost)
{
	struct demeter_plan plan = { .step = step, .capacity = STEPS };
	double begun = cpu_us(), mark, spent;
	u32 nr, s;
	u64 walked;

	for (s = 0; s < shape->spaces; s++) {
		mark = cpu_us();
		grow(shape, &space[s].ranges);
		demeter_ranges_end_epoch(&space[s].ranges, NULL);
		spent = cpu_us() - mark;
		cost->worst_space_us = spent > cost->worst_space_us ? spent : cost->worst_space_us;
	}
	/* One entry a granule: huge pages. From where the last epoch's walk ended. */
	for (s = epoch, walked = 0; walked < WALK_ENTRIES && s < epoch + shape->spaces; s++)
		walked += walk_space(shape, &space[s % shape->spaces]);
	nr = gather(shape);
	demeter_rank(entries, nr);
	demeter_plan_make(&plan, state, &economy, entries, nr, 0, epoch * economy.epoch_ns);
	book(&plan);
	spent = cpu_us() - begun;
	cost->epoch_us += spent / EPOCHS;
	cost->worst_epoch_us = spent > cost->worst_epoch_us ? spent : cost->worst_epoch_us;
}

/* Has each quarter of @r as many hot spots as the others? */
static bool lies_even(const struct shape *shape, u32 s, const struct demeter_range *r)
{
	u64 quarter = (r->end - r->start) / DEMETER_QUARTERS;
	u32 spots[DEMETER_QUARTERS] = { 0 }, i;

	for (i = 0; i < shape->spots; i++) {
		u64 gva = spot_of(shape, s, i);

		if (gva >= r->start && gva < r->end)
			spots[(gva - r->start) / quarter]++;
	}
	for (i = 1; i < DEMETER_QUARTERS; i++)
		if (spots[i] != spots[0])
			return false;
	return true;
}

static void count_found(const struct shape *shape, struct cost *cost)
{
	u32 s, i;

	for (s = 0; s < shape->spaces; s++) {
		for (i = 0; i < shape->spots; i++) {
			const struct demeter_range *r =
				demeter_ranges_find(&space[s].ranges, spot_of(shape, s, i));

			if (r->end - r->start <= 2 * GRANULE)
				cost->found++;
			else
				cost->even += lies_even(shape, s, r);
		}
	}
}

/* Says which bound is broken. */
static bool holds(const struct shape *shape, const struct cost *cost)
{
	u32 spots = shape->spots * shape->spaces;
	bool quick = cost->worst_epoch_us <= MOST_EPOCH_US;
	bool lets_in = cost->worst_held_us <= MOST_HELD_US;
	bool finds = (u64)cost->found * 100 >= (u64)spots * LEAST_FOUND_PERCENT;

	printf("%s - %s: at most %.0f ms of CPU an epoch: %.2f\n", quick ? "ok" : "not ok",
	       shape->name, MOST_EPOCH_US / 1e3, cost->worst_epoch_us / 1e3);
	printf("%s - %s: at most %.1f ms for a copy that a lock is held for: %.3f\n",
	       lets_in ? "ok" : "not ok", shape->name, MOST_HELD_US / 1e3,
	       cost->worst_held_us / 1e3);
	printf("%s - %s: at least %u %% of the hot spots found: %.1f; of the others, %u of %u lie as dense in each quarter of a range\n",
	       finds ? "ok" : "not ok", shape->name, LEAST_FOUND_PERCENT,
	       100.0 * cost->found / spots, cost->even, spots - cost->found);
	return quick && lets_in && finds;
}

/*
 * What a reader gets, space by space: dump.c does this under the lock of the space. The quickest
 * of a few is what the copy takes, the others hold what else the machine did meanwhile. Caches
 * are cold for each: a reader comes seldom.
 */
static void read_out(const struct shape *shape, struct cost *cost)
{
	double least[MAX_SPACES], begun, spent;
	u32 s, i;

	for (i = 0; i < COPIES; i++) {
		memset(sweep, (int)i, SWEEP_BYTES);
		for (s = 0; s < shape->spaces; s++) {
			begun = cpu_us();
			demeter_rank_gather(&space[s].ranges, s, copied, 0, ALL_RANGES);
			spent = cpu_us() - begun;
			least[s] = i == 0 || spent < least[s] ? spent : least[s];
		}
	}
	for (s = 0; s < shape->spaces; s++)
		cost->worst_held_us =
			least[s] > cost->worst_held_us ? least[s] : cost->worst_held_us;
}

static void run(const struct shape *shape, struct cost *cost)
{
	struct demeter_plan_state state = { 0 };
	u32 epoch, s;
	u64 seed = 1;

	memset(cost, 0, sizeof(*cost));
	start(shape);
	for (epoch = 0; epoch < EPOCHS; epoch++) {
		double mark = cpu_us();

		sample(shape, &seed);
		cost->sample_us += (cpu_us() - mark) / EPOCHS;
		one_epoch(shape, &state, epoch, cost);
		read_out(shape, cost);
	}
	for (s = 0; s < shape->spaces; s++) {
		cost->ranges += space[s].ranges.nr;
		cost->denied += space[s].ranges.denied_splits;
	}
	count_found(shape, cost);
	finish(shape);
}

int main(int argc, char **argv)
{
	FILE *json = argc > 1 && argv[1][0] ? fopen(argv[1], "w") : NULL;
	bool all_hold = true;
	struct cost cost;
	u32 i;

	entries = test_alloc(2 * ALL_RANGES * sizeof(*entries));
	copied = test_alloc(ALL_RANGES * sizeof(*copied));
	sweep = test_alloc(SWEEP_BYTES);
	if (!entries || !copied || !sweep || (argc > 1 && argv[1][0] && !json)) {
		fprintf(stderr, "epoch_bench: cannot write %s: %s\n", argc > 1 ? argv[1] : "",
			strerror(errno));
		return 1;
	}
	if (json)
		fprintf(json, "{\n  \"format\": 1,\n  \"shapes\": [");
	for (i = 0; i < ARRAY_SIZE(shapes); i++) {
		const struct shape *shape = &shapes[i];

		run(shape, &cost);
		printf("%s, %u CPUs: %.2f ms an epoch, at most %.2f; %.2f for one space at most; %.2f for %u samples; %u of %u found, %u ranges, %llu splits denied\n",
		       shape->name, CPUS, cost.epoch_us / 1e3, cost.worst_epoch_us / 1e3,
		       cost.worst_space_us / 1e3, cost.sample_us / 1e3, CPUS * CPU_SAMPLES,
		       cost.found, shape->spots * shape->spaces, cost.ranges,
		       (test_ull)cost.denied);
		all_hold &= holds(shape, &cost);
		if (json)
			fprintf(json,
				"%s\n    {\"name\": \"%s\", \"granules\": %u, \"epoch_us\": %.1f, "
				"\"worst_epoch_us\": %.1f, \"worst_space_us\": %.1f, "
				"\"worst_held_us\": %.1f, \"sample_us\": %.1f, "
				"\"ranges\": %u, \"spots\": %u, \"found\": %u, \"even\": %u, \"denied\": %llu}",
				i ? "," : "", shape->name, shape->spaces * shape->granules,
				cost.epoch_us, cost.worst_epoch_us, cost.worst_space_us,
				cost.worst_held_us, cost.sample_us, cost.ranges,
				shape->spots * shape->spaces, cost.found, cost.even,
				(test_ull)cost.denied);
	}
	if (json) {
		fprintf(json, "\n  ]\n}\n");
		if (fclose(json)) {
			fprintf(stderr, "epoch_bench: cannot write %s: %s\n", argv[1],
				strerror(errno));
			return 1;
		}
	}
	test_free(entries);
	test_free(copied);
	test_free(sweep);
	return !all_hold;
}
