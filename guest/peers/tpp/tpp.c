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
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/delay.h>
#include <linux/jump_label.h>
#include <linux/math64.h>
#include <linux/memory-tiers.h>
#include <linux/mm.h>
#include <linux/mmzone.h>
#include <linux/nodemask.h>
#include <linux/numa.h>
#include <linux/sched/numa_balancing.h>
#include <linux/swap.h>
#include <linux/workqueue.h>

#include "../contract.h"
#include "kernel_calls.h"
#include "replace.h"
#include "stages.h"
#include "symbols.h"

#define tpp_type_wakeup_kswapd wakeup_kswapd
DEFINE_STATIC_CALL_NULL(tpp_wakeup_kswapd, tpp_type_wakeup_kswapd);

/* How often one access faults at most while its page waits to be activated; 0: never. */
static u64 repeat_faults = 15;
/* What each of those costs, ns. They do not happen, so this is the bound. */
static u64 repeat_ns;
static u64 wake_ms = 10;
static u64 stages;

static atomic64_t hint_faults;
static atomic64_t hint_faults_inactive;
static atomic64_t repeats;
static atomic64_t answered_yes;
static atomic64_t wakes;

static bool tpp_should_migrate(struct task_struct *task, struct folio *folio, int src_nid,
			       int dst_cpu);

static struct demeter_replacement tpp_decision = {
	.function = "should_numa_migrate_memory",
	.with = tpp_should_migrate,
};

/*
 * The access faults again until the page is active. Its first fault may only note the
 * reference; each later one adds the page to the batch of those to be activated, which is
 * drained when it is full. Linux 6.12 takes a page but once into the batch and restores
 * the entry after each fault, so the outcome is brought about here, at once.
 */
static void tpp_repeat(struct folio *folio)
{
	u64 times = repeat_faults + !folio_test_referenced(folio);

	if (!folio_test_referenced(folio))
		folio_mark_accessed(folio);
	folio_mark_accessed(folio);
	demeter_call(lru_add_drain)();
	atomic64_add(times, &repeats);
	if (repeat_ns)
		udelay(div_u64(times * repeat_ns, NSEC_PER_USEC));
}

static bool tpp_decide(struct folio *folio, int src_nid)
{
	/* Mode 2 lets only pages of SMEM fault, but there may be other nodes. */
	if (node_state(src_nid, N_CPU))
		return false;
	atomic64_inc(&hint_faults);
	demeter_stages_hint_fault();
	if (folio_test_active(folio))
		return true;
	atomic64_inc(&hint_faults_inactive);
	if (!repeat_faults) {
		/* What is active by the next scan that finds it is promoted then. */
		folio_mark_accessed(folio);
		return false;
	}
	tpp_repeat(folio);
	return folio_test_active(folio);
}

static bool tpp_should_migrate(struct task_struct *task, struct folio *folio, int src_nid,
			       int dst_cpu)
{
	int inside = demeter_replacement_enter(&tpp_decision);
	bool yes = tpp_decide(folio, src_nid);

	if (yes)
		atomic64_inc(&answered_yes);
	demeter_replacement_leave(&tpp_decision, inside);
	return yes;
}

/* Wake the kswapd of a node; it sleeps on if enough is free. */
static void tpp_wake_node(pg_data_t *pgdat)
{
	int i;

	for (i = MAX_NR_ZONES - 1; i >= 0; i--) {
		if (!managed_zone(&pgdat->node_zones[i]))
			continue;
		static_call(tpp_wakeup_kswapd)(&pgdat->node_zones[i], 0, 0, i);
		break;
	}
}

static void tpp_wake(struct work_struct *work)
{
	int nid;

	for (nid = 0; nid < MAX_NUMNODES; nid++) {
		if (node_state(nid, N_CPU))
			tpp_wake_node(NODE_DATA(nid));
	}
	atomic64_inc(&wakes);
	queue_delayed_work(system_unbound_wq, to_delayed_work(work), msecs_to_jiffies(wake_ms));
}

static DECLARE_DELAYED_WORK(tpp_timer, tpp_wake);

/* MGLRU has no active list. */
static bool tpp_lists_are_two(void)
{
	struct static_key *caps = (void *)demeter_symbol_address("lru_gen_caps");

	return !caps || !static_key_enabled(&caps[0]);
}

static int tpp_start(void)
{
	int ret;

	if (!tpp_lists_are_two()) {
		pr_err("the multi-generation LRU is on, which has no active list; next: write n to /sys/kernel/mm/lru_gen/enabled\n");
		return -EOPNOTSUPP;
	}
	if (!demeter_symbol_aim(&STATIC_CALL_KEY(tpp_wakeup_kswapd),
				STATIC_CALL_TRAMP_ADDR(tpp_wakeup_kswapd), "wakeup_kswapd")) {
		pr_err("this kernel has no function wakeup_kswapd; next: use Debian's 6.12\n");
		return -ENOENT;
	}
	if (stages) {
		ret = demeter_stages_start();
		if (ret)
			return ret;
	}
	ret = demeter_replace(&tpp_decision);
	if (ret) {
		if (stages)
			demeter_stages_stop();
		return ret;
	}
	queue_delayed_work(system_unbound_wq, &tpp_timer, 0);
	return 0;
}

static void tpp_stop(void)
{
	cancel_delayed_work_sync(&tpp_timer);
	demeter_restore(&tpp_decision);
	if (stages)
		demeter_stages_stop();
}

static const struct demeter_peer_param tpp_params[] = {
	{ "repeat_faults", &repeat_faults, 0, 31 },
	{ "repeat_ns", &repeat_ns, 0, 10000 },
	{ "wake_ms", &wake_ms, 1, 10000 },
	{ "stages", &stages, 0, 1 },
	{ .name = NULL },
};

static const struct demeter_peer_stat tpp_stats[] = {
	{ "hint_faults", &hint_faults }, { "hint_faults_inactive", &hint_faults_inactive },
	{ "repeat_faults", &repeats },	 { "answered_yes", &answered_yes },
	{ "kswapd_wakes", &wakes },	 { .name = NULL },
};

const struct demeter_peer demeter_peer_this = {
	.name = "tpp",
	.params = tpp_params,
	.stats = tpp_stats,
	.start = tpp_start,
	.stop = tpp_stop,
};
