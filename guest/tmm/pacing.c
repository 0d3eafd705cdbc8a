// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pacing: how long an epoch takes and how sparse its samples are, as core/pace.c
 * says. The worker wakes every params/epoch_ms, takes what was sampled meanwhile, and
 * asks here whether the epoch ends with that.
 *
 * A sampler whose samples do not follow the parameter sample_period ("touch", which
 * keeps to a share of the CPU by itself) asks for the pace.
 */
#include <linux/sysfs.h>
#include <linux/time64.h>

#include <demeter/pace.h>

#include "finer.h"
#include "tmm.h"

/* The worker's own; others read single words of it. */
static struct demeter_pace pace;
/* Epochs cut short since load, as accesses had changed. */
static u64 wakes;

/* Samples since load by tier, had none been left out. */
static u64 full_samples[DEMETER_TIERS];

/* Totals at the last tick, and at the end of the last epoch; the worker's. */
static u64 samples_before;
static u64 tier_samples_before[DEMETER_TIERS];
static u64 moved_before;
static u64 splits_before;

/* Those that were asked for by a closer look (finer.c) say nothing about the pace. */
static u64 usual_samples(void)
{
	u64 extra = 0;
	u32 kind;

	for (kind = 0; kind <= DEMETER_TIERS; kind++)
		extra += demeter_finer_extra(kind);
	return demeter_stats.samples - extra;
}

static u64 usual_tier_samples(u32 tier)
{
	return demeter_stats.tier_samples[tier] - demeter_finer_extra(tier);
}

static u64 moved_pages(void)
{
	return demeter_stats.promoted_pages + demeter_stats.demoted_pages;
}

/**
 * demeter_pacing_shift() - how much longer than at full pace an epoch is
 *
 * Return: as a power of two.
 */
u32 demeter_pacing_shift(void)
{
	return READ_ONCE(pace.shift);
}

/**
 * demeter_pacing_sparse() - how much sparser than at full pace samples are
 *
 * Return: as a power of two; demeter_pacing_shift() at most.
 */
u32 demeter_pacing_sparse(void)
{
	return READ_ONCE(pace.sparse);
}

/**
 * demeter_pacing_held() - how many ticks' samples at full pace the epoch that ends now held
 *
 * For the worker.
 *
 * Return: as a power of two.
 */
u32 demeter_pacing_held(void)
{
	return demeter_pace_held(&pace);
}

/**
 * demeter_pacing_full_samples() - samples of a tier since load, had none been left out
 * @tier: the tier
 *
 * Those that are there as samples are denser for a closer look are not among them.
 *
 * Return: a number that says the same in guests of any pace.
 */
u64 demeter_pacing_full_samples(enum demeter_tier tier)
{
	return READ_ONCE(full_samples[tier]);
}

/* How much sparser the sampler can make its samples: it may not do all that it is asked. */
static u32 most_shift(const struct demeter_sampler_ops *ops)
{
	u64 period = READ_ONCE(demeter_params.sample_period), accesses[DEMETER_PACE_MAX_SHIFT + 1];
	u32 shift;

	if (ops->follows_pace)
		return DEMETER_PACE_MAX_SHIFT;
	if (!ops->set_period)
		return 0;
	for (shift = 0; shift <= DEMETER_PACE_MAX_SHIFT; shift++)
		accesses[shift] = ops->accesses_per_sample(demeter_pace_period(shift, period));
	return demeter_pace_most(accesses);
}

/* What was counted in epochs that held more samples says as much less from now on. */
static void thin(u32 shift)
{
	struct demeter_target *target;
	u32 space = 0;

	while ((target = demeter_target_next(&space)))
		target->ranges.thin = shift;
}

/**
 * demeter_pacing_start() - begin at full pace
 *
 * For who starts the worker, before; nothing samples yet.
 */
void demeter_pacing_start(void)
{
	const struct demeter_sampler_ops *ops = demeter_sampler_active();
	int index = demeter_targets_read_lock();
	struct demeter_target *target;
	u32 tier, space = 0;

	demeter_pace_start(&pace);
	pace.most = most_shift(ops);
	pace.by_share_alone = ops->follows_pace;
	/* Address spaces outlive a disable, and what was counted of them. */
	while ((target = demeter_target_next(&space)))
		demeter_ranges_resume(&target->ranges, pace.thin);
	demeter_targets_read_unlock(index);
	samples_before = usual_samples();
	for (tier = 0; tier < DEMETER_TIERS; tier++)
		tier_samples_before[tier] = usual_tier_samples(tier);
	moved_before = moved_pages();
	splits_before = demeter_stats.splits;
}

/**
 * demeter_pacing_period() - events that one sample stands for at the present pace
 *
 * Return: params/sample_period or a multiple of it.
 */
u64 demeter_pacing_period(void)
{
	return demeter_pace_period(demeter_pacing_sparse(),
				   READ_ONCE(demeter_params.sample_period));
}

/**
 * demeter_pacing_epoch_ns() - length of an epoch at the present pace
 *
 * Return: nanoseconds; what rates of samples an epoch refer to.
 */
u64 demeter_pacing_epoch_ns(void)
{
	return (READ_ONCE(demeter_params.epoch_ms) * NSEC_PER_MSEC) << demeter_pacing_shift();
}

/**
 * demeter_pacing_ticks() - ticks of the epoch that ends now
 *
 * For the worker. Fewer than its pace has for one that was cut short.
 *
 * Return: one at least.
 */
u32 demeter_pacing_ticks(void)
{
	return max(pace.ticks, 1u);
}

/**
 * demeter_pacing_passed_ns() - length of the epoch that ends now
 *
 * For the worker. Less than demeter_pacing_epoch_ns() for one that was cut short.
 *
 * Return: nanoseconds.
 */
u64 demeter_pacing_passed_ns(void)
{
	return demeter_pacing_ticks() * READ_ONCE(demeter_params.epoch_ms) * NSEC_PER_MSEC;
}

/* Each page once, however many processes map it. */
static u64 resident_pages(void)
{
	struct demeter_target *target;
	u64 pages = 0;
	u32 space = 0;

	while ((target = demeter_target_next(&space)))
		pages += target->own_pages;
	return pages;
}

/**
 * demeter_pacing_tick() - a tick is over, and its samples are counted
 *
 * For the worker.
 *
 * Return: whether the epoch ends with it.
 */
bool demeter_pacing_tick(void)
{
	struct demeter_pace_tick tick = {
		.untold = usual_samples() - samples_before,
		.resident_pages = resident_pages(),
	};
	bool ends;
	u32 tier;

	for (tier = 0; tier < DEMETER_TIERS; tier++) {
		tick.samples[tier] = usual_tier_samples(tier) - tier_samples_before[tier];
		tier_samples_before[tier] = usual_tier_samples(tier);
		tick.untold -= tick.samples[tier];
		WRITE_ONCE(full_samples[tier],
			   full_samples[tier] + (tick.samples[tier] << pace.sparse));
	}
	samples_before = usual_samples();
	ends = demeter_pace_tick(&pace, &tick);
	if (ends && pace.ticks < 1u << pace.shift)
		WRITE_ONCE(wakes, wakes + 1);
	return ends;
}

/**
 * demeter_pacing_end_epoch() - an epoch is over: set the pace of the next
 * @waiting: there was more to move than it could
 *
 * For the worker.
 */
void demeter_pacing_end_epoch(bool waiting)
{
	struct demeter_pace_epoch epoch = {
		.moved_pages = moved_pages() - moved_before,
		.splits = demeter_stats.splits - splits_before,
		.ranges = demeter_stats.ranges,
		.waiting = waiting,
	};
	const struct demeter_sampler_ops *ops = demeter_sampler_active();

	moved_before = moved_pages();
	splits_before = demeter_stats.splits;
	/* The parameter may have changed. */
	pace.most = most_shift(ops);
	pace.least = ops->least_shift ? ops->least_shift() : 0;
	demeter_pace_end_epoch(&pace, &epoch);
	thin(pace.thin);
	if (ops->set_period)
		ops->set_period(demeter_finer_period(demeter_pacing_period()));
}

#define PACE_STAT(_name, _value)                                                                   \
	static ssize_t _name##_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)  \
	{                                                                                          \
		return sysfs_emit(buf, "%llu\n", (u64)(_value));                                   \
	}                                                                                          \
	static struct kobj_attribute _name##_attr = __ATTR_RO(_name)

PACE_STAT(ticks_per_epoch, demeter_is_enabled() ? 1u << demeter_pacing_shift() : 1);
PACE_STAT(sample_period, demeter_is_enabled() ? demeter_finer_period(demeter_pacing_period())
					      : READ_ONCE(demeter_params.sample_period));
PACE_STAT(wakes, READ_ONCE(wakes));

static struct attribute *pacing_attrs[] = { &ticks_per_epoch_attr.attr, &sample_period_attr.attr,
					    &wakes_attr.attr, NULL };

const struct attribute_group demeter_pacing_stats_group = { .attrs = pacing_attrs };
