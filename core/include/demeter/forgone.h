/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Forgone: what it costs an address space that nothing is moved for it.
 *
 * A stop (<demeter/judge.h>) lasts as long as a placement is expected to, and longer
 * each time. Programs settle sooner than that: whose hot memory wandered while it grew
 * has it in one place later, and that place is SMEM. So while a stop lasts, a step is
 * followed as if it had been taken: from the hottest range that lies in SMEM, against
 * the coldest that lies in FMEM. Nothing is moved; what such steps would have saved is
 * told by the same samples that tell it of real ones (<demeter/gain.h>). Where that is
 * twice what they would have cost, there is no reason for the stop any more; at the next
 * stop in a row it must be four times as much, and so on.
 */
#ifndef DEMETER_FORGONE_H
#define DEMETER_FORGONE_H

#include <demeter/gain.h>

/**
 * struct demeter_forgone - of one address space while it is stopped; all zero to begin with
 * @step: the one that is followed; none while its @pages are 0
 * @cost_ns: what those before would have cost, each half as much as the one after it
 * @gain_ns: what those would have saved, likewise
 */
struct demeter_forgone {
	struct demeter_placement step;
	u64 cost_ns;
	s64 gain_ns;
};

/**
 * demeter_forgone_wants - is a step to be chosen
 * @forgone: the account
 *
 * Return: whether to call demeter_forgone_begin().
 */
static inline bool demeter_forgone_wants(const struct demeter_forgone *forgone)
{
	return !forgone->step.pages;
}

void demeter_forgone_begin(struct demeter_forgone *forgone, u32 space,
			   const struct demeter_rank_entry *ranked, u32 nr, u64 page_cost_ns,
			   u64 horizon_ns);
bool demeter_forgone_epoch(struct demeter_forgone *forgone, const struct demeter_ranges *rs,
			   u32 stops, u64 samples, u64 sample_period, u64 latency_gap_ps, u64 epoch_ns);

#endif /* DEMETER_FORGONE_H */
