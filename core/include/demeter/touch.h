/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Touch: how often parts of an address space are accessed, without a PMU.
 *
 * A page is made to fault once; how long it takes until it does is a sample of
 * the time between accesses. This is the arithmetic: what a granule is known
 * to be accessed, where to look next, and how estimates become samples that
 * ranges.c may count as if a PMU had taken them. Arming pages is the caller's.
 */
#ifndef DEMETER_TOUCH_H
#define DEMETER_TOUCH_H

#include <demeter/deps.h>

/* Touches and exposures carry this many fraction bits, so that forgetting is even. */
#define DEMETER_TOUCH_SHIFT  8
/* Touches of a granule that are remembered, at most. */
#define DEMETER_TOUCH_MEMORY 16U

/**
 * struct demeter_touch - what is known of one granule; all zero to begin with
 * @exposure: time that it was watched for its remembered touches, in
 *	nanoseconds of the whole granule, fixed point: watching one of its 512
 *	pages for 512 ns counts as 1 ns
 * @touches: remembered touches, fixed point
 * @streak_exposure: time that the touches of @streak took together
 * @streak: touches in a row that came much sooner than expected
 * @absent: share of recent looks that found no page, in 1/256
 */
struct demeter_touch {
	u64 exposure;
	u64 streak_exposure;
	u32 touches;
	u16 streak;
	u16 absent;
};

/**
 * struct demeter_touch_sum - all granules of an epoch together
 * @granules: their number
 * @touches: sum of their remembered touches
 * @exposure: sum of their exposures
 * @rate_per_s: sum of their rates, of those that were touched more than once
 * @accesses: sum of their accesses in the epoch
 * @counted: the same, of each no more than counts
 * @hottest: most of one
 * @variance: sum of the variances of what counts
 */
struct demeter_touch_sum {
	u64 granules;
	u64 touches;
	u64 exposure;
	u64 rate_per_s;
	u64 accesses;
	u64 counted;
	u64 hottest;
	u64 variance;
};

/**
 * struct demeter_touch_purse - what looking may cost; all zero to begin with
 * @pages_per_s: pages that may be armed in a second
 * @page_ps: what one costs, in the mean; 0 while not known
 * @saved_ns: CPU time that was not spent; negative: that is owed
 */
struct demeter_touch_purse {
	u64 pages_per_s;
	u64 page_ps;
	s64 saved_ns;
};

u64 demeter_touch_exposure(u64 watched_ns, u64 bytes, u64 granule_bytes);
void demeter_touch_note(struct demeter_touch *touch, u64 exposure, bool touched, u64 mean_per_s);
bool demeter_touch_has_dwelt(u64 watched_ns, u64 bytes, u64 granule_bytes);
void demeter_touch_look(struct demeter_touch *touch, bool found);
u64 demeter_touch_rate(const struct demeter_touch *touch, u64 mean_per_s);
u64 demeter_touch_accesses(u64 rate_per_s, u64 ran_ns);
void demeter_touch_add(struct demeter_touch_sum *sum, const struct demeter_touch *touch,
		       u64 accesses, u64 most);
u64 demeter_touch_most(const struct demeter_touch_sum *sum, u64 ran_ns);
u64 demeter_touch_mean(const struct demeter_touch_sum *sum, u64 before_per_s);
u64 demeter_touch_accesses_per_sample(const struct demeter_touch_sum *sum, u64 before,
				      u64 max_samples);
u64 demeter_touch_share(u64 *carry, u64 amount, u64 unit);
u32 demeter_touch_explore(u32 *turn, u32 granules);
u64 demeter_touch_passed(u64 *before_ns, u64 now_ns);
void demeter_touch_budget(struct demeter_touch_purse *purse, u64 spent_ns, u64 elapsed_ns,
			  u64 usual_per_s, u32 shift);

#endif /* DEMETER_TOUCH_H */
