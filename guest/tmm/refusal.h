/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Why a page was not moved.
 *
 * Every page that the relocation half looks at and leaves where it is gets
 * counted here, in 4 KiB pages, under exactly one reason, so that "Demeter did
 * nothing" always has an answer in stats/refused/<name>.
 */
#ifndef DEMETER_REFUSAL_H
#define DEMETER_REFUSAL_H

#include <linux/types.h>

/**
 * enum demeter_refusal - the reasons, in the order of demeter_refusal_names[]
 * @DEMETER_OK: not refused
 * @DEMETER_REFUSED_UNMAPPED: nothing maps the folio any more (unmapped or exited meanwhile)
 * @DEMETER_REFUSED_ZERO_PAGE: the shared zero page, small or huge
 * @DEMETER_REFUSED_FILE: of a file, and its filesystem migrates none, or only an
 *	exchange was asked for
 * @DEMETER_REFUSED_KSM: merged by KSM, has many owners
 * @DEMETER_REFUSED_HUGETLB: hugetlbfs page, has its own pools
 * @DEMETER_REFUSED_SPECIAL: device memory, PFN map, poisoned or private data
 * @DEMETER_REFUSED_MLOCKED: mlocked or otherwise unevictable
 * @DEMETER_REFUSED_PINNED: pinned for DMA (FOLL_PIN)
 * @DEMETER_REFUSED_SWAPCACHE: also lives in the swap cache
 * @DEMETER_REFUSED_WRITEBACK: being written out
 * @DEMETER_REFUSED_LAZYFREE: MADV_FREE, about to be dropped
 * @DEMETER_REFUSED_SHARED: mapped more than once: copy on write after fork, or page
 *	cache (not shared memory, which is moved for all)
 * @DEMETER_REFUSED_MIXED_SIZE: no partner of the same order, or neither 4 KiB nor a
 *	whole THP where only an exchange was asked for
 * @DEMETER_REFUSED_MEMCG: THPs of different memory cgroups
 * @DEMETER_REFUSED_LRU: not on an LRU list (per-CPU batch, or isolated by another)
 * @DEMETER_REFUSED_LOCK: folio lock held by someone else
 * @DEMETER_REFUSED_UNMAP: could not be unmapped
 * @DEMETER_REFUSED_REFS: an unexpected reference (GUP, /proc, pipe)
 * @DEMETER_REFUSED_NO_ROOM: migration target node has no free page above its watermark
 * @DEMETER_REFUSED_NO_MEMORY: no memory for our own bookkeeping
 * @DEMETER_REFUSED_MIGRATE: migrate_pages() gave up on it
 * @DEMETER_REFUSED_POISON: its memory, or its partner's, has an uncorrectable error
 * @DEMETER_REFUSED_POLICY: a mempolicy or a cpuset binds it to other nodes
 * @DEMETER_REFUSALS: number of reasons
 */
enum demeter_refusal {
	DEMETER_OK = 0,
	DEMETER_REFUSED_UNMAPPED,
	DEMETER_REFUSED_ZERO_PAGE,
	DEMETER_REFUSED_FILE,
	DEMETER_REFUSED_KSM,
	DEMETER_REFUSED_HUGETLB,
	DEMETER_REFUSED_SPECIAL,
	DEMETER_REFUSED_MLOCKED,
	DEMETER_REFUSED_PINNED,
	DEMETER_REFUSED_SWAPCACHE,
	DEMETER_REFUSED_WRITEBACK,
	DEMETER_REFUSED_LAZYFREE,
	DEMETER_REFUSED_SHARED,
	DEMETER_REFUSED_MIXED_SIZE,
	DEMETER_REFUSED_MEMCG,
	DEMETER_REFUSED_LRU,
	DEMETER_REFUSED_LOCK,
	DEMETER_REFUSED_UNMAP,
	DEMETER_REFUSED_REFS,
	DEMETER_REFUSED_NO_ROOM,
	DEMETER_REFUSED_NO_MEMORY,
	DEMETER_REFUSED_MIGRATE,
	DEMETER_REFUSED_POISON,
	DEMETER_REFUSED_POLICY,
	DEMETER_REFUSALS,
};

/* Names for sysfs and tracepoints, indexed by enum demeter_refusal; [0] is "ok". */
extern const char *const demeter_refusal_names[DEMETER_REFUSALS];

/**
 * struct demeter_refusals - pages refused, by reason
 * @pages: 4 KiB pages; pages[DEMETER_OK] stays 0
 */
struct demeter_refusals {
	u64 pages[DEMETER_REFUSALS];
};

static inline void demeter_refuse(struct demeter_refusals *why, enum demeter_refusal reason,
				  u64 pages)
{
	why->pages[reason] += pages;
}

#endif /* DEMETER_REFUSAL_H */
