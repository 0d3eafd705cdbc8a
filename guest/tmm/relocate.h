/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Moving isolated folios between the tiers: by exchange, or into free memory.
 *
 * demeter_symbols_resolve() must have succeeded before anything here is called.
 * All of it sleeps and must be called from process context without locks.
 */
#ifndef DEMETER_RELOCATE_H
#define DEMETER_RELOCATE_H

#include <linux/types.h>

#include "refusal.h"
#include "scan.h"

struct folio;
struct anon_vma;

/* Bounds and default of a batch: pages of one batch are unreachable meanwhile. */
#define DEMETER_BATCH_PAIRS_MIN	    1u
#define DEMETER_BATCH_PAIRS_DEFAULT 128u
#define DEMETER_BATCH_PAIRS_MAX	    512u

/**
 * struct demeter_pair - one exchange
 * @hot: folio in SMEM, isolated; its contents go to FMEM
 * @cold: folio in FMEM, isolated
 * @hot_anon_vma: kept alive while @hot is unmapped
 * @cold_anon_vma: the same for @cold
 * @status: an enum demeter_refusal
 * @poisoned: the page of either that could not be read, for DEMETER_REFUSED_POISON
 */
struct demeter_pair {
	struct folio *hot;
	struct folio *cold;
	struct anon_vma *hot_anon_vma;
	struct anon_vma *cold_anon_vma;
	int status;
	struct page *poisoned;
};

/**
 * demeter_relocate_exchange() - exchange hot folios with cold ones in place
 * @hot: folios in SMEM; empty afterwards
 * @cold: folios in FMEM; empty afterwards
 * @batch_pairs: pairs of 4 KiB folios a TLB flush; clamped to the bounds above
 * @why: refusals are added
 * @spent_ns: time spent is added; may be NULL
 *
 * Folios are paired order by order; what finds no partner is put back. Pages
 * left over on both sides because their orders differ count as mixed_size.
 *
 * Return: 4 KiB pages promoted (as many were demoted).
 */
u64 demeter_relocate_exchange(struct demeter_folio_list *hot, struct demeter_folio_list *cold,
			      u32 batch_pairs, struct demeter_refusals *why, u64 *spent_ns);

/**
 * demeter_relocate_migrate() - move folios into free memory of a node
 * @folios: isolated folios; empty afterwards
 * @nid: node to move to; only memory that is free there above the high
 *	watermark is used, nothing is reclaimed for it
 * @why: refusals are added
 * @spent_ns: time spent is added; may be NULL
 *
 * Serves promotion into FMEM with free room, and demotion alike.
 *
 * Return: 4 KiB pages moved.
 */
u64 demeter_relocate_migrate(struct demeter_folio_list *folios, int nid,
			     struct demeter_refusals *why, u64 *spent_ns);

/**
 * demeter_relocate_migrate_into() - the same, into memory that was just freed too
 * @folios: isolated folios; empty afterwards
 * @nid: node to move to
 * @freed_pages: 4 KiB pages that the caller moved away from @nid for this
 * @why: refusals are added
 *
 * On a full node the free pages are about at the watermark: without @freed_pages,
 * what made room could never use it.
 *
 * Return: 4 KiB pages moved.
 */
u64 demeter_relocate_migrate_into(struct demeter_folio_list *folios, int nid, u64 freed_pages,
				  struct demeter_refusals *why);

/**
 * struct demeter_traded - what a trade moved
 * @promoted_pages: 4 KiB pages to FMEM
 * @demoted_pages: 4 KiB pages to SMEM
 */
struct demeter_traded {
	u64 promoted_pages;
	u64 demoted_pages;
};

/**
 * demeter_relocate_trade() - exchange what can be, migrate the rest both ways
 * @hot: folios in SMEM; empty afterwards
 * @cold: folios in FMEM; empty afterwards
 * @fmem_nid: node of the fast tier
 * @smem_nid: node of the slow tier
 * @batch_pairs: as for demeter_relocate_exchange()
 * @why: refusals are added
 *
 * Shared memory, files, folios of unusual orders and THPs of two memory cgroups
 * cannot be exchanged. Of those,
 * what is cold is demoted first, and what is hot is promoted into the room; where
 * one side has none, anonymous 4 KiB pages stand in. No more is promoted than was
 * demoted. With nothing of that kind on either side it is an exchange.
 *
 * Return: pages moved either way.
 */
struct demeter_traded demeter_relocate_trade(struct demeter_folio_list *hot,
					     struct demeter_folio_list *cold, int fmem_nid,
					     int smem_nid, u32 batch_pairs,
					     struct demeter_refusals *why);

/**
 * demeter_relocate_may_exchange() - do memory cgroups allow two folios to be exchanged
 * @a: isolated folio
 * @b: isolated folio of the same size
 *
 * THPs of two cgroups cannot be: each cgroup has a queue of those to be split. Nor, from
 * Linux 7 on, other folios of two, as charges are by node.
 *
 * Return: whether they do.
 */
bool demeter_relocate_may_exchange(struct folio *a, struct folio *b);

/**
 * demeter_relocate_room() - free memory that migration may use
 * @nid: node
 *
 * Return: free 4 KiB pages of @nid above its zones' high watermarks and reserves.
 */
u64 demeter_relocate_room(int nid);

#endif /* DEMETER_RELOCATE_H */
