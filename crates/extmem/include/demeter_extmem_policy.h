/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Policies of the user-space pager: which page leaves DRAM next.
 *
 * A policy is a shared object with one entry point, demeter_extmem_policy().
 * `demeter extmem run --policy /path/to/it.so:options` loads it. The pager does
 * the work (faults, reads, writes, the victim cache); the policy only keeps
 * books and names victims. docs/extmem-policy.md tells how to write one.
 *
 * Rules for every callback:
 *  - Calls are serialised by the pager; a policy needs no locks.
 *  - Calls come from signal handlers of any thread of the program. So: no
 *    malloc, no stdio, no locks, no thread-local storage, no system calls that
 *    wait. All memory a policy needs is asked for once, by memory_bytes().
 *  - Never touch the program's memory: the page may be out, and the pager is
 *    what would bring it in.
 *  - Return soon: the program waits.
 *
 * Only start() and memory_bytes() run outside of handlers.
 */
#ifndef DEMETER_EXTMEM_POLICY_H
#define DEMETER_EXTMEM_POLICY_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Raised when something below changes its meaning. New members are added at the
 * end of structures, whose size tells how many there are. */
#define DEMETER_EXTMEM_POLICY_ABI 1

/* Number of a 4 KiB page of managed memory. */
typedef uint32_t demeter_extmem_page;

/* How a page came to DRAM. */
enum demeter_extmem_source {
	DEMETER_EXTMEM_FIRST_TOUCH = 0, /* never used before, or all zero when it left */
	DEMETER_EXTMEM_SWAP = 1, /* read from the swap store */
	DEMETER_EXTMEM_COMPRESSED = 2, /* decompressed */
	/* Was on its way out and wanted again: the pager's stand-in for an
	 * accessed bit. */
	DEMETER_EXTMEM_VICTIM_CACHE = 3,
	DEMETER_EXTMEM_ZERO = 4, /* not sent: such a page comes as if never used */
};

/* Flags of an arrival. */
#define DEMETER_EXTMEM_WRITE 0x1 /* a write wanted it */
#define DEMETER_EXTMEM_STREAM 0x2 /* part of a sequential or strided walk */
#define DEMETER_EXTMEM_PREFETCHED 0x4 /* nobody waited for it */

/* Distance of a page that was never evicted. */
#define DEMETER_EXTMEM_NEVER UINT32_MAX

/* A page that came to DRAM. */
struct demeter_extmem_arrival {
	demeter_extmem_page page;
	uint8_t source; /* enum demeter_extmem_source */
	uint8_t flags;
	/* Of a page that was in the victim cache, how far it had come: from 0, just
	 * in, to 1000, about to leave. 0 of others. */
	uint16_t cache_permille;
	uint32_t thread; /* who wanted it */
	/* Pages evicted between its own eviction and now, or NEVER: less than
	 * DRAM holds means that a better choice would have kept it. */
	uint32_t distance;
};

/* What the program said of a range. */
enum demeter_extmem_hint {
	DEMETER_EXTMEM_HINT_NORMAL = 0, /* MADV_NORMAL */
	DEMETER_EXTMEM_HINT_SEQUENTIAL = 1, /* MADV_SEQUENTIAL */
	DEMETER_EXTMEM_HINT_RANDOM = 2, /* MADV_RANDOM */
	DEMETER_EXTMEM_HINT_WILLNEED = 3, /* MADV_WILLNEED */
	DEMETER_EXTMEM_HINT_COLD = 4, /* MADV_COLD, MADV_PAGEOUT */
	DEMETER_EXTMEM_HINT_KEEP = 5, /* evict it last */
	DEMETER_EXTMEM_HINT_STREAM = 6, /* evict it as soon as it was used */
};

/* What the pager offers. Valid as long as the policy. */
struct demeter_extmem_host {
	uint32_t abi;
	uint32_t size; /* bytes of this structure */
	demeter_extmem_page arena_pages; /* pages are below this */
	uint32_t dram_pages; /* how many may be in DRAM */
	void *context; /* for the calls below */
	/* Bring pages in, soon and in the background. May be ignored. */
	void (*prefetch)(void *context, demeter_extmem_page first,
			 uint32_t pages, uint32_t flags);
	/* 1 in DRAM, 2 elsewhere, 0 neither. */
	uint32_t (*state)(void *context, demeter_extmem_page page);
};

/* A policy. Members without a comment "optional" must not be NULL. */
struct demeter_extmem_policy {
	uint32_t abi; /* DEMETER_EXTMEM_POLICY_ABI */
	uint32_t size; /* bytes of this structure */
	const char *name;
	/* Zero-filled memory that start() will get. Only what is touched takes
	 * DRAM, and it counts against the program's share: a table of all
	 * arena pages is fine, filling it is not. 0: the options are wrong. */
	uint64_t (*memory_bytes)(const struct demeter_extmem_host *host,
				 const char *options);
	/* Sets the policy up in memory, 16-byte aligned; what it returns is
	 * passed to all others. NULL: it cannot. */
	void *(*start)(void *memory, const struct demeter_extmem_host *host,
		       const char *options);
	/* A managed mapping came. Optional. */
	void (*mapped)(void *policy, demeter_extmem_page first,
		       uint32_t pages);
	/* A range went, or its content was given up: forget its pages. */
	void (*unmapped)(void *policy, demeter_extmem_page first,
			 uint32_t pages);
	/* Pages came to DRAM, or are on their way and sure to come: state() may
	 * not know them there yet. A page may come again without having been
	 * evicted: then only its flags are news. */
	void (*arrived)(void *policy,
			const struct demeter_extmem_arrival *arrivals,
			uint32_t count);
	/* Names up to `want` pages in DRAM to evict, and forgets them. Returns
	 * how many; with 0 the pager chooses by itself. */
	uint32_t (*choose)(void *policy, demeter_extmem_page *victims,
			   uint32_t want);
	/* Victims that could not be evicted just now, being in use: they stay
	 * in DRAM, and must not be all that is named from now on. */
	void (*returned)(void *policy, const demeter_extmem_page *pages,
			 uint32_t count);
	/* Pages left DRAM. Optional. */
	void (*evicted)(void *policy, const demeter_extmem_page *pages,
			uint32_t count);
	/* The program said something of a range. Optional. */
	void (*hint)(void *policy, demeter_extmem_page first, uint32_t pages,
		     uint32_t hint);
	/* Pages that the victim cache should have now, asked after each batch
	 * that left; with 0, pages that need not be written leave at once.
	 * Optional: the pager takes a sixteenth of DRAM. */
	uint32_t (*victim_cache_pages)(void *policy);
	/* Names up to `room` pages in DRAM that it will not name as victims
	 * soon, each once after it came: what the compressed tier still holds of
	 * them is freed. Returns how many. Optional. */
	uint32_t (*staying)(void *policy, demeter_extmem_page *pages,
			    uint32_t room);
};

/* The entry point. `host_abi` is the pager's; NULL when it does not suit. */
const struct demeter_extmem_policy *demeter_extmem_policy(uint32_t host_abi);

#ifdef __cplusplus
}
#endif

#endif
