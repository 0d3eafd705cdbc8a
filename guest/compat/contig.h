/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * linux/gfp.h: what changed between 6.1 and 7.x about contiguous ranges.
 *
 * Drop a block when the oldest supported kernel is newer than the version it
 * names; drop the file when no block is left. Written 2026-11.
 */
#ifndef DEMETER_COMPAT_CONTIG_H
#define DEMETER_COMPAT_CONTIG_H

#include <linux/gfp.h>
#include <linux/mmzone.h>
#include <linux/version.h>

/* 6.16 (2025-07) replaced the migrate type by flags. Older side may go with 6.12. */
static inline int demeter_alloc_contig_range(unsigned long start_pfn, unsigned long end_pfn,
					     gfp_t gfp)
{
#if KERNEL_VERSION(6, 16, 0) <= LINUX_VERSION_CODE
	return alloc_contig_range(start_pfn, end_pfn, ACR_FLAGS_NONE, gfp);
#else
	return alloc_contig_range(start_pfn, end_pfn, MIGRATE_MOVABLE, gfp);
#endif
}

#endif /* DEMETER_COMPAT_CONTIG_H */
