/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the ledger's books hold; for ledger.c alone, see there.
 */
#ifndef DEMETER_LEDGER_BOOKS_H
#define DEMETER_LEDGER_BOOKS_H

#include <linux/types.h>

#include <demeter/forgone.h>
#include <demeter/judge.h>

#include "refusal.h"

/* Reasons told apart for one decision; pages refused for others are counted. */
#define DECISION_REASONS 4

enum decision_state { FREE, RUNNING, OPEN, SETTLED, EMPTY, DROPPED };

/**
 * struct decision - one step of a plan
 * @number: from 0 since load
 * @time_ns: when it was taken
 * @epoch: epochs ended before
 * @kind: fill or swap
 * @source: what sampled then, DEMETER_LEDGER_*
 * @state: where it stands
 * @pid: thread groups of the hot and the cold side
 * @imposed: by a limit of a group, so nothing to judge by
 * @planned_pages: to be moved each way
 * @pending_pages: isolated and not yet moved
 * @refused_pages: of both sides
 * @why: the first reasons met, and their pages
 * @placement: what was moved, promised and gained
 */
struct decision {
	u64 number;
	u64 time_ns;
	u64 epoch;
	enum demeter_plan_kind kind;
	u32 source;
	enum decision_state state;
	pid_t pid[2];
	bool imposed;
	u64 planned_pages;
	u64 pending_pages;
	u64 refused_pages;
	struct {
		u32 reason;
		u64 pages;
	} why[DECISION_REASONS];
	struct demeter_placement placement;
};

/**
 * struct account - what one address space was given and cost
 * @space: its number
 * @pid: its thread group
 * @origin: how it came to be managed
 * @decisions: taken for it
 * @promoted_pages: moved to FMEM
 * @demoted_pages: moved to SMEM
 * @filled_pages: of @promoted_pages, into free memory
 * @predicted_ns: of decisions taken for it
 * @realised_ns: the same
 * @refused: pages not moved in steps taken for it
 * @judge: whether moving for it pays
 * @forgone: what it would have saved while it is stopped
 */
struct account {
	u32 space;
	pid_t pid;
	int origin;
	u64 decisions;
	u64 promoted_pages;
	u64 demoted_pages;
	u64 filled_pages;
	u64 predicted_ns;
	s64 realised_ns;
	struct demeter_refusals refused;
	struct demeter_judge judge;
	struct demeter_forgone forgone;
};

#endif /* DEMETER_LEDGER_BOOKS_H */
