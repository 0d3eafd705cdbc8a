/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The ledger: layout of /sys/kernel/mm/demeter/ledger.
 *
 * One header; nr_reasons names of reason_bytes each, padded with zeros; nr_targets
 * records of target_bytes each; nr_decisions records of decision_bytes each, oldest
 * first. All fields are in the byte order of the machine. A reader steps by the
 * sizes in the header and ignores what it does not know: later versions only
 * append. Reading at offset 0 takes a new snapshot.
 *
 * Reasons are told by their number in this snapshot, from 1; 0 is none.
 */
#ifndef DEMETER_LEDGER_H
#define DEMETER_LEDGER_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include <stdint.h>
typedef int64_t __s64;
typedef uint32_t __u32;
typedef uint64_t __u64;
#endif

#define DEMETER_LEDGER_MAGIC	    0x524744454c544d44ULL /* "DMTLEDGR" */
#define DEMETER_LEDGER_VERSION	    1
#define DEMETER_LEDGER_REASON_BYTES 16
#define DEMETER_LEDGER_MAX_REASONS  32

struct demeter_ledger_header {
	__u64 magic;
	__u32 version;
	__u32 header_bytes;
	__u32 reason_bytes;
	__u32 target_bytes;
	__u32 decision_bytes;
	__u32 nr_reasons; /* names, that of 0 included */
	__u32 nr_targets;
	__u32 nr_decisions;
	__u64 time_ns;		 /* CLOCK_MONOTONIC of the snapshot */
	__u64 epochs;		 /* ended since load */
	__u64 decisions;	 /* taken since load */
	__u64 open_decisions;	 /* whose time is not over yet */
	__u64 settled_decisions; /* whose time is over */
	__u64 dropped_decisions; /* overwritten, or not followed, before their time was over */
	__u64 empty_decisions;	 /* nothing was moved */
	__u64 predicted_ns;	 /* of all */
	__s64 realised_ns;
	__u64 settled_predicted_ns; /* of those settled */
	__s64 settled_realised_ns;
};

#define DEMETER_LEDGER_BY_PID	 0
#define DEMETER_LEDGER_BY_CGROUP 1
#define DEMETER_LEDGER_BY_SIZE	 2
#define DEMETER_LEDGER_GONE	 3 /* the sum of all that are not managed any more */

/* What one address space was given and cost. Sums over all are the module's totals. */
struct demeter_ledger_target {
	__u32 space; /* 0 in the record of those gone */
	__u32 pid;   /* thread group when it was added */
	__u32 origin;
	__u32 reserved;
	__u64 decisions; /* taken for it */
	__u64 promoted_pages;
	__u64 demoted_pages;
	__u64 filled_pages; /* of those promoted */
	__u64 predicted_ns; /* of decisions taken for it */
	__s64 realised_ns;
	__u64 refused_pages[DEMETER_LEDGER_MAX_REASONS]; /* by reason */
};

#define DEMETER_LEDGER_FILL   0
#define DEMETER_LEDGER_SWAP   1
#define DEMETER_LEDGER_DEMOTE 2 /* of a group above its cap: no hot range, nothing predicted */

/* What sampled the accesses that a decision was taken by. */
#define DEMETER_LEDGER_UNTOLD  0 /* modules before this field was, and management ending */
#define DEMETER_LEDGER_PEBS    1
#define DEMETER_LEDGER_IBS     2
#define DEMETER_LEDGER_TOUCH   3
#define DEMETER_LEDGER_NOTHING 4 /* the sampler none: by samples from before it */

#define DEMETER_LEDGER_OPEN 0
#define DEMETER_LEDGER_SETTLED                                                                     \
	1		       /* its time is over, or its address space gone, or what it placed */
#define DEMETER_LEDGER_EMPTY 2 /* nothing was moved */

/* One step of a plan, and what came of it. */
struct demeter_ledger_decision {
	__u64 number;  /* from 0 since load */
	__u64 time_ns; /* CLOCK_MONOTONIC */
	__u64 epoch;   /* ended before it */
	__u32 kind;
	__u32 state;
	__u32 hot_space; /* whose pages were to be promoted */
	__u32 hot_pid;
	__u64 hot_start;
	__u64 hot_end;
	__u32 cold_space; /* whose pages were to be demoted, 0 for a fill */
	__u32 cold_pid;
	__u64 cold_start;
	__u64 cold_end;
	__u64 planned_pages;
	__u64 moved_pages;   /* each way; shared out by size where a batch had many steps */
	__u64 refused_pages; /* of both sides */
	__u32 reason;	     /* for most of them */
	__u32 source;	     /* was reserved, and 0 */
	__u64 reason_pages;
	__u64 lasts_ns;	    /* how long the promise runs */
	__u64 age_ns;	    /* how long it has run */
	__u64 predicted_ns; /* latency saved by what was moved, at least, while it runs */
	__s64 realised_ns;  /* so far */
};

#endif /* DEMETER_LEDGER_H */
