/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * HeMem as a module: who knows what.
 *
 *	pages.c		pages of 2 MiB by address space and address; which there are
 *	sampled.c	the thread that reads perf's ring buffers into their counts
 *	policy.c	the thread that moves what is hot and what is cold
 *	hemem.c		parameters, counters, start and stop
 */
#ifndef DEMETER_PEERS_HEMEM_INTERNAL_H
#define DEMETER_PEERS_HEMEM_INTERNAL_H

#include <linux/atomic.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/xarray.h>

#include <demeter/peers/hemem.h>

#include "scan.h"

struct mm_struct;

/**
 * struct hemem_params - parameters, as in params/
 *
 * Written only while stopped.
 */
struct hemem_params {
	u64 period;
	u64 store_period;
	u64 hot_reads;
	u64 hot_writes;
	u64 cooling_samples;
	u64 cooling_pages;
	u64 writes_first;
	u64 least_mapping_bytes;
	u64 poll_ms;
	u64 policy_ms;
	u64 round_pages;
};

extern struct hemem_params hemem_params;

/**
 * struct hemem_stats - counters, as in stats/
 */
struct hemem_stats {
	atomic64_t promoted_pages;
	atomic64_t demoted_pages;
	atomic64_t refused_pages;
	atomic64_t samples;
	atomic64_t store_samples;
	atomic64_t unused_samples;
	atomic64_t lost_samples;
	atomic64_t coolings;
	atomic64_t hot_fmem;
	atomic64_t hot_smem;
	atomic64_t cold_fmem;
	atomic64_t cold_smem;
	atomic64_t burnt_ns;
	atomic64_t unreachable_ns;
};

extern struct hemem_stats hemem_stats;

/**
 * struct hemem_space - an address space
 * @node: in hemem_spaces
 * @mm: mmgrab()bed
 * @hand: address up to which this pass over it has come; the policy thread's
 * @pages: struct hemem_granule by number of 2 MiB
 */
struct hemem_space {
	struct list_head node;
	struct mm_struct *mm;
	u64 hand;
	struct xarray pages;
};

/**
 * struct hemem_granule - a page of 2 MiB
 * @page: its counts and place; first
 * @space: whose
 * @start: first byte
 * @seen: this pass has come across it; the policy thread's
 */
struct hemem_granule {
	struct demeter_hemem_page page;
	struct hemem_space *space;
	u64 start;
	bool seen;
};

/*
 * Protects hemem, hemem_spaces and all that is in them. The policy thread alone removes
 * pages and spaces, so it may keep pointers to them without it.
 */
extern struct mutex hemem_lock;
extern struct demeter_hemem hemem;
extern struct list_head hemem_spaces;

/* Nodes by tier; written at start. */
extern int hemem_node[DEMETER_TIERS];

/* pages.c */

/**
 * hemem_pages_reset() - forget everything, and take the rules from the parameters
 *
 * No thread runs.
 */
void hemem_pages_reset(void);

/**
 * hemem_space_find() - the space of an address space, made if need be; under hemem_lock
 * @mm: with a reference on mm_users
 *
 * Return: the space, or NULL when there is no memory.
 */
struct hemem_space *hemem_space_find(struct mm_struct *mm);

/**
 * hemem_pages_look() - look which pages there are; the policy thread's
 *
 * Goes on with a pass over large mappings; new pages are added where they are, and after
 * a pass what is gone is forgotten. The published system is told by the faults that it
 * handles itself.
 */
void hemem_pages_look(void);

/**
 * hemem_tier_of() - the tier that most of a page is in
 * @found: what was found of it
 * @tier: out
 *
 * Return: whether there is anything of it.
 */
bool hemem_tier_of(const struct demeter_scan_granule *found, enum demeter_tier *tier);

/**
 * hemem_page_forget() - a page is gone; under hemem_lock, the policy thread's
 * @granule: the page
 */
void hemem_page_forget(struct hemem_granule *granule);

/* sampled.c, policy.c */
int hemem_sampled_start(void);
void hemem_sampled_stop(void);
int hemem_policy_start(void);
void hemem_policy_stop(void);

#endif /* DEMETER_PEERS_HEMEM_INTERNAL_H */
