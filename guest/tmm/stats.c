// SPDX-License-Identifier: GPL-2.0-only
/*
 * Stats: totals since load, for sysfs and for the testbed behind the vPMU.
 */
#include <linux/percpu.h>

#include "tmm.h"

struct demeter_stats demeter_stats;
DEFINE_PER_CPU(struct demeter_cpu_stats, demeter_cpu_stats);

/**
 * demeter_stats_refused_pages() - pages refused, all reasons together
 *
 * Return: 4 KiB pages.
 */
u64 demeter_stats_refused_pages(void)
{
	u64 sum = 0;
	int i;

	for (i = DEMETER_OK + 1; i < DEMETER_REFUSALS; i++)
		sum += READ_ONCE(demeter_stats.refused.pages[i]);
	return sum;
}

/**
 * demeter_stats_stray_samples() - samples that belong to nothing managed
 *
 * Return: samples of other address spaces, and outside the areas of managed ones.
 */
u64 demeter_stats_stray_samples(void)
{
	u64 sum = READ_ONCE(demeter_stats.stray_samples);
	int cpu;

	for_each_possible_cpu(cpu)
		sum += READ_ONCE(per_cpu(demeter_cpu_stats, cpu).stray_samples);
	return sum;
}

/**
 * demeter_stats_stage_ns() - CPU time spent in a stage
 * @stage: the stage
 *
 * Return: nanoseconds since load.
 */
u64 demeter_stats_stage_ns(enum demeter_stage stage)
{
	u64 sum = READ_ONCE(demeter_stats.stage_ns[stage]);
	int cpu;

	if (stage != DEMETER_STAGE_DRAIN)
		return sum;
	for_each_possible_cpu(cpu)
		sum += READ_ONCE(per_cpu(demeter_cpu_stats, cpu).drain_ns);
	return sum;
}

/**
 * demeter_stats_update_lost() - bring the number of lost samples up to date
 *
 * For the worker, while the sampler and the channel exist.
 */
void demeter_stats_update_lost(void)
{
	const struct demeter_sampler_ops *ops = demeter_sampler_active();
	u64 lost = demeter_stats.lost_before + demeter_drain_lost();

	if (ops && ops->lost)
		lost += ops->lost();
	WRITE_ONCE(demeter_stats.lost_samples, lost);
}

/**
 * demeter_stats_settle_lost() - remember the losses before the sources go away
 */
void demeter_stats_settle_lost(void)
{
	demeter_stats_update_lost();
	demeter_stats.lost_before = demeter_stats.lost_samples;
}

/**
 * demeter_stats_publish() - show the totals to the testbed, if there is one
 */
void demeter_stats_publish(void)
{
	const struct demeter_sampler_ops *ops = demeter_sampler_active();
	struct demeter_vpmu_guest totals = {
		.epochs = demeter_stats.epochs,
		.promoted_pages = demeter_stats.promoted_pages,
		.demoted_pages = demeter_stats.demoted_pages,
		.refused_pages = demeter_stats_refused_pages(),
		.samples = demeter_stats.samples,
		.lost_samples = demeter_stats.lost_samples,
		.ranges = demeter_stats.ranges,
		.splits = demeter_stats.splits,
		.merges = demeter_stats.merges,
	};
	int i;

	if (!ops || !ops->publish)
		return;
	for (i = 0; i < DEMETER_STAGES; i++)
		totals.stage_ns[i] = demeter_stats_stage_ns(i);
	ops->publish(&totals);
}
