/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Shim for <linux/huge_mm.h>, 2025-08: how a THP is split into 4 KiB folios was
 * renamed twice, in 6.9, where it got an order, and in 6.18.
 */
#ifndef DEMETER_COMPAT_HUGE_MEMORY_H
#define DEMETER_COMPAT_HUGE_MEMORY_H

#include <linux/mm.h>
#include <linux/version.h>

#if KERNEL_VERSION(6, 18, 0) <= LINUX_VERSION_CODE
#define DEMETER_COMPAT_SPLIT	   __split_huge_page_to_list_to_order
#define DEMETER_COMPAT_SPLIT_ORDER 1
#elif KERNEL_VERSION(6, 9, 0) <= LINUX_VERSION_CODE
#define DEMETER_COMPAT_SPLIT	   split_huge_page_to_list_to_order
#define DEMETER_COMPAT_SPLIT_ORDER 1
#else
#define DEMETER_COMPAT_SPLIT	   split_huge_page_to_list
#define DEMETER_COMPAT_SPLIT_ORDER 0
#endif

#endif /* DEMETER_COMPAT_HUGE_MEMORY_H */
