/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Demeter's tiered memory manager: what its files share.
 *
 * A sample travels sampler_*.c -> drain.c -> (channel) -> classify.c ->
 * execute.c; targets.c knows the managed address spaces; sysfs.c, stats.c,
 * dump.c and trace.h show what happened.
 *
 * Locks, outermost first:
 *
 * demeter_control_lock (mutex) protects the on/off state, the choice of the
 *	sampler and the parameters that can only change with it.
 * demeter_lock (mutex) protects the registry of targets for writers, the
 *	ranges and page counts of every target, and the planner's state. The
 *	epoch worker holds it for a whole epoch.
 * mmap_lock of a target is taken for reading under demeter_lock.
 * RCU protects the lookup of a target by its mm from the drain.
 * The ledger has a mutex of its own, innermost of all.
 *
 * The drain runs under the run queue lock or in an interrupt with interrupts
 * off: it takes no lock, wakes nobody and prints nothing.
 */
#ifndef DEMETER_TMM_H
#define DEMETER_TMM_H

#include <linux/kobject.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/types.h>

#include <demeter/channel.h>
#include <demeter/plan.h>
#include <demeter/ranges.h>
#include <demeter/rank.h>
#include <demeter_model.h>

#include "refusal.h"
#include "sampler.h"

struct mm_struct;
struct task_struct;

#define DEMETER_MAX_TARGETS   64   /* managed address spaces */
#define DEMETER_TARGET_RANGES 512  /* ranges of one of them */
#define DEMETER_MAX_ENTRIES   4096 /* ranges ranked together */
#define DEMETER_MAX_STEPS     512  /* steps of one epoch's plan */

/**
 * struct demeter_params - parameters, as named in sysfs and at load time
 * @sample_period: events that one sample stands for
 * @latency_threshold_ns: loads at or above this latency are events
 * @epoch_ms: length of an epoch
 * @split_samples: see struct demeter_ranges_params
 * @significance: see struct demeter_ranges_params and demeter_plan_params
 * @merge_epochs: see struct demeter_ranges_params
 * @granule_bytes: see struct demeter_ranges_params
 * @horizon_ms: how long a placement is expected to last at most
 * @hysteresis_permille: how much more than its cost a swap must gain
 * @rate_pages_per_s: pages relocated per second at most, 0 = no cap
 * @latency_gap_ns: SMEM latency less FMEM latency, 0 = measure it
 * @fmem_node: NUMA node of the fast tier
 * @smem_node: NUMA node of the slow tier
 * @batch_pairs: pairs exchanged with one TLB flush
 * @auto_min_bytes: manage every address space with this much anonymous
 *	memory, 0 = none
 *
 * Single words, written by sysfs and read with READ_ONCE().
 */
struct demeter_params {
	unsigned long sample_period;
	unsigned long latency_threshold_ns;
	unsigned long epoch_ms;
	unsigned long split_samples;
	unsigned long significance;
	unsigned long merge_epochs;
	unsigned long granule_bytes;
	unsigned long horizon_ms;
	unsigned long hysteresis_permille;
	unsigned long rate_pages_per_s;
	unsigned long latency_gap_ns;
	unsigned long fmem_node;
	unsigned long smem_node;
	unsigned long batch_pairs;
	unsigned long auto_min_bytes;
};

extern struct demeter_params demeter_params;

/* How a target came to be one. */
enum demeter_origin { DEMETER_BY_PID, DEMETER_BY_CGROUP, DEMETER_BY_SIZE };

/**
 * struct demeter_count - what is resident in one range, and how moving it went
 * @start: first byte, as in the range
 * @end: one past the last byte
 * @pages: resident anonymous 4 KiB pages by tier
 * @stale: pages moved since
 * @back_off: by tier: log2 of the epochs to leave the range alone next time
 * @retry_epoch: by tier: not before this epoch
 */
struct demeter_count {
	u64 start;
	u64 end;
	u64 pages[DEMETER_TIERS];
	bool stale;
	u8 back_off[DEMETER_TIERS];
	u32 retry_epoch[DEMETER_TIERS];
};

/**
 * struct demeter_target - one managed address space
 * @node: in the hash of address spaces by mm (RCU)
 * @rcu: to free it
 * @mm: the address space; holds mm_count, so that the pointer stays unique,
 *	but not mm_users, so that a process can exit
 * @space: number of the address space in samples, ranks and dumps; never reused
 *	while samples with it may be queued
 * @pid: thread group when it was added, for people to read
 * @origin: how it came to be a target
 * @ranges: classification; demeter_lock
 * @range: memory of @ranges
 * @count: sorted by address, one for each range; demeter_lock
 * @spare: the array to build the next @count in
 * @nr_counts: length of @count
 * @anon_pages: anonymous pages when everything was counted last
 * @samples_seen: samples of @ranges at the end of the last epoch
 * @counted_epoch: epoch in which everything was counted
 * @counted_ns: when that was, 0 = never
 * @count_cost_ns: CPU time that it took
 * @seen_brk: end of the heap when the areas were set last
 * @seen_total_vm: size of the address space then
 * @seen_map_count: number of its mappings then
 * @seen_epoch: epoch of that
 */
struct demeter_target {
	struct hlist_node node;
	struct rcu_head rcu;
	struct mm_struct *mm;
	u32 space;
	pid_t pid;
	enum demeter_origin origin;
	struct demeter_ranges ranges;
	struct demeter_range *range;
	struct demeter_count *count;
	struct demeter_count *spare;
	u32 nr_counts;
	u64 anon_pages;
	u64 samples_seen;
	u32 counted_epoch;
	u64 counted_ns;
	u64 count_cost_ns;
	unsigned long seen_brk;
	unsigned long seen_total_vm;
	int seen_map_count;
	u32 seen_epoch;
};

/* main.c */
extern struct mutex demeter_control_lock;
extern struct mutex demeter_lock;
bool demeter_is_enabled(void);
int demeter_enable(void);
void demeter_disable(void);
const struct demeter_sampler_ops *demeter_sampler_active(void);
const char *demeter_sampler_choice(void);
const char *demeter_sampler_delivery(void);
void demeter_sampler_look_after(void);
u64 demeter_accesses_per_sample(void);
int demeter_sampler_choose(const char *name);
int demeter_sampler_restart(void);
int demeter_nodes_check(unsigned long fmem, unsigned long smem);
int demeter_numa_balancing_mode(void);

/* drain.c */
int demeter_drain_start(void);
void demeter_drain_stop(void);
void demeter_drain_all_cpus(void);
void demeter_drain_watch(struct task_struct *worker);
u64 demeter_worker_clock(void);
bool demeter_drain_pop(struct demeter_sample *sample);
u64 demeter_drain_discard(void);
u64 demeter_drain_lost(void);

/* targets.c */
void demeter_targets_exit(void);
int demeter_targets_add_pid(pid_t pid);
int demeter_targets_remove_pid(pid_t pid);
int demeter_targets_set_cgroup(const char *path);
ssize_t demeter_targets_cgroup_path(char *buf, size_t size);
void demeter_targets_discover(void);
void demeter_targets_refresh(void);
bool demeter_targets_space_of(const struct mm_struct *mm, u32 *space);
struct demeter_target *demeter_target_of(u32 space);
struct demeter_target *demeter_target_next(u32 *space);
u32 demeter_targets_nr(void);

/* classify.c */
int demeter_worker_start(void);
void demeter_worker_stop(void);
bool demeter_worker_should_stop(void);
u64 demeter_latency_gap_ps(void);

/* latency_gap.c */
void demeter_latency_gap_reset(void);
void demeter_latency_gap_sample(const struct demeter_sample *sample);
void demeter_latency_gap_end_epoch(void);
u64 demeter_latency_gap_measured_ps(void);

/* model_report.c */
void demeter_model_report_start(void);
void demeter_model_report_epoch(void);
void demeter_model_report_stop(void);

/* execute.c */
void demeter_execute(const struct demeter_plan *plan, const struct demeter_rank_entry *ranked);
u64 demeter_swap_cost_ns(void);
u64 demeter_fillable_pages(u64 room_pages);
u64 demeter_move_cost_ns(void);
struct demeter_count *demeter_target_count(struct demeter_target *target, u64 start);

/* stats.c */

/**
 * struct demeter_stats - totals since load
 * @epochs: epochs ended
 * @samples: samples that reached a range
 * @stray_samples: samples of managed address spaces outside every range
 * @lost_samples: samples lost by the sampler, by a full channel, or by switching off
 * @lost_before: of @lost_samples, those of earlier times enabled
 * @tier_samples: @samples by tier, where the sampler knows it
 * @sampler_restarts: times that a CPU's sampling was found dead and started again
 * @sampler_dead_cpus: CPUs that should sample and do not, now
 * @ranges: ranges now
 * @splits: splits of ranges
 * @merges: merges of ranges
 * @promoted_pages: 4 KiB pages moved from SMEM to FMEM, exchanged or filled
 * @demoted_pages: 4 KiB pages moved from FMEM to SMEM
 * @filled_pages: of @promoted_pages, those moved into free FMEM
 * @refused: pages not moved, by reason
 * @stage_ns: CPU time of the worker by stage; the drain's is kept per CPU
 *
 * Written by the epoch worker alone, and by whoever stops it.
 */
struct demeter_stats {
	u64 epochs;
	u64 samples;
	u64 stray_samples;
	u64 lost_samples;
	u64 lost_before;
	u64 tier_samples[DEMETER_TIERS];
	u64 sampler_restarts;
	u64 sampler_dead_cpus;
	u64 ranges;
	u64 splits;
	u64 merges;
	u64 promoted_pages;
	u64 demoted_pages;
	u64 filled_pages;
	struct demeter_refusals refused;
	u64 stage_ns[DEMETER_STAGES];
};

extern struct demeter_stats demeter_stats;

/**
 * struct demeter_cpu_stats - what samplers and the drain count, on their own CPU
 * @drain_ns: time spent draining
 * @stray_samples: samples of address spaces that are not managed
 * @traced_records: records seen where perf hands them to its output
 * @handled_records: records that perf gave to the overflow handler
 * @unused_records: of both, those that are no sample: no user-space load with an
 *	address, or below the threshold
 * @lost_records: records that perf could not attribute
 * @throttled: times that perf stopped the counter until the next tick
 *
 * Once sampling has stopped, @traced_records and @handled_records are together
 * @unused_records, and of struct demeter_stats @samples, @lost_samples less
 * @lost_records, and the stray samples of both.
 */
struct demeter_cpu_stats {
	u64 drain_ns;
	u64 stray_samples;
	u64 traced_records;
	u64 handled_records;
	u64 unused_records;
	u64 lost_records;
	u64 throttled;
};

DECLARE_PER_CPU(struct demeter_cpu_stats, demeter_cpu_stats);

u64 demeter_stats_refused_pages(void);
u64 demeter_stats_stray_samples(void);
u64 demeter_stats_cpu_sum(size_t offset);
u64 demeter_stats_stage_ns(enum demeter_stage stage);
void demeter_stats_update_lost(void);
void demeter_stats_settle_lost(void);

/* provider.c */
void demeter_provider_epoch_ended(void);

/* sysfs.c */
int demeter_sysfs_init(void);
void demeter_sysfs_exit(void);
int demeter_params_check(void);

/* dump.c */
int demeter_dump_init(struct kobject *parent);
void demeter_dump_exit(struct kobject *parent);

#endif /* DEMETER_TMM_H */
