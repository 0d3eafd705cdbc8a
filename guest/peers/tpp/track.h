/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tracking as TPP does it, for TPP and for what was built on it (Nomad): hint faults of
 * NUMA balancing on SMEM, pages made active by them, and kswapd woken by a timer so that
 * it demotes whenever less is free than the demotion mark.
 *
 * Who includes track.c defines a replacement of should_numa_migrate_memory(), which is
 * called under the page-table lock of the fault.
 */
#ifndef DEMETER_PEERS_TRACK_H
#define DEMETER_PEERS_TRACK_H

#include <linux/atomic.h>
#include <linux/types.h>

#include "../contract.h"
#include "replace.h"

struct folio;

/**
 * struct tpp_track - parameters and counters
 * @repeat_faults: how often one access faults at most while its page waits to be
 *	activated; 0: never
 * @repeat_ns: what each of those costs. They do not happen, so this is the bound.
 * @wake_ms: how often kswapd is woken
 * @stages: whether stages are measured
 * @hint_faults: faults on SMEM
 * @hint_faults_inactive: those on pages that were not active
 * @repeats: faults that the published kernel would have taken in addition
 * @wakes: how often kswapd was woken
 */
struct tpp_track {
	u64 repeat_faults;
	u64 repeat_ns;
	u64 wake_ms;
	u64 stages;
	atomic64_t hint_faults;
	atomic64_t hint_faults_inactive;
	atomic64_t repeats;
	atomic64_t wakes;
};

extern struct tpp_track tpp_track;

/**
 * tpp_wake_kswapd() - wake the node's kswapd, which demotes if too little is free
 * @nid: node
 */
void tpp_wake_kswapd(int nid);

/* Entries of the tables of the manager. */
#define TPP_TRACK_PARAMS                                                                           \
	{ "repeat_faults", &tpp_track.repeat_faults, 0, 31 },                                      \
		{ "repeat_ns", &tpp_track.repeat_ns, 0, 10000 },                                   \
		{ "wake_ms", &tpp_track.wake_ms, 1, 10000 },                                       \
	{                                                                                          \
		"stages", &tpp_track.stages, 0, 1                                                  \
	}
#define TPP_TRACK_STATS                                                                            \
	{ "hint_faults", &tpp_track.hint_faults },                                                 \
		{ "hint_faults_inactive", &tpp_track.hint_faults_inactive },                       \
		{ "repeat_faults", &tpp_track.repeats },                                           \
	{                                                                                          \
		"kswapd_wakes", &tpp_track.wakes                                                   \
	}

/**
 * tpp_track_start() - track from now on
 * @decision: the replacement of should_numa_migrate_memory()
 *
 * Return: 0 or a negative errno, the reason in the kernel log.
 */
int tpp_track_start(struct demeter_replacement *decision);

/**
 * tpp_track_stop() - stop that; nobody is in the replacement when it returns
 * @decision: the same
 */
void tpp_track_stop(struct demeter_replacement *decision);

/**
 * tpp_hint_fault() - note a hint fault
 * @folio: what is mapped there
 * @src_nid: its node
 *
 * Return: whether it is one of SMEM; nothing is to be done for others.
 */
bool tpp_hint_fault(struct folio *folio, int src_nid);

/**
 * tpp_activates() - TPP's decision at a hint fault of SMEM
 * @folio: what is mapped there; it may become active
 *
 * Return: whether it is active, hence to be promoted.
 */
bool tpp_activates(struct folio *folio);

/**
 * tpp_mark_accessed() - put a folio into the batch of those to be activated
 * @folio: not active
 */
void tpp_mark_accessed(struct folio *folio);

#endif /* DEMETER_PEERS_TRACK_H */
