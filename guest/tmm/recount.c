// SPDX-License-Identifier: GPL-2.0-only
/*
 * Recount: what is resident where, by walking page tables a slice at a time.
 *
 * What Demeter moves it books itself (execute.c); what the kernel did meanwhile,
 * faults above all, only a walk shows. A walk over a whole address space is a
 * pass. It begins when the process has grown or shrunk, when pages were not where
 * they were believed to be, or after a while; it goes on from a cursor, so many
 * entries an epoch, for all targets together; and what it has not reached yet is
 * told in stats/unwalked_bytes.
 */
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/timekeeping.h>

#include "cgroups.h"
#include "finer.h"
#include "scan.h"
#include "tmm.h"

/* Entries of page tables looked at in an epoch of one tick, all targets together. */
#define EPOCH_ENTRIES	     (256u * 1024)
/* Of these in one hold of mmap_lock; and what one costs however empty it is. */
#define SLICE_ENTRIES	     2048u
#define SLICE_COST_ENTRIES   16u
/* A target that has not changed is walked again after this many epochs. */
#define PASS_EPOCHS	     16
/* A target has changed when its resident memory did by this, or by 1/64. */
#define CHANGED_PAGES	     512
/* A first walk is used as it goes while no more than this part of the pages came since. */
#define NEW_PAGES_PART	     16
/* Parts of a CPU that passes may take: of a changed and an unchanged target. */
#define PASS_SHARE_CHANGED   32
#define PASS_SHARE_UNCHANGED 512
/* Most leaves of a target: 64 TiB at 2 MiB a cell. */
#define MAX_LEAVES	     65536u

/* The first address at or above @at that is in an area, and the end of that area. */
static bool next_part(const struct demeter_ranges *rs, u64 at, u64 *start, u64 *end)
{
	bool found = false;
	u32 i;

	for (i = 0; i < DEMETER_MAX_AREAS; i++) {
		if (rs->area[i].end <= at || rs->area[i].start == rs->area[i].end)
			continue;
		if (found && rs->area[i].start >= *start)
			continue;
		found = true;
		*start = max(rs->area[i].start, at);
		*end = rs->area[i].end;
	}
	return found;
}

static u64 unwalked_bytes(const struct demeter_target *target)
{
	u64 at = target->pass.cursor, sum = 0, start, end;

	while (target->pass.running && next_part(&target->ranges, at, &start, &end)) {
		sum += end - start;
		at = end;
	}
	return sum;
}

static bool pass_is_due(const struct demeter_target *target)
{
	const struct demeter_pass *pass = &target->pass;
	u64 now = target->resident_pages;
	u64 then = pass->resident_pages;
	u64 change = now > then ? now - then : then - now;
	u64 elapsed_ns = ktime_get_ns() - pass->ended_ns;

	if (!pass->ended_ns)
		return true;
	if (pass->wanted || change > CHANGED_PAGES || change > then / 64)
		return elapsed_ns >= pass->cost_ns * PASS_SHARE_CHANGED;
	/* Where nothing happens, less and less is looked for. */
	return target->ranges.epoch - pass->epoch >= PASS_EPOCHS &&
	       elapsed_ns >= pass->cost_ns * (PASS_SHARE_UNCHANGED << demeter_pacing_shift());
}

static bool leaf_is_needed(const struct demeter_target *target, const struct demeter_leaf *leaf)
{
	u64 start, end;

	if (!(leaf->sum[DEMETER_FMEM] | leaf->sum[DEMETER_SMEM]))
		return false;
	return next_part(&target->ranges, leaf->start, &start, &end) &&
	       start < leaf->start + demeter_resident_leaf_bytes(target->resident);
}

static void drop_leaves(struct demeter_target *target, struct demeter_resident *res)
{
	u32 from, to = 0;

	for (from = 0; from < res->nr; from++) {
		if (leaf_is_needed(target, res->leaf[from]))
			res->leaf[to++] = res->leaf[from];
		else
			kfree(res->leaf[from]);
	}
	res->nr = to;
}

static void pass_end(struct demeter_target *target)
{
	u64 start, end;
	u32 column;

	target->pass.running = false;
	target->pass.epoch = target->ranges.epoch;
	/* Where there was nothing to walk yet, nothing is known. */
	if (next_part(&target->ranges, 0, &start, &end))
		target->pass.ended_ns = ktime_get_ns();
	for (column = 0; column < demeter_tiers.columns; column++)
		drop_leaves(target, &target->resident[column]);
}

/**
 * demeter_recount_room() - make room for one more leaf, in the array and in reserve
 * @ctx: the worker's, for the reserve
 * @res: whose array
 *
 * Return: whether there is.
 */
bool demeter_recount_room(struct demeter_context *ctx, struct demeter_resident *res)
{
	struct demeter_leaf **longer;
	u32 capacity;

	if (!ctx->spare_leaf)
		ctx->spare_leaf = kmalloc(sizeof(*ctx->spare_leaf), GFP_KERNEL | __GFP_NOWARN);
	if (!ctx->spare_leaf)
		return false;
	if (res->nr < res->capacity)
		return true;
	capacity = res->capacity ? res->capacity * 2 : 4;
	if (capacity > MAX_LEAVES)
		return false;
	longer = kvcalloc(capacity, sizeof(*longer), GFP_KERNEL | __GFP_NOWARN);
	if (!longer)
		return false;
	if (res->nr)
		memcpy(longer, res->leaf, res->nr * sizeof(*longer));
	kvfree(res->leaf);
	res->leaf = longer;
	res->capacity = capacity;
	return true;
}

/* Take over what a slice has found from @start to @end. */
static void slice_set(struct demeter_context *ctx, struct demeter_target *target, u64 start,
		      u64 end)
{
	u32 column;

	for (column = 0; column < demeter_tiers.columns; column++) {
		struct demeter_resident *res = &target->resident[column];
		int ret;

		/* Without memory the pages stay unknown, and where they are. */
		if (!demeter_recount_room(ctx, res))
			continue;
		ret = demeter_resident_set(res, start, end, &ctx->cells[column], ctx->spare_leaf);
		if (ret == 1)
			ctx->spare_leaf = NULL;
		WARN_ON_ONCE(ret == -EINVAL);
	}
}

/* Walk up to @entries, from the cursor on. Returns how many it took. */
static u64 pass_go_on(struct demeter_context *ctx, struct demeter_target *target, u64 entries)
{
	struct demeter_pass *pass = &target->pass;
	u64 leaf_bytes = demeter_resident_leaf_bytes(target->resident);
	u64 begun_ns = demeter_worker_clock(), took = 0, start, end;

	while (took < entries && !demeter_worker_should_stop()) {
		struct demeter_scan_slice slice = {
			.slot_of_node = demeter_tiers.slot,
			.cell_shift = target->resident->cell_shift,
			.max_entries = SLICE_ENTRIES,
			.cells = ctx->cells,
		};
		u64 at, held_ns;

		if (!next_part(&target->ranges, pass->cursor, &start, &end)) {
			pass_end(target);
			break;
		}
		end = min(end, (start | (leaf_bytes - 1)) + 1);
		at = start;
		memset(ctx->cells, 0, demeter_tiers.columns * sizeof(*ctx->cells));
		held_ns = demeter_worker_clock();
		if (demeter_scan_cells(target->mm, &at, end, &slice))
			break;
		held_ns = demeter_worker_clock() - held_ns;
		demeter_stats_max(&demeter_stats.mmap_lock_held_max_ns, held_ns);
		slice_set(ctx, target, start, at);
		pass->cursor = at;
		pass->goes_on = true;
		took += slice.entries + SLICE_COST_ENTRIES;
		WRITE_ONCE(demeter_stats.walked_entries,
			   demeter_stats.walked_entries + slice.entries);
		cond_resched();
	}
	pass->cost_ns += demeter_worker_clock() - begun_ns;
	return took;
}

/* Begin what is due. Returns how many passes run. */
static u32 begin_passes(void)
{
	struct demeter_target *target;
	u32 space = 0, running = 0;

	while ((target = demeter_target_next(&space))) {
		struct demeter_pass *pass = &target->pass;

		if (!pass->running && pass_is_due(target)) {
			pass->running = true;
			pass->wanted = false;
			pass->cursor = 0;
			pass->cost_ns = 0;
			pass->resident_pages = target->resident_pages;
		}
		pass->goes_on = false;
		running += pass->running;
	}
	return running;
}

/* What is known to be resident on each node, all targets together. */
static void sum_nodes(void)
{
	u64 pages[DEMETER_MAX_COLUMNS][DEMETER_TIERS] = {};
	struct demeter_target *target;
	u32 space = 0, column, tier, i;

	while ((target = demeter_target_next(&space)))
		for (column = 0; column < demeter_tiers.columns; column++)
			for (i = 0; i < target->resident[column].nr; i++)
				for (tier = 0; tier < DEMETER_TIERS; tier++)
					pages[column][tier] +=
						target->resident[column].leaf[i]->sum[tier];
	for (column = 0; column < demeter_tiers.columns; column++)
		for (tier = 0; tier < DEMETER_TIERS; tier++)
			if (demeter_tiers.node[column][tier] >= 0)
				WRITE_ONCE(demeter_node_stats[demeter_tiers.node[column][tier]]
						   .resident_pages,
					   pages[column][tier]);
}

/**
 * demeter_recount() - correct what is believed to be resident, as far as an epoch's share goes
 * @ctx: the worker's
 *
 * Return: whether there are targets that are walked for the first time, and it goes on. Until
 * its end nothing of theirs beyond the cursor is moved: they have no time to lose.
 */
bool demeter_recount(struct demeter_context *ctx)
{
	u32 running = begin_passes(), space = 0, first = 0, round;
	u64 entries = (u64)EPOCH_ENTRIES * demeter_pacing_ticks();
	u64 left = entries, unwalked = 0;
	struct demeter_target *target;
	bool unknown = false;

	/* An equal share each; whoever comes first takes what others leave. */
	for (round = 0; round < 2 && running; round++) {
		space = round ? 0 : ctx->first_space;
		while (left && (target = demeter_target_next(&space))) {
			u64 share = max_t(u64, div_u64(entries, running), SLICE_ENTRIES);

			if (!target->pass.running || !mmget_not_zero(target->mm))
				continue;
			left -= min(left, pass_go_on(ctx, target, min(share, left)));
			mmput_async(target->mm);
			if (target->pass.running)
				first = space;
		}
	}
	ctx->first_space = first;

	space = 0;
	while ((target = demeter_target_next(&space))) {
		unwalked += unwalked_bytes(target);
		unknown |= !target->pass.ended_ns && target->pass.goes_on &&
			   demeter_sampler_sees(target->mm);
	}
	WRITE_ONCE(demeter_stats.unwalked_bytes, unwalked);
	sum_nodes();
	return unknown;
}

/**
 * demeter_recount_known() - of how many of its ranges it is known what is resident
 * @target: the target
 * @nr: how many ranges it has
 *
 * Of the first ones, by address: a walk begins with them, and what an earlier one has
 * found is as good. Floors and caps of groups are held against all that a target has, and
 * divided granules are taken out of all of its ranges: with these it is all or nothing.
 * So it is where many pages came since the walk began: they may lie behind the cursor.
 *
 * Return: @nr or fewer.
 */
u32 demeter_recount_known(const struct demeter_target *target, u32 nr)
{
	const struct demeter_range *range = target->ranges.range;
	u64 then = target->pass.resident_pages;
	u32 known = 0;

	if (target->pass.ended_ns)
		return nr;
	if (demeter_cgroups_any() || demeter_finer_table)
		return 0;
	if (target->resident_pages > then + max(CHANGED_PAGES, then / NEW_PAGES_PART))
		return 0;
	while (known < nr && range[known].end <= target->pass.cursor)
		known++;
	return known;
}

/**
 * demeter_recount_forget() - free what is known of a target's pages, and begin anew
 * @target: a target that no other task can see, or the worker's
 */
void demeter_recount_forget(struct demeter_target *target)
{
	u32 column, i;

	for (column = 0; column < DEMETER_MAX_COLUMNS; column++) {
		struct demeter_resident *res = &target->resident[column];

		for (i = 0; i < res->nr; i++)
			kfree(res->leaf[i]);
		kvfree(res->leaf);
		*res = (struct demeter_resident){
			.cell_shift =
				demeter_resident_cell_shift(target->ranges.params.granule_bytes),
		};
	}
	target->pass = (struct demeter_pass){};
}
