/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Samplers: where sampled accesses come from.
 *
 * A backend keeps its samples until they are drained (@drain), or hands each one
 * over at once with demeter_sampler_push() from whatever context it learns of it,
 * or visits address spaces by itself and hands over what it makes of them once an
 * epoch (@alive).
 */
#ifndef DEMETER_SAMPLER_H
#define DEMETER_SAMPLER_H

#include <linux/types.h>

struct mm_struct;
struct task_struct;

/* Long enough for a cause and a next step. */
#define DEMETER_REASON_BYTES 256

/**
 * struct demeter_access - one sampled access, as a backend sees it
 * @gva: virtual address
 * @latency_ns: measured latency, 0 = not known
 * @tier: enum demeter_tier, or DEMETER_TIERS when not known
 */
struct demeter_access {
	u64 gva;
	u16 latency_ns;
	u16 tier;
};

typedef void (*demeter_emit_t)(void *ctx, const struct demeter_access *access);

/* What a backend can tell about a sample. */
#define DEMETER_SAMPLER_LATENCY 0x1u
#define DEMETER_SAMPLER_TIER	0x2u
/* It sees private anonymous memory alone: the rest is left where it is. */
#define DEMETER_SAMPLER_PRIVATE 0x4u

/**
 * struct demeter_sampler_ops - a sampler backend
 * @name: as written to the file "sampler"
 * @probe: find the hardware and claim it; on failure say in @reason what is
 *	missing and what to do about it, and return a negative errno
 * @release: undo @probe
 * @start: sample on @cpu; called on that CPU, in process context
 * @stop: undo @start, and hand over what was recorded until now; may be called
 *	for a CPU whose @start failed or was never called
 * @drain: emit what @cpu recorded, oldest first; called on that CPU with
 *	interrupts off and possibly under its run queue lock. NULL when the
 *	backend pushes.
 * @leave: @task, which is still the current one, is about to leave this CPU; push
 *	what nobody else would hand over before the next one runs; called with
 *	interrupts off and under the run queue lock. NULL when nothing can be left.
 * @caps: DEMETER_SAMPLER_*, of what was claimed
 * @delivery: how samples get here, one word for people to read
 * @accesses_per_sample: accesses that one sample stands for, when the
 *	parameter sample_period has this value
 * @alive: start again what died on its own, and push what still lies in buffers
 *	of the hardware, or what was learned from visits; called once an epoch in
 *	process context without demeter_lock, also while CPUs come and go. Return:
 *	CPUs that sample now.
 * @lost: samples lost since @probe before they were pushed or emitted
 * @sees: is this address space sampled; what is not would look cold, and is left
 *	alone. NULL when all are.
 *
 * @probe, @release, @start and @stop are serialised by demeter_control_lock and
 * CPU hotplug. @caps to @lost are only called between @probe and @release. Only
 * @drain, @leave and @sees may be NULL.
 */
struct demeter_sampler_ops {
	const char *name;
	int (*probe)(char *reason, size_t size);
	void (*release)(void);
	int (*start)(unsigned int cpu, u64 period, u64 threshold_ns);
	void (*stop)(unsigned int cpu);
	void (*drain)(unsigned int cpu, demeter_emit_t emit, void *ctx);
	void (*leave)(const struct task_struct *task);
	unsigned int (*caps)(void);
	const char *(*delivery)(void);
	u64 (*accesses_per_sample)(u64 period);
	unsigned int (*alive)(void);
	u64 (*lost)(void);
	bool (*sees)(const struct mm_struct *mm);
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
