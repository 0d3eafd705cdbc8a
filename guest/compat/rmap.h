/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * linux/rmap.h, linux/swap.h: what changed between 6.1 and 7.x.
 *
 * Drop a block when the oldest supported kernel is newer than the version it
 * names; drop the file when no block is left. Written 2026-11.
 */
#ifndef DEMETER_COMPAT_RMAP_H
#define DEMETER_COMPAT_RMAP_H

#include <linux/rmap.h>
#include <linux/swap.h>
#include <linux/version.h>

/*
 * 6.3 (2023-04) taught try_to_migrate() to leave the TLB flush to
 * try_to_unmap_flush(). Before, it warns about the flag and does nothing, so
 * every folio is flushed on its own there. Goes with 6.1.
 */
#if KERNEL_VERSION(6, 3, 0) <= LINUX_VERSION_CODE
#define DEMETER_TTU_BATCH TTU_BATCH_FLUSH
#else
#define DEMETER_TTU_BATCH ((enum ttu_flags)0)
#endif

/*
 * Between 6.12 and 7.3 these left the headers for mm/internal.h: their types are
 * restated there. Older side may go with 6.12.
 */
#if KERNEL_VERSION(6, 13, 0) <= LINUX_VERSION_CODE
struct anon_vma *demeter_type_folio_get_anon_vma(struct folio *folio);
void demeter_type___put_anon_vma(struct anon_vma *anon_vma);
void demeter_type_lru_add_drain(void);
#else
#define demeter_type_folio_get_anon_vma folio_get_anon_vma
#define demeter_type___put_anon_vma	__put_anon_vma
#define demeter_type_lru_add_drain	lru_add_drain
#endif

#endif /* DEMETER_COMPAT_RMAP_H */
