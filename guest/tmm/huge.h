/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Making sizes match: an exchange needs folios of one order on both sides.
 *
 * First touch with transparent huge pages leaves THPs in FMEM and 4 KiB pages in
 * SMEM, as a THP is only ever taken from the nearest node. So what is hot is
 * collapsed before it is promoted, and what is cold is split where that fails.
 */
#ifndef DEMETER_HUGE_H
#define DEMETER_HUGE_H

#include <linux/types.h>

#include "scan.h"

struct mm_struct;

/**
 * demeter_huge_resolve() - find the functions; call once, after the symbols
 *
 * Not finding them is no error: sizes are then not matched.
 */
void demeter_huge_resolve(void);

/**
 * demeter_huge_split() - split isolated THPs
 * @list: THPs move from @list->huge to @list->small
 * @max_pages: stop after this many 4 KiB pages
 *
 * Return: 4 KiB pages split.
 */
u64 demeter_huge_split(struct demeter_folio_list *list, u64 max_pages);

/**
 * struct demeter_huge_source - where a list of isolated folios came from
 * @mm: address space, mm_users held; NULL if it is gone
 * @start: first byte
 * @end: one past the last byte
 * @collapse_from: first byte from which pages may be collapsed
 * @nid: node
 * @to_nid: node that they are meant for, or below 0, see demeter_scan_isolate()
 */
struct demeter_huge_source {
	struct mm_struct *mm;
	u64 start;
	u64 end;
	u64 collapse_from;
	int nid;
	int to_nid;
};

/**
 * demeter_huge_collapse() - make THPs of the 4 KiB pages of a range
 * @from: the range; its @collapse_from to @end
 * @max_pages: about so many 4 KiB pages, and no more
 *
 * Does nothing unless the system makes THPs of everything ("always"): whether a process
 * wants them is not for us to decide. Only where all pages are there, and while THPs are
 * free, and where its memcgs are far enough from their limits for the new ones to be
 * charged before the old go: nothing is filled up, swapped in, compacted or reclaimed for
 * it. Not shared memory, nor what a policy binds.
 *
 * Return: whether anything was tried.
 */
bool demeter_huge_collapse(const struct demeter_huge_source *from, u64 max_pages);

/**
 * demeter_huge_match() - bring both sides of an exchange to the same orders
 * @from: where @hot came from
 * @hot: isolated folios in SMEM; replaced by others of @from after a collapse
 * @cold: isolated folios in FMEM
 * @why: refusals are added
 *
 * Collapses what is hot, else splits what is cold. A hot THP is split only when
 * all that could go is small: slow memory costs more than the walks that a THP
 * saves.
 */
void demeter_huge_match(const struct demeter_huge_source *from, struct demeter_folio_list *hot,
			struct demeter_folio_list *cold, struct demeter_refusals *why);

#endif /* DEMETER_HUGE_H */
