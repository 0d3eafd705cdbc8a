/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The unexported kernel functions that the relocation half calls.
 *
 * demeter_type_*() only give the static calls their type; none is defined here.
 */
#ifndef DEMETER_KERNEL_CALLS_H
#define DEMETER_KERNEL_CALLS_H

#include <linux/kallsyms.h>
#include <linux/migrate.h>
#include <linux/static_call.h>

#include "../compat/folio.h"
#include "../compat/huge_memory.h"
#include "../compat/migrate.h"
#include "../compat/pagewalk.h"
#include "../compat/rmap.h"

/* Declared in the kernel's headers, so that the compiler knows their types. */
#define demeter_type_kallsyms_lookup_name  kallsyms_lookup_name
#define demeter_type_try_to_migrate	   try_to_migrate
#define demeter_type_remove_migration_ptes remove_migration_ptes
#define demeter_type_walk_page_range	   walk_page_range
#define demeter_type_migrate_pages	   migrate_pages
#define demeter_type_putback_movable_pages putback_movable_pages
#define demeter_type_do_madvise		   do_madvise
#define demeter_type_split		   DEMETER_COMPAT_SPLIT

/* Not declared: the types are restated. */
demeter_isolate_ret_t demeter_type_folio_isolate_lru(struct folio *folio);
void demeter_type_folio_putback_lru(struct folio *folio);
void demeter_type_try_to_unmap_flush(void);
int demeter_type_ftrace_is_dead(void);
unsigned long demeter_type_ftrace_location(unsigned long ip);
/* Declared, but not for modules. */
void demeter_type_flush_tlb_mm_range(struct mm_struct *mm, unsigned long start, unsigned long end,
				     unsigned int stride_shift, bool freed_tables);

/* demeter_sc_NAME is the call of a function whose type is that of demeter_type_NAME. */
#define DEMETER_DECLARE_CALL(symbol) DECLARE_STATIC_CALL(demeter_sc_##symbol, demeter_type_##symbol)
#define DEMETER_DEFINE_CALL(symbol)                                                                \
	DEFINE_STATIC_CALL_NULL(demeter_sc_##symbol, demeter_type_##symbol)

DEMETER_DECLARE_CALL(folio_isolate_lru);
DEMETER_DECLARE_CALL(folio_putback_lru);
DEMETER_DECLARE_CALL(try_to_migrate);
DEMETER_DECLARE_CALL(remove_migration_ptes);
DEMETER_DECLARE_CALL(try_to_unmap_flush);
DEMETER_DECLARE_CALL(folio_get_anon_vma);
DEMETER_DECLARE_CALL(__put_anon_vma);
DEMETER_DECLARE_CALL(lru_add_drain);
DEMETER_DECLARE_CALL(walk_page_range);
DEMETER_DECLARE_CALL(migrate_pages);
DEMETER_DECLARE_CALL(putback_movable_pages);

/* demeter_call(function)(arguments): call an unexported kernel function. */
#define demeter_call(symbol) static_call(demeter_sc_##symbol)

#if DEMETER_COMPAT_MAPCOUNT_INLINE
static inline int demeter_folio_mapcount(struct folio *folio)
{
	return folio_mapcount(folio);
}
#else
#define demeter_type_folio_mapcount folio_mapcount
DEMETER_DECLARE_CALL(folio_mapcount);

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
