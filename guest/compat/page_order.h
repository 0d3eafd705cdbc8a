/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * linux/mmzone.h: what changed between 6.1 and 7.x about orders of pages.
 *
 * Drop a block when the oldest supported kernel is newer than the version it
 * names; drop the file when no block is left. Written 2026-11.
 */
#ifndef DEMETER_COMPAT_PAGE_ORDER_H
#define DEMETER_COMPAT_PAGE_ORDER_H

#include <linux/mmzone.h>
#include <linux/version.h>

/*
 * The largest order that the buddy allocator has: MAX_PAGE_ORDER since 6.8
 * (2024-03), MAX_ORDER from 6.4 on, MAX_ORDER - 1 before. Goes with 6.1.
 */
#if KERNEL_VERSION(6, 8, 0) <= LINUX_VERSION_CODE
#define DEMETER_MAX_PAGE_ORDER MAX_PAGE_ORDER
#elif KERNEL_VERSION(6, 4, 0) <= LINUX_VERSION_CODE
#define DEMETER_MAX_PAGE_ORDER MAX_ORDER
#else
#define DEMETER_MAX_PAGE_ORDER (MAX_ORDER - 1)
#endif

#endif /* DEMETER_COMPAT_PAGE_ORDER_H */
