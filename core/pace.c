// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Pace: see <demeter/pace.h>.
 *
 * What is a change? Of the last ticks' samples (each tick counts half of the one
 * after it) the share that SMEM served is held against the share that was usual, and
 * their number against the usual number. Both must differ by PACE_SIGNIFICANCE
 * standard deviations, and the share by a sixteenth of the accesses, the number by
 * half of itself: less is no reason to look closer. Fewer accesses than usual are no
 * change: who idles gains nothing from being watched.
 *
 * Hot memory that moves within SMEM changes neither. It changes ranges, which shows
 * at the end of the epoch, at most 2^DEMETER_PACE_MAX_SHIFT ticks later.
 */
#include <demeter/math.h>
#include <demeter/pace.h>

#define PACE_SHIFT	  8U /* of counts of samples in fixed point */
#define PACE_KINDS	  (DEMETER_TIERS + 1U)
/* Epochs of a pace that bring nothing before the next one takes twice as long. */
#define PACE_QUIET_EPOCHS 8U
/* More of them where samples are made of what is known: what is not known yet is quiet, too. */
#define PACE_SLOW_FACTOR  8U
/* Part of a tick in the mean of what is usual, as a power of two. */
#define PACE_USUAL_SHIFT  5U
#define PACE_SIGNIFICANCE 4ULL
/* Part of the accesses that must have gone elsewhere. */
#define PACE_SHARE	  16U
/* Fewer samples than this prove nothing. */
#define PACE_LEAST	  6ULL
/* Pages that come or go without a stir: these, or a part of all. */
#define PACE_PAGES	  512ULL
#define PACE_PAGES_PART	  16U
/* An epoch learns something when one range in so many was split. */
#define PACE_SPLIT_PART	  16U
/*
 * An epoch that holds so many samples is one to learn from: their decayed count is four times
 * what a split takes by default (split_samples, 15). As epochs grow longer, samples are made
 * sparser only as far as it does; further when such epochs have brought nothing.
 */
#define PACE_ENOUGH	  32ULL
/* Counts above this have no room for the square of a difference. */
#define PACE_MAX_SAMPLES  BIT_ULL(22)

static u64 pace_sum(const u64 *kinds)
{
	u64 sum = 0;
	u32 i;

	for (i = 0; i < PACE_KINDS; i++)
		sum += kinds[i];
	return sum;
}

static u64 pace_distance(u64 a, u64 b)
{
	return a > b ? a - b : b - a;
}

/* Is @distance more than the noise of @variance, both in fixed point? */
static bool pace_is_significant(u64 distance, u64 variance)
{
	u64 caution = PACE_SIGNIFICANCE * PACE_SIGNIFICANCE << PACE_SHIFT;
	struct demeter_wide square = demeter_mul_wide(distance, distance);

	return distance >= PACE_LEAST << PACE_SHIFT &&
	       demeter_wide_above(square, demeter_mul_wide(caution, variance));
}

/* Does SMEM serve another share of the accesses than it used to? */
static bool pace_share_changed(const struct demeter_pace *pace)
{
	u64 usual = pace->usual[DEMETER_FMEM] + pace->usual[DEMETER_SMEM];
	u64 recent = pace->recent[DEMETER_FMEM] + pace->recent[DEMETER_SMEM];
	u64 expected, distance, variance;

	if (!usual)
		return false;
	expected = demeter_mul_div(recent, pace->usual[DEMETER_SMEM], usual);
	distance = pace_distance(pace->recent[DEMETER_SMEM], expected);
	variance = demeter_mul_div(expected, pace->usual[DEMETER_FMEM], usual);
	return distance > recent / PACE_SHARE && pace_is_significant(distance, variance);
}

/* Are there half as many accesses again as there used to be? */
static bool pace_number_changed(const struct demeter_pace *pace)
{
	u64 recent = pace_sum(pace->recent);
	u64 expected = demeter_mul_div(pace_sum(pace->usual) >> pace->sparse, pace->recent_ticks,
				       1ULL << PACE_SHIFT);

	if (pace->by_share_alone || recent <= expected + expected / 2)
		return false;
	/* So few more, had none been left out, are no epoch's worth: a burst of who idles. */
	if (((recent - expected) << pace->sparse) < PACE_ENOUGH << PACE_SHIFT)
		return false;
	return pace_is_significant(recent - expected, expected);
}

static bool pace_resident_changed(const struct demeter_pace *pace, u64 pages)
{
	return pace_distance(pages, pace->resident_pages) >
	       demeter_max(PACE_PAGES, pace->resident_pages / PACE_PAGES_PART);
}

static void pace_see(struct demeter_pace *pace, const struct demeter_pace_tick *tick)
{
	u64 seen[PACE_KINDS];
	u32 i;

	for (i = 0; i < DEMETER_TIERS; i++)
		seen[i] = demeter_min(tick->samples[i], PACE_MAX_SAMPLES) << PACE_SHIFT;
	seen[DEMETER_TIERS] = demeter_min(tick->untold, PACE_MAX_SAMPLES) << PACE_SHIFT;
	pace->recent_ticks = pace->recent_ticks / 2 + (1U << PACE_SHIFT);
	for (i = 0; i < PACE_KINDS; i++)
		pace->recent[i] = pace->recent[i] / 2 + seen[i];
}

/* The mean follows: quickly at first, as a plain mean, and slowly later. */
static void pace_get_used(struct demeter_pace *pace, const struct demeter_pace_tick *tick)
{
	u64 parts, seen;
	u32 i;

	if (pace->usual_ticks < 1U << PACE_USUAL_SHIFT)
		pace->usual_ticks++;
	parts = pace->usual_ticks;
	for (i = 0; i < PACE_KINDS; i++) {
		seen = i < DEMETER_TIERS ? tick->samples[i] : tick->untold;
		seen = demeter_min(seen, PACE_MAX_SAMPLES) << (PACE_SHIFT + pace->sparse);
		pace->usual[i] = div64_u64(pace->usual[i] * (parts - 1) + seen, parts);
	}
}

/**
 * demeter_pace_start - begin at full pace, what was counted until then being kept
 * @pace: the pace: all zero at first, as it was left later; its @thin is for the counts
 *
 * Its @most and @by_share_alone are to be set anew.
 */
void demeter_pace_start(struct demeter_pace *pace)
{
	/* Until an epoch ends, what was to be as much less still is. */
	*pace = (struct demeter_pace){ .thin = pace->thin + demeter_pace_held(pace) };
}

/**
 * demeter_pace_tick - a tick is over
 * @pace: the pace
 * @tick: what it brought
 *
 * Return: whether the epoch ends with it.
 */
bool demeter_pace_tick(struct demeter_pace *pace, const struct demeter_pace_tick *tick)
{
	pace->ticks++;
	pace_see(pace, tick);
	if (pace_share_changed(pace) || pace_number_changed(pace) ||
	    pace_resident_changed(pace, tick->resident_pages)) {
		/* What comes from now on is what to get used to. */
		pace->usual_ticks = 0;
		pace->changed = true;
	}
	pace_get_used(pace, tick);
	if (!pace->changed && pace->ticks < 1U << pace->shift)
		return false;
	pace->resident_pages = tick->resident_pages;
	return true;
}

/* Samples that an epoch is to hold if they are made as sparse as that. */
static u64 pace_expected(const struct demeter_pace *pace, u32 sparse)
{
	return pace_sum(pace->usual) << (pace->shift - sparse) >> PACE_SHIFT;
}

/* How sparse samples become in epochs of a new length: never denser than that makes them. */
static u32 pace_sparse(const struct demeter_pace *pace)
{
	u32 sparse = (u32)demeter_min(pace->sparse, pace->shift);

	/* Their number says nothing, and there are as many as may be. */
	if (pace->by_share_alone)
		return pace->shift;
	while (sparse < pace->shift && pace_expected(pace, sparse + 1) >= PACE_ENOUGH)
		sparse++;
	return sparse;
}

static void pace_set_sparse(struct demeter_pace *pace, u32 sparse)
{
	u32 i;

	/* What lies in the window was counted when they were denser, or less dense. */
	for (i = 0; i < PACE_KINDS; i++)
		pace->recent[i] = 0;
	pace->recent_ticks = 0;
	pace->quiet_epochs = 0;
	pace->sparse = sparse;
}

static void pace_set(struct demeter_pace *pace, u32 shift)
{
	pace->shift = shift;
	pace_set_sparse(pace, pace_sparse(pace));
}

/**
 * demeter_pace_end_epoch - an epoch is over: how long does the next one take
 * @pace: the pace; its @shift, @sparse and @thin are the answer
 * @epoch: what it came to
 */
void demeter_pace_end_epoch(struct demeter_pace *pace, const struct demeter_pace_epoch *epoch)
{
	bool learned = epoch->splits && epoch->splits >= epoch->ranges / PACE_SPLIT_PART;
	u32 least = (u32)demeter_min(pace->least, pace->most);
	bool changed = pace->changed;
	u32 quiet_epochs = PACE_QUIET_EPOCHS * (pace->by_share_alone ? PACE_SLOW_FACTOR : 1);
	u32 held = demeter_pace_held(pace), holds;

	pace->changed = false;
	pace->ticks = 0;
	if (changed || epoch->waiting) {
		if (pace->shift > least)
			pace_set(pace, least);
		pace->quiet_epochs = 0;
	} else if (epoch->moved_pages || learned) {
		/* A little: come closer, but not all the way for a few pages. */
		if (pace->shift > least)
			pace_set(pace, pace->shift - 1);
		pace->quiet_epochs = 0;
	} else if (++pace->quiet_epochs >= quiet_epochs) {
		if (pace->shift < pace->most)
			pace_set(pace, pace->shift + 1);
		else if (pace->sparse < pace->shift)
			pace_set_sparse(pace, pace->sparse + 1);
		else
			pace->quiet_epochs = quiet_epochs;
	}
	if (pace->shift > pace->most)
		pace_set(pace, pace->most);
	if (pace->shift < least)
		pace_set(pace, least);
	if (pace->sparse < least)
		pace_set_sparse(pace, least);
	/* One that was cut short held less than its pace has: then it is thinned too much. */
	holds = demeter_pace_held(pace);
	pace->thin = held > holds ? held - holds : 0;
}

/**
 * demeter_pace_most - how slow the pace may become
 * @accesses_per_sample: by shift, 0 to DEMETER_PACE_MAX_SHIFT: what a sample stands for
 *	with the period that is asked for then, as the hardware really has it
 *
 * A sampling unit may have a longest period. Epochs grow no longer than samples can grow
 * sparse: @sparse would not say what they are.
 *
 * Return: what @most of a pace should be.
 */
u32 demeter_pace_most(const u64 *accesses_per_sample)
{
	u64 least = accesses_per_sample[0] - accesses_per_sample[0] / 8;
	u32 shift = DEMETER_PACE_MAX_SHIFT;

	while (shift && accesses_per_sample[shift] >> shift < least)
		shift--;
	return shift;
}
