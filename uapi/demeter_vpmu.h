/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The virtual PEBS unit of the testbed: layout of its BAR.
 *
 * The unit is BAR 2 of an ivshmem-plain PCI device (1af4:1110) whose first
 * eight bytes are DEMETER_VPMU_MAGIC. All fields are little endian and
 * naturally aligned. "D" fields are written by the device, "G" by the guest.
 * docs/spec/vpmu.md says how the fields are used.
 */
#ifndef DEMETER_VPMU_H
#define DEMETER_VPMU_H

#if defined(__KERNEL__) || defined(__linux__)
#include <linux/types.h>
#else
#include <stdint.h>
typedef uint16_t __u16;
typedef uint32_t __u32;
typedef uint64_t __u64;
#endif

#define DEMETER_VPMU_MAGIC	  0x554d505645544d44ULL /* "DMTEVPMU" */
#define DEMETER_VPMU_VERSION	  1
#define DEMETER_VPMU_BAR_BYTES	  (4u << 20)
#define DEMETER_VPMU_VCPU_OFFSET  0x2000u /* vCPU i at this + i * vcpu_stride_bytes */
#define DEMETER_VPMU_RING_OFFSET  0x1000u /* ring, from the start of a vCPU's part */
#define DEMETER_VPMU_RING_ENTRIES 4096u

/* Offset 0 of the BAR. */
struct demeter_vpmu_header {
	__u64 magic;		 /* D */
	__u32 version;		 /* D */
	__u32 nr_vcpus;		 /* D */
	__u32 vcpu_stride_bytes; /* D */
	__u32 ring_entries;	 /* D: power of two */
	__u64 fmem_latency_ps;	 /* D: what a load from FMEM costs in the model */
	__u64 smem_latency_ps;	 /* D */
	__u64 sample_cost_ns;	 /* D: charged to the guest for every record */
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
#define DEMETER_VPMU_GUEST_OFFSET 0x1000u
struct demeter_vpmu_guest {
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

/* Start of a vCPU's part. */
struct demeter_vpmu_vcpu {
	__u32 enable; /* G: 1 = sample */
	__u32 reserved;
	__u64 period;	    /* G: one record per this many events */
	__u64 threshold_ns; /* G: loads at or above this latency are events */
	__u64 head;	    /* D: records produced since reset */
	__u64 tail;	    /* G: records consumed since reset */
	__u64 lost;	    /* D: records dropped, ring full */
	__u64 events;	    /* D: events seen while enabled */
};

#define DEMETER_VPMU_STORE  0x1u /* flags of a record: was a store */
#define DEMETER_VPMU_WALKED 0x2u /* needed a page walk */

/* One record, 64 bytes. User-mode accesses only. */
struct demeter_vpmu_record {
	__u64 gva;
	__u64 gpa;
	__u64 ip;
	__u64 cr3;
	__u64 time_ns; /* guest clock */
	__u32 latency_ns;
	__u16 tier; /* 0 FMEM, 1 SMEM */
	__u16 flags;
	__u64 reserved[2];
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
	DEMETER_OP_TASK_SWITCH = 6, /* see demeter_model.h */
	DEMETER_OP_TASK_LAYOUT = 7,
};

#endif /* DEMETER_VPMU_H */
