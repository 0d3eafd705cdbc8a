// SPDX-License-Identifier: GPL-2.0-only
/*
 * Stats: totals since load, for sysfs and for the testbed's model.
 */
#include <linux/percpu.h>

#include "tmm.h"

struct demeter_stats demeter_stats;
DEFINE_PER_CPU(struct demeter_cpu_stats, demeter_cpu_stats);

/**
 * demeter_stats_max() - keep the largest of many values
 * @most: the largest so far
 * @value: another one
 */
void demeter_stats_max(u64 *most, u64 value)
{
	u64 seen = READ_ONCE(*most);

	while (value > seen && !try_cmpxchg64(most, &seen, value))
		;
}

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
 * demeter_stats_cpu_sum() - one of the numbers of all CPUs together
 * @offset: where it is in struct demeter_cpu_stats; a u64
 *
 * Return: the sum since load.
 */
u64 demeter_stats_cpu_sum(size_t offset)
{
	u64 sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += READ_ONCE(*(u64 *)((void *)per_cpu_ptr(&demeter_cpu_stats, cpu) + offset));
	return sum;
}

/**
 * demeter_stats_stray_samples() - samples that belong to nothing managed
 *
 * Return: samples of other address spaces, and outside the areas of managed ones.
 */
u64 demeter_stats_stray_samples(void)
{
	return READ_ONCE(demeter_stats.stray_samples) +
	       demeter_stats_cpu_sum(offsetof(struct demeter_cpu_stats, stray_samples));
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

	if (stage == DEMETER_STAGE_DRAIN)
		sum += demeter_stats_cpu_sum(offsetof(struct demeter_cpu_stats, drain_ns));
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

	if (ops)
		lost += ops->lost();
	WRITE_ONCE(demeter_stats.lost_samples, lost);
}

/**
 * demeter_stats_settle_lost() - remember the losses before the sources go away
 */
void demeter_stats_settle_lost(void)
{
	demeter_stats_update_lost();
	demeter_stats.lost_before = demeter_stats.lost_samples + demeter_drain_discard();
	WRITE_ONCE(demeter_stats.lost_samples, demeter_stats.lost_before);
}
