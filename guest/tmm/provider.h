/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Provider: what demeter.ko tells other modules of the guest.
 *
 * Whoever reads takes demeter_provider_read() with symbol_get() for the time of
 * the call, so that neither module depends on the other.
 */
#ifndef DEMETER_PROVIDER_H
#define DEMETER_PROVIDER_H

#include <linux/types.h>

/**
 * struct demeter_provider_tier - one tier
 * @node: its NUMA node, the first if it has several
 * @samples: of accesses that it served, since load
 * @hot_pages: resident 4 KiB pages of hot ranges: those that take at least
 *	their share of all samples, by size
 * @arrived_pages: 4 KiB pages moved here from the other tier, since load
 */
struct demeter_provider_tier {
	int node;
	u64 samples;
	u64 hot_pages;
	u64 arrived_pages;
};

/**
 * struct demeter_provider - what is known now
 * @fmem: the fast tier
 * @smem: the slow tier
 */
struct demeter_provider {
	struct demeter_provider_tier fmem;
	struct demeter_provider_tier smem;
};

int demeter_provider_read(struct demeter_provider *provider);

#endif /* DEMETER_PROVIDER_H */
