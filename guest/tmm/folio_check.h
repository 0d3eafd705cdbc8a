/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * May this folio be moved? Asked twice: cheaply by the scan before isolation,
 * and for good by the exchange, on an isolated and locked folio.
 */
#ifndef DEMETER_FOLIO_CHECK_H
#define DEMETER_FOLIO_CHECK_H

#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/pagemap.h>
#include <linux/vmstat.h>

#include "kernel_calls.h"
#include "refusal.h"

/* State of an identity; what describes the memory itself stays where it is. */
#define DEMETER_IDENTITY_FLAGS                                                                     \
	(BIT(PG_referenced) | BIT(PG_uptodate) | BIT(PG_dirty) | BIT(PG_active) |                  \
	 BIT(PG_workingset) | BIT(PG_swapbacked) | DEMETER_FOLIO_IDLE_FLAGS |                      \
	 DEMETER_FOLIO_LRU_REFS)

/*
 * Can this folio be exchanged, or only migrated? Shared memory and files are found
 * through their mapping, which the exchange does not swap. A large folio can be
 * exchanged only as a whole THP under one PMD: partly mapped ones would take their
 * deferred-split state to the wrong folio, and other orders seldom have a partner.
 */
static inline bool demeter_folio_is_exchangeable(struct folio *folio)
{
	return folio_test_anon(folio) &&
	       (!folio_test_large(folio) ||
		(folio_order(folio) == HPAGE_PMD_ORDER && folio_entire_mapcount(folio)));
}

/* Is the file behind this mapped folio one whose folios can be migrated? */
static inline bool demeter_file_migrates(struct folio *folio)
{
	struct address_space *mapping = folio_mapping(folio);

	/* Without a method of its own, migration would have to write dirty folios out. */
	return mapping && mapping->a_ops->migrate_folio;
}

/* Is this folio mapped more often than one mapping of all of it takes? */
static inline bool demeter_folio_is_mapped_often(struct folio *folio)
{
	bool by_page = folio_test_large(folio) && !folio_entire_mapcount(folio);

	return demeter_folio_mapcount(folio) > (by_page ? folio_nr_pages(folio) : 1);
}

/*
 * State that rules a folio out, whichever way it would move. Callers hold a lock
 * that keeps it mapped, or have it isolated and locked.
 */
static inline enum demeter_refusal demeter_folio_check(struct folio *folio)
{
	bool anon = folio_test_anon(folio);

	if (folio_test_ksm(folio))
		return DEMETER_REFUSED_KSM;
	if (folio_is_zone_device(folio) || folio_test_hwpoison(folio) ||
	    (anon && folio_test_private(folio)))
		return DEMETER_REFUSED_SPECIAL;
	if (folio_test_mlocked(folio) || folio_test_unevictable(folio))
		return DEMETER_REFUSED_MLOCKED;
	/*
	 * Before the swap cache: a page on its way out is in both, and the
	 * writeback is what it waits for.
	 */
	if (folio_test_writeback(folio))
		return DEMETER_REFUSED_WRITEBACK;
	if (folio_test_swapcache(folio))
		return DEMETER_REFUSED_SWAPCACHE;
	/*
	 * MADV_FREE. Also keeps the isolated counters right: such folios count
	 * as file pages, and the exchange would swap the bit that says so.
	 */
	if (anon && !folio_test_swapbacked(folio))
		return DEMETER_REFUSED_LAZYFREE;
	if (folio_maybe_dma_pinned(folio))
		return DEMETER_REFUSED_PINNED;

	if (!demeter_folio_mapcount(folio))
		return DEMETER_REFUSED_UNMAPPED;
	if (!anon && !demeter_file_migrates(folio))
		return DEMETER_REFUSED_FILE;
	/*
	 * What was meant to be shared is moved for all who map it. Copies on write
	 * and page cache that several map could be moved too, but who pays for them
	 * and who benefits is another question, and each mapping costs a flush. Who
	 * maps it to write copies is asked by the scan, which knows the mapping.
	 */
	if ((anon || !folio_test_swapbacked(folio)) && demeter_folio_is_mapped_often(folio))
		return DEMETER_REFUSED_SHARED;
	return DEMETER_OK;
}

/*
 * The same on an isolated folio of which we hold the only extra reference.
 * Early out only: the reference count is frozen before anything is swapped.
 */
static inline enum demeter_refusal demeter_folio_check_isolated(struct folio *folio)
{
	enum demeter_refusal reason = demeter_folio_check(folio);

	if (reason == DEMETER_OK && !demeter_folio_is_exchangeable(folio))
		return folio_test_anon(folio) ? DEMETER_REFUSED_MIXED_SIZE : DEMETER_REFUSED_FILE;
	if (reason == DEMETER_OK && folio_ref_count(folio) != 2)
		return DEMETER_REFUSED_REFS;
	return reason;
}

/*
 * Account isolated pages the way migrate_pages() and putback_movable_pages()
 * take them off again. The file-or-anon bit is stable while a folio is off the
 * LRU, even when MADV_FREE came between the scan's check and the isolation.
 */
static inline void demeter_folio_count_isolated(struct folio *folio, long pages)
{
	mod_node_page_state(folio_pgdat(folio), NR_ISOLATED_ANON + folio_is_file_lru(folio), pages);
}

/* Back to the LRU, dropping the reference that came with the isolation. */
static inline void demeter_folio_putback(struct folio *folio)
{
	demeter_folio_count_isolated(folio, -folio_nr_pages(folio));
	demeter_call(folio_putback_lru)(folio);
}

#endif /* DEMETER_FOLIO_CHECK_H */
