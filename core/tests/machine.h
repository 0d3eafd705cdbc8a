/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * A toy machine for the tests: one fully touched area, each granule with so
 * many pages in FMEM, the pipeline of core/ on top, and plans that are carried
 * out at once. It has no clock but the epoch.
 */
#ifndef DEMETER_TESTS_MACHINE_H
#define DEMETER_TESTS_MACHINE_H

#include <demeter/plan.h>

#include "harness.h"

#define MACHINE_GRANULE (2ULL << 20)
#define MACHINE_PAGES	512U /* 4 KiB pages a granule */
#define MACHINE_BASE	(1ULL << 32)
#define MACHINE_RANGES	256U
#define MACHINE_STEPS	64U

struct machine {
	struct demeter_ranges ranges;
	struct demeter_range memory[MACHINE_RANGES];
	struct demeter_rank_entry entry[MACHINE_RANGES];
	struct demeter_plan_step step[MACHINE_STEPS];
	struct demeter_plan plan;
	struct demeter_plan_params params;
	struct demeter_plan_state state;
	u32 granules;
	u64 seed;
	u64 samples;
	u64 fmem_samples;
	u16 fmem[];
};

/* The paper's latencies (PMEM) and epoch; costs as of a slow migration. */
static const struct demeter_plan_params machine_params = {
	.sample_period = 4093,
	.epoch_ns = 500000000,
	.latency_gap_ps = 176600 - 68700,
	.horizon_ns = 10000000000ULL,
	.swap_cost_ns = 3000,
	.move_cost_ns = 2000,
	.hysteresis_permille = 500,
	.significance = 2,
};

/* @fmem_granules at the low end are in FMEM: first touch. */
static inline struct machine *machine_new(u32 granules, u32 fmem_granules, u64 seed)
{
	static const struct demeter_ranges_params params = DEMETER_RANGES_PARAMS_DEFAULT;
	struct machine *m = test_alloc(sizeof(*m) + granules * sizeof(m->fmem[0]));
	u32 g;

	demeter_ranges_init(&m->ranges, m->memory, MACHINE_RANGES, &params);
	demeter_ranges_set_area(&m->ranges, 0, MACHINE_BASE,
				MACHINE_BASE + granules * MACHINE_GRANULE);
	m->plan.step = m->step;
	m->plan.capacity = MACHINE_STEPS;
	m->params = machine_params;
	m->granules = granules;
	m->seed = seed;
	for (g = 0; g < granules; g++)
		m->fmem[g] = g < fmem_granules ? MACHINE_PAGES : 0;
	return m;
}

static inline void machine_sample(struct machine *m, u32 granule)
{
	u64 offset = test_random(&m->seed) % MACHINE_GRANULE;

	demeter_ranges_sample(&m->ranges, MACHINE_BASE + granule * MACHINE_GRANULE + offset);
	m->samples++;
	if (offset / DEMETER_PAGE_BYTES < m->fmem[granule])
		m->fmem_samples++;
}

/* Samples evenly over [from, from + granules). */
static inline void machine_spray(struct machine *m, u32 samples, u32 from, u32 granules)
{
	while (samples--)
		machine_sample(m, from + (u32)(test_random(&m->seed) % granules));
}

static inline void machine_move(struct machine *m, const struct demeter_rank_entry *e, u64 pages,
				bool promote)
{
	u32 g = (u32)((e->start - MACHINE_BASE) / MACHINE_GRANULE);
	u32 end = (u32)((e->end - MACHINE_BASE) / MACHINE_GRANULE);

	for (; g < end && pages; g++) {
		u32 can = promote ? MACHINE_PAGES - m->fmem[g] : m->fmem[g];

		can = can < pages ? can : (u32)pages;
		m->fmem[g] = (u16)(promote ? m->fmem[g] + can : m->fmem[g] - can);
		pages -= can;
	}
}

/* End the epoch, decide, carry out. Returns pages relocated. */
static inline u64 machine_epoch(struct machine *m, u64 free_pages)
{
	u32 nr, i, g;

	demeter_ranges_end_epoch(&m->ranges, NULL);
	nr = demeter_rank_gather(&m->ranges, 0, m->entry, 0, MACHINE_RANGES);
	for (i = 0; i < nr; i++) {
		struct demeter_rank_entry *e = &m->entry[i];

		for (g = (u32)((e->start - MACHINE_BASE) / MACHINE_GRANULE);
		     g < (e->end - MACHINE_BASE) / MACHINE_GRANULE; g++) {
			e->pages[DEMETER_FMEM] += m->fmem[g];
			e->pages[DEMETER_SMEM] += MACHINE_PAGES - m->fmem[g];
		}
	}
	demeter_rank(m->entry, nr);
	demeter_plan_make(&m->plan, &m->state, &m->params, m->entry, nr, free_pages,
			  m->ranges.epoch * m->params.epoch_ns);
	for (i = 0; i < m->plan.nr; i++) {
		const struct demeter_plan_step *step = &m->step[i];

		machine_move(m, &m->entry[step->hot], step->pages, true);
		if (step->kind == DEMETER_PLAN_SWAP)
			machine_move(m, &m->entry[step->cold], step->pages, false);
	}
	return m->plan.fill_pages + 2 * m->plan.swap_pages;
}

/* Start the shares of samples anew. */
static inline void machine_forget(struct machine *m)
{
	m->samples = 0;
	m->fmem_samples = 0;
}

/* Pages in FMEM of [from, from + granules). */
static inline u64 machine_fmem(const struct machine *m, u32 from, u32 granules)
{
	u64 pages = 0;
	u32 g;

	for (g = from; g < from + granules; g++)
		pages += m->fmem[g];
	return pages;
}

#endif /* DEMETER_TESTS_MACHINE_H */
