/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Page-table walks: count what is resident where, and take folios off the LRU.
 *
 * Callers hold a reference on mm_users (mmget_not_zero()) and no lock; the
 * walks take mmap_lock for reading and drop it between chunks. All of it sleeps.
 */
#ifndef DEMETER_SCAN_H
#define DEMETER_SCAN_H

#include <linux/list.h>
#include <linux/types.h>

#include <demeter/deps.h>

#include "refusal.h"

/* Words of a bitmap of the base pages of 2 MiB. */
#define DEMETER_GRANULE_WORDS 8

struct mm_struct;
struct folio;
struct demeter_cells;

/**
 * struct demeter_folio_list - isolated folios, sorted by how they can move
 * @small: anonymous order-0 folios, linked by folio->lru
 * @huge: whole PMD-sized anonymous THPs, linked by folio->lru
 * @other: what cannot be exchanged and can be migrated: shared memory, files, and
 *	anonymous folios of other orders or mapped in parts
 * @small_pages: number of folios on @small
 * @huge_pages: number of 4 KiB pages on @huge (512 a folio)
 * @other_pages: number of 4 KiB pages on @other
 *
 * Each folio on a list is off the LRU, counted in NR_ISOLATED_ANON or _FILE, and
 * holds exactly one reference that belongs to the list.
 */
struct demeter_folio_list {
	struct list_head small;
	struct list_head huge;
	struct list_head other;
	u64 small_pages;
	u64 huge_pages;
	u64 other_pages;
};

/**
 * demeter_folio_list_init() - make an empty list
 * @list: the list
 */
void demeter_folio_list_init(struct demeter_folio_list *list);

/**
 * demeter_folio_list_putback() - give all folios back to the LRU
 * @list: the list; empty afterwards
 */
void demeter_folio_list_putback(struct demeter_folio_list *list);

/**
 * demeter_folio_list_pages() - pages held by a list
 * @list: the list
 *
 * Return: 4 KiB pages.
 */
static inline u64 demeter_folio_list_pages(const struct demeter_folio_list *list)
{
	return list->small_pages + list->huge_pages + list->other_pages;
}

/**
 * demeter_folio_list_refuse_other() - count what only migration could move
 * @list: the list
 * @why: refusals are added
 *
 * For callers that exchange and do not migrate.
 */
void demeter_folio_list_refuse_other(const struct demeter_folio_list *list,
				     struct demeter_refusals *why);

/**
 * demeter_scan_lock() - take mmap_lock for reading, within some ten milliseconds
 * @mm: address space
 *
 * Return: whether it is held.
 */
bool demeter_scan_lock(struct mm_struct *mm);

/**
 * demeter_scan_isolate() - isolate the folios of a range on one node
 * @mm: address space
 * @start: first byte, user virtual address
 * @end: one past the last byte
 * @nid: only folios on this node
 * @to_nid: node that they are meant for, or below 0: mempolicies and cpusets that
 *	forbid it refuse
 * @max_pages: stop once this many 4 KiB pages were taken; a large folio is taken
 *	whole when any budget is left, so the last one may overshoot. Keep it
 *	to a few thousand: reclaim throttles everybody when much is isolated.
 * @out: folios are appended; initialised by the caller
 * @why: refusals of pages on @nid are added
 *
 * Return: 0, or -EINTR when a fatal signal or a contended lock ended the walk
 * early (what was taken so far is in @out).
 */
int demeter_scan_isolate(struct mm_struct *mm, u64 start, u64 end, int nid, int to_nid,
			 u64 max_pages, struct demeter_folio_list *out,
			 struct demeter_refusals *why);

/**
 * demeter_scan_isolate_slice() - the same, in one hold of mmap_lock
 * @mm: address space
 * @at: first byte; moved to where the slice ended
 * @end: one past the last byte
 * @nid: only folios on this node
 * @to_nid: as above
 * @max_pages: as above
 * @out: folios are appended
 * @why: refusals of pages on @nid are added
 *
 * Return: 0, or -EINTR with @at where the walk ended.
 */
int demeter_scan_isolate_slice(struct mm_struct *mm, u64 *at, u64 end, int nid, int to_nid,
			       u64 max_pages, struct demeter_folio_list *out,
			       struct demeter_refusals *why);

/**
 * demeter_scan_isolate_pages() - isolate single base pages of a granule of 2 MiB
 * @mm: address space
 * @start: first byte of the granule
 * @pages: bit for each page that is wanted; only those isolated stay set
 * @nid: only folios on this node
 * @to_nid: as above
 * @max_pages: as above
 * @out: folios are appended
 * @why: refusals of pages on @nid are added
 *
 * A huge page is left alone.
 *
 * Return: 0 or -EINTR.
 */
int demeter_scan_isolate_pages(struct mm_struct *mm, u64 start, u64 *pages, int nid, int to_nid,
			       u64 max_pages, struct demeter_folio_list *out,
			       struct demeter_refusals *why);

/**
 * demeter_scan_probe() - how much of a mapping is in its page tables
 * @mm: address space, mmap_lock held
 * @start: first byte
 * @end: one past the last
 *
 * Some pages are looked at, at equal distances.
 *
 * Return: how many of them are there; of parts of the same length the same number were
 * looked at.
 */
u32 demeter_scan_probe(struct mm_struct *mm, u64 start, u64 end);

/**
 * struct demeter_scan_granule - where the base pages of a granule of 2 MiB are
 * @where: by tier: bit for each page
 * @tier: of a huge page
 * @huge: it is one
 * @mixed: there are large folios in it that are no huge page
 */
struct demeter_scan_granule {
	u64 where[DEMETER_TIERS][DEMETER_GRANULE_WORDS];
	enum demeter_tier tier;
	bool huge;
	bool mixed;
};

/**
 * demeter_scan_granule() - look up where the base pages of a granule are
 * @mm: address space
 * @start: first byte of the granule
 * @node: node of each tier
 * @found: out
 *
 * Return: 0 or -EINTR.
 */
int demeter_scan_granule(struct mm_struct *mm, u64 start, const int *node,
			 struct demeter_scan_granule *found);

/**
 * struct demeter_scan_slice - a walk that counts by cell, in one hold of mmap_lock
 * @slot_of_node: by node: where its pages are counted, as cells * DEMETER_TIERS + tier;
 *	below 0 where they are not
 * @cell_shift: log2 of the bytes of a cell
 * @max_entries: stop at the next 2 MiB once so many entries were looked at
 * @cells: out: pages found, as many as slots need, cleared by the caller
 * @entries: out: entries of page tables looked at are added, and some for each
 *	mapping
 */
struct demeter_scan_slice {
	const s8 *slot_of_node;
	u32 cell_shift;
	u64 max_entries;
	struct demeter_cells *cells;
	u64 entries;
};

/**
 * demeter_scan_cells() - count resident pages of a part of a leaf
 * @mm: address space
 * @at: first byte, a multiple of a cell; moved to where the slice ended, a
 *	multiple of a cell unless it is @end
 * @end: one past the last byte, in the same leaf
 * @slice: how, and what came of it
 *
 * Anonymous and shared memory and mapped files; code and stacks are skipped, here
 * as by demeter_scan_isolate(). What several processes map counts for each.
 *
 * Return: 0, or -EINTR when @at has not moved.
 */
int demeter_scan_cells(struct mm_struct *mm, u64 *at, u64 end, struct demeter_scan_slice *slice);

#endif /* DEMETER_SCAN_H */
