/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the testbed's machine model and its guest tell each other.
 *
 * The model is BAR 2 of an ivshmem-plain PCI device (1af4:1110) whose first
 * eight bytes are DEMETER_MODEL_MAGIC. All fields are little endian and
 * naturally aligned. "D" fields are written by the device, "G" by the guest.
 * Accesses are sampled by the modelled PMU, not here. docs/spec/model-bar.md says
 * how the fields are used.
 */
#ifndef DEMETER_MODEL_H
#define DEMETER_MODEL_H

#if defined(__KERNEL__) || defined(__linux__)
#include <linux/types.h>
#else
#include <stdint.h>
typedef uint16_t __u16;
typedef uint32_t __u32;
typedef uint64_t __u64;
#endif

#define DEMETER_MODEL_MAGIC	0x4c444d5245544d44ULL /* "DMTERMDL" */
#define DEMETER_MODEL_VERSION	2
#define DEMETER_MODEL_BAR_BYTES 0x100000u

/* Offset 0 of the BAR. */
struct demeter_model_header {
	__u64 magic;	       /* D */
	__u32 version;	       /* D */
	__u32 nr_vcpus;	       /* D */
	__u64 fmem_latency_ps; /* D: what a load from FMEM costs in the model */
	__u64 smem_latency_ps; /* D */
};

/* Stages of the guest pipeline, index of stage_ns below. */
enum demeter_stage {
	DEMETER_STAGE_DRAIN,
	DEMETER_STAGE_CLASSIFY,
	DEMETER_STAGE_RANK,
	DEMETER_STAGE_PLAN,
	DEMETER_STAGE_SCAN,
	DEMETER_STAGE_RELOCATE,
	DEMETER_STAGE_MIGRATE,
	DEMETER_STAGES = 8,
};

/*
 * Offset 0x1000 of the BAR: written by the guest's manager at the end of every
 * epoch, so that the testbed can record a time series at no cost to the guest.
 */
#define DEMETER_MODEL_GUEST_OFFSET 0x1000u
struct demeter_model_guest {
	__u64 epochs;			/* G: all zero while no manager runs */
	__u64 stage_ns[DEMETER_STAGES]; /* G: CPU time since load */
	__u64 promoted_pages;		/* G: 4 KiB pages */
	__u64 demoted_pages;		/* G */
	__u64 refused_pages;		/* G */
	__u64 samples;			/* G */
	__u64 lost_samples;		/* G */
	__u64 ranges;			/* G */
	__u64 splits;			/* G */
	__u64 merges;			/* G */
};

/*
 * Offset 0x2000 of the BAR: what the model counted while it was on, of all
 * vCPUs together. Brought up to date at every DEMETER_OP_MARK and
 * DEMETER_OP_PROGRESS and with every row of the time series.
 */
#define DEMETER_MODEL_COUNTERS_OFFSET 0x2000u
struct demeter_model_counters {
	__u64 clock_ns;	      /* D: the guest's clock */
	__u64 insn;	      /* D: instructions */
	__u64 kernel_insn;    /* D: those of the kernel */
	__u64 charged_ps;     /* D: charged on top of the instructions */
	__u64 fmem_loads;     /* D: line fills */
	__u64 smem_loads;     /* D */
	__u64 llc_hits;	      /* D */
	__u64 stlb_hits;      /* D */
	__u64 walk_4k;	      /* D: page walks that ended in a 4 KiB page */
	__u64 walk_2m;	      /* D: in a larger one */
	__u64 tlb_single;     /* D: invalidations of one page */
	__u64 tlb_full;	      /* D: full flushes */
	__u64 pmu_records;    /* D: records that the modelled PMU wrote: PEBS, IBS */
	__u64 pmu_dropped;    /* D: those it had no room for */
	__u64 pmu_interrupts; /* D: interrupts that it raised */
};

/*
 * Control from inside the guest, any privilege: the 8-byte NOP
 * 0F 1F 84 00 imm32 with imm32 = DEMETER_MAGIC_NOP | op, argument in RDI.
 * A plain NOP everywhere else.
 */
#define DEMETER_MAGIC_NOP 0x5EB50000u
enum demeter_magic_op {
	DEMETER_OP_MODEL_ON = 1, /* start charging and counting */
	DEMETER_OP_MODEL_OFF = 2,
	DEMETER_OP_MARK = 3,	  /* label RDI into the time series */
	DEMETER_OP_PROGRESS = 4,  /* work done so far, RDI, into the time series */
	DEMETER_OP_CHARGE_NS = 5, /* charge RDI ns: self-test of the clock */
	/*
	 * How to tell tasks apart, both from a program that may read kallsyms
	 * and BTF: where __switch_to_asm(prev, next) is, and the offsets in
	 * task_struct of flags, comm << 16 and pid << 32. In any order; tasks are
	 * told apart once both are known.
	 */
	DEMETER_OP_TASK_SWITCH = 6,
	DEMETER_OP_TASK_LAYOUT = 7,
};

#endif /* DEMETER_MODEL_H */
