/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Judge: whether moving the pages of one address space pays.
 *
 * The planner believes that what was hot stays so. Where that is wrong, as with
 * phases that flip faster than they are learned, each step keeps its word for too
 * short a time and costs more than it saves. The judge holds what steps have saved,
 * and will have if they go on as of late (<demeter/gain.h>), against what they cost,
 * and has moving stopped when it loses; for so long as a placement is expected to
 * last, and twice as long each time that the next chance is wasted, too.
 */
#ifndef DEMETER_JUDGE_H
#define DEMETER_JUDGE_H

#include <demeter/gain.h>

/* A stop lasts so many horizons at most, as a power of two. */
#define DEMETER_JUDGE_MAX_STOPS 6U

/**
 * struct demeter_judge - one address space on trial; all zero to begin with
 * @cost_ns: of steps whose time is over, slowly forgotten
 * @gain_ns: what those saved, likewise
 * @heard_cost_ns: of steps whose time still runs, as heard this epoch
 * @heard_gain_ns: what those are on the way to save
 * @since_ns: steps taken before are not heard
 * @until_ns: stopped until then
 * @stops: stops in a row, as far as they count
 * @all_stops: stops ever
 */
struct demeter_judge {
	u64 cost_ns;
	s64 gain_ns;
	u64 heard_cost_ns;
	s64 heard_gain_ns;
	u64 since_ns;
	u64 until_ns;
	u32 stops;
	u32 all_stops;
};

/**
 * demeter_judge_is_stopped - are moves of the address space stopped
 * @judge: the judge
 * @now_ns: as for demeter_judge_epoch()
 *
 * Return: whether to promote nothing.
 */
static inline bool demeter_judge_is_stopped(const struct demeter_judge *judge, u64 now_ns)
{
	return now_ns < judge->until_ns;
}

void demeter_judge_hear(struct demeter_judge *judge, const struct demeter_placement *placement,
			u64 taken_ns, u64 epoch_ns, u64 horizon_ns);
void demeter_judge_settle(struct demeter_judge *judge, const struct demeter_placement *placement,
			  u64 taken_ns);
void demeter_judge_conclude(struct demeter_judge *judge, const struct demeter_placement *placement,
			    u64 taken_ns);
bool demeter_judge_may_return(const struct demeter_judge *judge,
			      const struct demeter_placement *placement, u64 taken_ns,
			      u64 returned_pages);
bool demeter_judge_epoch(struct demeter_judge *judge, u64 now_ns, u64 epoch_ns, u64 horizon_ns);

#endif /* DEMETER_JUDGE_H */
