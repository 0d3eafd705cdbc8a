/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Nimble as a module: who knows what.
 *
 *	lists.c		ages Linux's active and inactive lists, and takes pages off them
 *	nimble.c	the thread that does that and moves them; parameters, counters
 */
#ifndef DEMETER_PEERS_NIMBLE_INTERNAL_H
#define DEMETER_PEERS_NIMBLE_INTERNAL_H

#include <linux/atomic.h>
#include <linux/types.h>

#include <demeter/peers/nimble.h>

#include "scan.h"

struct mem_cgroup;

/**
 * struct nimble_stats - counters, as in stats/
 */
struct nimble_stats {
	atomic64_t promoted_pages;
	atomic64_t demoted_pages;
	atomic64_t refused_pages;
	atomic64_t exchanged_huge_pages;
	atomic64_t scanned_pages;
	atomic64_t activated_pages;
	atomic64_t deactivated_pages;
	atomic64_t rounds;
	atomic64_t copy_ns;
};

extern struct nimble_stats nimble_stats;

/**
 * nimble_lists_resolve() - find what is needed of the kernel
 *
 * Return: 0 or a negative errno, the reason in the kernel log.
 */
int nimble_lists_resolve(void);

/**
 * nimble_group_next() - go through all memory cgroups
 * @group: the one before, or NULL
 *
 * Return: the next, NULL at the end, or if there are no memory cgroups.
 */
struct mem_cgroup *nimble_group_next(struct mem_cgroup *group);

/**
 * nimble_group_leave() - end nimble_group_next() early
 * @group: what it has returned
 */
void nimble_group_leave(struct mem_cgroup *group);

/**
 * nimble_lists_age() - look at a part of both lists of anonymous memory
 * @group: memory cgroup, or NULL where there are none
 * @nid: node
 * @permille: part of each list
 *
 * What was accessed since the last look goes to the active list, the rest of the active
 * one to the inactive one.
 */
void nimble_lists_age(struct mem_cgroup *group, int nid, u64 permille);

/**
 * nimble_lists_pages() - length of a list
 * @group: memory cgroup, or NULL where there are none
 * @nid: node
 * @active: which list
 *
 * Return: 4 KiB pages.
 */
u64 nimble_lists_pages(struct mem_cgroup *group, int nid, bool active);

/**
 * nimble_lists_take() - take pages off a list
 * @group: memory cgroup, or NULL where there are none
 * @nid: node
 * @active: which list
 * @pages: 4 KiB pages to look at, from its end
 * @list: folios are appended
 * @why: refusals are added
 */
void nimble_lists_take(struct mem_cgroup *group, int nid, bool active, u64 pages,
		       struct demeter_folio_list *list, struct demeter_refusals *why);

#endif /* DEMETER_PEERS_NIMBLE_INTERNAL_H */
