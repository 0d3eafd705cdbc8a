/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What HeMem decides, as pure functions: which pages of 2 MiB are hot, by counts of sampled
 * reads and writes, in which order they are promoted and demoted (first in, first out), and
 * when counts are halved. guest/peers/hemem/ does what follows from it.
 */
#ifndef DEMETER_PEERS_HEMEM_H
#define DEMETER_PEERS_HEMEM_H

#include <demeter/deps.h>

/**
 * struct demeter_hemem_rules - thresholds, all at least 1
 * @hot_reads: sampled reads from which a page is hot
 * @hot_writes: sampled writes from which it is
 * @cooling_samples: with more of either kind in one page, all counts are halved
 * @writes_first: what is hot by its writes is promoted before what is by its reads
 */
struct demeter_hemem_rules {
	u32 hot_reads;
	u32 hot_writes;
	u32 cooling_samples;
	bool writes_first;
};

/**
 * struct demeter_hemem_page - a page of 2 MiB; fields are of core/peers/hemem.c
 * @before: in its list, or NULL
 * @after: in its list, or NULL
 * @clock: halvings that its counts have had
 * @reads: sampled
 * @writes: sampled
 * @tier: where it is
 * @hot: which list of that tier it is in
 */
struct demeter_hemem_page {
	struct demeter_hemem_page *before;
	struct demeter_hemem_page *after;
	u64 clock;
	u32 reads;
	u32 writes;
	enum demeter_tier tier;
	bool hot;
};

/**
 * struct demeter_hemem_list - pages, first in, first out
 * @first: to be taken next
 * @last: came last
 * @pages: how many
 */
struct demeter_hemem_list {
	struct demeter_hemem_page *first;
	struct demeter_hemem_page *last;
	u64 pages;
};

/**
 * struct demeter_hemem - all pages; zeroes but for @rules at the beginning
 * @rules: thresholds
 * @lists: by tier, then cold and hot
 * @cooling: by tier: where a pass over the hot pages goes on, NULL at its end
 * @clock: halvings so far
 */
struct demeter_hemem {
	struct demeter_hemem_rules rules;
	struct demeter_hemem_list lists[DEMETER_TIERS][2];
	struct demeter_hemem_page *cooling[DEMETER_TIERS];
	u64 clock;
};

/**
 * struct demeter_hemem_move - what is to be moved next
 * @up: from SMEM to FMEM
 * @down: before that, from FMEM to SMEM; NULL if there is room
 */
struct demeter_hemem_move {
	struct demeter_hemem_page *up;
	struct demeter_hemem_page *down;
};

/**
 * demeter_hemem_add() - a new page, which is cold
 * @hemem: all pages
 * @page: in no list
 * @tier: where it is
 */
void demeter_hemem_add(struct demeter_hemem *hemem, struct demeter_hemem_page *page,
		       enum demeter_tier tier);

/**
 * demeter_hemem_remove() - a page is gone
 * @hemem: all pages
 * @page: added before
 */
void demeter_hemem_remove(struct demeter_hemem *hemem, struct demeter_hemem_page *page);

/**
 * demeter_hemem_count() - one more sample
 * @hemem: all pages
 * @page: where
 * @write: rather than a read
 *
 * Return: whether counts are to be halved: demeter_hemem_cool() has work from now on.
 */
bool demeter_hemem_count(struct demeter_hemem *hemem, struct demeter_hemem_page *page, bool write);

/**
 * demeter_hemem_cool() - go on looking for hot pages that are not hot any more
 * @hemem: all pages
 * @pages: how many to look at, of either tier
 *
 * Return: pages that have become cold.
 */
u64 demeter_hemem_cool(struct demeter_hemem *hemem, u64 pages);

/**
 * demeter_hemem_choose() - what to move next
 * @hemem: all pages
 * @room: FMEM has room for a page
 * @move: out
 *
 * Return: false if nothing is to be moved: nothing in SMEM is hot, or nothing in FMEM cold.
 */
bool demeter_hemem_choose(const struct demeter_hemem *hemem, bool room,
			  struct demeter_hemem_move *move);

/**
 * demeter_hemem_moved() - a page is where it is said to be, last of its list
 * @hemem: all pages
 * @page: the page
 * @tier: where; may be where it was, to try others first
 */
void demeter_hemem_moved(struct demeter_hemem *hemem, struct demeter_hemem_page *page,
			 enum demeter_tier tier);

#endif /* DEMETER_PEERS_HEMEM_H */
