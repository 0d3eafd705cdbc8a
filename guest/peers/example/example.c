// SPDX-License-Identifier: GPL-2.0-only
/*
 * The smallest manager that is one, the example of docs/peers.md: a page of SMEM is
 * promoted at its Nth hint fault in a row without looking at how long the others took.
 * Linux scans, faults, moves, and demotes; only the decision is replaced.
 */
#include <linux/hash.h>
#include <linux/memory-tiers.h>
#include <linux/mm.h>
#include <linux/sched/numa_balancing.h>

#include "../contract.h"
#include "replace.h"

/* One counter for each of so many folios; two that share one are promoted earlier. */
#define EXAMPLE_COUNTERS_ORDER 14

static u64 faults_to_promote = 2;
static atomic64_t hint_faults;
static atomic64_t answered_yes;
static atomic_t faults_of[1 << EXAMPLE_COUNTERS_ORDER];

static bool example_should_migrate(struct task_struct *task, struct folio *folio, int src_nid,
				   int dst_cpu);

static struct demeter_replacement decision = {
	.function = "should_numa_migrate_memory",
	.with = example_should_migrate,
};

/* Called under the page-table lock of the fault: may not sleep. */
static bool example_should_migrate(struct task_struct *task, struct folio *folio, int src_nid,
				   int dst_cpu)
{
	int inside = demeter_replacement_enter(&decision);
	atomic_t *faults = &faults_of[hash_long(folio_pfn(folio), EXAMPLE_COUNTERS_ORDER)];
	bool yes = atomic_inc_return(faults) >= faults_to_promote;

	atomic64_inc(&hint_faults);
	if (yes) {
		atomic_set(faults, 0);
		atomic64_inc(&answered_yes);
	}
	demeter_replacement_leave(&decision, inside);
	return yes;
}

static int example_start(void)
{
	return demeter_replace(&decision);
}

static void example_stop(void)
{
	demeter_restore(&decision);
}

static const struct demeter_peer_param example_params[] = {
	{ "faults_to_promote", &faults_to_promote, 1, 1000 },
	{ .name = NULL },
};

static const struct demeter_peer_stat example_stats[] = {
	{ "hint_faults", &hint_faults },
	{ "answered_yes", &answered_yes },
	{ .name = NULL },
};

const struct demeter_peer demeter_peer_this = {
	.name = "example",
	.params = example_params,
	.stats = example_stats,
	.start = example_start,
	.stop = example_stop,
};
