// SPDX-License-Identifier: GPL-2.0-only
/*
 * Provider: the figures that the balloon's driver tells the host.
 */
#include <linux/export.h>
#include <linux/lockdep.h>
#include <linux/math64.h>
#include <linux/mutex.h>
#include <linux/spinlock.h>

#include "provider.h"
#include "tmm.h"

static u64 resident_pages(const struct demeter_count *count)
{
	return count->pages[DEMETER_FMEM] + count->pages[DEMETER_SMEM];
}

/* What is resident in a range; NULL while that is unknown or nothing. */
static const struct demeter_count *count_of(struct demeter_target *target,
					    const struct demeter_range *range)
{
	const struct demeter_count *count = demeter_target_count(target, range->start);

	return count && count->end == range->end && resident_pages(count) ? count : NULL;
}

/*
 * A range is hot if it is at least as dense as all ranges together. This needs
 * no threshold, does not depend on how much FMEM there is, and with one range
 * or even access all of it is hot, as it should be.
 */
static void hot_pages_read(u64 hot_pages[DEMETER_TIERS])
{
	u64 all_rate = 0, all_pages = 0;
	struct demeter_target *target;
	u32 space = 0, i;

	while ((target = demeter_target_next(&space))) {
		for (i = 0; i < target->ranges.nr; i++) {
			const struct demeter_range *range = &target->ranges.range[i];
			const struct demeter_count *count = count_of(target, range);

			if (!count)
				continue;
			all_rate += range->rate;
			all_pages += resident_pages(count);
		}
	}
	if (!all_rate)
		return;
	space = 0;
	while ((target = demeter_target_next(&space))) {
		for (i = 0; i < target->ranges.nr; i++) {
			const struct demeter_range *range = &target->ranges.range[i];
			const struct demeter_count *count = count_of(target, range);

			/* At most @all_pages: a rate is part of the sum of all. */
			if (!count || mul_u64_u64_div_u64(range->rate, all_pages, all_rate) <
					      resident_pages(count))
				continue;
			hot_pages[DEMETER_FMEM] += count->pages[DEMETER_FMEM];
			hot_pages[DEMETER_SMEM] += count->pages[DEMETER_SMEM];
		}
	}
}

/*
 * Whoever reads holds a reference to this module, which could not be unloaded if
 * reading waited for an epoch's work. So a reader that finds one going on gets the
 * figures of the last reading, and the epoch makes new ones when it ends.
 */
static DEFINE_SPINLOCK(figures_lock);
static struct demeter_provider figures; /* protected by figures_lock */
static bool figures_known;		/* too */
static bool figures_wanted;		/* by a reader that could not make them */

static void make_figures(void)
{
	u64 hot_pages[DEMETER_TIERS] = {};
	struct demeter_provider now;

	lockdep_assert_held(&demeter_lock);
	hot_pages_read(hot_pages);
	now = (struct demeter_provider){
		.fmem = {
			.node = demeter_params.fmem_node,
			.samples = demeter_stats.tier_samples[DEMETER_FMEM],
			.hot_pages = hot_pages[DEMETER_FMEM],
			.arrived_pages = demeter_stats.promoted_pages,
		},
		.smem = {
			.node = demeter_params.smem_node,
			.samples = demeter_stats.tier_samples[DEMETER_SMEM],
			.hot_pages = hot_pages[DEMETER_SMEM],
			.arrived_pages = demeter_stats.demoted_pages,
		},
	};
	WRITE_ONCE(figures_wanted, false);
	spin_lock(&figures_lock);
	figures = now;
	figures_known = true;
	spin_unlock(&figures_lock);
}

/**
 * demeter_provider_epoch_ended() - make the figures that a reader could not make
 *
 * The caller holds demeter_lock.
 */
void demeter_provider_epoch_ended(void)
{
	if (READ_ONCE(figures_wanted))
		make_figures();
}

/**
 * demeter_provider_read() - read the figures
 * @provider: out
 *
 * Does not wait. Figures are of this moment, or of the last reading if an epoch is at
 * work.
 *
 * Return: 0, or -ENODATA while nothing is managed, as they would say nothing then, or
 * before there are any.
 */
int demeter_provider_read(struct demeter_provider *provider)
{
	int ret = -ENODATA;

	if (!demeter_is_enabled())
		return ret;
	if (mutex_trylock(&demeter_lock)) {
		make_figures();
		mutex_unlock(&demeter_lock);
	} else {
		WRITE_ONCE(figures_wanted, true);
	}
	spin_lock(&figures_lock);
	if (figures_known) {
		*provider = figures;
		ret = 0;
	}
	spin_unlock(&figures_lock);
	return ret;
}
EXPORT_SYMBOL_GPL(demeter_provider_read);
