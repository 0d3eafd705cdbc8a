// SPDX-License-Identifier: GPL-2.0-only
/*
 * Sampler: which one, on which CPUs, and what becomes of it.
 *
 * demeter_sampler_choose() only tries; demeter_sampler_claim() takes it while
 * management is on. It runs on every CPU that is online, also on those that come
 * later, and is looked after once a tick.
 */
#define pr_fmt(fmt) "demeter: " fmt

#include <linux/cpuhotplug.h>
#include <linux/mm.h>
#include <demeter_ledger.h>

#include "finer.h"
#include "tmm.h"

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
	.source = DEMETER_LEDGER_NOTHING,
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
static enum cpuhp_state hotplug_state;

/* CPUs on which the sampler started since demeter_sampling_start(), and its last error. */
static atomic_t nr_started;
static int start_error;

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
 * demeter_sampler_source() - what samples now, as the ledger tells it
 *
 * Return: DEMETER_LEDGER_*.
 */
u32 demeter_sampler_source(void)
{
	const struct demeter_sampler_ops *ops = READ_ONCE(active);

	return ops ? ops->source : DEMETER_LEDGER_UNTOLD;
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
 * For the worker, once a tick.
 */
void demeter_sampler_look_after(void)
{
	if (active->tick)
		active->tick();
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
	if (demeter_is_enabled())
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

/**
 * demeter_sampler_claim() - claim the sampler that was chosen, or the first that works
 *
 * Return: 0 or a negative errno, with the causes in the kernel log.
 */
int demeter_sampler_claim(void)
{
	char reason[DEMETER_REASON_BYTES];
	int i, ret = -ENODEV;

	lockdep_assert_held(&demeter_control_lock);
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

/**
 * demeter_sampler_release() - undo demeter_sampler_claim(), once nobody samples or drains
 */
void demeter_sampler_release(void)
{
	const struct demeter_sampler_ops *ops = active;

	WRITE_ONCE(active, NULL);
	ops->release();
	WRITE_ONCE(demeter_stats.sampler_dead_cpus, 0);
}

static int sampler_cpu_online(unsigned int cpu)
{
	int ret = active->start(cpu, demeter_finer_period(demeter_pacing_period()),
				READ_ONCE(demeter_params.latency_threshold_ns));

	if (ret) {
		pr_warn("CPU %u does not sample, as sampler %s failed there with error %d; it is tried again every tick; next: see who uses the counters\n",
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

/**
 * demeter_sampling_start() - sample on every CPU, with the parameters as they are now
 *
 * Return: 0, or a negative errno if no CPU samples.
 */
int demeter_sampling_start(void)
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

/**
 * demeter_sampling_stop() - undo it; what was recorded has been handed over
 */
void demeter_sampling_stop(void)
{
	cpuhp_remove_state(hotplug_state);
}
