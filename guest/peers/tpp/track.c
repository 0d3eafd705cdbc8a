// SPDX-License-Identifier: GPL-2.0-only
/*
 * Tracking as TPP does it: see track.h.
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
#include <linux/swap.h>
#include <linux/workqueue.h>

#include "kernel_calls.h"
#include "stages.h"
#include "symbols.h"
#include "track.h"
#include "two_lists.h"

#define tpp_type_wakeup_kswapd wakeup_kswapd
DEFINE_STATIC_CALL_NULL(tpp_wakeup_kswapd, tpp_type_wakeup_kswapd);

struct tpp_track tpp_track = { .repeat_faults = 15, .wake_ms = 10 };

void tpp_mark_accessed(struct folio *folio)
{
	if (!folio_test_referenced(folio))
		folio_mark_accessed(folio);
	folio_mark_accessed(folio);
}

/*
 * The access faults again until the page is active. Its first fault may only note the
 * reference; each later one adds the page to the batch of those to be activated, which is
 * drained when it is full. Linux 6.12 takes a page but once into the batch and restores
 * the entry after each fault, so the outcome is brought about here, at once.
 */
static void tpp_repeat(struct folio *folio)
{
	u64 times = tpp_track.repeat_faults + !folio_test_referenced(folio);

	tpp_mark_accessed(folio);
	demeter_call(lru_add_drain)();
	atomic64_add(times, &tpp_track.repeats);
	if (tpp_track.repeat_ns)
		udelay(div_u64(times * tpp_track.repeat_ns, NSEC_PER_USEC));
}

bool tpp_hint_fault(struct folio *folio, int src_nid)
{
	/* Mode 2 lets only pages of SMEM fault, but there may be other nodes. */
	if (node_state(src_nid, N_CPU))
		return false;
	atomic64_inc(&tpp_track.hint_faults);
	demeter_stages_hint_fault();
	if (!folio_test_active(folio))
		atomic64_inc(&tpp_track.hint_faults_inactive);
	return true;
}

bool tpp_activates(struct folio *folio)
{
	if (folio_test_active(folio))
		return true;
	if (!tpp_track.repeat_faults) {
		/* What is active by the next scan that finds it is promoted then. */
		folio_mark_accessed(folio);
		return false;
	}
	tpp_repeat(folio);
	return folio_test_active(folio);
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

void tpp_wake_kswapd(int nid)
{
	tpp_wake_node(NODE_DATA(nid));
}

static void tpp_wake(struct work_struct *work)
{
	int nid;

	for (nid = 0; nid < MAX_NUMNODES; nid++) {
		if (node_state(nid, N_CPU))
			tpp_wake_node(NODE_DATA(nid));
	}
	atomic64_inc(&tpp_track.wakes);
	queue_delayed_work(system_unbound_wq, to_delayed_work(work),
			   msecs_to_jiffies(tpp_track.wake_ms));
}

static DECLARE_DELAYED_WORK(tpp_timer, tpp_wake);

int tpp_track_start(struct demeter_replacement *decision)
{
	int ret = demeter_two_lists_check();

	if (ret)
		return ret;
	if (!demeter_symbol_aim(&STATIC_CALL_KEY(tpp_wakeup_kswapd),
				STATIC_CALL_TRAMP_ADDR(tpp_wakeup_kswapd), "wakeup_kswapd")) {
		pr_err("this kernel has no function wakeup_kswapd; next: use Debian's 6.12\n");
		return -ENOENT;
	}
	if (tpp_track.stages) {
		ret = demeter_stages_start();
		if (ret)
			return ret;
	}
	ret = demeter_replace(decision);
	if (ret) {
		if (tpp_track.stages)
			demeter_stages_stop();
		return ret;
	}
	queue_delayed_work(system_unbound_wq, &tpp_timer, 0);
	return 0;
}

void tpp_track_stop(struct demeter_replacement *decision)
{
	cancel_delayed_work_sync(&tpp_timer);
	demeter_restore(decision);
	if (tpp_track.stages)
		demeter_stages_stop();
}
