/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * linux/rmap.h: what changed between 6.1 and 7.x.
 *
 * Drop a block when the oldest supported kernel is newer than the version it
 * names; drop the file when no block is left. Written 2026-11.
 */
#ifndef DEMETER_COMPAT_RMAP_H
#define DEMETER_COMPAT_RMAP_H

#include <linux/rmap.h>
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

#endif /* DEMETER_COMPAT_RMAP_H */
