/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Samples as programs get them, taken by a kthread: counters of each CPU with perf's own
 * ring buffers. For managers whose published form reads such buffers.
 */
#ifndef DEMETER_PEERS_RINGS_H
#define DEMETER_PEERS_RINGS_H

#include <linux/atomic.h>
#include <linux/perf_event.h>
#include <linux/types.h>

struct mm_struct;

/**
 * struct demeter_rings_periods - events for each sample
 * @loads: loads that memory served
 * @stores: stores
 */
struct demeter_rings_periods {
	u64 loads;
	u64 stores;
};

/**
 * struct demeter_rings_record - a sample as perf writes it
 * @pid: process, in the namespace that the counters were made in
 * @addr: address
 */
struct demeter_rings_record {
	u32 pid;
	u64 addr;
};

/* Of Linux 6.12, kernel/events/internal.h and core.c. */
struct perf_buffer *demeter_type_rb_alloc(int nr_pages, long watermark, int cpu, int flags);
void demeter_type_ring_buffer_attach(struct perf_event *event, struct perf_buffer *rb);
struct page *demeter_type_perf_mmap_to_page(struct perf_buffer *rb, unsigned long pgoff);

/**
 * demeter_rings_start() - sample on all CPUs that are online
 * @periods: to begin with
 * @lost: samples that found no room are added to it
 *
 * Return: 0 or a negative errno, the reason in the kernel log.
 */
int demeter_rings_start(const struct demeter_rings_periods *periods, atomic64_t *lost);

/**
 * demeter_rings_stop() - end it; nobody drains any more
 */
void demeter_rings_stop(void);

/**
 * demeter_rings_set_periods() - go on with others
 * @periods: the periods
 */
void demeter_rings_set_periods(const struct demeter_rings_periods *periods);

/**
 * demeter_rings_drain() - take what the rings hold
 * @each: called for each sample; whether it is a store
 */
void demeter_rings_drain(void (*each)(const struct demeter_rings_record *record, bool store));

/**
 * demeter_rings_mm() - the address space of a process
 * @pid: as in a record
 *
 * Return: with a reference on mm_users, or NULL.
 */
struct mm_struct *demeter_rings_mm(u32 pid);

#endif /* DEMETER_PEERS_RINGS_H */
