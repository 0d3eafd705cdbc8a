// SPDX-License-Identifier: GPL-2.0-only
/*
 * Worker: the thread that takes samples all the way to a plan.
 *
 * Once per tick: look for targets, drain what did not switch, put samples into
 * ranges. Once per epoch, which is a tick or several (pacing.c): end the epoch of each
 * target (decay, split, merge), count what is resident where, rank the ranges of all
 * targets together, plan, execute (routes.c).
 * A decision is made every epoch, whether or not anything was split.
 *
 * All of it works on what is the worker's own, see tmm.h, so no lock is held.
 */
#include <linux/freezer.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/timekeeping.h>
#include <linux/wait.h>

#include "finer.h"
#include "ledger.h"
#include "relocate.h"
#include "tiers.h"
#include "tmm.h"
#include "trace.h"

/* Room in the ranking to begin with, and steps of a plan at least. */
#define FIRST_ENTRIES	 512
#define FIRST_STEPS	 512
/* One step of a plan for so many ranges. */
#define ENTRIES_PER_STEP 8
/* As many as the largest channel holds. */
#define SAMPLES_AT_ONCE	 (512u * 1024)

static struct task_struct *worker;
static DECLARE_WAIT_QUEUE_HEAD(worker_wait);

struct demeter_context demeter_context = {
	.swap_cost_ns = DEMETER_FIRST_SWAP_COST_NS,
	.move_cost_ns = DEMETER_FIRST_MOVE_COST_NS,
};

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

/* Charge the CPU time since @mark to @stage and move @mark on. */
static void lap(u64 *mark, enum demeter_stage stage)
{
	u64 now = demeter_worker_clock();

	WRITE_ONCE(demeter_stats.stage_ns[stage], demeter_stats.stage_ns[stage] + now - *mark);
	*mark = now;
}

/* In the range that holds it, or by page; false if there is none. */
static bool count_sample(struct demeter_target *owner, u64 gva, const struct demeter_sample *sample)
{
	if (demeter_finer_table && demeter_ranges_find(&owner->ranges, gva) &&
	    demeter_finer_takes(owner, gva, sample->tier))
		return true;
	return !demeter_ranges_samples(&owner->ranges, gva, 1 + sample->more);
}

static void consume_samples(void)
{
	struct demeter_target *target = NULL, *owner;
	struct demeter_sample sample;
	u32 done = 0;

	/* No more than the channel holds: what comes meanwhile is of the next epoch. */
	while (done < SAMPLES_AT_ONCE && demeter_drain_pop(&sample)) {
		u64 gva = sample.gva;

		if (!(++done % 4096))
			cond_resched();
		demeter_latency_gap_sample(&sample);
		if (!target || target->space != sample.space)
			target = demeter_target_of(sample.space);
		owner = target ? demeter_shared_place(target, &gva) : NULL;
		if (!owner || !count_sample(owner, gva, &sample)) {
			demeter_stats.stray_samples += 1 + sample.more;
			continue;
		}
		demeter_stats.samples += 1 + sample.more;
		if (sample.tier < DEMETER_TIERS)
			demeter_stats.tier_samples[sample.tier] += 1 + sample.more;
	}
}

static void end_epoch(void)
{
	struct demeter_target *target;
	u64 ranges = 0, denied = 0;
	u32 space = 0;

	while ((target = demeter_target_next(&space))) {
		struct demeter_ranges_epoch done = {};
		u64 before = target->samples_seen;

		target->samples_seen = target->ranges.samples;
		demeter_ranges_end_epoch(&target->ranges, &done);
		demeter_ledger_realise(space, &target->ranges, target->samples_seen - before);
		demeter_stats.splits += done.splits;
		demeter_stats.merges += done.merges;
		denied += target->ranges.denied_splits - target->denied_seen;
		target->denied_seen = target->ranges.denied_splits;
		ranges += target->ranges.nr;
		trace_demeter_classify(demeter_stats.epochs, space, target->samples_seen - before,
				       done.splits, done.merges, target->ranges.nr);
		cond_resched();
	}
	WRITE_ONCE(demeter_stats.ranges, ranges);
	WRITE_ONCE(demeter_stats.denied_splits, demeter_stats.denied_splits + denied);
}

/* Room for @nr steps; the plan goes on with what it has if there is no memory. */
static void make_room_for_steps(struct demeter_context *ctx, u32 nr)
{
	struct demeter_plan_step *step;
	struct demeter_span *span;

	if (nr <= ctx->plan.capacity)
		return;
	step = demeter_table_alloc(nr, sizeof(*step));
	span = demeter_table_alloc(nr, sizeof(*span));
	if (!step || !span) {
		kvfree(step);
		kvfree(span);
		return;
	}
	kvfree(ctx->plan.step);
	kvfree(ctx->span);
	ctx->plan.step = step;
	ctx->plan.capacity = nr;
	ctx->span = span;
}

/* Room for the ranges that all targets have now, and for a plan over them. */
static void make_room(struct demeter_context *ctx)
{
	u32 wanted = ctx->max_entries ?: FIRST_ENTRIES;
	struct demeter_rank_entry *entries;

	while (wanted < demeter_stats.ranges + demeter_finer_room())
		wanted *= 2;
	if (wanted != ctx->max_entries) {
		entries = demeter_table_alloc(wanted, sizeof(*entries));
		if (entries) {
			kvfree(ctx->entries);
			ctx->entries = entries;
			ctx->max_entries = wanted;
		}
	}
	make_room_for_steps(ctx, clamp_t(u32, ctx->max_entries / ENTRIES_PER_STEP, FIRST_STEPS,
					 DEMETER_LEDGER_DECISIONS));
}

static u32 gather(struct demeter_context *ctx)
{
	struct demeter_target *target;
	u32 nr = 0, space = 0;

	demeter_cgroups_begin(ctx->shares);
	while ((target = demeter_target_next(&space))) {
		demeter_cgroups_count(ctx->shares, target);
		nr = demeter_publish(target, ctx->entries, nr, ctx->max_entries);
		cond_resched();
	}
	return nr;
}

/*
 * Ends the epoch that began at @begun_ns, or at a tick before; its samples are counted.
 *
 * Counts are in samples of the epoch that ends, from when it is told how many it held until
 * the pace of the next one is set, last. What is kept from one epoch to the next is brought
 * to that: of ranges and placements by @thin, of granules by @held, see <demeter/finer.h>.
 */
static void epoch_run(struct demeter_context *ctx, u64 begun_ns, u64 mark)
{
	bool managed, waiting, unknown;
	u32 nr = 0;

	demeter_latency_gap_end_epoch();
	demeter_finer_hear_pace();
	end_epoch();
	demeter_finer_epoch(ctx);
	lap(&mark, DEMETER_STAGE_CLASSIFY);
	unknown = demeter_recount(ctx);
	lap(&mark, DEMETER_STAGE_SCAN);
	managed = demeter_targets_nr() || demeter_cgroups_any();
	if (managed) {
		make_room(ctx);
		nr = gather(ctx);
		demeter_rank(ctx->entries, nr);
		demeter_finer_set_cut(ctx->entries, nr);
		lap(&mark, DEMETER_STAGE_RANK);
	}
	waiting = demeter_routes_run(ctx, nr, managed, begun_ns);
	WRITE_ONCE(demeter_stats.epochs, demeter_stats.epochs + 1);
	demeter_pacing_end_epoch(waiting || unknown || demeter_finer_wants_pace());
}

static void tick_run(struct demeter_context *ctx)
{
	u64 begun_ns = demeter_worker_clock(), mark = begun_ns;
	int index = demeter_targets_read_lock();

	demeter_sampler_look_after();
	demeter_targets_discover();
	demeter_targets_refresh();
	consume_samples();
	if (demeter_pacing_tick())
		epoch_run(ctx, begun_ns, mark);
	else
		lap(&mark, DEMETER_STAGE_CLASSIFY);
	demeter_stats_update_lost();
	demeter_model_report();
	demeter_targets_read_unlock(index);
}

static int worker_main(void *unused)
{
	unsigned long next = jiffies;

	set_freezable();
	while (!kthread_should_stop()) {
		unsigned long period = msecs_to_jiffies(READ_ONCE(demeter_params.epoch_ms)) ?: 1;
		long left;

		/* From tick to tick, not from end to beginning; but never catch up. */
		next += period;
		left = next - jiffies;
		if (left <= 0 || left > (long)period) {
			next = jiffies + period;
			left = period;
		}
		wait_event_freezable_timeout(worker_wait, kthread_should_stop(), left);
		if (!kthread_should_stop())
			tick_run(&demeter_context);
	}
	return 0;
}

/* What is learned of costs stays. */
static void context_free(struct demeter_context *ctx)
{
	demeter_finer_stop();
	kvfree(ctx->entries);
	kvfree(ctx->plan.step);
	kvfree(ctx->span);
	kvfree(ctx->cells);
	kfree(ctx->spare_leaf);
	kfree(ctx->shares);
	*ctx = (struct demeter_context){
		.swap_cost_ns = ctx->swap_cost_ns,
		.move_cost_ns = ctx->move_cost_ns,
	};
}

static int context_init(struct demeter_context *ctx)
{
	ctx->cells = kvcalloc(demeter_tiers.columns, sizeof(*ctx->cells), GFP_KERNEL);
	ctx->shares = kzalloc(sizeof(*ctx->shares), GFP_KERNEL);
	make_room(ctx);
	if (ctx->cells && ctx->shares && ctx->entries && ctx->span)
		return 0;
	context_free(ctx);
	return -ENOMEM;
}

/**
 * demeter_worker_start() - start the epoch worker
 *
 * Return: 0 or a negative errno.
 */
int demeter_worker_start(void)
{
	struct task_struct *task;
	int ret;

	ret = context_init(&demeter_context);
	if (ret)
		return ret;
	demeter_latency_gap_reset();
	demeter_pacing_start();
	task = kthread_create(worker_main, NULL, "kdemeterd");
	if (IS_ERR(task)) {
		context_free(&demeter_context);
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
	context_free(&demeter_context);
}
