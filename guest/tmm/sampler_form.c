// SPDX-License-Identifier: GPL-2.0-only
/*
 * In what form the records of "pebs" are delivered, CPU by CPU, as core/delivery.c
 * decides once a tick from what was counted and measured:
 *
 *  - in batches (large PEBS): at every context switch perf stops the PMU, empties its
 *    buffer and starts it again as a task leaves, and stops and starts it once more as
 *    the next arrives. Each of these accesses some five registers, in a VM mostly an
 *    exit each;
 *  - each by an interrupt (wakeup_events = 1): perf does nothing at a switch.
 *
 * What a switch costs is measured where the worker runs, by having perf read the
 * counter while nothing is in its buffer: one stop and start, of the two. What an
 * interrupt takes perf tells itself (perf_hook.c); until there was one it is estimated
 * from the former, as the registers that it accesses are twice as many at most.
 *
 * If the cheaper form takes more than a part of the time of the CPUs that sample, the
 * period is made longer, by way of the pace (pacing.c).
 */
#include <linux/irqflags.h>
#include <linux/ktime.h>
#include <linux/percpu.h>
#include <linux/sched/clock.h>
#include <linux/sysfs.h>
#include <linux/time64.h>

#include <demeter/delivery.h>
#include <demeter/pace.h>

#include "finer.h"
#include "sampler_perf.h"
#include "tmm.h"

/* What the two halves of a switch take, by what one does. */
#define READS_PER_SWITCH    2u
/* Estimate of what an interrupt takes, likewise. */
#define READS_PER_INTERRUPT 2u
/* An NMI's own way in and out, in a VM also into the guest, which perf cannot time. A choice. */
#define NMI_NS		    1000u
/* Part of a CPU's time that delivery may take before samples become sparser: 1/64. */
#define ROOM_SHIFT	    6u
/* A new measurement counts for so much of the mean, as a power of two. */
#define MEAN_SHIFT	    2u
/* What was not measured for so many ticks is measured anew: it may have been wrong. */
#define STALE_TICKS	    128u

/**
 * struct form_cpu - a CPU
 * @delivery: see there
 * @switches: counted up to the last tick, as all below
 * @records: likewise
 * @throttled: likewise
 * @timed_interrupts: likewise
 * @interrupt_ns: likewise
 */
struct form_cpu {
	struct demeter_delivery delivery;
	u64 switches;
	u64 records;
	u64 throttled;
	u64 timed_interrupts;
	u64 interrupt_ns;
};

/* All of this is the worker's own; others read single words of it. */
static DEFINE_PER_CPU(struct form_cpu, form_cpu);
/* What perf's read of an empty buffer takes, and an interrupt; 0 = not known. */
static u64 read_ns;
static u64 interrupt_ns;
static u32 least_shift;
/* What a record took in the last tick that had any, by interrupt or in a batch, on average. */
static u64 record_ns;
static u64 changes;
/* Ticks since either was measured. */
static u32 read_ticks;
static u32 interrupt_ticks;
/* When the last tick was over. */
static u64 last_tick_ns;

static void learn(u64 *mean, u64 value)
{
	u64 old = *mean;

	/* The clock runs on while a host has taken the CPU away. */
	if (old)
		value = min(value, 2 * old);

	WRITE_ONCE(*mean, old ? old - (old >> MEAN_SHIFT) + (value >> MEAN_SHIFT) : value);
}

/* By a read on this CPU, if its records come in batches and there is none. */
static void measure_read(void)
{
	u64 before, start_ns, took_ns;
	unsigned long flags;
	bool empty;

	local_irq_save(flags);
	before = this_cpu_read(demeter_cpu_stats.traced_records);
	start_ns = local_clock();
	empty = demeter_perf_collect_here();
	took_ns = local_clock() - start_ns;
	empty = empty && before == this_cpu_read(demeter_cpu_stats.traced_records);
	local_irq_restore(flags);
	read_ticks++;
	if (empty) {
		learn(&read_ns, max(took_ns, 1ull));
		read_ticks = 0;
	}
}

/*
 * Nothing times a form that no CPU is in: what was learned of it, be it wrong, would stay.
 * Interrupts are estimated again, and the worker's CPU comes back to batches for a while.
 */
static void forget_stale(void)
{
	struct form_cpu *form;
	int cpu;

	if (++interrupt_ticks > STALE_TICKS)
		WRITE_ONCE(interrupt_ns, 0);
	if (read_ticks <= STALE_TICKS)
		return;
	cpu = raw_smp_processor_id();
	form = per_cpu_ptr(&form_cpu, cpu);
	if (!demeter_perf_is_each(cpu))
		return;
	read_ticks = 0;
	demeter_delivery_try_batches(&form->delivery);
	demeter_perf_set_each(cpu, false);
	WRITE_ONCE(changes, changes + 1);
}

static struct demeter_delivery_costs costs(void)
{
	u64 took_ns = READ_ONCE(interrupt_ns) ?: READ_ONCE(read_ns) * READS_PER_INTERRUPT;

	return (struct demeter_delivery_costs){
		.switch_ns = READ_ONCE(read_ns) * READS_PER_SWITCH,
		.record_ns = took_ns ? took_ns + NMI_NS : 0,
	};
}

static u64 passed(u64 *before, u64 now)
{
	u64 delta = now - *before;

	*before = now;
	return delta;
}

/* What a CPU has done since it was last looked at. */
static struct demeter_delivery_tick look(unsigned int cpu, struct form_cpu *form, u64 tick_ns)
{
	const struct demeter_cpu_stats *stats = per_cpu_ptr(&demeter_cpu_stats, cpu);
	u64 timed, took_ns;

	timed = passed(&form->timed_interrupts, READ_ONCE(stats->timed_interrupts));
	took_ns = passed(&form->interrupt_ns, READ_ONCE(stats->interrupt_ns));
	if (timed) {
		learn(&interrupt_ns, max(div64_u64(took_ns, timed), 1ull));
		interrupt_ticks = 0;
	}
	return (struct demeter_delivery_tick){
		.tick_ns = tick_ns,
		.switches = passed(&form->switches, READ_ONCE(stats->switches)),
		.records = passed(&form->records, READ_ONCE(stats->traced_records) +
							  READ_ONCE(stats->handled_records)),
		.shift = demeter_pacing_sparse(),
		.throttled = passed(&form->throttled, READ_ONCE(stats->throttled)),
	};
}

/**
 * demeter_form_start() - begin with batches on all CPUs
 *
 * For who claims the sampler, before the worker and the counters start. What was
 * learned of costs stays.
 */
void demeter_form_start(void)
{
	int cpu;

	for_each_possible_cpu(cpu) {
		struct form_cpu *form = per_cpu_ptr(&form_cpu, cpu);

		look(cpu, form, 0);
		form->delivery = (struct demeter_delivery){};
	}
	WRITE_ONCE(least_shift, 0);
	record_ns = 0;
	read_ticks = 0;
	interrupt_ticks = 0;
	last_tick_ns = ktime_get_ns();
}

/**
 * demeter_form_tick() - a tick is over: choose the form of each CPU, and how sparse
 *
 * For the worker, while perf's output is traced.
 */
void demeter_form_tick(void)
{
	u64 cost_ns[DEMETER_PACE_MAX_SHIFT + 1] = {};
	struct demeter_delivery_costs known;
	/* As long as it really was: an epoch that moves much is late. */
	u64 now_ns = ktime_get_ns(), tick_ns = now_ns - last_tick_ns, room_ns = 0;
	u64 records = 0, each_ns = 0;
	u32 shift;
	int cpu;

	last_tick_ns = now_ns;
	forget_stale();
	measure_read();
	known = costs();
	for_each_possible_cpu(cpu) {
		struct form_cpu *form = per_cpu_ptr(&form_cpu, cpu);
		struct demeter_delivery_tick tick = look(cpu, form, tick_ns);

		/* A CPU that came up since, or was given other parameters, has begun anew. */
		form->delivery.each = demeter_perf_is_each(cpu);
		if (demeter_delivery_tick(&form->delivery, &known, &tick)) {
			demeter_perf_set_each(cpu, form->delivery.each);
			WRITE_ONCE(changes, changes + 1);
		}
		if (!tick.records)
			continue;
		records += tick.records;
		each_ns += tick.records * (form->delivery.each ? known.record_ns : 0);
		room_ns += tick.tick_ns >> ROOM_SHIFT;
		for (shift = 0; shift <= DEMETER_PACE_MAX_SHIFT; shift++)
			cost_ns[shift] += demeter_delivery_cost_ns(&form->delivery, &known, shift);
	}
	if (records)
		record_ns = div64_u64(each_ns, records);
	/* Denser ones were asked for (finer.c), and say nothing of what is usual. */
	if (!demeter_finer_is_denser())
		WRITE_ONCE(least_shift, demeter_delivery_least_shift(cost_ns, room_ns, least_shift,
								     DEMETER_PACE_MAX_SHIFT));
}

/**
 * demeter_form_least_shift() - how sparse samples have to be so as not to be dear
 *
 * Return: as a power of two.
 */
u32 demeter_form_least_shift(void)
{
	return READ_ONCE(least_shift);
}

/**
 * demeter_form_record_ns() - what interrupts make of the cost of a record
 *
 * For the worker.
 *
 * Return: on average over records as they came of late; 0 where they come in batches.
 */
u64 demeter_form_record_ns(void)
{
	return record_ns;
}

static u64 each_cpus(void)
{
	u64 nr = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		nr += demeter_perf_is_each(cpu);
	return nr;
}

#define FORM_STAT(_name, _value)                                                                   \
	static ssize_t _name##_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)  \
	{                                                                                          \
		return sysfs_emit(buf, "%llu\n", (u64)(_value));                                   \
	}                                                                                          \
	static struct kobj_attribute _name##_attr = __ATTR_RO(_name)

FORM_STAT(interrupt_cpus, each_cpus());
FORM_STAT(form_changes, READ_ONCE(changes));
FORM_STAT(switch_cost_ns, costs().switch_ns);
FORM_STAT(record_cost_ns, costs().record_ns);
FORM_STAT(least_ticks, 1u << demeter_form_least_shift());

static struct attribute *form_attrs[] = { &interrupt_cpus_attr.attr, &form_changes_attr.attr,
					  &switch_cost_ns_attr.attr, &record_cost_ns_attr.attr,
					  &least_ticks_attr.attr,    NULL };

const struct attribute_group demeter_form_stats_group = { .attrs = form_attrs };
