/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * linux/mmzone.h: what changed between 6.1 and 7.x about counters of nodes.
 *
 * Drop a block when the oldest supported kernel is newer than the version it
 * names; drop the file when no block is left. Written 2026-11.
 */
#ifndef DEMETER_COMPAT_VMSTAT_H
#define DEMETER_COMPAT_VMSTAT_H

#include <linux/mmzone.h>
#include <linux/version.h>

/* 6.8 (2024-03) counts demotion per node; before, there is no such count. Goes with 6.1. */
#if KERNEL_VERSION(6, 8, 0) <= LINUX_VERSION_CODE
#define DEMETER_DEMOTION_ITEMS                                                                     \
	{                                                                                          \
		PGDEMOTE_KSWAPD, PGDEMOTE_DIRECT, PGDEMOTE_KHUGEPAGED                              \
	}
#else
#define DEMETER_DEMOTION_ITEMS                                                                     \
	{                                                                                          \
	}
#endif

#endif /* DEMETER_COMPAT_VMSTAT_H */
