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
 * 6.5 (2023-08) made migrate_pages() callbacks take and return folios. The
 * macro makes such a callback out of a function on folios. Goes with 6.1.
 */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 5, 0)
typedef new_folio_t demeter_new_folio_t;
typedef free_folio_t demeter_free_folio_t;
#define DEMETER_DEFINE_NEW_FOLIO(name, body)				\
static struct folio *name(struct folio *src, unsigned long private)	\
{									\
	return body(src, private);					\
}
#else
typedef new_page_t demeter_new_folio_t;
typedef free_page_t demeter_free_folio_t;
#define DEMETER_DEFINE_NEW_FOLIO(name, body)				\
static struct page *name(struct page *page, unsigned long private)	\
{									\
	struct folio *dst = body(page_folio(page), private);		\
									\
	return dst ? &dst->page : NULL;					\
}
#endif

#endif /* DEMETER_COMPAT_MIGRATE_H */
