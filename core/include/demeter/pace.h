/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Pace: how densely to sample and how often to decide.
 *
 * Time comes in ticks, the shortest epochs. While there is something to learn or to
 * move, every tick is an epoch. Where nothing has been for a while, an epoch takes
 * 2, 4 ... ticks, and one sample stands for 2, 4 ... times as many accesses: an epoch
 * then holds as many samples as before.
 *
 * Of a program that accesses little, or seldom, a tick has too few samples to tell
 * anything from, and an epoch of sparser ones would have no more of them however long
 * it is. There samples stay denser than that, until epochs that hold enough of them have
 * brought nothing either.
 *
 * So an epoch holds the samples of one tick at full pace or of 2, 4 ... of them,
 * demeter_pace_held(): that is the unit of all counts, which decay once an epoch and are
 * thinned when it falls (<demeter/plan.h> multiplies by accesses a sample and divides by
 * the length of an epoch).
 *
 * In each tick the samples are counted by tier all the same. Where they no longer fit
 * what was seen before, the epoch ends at once and the next one is a tick again.
 */
#ifndef DEMETER_PACE_H
#define DEMETER_PACE_H

#include <demeter/deps.h>

/* An epoch is at most so many ticks, as a power of two. */
#define DEMETER_PACE_MAX_SHIFT 3U

/**
 * struct demeter_pace_tick - what a tick brought
 * @samples: of managed memory, by tier
 * @untold: of managed memory, tier not known
 * @resident_pages: resident pages of all that is managed
 */
struct demeter_pace_tick {
	u64 samples[DEMETER_TIERS];
	u64 untold;
	u64 resident_pages;
};

/**
 * struct demeter_pace_epoch - what an epoch came to
 * @moved_pages: pages that the plan was to move
 * @splits: ranges split: something was learned
 * @ranges: ranges in all
 * @waiting: more is to be done than an epoch may do
 */
struct demeter_pace_epoch {
	u64 moved_pages;
	u64 splits;
	u64 ranges;
	bool waiting;
};

/**
 * struct demeter_pace - the pace; all zero to begin with
 * @shift: log2 of the ticks of an epoch
 * @sparse: log2 of how much sparser samples are, at most @shift; less where epochs of a
 *	new length would hold too few of them, until such ones have brought nothing
 * @most: no larger @shift than this; 0 keeps every tick an epoch
 * @least: no smaller @shift and no smaller @sparse than this, as far as @most allows, from
 *	the end of an epoch on: samples are dear
 * @ticks: ticks of the running epoch so far
 * @quiet_epochs: epochs in a row that brought nothing
 * @thin: log2 of how many times fewer samples an epoch holds than the one before did, of
 *	a program that goes on as it did: what was counted until then must be as much less.
 *	Where it holds more, what was counted says too little for a few epochs, and nothing
 *	is to be done: to multiply it would be to make up evidence
 * @changed: accesses are not what they were, seen in the running epoch
 * @by_share_alone: how many samples there are says nothing of how much is accessed, and
 *	that they show nothing is sooner for want of samples
 * @usual: samples of a tick if none were left out, a slow mean by tier, fixed point;
 *	the last is those of no known tier
 * @recent: samples of the last few ticks, decayed, fixed point, likewise
 * @recent_ticks: ticks that those are worth, fixed point
 * @usual_ticks: ticks that @usual was learned from, up to what it needs
 * @resident_pages: at the end of the last epoch
 */
struct demeter_pace {
	u32 shift;
	u32 sparse;
	u32 thin;
	u32 most;
	u32 least;
	u32 ticks;
	u32 quiet_epochs;
	bool changed;
	bool by_share_alone;
	u64 usual[DEMETER_TIERS + 1];
	u64 recent[DEMETER_TIERS + 1];
	u64 recent_ticks;
	u32 usual_ticks;
	u64 resident_pages;
};

void demeter_pace_start(struct demeter_pace *pace);
bool demeter_pace_tick(struct demeter_pace *pace, const struct demeter_pace_tick *tick);
void demeter_pace_end_epoch(struct demeter_pace *pace, const struct demeter_pace_epoch *epoch);
u32 demeter_pace_most(const u64 *accesses_per_sample);

/**
 * demeter_pace_held - how many times the samples of a tick at full pace an epoch holds
 * @pace: the pace
 *
 * Return: as a power of two, at most DEMETER_PACE_MAX_SHIFT.
 */
static inline u32 demeter_pace_held(const struct demeter_pace *pace)
{
	return pace->shift - pace->sparse;
}

/**
 * demeter_pace_period - accesses between two samples
 * @shift: log2 of how much sparser they are
 * @period: accesses between two samples at full pace
 *
 * Odd when stretched: an even one would keep step with loops.
 *
 * Return: as many more.
 */
static inline u64 demeter_pace_period(u32 shift, u64 period)
{
	return shift ? (period << shift) | 1 : period;
}

#endif /* DEMETER_PACE_H */
