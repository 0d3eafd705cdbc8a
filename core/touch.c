// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Touch: see <demeter/touch.h>.
 *
 * A granule of rate r faults after a time that is exponential with mean 1/r,
 * and whatever rule ends the watching, n touches in an exposure of E are best
 * explained by r = n/E. What was armed and not touched yet is exposure, too.
 * A little is added to both, as if a fraction of a touch had been seen at the
 * mean rate of all: a granule never looked at is an average one, and no single
 * early touch makes a granule more than a few times as hot as the mean. That
 * matters where one page stands for 512 of which it may be the only hot one.
 *
 * That mean must not be one of rates so drawn to it: n touches at once are believed
 * to be 4 n times the mean at most, so with fewer than one granule in 4 n hot each
 * mean would be below the one before, until nothing is believed. Of an exponential
 * time, (n - 1)/E is the rate without bias, however the rates of others lie.
 *
 * How sure is such a rate? Its relative variance is 1/n: the information is
 * the number of touches, however high the rate. ranges.c and plan.c take a
 * count of k samples to have the variance k. So an estimate of x accesses an
 * epoch must not become so many samples that they claim to be surer than it
 * is. With A accesses a sample, k = x/A, and over all granules
 *
 *	claimed: sum x/A	true: sum (x/A)^2 / n
 *
 * agree where A = sum(x^2/n) / sum(x). ranges.c adds up what it was told in
 * earlier epochs, half as much each time: a steady x counts as 2x/A, while it
 * rests on the same remembered touches, not on twice as many. Hence
 *
 *	A = 2 sum(x^2/n) / sum(x).
 *
 * It is the hot granules that decide A, which is right: cold ones are then
 * known better than claimed, and tests err towards doing nothing. But a very few,
 * such as those with a program's variables, whose accesses caches serve, would decide
 * it alone, and leave no sample to what is merely hot. So for A, and for where to
 * look, none counts for more than 1/TOUCH_PARTS of all, down to 1/TOUCH_SPAN of the
 * hottest. Those few claim to be surer than they are; that they are hottest is sure.
 *
 * Where to look: the variance of the sum of rates is least for a given number
 * of touches when these go to granules in proportion to their rates, which is
 * what a PMU does by itself. Half of the budget follows that; the other half
 * visits all granules in turn, or what turns hot would never be seen.
 *
 * What turns cold shows at once, as it stays armed. What turns hot would have
 * to outweigh a long remembered exposure: so three touches in a row that each
 * come eight times sooner than expected (by chance once in 600) make it forget
 * all before them.
 */
#include <demeter/math.h>
#include <demeter/touch.h>

#define TOUCH_NS_PER_S	   1000000000ULL
/* A touch, and the part of one that every granule begins with. */
#define TOUCH_ONE	   ((u32)BIT_ULL(DEMETER_TOUCH_SHIFT))
#define TOUCH_PRIOR	   (TOUCH_ONE / 4)
/* Much sooner than expected is by this factor, and this often in a row. */
#define TOUCH_SOONER	   8U
#define TOUCH_STREAK	   3U
/* No longer than this is remembered of a granule that nobody touches: 100 s. */
#define TOUCH_EXPOSURE_MAX ((100ULL * TOUCH_NS_PER_S) << DEMETER_TOUCH_SHIFT)
/* Looks that found no page: a moving average over this many, as a shift. */
#define TOUCH_ABSENT_SHIFT 3
/* More accesses a second than memory could serve to one program prove nothing. */
#define TOUCH_RATE_MAX	   BIT_ULL(24)
/* The mean changes by this factor an epoch at most, as a shift: few touches make it noisy. */
#define TOUCH_MEAN_SHIFT   2
/* What a granule counts for at most: a part of all, or of the hottest. */
#define TOUCH_PARTS	   8U
#define TOUCH_SPAN	   16U
/* Keeps sums far from wrapping: more accesses than any granule has in an epoch. */
#define TOUCH_ACCESSES_MAX BIT_ULL(40)
/* Part of the time that looking may take; leaves room for what a fault costs unseen. */
#define TOUCH_TIME_SHARE   320U
/* What that leaves unspent is saved, up to that of a second; that of ten can be owed. */
#define TOUCH_SAVED_NS	   (TOUCH_NS_PER_S / TOUCH_TIME_SHARE)
#define TOUCH_OWED_NS	   (10 * TOUCH_NS_PER_S / TOUCH_TIME_SHARE)
/* While there is something to learn, so much denser than usual. */
#define TOUCH_DENSER	   4U
/* What a page costs is a mean over so many epochs, as a shift. */
#define TOUCH_COST_SHIFT   3
#define TOUCH_COST_MAX_PS  (1000 * TOUCH_NS_PER_S)
/* Fewer looks a second would learn nothing. */
#define TOUCH_LEAST_PER_S  50U
/* A small part of a granule, and how long it, or a larger one, is watched in vain. */
#define TOUCH_SMALL_PART   16U
#define TOUCH_DWELL_NS	   (50 * (TOUCH_NS_PER_S / 1000))
#define TOUCH_DWELL_SMALL  (10 * (TOUCH_NS_PER_S / 1000))

/**
 * demeter_touch_exposure - time watched, as kept in struct demeter_touch
 * @watched_ns: time that @bytes were armed
 * @bytes: what was armed, at most @granule_bytes
 * @granule_bytes: size of a granule, a power of two
 *
 * Return: fixed point.
 */
u64 demeter_touch_exposure(u64 watched_ns, u64 bytes, u64 granule_bytes)
{
	watched_ns = demeter_min(watched_ns, TOUCH_EXPOSURE_MAX);
	return demeter_mul_div(watched_ns << DEMETER_TOUCH_SHIFT, demeter_min(bytes, granule_bytes),
			       demeter_max(granule_bytes, 1));
}

/* Is this touch far too soon for what is believed of the granule? */
static bool touch_sooner(const struct demeter_touch *touch, u64 exposure, u64 mean_per_s)
{
	u64 expected = demeter_mul_sat(demeter_touch_rate(touch, mean_per_s), TOUCH_SOONER);

	/* exposure * rate * 8 < 1 s */
	return !demeter_wide_above(demeter_mul_wide(exposure, expected),
				   demeter_mul_wide(TOUCH_NS_PER_S, TOUCH_ONE));
}

/**
 * demeter_touch_note - a granule was watched
 * @touch: what is known of it
 * @exposure: for how long, from demeter_touch_exposure()
 * @touched: a touch ended it; otherwise nobody came until now
 * @mean_per_s: mean rate of all granules
 */
void demeter_touch_note(struct demeter_touch *touch, u64 exposure, bool touched, u64 mean_per_s)
{
	exposure = demeter_min(exposure, TOUCH_EXPOSURE_MAX);
	if (!touched) {
		touch->streak = 0;
		touch->streak_exposure = 0;
		touch->exposure = demeter_min(touch->exposure + exposure, TOUCH_EXPOSURE_MAX);
		return;
	}
	if (touch->touches && touch_sooner(touch, exposure, mean_per_s)) {
		touch->streak++;
		touch->streak_exposure += exposure;
	} else {
		touch->streak = 0;
		touch->streak_exposure = 0;
	}
	if (touch->streak == TOUCH_STREAK) {
		touch->touches = TOUCH_STREAK * TOUCH_ONE;
		touch->exposure = touch->streak_exposure;
		touch->streak = 0;
		touch->streak_exposure = 0;
		return;
	}
	if (touch->touches >= DEMETER_TOUCH_MEMORY * TOUCH_ONE) {
		touch->touches -= touch->touches / DEMETER_TOUCH_MEMORY;
		touch->exposure -= touch->exposure / DEMETER_TOUCH_MEMORY;
	}
	touch->touches += TOUCH_ONE;
	touch->exposure = demeter_min(touch->exposure + exposure, TOUCH_EXPOSURE_MAX);
}

/**
 * demeter_touch_has_dwelt - shall another page of a granule be armed
 * @watched_ns: for how long this one has been, in vain; time in which its program ran
 * @bytes: its size
 * @granule_bytes: that of the granule
 *
 * To watch the same page anew would tell nothing. But a base page is one of 512, of which a
 * few may have all that is accessed: they are found by looking at many.
 *
 * Return: whether it makes room.
 */
bool demeter_touch_has_dwelt(u64 watched_ns, u64 bytes, u64 granule_bytes)
{
	if (bytes >= granule_bytes)
		return false;
	if (bytes < granule_bytes / TOUCH_SMALL_PART)
		return watched_ns >= TOUCH_DWELL_SMALL;
	return watched_ns >= TOUCH_DWELL_NS;
}

/**
 * demeter_touch_look - a page of a granule was to be armed
 * @touch: what is known of the granule
 * @found: there was one; otherwise nothing is mapped there
 */
void demeter_touch_look(struct demeter_touch *touch, bool found)
{
	touch->absent -= touch->absent >> TOUCH_ABSENT_SHIFT;
	if (!found)
		touch->absent += 256U >> TOUCH_ABSENT_SHIFT;
}

/**
 * demeter_touch_rate - accesses of a granule
 * @touch: what is known of it
 * @mean_per_s: mean rate of all granules
 *
 * Return: per second in which its program runs.
 */
u64 demeter_touch_rate(const struct demeter_touch *touch, u64 mean_per_s)
{
	u64 prior = demeter_mul_div(TOUCH_PRIOR, TOUCH_NS_PER_S, demeter_max(mean_per_s, 1));
	u64 rate = demeter_mul_div((u64)touch->touches + TOUCH_PRIOR, TOUCH_NS_PER_S,
				   demeter_max(demeter_add_sat(touch->exposure, prior), 1));

	return demeter_mul_div(rate, 256U - demeter_min(touch->absent, 255), 256);
}

/**
 * demeter_touch_accesses - accesses of a granule in an epoch
 * @rate_per_s: its rate
 * @ran_ns: time that its program ran
 *
 * Return: accesses.
 */
u64 demeter_touch_accesses(u64 rate_per_s, u64 ran_ns)
{
	return demeter_min(demeter_mul_div(rate_per_s, ran_ns, TOUCH_NS_PER_S), TOUCH_ACCESSES_MAX);
}

/* The rate that touches alone tell; 0 for fewer than two. */
static u64 touch_unbiased(const struct demeter_touch *touch)
{
	u64 rate;

	if (touch->touches <= TOUCH_ONE)
		return 0;
	rate = demeter_mul_div((u64)touch->touches - TOUCH_ONE, TOUCH_NS_PER_S,
			       demeter_max(touch->exposure, 1));
	rate = demeter_mul_div(rate, 256U - demeter_min(touch->absent, 255), 256);
	return demeter_min(rate, TOUCH_RATE_MAX);
}

/**
 * demeter_touch_add - add up the granules of an epoch
 * @sum: the sums, zero to begin with
 * @touch: what is known of a granule
 * @accesses: its accesses in the epoch
 * @most: what it counts for at most, from demeter_touch_most()
 */
void demeter_touch_add(struct demeter_touch_sum *sum, const struct demeter_touch *touch,
		       u64 accesses, u64 most)
{
	u64 counted = demeter_min(accesses, most);
	u64 variance = demeter_mul_div(demeter_mul_sat(counted, counted), TOUCH_ONE,
				       (u64)touch->touches + TOUCH_PRIOR);

	sum->granules++;
	sum->touches = demeter_add_sat(sum->touches, touch->touches);
	sum->exposure = demeter_add_sat(sum->exposure, touch->exposure);
	sum->rate_per_s = demeter_add_sat(sum->rate_per_s, touch_unbiased(touch));
	sum->accesses = demeter_add_sat(sum->accesses, accesses);
	sum->counted = demeter_add_sat(sum->counted, counted);
	sum->hottest = demeter_max(sum->hottest, accesses);
	sum->variance = demeter_add_sat(sum->variance, variance);
}

/**
 * demeter_touch_most - what a granule counts for in the next epoch
 * @sum: the sums of this one
 * @ran_ns: time that its program ran
 *
 * Return: accesses a second; no limit where nothing ran.
 */
u64 demeter_touch_most(const struct demeter_touch_sum *sum, u64 ran_ns)
{
	u64 most = demeter_max(sum->counted / TOUCH_PARTS, sum->hottest / TOUCH_SPAN);

	if (!most || !ran_ns)
		return DEMETER_U64_MAX;
	/* One more, or a shorter epoch would have none. */
	return demeter_mul_div(demeter_add_sat(most, 1), TOUCH_NS_PER_S, ran_ns);
}

/**
 * demeter_touch_mean - mean rate of all granules
 * @sum: the sums
 * @before_per_s: the mean before, 0 = none was known
 *
 * The first mean is that of all touches together, in which slow granules count for too
 * much, and the next is better.
 *
 * Return: per second; 0 while nothing was touched.
 */
u64 demeter_touch_mean(const struct demeter_touch_sum *sum, u64 before_per_s)
{
	u64 pooled;

	if (sum->rate_per_s && before_per_s) {
		u64 now = div64_u64(sum->rate_per_s, sum->granules);

		now = demeter_max(now, before_per_s >> TOUCH_MEAN_SHIFT);
		now = demeter_min(now, demeter_mul_sat(before_per_s, 1U << TOUCH_MEAN_SHIFT));
		return demeter_max(now, 1);
	}
	if (sum->touches == 0)
		return 0;
	pooled = demeter_mul_div(sum->touches, TOUCH_NS_PER_S, demeter_max(sum->exposure, 1));
	return demeter_max(pooled, 1);
}

/**
 * demeter_touch_accesses_per_sample - what a sample of this epoch stands for
 * @sum: the sums
 * @before: what one of the epoch before stood for, 0 = there was none
 * @max_samples: no more samples than this in the epoch
 *
 * Reasons at the head of this file. Samples of several epochs are added up, so
 * that it falls no faster than those decay.
 *
 * Return: accesses, at least 1.
 */
u64 demeter_touch_accesses_per_sample(const struct demeter_touch_sum *sum, u64 before,
				      u64 max_samples)
{
	u64 now, least;

	if (sum->accesses == 0)
		return demeter_max(before, 1);
	now = demeter_mul_div(sum->variance, 2, demeter_max(sum->counted, 1));
	now = demeter_max(now, before / 2);
	least = div64_u64(sum->accesses, demeter_max(max_samples, 1)) + 1;
	return demeter_max(demeter_max(now, least), 1);
}

/**
 * demeter_touch_share - divide a stream evenly over what it is made of
 * @carry: what is left over from before; below @unit
 * @amount: the next part of the stream
 * @unit: amount that earns one
 *
 * Systematic sampling: of a whole stream, every @unit is counted exactly once,
 * to whatever part it falls on.
 *
 * Return: how many fall on this part.
 */
u64 demeter_touch_share(u64 *carry, u64 amount, u64 unit)
{
	u64 sum = demeter_add_sat(*carry, amount), share;

	if (unit == 0)
		return 0;
	share = div64_u64(sum, unit);
	*carry = sum - share * unit;
	return share;
}

/**
 * demeter_touch_explore - the granule to look at when all have their turn
 * @turn: counts turns
 * @granules: their number, not 0
 *
 * Steps of the golden section: any few turns in a row are spread over all.
 *
 * Return: index of the granule.
 */
u32 demeter_touch_explore(u32 *turn, u32 granules)
{
	u32 step = (*turn)++ * 0x9e3779b9U;

	return (u32)(((u64)step * granules) >> 32);
}

/**
 * demeter_touch_passed - time between two looks at a clock
 * @before_ns: what it showed at the last one; moved on
 * @now_ns: what it shows now
 *
 * Clocks of two CPUs differ a little. One that was ahead must not make the next look
 * find nearly 2^64 nanoseconds, nor the time in between be counted twice.
 *
 * Return: nanoseconds, 0 when the clock went back.
 */
u64 demeter_touch_passed(u64 *before_ns, u64 now_ns)
{
	u64 passed_ns = demeter_sub_sat(now_ns, *before_ns);

	*before_ns = demeter_max(*before_ns, now_ns);
	return passed_ns;
}

/* No more can be saved than that, and no more be owed. */
static s64 touch_purse(s64 ns)
{
	s64 most_ns = TOUCH_SAVED_NS, least_ns = -(s64)TOUCH_OWED_NS;

	return ns > most_ns ? most_ns : ns < least_ns ? least_ns : ns;
}

/* What is saved, or owed, and so may be spent beside the share, in so much time. */
static s64 touch_extra_ns(s64 saved_ns, u64 elapsed_ns, u64 share_ns)
{
	u64 size_ns;

	size_ns = (u64)(saved_ns < 0 ? -saved_ns : saved_ns);
	size_ns = demeter_mul_div(size_ns, demeter_min(elapsed_ns, TOUCH_NS_PER_S), TOUCH_NS_PER_S);
	if (saved_ns < 0)
		return -(s64)demeter_min(size_ns, share_ns - share_ns / TOUCH_DENSER);
	return (s64)demeter_min(size_ns, demeter_mul_sat(share_ns, TOUCH_DENSER - 1));
}

/* The mean of what an armed page costs, in picoseconds, with one epoch more. */
static void touch_learn_cost(struct demeter_touch_purse *purse, u64 spent_ns, u64 elapsed_ns)
{
	u64 pages = demeter_mul_div(purse->pages_per_s, elapsed_ns, TOUCH_NS_PER_S), now_ps;

	if (!pages)
		return;
	now_ps = demeter_min(demeter_mul_div(spent_ns, 1000, pages), TOUCH_COST_MAX_PS);
	if (purse->page_ps)
		now_ps = purse->page_ps - (purse->page_ps >> TOUCH_COST_SHIFT) +
			 (now_ps >> TOUCH_COST_SHIFT);
	purse->page_ps = demeter_max(now_ps, 1);
}

/**
 * demeter_touch_budget - how many pages may be armed
 * @purse: what looking may cost; @purse->pages_per_s is the answer
 * @spent_ns: CPU time spent on arming, on faults, and on the arithmetic
 * @elapsed_ns: in how much time of programs, of all together
 * @usual_per_s: where samples are as dense as usual, never more pages a second than this
 * @shift: log2 of how much sparser they are, as there is nothing to gain; 0: there is
 *	something to learn, and what was saved may be spent on learning it soon
 *
 * In the long run the cost is below 1/320 of the time, as what was spent beyond that is owed;
 * over any ten seconds below 1/200: who has been sparse, or has just begun, has saved as much.
 * (What becomes dear at once is noticed when it has been paid.)
 */
void demeter_touch_budget(struct demeter_touch_purse *purse, u64 spent_ns, u64 elapsed_ns,
			  u64 usual_per_s, u32 shift)
{
	u64 most_per_s = demeter_max(demeter_mul_sat(usual_per_s, TOUCH_DENSER), 1);
	u64 share_ns = elapsed_ns / TOUCH_TIME_SHARE, allowed_ns, next;
	s64 left_ns;

	if (purse->pages_per_s == 0) {
		purse->pages_per_s = most_per_s;
		purse->saved_ns = TOUCH_SAVED_NS;
		return;
	}
	left_ns = share_ns > spent_ns ? (s64)demeter_min(share_ns - spent_ns, 2 * TOUCH_OWED_NS)
				      : -(s64)demeter_min(spent_ns - share_ns, 2 * TOUCH_OWED_NS);
	purse->saved_ns = touch_purse(touch_purse(purse->saved_ns) + left_ns);
	/* Where pages are few, what they cost is mostly that of the arithmetic beside. */
	if (!shift)
		touch_learn_cost(purse, spent_ns, elapsed_ns);
	allowed_ns = share_ns + (u64)touch_extra_ns(purse->saved_ns, elapsed_ns, share_ns);
	if (shift)
		most_per_s = usual_per_s >> demeter_min(shift, 63U);
	/* allowed / cost, in a second */
	next = demeter_mul_div(allowed_ns, TOUCH_NS_PER_S, demeter_max(elapsed_ns, 1));
	next = demeter_mul_div(next, 1000, demeter_max(purse->page_ps, 1));
	purse->pages_per_s = demeter_max(demeter_min(next, most_per_s), TOUCH_LEAST_PER_S);
}
