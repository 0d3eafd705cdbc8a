// SPDX-License-Identifier: GPL-2.0-only
/*
 * Stopped: keep the planner from promoting for address spaces for which moving has
 * turned out not to pay (core/judge.c), by hiding what they have in SMEM. What
 * they have in FMEM may be demoted for others; and what they had there, and is
 * accessed more than what took its place, may come back where the planner finds
 * that this pays.
 */
#include <linux/sched.h>

#include "ledger.h"
#include "tmm.h"

static bool is_among(const struct demeter_ledger_returns *returns,
		     const struct demeter_rank_entry *entry)
{
	u32 i;

	/* Base pages from all over: their bounds say nothing. */
	if (entry->part)
		return false;
	for (i = 0; i < returns->nr; i++)
		if (returns->part[i].start < entry->end && entry->start < returns->part[i].end)
			return true;
	return false;
}

/**
 * demeter_stopped_hide() - hide from the planner what is not to be promoted
 * @entries: ranked ranges of all targets
 * @nr: their number
 * @groups: by slot; those below their floors get what they are due nevertheless
 */
void demeter_stopped_hide(struct demeter_rank_entry *entries, u32 nr,
			  const struct demeter_group *groups)
{
	struct demeter_target *target;
	bool any = false;
	u32 space = 0, i;

	while ((target = demeter_target_next(&space))) {
		const struct demeter_group *group = &groups[READ_ONCE(target->group)];

		target->is_stopped = group->fmem_pages >= group->floor_pages &&
				     demeter_ledger_is_stopped(space, &target->returns);
		any |= target->is_stopped;
		cond_resched();
	}
	for (i = 0; any && i < nr; i++) {
		struct demeter_rank_entry *entry = &entries[i];

		if (!(i % 256))
			cond_resched();
		target = demeter_target_of(entry->space);
		if (target && target->is_stopped && !is_among(&target->returns, entry))
			entry->pages[DEMETER_SMEM] = 0;
	}
}
