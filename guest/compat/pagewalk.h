/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * linux/pagewalk.h, linux/pgtable.h: what changed between 6.1 and 7.x.
 *
 * Drop a block when the oldest supported kernel is newer than the version it
 * names; drop the file when no block is left. Written 2026-11.
 */
#ifndef DEMETER_COMPAT_PAGEWALK_H
#define DEMETER_COMPAT_PAGEWALK_H

#include <linux/pagewalk.h>
#include <linux/pgtable.h>
#include <linux/version.h>

/* 6.5 (2023-08) made the walker check the VMA locking it is told. Goes with 6.1. */
#if KERNEL_VERSION(6, 5, 0) <= LINUX_VERSION_CODE
#define DEMETER_WALK_RDLOCK .walk_lock = PGWALK_RDLOCK,
#else
#define DEMETER_WALK_RDLOCK
#define pmdp_get_lockless(pmdp) READ_ONCE(*(pmdp))
#endif

/* 6.16 (2025-07) dropped pte_devmap(): device pages are found by their folio. Goes with 6.12. */
#if KERNEL_VERSION(6, 16, 0) <= LINUX_VERSION_CODE
static inline bool demeter_pte_devmap(pte_t pte)
{
	return false;
}
#else
#define demeter_pte_devmap(pte) pte_devmap(pte)
#endif

#endif /* DEMETER_COMPAT_PAGEWALK_H */
