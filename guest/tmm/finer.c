// SPDX-License-Identifier: GPL-2.0-only
/*
 * Finer: which granules are looked at and divided, see finer.h.
 */
#include <linux/mm.h>
#include <linux/mmzone.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/sysfs.h>
#include <linux/vmalloc.h>

#include <demeter/math.h>

#include "finer.h"
#include "huge.h"
#include "ledger.h"
#include "relocate.h"
#include "scan.h"
#include "tmm.h"

/* One granule for each 2 MiB of memory, within these limits. */
#define GRANULES_LEAST	      64u
#define GRANULES_MOST	      1024u
/*
 * Granules divided in one epoch: each changes what the next one is worth, and takes its
 * time, of which an epoch has so much to spare.
 */
#define EPOCH_DIVISIONS_LEAST 16u
#define EPOCH_DIVISIONS_MOST  128u
#define EPOCH_PART	      4u
/* Part of them in FMEM: a divided one there makes room for a dozen's hot pages. */
#define FMEM_PART	      8u
/* Epochs after which where the pages of a granule are is looked up anyway. */
#define LOCATE_EPOCHS	      64u
/* Windows that what cannot be divided is left alone. */
#define UNFIT_WINDOWS	      8u
/* Part of the horizon for which ranges wait, see demeter_finer_holds(). */
#define HOLD_PART	      4u
#define FIRST_SPLIT_NS	      100000u
#define LEAST_SPLIT_NS	      1000ull
/* A granule's part of the worker's time, at most: in times of a split, and to look at. */
#define SPLIT_MOST	      4u
#define LOOK_MOST_NS	      10000u
/* Samples of a CPU that are not too many: in a second, and in an epoch. */
#define SECOND_SAMPLES	      32768u
#define EPOCH_SAMPLES	      4096u

struct demeter_finer *demeter_finer_table;

/* By what the samples of a CPU are denser, as a power of two; the worker's. */
static u32 dense_shift;
/* For so long, without a break, some granules were divided, and others about to be. */
static u64 hold_ns;
static u32 dense_turn;
/* Samples in all when an epoch ended last, without those that were extra. */
static u64 samples_before;
/* Hottest of what finds no room in FMEM, and demeter_pacing_held() of when that was found. */
static u64 cut_density;
static u32 cut_held;
/* Whether to look at all, and totals when it was asked last; the worker's. */
static struct demeter_finer_gate gate;
static struct demeter_finer_gate_epoch gate_before;

/* Since load; written by the worker. */
static struct {
	u64 divisions;
	u64 fmem_divisions;
	u64 failures;
	u64 dense_epochs;
	u64 looks;
	u64 looked_epochs;
	u64 split_cost_ns;
	u64 extra[DEMETER_TIERS + 1];
} stats = { .split_cost_ns = FIRST_SPLIT_NS };

struct table {
	struct demeter_finer finer;
	struct demeter_finer_granule *granule;
	u16 *index;
};

static void table_free(void)
{
	struct table *table;

	if (!demeter_finer_table)
		return;
	table = container_of(demeter_finer_table, struct table, finer);
	WRITE_ONCE(demeter_finer_table, NULL);
	kvfree(table->granule);
	kvfree(table->index);
	kfree(table);
}

/**
 * demeter_finer_capacity() - how many granules are looked at, at most
 *
 * Return: their number.
 */
u32 demeter_finer_capacity(void)
{
	u64 pages = 0;
	u32 tier;

	for (tier = 0; tier < DEMETER_TIERS; tier++)
		pages += NODE_DATA(demeter_tiers.node[0][tier])->node_present_pages;
	return clamp_t(u64, pages / HPAGE_PMD_NR, GRANULES_LEAST, GRANULES_MOST);
}

/* What params/finer says, or DEMETER_FINER_OFF where nothing could be placed by page. */
static unsigned long mode_of(const struct demeter_context *ctx)
{
	const struct demeter_sampler_ops *ops = demeter_sampler_active();

	if (demeter_tiers.columns != 1 || ctx->shares->named ||
	    !(ops->caps() & DEMETER_SAMPLER_PAGE))
		return DEMETER_FINER_OFF;
	return READ_ONCE(demeter_params.finer);
}

static void stop_looking(void)
{
	table_free();
	WRITE_ONCE(dense_shift, 0);
	hold_ns = 0;
}

static u64 extra_samples(void)
{
	return demeter_finer_extra(0) + demeter_finer_extra(1) + demeter_finer_extra(2);
}

/* Is there a table? As wanted: without memory there is none, and it is tried again. */
static bool table_ready(unsigned long mode)
{
	struct table *table;
	u32 capacity, length;

	if (mode == DEMETER_FINER_OFF || (mode == DEMETER_FINER_AUTO && !gate.open)) {
		stop_looking();
		return false;
	}
	if (demeter_finer_table)
		return true;
	capacity = demeter_finer_capacity();
	length = roundup_pow_of_two(2 * capacity);
	table = kzalloc(sizeof(*table), GFP_KERNEL | __GFP_NOWARN);
	if (!table)
		return false;
	/* In slow memory, if the kernel may use that: it would be missed in the fast one. */
	table->granule =
		kvzalloc_node(capacity * sizeof(*table->granule), GFP_KERNEL | __GFP_NOWARN,
			      demeter_tiers.node[0][DEMETER_SMEM]);
	table->index = kvcalloc(length, sizeof(*table->index), GFP_KERNEL | __GFP_NOWARN);
	if (!table->granule || !table->index ||
	    demeter_finer_init(&table->finer, table->granule, capacity, table->index, length)) {
		kvfree(table->granule);
		kvfree(table->index);
		kfree(table);
		return false;
	}
	samples_before = demeter_stats.samples - extra_samples();
	table->finer.held = demeter_pacing_held();
	WRITE_ONCE(demeter_finer_table, &table->finer);
	return true;
}

/**
 * demeter_finer_stop() - look at nothing any more; what was divided stays so
 *
 * For the worker, and for who has stopped it.
 */
void demeter_finer_stop(void)
{
	stop_looking();
	gate = (struct demeter_finer_gate){};
}

/**
 * demeter_finer_takes() - count a sample by page, where that is done
 * @target: the address space
 * @gva: where, inside a range
 * @tier: of the sample
 *
 * Return: whether it is not for the ranges: they only see as many samples as they
 * are used to, and none of granules that are divided.
 */
bool demeter_finer_takes(struct demeter_target *target, u64 gva, u16 tier)
{
	bool extra, divided;

	if (!demeter_finer_table)
		return false;
	extra = dense_turn++ & ((1u << dense_shift) - 1);
	divided = demeter_finer_sample(demeter_finer_table, target->space, gva,
				       (1u << DEMETER_RATE_SHIFT) >> dense_shift);
	if (extra)
		stats.extra[min_t(u32, tier, DEMETER_TIERS)]++;
	else if (divided)
		target->ranges.samples++;
	return extra || divided;
}

/**
 * demeter_finer_extra() - samples that are there only because they are denser
 * @kind: tier, or DEMETER_TIERS for those of no known tier
 *
 * Return: a total since load.
 */
u64 demeter_finer_extra(u32 kind)
{
	return READ_ONCE(stats.extra[kind]);
}

static u64 horizon_ns(void)
{
	return READ_ONCE(demeter_params.horizon_ms) * NSEC_PER_MSEC;
}

/**
 * demeter_finer_is_denser() - are samples denser than usual
 *
 * Return: whether what they cost says nothing of what is usual.
 */
bool demeter_finer_is_denser(void)
{
	return dense_shift;
}

/**
 * demeter_finer_holds() - should ranges wait with what they would promote
 *
 * Once granules are divided, their cold pages in FMEM are the first to make room. While
 * others are about to be divided it is for their hot pages: a lukewarm granule that came
 * to it whole would soon be divided too, and most of it go back. That is soon known, or
 * not at all.
 *
 * For the worker.
 *
 * Return: whether those of address spaces with divided granules should, as denser samples
 * are about to tell what is worth dividing.
 */
bool demeter_finer_holds(void)
{
	return demeter_finer_table && hold_ns && hold_ns <= horizon_ns() / HOLD_PART;
}

/**
 * demeter_finer_wants_pace() - must the pace be full for it
 *
 * Return: whether denser samples are wanted, or a look should soon be over, and there
 * are means for either.
 */
bool demeter_finer_wants_pace(void)
{
	if (!demeter_finer_can_afford())
		return false;
	if (demeter_finer_table && demeter_finer_table->denser)
		return true;
	return READ_ONCE(demeter_params.finer) == DEMETER_FINER_AUTO &&
	       demeter_finer_gate_is_looking(&gate, demeter_finer_table);
}

/**
 * demeter_finer_period() - events that one sample stands for
 * @period: if samples were not denser than usual
 *
 * Return: the period of the hardware; odd if it was made shorter.
 */
u64 demeter_finer_period(u64 period)
{
	u32 shift = READ_ONCE(dense_shift);

	return shift ? (period >> shift) | 1 : period;
}

/* Would a period so much shorter give as many more samples, and not too many? */
static bool can_be_denser(u32 shift, u64 samples)
{
	const struct demeter_sampler_ops *ops = demeter_sampler_active();
	u64 period = READ_ONCE(demeter_params.sample_period);
	u64 usual = ops->accesses_per_sample(period);
	u64 denser = ops->accesses_per_sample((period >> shift) | 1);
	u64 most = mul_u64_u64_div_u64(SECOND_SAMPLES, demeter_pacing_passed_ns(), NSEC_PER_SEC);

	most = min_t(u64, most, EPOCH_SAMPLES) * num_online_cpus();
	return period >> shift && samples << shift <= most && denser << shift <= usual + usual / 8;
}

static void set_density(void)
{
	u32 most = demeter_finer_affordable_shift(DEMETER_FINER_DENSER), shift = 0;
	bool wanted = demeter_finer_table->denser && most;
	u64 samples;

	samples = demeter_stats.samples - extra_samples() - samples_before;
	samples_before += samples;
	if (wanted && demeter_sampler_active()->set_period && !demeter_pacing_shift()) {
		shift = most;
		while (shift && !can_be_denser(shift, samples))
			shift--;
	}
	WRITE_ONCE(dense_shift, shift);
	/* Without money they are not, which does not say that they cannot be. */
	if (!demeter_finer_table->denser || !demeter_finer_can_afford())
		demeter_finer_table->vain = 0;
	if (!shift)
		hold_ns = 0;
	else if (demeter_finer_table->divided)
		hold_ns += demeter_pacing_passed_ns();
	demeter_finer_table->dense = shift;
	WRITE_ONCE(stats.dense_epochs, stats.dense_epochs + (shift > 0));
}

/**
 * demeter_finer_set_cut() - what a page must be accessed to be worth FMEM
 * @entries: ranked
 * @nr: how many
 */
void demeter_finer_set_cut(const struct demeter_rank_entry *entries, u32 nr)
{
	u64 room = 0;
	u32 i, at;

	if (!demeter_finer_table)
		return;
	for (i = 0; i < nr; i++)
		room += entries[i].pages[DEMETER_FMEM];
	room += demeter_relocate_room(demeter_tiers.node[0][DEMETER_FMEM]);
	at = demeter_rank_cut(entries, nr, room);
	cut_density = at < nr ? entries[at].density : 0;
	cut_held = demeter_pacing_held();
}

/* Look up where the pages of @g are, and correct what is believed to be resident. */
static int locate(struct demeter_context *ctx, struct demeter_target *target,
		  struct demeter_finer_granule *g, struct demeter_scan_granule *found)
{
	struct demeter_resident *resident = &target->resident[0];
	u32 shift = resident->cell_shift, tier, cell;
	u64 held_ns = demeter_worker_clock();
	int ret;

	ret = demeter_scan_granule(target->mm, g->start, demeter_tiers.node[0], found);
	held_ns = demeter_worker_clock() - held_ns;
	demeter_stats_max(&demeter_stats.mmap_lock_held_max_ns, held_ns);
	if (ret)
		return ret;
	demeter_finer_locate(g, found->where[DEMETER_FMEM], found->where[DEMETER_SMEM]);
	g->stale = false;
	if (shift != DEMETER_FINER_SHIFT)
		return 0;
	cell = (g->start >> shift) % DEMETER_LEAF_CELLS;
	for (tier = 0; tier < DEMETER_TIERS; tier++)
		ctx->cells->pages[cell][tier] =
			bitmap_weight((unsigned long *)found->where[tier], DEMETER_FINER_CELLS);
	/* Where there is no leaf yet, the next pass makes one. */
	demeter_resident_set(resident, g->start, g->start + (1ull << shift), ctx->cells, NULL);
	return 0;
}

/* The clock runs on while a host has taken the CPU away: one such time must not stick. */
static void learn_split_cost(u64 ns)
{
	ns = min(ns, 2 * stats.split_cost_ns);
	WRITE_ONCE(stats.split_cost_ns, max((stats.split_cost_ns * 7 + ns) / 8, LEAST_SPLIT_NS));
}

/* Divide the huge page of @g, on the node of @tier. */
static bool split(struct demeter_target *target, const struct demeter_finer_granule *g,
		  enum demeter_tier tier)
{
	int nid = demeter_tiers.node[0][tier];
	struct demeter_refusals why = {};
	struct demeter_folio_list list;
	u64 begun_ns = demeter_worker_clock(), pages;

	demeter_folio_list_init(&list);
	/* What a policy binds could not be placed by the page either. */
	demeter_scan_isolate(target->mm, g->start, g->start + HPAGE_PMD_SIZE, nid,
			     demeter_tiers.node[0][!tier], HPAGE_PMD_NR, &list, &why);
	pages = demeter_huge_split(&list, HPAGE_PMD_NR);
	demeter_folio_list_putback(&list);
	if (pages)
		learn_split_cost(demeter_worker_clock() - begun_ns);
	return pages;
}

/* In samples of the epoch that ends; it was found in the one before. */
static u64 cut_density_now(void)
{
	u32 held = demeter_pacing_held();

	if (held < cut_held)
		return cut_density >> (cut_held - held);
	return demeter_mul_sat(cut_density, 1ULL << (held - cut_held));
}

static struct demeter_finer_params params_now(void)
{
	return (struct demeter_finer_params){
		.cut_density = cut_density_now(),
		.sample_period = demeter_accesses_per_sample(),
		.epoch_ns = demeter_pacing_epoch_ns(),
		.latency_gap_ps = demeter_latency_gap_ps(),
		.walk_ps = READ_ONCE(demeter_params.finer_walk_ns) * 1000,
		.horizon_ns = horizon_ns(),
		.swap_cost_ns = demeter_swap_cost_ns(),
		.split_cost_ns = stats.split_cost_ns,
		.hysteresis_permille = READ_ONCE(demeter_params.hysteresis_permille),
		.significance = READ_ONCE(demeter_params.significance),
	};
}

/*
 * Is there nothing of @g to be divided, as it was found? What has been unmapped, for which
 * @empty_windows is 0, is no reason to leave alone what may come there next. What is accessed
 * and has no pages in either tier will have none, and mappings of several sizes will stay so.
 */
static bool drop_unfit(struct demeter_finer_granule *g, const struct demeter_scan_granule *found,
		       u32 empty_windows)
{
	bool empty = bitmap_empty((const unsigned long *)found->where,
				  sizeof(found->where) * BITS_PER_BYTE);

	if (!empty && !found->mixed)
		return false;
	demeter_finer_drop(demeter_finer_table, g, empty ? empty_windows : UNFIT_WINDOWS);
	return true;
}

/*
 * Divide @g if @estimate speaks for it as what it turns out to be. Returns whether it did,
 * or -EINTR where its mmap_lock was not to be had.
 */
static int divide(struct demeter_context *ctx, struct demeter_target *target,
		  struct demeter_finer_granule *g, const struct demeter_finer_params *params,
		  struct demeter_finer_estimate *estimate)
{
	struct demeter_finer *f = demeter_finer_table;
	struct demeter_scan_granule found;
	int ret;

	ret = locate(ctx, target, g, &found);
	if (ret)
		return ret;
	if (found.huge && !demeter_finer_estimate(f, g, params, true, estimate)) {
		demeter_finer_keep(f, g);
		return 0;
	}
	if (found.huge && split(target, g, found.tier)) {
		g->was_huge = true;
		ret = locate(ctx, target, g, &found);
		if (ret)
			return ret;
	}
	if (drop_unfit(g, &found, UNFIT_WINDOWS) || found.huge) {
		WRITE_ONCE(stats.failures, stats.failures + 1);
		/* Pinned or locked, by whom and for how long is not known. */
		if (found.huge)
			demeter_finer_fail(f, g);
		return 0;
	}
	/* Exchanges are to come, and are not of this time. */
	demeter_finer_commit(estimate->pages * params->swap_cost_ns);
	demeter_finer_divide(f, g);
	WRITE_ONCE(stats.divisions, stats.divisions + 1);
	return 1;
}

/* Is most of @g in @tier, as far as is known? */
static bool is_mostly_in(const struct demeter_target *target, const struct demeter_finer_granule *g,
			 enum demeter_tier tier)
{
	struct demeter_rank_entry on = { .start = g->start, .end = g->start + HPAGE_PMD_SIZE };

	demeter_resident_sum(&target->resident[0], &on, 1);
	return on.pages[tier] > on.pages[!tier];
}

/* Its mmap_lock was taken in this epoch: once is enough to wait for it. */
static bool is_busy(const struct demeter_target *target)
{
	return target->busy_epoch == demeter_stats.epochs + 1;
}

static void set_busy(struct demeter_target *target)
{
	target->busy_epoch = demeter_stats.epochs + 1;
}

static void divide_some(struct demeter_context *ctx, const struct demeter_finer_params *params,
			enum demeter_tier tier, u32 *left)
{
	struct demeter_finer *f = demeter_finer_table;
	struct demeter_finer_estimate estimate;
	int done;
	u32 i;

	for (i = 0; f->due && i < f->capacity && *left && !demeter_worker_should_stop(); i++) {
		struct demeter_finer_granule *g = &f->granule[i];
		struct demeter_target *target;

		if (!demeter_finer_can_afford())
			break;
		if (!demeter_finer_is_due(g))
			continue;
		target = demeter_target_of(g->space);
		if (!target || is_busy(target) || !is_mostly_in(target, g, tier))
			continue;
		if (!demeter_finer_estimate(f, g, params, false, &estimate)) {
			demeter_finer_keep(f, g);
			continue;
		}
		if (!mmget_not_zero(target->mm))
			continue;
		done = divide(ctx, target, g, params, &estimate);
		demeter_finer_charge(SPLIT_MOST * stats.split_cost_ns);
		mmput_async(target->mm);
		if (done > 0)
			*left -= 1;
		if (done < 0)
			set_busy(target);
		cond_resched();
	}
}

/* How many granules an epoch has the time to divide. */
static u32 divisions_of_an_epoch(const struct demeter_finer_params *params)
{
	u64 nr = div64_u64(params->epoch_ns / EPOCH_PART, max(params->split_cost_ns, 1));

	return clamp_t(u64, nr, EPOCH_DIVISIONS_LEAST, EPOCH_DIVISIONS_MOST);
}

/*
 * Most of them in SMEM: once their hot pages have found room, what is in FMEM may do
 * just as well whole. But a few in FMEM, too, and the first: else that room would be found
 * in whole granules, hot pages and all, which then come back one by one, or not at all.
 */
static void divide_best(struct demeter_context *ctx)
{
	const struct demeter_finer_params params = params_now();
	u32 most = divisions_of_an_epoch(&params), left;
	u64 wanted_fmem = stats.divisions / FMEM_PART + 1, asked;

	wanted_fmem -= min(wanted_fmem, stats.fmem_divisions);
	asked = min_t(u64, wanted_fmem, most / FMEM_PART);
	left = asked;
	divide_some(ctx, &params, DEMETER_FMEM, &left);
	stats.fmem_divisions += asked - left;
	left += most - most / FMEM_PART;
	divide_some(ctx, &params, DEMETER_SMEM, &left);
}

/* Of what is divided, look up what was moved; and in turn all, as the kernel moves, too. */
static void locate_some(struct demeter_context *ctx)
{
	struct demeter_finer *f = demeter_finer_table;
	u32 turn = demeter_stats.epochs % LOCATE_EPOCHS, i;

	/* What is gone is dropped in time, too. */
	if (!f->divided && turn)
		return;
	for (i = 0; i < f->capacity && !demeter_worker_should_stop(); i++) {
		struct demeter_finer_granule *g = &f->granule[i];
		struct demeter_scan_granule found;
		struct demeter_target *target;
		int ret;

		if (g->state == DEMETER_FINER_FREE)
			continue;
		memset(g->taken, 0, sizeof(g->taken));
		target = demeter_target_of(g->space);
		if (!target) {
			demeter_finer_leave(f, g->space);
			continue;
		}
		if (g->state != DEMETER_FINER_DIVIDED || is_busy(target) ||
		    (!g->stale && i % LOCATE_EPOCHS != turn) || !mmget_not_zero(target->mm))
			continue;
		ret = locate(ctx, target, g, &found);
		mmput_async(target->mm);
		if (ret)
			set_busy(target);
		/* A huge page again: khugepaged made it. */
		else if (!drop_unfit(g, &found, 0) && found.huge)
			demeter_finer_drop(f, g, UNFIT_WINDOWS);
		cond_resched();
	}
}

/* Samples are denser at once, at full pace; an epoch has so many if they are not. */
static void begin_look(u64 samples)
{
	samples_before -= samples;
	demeter_finer_table->denser = true;
	set_density();
}

/* Is the next epoch one to look at granules in? */
static void watch(unsigned long mode)
{
	struct demeter_finer_gate_epoch now = {
		.promoted_pages = demeter_stats.promoted_pages,
		.extra = extra_samples(),
	};
	struct demeter_finer_gate_epoch epoch = {
		.is_poor = !demeter_finer_covers_look(),
	};
	bool was_open = gate.open;
	u32 tier;

	for (tier = 0; tier < DEMETER_TIERS; tier++) {
		now.samples[tier] = demeter_stats.tier_samples[tier] - stats.extra[tier];
		epoch.samples[tier] = now.samples[tier] - gate_before.samples[tier];
	}
	epoch.promoted_pages = now.promoted_pages - gate_before.promoted_pages;
	epoch.extra = now.extra - gate_before.extra;
	gate_before = now;
	WRITE_ONCE(stats.looked_epochs, stats.looked_epochs + !!demeter_finer_table);
	if (mode != DEMETER_FINER_AUTO) {
		/* What is divided by then is not given up when it is set to auto. */
		gate = (struct demeter_finer_gate){ .open = demeter_finer_table };
		return;
	}
	demeter_finer_gate_epoch(&gate, &epoch, demeter_finer_table);
	if (gate.open && !was_open) {
		WRITE_ONCE(stats.looks, stats.looks + 1);
		/* The pace is full as from the next epoch, if it is looked at. */
		if (table_ready(mode))
			begin_look(epoch.samples[DEMETER_FMEM] + epoch.samples[DEMETER_SMEM]);
	}
	if (demeter_finer_table)
		demeter_finer_table->eager =
			demeter_finer_gate_wants_denser(&gate, demeter_finer_table);
}

/**
 * demeter_finer_hear_pace() - an epoch is over: from now on counts are in its samples
 *
 * For the worker, before it looks at any.
 */
void demeter_finer_hear_pace(void)
{
	if (demeter_finer_table)
		demeter_finer_table->held = demeter_pacing_held();
}

/**
 * demeter_finer_epoch() - an epoch is over: divide what is worth it
 * @ctx: the worker's
 *
 * For the worker, after the ranges' epoch has ended and before they are published.
 */
void demeter_finer_epoch(struct demeter_context *ctx)
{
	unsigned long mode = mode_of(ctx);

	demeter_finer_keep_accounts(dense_shift);
	if (table_ready(mode)) {
		demeter_finer_end_epoch(demeter_finer_table, demeter_pacing_passed_ns(),
					horizon_ns());
		/* Apart from what a division takes, of which only so much is believed. */
		demeter_finer_charge(demeter_finer_table->capacity * LOOK_MOST_NS);
		divide_best(ctx);
		locate_some(ctx);
		set_density();
		demeter_finer_charge(demeter_finer_table->capacity * LOOK_MOST_NS);
	}
	watch(mode);
}

/* Readers take no lock: the table may go while they look, so they get copies. */
#define FINER_STAT(_name, _value)                                                                  \
	static ssize_t _name##_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)  \
	{                                                                                          \
		return sysfs_emit(buf, "%llu\n", (u64)(_value));                                   \
	}                                                                                          \
	static struct kobj_attribute _name##_attr = __ATTR_RO(_name)

FINER_STAT(divisions, READ_ONCE(stats.divisions));
FINER_STAT(failures, READ_ONCE(stats.failures));
FINER_STAT(denser_epochs, READ_ONCE(stats.dense_epochs));
FINER_STAT(extra_samples, extra_samples());
FINER_STAT(looks, READ_ONCE(stats.looks));
FINER_STAT(looked_epochs, READ_ONCE(stats.looked_epochs));
FINER_STAT(split_cost_ns, READ_ONCE(stats.split_cost_ns));
FINER_STAT(spent_ns, demeter_finer_spent_ns());

static ssize_t realised_ns_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	u64 cost_ns;

	return sysfs_emit(buf, "%lld\n", demeter_ledger_paged(&cost_ns));
}

static struct kobj_attribute realised_ns_attr = __ATTR_RO(realised_ns);

static struct attribute *finer_attrs[] = { &divisions_attr.attr,     &failures_attr.attr,
					   &denser_epochs_attr.attr, &extra_samples_attr.attr,
					   &looks_attr.attr,	     &looked_epochs_attr.attr,
					   &split_cost_ns_attr.attr, &spent_ns_attr.attr,
					   &realised_ns_attr.attr,   NULL };

const struct attribute_group demeter_finer_stats_group = { .attrs = finer_attrs };
