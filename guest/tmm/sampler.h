/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Samplers: where sampled accesses come from.
 *
 * A backend either keeps its samples until they are drained (@drain), or hands
 * each one over at once with demeter_sampler_push() from its own interrupt.
 */
#ifndef DEMETER_SAMPLER_H
#define DEMETER_SAMPLER_H

#include <linux/types.h>

struct mm_struct;
struct demeter_vpmu_guest;

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

/**
 * struct demeter_sampler_ops - a sampler backend
 * @name: as written to the file "sampler"
 * @caps: DEMETER_SAMPLER_*
 * @probe: find the hardware and claim it; on failure say in @reason what is
 *	missing and what to do about it, and return a negative errno
 * @release: undo @probe
 * @start: sample on @cpu; called on that CPU, in process context
 * @stop: undo @start; may be called for a CPU that was never started
 * @drain: emit what @cpu recorded, oldest first; called on that CPU with
 *	interrupts off and possibly under its run queue lock. NULL when the
 *	backend pushes.
 * @lost: samples lost so far by the hardware
 * @latency_gap_ps: SMEM latency less FMEM latency, 0 = not known. May be NULL.
 * @publish: show the totals to whoever is behind the hardware. May be NULL.
 *
 * @probe, @release, @start and @stop are serialised by demeter_control_lock.
 */
struct demeter_sampler_ops {
	const char *name;
	unsigned int caps;
	int (*probe)(char *reason, size_t size);
	void (*release)(void);
	int (*start)(unsigned int cpu, u64 period, u64 threshold_ns);
	void (*stop)(unsigned int cpu);
	void (*drain)(unsigned int cpu, demeter_emit_t emit, void *ctx);
	u64 (*lost)(void);
	u64 (*latency_gap_ps)(void);
	void (*publish)(const struct demeter_vpmu_guest *totals);
};

extern const struct demeter_sampler_ops demeter_sampler_pebs;
extern const struct demeter_sampler_ops demeter_sampler_vpmu;

/**
 * demeter_sampler_push() - hand over one sample of an address space
 * @mm: the address space
 * @access: the sample
 *
 * Safe in any context, NMI included.
 */
void demeter_sampler_push(const struct mm_struct *mm, const struct demeter_access *access);

#endif /* DEMETER_SAMPLER_H */
