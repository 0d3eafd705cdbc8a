// SPDX-License-Identifier: GPL-2.0-only
/*
 * Nimble: page lists aged by accessed bits at a fixed pace, active pages of SMEM against
 * inactive ones of FMEM, huge pages by exchange, as published (README.md here says what is
 * not). What is whose: nimble.h.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/list.h>
#include <linux/mm.h>

#include "../contract.h"
#include "binding.h"
#include "kernel_calls.h"
#include "nimble.h"
#include "nodes.h"
#include "relocate.h"
#include "two_lists.h"

/* 4 KiB pages of a tier that are off their lists at once; reclaim throttles everybody else. */
#define TAKE_PAGES (16u * HPAGE_PMD_NR)

static u64 period_ms = 5000;
static u64 scan_permille = 500;
static u64 batch = 8;
static u64 exchange = 1;

struct nimble_stats nimble_stats;
static int node[DEMETER_TIERS];
static struct task_struct *nimbled;

static void note(const struct demeter_refusals *why, u64 promoted, u64 demoted)
{
	u64 pages = 0;
	u32 i;

	for (i = 0; i < DEMETER_REFUSALS; i++)
		pages += why->pages[i];
	atomic64_add(pages, &nimble_stats.refused_pages);
	atomic64_add(promoted, &nimble_stats.promoted_pages);
	atomic64_add(demoted, &nimble_stats.demoted_pages);
}

/* The first folios of a list, so many 4 KiB pages; returns how many it was. */
static u64 part_of(struct list_head *from, u64 *from_pages, u64 pages, struct list_head *to)
{
	struct folio *folio, *next;
	u64 taken = 0;

	list_for_each_entry_safe(folio, next, from, lru) {
		if (taken + folio_nr_pages(folio) > pages)
			break;
		list_move_tail(&folio->lru, to);
		taken += folio_nr_pages(folio);
	}
	*from_pages -= taken;
	return taken;
}

static void huge_part(struct demeter_folio_list *from, u64 pages, struct demeter_folio_list *to)
{
	demeter_folio_list_init(to);
	to->huge_pages = part_of(&from->huge, &from->huge_pages, pages, &to->huge);
}

/* What is not a huge page: that of the odd sizes first. */
static void base_part(struct demeter_folio_list *from, u64 pages, struct demeter_folio_list *to)
{
	demeter_folio_list_init(to);
	to->other_pages = part_of(&from->other, &from->other_pages, pages, &to->other);
	to->small_pages =
		part_of(&from->small, &from->small_pages, pages - to->other_pages, &to->small);
}

/* Out, then in, by two copies. */
static void trade(struct demeter_folio_list *up, struct demeter_folio_list *down)
{
	struct demeter_refusals why = {};
	u64 freed, moved;

	freed = demeter_relocate_migrate_into(down, node[DEMETER_SMEM], 0, &why);
	moved = demeter_relocate_migrate_into(up, node[DEMETER_FMEM], freed, &why);
	note(&why, moved, freed);
}

static void exchange_huge(struct demeter_folio_list *up, struct demeter_folio_list *down)
{
	struct demeter_refusals why = {};
	u64 moved = demeter_relocate_exchange(up, down, batch, &why, NULL);

	atomic64_add(2 * moved / HPAGE_PMD_NR, &nimble_stats.exchanged_huge_pages);
	note(&why, moved, moved);
}

static void fill(struct demeter_folio_list *up)
{
	struct demeter_refusals why = {};

	u64 moved = demeter_relocate_migrate(up, node[DEMETER_FMEM], &why, NULL);

	note(&why, moved, 0);
}

static void move(struct demeter_folio_list *hot, struct demeter_folio_list *cold)
{
	struct demeter_nimble_lists lists = {
		.hot_huge = hot->huge_pages,
		.hot_base = hot->small_pages + hot->other_pages,
		.cold_huge = cold->huge_pages,
		.cold_base = cold->small_pages + cold->other_pages,
		.room = demeter_relocate_room(node[DEMETER_FMEM]),
		.huge = HPAGE_PMD_NR,
	};
	struct demeter_nimble_plan plan = demeter_nimble_plan(&lists);
	struct demeter_folio_list up, down;

	huge_part(hot, plan.fill_huge, &up);
	fill(&up);
	base_part(hot, plan.fill_base, &up);
	fill(&up);
	huge_part(hot, plan.exchange, &up);
	huge_part(cold, plan.exchange, &down);
	if (exchange)
		exchange_huge(&up, &down);
	else
		trade(&up, &down);
	base_part(hot, plan.trade, &up);
	base_part(cold, plan.trade, &down);
	trade(&up, &down);
}

/* As many of both sides as there are, some at a time. */
static void manage(struct mem_cgroup *group)
{
	u64 hot_pages = nimble_lists_pages(group, node[DEMETER_SMEM], true);
	u64 cold_pages = nimble_lists_pages(group, node[DEMETER_FMEM], false);

	while (hot_pages && !kthread_should_stop()) {
		u64 hot_part = min(hot_pages, TAKE_PAGES), cold_part = min(cold_pages, TAKE_PAGES);
		struct demeter_folio_list hot, cold;
		struct demeter_refusals why = {};

		if (!cold_part && !demeter_relocate_room(node[DEMETER_FMEM]))
			break;
		demeter_folio_list_init(&hot);
		demeter_folio_list_init(&cold);
		nimble_lists_take(group, node[DEMETER_SMEM], true, hot_part, &hot, &why);
		nimble_lists_take(group, node[DEMETER_FMEM], false, cold_part, &cold, &why);
		note(&why, 0, 0);
		move(&hot, &cold);
		demeter_folio_list_putback(&hot);
		demeter_folio_list_putback(&cold);
		hot_pages -= hot_part;
		cold_pages -= cold_part;
		cond_resched();
	}
}

/* Ages, then moves, group after group; the time goes to @stage. */
static void round_of(void (*each)(struct mem_cgroup *group), enum demeter_peer_stage stage)
{
	u64 exec_ns = current->se.sum_exec_runtime;
	struct mem_cgroup *group = nimble_group_next(NULL);

	do {
		each(group);
		if (kthread_should_stop()) {
			nimble_group_leave(group);
			break;
		}
		/* Without memory cgroups there is one round, with NULL. */
	} while (group && (group = nimble_group_next(group)));
	/* Up to date when it has just slept. */
	schedule_timeout_uninterruptible(1);
	atomic64_add(current->se.sum_exec_runtime - exec_ns, &demeter_peer_stage_ns[stage]);
}

static void age(struct mem_cgroup *group)
{
	u32 tier;

	for (tier = 0; tier < DEMETER_TIERS; tier++)
		nimble_lists_age(group, node[tier], scan_permille);
	/* What was aged waits in a batch of this CPU, and is on no list. */
	demeter_call(lru_add_drain)();
}

static int nimbled_run(void *unused)
{
	while (!kthread_should_stop()) {
		round_of(age, DEMETER_PEER_TRACK);
		round_of(manage, DEMETER_PEER_MIGRATE);
		atomic64_inc(&nimble_stats.rounds);
		schedule_timeout_interruptible(msecs_to_jiffies(period_ms));
	}
	return 0;
}

static int nimble_start(void)
{
	int ret = demeter_nodes_find(node) ?: demeter_two_lists_check() ?: nimble_lists_resolve();

	if (ret)
		return ret;
	demeter_binding_resolve();
	nimbled = kthread_run(nimbled_run, NULL, "nimbled");
	return PTR_ERR_OR_ZERO(nimbled);
}

static void nimble_stop(void)
{
	kthread_stop(nimbled);
}

static const struct demeter_peer_param nimble_params[] = {
	{ "period_ms", &period_ms, 1, 100000 },
	{ "scan_permille", &scan_permille, 1, 1000 },
	{ "batch", &batch, DEMETER_BATCH_PAIRS_MIN, DEMETER_BATCH_PAIRS_MAX },
	{ "exchange", &exchange, 0, 1 },
	{ .name = NULL },
};

static const struct demeter_peer_stat nimble_stat_files[] = {
	{ "promoted_pages", &nimble_stats.promoted_pages },
	{ "demoted_pages", &nimble_stats.demoted_pages },
	{ "refused_pages", &nimble_stats.refused_pages },
	{ "exchanged_huge_pages", &nimble_stats.exchanged_huge_pages },
	{ "scanned_pages", &nimble_stats.scanned_pages },
	{ "activated_pages", &nimble_stats.activated_pages },
	{ "deactivated_pages", &nimble_stats.deactivated_pages },
	{ "rounds", &nimble_stats.rounds },
	{ "copy_ns", &nimble_stats.copy_ns },
	{ .name = NULL },
};

const struct demeter_peer demeter_peer_this = {
	.name = "nimble",
	.params = nimble_params,
	.stats = nimble_stat_files,
	.start = nimble_start,
	.stop = nimble_stop,
};
