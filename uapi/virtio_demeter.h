/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * virtio-demeter-balloon: one balloon per memory tier of a guest, in one
 * device. docs/spec/virtio-demeter-balloon.md says how the fields are used.
 *
 * All fields are little endian and naturally aligned; a page is 4 KiB whatever
 * the guest's own page size is; a node is an index below nr_nodes and is the
 * guest's NUMA node id as its firmware numbers it. Reserved fields are zero.
 */
#ifndef VIRTIO_DEMETER_H
#define VIRTIO_DEMETER_H

#if defined(__KERNEL__) || defined(__linux__)
#include <linux/types.h>
#else
#include <stdint.h>
typedef uint8_t __u8;
typedef uint16_t __u16;
typedef uint32_t __u32;
typedef uint64_t __u64;
typedef uint16_t __le16;
typedef uint32_t __le32;
typedef uint64_t __le64;
#endif

/* Reserved by the virtio specification as "memory balloon", driven by nobody. */
#define VIRTIO_DEMETER_ID	  13
#define VIRTIO_DEMETER_MAGIC	  0x4c424d44u /* "DMBL" */
#define VIRTIO_DEMETER_VERSION	  1
#define VIRTIO_DEMETER_PAGE_SHIFT 12
#define VIRTIO_DEMETER_MAX_NODES  4

/* Virtqueues; the report queue of node n is VIRTIO_DEMETER_VQ_REPORT + n. */
#define VIRTIO_DEMETER_VQ_REQUEST    0 /* device to driver: struct virtio_demeter_request */
#define VIRTIO_DEMETER_VQ_STATISTICS 1 /* driver to device: struct virtio_demeter_statistics */
#define VIRTIO_DEMETER_VQ_REPORT     2 /* driver to device: struct virtio_demeter_report, ack */

/* Configuration space, read-only for the driver. */
struct virtio_demeter_config {
	__le32 magic;
	__le16 version;		       /* a driver that does not know it must not drive */
	__le16 nr_nodes;	       /* 1 … VIRTIO_DEMETER_MAX_NODES */
	__le64 instance;	       /* differs after every start of the device's owner */
	__le32 statistics_interval_ms; /* 0: on events and on request only */
	__le32 max_ranges;	       /* most ranges in one report */
	__le64 reserved[5];
};

/* Request queue. */
enum virtio_demeter_request_op {
	VIRTIO_DEMETER_RESIZE = 1,     /* bring node's balloon to target_pages */
	VIRTIO_DEMETER_STATISTICS = 2, /* push statistics now */
};

struct virtio_demeter_request {
	__le64 id; /* returned in DONE; grows by one a request */
	__le16 op;
	__le16 node;
	__le32 flags; /* 0 */
	/*
	 * Pages that the balloon shall hold. A newer RESIZE of the same node
	 * supersedes one that is being executed.
	 */
	__le64 target_pages;
	__le64 reserved;
};

/* Report queues. */
enum virtio_demeter_report_op {
	/* First message of every queue after DRIVER_OK: the device forgets the balloon. */
	VIRTIO_DEMETER_HELLO = 1,
	/* The driver holds these pages now; the device may drop their backing. */
	VIRTIO_DEMETER_INFLATED = 2,
	/* The driver wants these back and uses them only after the ack. */
	VIRTIO_DEMETER_DEFLATE = 3,
	/* Request `id` ended with `result`; no ranges. */
	VIRTIO_DEMETER_DONE = 4,
};

/* HELLO: the driver kept pages of an earlier device and reports them next. */
#define VIRTIO_DEMETER_HELLO_RESYNC    0x1u
/* INFLATED: one of those; not measured against the target. */
#define VIRTIO_DEMETER_INFLATED_RESYNC 0x1u

/* Why a request ended where it did. */
enum virtio_demeter_result {
	VIRTIO_DEMETER_REACHED = 0,    /* the target */
	VIRTIO_DEMETER_FLOOR = 1,      /* the guest needs the rest itself */
	VIRTIO_DEMETER_SUPERSEDED = 2, /* a newer request took over */
	VIRTIO_DEMETER_OOM = 3,	       /* the guest ran out and took pages back */
	VIRTIO_DEMETER_REFUSED = 4,    /* no such node, unknown op */
};

struct virtio_demeter_report {
	__le64 id; /* of the request being executed; 0: on the guest's own account */
	__le16 op;
	__le16 node;
	__le32 flags;
	__le32 nr_ranges;
	__le32 result;	      /* DONE only */
	__le64 current_pages; /* of the node, after this report */
			      /* nr_ranges times struct virtio_demeter_range */
};

/* Any number of pages: one for a 4 KiB page, 512 for 2 MiB. */
struct virtio_demeter_range {
	__le64 gpa; /* page aligned */
	__le64 nr_pages;
};

/* Written by the device; a report is taken whole or not at all. */
enum virtio_demeter_status {
	VIRTIO_DEMETER_OK = 0,
	VIRTIO_DEMETER_E_MALFORMED = 1, /* length, op, count, flags or reserved fields */
	VIRTIO_DEMETER_E_NODE = 2,	/* not this queue's node */
	VIRTIO_DEMETER_E_RANGE = 3,	/* unaligned, empty, wrapping, outside guest memory */
	VIRTIO_DEMETER_E_TIER = 4,	/* memory of another tier */
	VIRTIO_DEMETER_E_STATE = 5,	/* inflated twice, or deflated without inflation */
	VIRTIO_DEMETER_E_BUDGET = 6,	/* more than was asked for */
	VIRTIO_DEMETER_E_HOST = 7,	/* the host could not; pages stay where they are */
	VIRTIO_DEMETER_E_DISABLED = 8,	/* too many violations: nothing is taken any more */
	VIRTIO_DEMETER_E_HELLO = 9,	/* no HELLO yet */
};

struct virtio_demeter_ack {
	__le32 status;
	__le32 bad_range; /* index of the range that failed, or 0 */
};

/* Statistics queue: one header, then nr_nodes node records. */
enum virtio_demeter_event {
	VIRTIO_DEMETER_EVENT_PERIODIC = 0,
	VIRTIO_DEMETER_EVENT_REQUESTED = 1,
	VIRTIO_DEMETER_EVENT_RESIZED = 2,
	VIRTIO_DEMETER_EVENT_PRESSURE = 3,
	VIRTIO_DEMETER_EVENT_OOM = 4,
};

/* Fields whose source is missing in this guest are zero and not in `valid`. */
#define VIRTIO_DEMETER_VALID_TMM 0x1u /* a TMM manages memory: hot_*, *_samples */
#define VIRTIO_DEMETER_VALID_PSI 0x2u

struct virtio_demeter_node_statistics {
	__le64 total_pages; /* managed by the guest kernel, balloon included */
	__le64 free_pages;  /* above the marks below which the kernel makes room */
	__le64 balloon_pages;
	__le64 anon_pages;
	__le64 file_pages;
	__le64 hot_pages;      /* resident pages of ranges that the TMM holds to be hot */
	__le64 promoted_pages; /* into this node since boot */
	__le64 demoted_pages;  /* into this node since boot */
};

struct virtio_demeter_statistics {
	__le64 sequence;
	__le64 guest_time_ns;
	__le16 event;
	__le16 nr_nodes;
	__le32 valid;
	/* Of accesses, by tier, as many as at full pace: their ratio is the hit share. */
	__le64 fmem_samples;
	__le64 smem_samples;
	__le64 hot_wanted_pages;   /* hot pages of all nodes: what FMEM would be used for */
	__le64 psi_memory_some_us; /* total stall time since boot */
	__le64 psi_memory_full_us;
	__le64 oom_kills;	   /* out of memory, with nothing to give back */
	__le64 oom_deflated_pages; /* given back to avoid one */
	__le64 refaults;
	__le64 reserved[3];
	/* nr_nodes times struct virtio_demeter_node_statistics */
};

#endif /* VIRTIO_DEMETER_H */
