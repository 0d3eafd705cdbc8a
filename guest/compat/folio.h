/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * linux/mm_types.h, linux/mm.h, linux/page-flags.h: what changed between 6.1 and 7.x.
 *
 * Drop a block when the oldest supported kernel is newer than the version it
 * names; drop the file when no block is left. Written 2026-11.
 */
#ifndef DEMETER_COMPAT_FOLIO_H
#define DEMETER_COMPAT_FOLIO_H

#include <linux/mm.h>
#include <linux/version.h>

/* 6.18 (2025-11) wraps page flags in memdesc_flags_t. Older side may go with 6.12. */
#if KERNEL_VERSION(6, 18, 0) <= LINUX_VERSION_CODE
#define demeter_folio_flags(folio) ((folio)->flags.f)
#else
#define demeter_folio_flags(folio) ((folio)->flags)
#endif

/* 6.4 (2023-06) turned folio_isolate_lru()'s int, 0 = isolated, into a bool. Goes with 6.1. */
#if KERNEL_VERSION(6, 4, 0) <= LINUX_VERSION_CODE
#define demeter_isolate_ret_t bool
#define demeter_isolated(ret) (ret)
#else
#define demeter_isolate_ret_t int
#define demeter_isolated(ret) (!(ret))
#endif

/* 6.9 (2024-05) made folio_mapcount() inline; before, it is not exported. Goes with 6.1. */
#if KERNEL_VERSION(6, 9, 0) <= LINUX_VERSION_CODE
#define DEMETER_COMPAT_MAPCOUNT_INLINE 1
#else
#define DEMETER_COMPAT_MAPCOUNT_INLINE 0
#endif

/*
 * 7.x (2026) charges a folio to the obj_cgroup that its memory cgroup has for the node
 * that the folio lies on. The same rule does no harm to a 7.0 that did not yet. Older
 * side may go with 6.12.
 */
#if KERNEL_VERSION(7, 0, 0) <= LINUX_VERSION_CODE
#define DEMETER_COMPAT_CHARGE_BY_NODE 1
#else
#define DEMETER_COMPAT_CHARGE_BY_NODE 0
#endif

/* Bits that idle-page tracking keeps in the flags (64-bit: always there if configured). */
#ifdef CONFIG_PAGE_IDLE_FLAG
#define DEMETER_FOLIO_IDLE_FLAGS (BIT(PG_young) | BIT(PG_idle))
#else
#define DEMETER_FOLIO_IDLE_FLAGS 0UL
#endif

/* LRU_REFS_MASK came with MGLRU in 6.1; absent without CONFIG_LRU_GEN. */
#ifdef LRU_REFS_MASK
#define DEMETER_FOLIO_LRU_REFS LRU_REFS_MASK
#else
#define DEMETER_FOLIO_LRU_REFS 0UL
#endif

#endif /* DEMETER_COMPAT_FOLIO_H */
