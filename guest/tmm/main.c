// SPDX-License-Identifier: GPL-2.0-only
/*
 * Main: load and unload, on and off, and which sampler.
 *
 * Loading changes nothing but making /sys/kernel/mm/demeter. Enabling claims
 * the sampler, hooks the context switch, starts the worker, and starts sampling
 * last; disabling undoes it in reverse. Targets stay across both.
 */
#define pr_fmt(fmt) "demeter: " fmt

#include <linux/cpuhotplug.h>
#include <linux/init.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/rcupdate.h>

#include "huge.h"
#include "binding.h"
#include "finer.h"
#include "ledger.h"
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
	.batch_pairs = 128,
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

/* A source of no samples: to try the rest, or to stop sampling for a while. */
static int none_probe(char *reason, size_t size)
{
	return 0;
}

static void none_release(void)
{
}

static int none_start(unsigned int cpu, u64 period, u64 threshold_ns)
{
	return 0;
}

static void none_stop(unsigned int cpu)
{
}

static unsigned int none_caps(void)
{
	return 0;
}

static const char *none_delivery(void)
{
	return "none";
}

static u64 none_accesses_per_sample(u64 period)
{
	return period;
}

static unsigned int none_alive(void)
{
	return num_online_cpus();
}

static u64 none_lost(void)
{
	return 0;
}

static const struct demeter_sampler_ops sampler_none = {
	.name = "none",
	.probe = none_probe,
	.release = none_release,
	.start = none_start,
	.stop = none_stop,
	.caps = none_caps,
	.delivery = none_delivery,
	.accesses_per_sample = none_accesses_per_sample,
	.alive = none_alive,
	.lost = none_lost,
};

/* In the order in which "auto" tries them; "none" must be asked for. */
static const struct demeter_sampler_ops *const samplers[] = {
	&demeter_sampler_pebs,
	&demeter_sampler_ibs,
	&demeter_sampler_touch,
	&sampler_none,
};

#define SAMPLERS_AUTO 3

/* Under demeter_control_lock; the drain reads @active with READ_ONCE(). */
static const struct demeter_sampler_ops *active;
static const struct demeter_sampler_ops *choice; /* NULL is "auto" */
static bool is_enabled;
static enum cpuhp_state hotplug_state;

/* CPUs on which the sampler started since sampling_start(), and its last error. */
static atomic_t nr_started;
static int start_error;

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
 * demeter_sampler_active() - the sampler in use
 *
 * Return: the sampler, or NULL while disabled.
 */
const struct demeter_sampler_ops *demeter_sampler_active(void)
{
	return READ_ONCE(active);
}

/**
 * demeter_sampler_choice() - name of the sampler in use, or to be used
 *
 * Return: the name.
 */
const char *demeter_sampler_choice(void)
{
	const struct demeter_sampler_ops *ops = READ_ONCE(active) ?: READ_ONCE(choice);

	return ops ? ops->name : "auto";
}

/**
 * demeter_sampler_delivery() - how samples get here
 *
 * Return: a word, "none" while disabled.
 */
const char *demeter_sampler_delivery(void)
{
	const struct demeter_sampler_ops *ops;
	const char *word;

	mutex_lock(&demeter_control_lock);
	ops = active ?: &sampler_none;
	word = ops->delivery();
	mutex_unlock(&demeter_control_lock);
	return word;
}

/**
 * demeter_accesses_per_sample() - accesses that one sample stands for
 *
 * For the worker.
 *
 * Return: as the sampler in use understands the parameter sample_period, at the
 * present pace.
 */
u64 demeter_accesses_per_sample(void)
{
	return active->accesses_per_sample(demeter_pacing_period());
}

/**
 * demeter_sampler_sees() - is an address space sampled
 * @mm: the address space
 *
 * For the worker.
 *
 * Return: whether what was not sampled there is cold.
 */
bool demeter_sampler_sees(const struct mm_struct *mm)
{
	return !active->sees || active->sees(mm);
}

static void count_dead_cpus(void)
{
	unsigned int alive = active->alive(), online = num_online_cpus();

	WRITE_ONCE(demeter_stats.sampler_dead_cpus, online > alive ? online - alive : 0);
}

/**
 * demeter_sampler_look_after() - restart what died, count what stays dead
 *
 * For the worker, once an epoch.
 */
void demeter_sampler_look_after(void)
{
	if (active->epoch)
		active->epoch();
	count_dead_cpus();
}

static int sampler_probe(const struct demeter_sampler_ops *ops)
{
	char reason[DEMETER_REASON_BYTES] = "";
	int ret = ops->probe(reason, sizeof(reason));

	if (ret)
		pr_err("sampler %s refused: %s\n", ops->name, reason);
	return ret;
}

/**
 * demeter_sampler_choose() - choose the sampler to be used when enabled
 * @name: auto, pebs, ibs, touch or none
 *
 * Tells at once whether it can be used.
 *
 * Return: 0, -EBUSY while enabled, -EINVAL, or the error of the sampler.
 */
int demeter_sampler_choose(const char *name)
{
	const struct demeter_sampler_ops *ops = NULL;
	int i, ret;

	lockdep_assert_held(&demeter_control_lock);
	for (i = 0; i < ARRAY_SIZE(samplers); i++)
		if (!strcmp(name, samplers[i]->name))
			ops = samplers[i];
	if (!ops && strcmp(name, "auto")) {
		pr_err("there is no sampler \"%s\"; next: use auto, pebs, ibs, touch or none\n",
		       name);
		return -EINVAL;
	}
	if (is_enabled)
		return -EBUSY;
	if (ops) {
		ret = sampler_probe(ops);
		if (ret)
			return ret;
		ops->release();
	}
	WRITE_ONCE(choice, ops);
	return 0;
}

static int sampler_claim(void)
{
	char reason[DEMETER_REASON_BYTES];
	int i, ret = -ENODEV;

	if (choice) {
		ret = sampler_probe(choice);
		if (!ret)
			WRITE_ONCE(active, choice);
		return ret;
	}
	for (i = 0; i < SAMPLERS_AUTO; i++) {
		*reason = '\0';
		ret = samplers[i]->probe(reason, sizeof(reason));
		if (!ret) {
			WRITE_ONCE(active, samplers[i]);
			return 0;
		}
		pr_warn("sampler %s cannot be used: %s\n", samplers[i]->name, reason);
	}
	pr_err("no sampler can be used on this machine, so nothing would be learned; next: see the lines above\n");
	return ret;
}

static int sampler_cpu_online(unsigned int cpu)
{
	int ret = active->start(cpu, demeter_finer_period(demeter_pacing_period()),
				READ_ONCE(demeter_params.latency_threshold_ns));

	if (ret) {
		pr_warn("CPU %u does not sample, as sampler %s failed there with error %d; it is tried again every epoch; next: see who uses the counters\n",
			cpu, active->name, ret);
		WRITE_ONCE(start_error, ret);
	} else {
		atomic_inc(&nr_started);
	}
	/* That nothing is learned from a CPU is no reason to keep it from coming up. */
	return 0;
}

static int sampler_cpu_offline(unsigned int cpu)
{
	active->stop(cpu);
	return 0;
}

static int sampling_start(void)
{
	int ret;

	atomic_set(&nr_started, 0);
	ret = cpuhp_setup_state(CPUHP_AP_ONLINE_DYN, "mm/demeter:online", sampler_cpu_online,
				sampler_cpu_offline);
	if (ret < 0)
		return ret;
	hotplug_state = ret;
	if (!atomic_read(&nr_started)) {
		pr_err("sampler %s could be started on no CPU; next: see who uses the counters, or choose other parameters\n",
		       active->name);
		cpuhp_remove_state(hotplug_state);
		return READ_ONCE(start_error);
	}
	count_dead_cpus();
	return 0;
}

static void sampling_stop(void)
{
	cpuhp_remove_state(hotplug_state);
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
	return (active->caps() & need) == need ? " until it is measured" : " (default)";
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
	ret = sampler_claim();
	if (ret)
		return ret;
	demeter_model_report_start();
	ret = demeter_drain_start();
	if (ret)
		goto release;
	ret = demeter_worker_start();
	if (ret)
		goto undrain;
	ret = sampling_start();
	if (ret)
		goto unwork;
	if (demeter_numa_balancing_mode())
		pr_warn("NUMA balancing is on and will move pages back; next: echo 0 > /proc/sys/kernel/numa_balancing\n");
	if (demotes_on_reclaim())
		pr_warn("reclaim demotes pages by age, whatever their samples say; next: echo 0 > /sys/kernel/mm/numa/demotion_enabled\n");
	WRITE_ONCE(is_enabled, true);
	pr_info("enabled: sampler %s by %s, latency gap %llu ps%s\n", active->name,
		active->delivery(), demeter_latency_gap_ps(), gap_source());
	return 0;
unwork:
	demeter_worker_stop();
undrain:
	demeter_drain_stop();
release:
	demeter_model_report_stop();
	active->release();
	WRITE_ONCE(active, NULL);
	return ret;
}

/* What is left to undo once no CPU samples any more. */
static void wind_down(void)
{
	const struct demeter_sampler_ops *ops = active;

	demeter_worker_stop();
	demeter_stats_settle_lost();
	demeter_drain_stop();
	demeter_model_report_stop();
	WRITE_ONCE(active, NULL);
	ops->release();
	WRITE_ONCE(demeter_stats.sampler_dead_cpus, 0);
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
	sampling_stop();
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
	sampling_stop();
	ret = sampling_start();
	if (ret) {
		pr_err("the sampler does not accept these parameters, so management stops; next: set others and enable it again\n");
		wind_down();
	}
	return ret;
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
		/* Somebody may have been quick to write to what there was. */
		demeter_targets_exit();
		demeter_cgroups_exit();
		demeter_ledger_exit();
		return ret;
	}
	mutex_lock(&demeter_control_lock);
	ret = strcmp(sampler, "auto") ? demeter_sampler_choose(sampler) : 0;
	if (!ret && enabled)
		ret = demeter_enable();
	mutex_unlock(&demeter_control_lock);
	if (ret) {
		demeter_sysfs_exit();
		/* Somebody may have been quick to write to the file "enabled". */
		mutex_lock(&demeter_control_lock);
		demeter_disable();
		mutex_unlock(&demeter_control_lock);
		demeter_targets_exit();
		demeter_cgroups_exit();
		demeter_ledger_exit();
	}
	return ret;
}

static void __exit demeter_exit(void)
{
	/* First: nobody can enable it again after this. */
	demeter_sysfs_exit();
	mutex_lock(&demeter_control_lock);
	demeter_disable();
	mutex_unlock(&demeter_control_lock);
	demeter_targets_exit();
	demeter_cgroups_exit();
	demeter_ledger_exit();
}

module_init(demeter_init);
module_exit(demeter_exit);
MODULE_DESCRIPTION("Demeter: tiered memory managed inside the guest");
MODULE_LICENSE("GPL");
MODULE_VERSION(DEMETER_MODULE_VERSION);
