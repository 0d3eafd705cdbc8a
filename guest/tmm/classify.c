// SPDX-License-Identifier: GPL-2.0-only
/*
 * Classify: the epoch worker, which takes samples all the way to a plan.
 *
 * Once per epoch: look for targets, drain what did not switch, put samples
 * into ranges, end the epoch of each target (decay, split, merge), count what
 * is resident where, rank the ranges of all targets together, plan, execute.
 * A decision is made every epoch, whether or not anything was split.
 */
#include <linux/freezer.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/mmzone.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/timekeeping.h>
#include <linux/wait.h>

#include "ledger.h"
#include "relocate.h"
#include "scan.h"
#include "tmm.h"
#include "trace.h"

/* Resident pages of an unchanged target are counted anew after this many epochs. */
#define RECOUNT_EPOCHS		16
/* A target has changed when its anonymous memory did by this, or by 1/64. */
#define RECOUNT_PAGES		512
/* Parts of a CPU that counting anew may take: of a changed and an unchanged target. */
#define RECOUNT_SHARE_CHANGED	32
#define RECOUNT_SHARE_UNCHANGED 512
/* Part of FMEM left free for the kernel and for new processes, as a shift. */
#define HEADROOM_SHIFT		6
/* SMEM latency less FMEM latency if nobody knows better: DCPMM against DRAM. */
#define LATENCY_GAP_PS		108000

static struct task_struct *worker;
static DECLARE_WAIT_QUEUE_HEAD(worker_wait);

/* Under demeter_lock. */
static struct demeter_rank_entry *entries;
static struct demeter_plan plan;
static struct demeter_plan_state plan_state;

/**
 * demeter_worker_should_stop() - is the worker asked to stop
 *
 * For the worker, between steps that take long.
 *
 * Return: whether to leave early.
 */
bool demeter_worker_should_stop(void)
{
	return kthread_should_stop();
}

/**
 * demeter_latency_gap_ps() - SMEM latency less FMEM latency
 *
 * Return: picoseconds: as set, else as measured, else a default.
 */
u64 demeter_latency_gap_ps(void)
{
	u64 gap_ps = READ_ONCE(demeter_params.latency_gap_ns) * 1000;

	return gap_ps ?: demeter_latency_gap_measured_ps() ?: LATENCY_GAP_PS;
}

/* Charge the CPU time since @mark to @stage and move @mark on. */
static void lap(u64 *mark, enum demeter_stage stage)
{
	u64 now = demeter_worker_clock();

	WRITE_ONCE(demeter_stats.stage_ns[stage], demeter_stats.stage_ns[stage] + now - *mark);
	*mark = now;
}

static void consume_samples(void)
{
	struct demeter_target *target = NULL;
	struct demeter_sample sample;
	u32 done = 0;

	while (demeter_drain_pop(&sample)) {
		demeter_latency_gap_sample(&sample);
		if (!target || target->space != sample.space)
			target = demeter_target_of(sample.space);
		if (!target || demeter_ranges_sample(&target->ranges, sample.gva)) {
			demeter_stats.stray_samples++;
			continue;
		}
		demeter_stats.samples++;
		if (sample.tier < DEMETER_TIERS)
			demeter_stats.tier_samples[sample.tier]++;
		if (!(++done % 4096))
			cond_resched();
	}
}

static void end_epoch(void)
{
	struct demeter_target *target;
	u64 ranges = 0;
	u32 space = 0;

	while ((target = demeter_target_next(&space))) {
		struct demeter_ranges_epoch done = {};
		u64 before = target->samples_seen;

		target->samples_seen = target->ranges.samples;
		demeter_ranges_end_epoch(&target->ranges, &done);
		demeter_ledger_realise(space, &target->ranges);
		demeter_stats.splits += done.splits;
		demeter_stats.merges += done.merges;
		ranges += target->ranges.nr;
		trace_demeter_classify(demeter_stats.epochs, space, target->samples_seen - before,
				       done.splits, done.merges, target->ranges.nr);
	}
	demeter_stats.ranges = ranges;
}

/**
 * demeter_target_count() - what is known of the range at an address
 * @target: the target
 * @start: where the range begins
 *
 * Return: the count, or NULL.
 */
struct demeter_count *demeter_target_count(struct demeter_target *target, u64 start)
{
	u32 low = 0, high = target->nr_counts;

	while (low < high) {
		u32 mid = low + (high - low) / 2;

		if (target->count[mid].start < start)
			low = mid + 1;
		else
			high = mid;
	}
	if (low < target->nr_counts && target->count[low].start == start)
		return &target->count[low];
	return NULL;
}

/*
 * Is everything in @target to be counted anew? Walking page tables is the
 * costly part of an epoch in which nothing happens, and costs more the more 4 KiB
 * pages a process has: what it took last time says how soon it may be done again.
 */
static bool count_is_due(const struct demeter_target *target, u64 anon)
{
	u64 elapsed_ns = ktime_get_ns() - target->counted_ns;
	u64 change =
		anon > target->anon_pages ? anon - target->anon_pages : target->anon_pages - anon;

	if (!target->counted_ns)
		return true;
	if (change > RECOUNT_PAGES || change > target->anon_pages / 64)
		return elapsed_ns >= target->count_cost_ns * RECOUNT_SHARE_CHANGED;
	return target->ranges.epoch - target->counted_epoch >= RECOUNT_EPOCHS &&
	       elapsed_ns >= target->count_cost_ns * RECOUNT_SHARE_UNCHANGED;
}

/*
 * Resident pages of the entries of one target. What was counted is kept while
 * bounds, size of the process and our own doings stay the same.
 */
static void count_target(struct demeter_target *target, struct demeter_rank_entry *entry, u32 nr)
{
	u64 anon = get_mm_counter(target->mm, MM_ANONPAGES);
	bool all = count_is_due(target, anon);
	u64 start = demeter_worker_clock();
	u32 old = 0, i;

	nr = min_t(u32, nr, DEMETER_TARGET_RANGES);
	for (i = 0; i < nr; i++) {
		struct demeter_count *count = &target->spare[i];
		bool known = false;

		while (old < target->nr_counts && target->count[old].start < entry[i].start)
			old++;
		if (old < target->nr_counts && target->count[old].start == entry[i].start &&
		    target->count[old].end == entry[i].end) {
			*count = target->count[old];
			known = !count->stale;
		} else {
			*count = (struct demeter_count){
				.start = entry[i].start,
				.end = entry[i].end,
			};
		}
		if (all || !known) {
			demeter_scan_count(target->mm, count->start, count->end,
					   demeter_params.fmem_node, demeter_params.smem_node,
					   count->pages);
			count->stale = false;
			cond_resched();
		}
		memcpy(entry[i].pages, count->pages, sizeof(entry[i].pages));
	}
	swap(target->count, target->spare);
	target->nr_counts = nr;
	if (all) {
		target->anon_pages = anon;
		target->counted_epoch = target->ranges.epoch;
		target->counted_ns = ktime_get_ns();
		target->count_cost_ns = demeter_worker_clock() - start;
	}
}

static u32 gather(u64 *mark)
{
	struct demeter_target *target;
	u32 nr = 0, space = 0, before;

	while ((target = demeter_target_next(&space))) {
		before = nr;
		nr = demeter_rank_gather(&target->ranges, space, entries, nr, DEMETER_MAX_ENTRIES);
		lap(mark, DEMETER_STAGE_RANK);
		if (mmget_not_zero(target->mm)) {
			count_target(target, entries + before, nr - before);
			mmput(target->mm);
		}
		lap(mark, DEMETER_STAGE_SCAN);
	}
	return nr;
}

/* Hide from the planner what would only be refused again. */
static void apply_back_off(u32 nr)
{
	u32 i, tier;

	for (i = 0; i < nr; i++) {
		struct demeter_target *target = demeter_target_of(entries[i].space);
		struct demeter_count *count;

		count = target ? demeter_target_count(target, entries[i].start) : NULL;
		for (tier = 0; count && tier < DEMETER_TIERS; tier++)
			if ((s32)(count->retry_epoch[tier] - target->ranges.epoch) > 0)
				entries[i].pages[tier] = 0;
	}
}

static u64 free_fmem_pages(void)
{
	int nid = demeter_params.fmem_node;
	u64 room = demeter_relocate_room(nid);
	u64 fillable = demeter_fillable_pages(room);
	u64 headroom = NODE_DATA(nid)->node_present_pages >> HEADROOM_SHIFT;

	return room > headroom ? min(room - headroom, fillable) : 0;
}

static void make_plan(u32 nr)
{
	u64 rate = READ_ONCE(demeter_params.rate_pages_per_s);
	struct demeter_plan_params params = {
		.sample_period = demeter_accesses_per_sample(),
		.epoch_ns = READ_ONCE(demeter_params.epoch_ms) * NSEC_PER_MSEC,
		.latency_gap_ps = demeter_latency_gap_ps(),
		.horizon_ns = READ_ONCE(demeter_params.horizon_ms) * NSEC_PER_MSEC,
		.swap_cost_ns = demeter_swap_cost_ns(),
		.move_cost_ns = demeter_move_cost_ns(),
		.hysteresis_permille = READ_ONCE(demeter_params.hysteresis_permille),
		.significance = READ_ONCE(demeter_params.significance),
		.rate_pages_per_s = rate,
		.burst_pages = rate,
	};

	plan.nr = 0;
	demeter_plan_make(&plan, &plan_state, &params, entries, nr, free_fmem_pages(),
			  ktime_get_ns());
	trace_demeter_plan(demeter_stats.epochs, plan.nr, plan.fill_pages, plan.swap_pages,
			   plan.end);
}

static void epoch_run(void)
{
	u64 mark = demeter_worker_clock();
	u32 nr;

	demeter_sampler_look_after();
	mutex_lock(&demeter_lock);
	demeter_targets_discover();
	demeter_targets_refresh();
	lap(&mark, DEMETER_STAGE_CLASSIFY);
	demeter_drain_all_cpus();
	lap(&mark, DEMETER_STAGE_DRAIN);
	consume_samples();
	demeter_latency_gap_end_epoch();
	end_epoch();
	lap(&mark, DEMETER_STAGE_CLASSIFY);
	if (demeter_targets_nr()) {
		nr = gather(&mark);
		demeter_rank(entries, nr);
		lap(&mark, DEMETER_STAGE_RANK);
		apply_back_off(nr);
		make_plan(nr);
		lap(&mark, DEMETER_STAGE_PLAN);
		demeter_execute(&plan, entries);
	}
	WRITE_ONCE(demeter_stats.epochs, demeter_stats.epochs + 1);
	demeter_stats_update_lost();
	demeter_model_report_epoch();
	demeter_provider_epoch_ended();
	mutex_unlock(&demeter_lock);
}

static int worker_main(void *unused)
{
	unsigned long next = jiffies;

	set_freezable();
	while (!kthread_should_stop()) {
		unsigned long period = msecs_to_jiffies(READ_ONCE(demeter_params.epoch_ms)) ?: 1;
		long left;

		/* From epoch to epoch, not from end to beginning; but never catch up. */
		next += period;
		left = next - jiffies;
		if (left <= 0 || left > (long)period) {
			next = jiffies + period;
			left = period;
		}
		wait_event_freezable_timeout(worker_wait, kthread_should_stop(), left);
		if (!kthread_should_stop())
			epoch_run();
	}
	return 0;
}

/**
 * demeter_worker_start() - start the epoch worker
 *
 * Return: 0 or a negative errno.
 */
int demeter_worker_start(void)
{
	struct task_struct *task;

	entries = kvcalloc(DEMETER_MAX_ENTRIES, sizeof(*entries), GFP_KERNEL);
	plan.step = kvcalloc(DEMETER_MAX_STEPS, sizeof(*plan.step), GFP_KERNEL);
	plan.capacity = DEMETER_MAX_STEPS;
	plan_state = (struct demeter_plan_state){};
	demeter_latency_gap_reset();
	task = entries && plan.step ? kthread_create(worker_main, NULL, "kdemeterd")
				    : ERR_PTR(-ENOMEM);
	if (IS_ERR(task)) {
		kvfree(entries);
		kvfree(plan.step);
		return PTR_ERR(task);
	}
	worker = get_task_struct(task);
	demeter_drain_watch(worker);
	wake_up_process(worker);
	return 0;
}

/**
 * demeter_worker_stop() - stop the epoch worker, within one batch of its work
 */
void demeter_worker_stop(void)
{
	kthread_stop(worker);
	demeter_drain_watch(NULL);
	put_task_struct(worker);
	worker = NULL;
	kvfree(entries);
	kvfree(plan.step);
	entries = NULL;
	plan.step = NULL;
}
