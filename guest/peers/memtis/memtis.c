// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memtis: placement by a histogram of sampled accesses, as published (README.md here says
 * what is not). What is whose: memtis.h.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include "../contract.h"
#include "memtis.h"
#include "nodes.h"

struct memtis_params memtis_params = {
	.poll_us = 2000,
	.quota_permille = 30,
	.quota_ms = 15000,
	.adaptation_samples = 100000,
	.cooling_samples = 2000000,
	.kmigrated_ms = 500,
	.direct_pages = 12800,
	.split = 1,
	.split_batch = 50,
	.gap_permille = 1570,
};

struct memtis_stats memtis_stats;
int memtis_node[DEMETER_TIERS];

static int memtis_start(void)
{
	struct demeter_rings_periods periods = memtis_periods(0);
	int ret = demeter_nodes_find(memtis_node);

	if (ret)
		return ret;
	memtis_spaces_reset();
	ret = memtis_migrated_start();
	if (ret)
		return ret;
	ret = demeter_rings_start(&periods, &memtis_stats.lost_samples);
	if (ret)
		goto migrated;
	ret = memtis_sampled_start();
	if (!ret)
		return 0;
	demeter_rings_stop();
migrated:
	memtis_migrated_stop();
	return ret;
}

static void memtis_stop(void)
{
	memtis_sampled_stop();
	demeter_rings_stop();
	memtis_migrated_stop();
	memtis_spaces_reset();
}

static const struct demeter_peer_param memtis_param_files[] = {
	{ "poll_us", &memtis_params.poll_us, 1, 1000000 },
	{ "quota_permille", &memtis_params.quota_permille, 1, 1000 },
	{ "quota_ms", &memtis_params.quota_ms, 1, 1000000 },
	{ "adaptation_samples", &memtis_params.adaptation_samples, 1, U32_MAX },
	{ "cooling_samples", &memtis_params.cooling_samples, 1, U32_MAX },
	{ "kmigrated_ms", &memtis_params.kmigrated_ms, 1, 10000 },
	{ "direct_pages", &memtis_params.direct_pages, 0, U32_MAX },
	{ "split", &memtis_params.split, 0, 1 },
	{ "split_batch", &memtis_params.split_batch, 1, 10000 },
	{ "gap_permille", &memtis_params.gap_permille, 1, 100000 },
	{ .name = NULL },
};

static const struct demeter_peer_stat memtis_stat_files[] = {
	{ "promoted_pages", &memtis_stats.promoted_pages },
	{ "demoted_pages", &memtis_stats.demoted_pages },
	{ "refused_pages", &memtis_stats.refused_pages },
	{ "split_huge_pages", &memtis_stats.split_huge_pages },
	{ "splits_wanted", &memtis_stats.splits_wanted },
	{ "coolings", &memtis_stats.coolings },
	{ "adaptations", &memtis_stats.adaptations },
	{ "samples", &memtis_stats.samples },
	{ "store_samples", &memtis_stats.store_samples },
	{ "unused_samples", &memtis_stats.unused_samples },
	{ "lost_samples", &memtis_stats.lost_samples },
	{ "period", &memtis_stats.period },
	{ "store_period", &memtis_stats.store_period },
	{ "ksampled_permille", &memtis_stats.ksampled_permille },
	{ "hot_bin", &memtis_stats.hot_bin },
	{ "warm_bin", &memtis_stats.warm_bin },
	{ "tracked_pages", &memtis_stats.tracked_pages },
	{ "hit_permille", &memtis_stats.hit_permille },
	{ "base_hit_permille", &memtis_stats.base_hit_permille },
	{ .name = NULL },
};

const struct demeter_peer demeter_peer_this = {
	.name = "memtis",
	.params = memtis_param_files,
	.stats = memtis_stat_files,
	.start = memtis_start,
	.stop = memtis_stop,
};
