/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Demeter's tiered memory manager: what its files share.
 *
 * A sample travels sampler_*.c -> drain.c -> (channel) -> worker.c ->
 * execute.c; targets.c knows the managed address spaces, recount.c what is
 * resident in them; sysfs.c, stats.c, dump.c and trace.h show what happened.
 *
 * What an epoch decides with is the epoch worker's own, and no lock protects it:
 * the ranges of every target, the cells of what is resident, cursors, and struct
 * demeter_context. What others may read is published by target: an array of
 * struct demeter_count, made anew each epoch and exchanged under the target's lock.
 * So no lock is held across a walk of page tables, a classification or a move,
 * nor while anything is freed that an address space holds.
 *
 * Locks, outermost first:
 *
 * demeter_control_lock (mutex) protects the on/off state, the choice of the
 *	sampler and the parameters that can only change with it.
 * demeter_lock (mutex) protects the registry of targets for writers, and the
 *	groups and cgroups (cgroups.c). Held for some lookups and insertions at most.
 * demeter_targets_read_lock() (SRCU) keeps every target that was found from
 *	being freed. The worker holds it for an epoch; nobody waits for it.
 * demeter_target.lock (mutex) protects what the target has published.
 * mmap_lock of a target is taken for reading, under none of the mutexes, for
 *	one slice of a walk.
 * The owners of shared objects have a mutex of their own (shared_objects.c), below
 *	mmap_lock and demeter_lock; nothing is taken under it.
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
#include <linux/srcu.h>
#include <linux/types.h>

#include <demeter/channel.h>
#include <demeter/finer.h>
#include <demeter/plan.h>
#include <demeter/ranges.h>
#include <demeter/rank.h>
#include <demeter/resident.h>
#include <demeter_model.h>

#include "cgroups.h"
#include "ledger.h"
#include "refusal.h"
#include "sampler.h"
#include "tiers.h"

struct address_space;
struct attribute_group;
struct mm_struct;
struct task_struct;
struct vm_area_struct;

#define DEMETER_MAX_TARGETS 1024 /* managed address spaces */
#define DEMETER_MAX_SHARED  8	 /* shared objects known in one address space */

/* Of 4 KiB pages; first guesses until something was measured. */
#define DEMETER_FIRST_SWAP_COST_NS 3000
#define DEMETER_FIRST_MOVE_COST_NS 2000

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
 * @batch_pairs: pairs exchanged with one TLB flush
 * @auto_min_bytes: manage every address space with this much anonymous and
 *	shared memory mapped in, 0 = none
 * @finer: place base pages of huge pages whose accesses concentrate: DEMETER_FINER_OFF,
 *	DEMETER_FINER_ON or DEMETER_FINER_AUTO
 * @finer_walk_ns: see struct demeter_finer_params
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
	unsigned long batch_pairs;
	unsigned long auto_min_bytes;
	unsigned long finer;
	unsigned long finer_walk_ns;
};

extern struct demeter_params demeter_params;

/* How a target came to be one. */
enum demeter_origin { DEMETER_BY_PID, DEMETER_BY_CGROUP, DEMETER_BY_SIZE };

/**
 * struct demeter_count - one range as published, and how moving it went
 * @start: first byte, as in the range
 * @end: one past the last byte
 * @rate: see struct demeter_range
 * @pages: resident 4 KiB pages by tier
 * @next: by tier: where to look for pages to move next time, 0 = at @start
 * @born_epoch: see struct demeter_range
 * @retry_epoch: on near routes and far ones, by tier: not before this epoch
 * @area: see struct demeter_range
 * @back_off: likewise: log2 of the epochs to leave the range alone next time
 */
struct demeter_count {
	u64 start;
	u64 end;
	u64 rate;
	u64 pages[DEMETER_TIERS];
	u64 next[DEMETER_TIERS];
	u32 born_epoch;
	u32 retry_epoch[2][DEMETER_TIERS];
	u8 area;
	u8 back_off[2][DEMETER_TIERS];
};

/**
 * struct demeter_pass - a walk over all of an address space, in slices
 * @running: begun and not yet at its end
 * @goes_on: it came further in this epoch
 * @wanted: pages were not where they were believed to be
 * @cursor: where the next slice begins
 * @resident_pages: resident pages when it began
 * @epoch: epoch in which the last one ended
 * @ended_ns: when that was, 0 = never
 * @cost_ns: CPU time of the last one, or of the one that runs so far
 */
struct demeter_pass {
	bool running;
	bool goes_on;
	bool wanted;
	u64 cursor;
	u64 resident_pages;
	u32 epoch;
	u64 ended_ns;
	u64 cost_ns;
};

/**
 * struct demeter_shared - a mapping of memory that others may map too
 * @mapping: the object, only compared
 * @start: first byte in this address space
 * @end: one past the last byte
 * @first_page: page of the object at @start
 * @owner_space: number of the address space that has it in its ranges, 0 for this
 * @owner_start: where @start is there
 */
struct demeter_shared {
	const struct address_space *mapping;
	u64 start;
	u64 end;
	u64 first_page;
	u32 owner_space;
	u64 owner_start;
};

/**
 * struct demeter_shared_list - those of one address space
 * @part: by address
 * @nr: length of @part
 */
struct demeter_shared_list {
	struct demeter_shared part[DEMETER_MAX_SHARED];
	u32 nr;
};

struct demeter_target;

/**
 * struct demeter_shared_owned - a part of a list that is in the ranges of its address space
 * @node: in the hash of these by object
 * @target: the address space
 */
struct demeter_shared_owned {
	struct hlist_node node;
	struct demeter_target *target;
};

/**
 * struct demeter_refused_class - base pages of a class (finer.h) that would not move
 * @retry_epoch: not before this epoch
 * @back_off: log2 of the epochs to leave them alone next time
 */
struct demeter_refused_class {
	u64 retry_epoch;
	u32 back_off;
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
 * @group: slot of its group, 0 for none; written under demeter_lock
 * @lock: protects @count, @nr_counts and @count_epoch against readers; the
 *	worker, who alone writes them, reads them without
 * @count: published, sorted by address
 * @nr_counts: length of @count
 * @count_capacity: room in @count
 * @count_epoch: epoch of @ranges when it was published
 * @ranges: classification; the worker's, as is all below
 * @spare: the array to build the next @count in
 * @spare_capacity: room in @spare
 * @resident: pages by cell, by column of demeter_tiers
 * @pass: the walk that corrects @resident
 * @samples_seen: samples of @ranges at the end of the last epoch
 * @denied_seen: denied splits of @ranges then
 * @resident_pages: resident pages now, as the kernel counts them
 * @own_pages: of them, those that lie in its own ranges
 * @managed_ns: for so long it has been managed, by whole epochs
 * @has_run: an epoch has ended since it was added
 * @busy_epoch: epochs, and one, when its mmap_lock was not to be had for finer.c
 * @shared: memory that others may map too, as seen with the areas
 * @owned: where parts of @shared are found by others; under the lock of shared_objects.c
 * @is_forgotten: none will be found any more; likewise
 * @seen_brk: end of the heap when the areas were looked at last
 * @seen_total_vm: size of the address space then
 * @seen_map_count: number of its mappings then
 * @seen_epoch: epoch of that
 * @refused: by class and tier
 * @is_divided: some of its granules are (finer.h), as published last
 * @is_stopped: nothing of it is promoted now, but for @returns
 * @returns: see demeter_ledger_is_stopped()
 */
struct demeter_target {
	struct hlist_node node;
	struct rcu_head rcu;
	struct mm_struct *mm;
	u32 space;
	pid_t pid;
	enum demeter_origin origin;
	u32 group;

	struct mutex lock; /* the next four, against readers */
	struct demeter_count *count;
	u32 nr_counts;
	u32 count_capacity;
	u32 count_epoch;

	struct demeter_ranges ranges;
	struct demeter_count *spare;
	u32 spare_capacity;
	struct demeter_resident resident[DEMETER_MAX_COLUMNS];
	struct demeter_pass pass;
	u64 samples_seen;
	u64 denied_seen;
	u64 resident_pages;
	u64 own_pages;
	u64 managed_ns;
	bool has_run;
	u64 busy_epoch;
	struct demeter_shared_list shared;
	struct demeter_shared_owned owned[DEMETER_MAX_SHARED];
	bool is_forgotten;
	unsigned long seen_brk;
	unsigned long seen_total_vm;
	int seen_map_count;
	u32 seen_epoch;
	struct demeter_refused_class refused[DEMETER_FINER_CLASSES][DEMETER_TIERS];
	bool is_divided;
	bool is_stopped;
	struct demeter_ledger_returns returns;
};

/**
 * struct demeter_span - where the pages of a step of the plan were taken
 * @hot_from: first address looked at in the hot range
 * @hot_to: one past the last
 * @cold_from: the same in the cold range
 * @cold_to: the same
 * @pages: 4 KiB pages taken
 */
struct demeter_span {
	u64 hot_from;
	u64 hot_to;
	u64 cold_from;
	u64 cold_to;
	u64 pages;
};

/**
 * struct demeter_context - what the epoch worker decides with
 * @entries: ranges of all targets, ranked together
 * @max_entries: room in @entries
 * @plan: the plan; room for as many steps as its capacity says
 * @plan_state: what the planner remembers
 * @shares: the groups, and what they have
 * @span: by step of the plan: where its pages of the running batch came from
 * @cells: what a slice of a walk finds, by column
 * @spare_leaf: to be used when a slice finds something in a new place
 * @first_space: the target whose walk goes on first in the next epoch
 * @swap_cost_ns: measured cost of exchanging a pair of 4 KiB pages
 * @move_cost_ns: measured cost of moving a 4 KiB page into free FMEM
 * @route: the way that @plan goes
 * @fill_paused_until_epoch: by column: free FMEM took nothing
 * @refusing_pages: by column: of free FMEM, while paused
 *
 * The worker's own; others read single words of it.
 */
struct demeter_context {
	struct demeter_rank_entry *entries;
	u32 max_entries;
	struct demeter_plan plan;
	struct demeter_plan_state plan_state;
	struct demeter_group_shares *shares;
	struct demeter_span *span;
	struct demeter_cells *cells;
	struct demeter_leaf *spare_leaf;
	u32 first_space;
	u64 swap_cost_ns;
	u64 move_cost_ns;
	struct demeter_route route;
	u64 fill_paused_until_epoch[DEMETER_MAX_COLUMNS];
	u64 refusing_pages[DEMETER_MAX_COLUMNS];
};

extern struct demeter_context demeter_context;

/* main.c */
extern struct mutex demeter_control_lock;
extern struct mutex demeter_lock;
bool demeter_is_enabled(void);
int demeter_enable(void);
void demeter_disable(void);
int demeter_sampler_restart(void);
int demeter_numa_balancing_mode(void);

/* sampler.c */
const struct demeter_sampler_ops *demeter_sampler_active(void);
const char *demeter_sampler_choice(void);
u32 demeter_sampler_source(void);
const char *demeter_sampler_delivery(void);
void demeter_sampler_look_after(void);
bool demeter_sampler_sees(const struct mm_struct *mm);
u64 demeter_accesses_per_sample(void);
int demeter_sampler_choose(const char *name);
int demeter_sampler_claim(void);
void demeter_sampler_release(void);
int demeter_sampling_start(void);
void demeter_sampling_stop(void);

/* drain.c */
int demeter_drain_start(void);
void demeter_drain_stop(void);
bool demeter_cpu_is_quiet(unsigned int cpu);
void demeter_drain_watch(struct task_struct *worker);
u64 demeter_worker_clock(void);
bool demeter_drain_pop(struct demeter_sample *sample);
u64 demeter_drain_discard(void);
u64 demeter_drain_lost(void);

/* targets.c */
int demeter_targets_read_lock(void);
void demeter_targets_read_unlock(int index);
void demeter_targets_exit(void);
int demeter_targets_add_pid(pid_t pid);
int demeter_targets_remove_pid(pid_t pid);
u64 demeter_registry_lock(void);
void demeter_registry_unlock(u64 since_ns);
void demeter_targets_regroup(void);
void demeter_targets_discover(void);
void demeter_targets_refresh(void);
bool demeter_targets_space_of(const struct mm_struct *mm, u32 *space);
struct demeter_target *demeter_target_of(u32 space);
struct demeter_target *demeter_target_next(u32 *space);
u32 demeter_targets_nr(void);
u32 demeter_targets_hold(struct mm_struct **mm, u32 capacity);

/* publish.c */
u32 demeter_publish(struct demeter_target *target, struct demeter_rank_entry *entries, u32 nr,
		    u32 capacity);
struct demeter_count *demeter_target_count(struct demeter_target *target, u64 start);
u64 demeter_target_lock(struct demeter_target *target);
void demeter_target_unlock(struct demeter_target *target, u64 since_ns);

/* recount.c */
bool demeter_recount(struct demeter_context *ctx);
u32 demeter_recount_known(const struct demeter_target *target, u32 nr);
bool demeter_recount_room(struct demeter_context *ctx, struct demeter_resident *res);
void demeter_recount_forget(struct demeter_target *target);

/* areas.c */
void demeter_target_refresh_areas(struct demeter_target *target);

/* shared_objects.c */
bool demeter_shared_any_elsewhere(const struct demeter_target *target);
bool demeter_shared_elsewhere(const struct vm_area_struct *vma);
bool demeter_shared_note(struct demeter_target *target, struct demeter_shared_list *list,
			 const struct vm_area_struct *vma);
struct demeter_target *demeter_shared_place(struct demeter_target *target, u64 *gva);
void demeter_shared_set(struct demeter_target *target, const struct demeter_shared_list *list);
void demeter_shared_forget(struct demeter_target *target);

/* routes.c */
bool demeter_routes_run(struct demeter_context *ctx, u32 nr, bool managed, u64 begun_ns);

/* worker.c */
int demeter_worker_start(void);
void demeter_worker_stop(void);
bool demeter_worker_should_stop(void);

/* pacing.c */
void demeter_pacing_start(void);
u32 demeter_pacing_shift(void);
u32 demeter_pacing_sparse(void);
u32 demeter_pacing_held(void);
u64 demeter_pacing_full_samples(enum demeter_tier tier);
u64 demeter_pacing_period(void);
u64 demeter_pacing_epoch_ns(void);
u32 demeter_pacing_ticks(void);
u64 demeter_pacing_passed_ns(void);
bool demeter_pacing_tick(void);
void demeter_pacing_end_epoch(bool waiting);
extern const struct attribute_group demeter_pacing_stats_group;

/* sampler_form.c */
extern const struct attribute_group demeter_form_stats_group;

/* latency_gap.c */
void demeter_latency_gap_reset(void);
void demeter_latency_gap_sample(const struct demeter_sample *sample);
void demeter_latency_gap_end_epoch(void);
u64 demeter_latency_gap_measured_ps(void);
u64 demeter_latency_gap_ps(void);
u64 demeter_latency_remote_ps(u32 distance);

/* model_report.c */
void demeter_model_report_start(void);
void demeter_model_report(void);
void demeter_model_report_stop(void);

/* execute.c */
void demeter_execute(struct demeter_context *ctx);
void demeter_execute_nothing(struct demeter_context *ctx);
u64 demeter_swap_cost_ns(void);
u64 demeter_fillable_pages(u32 column, u64 room_pages);
u64 demeter_move_cost_ns(void);

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
 * @denied_splits: splits not made for want of room
 * @unranked_ranges: ranges left out of the ranking for want of memory
 * @compared_mappings: shared mappings of other address spaces that were looked at to find
 *	whose ranges one is in
 * @walked_entries: entries of page tables looked at to count what is resident
 * @unwalked_bytes: what the walks that have begun have not reached yet, now
 * @lock_held_max_ns: longest that a lock of this module was held
 * @mmap_lock_held_max_ns: longest that the worker held a target's mmap_lock
 * @epoch_max_ns: most CPU time that an epoch took, without moving pages
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
	u64 denied_splits;
	u64 unranked_ranges;
	u64 compared_mappings;
	u64 walked_entries;
	u64 unwalked_bytes;
	u64 lock_held_max_ns;
	u64 mmap_lock_held_max_ns;
	u64 epoch_max_ns;
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
 * @switches: context switches while enabled
 * @timed_interrupts: interrupts for a single record whose length perf told
 * @interrupt_ns: what those took
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
	u64 switches;
	u64 timed_interrupts;
	u64 interrupt_ns;
};

DECLARE_PER_CPU(struct demeter_cpu_stats, demeter_cpu_stats);

void demeter_stats_max(u64 *most, u64 value);
u64 demeter_stats_refused_pages(void);
u64 demeter_stats_stray_samples(void);
u64 demeter_stats_cpu_sum(size_t offset);
u64 demeter_stats_stage_ns(enum demeter_stage stage);
void demeter_stats_update_lost(void);
void demeter_stats_settle_lost(void);

/* sysfs.c */
int demeter_sysfs_init(void);
void demeter_sysfs_exit(void);
int demeter_params_check(void);

/* dump.c */
int demeter_dump_init(struct kobject *parent);
void demeter_dump_exit(struct kobject *parent);

#endif /* DEMETER_TMM_H */
