// SPDX-License-Identifier: GPL-2.0-only
/*
 * HeMem: pages of 2 MiB by sampled reads and writes, first in, first out, as published
 * (README.md here says what is not). What is whose: hemem.h.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/limits.h>
#include <linux/sizes.h>

#include "../contract.h"
#include "hemem.h"
#include "nodes.h"
#include "rings.h"

struct hemem_params hemem_params = {
	.period = 19997,
	.store_period = 19997,
	.hot_reads = 4,
	.hot_writes = 4,
	.cooling_samples = 10,
	.cooling_pages = 8192,
	.least_mapping_bytes = SZ_1G,
	.poll_ms = 10,
	.policy_ms = 10,
	.round_pages = 10 * (SZ_1G / SZ_4K),
};

struct hemem_stats hemem_stats;
int hemem_node[DEMETER_TIERS];

static int hemem_start(void)
{
	struct demeter_rings_periods periods = {
		.loads = hemem_params.period,
		.stores = hemem_params.store_period,
	};
	int ret = demeter_nodes_find(hemem_node);

	if (ret)
		return ret;
	hemem_pages_reset();
	ret = demeter_rings_start(&periods, &hemem_stats.lost_samples);
	if (ret)
		return ret;
	ret = hemem_policy_start();
	if (ret)
		goto rings;
	ret = hemem_sampled_start();
	if (!ret)
		return 0;
	hemem_policy_stop();
rings:
	demeter_rings_stop();
	return ret;
}

static void hemem_stop(void)
{
	hemem_sampled_stop();
	hemem_policy_stop();
	demeter_rings_stop();
	hemem_pages_reset();
}

static const struct demeter_peer_param hemem_param_files[] = {
	{ "period", &hemem_params.period, 2, U32_MAX },
	{ "store_period", &hemem_params.store_period, 2, U32_MAX },
	{ "hot_reads", &hemem_params.hot_reads, 1, U32_MAX },
	{ "hot_writes", &hemem_params.hot_writes, 1, U32_MAX },
	{ "cooling_samples", &hemem_params.cooling_samples, 1, U32_MAX },
	{ "cooling_pages", &hemem_params.cooling_pages, 1, U32_MAX },
	{ "writes_first", &hemem_params.writes_first, 0, 1 },
	{ "least_mapping_bytes", &hemem_params.least_mapping_bytes, SZ_4K, S64_MAX },
	{ "poll_ms", &hemem_params.poll_ms, 1, 10000 },
	{ "policy_ms", &hemem_params.policy_ms, 1, 10000 },
	{ "round_pages", &hemem_params.round_pages, 1, U32_MAX },
	{ .name = NULL },
};

static const struct demeter_peer_stat hemem_stat_files[] = {
	{ "promoted_pages", &hemem_stats.promoted_pages },
	{ "demoted_pages", &hemem_stats.demoted_pages },
	{ "refused_pages", &hemem_stats.refused_pages },
	{ "samples", &hemem_stats.samples },
	{ "store_samples", &hemem_stats.store_samples },
	{ "unused_samples", &hemem_stats.unused_samples },
	{ "lost_samples", &hemem_stats.lost_samples },
	{ "coolings", &hemem_stats.coolings },
	{ "hot_fmem", &hemem_stats.hot_fmem },
	{ "hot_smem", &hemem_stats.hot_smem },
	{ "cold_fmem", &hemem_stats.cold_fmem },
	{ "cold_smem", &hemem_stats.cold_smem },
	{ "burnt_ns", &hemem_stats.burnt_ns },
	{ "unreachable_ns", &hemem_stats.unreachable_ns },
	{ .name = NULL },
};

const struct demeter_peer demeter_peer_this = {
	.name = "hemem",
	.params = hemem_param_files,
	.stats = hemem_stat_files,
	.start = hemem_start,
	.stop = hemem_stop,
};
