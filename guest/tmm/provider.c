// SPDX-License-Identifier: GPL-2.0-only
/*
 * Provider: the figures that the balloon's driver tells the host.
 */
#include <linux/export.h>
#include <linux/math64.h>

#include "provider.h"
#include "tmm.h"

static u64 resident_pages(const struct demeter_count *count)
{
	return count->pages[DEMETER_FMEM] + count->pages[DEMETER_SMEM];
}

/* What ranges come to in which something is known to be resident. */
static void all_read(u64 *rate, u64 *pages)
{
	struct demeter_target *target;
	u32 space = 0, i;

	*rate = 0;
	*pages = 0;
	while ((target = demeter_target_next(&space))) {
		u64 since_ns = demeter_target_lock(target);

		for (i = 0; i < target->nr_counts; i++) {
			u64 resident = resident_pages(&target->count[i]);

			*rate += resident ? target->count[i].rate : 0;
			*pages += resident;
		}
		demeter_target_unlock(target, since_ns);
	}
}

/*
 * A range is hot if it is at least as dense as all ranges together. This needs
 * no threshold, does not depend on how much FMEM there is, and with one range
 * or even access all of it is hot, as it should be.
 */
static bool is_hot(const struct demeter_count *count, u64 all_rate, u64 all_pages)
{
	u64 resident = resident_pages(count), rate = min(count->rate, all_rate);

	return resident && mul_u64_u64_div_u64(rate, all_pages, all_rate) >= resident;
}

static void hot_pages_read(u64 hot_pages[DEMETER_TIERS])
{
	struct demeter_target *target;
	u64 all_rate, all_pages;
	u32 space = 0, i;

	all_read(&all_rate, &all_pages);
	if (!all_rate)
		return;
	while ((target = demeter_target_next(&space))) {
		u64 since_ns = demeter_target_lock(target);

		for (i = 0; i < target->nr_counts; i++) {
			const struct demeter_count *count = &target->count[i];

			if (!is_hot(count, all_rate, all_pages))
				continue;
			hot_pages[DEMETER_FMEM] += count->pages[DEMETER_FMEM];
			hot_pages[DEMETER_SMEM] += count->pages[DEMETER_SMEM];
		}
		demeter_target_unlock(target, since_ns);
	}
}

/* The balloon's host knows one node a tier. */
static int node_of_tier(enum demeter_tier tier)
{
	return first_node(demeter_tiers.nodes[tier]);
}

/**
 * demeter_provider_read() - read the figures
 * @provider: out
 *
 * Figures are those of the last epoch. Whoever reads holds a reference to this
 * module, which could not be unloaded if reading waited for an epoch's work; it
 * waits for the exchange of what is published at most.
 *
 * Return: 0, or -ENODATA while nothing is managed, as they would say nothing then.
 */
int demeter_provider_read(struct demeter_provider *provider)
{
	u64 hot_pages[DEMETER_TIERS] = {};
	int index;

	if (!demeter_is_enabled())
		return -ENODATA;
	index = demeter_targets_read_lock();
	hot_pages_read(hot_pages);
	demeter_targets_read_unlock(index);
	*provider = (struct demeter_provider){
		.fmem = {
			.node = node_of_tier(DEMETER_FMEM),
			.samples = demeter_pacing_full_samples(DEMETER_FMEM),
			.hot_pages = hot_pages[DEMETER_FMEM],
			.arrived_pages = READ_ONCE(demeter_stats.promoted_pages),
		},
		.smem = {
			.node = node_of_tier(DEMETER_SMEM),
			.samples = demeter_pacing_full_samples(DEMETER_SMEM),
			.hot_pages = hot_pages[DEMETER_SMEM],
			.arrived_pages = READ_ONCE(demeter_stats.demoted_pages),
		},
	};
	return 0;
}
EXPORT_SYMBOL_GPL(demeter_provider_read);
