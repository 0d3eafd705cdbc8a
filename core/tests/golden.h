/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Replay of a golden trace: text in, one decision digest out. The same text is
 * replayed in user space, in the kernel and through the Rust wrappers.
 *
 * A trace has one command a line, words separated by one space, numbers decimal
 * or 0x hexadecimal, # starts a comment line:
 *
 *	space CAPACITY TAU ALPHA VCPUS MERGE GRANULE	a new address space
 *	use SPACE				commands below are for this one
 *	area AREA START END
 *	params TAU ALPHA VCPUS MERGE GRANULE
 *	hit GVA COUNT				COUNT samples at one address
 *	spray SEED COUNT START END		COUNT samples anywhere in between;
 *						each repetition draws new ones
 *	epoch					ends in all spaces
 *	economy PERIOD EPOCH_NS GAP_PS HORIZON_NS SWAP_NS MOVE_NS HYSTERESIS
 *		ALPHA RATE BURST STEPS
 *	plan FREE_PAGES FMEM_BELOW STEP_NS	the clock goes on by STEP_NS, then
 *						plan; everything is resident, pages
 *						below the address FMEM_BELOW in FMEM
 *	repeat TIMES ... end			not nested
 */
#ifndef DEMETER_TESTS_GOLDEN_H
#define DEMETER_TESTS_GOLDEN_H

#include <demeter/digest.h>
#include <demeter/math.h>
#include <demeter/plan.h>

#include "harness.h"

#define GOLDEN_SPACES 4U
#define GOLDEN_RANGES 512U
#define GOLDEN_STEPS  64U
#define GOLDEN_WORDS  12U

struct golden_trace {
	const char *name;
	const char *text;
	u64 digest;
};

struct golden {
	struct demeter_ranges ranges[GOLDEN_SPACES];
	struct demeter_range memory[GOLDEN_SPACES][GOLDEN_RANGES];
	struct demeter_rank_entry entry[GOLDEN_SPACES * GOLDEN_RANGES];
	struct demeter_plan_step step[GOLDEN_STEPS];
	struct demeter_plan_params params;
	struct demeter_plan_state state;
	u32 steps;
	u32 spaces;
	u32 active;
	u64 repetition;
	u64 now_ns;
	u64 digest;
};

static inline u64 golden_number(const char **at)
{
	u64 value = 0, base = 10;
	const char *c = *at;

	while (*c == ' ' || *c == '\t')
		c++;
	if (c[0] == '0' && c[1] == 'x') {
		base = 16;
		c += 2;
	}
	for (;; c++) {
		if (*c >= '0' && *c <= '9')
			value = value * base + (u64)(*c - '0');
		else if (base == 16 && *c >= 'a' && *c <= 'f')
			value = value * base + (u64)(*c - 'a' + 10);
		else
			break;
	}
	*at = c;
	return value;
}

static inline bool golden_word(const char **at, const char *word)
{
	const char *c = *at;

	while (*word && *c == *word) {
		c++;
		word++;
	}
	if (*word || (*c != ' ' && *c != '\n' && *c != '\0'))
		return false;
	*at = c;
	return true;
}

static inline void golden_plan(struct golden *g, u64 free_pages, u64 fmem_below)
{
	struct demeter_plan plan = { .step = g->step, .capacity = g->steps };
	u32 nr = 0, i;

	for (i = 0; i < g->spaces; i++)
		nr = demeter_rank_gather(&g->ranges[i], i, g->entry, nr,
					 GOLDEN_SPACES * GOLDEN_RANGES);
	for (i = 0; i < nr; i++) {
		struct demeter_rank_entry *e = &g->entry[i];
		u64 cut = demeter_max(e->start, demeter_min(e->end, fmem_below));

		e->pages[DEMETER_FMEM] = (cut - e->start) >> DEMETER_PAGE_SHIFT;
		e->pages[DEMETER_SMEM] = (e->end - cut) >> DEMETER_PAGE_SHIFT;
	}
	demeter_rank(g->entry, nr);
	g->digest = demeter_rank_digest(g->entry, nr, g->digest);
	demeter_plan_make(&plan, &g->state, &g->params, g->entry, nr, free_pages, g->now_ns);
	g->digest = demeter_plan_digest(&plan, g->digest);
}

static inline int golden_line(struct golden *g, const char *at)
{
	struct demeter_ranges *rs = &g->ranges[g->active];
	const char *line = at;
	u64 w[GOLDEN_WORDS], seed, i;

	/* All words behind the command; those that are missing are 0. */
	while (*line && *line != ' ' && *line != '\n')
		line++;
	for (i = 0; i < GOLDEN_WORDS; i++)
		w[i] = golden_number(&line);

	if (golden_word(&at, "space")) {
		struct demeter_ranges_params p = {
			(u32)w[1], (u32)w[2], (u32)w[3], (u32)w[4], w[5],
		};

		if (g->spaces == GOLDEN_SPACES || w[0] > GOLDEN_RANGES)
			return -EINVAL;
		g->active = g->spaces++;
		return demeter_ranges_init(&g->ranges[g->active], g->memory[g->active], (u32)w[0],
					   &p);
	}
	if (golden_word(&at, "economy")) {
		memset(&g->params, 0, sizeof(g->params));
		g->params.sample_period = w[0];
		g->params.epoch_ns = w[1];
		g->params.latency_gap_ps = w[2];
		g->params.horizon_ns = w[3];
		g->params.swap_cost_ns = w[4];
		g->params.move_cost_ns = w[5];
		g->params.hysteresis_permille = (u32)w[6];
		g->params.significance = (u32)w[7];
		g->params.rate_pages_per_s = w[8];
		g->params.burst_pages = w[9];
		g->steps = w[10] < GOLDEN_STEPS ? (u32)w[10] : GOLDEN_STEPS;
		return 0;
	}
	if (g->spaces == 0)
		return -EINVAL;
	if (golden_word(&at, "use")) {
		if (w[0] >= g->spaces)
			return -EINVAL;
		g->active = (u32)w[0];
	} else if (golden_word(&at, "area")) {
		int err = demeter_ranges_set_area(rs, (u32)w[0], w[1], w[2]);

		g->digest = demeter_digest_add(g->digest, (u64)(s64)err);
	} else if (golden_word(&at, "params")) {
		struct demeter_ranges_params p = {
			(u32)w[0], (u32)w[1], (u32)w[2], (u32)w[3], w[4],
		};
		int err = demeter_ranges_set_params(rs, &p);

		g->digest = demeter_digest_add(g->digest, (u64)(s64)err);
	} else if (golden_word(&at, "hit")) {
		for (i = 0; i < w[1]; i++)
			demeter_ranges_sample(rs, w[0]);
	} else if (golden_word(&at, "spray")) {
		if (w[3] <= w[2])
			return -EINVAL;
		seed = w[0] + (g->repetition << 32);
		for (i = 0; i < w[1]; i++)
			demeter_ranges_sample(rs, w[2] + test_random(&seed) % (w[3] - w[2]));
	} else if (golden_word(&at, "epoch")) {
		for (i = 0; i < g->spaces; i++) {
			demeter_ranges_end_epoch(&g->ranges[i], NULL);
			g->digest = demeter_ranges_digest(&g->ranges[i], g->digest);
		}
	} else if (golden_word(&at, "plan")) {
		g->now_ns += w[2];
		golden_plan(g, w[0], w[1]);
	} else {
		return -EINVAL;
	}
	return 0;
}

static inline const char *golden_next_line(const char *at)
{
	while (*at && *at != '\n')
		at++;
	return *at ? at + 1 : at;
}

/* 0 and the digest in @digest, or -EINVAL for a trace that makes no sense. */
static inline int golden_replay(const char *text, u64 *digest)
{
	struct golden *g = test_alloc(sizeof(*g));
	const char *loop = NULL, *at, *next;
	u64 left = 0;
	int err = 0;

	if (!g)
		return -ENOMEM;
	g->digest = demeter_digest_start(0);
	for (at = text; *at && !err; at = next) {
		next = golden_next_line(at);
		if (*at == '#' || *at == '\n')
			continue;
		if (golden_word(&at, "repeat")) {
			left = golden_number(&at);
			g->repetition = 0;
			loop = next;
		} else if (golden_word(&at, "end")) {
			test_yield();
			if (loop && left > 1) {
				left--;
				g->repetition++;
				next = loop;
			} else {
				loop = NULL;
				g->repetition = 0;
			}
		} else {
			err = golden_line(g, at);
		}
	}
	*digest = g->digest;
	test_free(g);
	return err;
}

#endif /* DEMETER_TESTS_GOLDEN_H */
