// SPDX-License-Identifier: GPL-2.0-only
/*
 * The policy thread: promotes what is hot in SMEM, first in, first out, into what is free of
 * FMEM, or after what is cold there has gone.
 *
 * Both are copied, as the published system does, and nothing is exchanged. Where the system
 * makes huge pages of everything, what moves up is made one first: all of HeMem's are.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/math64.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>

#include "../contract.h"
#include "binding.h"
#include "hemem.h"
#include "huge.h"
#include "relocate.h"

static struct task_struct *policy;

static struct hemem_granule *granule_of(struct demeter_hemem_page *page)
{
	return page ? container_of(page, struct hemem_granule, page) : NULL;
}

static void note_refused(const struct demeter_refusals *why)
{
	u64 pages = 0;
	u32 i;

	for (i = 0; i < DEMETER_REFUSALS; i++)
		pages += why->pages[i];
	atomic64_add(pages, &hemem_stats.refused_pages);
}

static struct demeter_huge_source source_of(const struct hemem_granule *granule, int from, int to)
{
	return (struct demeter_huge_source){
		.mm = granule->space->mm,
		.start = granule->start,
		.end = granule->start + HPAGE_PMD_SIZE,
		.collapse_from = granule->start,
		.nid = from,
		.to_nid = to,
	};
}

/* Take all of a page that is in a tier off its LRU list. */
static void take(const struct hemem_granule *granule, int from, int to,
		 struct demeter_folio_list *list, struct demeter_refusals *why)
{
	demeter_scan_isolate(granule->space->mm, granule->start, granule->start + HPAGE_PMD_SIZE,
			     from, to, HPAGE_PMD_NR, list, why);
}

/*
 * Under no lock; the process lives. Returns 4 KiB pages moved. @in_pieces is set where what is
 * free has no room for it.
 */
static u64 move(struct hemem_granule *granule, enum demeter_tier to, u64 freed_pages,
		bool *in_pieces)
{
	int from_nid = hemem_node[!to], to_nid = hemem_node[to];
	struct demeter_refusals why = {};
	struct demeter_folio_list list;
	u64 moved, begin_ns;

	demeter_folio_list_init(&list);
	if (to == DEMETER_FMEM) {
		struct demeter_huge_source from = source_of(granule, from_nid, to_nid);

		demeter_huge_collapse(&from, HPAGE_PMD_NR);
	}
	take(granule, from_nid, to_nid, &list, &why);
	begin_ns = ktime_get_ns();
	moved = demeter_relocate_migrate_into(&list, to_nid, freed_pages, &why);
	/* Who reads it meanwhile waits, which the published system spares readers. */
	atomic64_add(ktime_get_ns() - begin_ns, &hemem_stats.unreachable_ns);
	note_refused(&why);
	*in_pieces |= to == DEMETER_FMEM && why.pages[DEMETER_REFUSED_NO_ROOM];
	atomic64_add(moved,
		     to == DEMETER_FMEM ? &hemem_stats.promoted_pages : &hemem_stats.demoted_pages);
	return moved;
}

/* Move a page if its process lives; it is last of its list then, wherever it is. */
static u64 move_and_note(struct hemem_granule *granule, enum demeter_tier to, u64 freed_pages,
			 bool *in_pieces)
{
	struct mm_struct *mm = granule->space->mm;
	enum demeter_tier tier = granule->page.tier;
	struct demeter_scan_granule found;
	bool gone = false;
	u64 moved;

	if (!mmget_not_zero(mm)) {
		mutex_lock(&hemem_lock);
		hemem_page_forget(granule);
		mutex_unlock(&hemem_lock);
		return 0;
	}
	moved = move(granule, to, freed_pages, in_pieces);
	if (!demeter_scan_granule(mm, granule->start, hemem_node, &found))
		gone = !hemem_tier_of(&found, &tier);
	mmput_async(mm);
	mutex_lock(&hemem_lock);
	if (gone)
		hemem_page_forget(granule);
	else
		demeter_hemem_moved(&hemem, &granule->page, tier);
	mutex_unlock(&hemem_lock);
	return moved;
}

static bool room_for_page(void)
{
	return demeter_relocate_room(hemem_node[DEMETER_FMEM]) >= HPAGE_PMD_NR;
}

/*
 * One promotion, with what has to go before; false if either side has run out. Free memory that
 * had no room for a page is none: the published system's DRAM is a pool of whole pages, in which
 * nothing is in pieces.
 */
static bool move_next(u64 *moved, bool *in_pieces)
{
	struct demeter_hemem_move next;
	u64 freed = 0;
	bool any;

	*moved = 0;
	mutex_lock(&hemem_lock);
	any = demeter_hemem_choose(&hemem, !*in_pieces && room_for_page(), &next);
	mutex_unlock(&hemem_lock);
	if (!any)
		return false;
	if (next.down) {
		freed = move_and_note(granule_of(next.down), DEMETER_SMEM, 0, in_pieces);
		/* What is to go up may be another by now, or none. */
		mutex_lock(&hemem_lock);
		any = demeter_hemem_choose(&hemem, true, &next);
		mutex_unlock(&hemem_lock);
		*moved = freed;
		if (!any)
			return false;
	}
	*moved += move_and_note(granule_of(next.up), DEMETER_FMEM, freed, in_pieces);
	return true;
}

static void show_lists(void)
{
	mutex_lock(&hemem_lock);
	atomic64_set(&hemem_stats.hot_fmem, hemem.lists[DEMETER_FMEM][true].pages);
	atomic64_set(&hemem_stats.hot_smem, hemem.lists[DEMETER_SMEM][true].pages);
	atomic64_set(&hemem_stats.cold_fmem, hemem.lists[DEMETER_FMEM][false].pages);
	atomic64_set(&hemem_stats.cold_smem, hemem.lists[DEMETER_SMEM][false].pages);
	mutex_unlock(&hemem_lock);
}

/* Promote; each page that is hot now is tried once at most. */
static void policy_round(void)
{
	u64 tries, budget = hemem_params.round_pages, moved;
	bool in_pieces = false;

	mutex_lock(&hemem_lock);
	demeter_hemem_cool(&hemem, hemem_params.cooling_pages);
	tries = hemem.lists[DEMETER_SMEM][true].pages;
	mutex_unlock(&hemem_lock);
	while (tries-- && budget && !kthread_should_stop()) {
		bool was_in_pieces = in_pieces, more = move_next(&moved, &in_pieces);

		/* What found no room comes again, after something has gone. */
		if (in_pieces && !was_in_pieces)
			tries++;
		budget -= min(moved, budget);
		if (!more)
			break;
		cond_resched();
	}
}

/* CPU time of a round, shared out as wall time was. */
static void note_time(u64 exec_ns, u64 wall_ns, u64 migrate_ns)
{
	u64 migrate = wall_ns ? mul_u64_u64_div_u64(exec_ns, min(migrate_ns, wall_ns), wall_ns) : 0;

	atomic64_add(migrate, &demeter_peer_stage_ns[DEMETER_PEER_MIGRATE]);
	atomic64_add(exec_ns - migrate, &demeter_peer_stage_ns[DEMETER_PEER_CLASSIFY]);
}

static int policy_run(void *unused)
{
	u64 exec_ns = 0;

	while (!kthread_should_stop()) {
		u64 begin_ns = ktime_get_ns(), looked_ns, end_ns;

		hemem_pages_look();
		looked_ns = ktime_get_ns();
		policy_round();
		end_ns = ktime_get_ns();
		show_lists();
		schedule_timeout_interruptible(msecs_to_jiffies(hemem_params.policy_ms));
		/* Exact when it has just slept. */
		note_time(current->se.sum_exec_runtime - exec_ns, end_ns - begin_ns,
			  end_ns - looked_ns);
		exec_ns = current->se.sum_exec_runtime;
	}
	return 0;
}

int hemem_policy_start(void)
{
	demeter_binding_resolve();
	demeter_huge_resolve();
	policy = kthread_run(policy_run, NULL, "hemem_policy");
	return PTR_ERR_OR_ZERO(policy);
}

void hemem_policy_stop(void)
{
	kthread_stop(policy);
}
