// SPDX-License-Identifier: GPL-2.0-only
/*
 * Nomad: transactional page migration and shadows, as published (README.md here says what
 * is not).
 *
 *   track    as TPP (../tpp/track.h), but a fault moves nothing: it adds the page to the
 *            candidates, and looks back at the last of them
 *   queue    of those, what has become active goes to a ring
 *   promote  one worker, by transactions, what was accessed since (transact.h); the old
 *            page stays as shadow (shadow.h)
 *   demote   kswapd, in the place of demote_folio_list(): the shadow is mapped again if
 *            there is one, and all else copied by Linux
 *
 * A THP is promoted in its fault as TPP does it.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/jiffies.h>
#include <linux/ktime.h>
#include <linux/memory-tiers.h>
#include <linux/migrate.h>
#include <linux/mm.h>
#include <linux/mmzone.h>
#include <linux/nodemask.h>
#include <linux/spinlock.h>
#include <linux/topology.h>
#include <linux/workqueue.h>

#include "../tpp/track.h"
#include "folio_check.h"
#include "kernel_calls.h"
#include "shadow.h"
#include "symbols.h"
#include "transact.h"

#define CANDIDATES 64u
#define RING	   512u
/* Folios that are activated together in the published kernel; 31 in 6.12. */
#define BATCH	   15u

#define nomad_type_next_demotion_node next_demotion_node
DEFINE_STATIC_CALL_NULL(nomad_next_demotion_node, nomad_type_next_demotion_node);

static u64 look_back = 20;
static u64 ring_size = RING;
static u64 passes = 10;
static u64 reclaim_pages = 10;
/* Whether kswapd is woken where a promotion finds no room, as Linux does in the fault. */
static u64 wake_full = 1;

static atomic64_t queued;
static atomic64_t ring_full;
static atomic64_t answered_yes;
static atomic64_t demoted;
static atomic64_t refused;
static atomic64_t refused_by[DEMETER_REFUSALS];

/**
 * struct candidate - a page that faulted
 * @pfn: the page, without a reference; 0: none
 * @nid: node of the CPU that faulted
 */
struct candidate {
	unsigned long pfn;
	int nid;
};

/* Protects what follows; taken under page-table locks. */
static DEFINE_SPINLOCK(queue_lock);
static struct candidate candidates[CANDIDATES];
static unsigned int candidates_head;
static struct candidate ring[RING];
static unsigned int ring_head, ring_tail;

static void nomad_work(struct work_struct *work);
static DECLARE_WORK(worker, nomad_work);

static bool nomad_should_migrate(struct task_struct *task, struct folio *folio, int src_nid,
				 int dst_cpu);
static unsigned int nomad_demote_list(struct list_head *folios, struct pglist_data *pgdat);

static struct demeter_replacement decision = {
	.function = "should_numa_migrate_memory",
	.with = nomad_should_migrate,
};

static struct demeter_replacement demotion = {
	.function = "demote_folio_list",
	.with = nomad_demote_list,
};

static bool ring_add(const struct candidate *candidate)
{
	lockdep_assert_held(&queue_lock);
	if (ring_head - ring_tail >= ring_size) {
		atomic64_inc(&ring_full);
		return false;
	}
	ring[ring_head++ % RING] = *candidate;
	atomic64_inc(&queued);
	return true;
}

static bool ring_take(struct candidate *candidate)
{
	bool any;

	spin_lock(&queue_lock);
	any = ring_head != ring_tail;
	if (any)
		*candidate = ring[ring_tail++ % RING];
	spin_unlock(&queue_lock);
	return any;
}

/* Queue those of the last candidates that have become active. */
static bool look_back_at_candidates(void)
{
	bool any = false;
	unsigned int i;

	lockdep_assert_held(&queue_lock);
	for (i = 1; i <= look_back; i++) {
		struct candidate *candidate = &candidates[(candidates_head - i) % CANDIDATES];

		/* No reference: it may be another page by now, which the worker finds out. */
		if (!candidate->pfn || !folio_test_active(pfn_folio(candidate->pfn)))
			continue;
		any |= ring_add(candidate);
		candidate->pfn = 0;
	}
	return any;
}

/* Under the page-table lock of the fault. */
static void nomad_fault(struct folio *folio, int nid)
{
	bool drain, any;

	if (!folio_test_active(folio))
		tpp_mark_accessed(folio);
	spin_lock(&queue_lock);
	candidates[candidates_head++ % CANDIDATES] =
		(struct candidate){ .pfn = folio_pfn(folio), .nid = nid };
	drain = !(candidates_head % BATCH);
	spin_unlock(&queue_lock);
	if (drain)
		demeter_call(lru_add_drain)();
	spin_lock(&queue_lock);
	any = look_back_at_candidates();
	spin_unlock(&queue_lock);
	if (any)
		queue_work(system_unbound_wq, &worker);
}

static bool nomad_decide(struct folio *folio, int src_nid, int dst_cpu)
{
	if (!tpp_hint_fault(folio, src_nid)) {
		/* Its entry may become writable without a fault. */
		nomad_shadow_forget(folio_pfn(folio));
		return false;
	}
	if (folio_test_large(folio))
		return tpp_activates(folio);
	nomad_fault(folio, cpu_to_node(dst_cpu));
	return false;
}

static bool nomad_should_migrate(struct task_struct *task, struct folio *folio, int src_nid,
				 int dst_cpu)
{
	int inside = demeter_replacement_enter(&decision);
	bool yes = nomad_decide(folio, src_nid, dst_cpu);

	if (yes)
		atomic64_inc(&answered_yes);
	demeter_replacement_leave(&decision, inside);
	return yes;
}

static void nomad_work(struct work_struct *work)
{
	struct candidate candidate;
	u64 begin_ns = ktime_get_ns();

	nomad_space_sweep();
	demeter_call(lru_add_drain)();
	while (ring_take(&candidate)) {
		enum demeter_refusal reason = nomad_promote(candidate.pfn, candidate.nid, passes);

		if (reason != DEMETER_OK) {
			atomic64_inc(&refused);
			atomic64_inc(&refused_by[reason]);
		}
		if (reason == DEMETER_REFUSED_NO_ROOM && wake_full)
			tpp_wake_kswapd(candidate.nid);
		cond_resched();
	}
	atomic64_add(ktime_get_ns() - begin_ns, &demeter_peer_stage_ns[DEMETER_PEER_MIGRATE]);
}

/* The allocation callback of migrate_pages(). */
static struct folio *nomad_demotion_folio(struct folio *src, unsigned long nid)
{
	gfp_t gfp = (GFP_HIGHUSER_MOVABLE & ~__GFP_RECLAIM) | __GFP_THISNODE | __GFP_NOWARN |
		    __GFP_NOMEMALLOC;
	struct folio *dst;

	if (folio_test_large(src))
		gfp |= GFP_TRANSHUGE_LIGHT & ~__GFP_RECLAIM;
	dst = __folio_alloc(gfp, folio_order(src), nid, NULL);
	if (!dst && nomad_shadow_reclaim(nid, reclaim_pages))
		dst = __folio_alloc(gfp, folio_order(src), nid, NULL);
	return dst;
}

static unsigned int nomad_demote(struct list_head *folios, int nid)
{
	unsigned int by_shadow = 0, by_copy = 0;
	struct folio *folio, *next;

	list_for_each_entry_safe(folio, next, folios, lru) {
		list_del(&folio->lru);
		if (nomad_demote_to_shadow(folio))
			by_shadow++;
		else
			list_add_tail(&folio->lru, next ? &next->lru : folios);
	}
	if (!list_empty(folios))
		demeter_call(migrate_pages)(folios, nomad_demotion_folio, NULL, nid, MIGRATE_ASYNC,
					    MR_DEMOTION, &by_copy);
	return by_shadow + by_copy;
}

/* Called by reclaim, with folios that are isolated and not locked. */
static unsigned int nomad_demote_list(struct list_head *folios, struct pglist_data *pgdat)
{
	int inside = demeter_replacement_enter(&demotion);
	unsigned int pages = 0;
	u64 begin_ns = ktime_get_ns();
	int nid;

	if (!list_empty(folios)) {
		nid = static_call(nomad_next_demotion_node)(pgdat->node_id);
		if (nid != NUMA_NO_NODE)
			pages = nomad_demote(folios, nid);
	}
	atomic64_add(pages, &demoted);
	/* Else a probe measures it. */
	if (!tpp_track.stages)
		atomic64_add(ktime_get_ns() - begin_ns,
			     &demeter_peer_stage_ns[DEMETER_PEER_MIGRATE]);
	demeter_replacement_leave(&demotion, inside);
	return pages;
}

static int nomad_start(void)
{
	int ret = nomad_transact_resolve();

	if (ret)
		return ret;
	if (!demeter_symbol_aim(&STATIC_CALL_KEY(nomad_next_demotion_node),
				STATIC_CALL_TRAMP_ADDR(nomad_next_demotion_node),
				"next_demotion_node")) {
		pr_err("this kernel has no function next_demotion_node; next: use Debian's 6.12\n");
		return -ENOENT;
	}
	memset(candidates, 0, sizeof(candidates));
	ret = nomad_shadow_start();
	if (ret)
		return ret;
	ret = demeter_replace(&demotion);
	if (ret)
		goto stop_shadows;
	ret = tpp_track_start(&decision);
	if (!ret)
		return 0;
	demeter_restore(&demotion);
stop_shadows:
	nomad_shadow_stop();
	return ret;
}

static void nomad_stop(void)
{
	struct candidate dropped;

	tpp_track_stop(&decision);
	while (ring_take(&dropped))
		;
	cancel_work_sync(&worker);
	demeter_restore(&demotion);
	nomad_shadow_stop();
}

static const struct demeter_peer_param nomad_params[] = {
	TPP_TRACK_PARAMS,
	{ "look_back", &look_back, 1, CANDIDATES },
	{ "ring_size", &ring_size, 1, RING },
	{ "passes", &passes, 1, 100 },
	{ "reclaim_pages", &reclaim_pages, 0, 1000 },
	{ "wake_full", &wake_full, 0, 1 },
	{ .name = NULL },
};

static const struct demeter_peer_stat nomad_stats[] = {
	TPP_TRACK_STATS,
	{ "answered_yes", &answered_yes },
	{ "queued", &queued },
	{ "ring_full", &ring_full },
	{ "transactions_committed", &nomad_moves.committed },
	{ "transactions_aborted", &nomad_moves.aborted },
	{ "shadows", &nomad_shadow_counts.shadows },
	{ "shadows_written", &nomad_shadow_counts.written },
	{ "shadows_dropped", &nomad_shadow_counts.dropped },
	{ "shadows_stale", &nomad_moves.shadow_stale },
	{ "shadow_demotions", &nomad_moves.shadow_demoted },
	{ "shadow_reclaims", &nomad_shadow_counts.reclaimed },
	{ "promoted_pages", &nomad_moves.promoted },
	{ "demoted_pages", &demoted },
	{ "refused_pages", &refused },
	{ "refused_no_room", &refused_by[DEMETER_REFUSED_NO_ROOM] },
	{ "refused_lru", &refused_by[DEMETER_REFUSED_LRU] },
	{ "refused_lock", &refused_by[DEMETER_REFUSED_LOCK] },
	{ "refused_refs", &refused_by[DEMETER_REFUSED_REFS] },
	{ "refused_shared", &refused_by[DEMETER_REFUSED_SHARED] },
	{ "refused_policy", &refused_by[DEMETER_REFUSED_POLICY] },
	{ .name = NULL },
};

const struct demeter_peer demeter_peer_this = {
	.name = "nomad",
	.params = nomad_params,
	.stats = nomad_stats,
	.start = nomad_start,
	.stop = nomad_stop,
};
