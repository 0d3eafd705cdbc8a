/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Memtis as a module: who knows what.
 *
 *	spaces.c	hotness of pages by address space and address, histograms
 *	sampled.c	ksampled: from the rings into the spaces; thresholds; its own pace
 *	migrated.c	kmigrated, one a node: demotes, promotes, splits
 *	memtis.c	parameters, counters, start and stop
 */
#ifndef DEMETER_PEERS_MEMTIS_INTERNAL_H
#define DEMETER_PEERS_MEMTIS_INTERNAL_H

#include <linux/atomic.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/refcount.h>
#include <linux/types.h>
#include <linux/xarray.h>

#include <demeter/peers/memtis.h>

#include "kernel_calls.h"
#include "rings.h"
#include "scan.h"

/* A mark of base pages: seen on SMEM. */
#define MEMTIS_ON_SMEM XA_MARK_0

/**
 * struct memtis_params - parameters, as in params/
 *
 * Written only while stopped.
 */
struct memtis_params {
	u64 poll_us;
	u64 quota_permille;
	u64 quota_ms;
	u64 adaptation_samples;
	u64 cooling_samples;
	u64 kmigrated_ms;
	u64 direct_pages;
	u64 split;
	u64 split_batch;
	u64 gap_permille;
};

extern struct memtis_params memtis_params;

/**
 * struct memtis_stats - counters, as in stats/
 */
struct memtis_stats {
	atomic64_t promoted_pages;
	atomic64_t demoted_pages;
	atomic64_t refused_pages;
	atomic64_t split_huge_pages;
	atomic64_t splits_wanted;
	atomic64_t coolings;
	atomic64_t adaptations;
	atomic64_t samples;
	atomic64_t store_samples;
	atomic64_t unused_samples;
	atomic64_t lost_samples;
	atomic64_t period;
	atomic64_t store_period;
	atomic64_t ksampled_permille;
	atomic64_t hot_bin;
	atomic64_t warm_bin;
	atomic64_t tracked_pages;
	atomic64_t hit_permille;
	atomic64_t base_hit_permille;
};

extern struct memtis_stats memtis_stats;

/**
 * struct memtis_huge - hotness of a huge page
 * @units: samples in it
 * @tier: where it was seen
 * @samples: by base page
 */
struct memtis_huge {
	u64 units;
	enum demeter_tier tier;
	u32 samples[DEMETER_MEMTIS_HUGE_PAGES];
};

/**
 * struct memtis_space - an address space; all under memtis_lock but @users and @mm
 * @node: in memtis_spaces
 * @users: references; the list has one
 * @mm: mmgrab()bed
 * @pages: units by page number, as values; marked if on SMEM
 * @huges: struct memtis_huge by number of 2 MiB
 * @hand: address up to which FMEM was looked at for something to demote; kmigrated's
 */
struct memtis_space {
	struct list_head node;
	refcount_t users;
	struct mm_struct *mm;
	struct xarray pages;
	struct xarray huges;
	u64 hand;
};

/**
 * struct memtis_state - what follows from all samples; under memtis_lock
 * @histogram: pages as they are
 * @base_histogram: as if all were base pages
 * @thresholds: of @histogram
 * @base_thresholds: of @base_histogram
 * @period: since the last look at splitting
 * @splitting: what came of it
 * @splits: huge pages that are still to be split
 * @coolings: that are due
 */
struct memtis_state {
	struct demeter_memtis_histogram histogram;
	struct demeter_memtis_histogram base_histogram;
	struct demeter_memtis_thresholds thresholds;
	struct demeter_memtis_thresholds base_thresholds;
	struct demeter_memtis_period period;
	struct demeter_memtis_splitting splitting;
	u64 splits;
	u64 coolings;
};

/*
 * Protects memtis_state, memtis_spaces and all that is in them. Taken by kthreads alone;
 * mmap_lock is only tried under it.
 */
extern struct mutex memtis_lock;
extern struct memtis_state memtis_state;
extern struct list_head memtis_spaces;

/* Nodes by tier; written at start. */
extern int memtis_node[DEMETER_TIERS];

/* spaces.c; all but the first two under memtis_lock */

/**
 * memtis_spaces_reset() - forget everything; no kthread runs
 */
void memtis_spaces_reset(void);

/**
 * memtis_space_put() - drop a reference
 * @space: the space; may be NULL
 */
void memtis_space_put(struct memtis_space *space);

/**
 * memtis_space_find() - the space of an address space
 * @mm: with a reference on mm_users
 *
 * Return: with a reference, or NULL when there is no memory.
 */
struct memtis_space *memtis_space_find(struct mm_struct *mm);

/**
 * memtis_space_next() - go through all spaces whose process lives
 * @space: the one before, whose references on it and its mm_users are dropped; NULL: none
 *
 * Called without memtis_lock. Forgets those that have exited. May not be ended before NULL
 * comes but by memtis_space_leave().
 *
 * Return: with references on it and on its mm_users, or NULL at the end.
 */
struct memtis_space *memtis_space_next(struct memtis_space *space);

/**
 * memtis_space_leave() - end memtis_space_next() early
 * @space: what it has returned
 */
void memtis_space_leave(struct memtis_space *space);

/**
 * memtis_count() - one more sample
 * @space: where
 * @addr: the address
 * @huge: in a huge page
 * @tier: of the page
 *
 * Return: 0 or -ENOMEM.
 */
int memtis_count(struct memtis_space *space, unsigned long addr, bool huge, enum demeter_tier tier);

/**
 * memtis_choose_thresholds() - choose what is hot by the histograms as they are; under memtis_lock
 */
void memtis_choose_thresholds(void);

/**
 * memtis_cool() - halve all counts
 */
void memtis_cool(void);

/**
 * memtis_units() - hotness of a base page
 * @space: where
 * @addr: the address
 *
 * Return: units, 0 if it has no samples.
 */
u64 memtis_units(struct memtis_space *space, unsigned long addr);

/**
 * memtis_refresh() - note where pages are after they have moved
 * @space: where
 * @start: of the 2 MiB
 * @found: what is there now
 */
void memtis_refresh(struct memtis_space *space, unsigned long start,
		    const struct demeter_scan_granule *found);

/* sampled.c, migrated.c */
/**
 * memtis_periods() - of a step of the ladder
 * @step: the step
 *
 * Return: the periods.
 */
struct demeter_rings_periods memtis_periods(u32 step);

int memtis_sampled_start(void);
void memtis_sampled_stop(void);
int memtis_migrated_start(void);
void memtis_migrated_stop(void);

/**
 * memtis_fmem_pages() - what FMEM has for programs
 *
 * Return: 4 KiB pages: free ones and those of programs.
 */
u64 memtis_fmem_pages(void);

#endif /* DEMETER_PEERS_MEMTIS_INTERNAL_H */
