/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Samplers: where sampled accesses come from.
 *
 * A backend hands each sample over with demeter_sampler_push() from whatever
 * context it learns of it, or visits address spaces by itself and hands over what
 * it makes of them once a tick (@tick).
 *
 * sampler.c chooses the backend, starts it on all CPUs, and looks after it.
 */
#ifndef DEMETER_SAMPLER_H
#define DEMETER_SAMPLER_H

#include <linux/types.h>

struct mm_struct;
struct vm_area_struct;
struct task_struct;

/* Long enough for a cause and a next step. */
#define DEMETER_REASON_BYTES 256

/**
 * struct demeter_access - one sampled access, or several of the same place, as a backend
 *	sees it
 * @gva: virtual address
 * @latency_ns: measured latency, 0 = not known
 * @tier: enum demeter_tier, or DEMETER_TIERS when not known
 * @more: how many it stands for beside itself; 0 of those who can tell pages apart
 */
struct demeter_access {
	u64 gva;
	u16 latency_ns;
	u8 tier;
	u8 more;
};

/* What a backend can tell about a sample. */
#define DEMETER_SAMPLER_LATENCY 0x1u
#define DEMETER_SAMPLER_TIER	0x2u
/* Its samples are single accesses, so that they tell base pages apart. */
#define DEMETER_SAMPLER_PAGE	0x4u

/**
 * struct demeter_sampler_ops - a sampler backend
 * @name: as written to the file "sampler"
 * @source: the same as the ledger tells it, DEMETER_LEDGER_*
 * @probe: find the hardware and claim it; on failure say in @reason what is
 *	missing and what to do about it, and return a negative errno
 * @release: undo @probe
 * @start: sample on @cpu; called on that CPU, in process context
 * @stop: undo @start, and hand over what was recorded until now; may be called
 *	for a CPU whose @start failed or was never called
 * @leave: @task, which is still the current one, is about to leave this CPU; push
 *	what nobody else would hand over before the next one runs; called with
 *	interrupts off and under the run queue lock. NULL when nothing can be left.
 * @caps: DEMETER_SAMPLER_*, of what was claimed
 * @delivery: how samples get here, one word for people to read
 * @accesses_per_sample: accesses that one sample stands for, when the
 *	parameter sample_period has this value
 * @set_period: go on with this value of sample_period, on all CPUs, without losing
 *	a sample; called in process context without demeter_lock, also while CPUs
 *	come and go, and mostly with the value that is in force. NULL when what a
 *	sample stands for does not follow the parameter.
 * @follows_pace: samples are made sparser by demeter_pacing_sparse() without being told, and
 *	their number follows what is known, not how much is accessed
 * @least_shift: log2 of how sparse samples have to be at least so as not to be dear;
 *	for the worker. NULL when their cost is not known.
 * @record_ns: CPU time that a record takes, as of late; 0 or NULL when that is not known
 * @tick: start again what died on its own, and push what still lies in buffers
 *	of the hardware, or what was learned from visits; called once a tick, of
 *	which an epoch is one or several, by the worker alone, without demeter_lock,
 *	also while CPUs come and go, and between two @start of the same CPU
 * @alive: CPUs that sample now; changes nothing; called in process context, by
 *	the worker and by whoever has just started sampling, possibly at once
 * @lost: samples lost since @probe before they were pushed
 * @sees: is this address space sampled; what is not would look cold, and is left
 *	alone. NULL when all are.
 * @sees_mapping: is this mapping sampled, of those that are managed; called under its
 *	mmap_lock. What is not is left where it is. NULL when all are.
 *
 * @probe, @release, @start and @stop are serialised by demeter_control_lock and
 * CPU hotplug. @caps to @lost are only called between @probe and @release. Only
 * @leave, @set_period, @least_shift, @record_ns, @tick, @sees and @sees_mapping may be
 * NULL.
 */
struct demeter_sampler_ops {
	const char *name;
	u32 source;
	int (*probe)(char *reason, size_t size);
	void (*release)(void);
	int (*start)(unsigned int cpu, u64 period, u64 threshold_ns);
	void (*stop)(unsigned int cpu);
	void (*leave)(const struct task_struct *task);
	unsigned int (*caps)(void);
	const char *(*delivery)(void);
	u64 (*accesses_per_sample)(u64 period);
	void (*set_period)(u64 period);
	bool follows_pace;
	u32 (*least_shift)(void);
	u64 (*record_ns)(void);
	void (*tick)(void);
	unsigned int (*alive)(void);
	u64 (*lost)(void);
	bool (*sees)(const struct mm_struct *mm);
	bool (*sees_mapping)(const struct vm_area_struct *vma);
};

extern const struct demeter_sampler_ops demeter_sampler_pebs;
extern const struct demeter_sampler_ops demeter_sampler_ibs;
extern const struct demeter_sampler_ops demeter_sampler_touch;

/**
 * demeter_sampler_push() - hand over one sample of an address space
 * @mm: the address space
 * @access: the sample
 *
 * Safe in any context, NMI included.
 */
void demeter_sampler_push(const struct mm_struct *mm, const struct demeter_access *access);

#endif /* DEMETER_SAMPLER_H */
