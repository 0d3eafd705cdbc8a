/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * linux/migrate.h: what changed between 6.1 and 7.x.
 *
 * Drop a block when the oldest supported kernel is newer than the version it
 * names; drop the file when no block is left. Written 2026-11.
 */
#ifndef DEMETER_COMPAT_MIGRATE_H
#define DEMETER_COMPAT_MIGRATE_H

#include <linux/migrate.h>
#include <linux/version.h>

/*
 * 6.5 (2023-08) made migrate_pages() callbacks take and return folios instead
 * of pages: a callback is written in terms of struct demeter_migratable, which
 * is the one or the other. Goes with 6.1.
 */
#if KERNEL_VERSION(6, 5, 0) <= LINUX_VERSION_CODE
#define demeter_migratable	      folio
#define demeter_new_folio_t	      new_folio_t
#define demeter_free_folio_t	      free_folio_t
#define demeter_migratable_folio(src) (src)
#define demeter_folio_migratable(dst) (dst)
#else
#define demeter_migratable	      page
#define demeter_new_folio_t	      new_page_t
#define demeter_free_folio_t	      free_page_t
#define demeter_migratable_folio(src) page_folio(src)
#define demeter_folio_migratable(dst) ((dst) ? folio_page(dst, 0) : NULL)
#endif

#endif /* DEMETER_COMPAT_MIGRATE_H */
