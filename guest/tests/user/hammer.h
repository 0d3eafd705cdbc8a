/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The hammer: exchanges pages of processes that use them as violently as user
 * space can, and checks that no byte, counter or kernel invariant is lost.
 * Runs as process 1 of a throw-away guest; see ../run-hammer.sh.
 */
#ifndef DEMETER_HAMMER_H
#define DEMETER_HAMMER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "../hammer_abi.h"

#define PAGE 4096UL
#define THP  (2UL << 20)
#define FMEM 0
#define SMEM 1

/* ---- hammer_kit.c: verdicts, memory, counters, the device ---- */

/* One TAP-like line; counts towards the verdict. */
void check(bool passed, const char *format, ...) __attribute__((format(printf, 2, 3)));
int checks_failed(void);
int checks_passed(void);

extern uint64_t exchanges_total;  /* pairs of folios, all phases */
extern uint64_t exchanges_racing; /* of them, in races */

uint64_t now_ns(void);
uint64_t next_random(uint64_t *state);
int read_file(const char *path, char *buffer, size_t size);
bool write_file(const char *path, const char *text);
long read_key(const char *path, const char *key); /* "key value" lines; -1: none */
size_t node_bytes(int node);			  /* managed by the kernel, in whole MiB */
long free_kib(void);				  /* free memory, per-CPU lists included */

/* Map bytes (THP: 2 MiB aligned, huge) and touch them on a node. Never NULL. */
char *map_on(int node, size_t bytes, bool thp);
/* Reserve address space, 2 MiB aligned. */
char *reserve(size_t bytes);
/* Put memory on a node while it is being touched; node < 0: default policy. */
void prefer_node(int node, bool strictly);
void prefer_both_nodes(void); /* in turn, so that neither side of an exchange runs dry */
void touch_on(int node, char *at, size_t bytes, bool thp);
int node_of(const void *addr);	      /* node, or -errno */
void *shared_page(size_t bytes);      /* zeroed, shared with children */
long anon_huge_kib(const void *addr); /* AnonHugePages of the mapping at addr */

int device_open(void);					/* 0, or -1 with a message */
int device_call(unsigned long request, void *argument); /* 0 or -errno */
void area_set(struct demeter_hammer_area *area, pid_t pid, int nid, const void *at, size_t bytes);
int reason(const char *name); /* index of a refusal; exits if unknown */
const char *reason_name(unsigned int index);
void print_refused(const uint64_t *refused); /* "name=pages …" */
void load_module(const char *path, bool required);
void load_module_with(const char *path, const char *parameters, bool required);
int unload_module(const char *name); /* 0 or -errno */
void hasten_khugepaged(bool eager);
void pin_cpu(int cpu);	     /* this thread; cpu < 0: any */
bool kernel_log_clean(void); /* since the last call */
void settle(void);	     /* per-CPU statistics and batches */

/* ---- the phases ---- */
void test_basics(void);	  /* hammer_basics.c */
void test_refusals(void); /* hammer_refusals.c */
void test_memcg(void);	  /* hammer_memcg.c */
void test_kvm(void);	  /* hammer_kvm.c */
void test_marks(void);	  /* hammer_marks.c */
void test_nodes(void);	  /* hammer_nodes.c */
bool start_swap(void);	  /* hammer_kit.c: zram */

/* The long ones: until `exchanges` were made, at least and at most so many seconds. */
struct quota {
	uint64_t exchanges;
	unsigned int min_seconds, max_seconds;
};
bool quota_open(const struct quota *quota, uint64_t exchanges, uint64_t begin_ns);

enum race_kind {
	RACE_SMALL, /* 4 KiB pages */
	RACE_HUGE,  /* THPs, beside an eager khugepaged */
	RACE_SIZES, /* THPs against 4 KiB pages: collapse and split first */
	RACE_SWAP,  /* 4 KiB pages, many of them on their way to swap and back */
	RACE_NODES, /* 4 KiB pages that others mark, bind and drive off their node */
};
void test_races(enum race_kind kind, const struct quota *quota); /* hammer_races.c */
void test_load(bool thp, const struct quota *quota);		 /* hammer_load.c */

/* Steps of RACE_NODES. */
uint64_t mark_step(char *at, size_t bytes, uint64_t random); /* hammer_marks.c */
void bind_step(char *at, size_t bytes, uint64_t random);     /* hammer_nodes.c */
unsigned int disturb_nodes(uint64_t random, bool at_end);    /* hammer_nodes.c */
void join_group(void);					     /* hammer_nodes.c */

#endif /* DEMETER_HAMMER_H */
