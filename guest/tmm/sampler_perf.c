// SPDX-License-Identifier: GPL-2.0-only
/*
 * Counters of the kernel's perf for the samplers "pebs" and "ibs".
 *
 * A counter is pinned to its CPU. perf gives a pinned counter precedence, but if
 * somebody else's pinned one holds what it needs, perf puts it into an error
 * state and leaves it there without a word: demeter_perf_restart() looks for that.
 *
 * Tier of a sample, out of perf's description of where the data came from:
 *  - persistent or CXL memory: SMEM;
 *  - local memory: the tier of the node of the CPU that sampled;
 *  - remote memory: the other tier, if that node is one of the two tiers' and no
 *    third node has memory;
 *  - all else (a cache, a fill buffer, a source that perf has no name for): not
 *    known.
 */
#define pr_fmt(fmt) "demeter: " fmt

#include <linux/math64.h>
#include <linux/mmu_notifier.h>
#include <linux/mutex.h>
#include <linux/nodemask.h>
#include <linux/percpu.h>
#include <linux/smp.h>
#include <linux/topology.h>
#include <asm/tsc.h>

#include "sampler_perf.h"
#include "tmm.h"

/* hw.interrupts of a counter that perf stopped until the next tick; private to perf. */
#define PERF_THROTTLED (~0ULL)

/**
 * struct perf_cpu - the counter of a CPU
 * @event: the counter, NULL = none; written under counters_lock
 * @attr: what to count; counters_lock, as all below
 * @handler: for its records
 * @wanted: started and not stopped, though perf may have refused to make @event
 * @sized: perf has measured the length of this CPU's PEBS records since @wanted
 * @dead: found in error and still so
 */
struct perf_cpu {
	struct perf_event *event;
	struct perf_event_attr attr;
	perf_overflow_handler_t handler;
	bool wanted;
	bool sized;
	bool dead;
};

static DEFINE_PER_CPU(struct perf_cpu, perf_cpu);

/* Protects the counters from being started, stopped and looked after at once. */
static DEFINE_MUTEX(counters_lock);

/*
 * Never enabled. While there is one counter, perf makes another without a lock
 * of CPU hotplug, which we would already be under when a CPU comes up.
 */
static struct perf_event *anchor;
static u64 lost_before_claim;
static bool two_nodes;

/**
 * demeter_perf_refuse() - say why a sampler cannot be used
 * @reason: out
 * @size: its length
 * @error: negative errno
 * @why: the cause
 * @next: what to do about it
 *
 * Return: @error.
 */
int demeter_perf_refuse(char *reason, size_t size, int error, const char *why, const char *next)
{
	snprintf(reason, size, "%s; next: %s", why, next);
	return error;
}

static u64 lost_records(void)
{
	return demeter_stats_cpu_sum(offsetof(struct demeter_cpu_stats, lost_records));
}

static void look_at_nodes(void)
{
	WRITE_ONCE(two_nodes, num_node_state(N_MEMORY) == 2);
}

/**
 * demeter_perf_claim() - find out whether perf accepts a counter
 * @attr: what to count
 * @handler: as will be used
 *
 * Return: a counter that does not run, valid until demeter_perf_release(), or
 * an error pointer, after which nothing is claimed.
 */
struct perf_event *demeter_perf_claim(struct perf_event_attr *attr, perf_overflow_handler_t handler)
{
	struct perf_event *event;

	attr->disabled = 1;
	event = perf_event_create_kernel_counter(attr, raw_smp_processor_id(), NULL, handler, NULL);
	if (IS_ERR(event))
		return event;
	anchor = event;
	lost_before_claim = lost_records();
	look_at_nodes();
	return event;
}

/**
 * demeter_perf_release() - undo demeter_perf_claim()
 */
void demeter_perf_release(void)
{
	if (anchor)
		perf_event_release_kernel(anchor);
	anchor = NULL;
}

/* Is the counter out of order? Says so once each time. counters_lock held. */
static bool is_dead(unsigned int cpu, struct perf_cpu *own)
{
	bool dead = READ_ONCE(own->event->state) < PERF_EVENT_STATE_INACTIVE;

	if (dead && !own->dead)
		pr_warn("CPU %u does not sample, as perf has given the counters to somebody else; it is tried again every epoch; next: end the other user of perf, or let it use events that are not pinned\n",
			cpu);
	else if (!dead && own->dead)
		pr_info("CPU %u samples again\n", cpu);
	own->dead = dead;
	return dead;
}

/*
 * Has perf measure how long a record of PEBS is on a CPU. It measures only when what
 * is recorded changes, and forgets the length, but not what is recorded, when the CPU
 * goes down and comes up (intel_cpuc_prepare() of Linux 6.12): it would then find
 * records in the middle of records, and warn. So a counter asks for more than ours
 * for a moment, the general registers, and never counts so far as to record them.
 * Where all records have one length it changes nothing.
 *
 * Returns whether that is done. While somebody else holds what a counter needs it
 * cannot be, and ours does not count then either.
 */
static bool records_measure(unsigned int cpu, const struct perf_cpu *own)
{
	struct perf_event_attr attr = own->attr;
	struct perf_event *event;
	bool counted;

	if (attr.precise_ip < 2)
		return true;
	attr.precise_ip = 1;
	attr.sample_period = S32_MAX;
	attr.wakeup_events = 1;
	event = perf_event_create_kernel_counter(&attr, cpu, NULL, own->handler, NULL);
	if (IS_ERR(event))
		return false;
	perf_event_enable(event);
	counted = READ_ONCE(event->state) == PERF_EVENT_STATE_ACTIVE;
	perf_event_release_kernel(event);
	return counted;
}

/* Makes and starts the counter of a CPU. counters_lock held. */
static int counter_make(unsigned int cpu, struct perf_cpu *own)
{
	struct perf_event *event;

	if (!own->sized)
		own->sized = records_measure(cpu, own);
	event = perf_event_create_kernel_counter(&own->attr, cpu, NULL, own->handler, NULL);
	if (IS_ERR(event))
		return PTR_ERR(event);
	/* Known before it records anything, so that no record is missed. */
	WRITE_ONCE(own->event, event);
	own->dead = false;
	perf_event_enable(event);
	is_dead(cpu, own);
	return 0;
}

/* Stops and frees the counter of a CPU, if there is one. counters_lock held. */
static void counter_drop(struct perf_cpu *own)
{
	struct perf_event *event = own->event;

	if (!event)
		return;
	/* Drains what is recorded; until then the records are still ours. */
	perf_event_disable(event);
	/* Before another counter can be at the same address. */
	WRITE_ONCE(own->event, NULL);
	perf_event_release_kernel(event);
}

/**
 * demeter_perf_start() - count on a CPU
 * @cpu: the CPU
 * @attr: what to count
 * @handler: called by perf for records that it does not hand to its output
 *
 * That somebody else holds the counters is no error. demeter_perf_restart() will try
 * again, also after an error.
 *
 * Return: 0 or the error of perf.
 */
int demeter_perf_start(unsigned int cpu, struct perf_event_attr *attr,
		       perf_overflow_handler_t handler)
{
	struct perf_cpu *own = per_cpu_ptr(&perf_cpu, cpu);
	int ret;

	mutex_lock(&counters_lock);
	own->attr = *attr;
	own->attr.disabled = 1;
	own->handler = handler;
	own->wanted = true;
	own->sized = false;
	ret = counter_make(cpu, own);
	mutex_unlock(&counters_lock);
	return ret;
}

/**
 * demeter_perf_stop() - undo demeter_perf_start()
 * @cpu: the CPU
 */
void demeter_perf_stop(unsigned int cpu)
{
	struct perf_cpu *own = per_cpu_ptr(&perf_cpu, cpu);

	mutex_lock(&counters_lock);
	own->wanted = false;
	counter_drop(own);
	mutex_unlock(&counters_lock);
}

/**
 * demeter_perf_restart() - restart counters that perf has put into error or refused
 */
void demeter_perf_restart(void)
{
	int cpu;

	look_at_nodes();
	mutex_lock(&counters_lock);
	for_each_possible_cpu(cpu) {
		struct perf_cpu *own = per_cpu_ptr(&perf_cpu, cpu);

		if (!own->event) {
			if (!own->wanted || counter_make(cpu, own) || own->dead)
				continue;
			pr_info("CPU %u samples now\n", cpu);
			WRITE_ONCE(demeter_stats.sampler_restarts,
				   demeter_stats.sampler_restarts + 1);
		} else if (is_dead(cpu, own)) {
			if (!own->sized)
				own->sized = records_measure(cpu, own);
			/* Leaves the error state, and enters it again if nothing has changed. */
			perf_event_enable(own->event);
			if (is_dead(cpu, own))
				continue;
			WRITE_ONCE(demeter_stats.sampler_restarts,
				   demeter_stats.sampler_restarts + 1);
		}
	}
	mutex_unlock(&counters_lock);
}

/**
 * demeter_perf_alive() - count the counters that are in order
 *
 * Return: CPUs, as of when each was looked at last.
 */
unsigned int demeter_perf_alive(void)
{
	unsigned int alive = 0;
	int cpu;

	mutex_lock(&counters_lock);
	for_each_possible_cpu(cpu) {
		const struct perf_cpu *own = per_cpu_ptr(&perf_cpu, cpu);

		alive += own->event && !own->dead;
	}
	mutex_unlock(&counters_lock);
	return alive;
}

/**
 * demeter_perf_set_period() - count so many events for each record from now on
 * @period: as in the attributes that the counters were started with
 *
 * Nothing recorded is lost: perf drains a counter that it stops for this. CPUs that
 * have the period already, as nearly always, are left alone.
 */
void demeter_perf_set_period(u64 period)
{
	int cpu;

	mutex_lock(&counters_lock);
	for_each_possible_cpu(cpu) {
		struct perf_cpu *own = per_cpu_ptr(&perf_cpu, cpu);

		if (!own->wanted || own->attr.sample_period == period)
			continue;
		if (own->event && perf_event_period(own->event, period)) {
			pr_warn_once("perf refuses a sample period of %llu; next: report it\n",
				     period);
			continue;
		}
		own->attr.sample_period = period;
	}
	mutex_unlock(&counters_lock);
}

/* Does a counter interrupt for each record, and keeps none back? */
static bool is_each(const struct perf_event_attr *attr)
{
	return attr->wakeup_events == 1;
}

/**
 * demeter_perf_set_each() - deliver each record of a CPU by an interrupt, or in batches
 * @cpu: the CPU
 * @each: by an interrupt each
 *
 * For the worker. perf settles that as it makes a counter, so it is made anew. Nothing
 * recorded is lost: perf drains a counter that it stops, and the new one is known before
 * it runs. If it cannot be made, demeter_perf_restart() tries again.
 */
void demeter_perf_set_each(unsigned int cpu, bool each)
{
	struct perf_cpu *own = per_cpu_ptr(&perf_cpu, cpu);

	mutex_lock(&counters_lock);
	if (own->wanted && is_each(&own->attr) != each) {
		own->attr.wakeup_events = each;
		counter_drop(own);
		counter_make(cpu, own);
	}
	mutex_unlock(&counters_lock);
}

/**
 * demeter_perf_is_each() - is each record of a CPU delivered by an interrupt
 * @cpu: the CPU
 *
 * Return: false also where nothing is counted.
 */
bool demeter_perf_is_each(unsigned int cpu)
{
	struct perf_cpu *own = per_cpu_ptr(&perf_cpu, cpu);
	bool each;

	mutex_lock(&counters_lock);
	each = own->wanted && is_each(&own->attr);
	mutex_unlock(&counters_lock);
	return each;
}

/**
 * demeter_perf_collect_here() - have this CPU hand over what its buffer holds
 *
 * With interrupts off, possibly under the run queue lock, not in an NMI. All that
 * perf does to a counter of a CPU it does on that CPU with interrupts off, so
 * the counter stays as it is found, and perf frees it after a grace period. As
 * perf_event_read_local(), this needs no lock of perf's.
 *
 * Return: whether there is such a buffer.
 */
bool demeter_perf_collect_here(void)
{
	struct perf_event *event = this_cpu_read(perf_cpu.event);

	if (!event || is_each(&event->attr) || READ_ONCE(event->state) != PERF_EVENT_STATE_ACTIVE ||
	    READ_ONCE(event->oncpu) != smp_processor_id())
		return false;
	event->pmu->read(event);
	return true;
}

/* Only asked, never followed: it may be freed meanwhile. */
static bool may_hold_records(int cpu, void *unused)
{
	return READ_ONCE(per_cpu(perf_cpu, cpu).event) && !demeter_cpu_is_quiet(cpu);
}

static void collect_here(void *unused)
{
	demeter_perf_collect_here();
}

/**
 * demeter_perf_collect() - have every CPU hand over what its buffer holds
 *
 * In one broadcast, and only to CPUs that can hold something: perf drains the
 * buffer when a task leaves, so one without a task of user space holds nothing.
 */
void demeter_perf_collect(void)
{
	on_each_cpu_cond(may_hold_records, collect_here, NULL, true);
}

/**
 * demeter_perf_lost() - records that perf says it could not make sense of
 *
 * Return: records since demeter_perf_claim().
 */
u64 demeter_perf_lost(void)
{
	return lost_records() - lost_before_claim;
}

/**
 * demeter_perf_sees() - do records show what an address space is accessed for
 * @mm: the address space
 *
 * Not what a VM does to its memory, on the host where it is some process's: the VM's
 * accesses have the VM's addresses, and are left out. Nor what a device does through an
 * MMU of its own. Most of such memory would look cold.
 *
 * Return: whether what has no samples there is cold.
 */
bool demeter_perf_sees(const struct mm_struct *mm)
{
	return !mm_has_notifiers((struct mm_struct *)mm);
}

/**
 * demeter_perf_is_ours() - is this the counter of this CPU
 * @event: a counter, only compared
 *
 * Safe in any context.
 *
 * Return: whether its records are for us.
 */
bool demeter_perf_is_ours(const struct perf_event *event)
{
	return event && event == raw_cpu_read(perf_cpu.event);
}

/**
 * demeter_perf_note_throttling() - count if perf is about to stop a counter
 * @event: the counter, in its overflow handler
 *
 * A counter that overflows too often in a tick is stopped until the next one.
 * What it would have recorded until then is seen by nobody.
 */
void demeter_perf_note_throttling(const struct perf_event *event)
{
	if (event->hw.interrupts == PERF_THROTTLED)
		this_cpu_inc(demeter_cpu_stats.throttled);
}

/**
 * demeter_perf_latency_ns() - latency of a sampled load
 * @data: the record
 *
 * Return: nanoseconds, at most 65535; 0 = not known.
 */
u64 demeter_perf_latency_ns(const struct perf_sample_data *data)
{
	u64 cycles;

	if (!(data->sample_flags & PERF_SAMPLE_WEIGHT_TYPE) || !tsc_khz)
		return 0;
	/* Core cycles; the rate of the TSC is the nominal one. */
	cycles = min_t(u64, data->weight.full, U32_MAX);
	return min_t(u64, div_u64(cycles * 1000000 + tsc_khz / 2, tsc_khz), U16_MAX);
}

static u16 tier_of_memory(bool remote)
{
	u16 tier = demeter_tier_of(numa_node_id());

	if (!remote || tier == DEMETER_TIERS)
		return tier;
	if (!READ_ONCE(two_nodes))
		return DEMETER_TIERS;
	return tier == DEMETER_FMEM ? DEMETER_SMEM : DEMETER_FMEM;
}

/**
 * demeter_perf_tier() - tier that served a sampled load
 * @data: the record
 *
 * The rule is at the head of this file.
 *
 * Return: enum demeter_tier, or DEMETER_TIERS when it cannot be told.
 */
u16 demeter_perf_tier(const struct perf_sample_data *data)
{
	const union perf_mem_data_src src = data->data_src;
	const u64 remote_levels = PERF_MEM_LVL_REM_RAM1 | PERF_MEM_LVL_REM_RAM2;

	if (!(data->sample_flags & PERF_SAMPLE_DATA_SRC))
		return DEMETER_TIERS;
	switch (src.mem_lvl_num) {
	case PERF_MEM_LVLNUM_PMEM:
	case PERF_MEM_LVLNUM_CXL:
		return DEMETER_SMEM;
	case PERF_MEM_LVLNUM_RAM:
		return tier_of_memory(src.mem_remote || src.mem_lvl & remote_levels);
	}
	if (src.mem_lvl & remote_levels)
		return tier_of_memory(true);
	return src.mem_lvl & PERF_MEM_LVL_LOC_RAM ? tier_of_memory(false) : DEMETER_TIERS;
}
