/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Shim for <linux/huge_mm.h>, 2025-08: how a THP is split into 4 KiB folios was
 * renamed twice, in 6.9 and in 6.18. The types serve static calls only.
 */
#ifndef DEMETER_COMPAT_HUGE_MEMORY_H
#define DEMETER_COMPAT_HUGE_MEMORY_H

#include <linux/mm.h>
#include <linux/version.h>

#if KERNEL_VERSION(6, 9, 0) <= LINUX_VERSION_CODE
#define DEMETER_COMPAT_SPLIT_ORDER 1
#else
#define DEMETER_COMPAT_SPLIT_ORDER 0
#endif

/* Prototypes that only give the static calls their type. */
int demeter_proto_do_madvise(struct mm_struct *mm, unsigned long start, size_t bytes, int behavior);
#if DEMETER_COMPAT_SPLIT_ORDER
int demeter_proto_split(struct page *page, struct list_head *list, unsigned int order);
#else
int demeter_proto_split(struct page *page, struct list_head *list);
#endif

/* Under each of these names, newest first, the function may be found. */
#define DEMETER_COMPAT_SPLIT_NAMES                                                                 \
	{                                                                                          \
		"__split_huge_page_to_list_to_order", "split_huge_page_to_list_to_order",          \
			"split_huge_page_to_list"                                                  \
	}

#endif /* DEMETER_COMPAT_HUGE_MEMORY_H */
