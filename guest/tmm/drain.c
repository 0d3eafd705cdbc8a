// SPDX-License-Identifier: GPL-2.0-only
/*
 * Drain: from the samplers into the channel, and out of it for the worker.
 *
 * A sampler hands each sample over as it learns of it, with the address space
 * that it is of: in an NMI, under the run queue lock as a task leaves its CPU,
 * or in process context. It is tagged with the number of that space here, or
 * counted as stray where that is not managed. The channel takes samples of all
 * CPUs at once without a lock, and drops what the worker is too slow for.
 *
 * Samplers whose hardware keeps records back are told of every task that leaves
 * its CPU (@leave), so that what it did is not taken for the next one's. The same
 * hook on sched_switch keeps the worker's own clock.
 */
#define pr_fmt(fmt) "demeter: " fmt

#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/sched/clock.h>
#include <linux/slab.h>
#include <linux/tracepoint.h>

#include "symbols.h"
#include "tiers.h"
#include "tmm.h"

/* Room for what a CPU may record in an epoch, within limits that fit a small VM. */
#define SLOTS_PER_CPU 8192u
#define SLOTS_MAX     (512u * 1024)

static struct tracepoint *switch_tracepoint;
static struct demeter_channel channel;
static struct demeter_channel_slot *slots;

/*
 * The worker's own CPU clock: local_clock() less the time it was off its CPU.
 * The stages sleep and are preempted; wall time would charge them for others.
 * Written by the context switch while the worker does not run.
 */
static struct task_struct *worker_task;
static u64 worker_left_ns;
static u64 worker_off_ns;

/* A kernel thread runs there, or nothing; false until the first switch. */
static DEFINE_PER_CPU(bool, cpu_quiet);

static void probe_sched_switch(void *data, bool preempt, struct task_struct *prev,
			       struct task_struct *next, unsigned int prev_state)
{
	const struct demeter_sampler_ops *ops = demeter_sampler_active();
	const struct task_struct *worker = READ_ONCE(worker_task);

	if (prev == worker)
		worker_left_ns = local_clock();
	else if (next == worker)
		worker_off_ns += local_clock() - worker_left_ns;
	this_cpu_write(cpu_quiet, !next->mm);
	this_cpu_inc(demeter_cpu_stats.switches);
	if (ops && ops->leave)
		ops->leave(prev);
}

/**
 * demeter_cpu_is_quiet() - has a CPU done nothing for user space since its last switch
 * @cpu: the CPU
 *
 * Return: false also when that is not known.
 */
bool demeter_cpu_is_quiet(unsigned int cpu)
{
	return per_cpu(cpu_quiet, cpu);
}

/**
 * demeter_sampler_push() - hand over one sample of an address space
 * @mm: the address space
 * @access: the sample
 *
 * Safe in any context, NMI included.
 */
void demeter_sampler_push(const struct mm_struct *mm, const struct demeter_access *access)
{
	u64 start_ns = local_clock();
	struct demeter_sample sample = {
		.gva = access->gva,
		.latency_ns = access->latency_ns,
		.tier = access->tier,
		.more = access->more,
	};

	if (demeter_targets_space_of(mm, &sample.space))
		demeter_channel_push(&channel, &sample);
	else
		this_cpu_add(demeter_cpu_stats.stray_samples, 1 + access->more);
	this_cpu_add(demeter_cpu_stats.drain_ns, local_clock() - start_ns);
}

/**
 * demeter_drain_pop() - take one sample out of the channel
 * @sample: out
 *
 * For the worker alone.
 *
 * Return: false when the channel is empty.
 */
bool demeter_drain_pop(struct demeter_sample *sample)
{
	return demeter_channel_pop(&channel, sample);
}

/**
 * demeter_drain_discard() - drop what is queued
 *
 * For who has stopped the worker and the sampler.
 *
 * Return: samples dropped.
 */
u64 demeter_drain_discard(void)
{
	struct demeter_sample sample;
	u64 nr = 0;

	while (slots && demeter_channel_pop(&channel, &sample))
		nr += 1 + sample.more;
	return nr;
}

/**
 * demeter_drain_lost() - samples dropped because the channel was full
 *
 * Return: samples since demeter_drain_start().
 */
u64 demeter_drain_lost(void)
{
	return slots ? demeter_channel_lost(&channel) : 0;
}

/**
 * demeter_drain_watch() - keep a CPU clock for a task
 * @worker: a task that does not run yet
 */
void demeter_drain_watch(struct task_struct *worker)
{
	worker_off_ns = 0;
	worker_left_ns = local_clock();
	WRITE_ONCE(worker_task, worker);
}

/**
 * demeter_worker_clock() - CPU time of the watched task, for itself to read
 *
 * Any other task reads a clock that goes on while it waits, too.
 *
 * Return: nanoseconds from an arbitrary start.
 */
u64 demeter_worker_clock(void)
{
	u64 now;

	if (current != READ_ONCE(worker_task))
		return local_clock();
	/* A switch between the two reads would be counted by one of them only. */
	preempt_disable();
	now = local_clock() - READ_ONCE(worker_off_ns);
	preempt_enable();
	return now;
}

/**
 * demeter_drain_start() - make the channel, and let samplers push into it from now on
 *
 * Return: 0 or a negative errno.
 */
int demeter_drain_start(void)
{
	u32 nr = clamp(SLOTS_PER_CPU * num_possible_cpus(), SLOTS_PER_CPU, SLOTS_MAX);
	int ret;

	switch_tracepoint = demeter_tracepoint_find("sched_switch");
	if (!switch_tracepoint) {
		pr_err("no tracepoint sched_switch in this kernel; next: use one with CONFIG_TRACEPOINTS\n");
		return -EOPNOTSUPP;
	}
	nr = roundup_pow_of_two(nr);
	slots = demeter_table_alloc(nr, sizeof(*slots));
	if (!slots)
		return -ENOMEM;
	ret = demeter_channel_init(&channel, slots, nr);
	if (!ret)
		ret = tracepoint_probe_register(switch_tracepoint, probe_sched_switch, NULL);
	if (ret) {
		kvfree(slots);
		slots = NULL;
	}
	return ret;
}

/**
 * demeter_drain_stop() - take no more samples and drop what is queued
 *
 * The samplers and the worker are stopped before.
 */
void demeter_drain_stop(void)
{
	int cpu;

	tracepoint_probe_unregister(switch_tracepoint, probe_sched_switch, NULL);
	tracepoint_synchronize_unregister();
	WRITE_ONCE(worker_task, NULL);
	for_each_possible_cpu(cpu)
		per_cpu(cpu_quiet, cpu) = false;
	kvfree(slots);
	slots = NULL;
}
