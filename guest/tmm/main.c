// SPDX-License-Identifier: GPL-2.0-only
/*
 * Main: load and unload, on and off.
 *
 * Loading changes nothing but making /sys/kernel/mm/demeter. Enabling claims
 * the sampler, hooks the context switch, starts the worker, and starts sampling
 * last; disabling undoes it in reverse. Targets stay across both.
 */
#define pr_fmt(fmt) "demeter: " fmt

#include <linux/init.h>
#include <linux/mm.h>
#include <linux/module.h>

#include "huge.h"
#include "binding.h"
#include "finer.h"
#include "ledger.h"
#include "relocate.h"
#include "symbols.h"
#include "tiers.h"
#include "tmm.h"
#include "version.h"
#define CREATE_TRACE_POINTS
#include "trace.h"

/* On and off, and what may only change in between; see tmm.h. */
DEFINE_MUTEX(demeter_control_lock);
/* The registry of targets, groups and cgroups; see tmm.h. */
DEFINE_MUTEX(demeter_lock);

struct demeter_params demeter_params = {
	.sample_period = 4093,
	.latency_threshold_ns = 64,
	.epoch_ms = 500,
	.split_samples = 15,
	.significance = 2,
	.merge_epochs = 8,
	.granule_bytes = 2 << 20,
	.horizon_ms = 10000,
	.hysteresis_permille = 250,
	.rate_pages_per_s = 262144,
	.batch_pairs = DEMETER_BATCH_PAIRS_DEFAULT,
	.finer = DEMETER_FINER_AUTO,
	.finer_walk_ns = 40,
};

#define DEMETER_PARAM(name)                                                                        \
	module_param_named(name, demeter_params.name, ulong, 0);                                   \
	MODULE_PARM_DESC(name, "see /sys/kernel/mm/demeter")
DEMETER_PARAM(sample_period);
DEMETER_PARAM(latency_threshold_ns);
DEMETER_PARAM(epoch_ms);
DEMETER_PARAM(split_samples);
DEMETER_PARAM(significance);
DEMETER_PARAM(merge_epochs);
DEMETER_PARAM(granule_bytes);
DEMETER_PARAM(horizon_ms);
DEMETER_PARAM(hysteresis_permille);
DEMETER_PARAM(rate_pages_per_s);
DEMETER_PARAM(latency_gap_ns);
DEMETER_PARAM(batch_pairs);
DEMETER_PARAM(auto_min_bytes);
DEMETER_PARAM(finer);
DEMETER_PARAM(finer_walk_ns);

static char *sampler = "auto";
module_param(sampler, charp, 0);
MODULE_PARM_DESC(sampler, "auto, pebs, ibs, touch or none");
static bool enabled;
module_param(enabled, bool, 0);
MODULE_PARM_DESC(enabled, "start managing at load");

static bool is_enabled; /* under demeter_control_lock */

/**
 * demeter_is_enabled() - is anything managed now
 *
 * Return: as read from the file "enabled".
 */
bool demeter_is_enabled(void)
{
	return READ_ONCE(is_enabled);
}

/**
 * demeter_numa_balancing_mode() - does the kernel's own balancing interfere
 *
 * Return: as in /proc/sys/kernel/numa_balancing, 0 when there is none.
 */
int demeter_numa_balancing_mode(void)
{
	const int *mode = (const int *)demeter_symbol_address("sysctl_numa_balancing_mode");

	return mode ? READ_ONCE(*mode) : 0;
}

/* Does reclaim demote by its own rules? That works against ours less than balancing. */
static bool demotes_on_reclaim(void)
{
	const bool *enabled = (const bool *)demeter_symbol_address("numa_demotion_enabled");

	return enabled && READ_ONCE(*enabled);
}

/* Where the latency gap comes from, for the log. */
static const char *gap_source(void)
{
	const unsigned int need = DEMETER_SAMPLER_LATENCY | DEMETER_SAMPLER_TIER;

	if (READ_ONCE(demeter_params.latency_gap_ns))
		return " (set)";
	return (demeter_sampler_active()->caps() & need) == need ? " until it is measured"
								 : " (default)";
}

/**
 * demeter_enable() - start managing
 *
 * Return: 0 or a negative errno, with the cause in the kernel log.
 */
int demeter_enable(void)
{
	int ret;

	lockdep_assert_held(&demeter_control_lock);
	if (is_enabled)
		return 0;
	ret = demeter_tiers_choose();
	if (ret)
		return ret;
	ret = demeter_sampler_claim();
	if (ret)
		return ret;
	demeter_model_report_start();
	ret = demeter_drain_start();
	if (ret)
		goto release;
	ret = demeter_worker_start();
	if (ret)
		goto undrain;
	ret = demeter_sampling_start();
	if (ret)
		goto unwork;
	if (demeter_numa_balancing_mode())
		pr_warn("NUMA balancing is on and will move pages back; next: echo 0 > /proc/sys/kernel/numa_balancing\n");
	if (demotes_on_reclaim())
		pr_warn("reclaim demotes pages by age, whatever their samples say; next: echo 0 > /sys/kernel/mm/numa/demotion_enabled\n");
	WRITE_ONCE(is_enabled, true);
	pr_info("enabled: sampler %s by %s, latency gap %llu ps%s\n",
		demeter_sampler_active()->name, demeter_sampler_active()->delivery(),
		demeter_latency_gap_ps(), gap_source());
	return 0;
unwork:
	demeter_worker_stop();
undrain:
	demeter_drain_stop();
release:
	demeter_model_report_stop();
	demeter_sampler_release();
	return ret;
}

/* What is left to undo once no CPU samples any more. */
static void wind_down(void)
{
	demeter_worker_stop();
	demeter_stats_settle_lost();
	demeter_drain_stop();
	demeter_model_report_stop();
	demeter_sampler_release();
	WRITE_ONCE(is_enabled, false);
	pr_info("disabled\n");
}

/**
 * demeter_disable() - stop managing; pages stay where they are
 */
void demeter_disable(void)
{
	lockdep_assert_held(&demeter_control_lock);
	if (!is_enabled)
		return;
	demeter_sampling_stop();
	wind_down();
}

/**
 * demeter_sampler_restart() - let the sampler take on new parameters
 *
 * Return: 0, or a negative errno after which nothing is managed any more.
 */
int demeter_sampler_restart(void)
{
	int ret;

	lockdep_assert_held(&demeter_control_lock);
	if (!is_enabled)
		return 0;
	demeter_sampling_stop();
	ret = demeter_sampling_start();
	if (ret) {
		pr_err("the sampler does not accept these parameters, so management stops; next: set others and enable it again\n");
		wind_down();
	}
	return ret;
}

/* Once nobody can write to a file. */
static void forget_all(void)
{
	/* Somebody may have been quick to write to the file "enabled" of a load that fails. */
	mutex_lock(&demeter_control_lock);
	demeter_disable();
	mutex_unlock(&demeter_control_lock);
	demeter_targets_exit();
	demeter_cgroups_exit();
	demeter_ledger_exit();
}

static int __init demeter_init(void)
{
	int ret;

	ret = demeter_params_check();
	if (ret)
		return ret;
	ret = demeter_symbols_resolve();
	if (ret)
		return ret;
	demeter_huge_resolve();
	demeter_binding_resolve();
	demeter_tiers_resolve();
	ret = demeter_ledger_init();
	if (ret)
		return ret;
	ret = demeter_sysfs_init();
	if (ret) {
		forget_all();
		return ret;
	}
	mutex_lock(&demeter_control_lock);
	ret = strcmp(sampler, "auto") ? demeter_sampler_choose(sampler) : 0;
	if (!ret && enabled)
		ret = demeter_enable();
	mutex_unlock(&demeter_control_lock);
	if (ret) {
		demeter_sysfs_exit();
		forget_all();
	}
	return ret;
}

static void __exit demeter_exit(void)
{
	/* First: nobody can enable it again after this. */
	demeter_sysfs_exit();
	forget_all();
}

module_init(demeter_init);
module_exit(demeter_exit);
MODULE_DESCRIPTION("Demeter: tiered memory managed inside the guest");
MODULE_LICENSE("GPL");
MODULE_VERSION(DEMETER_MODULE_VERSION);
