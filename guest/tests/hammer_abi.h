/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Requests that the hammer program makes of demeter_hammer.ko. Both are built
 * together and shipped to nobody: no stability is promised.
 */
#ifndef DEMETER_HAMMER_ABI_H
#define DEMETER_HAMMER_ABI_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define DEMETER_HAMMER_REASONS	32
#define DEMETER_HAMMER_NAME_LEN 16

struct demeter_hammer_area {
	__s32 pid;
	__s32 nid;
	__u64 start;
	__u64 end;
};

/* Exchange hot's pages on hot.nid with cold's pages on cold.nid. */
struct demeter_hammer_exchange {
	struct demeter_hammer_area hot;
	struct demeter_hammer_area cold;
	__u64 max_pages;
	__u32 batch_pairs;
	__u32 pause_ms;	       /* between isolation and exchange, to let races happen */
	__u32 match;	       /* collapse and split first, as demeter.ko does */
	__u32 bound;	       /* heed mempolicies and cpusets, as demeter.ko does */
	__u32 deaf;	       /* as if no other MMU were told of hot's moves */
	__u64 hot_pages;       /* out: isolated */
	__u64 cold_pages;      /* out: isolated */
	__u64 collapsed_pages; /* out: more of hot are THPs after the match */
	__u64 split_pages;     /* out: fewer of hot or cold are */
	__u64 promoted_pages;  /* out */
	__u64 exchange_ns;     /* out */
	__u64 total_ns;	       /* out: with the scans */
	__u64 refused[DEMETER_HAMMER_REASONS]; /* out */
};

/* Migrate area's pages on area.nid to free memory of target_nid. */
struct demeter_hammer_migrate {
	struct demeter_hammer_area area;
	__u64 max_pages;
	__s32 target_nid;
	__u32 pad;
	__u64 isolated_pages;		       /* out */
	__u64 moved_pages;		       /* out */
	__u64 room_pages;		       /* out: before the migration */
	__u64 migrate_ns;		       /* out */
	__u64 refused[DEMETER_HAMMER_REASONS]; /* out */
};

/* Split area's THPs on area.nid, or collapse what it has on any node. */
struct demeter_hammer_resize {
	struct demeter_hammer_area area;
	__u64 max_pages;
	__u32 collapse;
	__u32 pause_ms;	   /* between isolation and split */
	__u64 split_pages; /* out */
};

/* Count area's anonymous pages: pages[0] on area.nid, pages[1] on other_nid. */
struct demeter_hammer_count {
	struct demeter_hammer_area area;
	__s32 other_nid;
	__u32 pad;
	__u64 pages[2]; /* out */
	__u64 count_ns; /* out */
};

struct demeter_hammer_names {
	__u32 count;
	__u32 pad;
	char name[DEMETER_HAMMER_REASONS][DEMETER_HAMMER_NAME_LEN];
};

/* Bring the caller's page at addr into a state, until DEMETER_HAMMER_RELEASE. */
enum demeter_hammer_state {
	DEMETER_HAMMER_PIN,	   /* pinned for DMA */
	DEMETER_HAMMER_REF,	   /* one more reference */
	DEMETER_HAMMER_LOCK,	   /* folio lock held */
	DEMETER_HAMMER_ISOLATE,	   /* off the LRU */
	DEMETER_HAMMER_WRITEBACK,  /* flagged as under writeback */
	DEMETER_HAMMER_UNREADABLE, /* the kernel's loads of it fail, ours do not */
	/* no page: mmap_lock, taken for writing, for addr milliseconds; then it is over */
	DEMETER_HAMMER_MMAP_LOCK,
};

struct demeter_hammer_hold {
	__u64 addr;
	__u32 state;
	__u32 pad;
};

/* Does an exchange of contents survive memory that cannot be read? */
struct demeter_hammer_contents {
	__u64 checks; /* out */
	__u64 wrong;  /* out */
};

#define DEMETER_HAMMER_EXCHANGE _IOWR('D', 1, struct demeter_hammer_exchange)
#define DEMETER_HAMMER_MIGRATE	_IOWR('D', 2, struct demeter_hammer_migrate)
#define DEMETER_HAMMER_COUNT	_IOWR('D', 3, struct demeter_hammer_count)
#define DEMETER_HAMMER_NAMES	_IOR('D', 4, struct demeter_hammer_names)
#define DEMETER_HAMMER_HOLD	_IOW('D', 5, struct demeter_hammer_hold)
#define DEMETER_HAMMER_RELEASE	_IO('D', 6)
#define DEMETER_HAMMER_DRAIN	_IO('D', 7) /* settle per-CPU statistics and batches */
#define DEMETER_HAMMER_RESIZE	_IOWR('D', 8, struct demeter_hammer_resize)
#define DEMETER_HAMMER_CONTENTS _IOR('D', 9, struct demeter_hammer_contents)

/* Until the file is closed, an MMU that does nothing has pages of the caller. */
#define DEMETER_HAMMER_SECONDARY _IO('D', 10)

/* The same, by an interval notifier, as drivers of GPUs do for what they share. */
#define DEMETER_HAMMER_INTERVAL _IO('D', 11)

#endif /* DEMETER_HAMMER_ABI_H */
