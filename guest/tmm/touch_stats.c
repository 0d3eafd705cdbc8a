// SPDX-License-Identifier: GPL-2.0-only
/*
 * Statistics of the sampler "touch": /sys/kernel/mm/demeter/stats/touch.
 */
#include <linux/kobject.h>

#include "touch.h"

DEFINE_PER_CPU(struct demeter_touch_cpu, demeter_touch_cpu);
struct demeter_touch_now demeter_touch_now;

/**
 * demeter_touch_sum() - one of the numbers of all CPUs together
 * @offset: where it is in struct demeter_touch_cpu; a u64
 *
 * Return: the sum since load.
 */
u64 demeter_touch_sum(size_t offset)
{
	u64 sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += READ_ONCE(*(u64 *)((void *)per_cpu_ptr(&demeter_touch_cpu, cpu) + offset));
	return sum;
}

#define STAT(_name, _value)                                                                        \
	static ssize_t _name##_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)  \
	{                                                                                          \
		return sysfs_emit(buf, "%llu\n", (u64)(_value));                                   \
	}                                                                                          \
	static struct kobj_attribute _name##_attr = __ATTR_RO(_name)
#define CPU_STAT(_name) STAT(_name, demeter_touch_sum(offsetof(struct demeter_touch_cpu, _name)))
#define NOW_STAT(_name) STAT(_name, READ_ONCE(demeter_touch_now._name))

CPU_STAT(armed);
CPU_STAT(touched);
CPU_STAT(retired);
CPU_STAT(lost_marks);
CPU_STAT(unclaimed);
CPU_STAT(left_to_kernel);
CPU_STAT(absent);
CPU_STAT(flushes);
CPU_STAT(interrupts);
CPU_STAT(busy_spaces);
CPU_STAT(spent_ns);
NOW_STAT(pages_per_s);
NOW_STAT(accesses_per_sample);
NOW_STAT(skipped_spaces);

static struct attribute *stats_attrs[] = {
	&armed_attr.attr,
	&touched_attr.attr,
	&retired_attr.attr,
	&lost_marks_attr.attr,
	&unclaimed_attr.attr,
	&left_to_kernel_attr.attr,
	&absent_attr.attr,
	&flushes_attr.attr,
	&interrupts_attr.attr,
	&busy_spaces_attr.attr,
	&spent_ns_attr.attr,
	&pages_per_s_attr.attr,
	&accesses_per_sample_attr.attr,
	&skipped_spaces_attr.attr,
	NULL,
};

const struct attribute_group demeter_touch_stats_group = { .attrs = stats_attrs };
