// SPDX-License-Identifier: GPL-2.0-only
/*
 * TPP: transparent page placement, as published (README.md here says what is not).
 *
 *   track    Linux's NUMA balancing makes pages of SMEM fault (kernel.numa_balancing=2)
 *   promote  at a hint fault, if the page is on the active list; else it is marked
 *            accessed until it is, and as published the same access faults meanwhile
 *   demote   kswapd, from the inactive list, whenever less is free than the demotion
 *            mark, for which a timer wakes it as well as the allocator does
 *
 * The decision takes the place of should_numa_migrate_memory(), which would ask how long
 * ago the page was made to fault. It is called under the page-table lock of the fault.
 */
#include <linux/mm.h>

#include "track.h"

static atomic64_t answered_yes;

static bool tpp_should_migrate(struct task_struct *task, struct folio *folio, int src_nid,
			       int dst_cpu);

static struct demeter_replacement tpp_decision = {
	.function = "should_numa_migrate_memory",
	.with = tpp_should_migrate,
};

static bool tpp_should_migrate(struct task_struct *task, struct folio *folio, int src_nid,
			       int dst_cpu)
{
	int inside = demeter_replacement_enter(&tpp_decision);
	bool yes = tpp_hint_fault(folio, src_nid) && tpp_activates(folio);

	if (yes)
		atomic64_inc(&answered_yes);
	demeter_replacement_leave(&tpp_decision, inside);
	return yes;
}

static int tpp_start(void)
{
	return tpp_track_start(&tpp_decision);
}

static void tpp_stop(void)
{
	tpp_track_stop(&tpp_decision);
}

static const struct demeter_peer_param tpp_params[] = {
	TPP_TRACK_PARAMS,
	{ .name = NULL },
};

static const struct demeter_peer_stat tpp_stats[] = {
	TPP_TRACK_STATS,
	{ "answered_yes", &answered_yes },
	{ .name = NULL },
};

const struct demeter_peer demeter_peer_this = {
	.name = "tpp",
	.params = tpp_params,
	.stats = tpp_stats,
	.start = tpp_start,
	.stop = tpp_stop,
};
