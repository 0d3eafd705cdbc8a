// SPDX-License-Identifier: GPL-2.0-only
/*
 * Routes: a plan for each pair of a slow and a fast node, near ones first.
 *
 * The ranges are ranked once, by what all their pages are accessed. Each plan then
 * sees those of their pages that lie on its two nodes, and what it moves is booked
 * before the next is made. So hot memory comes to the fast node of its own socket
 * while that has room or something colder; what is left over goes to another socket
 * if even that gains, see tiers.h. The bucket of tokens is one for all of them;
 * which near route draws first changes with each epoch.
 */
#include <linux/mm.h>
#include <linux/timekeeping.h>
#include <linux/topology.h>

#include "finer.h"
#include "ledger.h"
#include "relocate.h"
#include "tmm.h"
#include "trace.h"

/* Part of a fast node left free for the kernel and for new processes, as a shift. */
#define HEADROOM_SHIFT 6

/*
 * A range goes to another socket once its bounds have lasted so many epochs. Before, it
 * may hold both what is hot and what should make room for that in its own socket, and
 * nothing brings pages back from there.
 */
#define CROSS_AGE_EPOCHS 8

/* Show the planner the pages of each range that lie on the two nodes of the route. */
static void see_route(struct demeter_context *ctx, u32 nr)
{
	u32 least_age = demeter_route_is_far(&ctx->route) ? CROSS_AGE_EPOCHS : 0;
	u32 i;

	/* All that was ranked. */
	if (demeter_tiers.columns == 1)
		return;
	for (i = 0; i < nr; i++) {
		struct demeter_rank_entry *entry = &ctx->entries[i];
		struct demeter_target *target = demeter_target_of(entry->space);
		struct demeter_rank_entry on = { .start = entry->start, .end = entry->end };

		if (!(i % 256))
			cond_resched();
		entry->pages[DEMETER_FMEM] = 0;
		entry->pages[DEMETER_SMEM] = 0;
		/* Nothing resident: or not to be moved, see demeter_publish(). */
		if (!target || !entry->resident || entry->age_epochs < least_age)
			continue;
		demeter_resident_sum(&target->resident[ctx->route.to], &on, 1);
		entry->pages[DEMETER_FMEM] = on.pages[DEMETER_FMEM];
		demeter_resident_sum(&target->resident[ctx->route.from], &on, 1);
		entry->pages[DEMETER_SMEM] = on.pages[DEMETER_SMEM];
	}
}

static u64 free_fmem_pages(u32 column)
{
	int nid = demeter_tiers.node[column][DEMETER_FMEM];
	u64 room = demeter_relocate_room(nid);
	u64 fillable = demeter_fillable_pages(column, room);
	u64 headroom = NODE_DATA(nid)->node_present_pages >> HEADROOM_SHIFT;

	return room > headroom ? min(room - headroom, fillable) : 0;
}

/* Hide from the planner what would only be refused again. */
static void apply_back_off(struct demeter_context *ctx, u32 nr)
{
	bool far = demeter_route_is_far(&ctx->route);
	/* Nobody needs what is free. */
	bool hold = demeter_finer_holds() && !free_fmem_pages(ctx->route.to);
	u32 i, tier;

	for (i = 0; i < nr; i++) {
		struct demeter_rank_entry *entry = &ctx->entries[i];
		struct demeter_target *target = demeter_target_of(entry->space);
		struct demeter_count *count;

		if (entry->part) {
			demeter_finer_back_off(entry);
			continue;
		}
		count = target ? demeter_target_count(target, entry->start) : NULL;
		for (tier = 0; count && tier < DEMETER_TIERS; tier++)
			if ((s32)(count->retry_epoch[far][tier] - target->ranges.epoch) > 0)
				entry->pages[tier] = 0;
		if (hold && target && target->is_divided)
			entry->pages[DEMETER_SMEM] = 0;
		if (!(i % 256))
			cond_resched();
	}
}

static void make_plan(struct demeter_context *ctx, u32 nr)
{
	u64 rate = READ_ONCE(demeter_params.rate_pages_per_s);
	struct demeter_plan_params params = {
		.sample_period = demeter_accesses_per_sample(),
		.epoch_ns = demeter_pacing_epoch_ns(),
		.latency_gap_ps = demeter_latency_gap_ps(),
		.remote_ps = demeter_latency_remote_ps(ctx->route.distance),
		.horizon_ns = READ_ONCE(demeter_params.horizon_ms) * NSEC_PER_MSEC,
		.swap_cost_ns = demeter_swap_cost_ns(),
		.move_cost_ns = demeter_move_cost_ns(),
		.hysteresis_permille = READ_ONCE(demeter_params.hysteresis_permille),
		.significance = READ_ONCE(demeter_params.significance),
		.rate_pages_per_s = rate,
		.burst_pages = rate,
	};
	struct demeter_groups groups = {
		.group = ctx->shares->group,
		.nr = DEMETER_SLOTS,
		.unit_shift = ilog2(HPAGE_PMD_NR),
	};
	u64 free_pages = free_fmem_pages(ctx->route.to);

	if (ctx->shares->named)
		demeter_plan_make_grouped(&ctx->plan, &ctx->plan_state, &params, ctx->entries, nr,
					  &groups, free_pages, ktime_get_ns());
	else
		demeter_plan_make(&ctx->plan, &ctx->plan_state, &params, ctx->entries, nr,
				  free_pages, ktime_get_ns());
	trace_demeter_plan(demeter_stats.epochs, ctx->plan.nr, ctx->plan.fill_pages,
			   ctx->plan.swap_pages, ctx->plan.end);
}

/* The route that comes @nth in this epoch. */
static const struct demeter_route *route_of(u32 nth)
{
	u32 near = demeter_tiers.nr_near, first;

	if (nth >= near)
		return &demeter_tiers.route[nth];
	first = demeter_stats.epochs % near;
	return &demeter_tiers.route[(first + nth) % near];
}

/* Is memory there, by way of the other socket, faster at all? */
static bool can_pay(const struct demeter_route *route)
{
	return !demeter_route_is_far(route) ||
	       demeter_latency_remote_ps(route->distance) < demeter_latency_gap_ps();
}

static void decide(struct demeter_context *ctx, u32 nr)
{
	u64 begun_ns = demeter_worker_clock(), ns;

	see_route(ctx, nr);
	apply_back_off(ctx, nr);
	demeter_stopped_hide(ctx->entries, nr, ctx->shares->group);
	make_plan(ctx, nr);
	ns = demeter_worker_clock() - begun_ns;
	WRITE_ONCE(demeter_stats.stage_ns[DEMETER_STAGE_PLAN],
		   demeter_stats.stage_ns[DEMETER_STAGE_PLAN] + ns);
}

/**
 * demeter_routes_run() - plan along every route, and carry it out
 * @ctx: the worker's, its entries ranked
 * @nr: how many
 * @managed: whether there is anything to plan for: groups are counted
 * @begun_ns: when the epoch's work began
 *
 * Return: whether there was more to move than it could.
 */
bool demeter_routes_run(struct demeter_context *ctx, u32 nr, bool managed, u64 begun_ns)
{
	bool any = false, waiting = false;
	u64 decided_ns = 0;
	u32 nth;

	for (nth = 0; nth < demeter_tiers.nr_routes && !demeter_worker_should_stop(); nth++) {
		const struct demeter_route *route = route_of(nth);

		if (nth && (!managed || !can_pay(route)))
			continue;
		ctx->route = *route;
		ctx->plan.nr = 0;
		ctx->plan.end = DEMETER_PLAN_DONE;
		if (managed)
			decide(ctx, nr);
		decided_ns += demeter_worker_clock() - begun_ns;
		any |= ctx->plan.nr;
		waiting |= ctx->plan.end == DEMETER_PLAN_NO_TOKENS ||
			   ctx->plan.end == DEMETER_PLAN_FULL;
		demeter_execute(ctx);
		begun_ns = demeter_worker_clock();
	}
	if (managed)
		demeter_cgroups_end(ctx->shares);
	if (!any)
		demeter_execute_nothing(ctx);
	demeter_stats_max(&demeter_stats.epoch_max_ns, decided_ns);
	return waiting;
}
