/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Moving a page with its shadow: promotion by copying it while it is mapped, demotion by
 * mapping the shadow again.
 *
 * A promotion, with the folio isolated and locked:
 *
 *   arm     the entry becomes clean and not writable, its TLB entry is flushed
 *   refs    nobody but the mapping and us has a reference: all who may write without a
 *           fault are gone, and none can come
 *   copy    while programs go on reading; who writes takes a fault, and may
 *   unmap   Linux's migration entry in place of the entry, with a TLB flush
 *   commit  if the entry was clean and not writable to the end, the copy is mapped,
 *           not writable, and the old page is its shadow; else the entry is put back,
 *           and all begins anew
 *
 * A demotion is the last two steps, from the master to its shadow.
 *
 * Only anonymous 4 KiB pages of one mapping that has them for itself, in mappings that
 * may be written: ptrace() writes to others without a fault.
 */
#ifndef DEMETER_NOMAD_TRANSACT_H
#define DEMETER_NOMAD_TRANSACT_H

#include <linux/atomic.h>
#include <linux/types.h>

#include "refusal.h"

struct folio;

/**
 * struct nomad_moves - counters, see README.md
 * @committed: transactions that were
 * @aborted: those in which the page was written, or used by others
 * @promoted: pages promoted
 * @shadow_demoted: pages demoted by mapping their shadow
 * @shadow_stale: shadows found, at a demotion, not to hold the same any more, or not
 *	usable for another reason
 */
struct nomad_moves {
	atomic64_t committed;
	atomic64_t aborted;
	atomic64_t promoted;
	atomic64_t shadow_demoted;
	atomic64_t shadow_stale;
};

extern struct nomad_moves nomad_moves;

/**
 * nomad_transact_resolve() - find what is needed of the kernel
 *
 * Return: 0 or a negative errno, the reason in the kernel log.
 */
int nomad_transact_resolve(void);

/**
 * nomad_promote() - promote a page
 * @pfn: the page, on which the caller has no reference: it may be another one by now
 * @nid: node to move it to
 * @passes: how many transactions to try
 *
 * For the worker only. Sleeps.
 *
 * Return: DEMETER_OK or why it was not.
 */
enum demeter_refusal nomad_promote(unsigned long pfn, int nid, unsigned int passes);

/**
 * nomad_demote_to_shadow() - demote a page by mapping its shadow
 * @folio: isolated, not locked, not on a list
 *
 * May be called for any folio, within reclaim.
 *
 * Return: whether it was; the caller's reference is dropped then.
 */
bool nomad_demote_to_shadow(struct folio *folio);

#endif /* DEMETER_NOMAD_TRANSACT_H */
