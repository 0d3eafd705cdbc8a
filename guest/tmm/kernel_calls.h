/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The unexported kernel functions that the relocation half calls, by wrapper.
 *
 * demeter_proto_*() only give the static calls their type; none is defined.
 */
#ifndef DEMETER_KERNEL_CALLS_H
#define DEMETER_KERNEL_CALLS_H

#include <linux/migrate.h>
#include <linux/static_call.h>

#include "../compat/folio.h"
#include "../compat/migrate.h"
#include "../compat/pagewalk.h"
#include "../compat/rmap.h"

demeter_isolate_ret_t demeter_proto_folio_isolate_lru(struct folio *folio);
void demeter_proto_folio_putback_lru(struct folio *folio);
void demeter_proto_try_to_migrate(struct folio *folio, enum ttu_flags flags);
void demeter_proto_remove_migration_ptes(struct folio *src, struct folio *dst, int flags);
void demeter_proto_try_to_unmap_flush(void);
struct anon_vma *demeter_proto_folio_get_anon_vma(struct folio *folio);
void demeter_proto___put_anon_vma(struct anon_vma *anon_vma);
void demeter_proto_lru_add_drain(void);
int demeter_proto_walk_page_range(struct mm_struct *mm, unsigned long start, unsigned long end,
				  const struct mm_walk_ops *ops, void *private);
int demeter_proto_migrate_pages(struct list_head *from, demeter_new_folio_t get,
				demeter_free_folio_t put, unsigned long private,
				enum migrate_mode mode, int reason, unsigned int *succeeded);
void demeter_proto_putback_movable_pages(struct list_head *list);

DECLARE_STATIC_CALL(demeter_sc_folio_isolate_lru, demeter_proto_folio_isolate_lru);
DECLARE_STATIC_CALL(demeter_sc_folio_putback_lru, demeter_proto_folio_putback_lru);
DECLARE_STATIC_CALL(demeter_sc_try_to_migrate, demeter_proto_try_to_migrate);
DECLARE_STATIC_CALL(demeter_sc_remove_migration_ptes, demeter_proto_remove_migration_ptes);
DECLARE_STATIC_CALL(demeter_sc_try_to_unmap_flush, demeter_proto_try_to_unmap_flush);
DECLARE_STATIC_CALL(demeter_sc_folio_get_anon_vma, demeter_proto_folio_get_anon_vma);
DECLARE_STATIC_CALL(demeter_sc___put_anon_vma, demeter_proto___put_anon_vma);
DECLARE_STATIC_CALL(demeter_sc_lru_add_drain, demeter_proto_lru_add_drain);
DECLARE_STATIC_CALL(demeter_sc_walk_page_range, demeter_proto_walk_page_range);
DECLARE_STATIC_CALL(demeter_sc_migrate_pages, demeter_proto_migrate_pages);
DECLARE_STATIC_CALL(demeter_sc_putback_movable_pages, demeter_proto_putback_movable_pages);

/* demeter_call(function)(arguments): call an unexported kernel function. */
#define demeter_call(symbol) static_call(demeter_sc_##symbol)

#if DEMETER_COMPAT_MAPCOUNT_INLINE
static inline int demeter_folio_mapcount(struct folio *folio)
{
	return folio_mapcount(folio);
}
#else
int demeter_proto_folio_mapcount(struct folio *folio);
DECLARE_STATIC_CALL(demeter_sc_folio_mapcount, demeter_proto_folio_mapcount);

static inline int demeter_folio_mapcount(struct folio *folio)
{
	return demeter_call(folio_mapcount)(folio);
}
#endif

/* put_anon_vma() is inline, but what it calls in the end is not exported. */
static inline void demeter_put_anon_vma(struct anon_vma *anon_vma)
{
	if (atomic_dec_and_test(&anon_vma->refcount))
		demeter_call(__put_anon_vma)(anon_vma);
}

#endif /* DEMETER_KERNEL_CALLS_H */
