/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The heat map: layout of /sys/kernel/mm/demeter/ranges.
 *
 * One header, then nr_records records of record_bytes each, ordered by address
 * space and address. All fields are in the byte order of the machine. A reader
 * steps by header_bytes and record_bytes and ignores what it does not know:
 * later versions only append. Reading at offset 0 takes a new snapshot.
 */
#ifndef DEMETER_DUMP_H
#define DEMETER_DUMP_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include <stdint.h>
typedef uint32_t __u32;
typedef uint64_t __u64;
#endif

#define DEMETER_DUMP_MAGIC   0x5441454854454d44ULL /* "DMETHEAT" */
#define DEMETER_DUMP_VERSION 1
#define DEMETER_DUMP_NO_NODE 0xffffffffU

struct demeter_dump_header {
	__u64 magic;
	__u32 version;
	__u32 header_bytes;
	__u32 record_bytes;
	__u32 nr_records;
	__u64 epochs;	  /* ended since load */
	__u64 time_ns;	  /* CLOCK_MONOTONIC of the snapshot */
	__u32 rate_shift; /* rate is samples << rate_shift */
	__u32 fmem_node;  /* the tier's first, or DEMETER_DUMP_NO_NODE before it is chosen */
	__u32 smem_node;
	__u32 reserved;
	__u64 fmem_nodes; /* all of the tier's below 64, a bit each */
	__u64 smem_nodes;
};

struct demeter_dump_record {
	__u32 space; /* number of the address space */
	__u32 pid;   /* thread group when it was added */
	__u64 start;
	__u64 end;
	__u64 rate;	  /* decayed samples, fixed point */
	__u64 fmem_pages; /* resident 4 KiB pages when counted last */
	__u64 smem_pages;
	__u32 age_epochs; /* epochs with these bounds */
	__u32 area;	  /* number of the area, by address */
};

#endif /* DEMETER_DUMP_H */
