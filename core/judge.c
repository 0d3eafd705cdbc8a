// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Judge: see <demeter/judge.h>.
 *
 * One step proves little: its samples are few. All steps of an address space are
 * judged together, by sums. A stop is called when these lose more than a
 * JUDGE_LOSS_PART of the horizon, so that what is small change is let be, and when
 * they save less than they cost: not when they save less than was promised, which is
 * no loss. What a step saves beyond JUDGE_CREDIT times its cost is not heard: one that
 * brought a program's hot memory home must not pay for all that come after it.
 */
#include <demeter/judge.h>
#include <demeter/math.h>

#define JUDGE_LOSS_PART	     1024U
/* A running step is heard when it has run for so long: a lull proves nothing. */
#define JUDGE_HEARING_EPOCHS 4U
#define JUDGE_HEARING_PART   16U
/* Of what a step saves, so many times its cost counts. */
#define JUDGE_CREDIT	     4U
/* Gains this many times the cost put an end to the doubling of stops. */
#define JUDGE_ACQUITTAL	     2
#define JUDGE_S64_MAX	     (DEMETER_U64_MAX >> 1)

/* Keeps sums of a few of them from wrapping. */
static s64 judge_bound(s64 ns)
{
	s64 most = (s64)(JUDGE_S64_MAX / 8);

	return ns > most ? most : ns < -most ? -most : ns;
}

/* What counts of a step's gain. */
static s64 judge_credit(const struct demeter_placement *placement, s64 gain_ns)
{
	s64 most = (s64)demeter_min(demeter_mul_sat(placement->cost_ns, JUDGE_CREDIT),
				    JUDGE_S64_MAX / 8);

	return judge_bound(gain_ns > most ? most : gain_ns);
}

/* What is only expected of a step is bounded both ways: chance speaks of few samples. */
static s64 judge_outlook(const struct demeter_placement *placement, s64 gain_ns)
{
	s64 least = -(s64)demeter_min(demeter_mul_sat(placement->cost_ns, JUDGE_CREDIT),
				      JUDGE_S64_MAX / 8);

	if (least > placement->realised_ns)
		least = placement->realised_ns;
	return gain_ns < least ? least : gain_ns;
}

/**
 * demeter_judge_hear - a step whose time still runs, at the end of an epoch
 * @judge: the judge
 * @placement: the step, brought up to date
 * @taken_ns: when it was taken, in time of demeter_judge_epoch()
 * @epoch_ns: length of the epoch
 * @horizon_ns: how long a placement is expected to last at most
 *
 * One that is over before its time is heard at once, with what it has saved at most: where
 * parts of memory are hot by turns, the next steps are of the same kind, and soon taken.
 */
void demeter_judge_hear(struct demeter_judge *judge, const struct demeter_placement *placement,
			u64 taken_ns, u64 epoch_ns, u64 horizon_ns)
{
	u64 least_ns = demeter_max(demeter_mul_sat(epoch_ns, JUDGE_HEARING_EPOCHS),
				   horizon_ns / JUDGE_HEARING_PART);
	u64 cost_ns = demeter_add_sat(judge->heard_cost_ns, placement->cost_ns);
	bool over = demeter_placement_is_over(placement, epoch_ns);
	s64 gain_ns = demeter_placement_outlook_ns(placement);

	if (taken_ns < judge->since_ns || (placement->age_ns < least_ns && !over))
		return;
	/*
	 * That a step saves no more does not excuse one that has lost and goes on losing:
	 * which chance has many seem to do in their first epochs. One that has saved
	 * something has done what it could.
	 */
	if (over && (placement->realised_ns >= 0 || placement->age_ns < least_ns ||
		     gain_ns > placement->realised_ns))
		gain_ns = placement->realised_ns;
	gain_ns = judge_outlook(placement, gain_ns);
	judge->heard_cost_ns = demeter_min(cost_ns, JUDGE_S64_MAX / 8);
	judge->heard_gain_ns = judge_bound(judge->heard_gain_ns + judge_credit(placement, gain_ns));
}

static void judge_add(struct demeter_judge *judge, const struct demeter_placement *placement,
		      u64 taken_ns, s64 gain_ns)
{
	if (taken_ns < judge->since_ns)
		return;
	judge->cost_ns =
		demeter_min(demeter_add_sat(judge->cost_ns, placement->cost_ns), JUDGE_S64_MAX / 8);
	judge->gain_ns = judge_bound(judge->gain_ns + judge_credit(placement, gain_ns));
}

/**
 * demeter_judge_settle - the time of a step is over
 * @judge: the judge
 * @placement: the step
 * @taken_ns: when it was taken, in time of demeter_judge_epoch()
 */
void demeter_judge_settle(struct demeter_judge *judge, const struct demeter_placement *placement,
			  u64 taken_ns)
{
	judge_add(judge, placement, taken_ns, placement->realised_ns);
}

/**
 * demeter_judge_conclude - a step whose time still runs will be followed no more
 * @judge: the judge
 * @placement: the step
 * @taken_ns: when it was taken, in time of demeter_judge_epoch()
 *
 * Where so many are taken that there is no room to follow them, what they are on the way
 * to save has to do. One that no epoch has seen says nothing.
 */
void demeter_judge_conclude(struct demeter_judge *judge, const struct demeter_placement *placement,
			    u64 taken_ns)
{
	if (placement->age_ns)
		judge_add(judge, placement, taken_ns,
			  judge_outlook(placement, demeter_placement_outlook_ns(placement)));
}

/**
 * demeter_judge_may_return - may what a step has demoted come back while moving is stopped
 * @judge: the judge
 * @placement: the step, brought up to date
 * @taken_ns: when it was taken, in time of demeter_judge_epoch()
 * @returned_pages: pages that were promoted since the stop to where the step has demoted
 *
 * It may where that is accessed more, as of late, than what took its place; but no more
 * than went: where two places are hot by turns, each is wanted back in its turn, and what
 * was stopped would go on as returns.
 *
 * Return: whether the planner may consider it.
 */
bool demeter_judge_may_return(const struct demeter_judge *judge,
			      const struct demeter_placement *placement, u64 taken_ns,
			      u64 returned_pages)
{
	return taken_ns < judge->since_ns && placement->cold.end && !placement->cold.part &&
	       placement->recent_ns < 0 && returned_pages < placement->pages;
}

static void judge_forget(struct demeter_judge *judge, u64 epoch_ns, u64 horizon_ns)
{
	u64 part_ns = demeter_min(epoch_ns, horizon_ns);
	u64 gain_ns = (u64)(judge->gain_ns < 0 ? -judge->gain_ns : judge->gain_ns);

	gain_ns -= demeter_mul_div(gain_ns, part_ns, horizon_ns);
	judge->cost_ns -= demeter_mul_div(judge->cost_ns, part_ns, horizon_ns);
	judge->gain_ns = judge->gain_ns < 0 ? -(s64)gain_ns : (s64)gain_ns;
}

/**
 * demeter_judge_epoch - all steps were heard: does moving pay
 * @judge: the judge
 * @now_ns: a clock that does not run backwards
 * @epoch_ns: length of the epoch
 * @horizon_ns: how long a placement is expected to last at most
 *
 * Return: whether a stop begins with it.
 */
bool demeter_judge_epoch(struct demeter_judge *judge, u64 now_ns, u64 epoch_ns, u64 horizon_ns)
{
	s64 cost_ns = (s64)(judge->cost_ns + judge->heard_cost_ns);
	s64 gain_ns = judge->gain_ns + judge->heard_gain_ns;
	u64 small_ns = horizon_ns / JUDGE_LOSS_PART;

	judge->heard_cost_ns = 0;
	judge->heard_gain_ns = 0;
	if (!horizon_ns)
		return false;
	judge_forget(judge, epoch_ns, horizon_ns);
	if (demeter_judge_is_stopped(judge, now_ns))
		return false;
	if (cost_ns <= (s64)demeter_min(small_ns, JUDGE_S64_MAX))
		return false;
	if (gain_ns / JUDGE_ACQUITTAL >= cost_ns)
		judge->stops = 0;
	if (cost_ns - gain_ns <= (s64)demeter_min(small_ns, JUDGE_S64_MAX / 4))
		return false;
	judge->cost_ns = 0;
	judge->gain_ns = 0;
	judge->since_ns = demeter_add_sat(now_ns, 1);
	judge->until_ns =
		demeter_add_sat(now_ns, demeter_mul_sat(horizon_ns, 1ULL << judge->stops));
	if (judge->stops < DEMETER_JUDGE_MAX_STOPS)
		judge->stops++;
	judge->all_stops++;
	return true;
}
