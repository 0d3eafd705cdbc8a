// SPDX-License-Identifier: GPL-2.0-only
/*
 * Finer: what looking and dividing costs, and what it may cost, see finer.h and
 * <demeter/finer_budget.h>.
 *
 * Where params/finer is DEMETER_FINER_ON it costs what it costs: that is told, but not
 * taken off the budget, which is there if the module is to decide again.
 */
#include <linux/mm.h>

#include "finer.h"
#include "ledger.h"
#include "tmm.h"

/*
 * What a record takes that is there only because samples are denser: the CPU's own part,
 * perf's look at it, and its way through here. For samplers that do not tell it each is an
 * interrupt; a choice, not measured on any hardware.
 */
#define INTERRUPT_RECORD_NS 4000u
#define RECORD_MOST_NS	    16000ull
/* What a young program pays must be enough for a look at any number of granules. */
#define YOUTH_HORIZONS	    2u
/* What was paid for and has not come some epochs later will not: as a power of two. */
#define COMMITTED_FADES	    5u

/* All of it is the worker's; others read single words. */
static struct demeter_finer_budget budget;
/* Since load: charged, whoever pays. */
static u64 spent_ns;
/* That would be looked at, as far as their memory is resident. */
static u64 granules;
/* Totals, and the worker's clock, when they were asked last. */
static s64 realised_before_ns;
static u64 moves_before_ns;
static u64 records_before;
static u64 charged_ns;
/* Paid for exchanges that are to come. */
static u64 committed_ns;

static bool is_limited(void)
{
	return READ_ONCE(demeter_params.finer) == DEMETER_FINER_AUTO;
}

/* For so long a program counts as young. */
static u64 youth_ns(void)
{
	return YOUTH_HORIZONS * READ_ONCE(demeter_params.horizon_ms) * NSEC_PER_MSEC;
}

/**
 * demeter_finer_spent_ns() - what looking and dividing has cost
 *
 * Return: CPU time since load, in nanoseconds.
 */
u64 demeter_finer_spent_ns(void)
{
	return READ_ONCE(spent_ns);
}

/**
 * demeter_finer_can_afford() - may more be spent
 *
 * Return: whether there is anything left, or nobody asks.
 */
bool demeter_finer_can_afford(void)
{
	return !is_limited() || budget.left_ns > 0;
}

/**
 * demeter_finer_covers_look() - can a look be paid to its end
 *
 * Return: whether it can.
 */
bool demeter_finer_covers_look(void)
{
	return demeter_finer_budget_covers_look(&budget, granules, youth_ns());
}

static void spend(u64 ns)
{
	if (is_limited())
		demeter_finer_budget_spend(&budget, ns);
	WRITE_ONCE(spent_ns, spent_ns + ns);
}

/* Nobody has asked whether there was anything left for it: no more is owed than can be paid. */
static void bear(u64 ns)
{
	if (is_limited())
		demeter_finer_budget_bear(&budget, ns, youth_ns());
	WRITE_ONCE(spent_ns, spent_ns + ns);
}

/**
 * demeter_finer_commit() - base pages are to be exchanged
 * @ns: CPU time that it will take
 *
 * Paid at once: else more would be divided than there is time to place.
 */
void demeter_finer_commit(u64 ns)
{
	spend(ns);
	committed_ns += ns;
}

/* What moving base pages took since this was asked last, beyond what was paid before. */
static void charge_moves(u64 cost_ns)
{
	u64 ns = cost_ns - moves_before_ns, paid_ns = min(ns, committed_ns);

	moves_before_ns = cost_ns;
	committed_ns -= paid_ns;
	committed_ns -= min(committed_ns, (committed_ns >> COMMITTED_FADES) + 1);
	bear(ns - paid_ns);
}

/**
 * demeter_finer_charge() - the worker's time since this was asked last goes to it
 * @most_ns: but no more: the clock runs on while a host has taken the CPU away
 */
void demeter_finer_charge(u64 most_ns)
{
	u64 now_ns = demeter_worker_clock();

	spend(min(now_ns - charged_ns, most_ns));
	charged_ns = now_ns;
}

static u64 record_ns(void)
{
	const struct demeter_sampler_ops *ops = demeter_sampler_active();
	u64 ns = ops->record_ns ? ops->record_ns() : 0;

	/* An interrupt may have been timed while a host had taken the CPU away. */
	return min(ns, RECORD_MOST_NS) ?: INTERRUPT_RECORD_NS;
}

static u64 all_records(void)
{
	return demeter_stats_cpu_sum(offsetof(struct demeter_cpu_stats, traced_records)) +
	       demeter_stats_cpu_sum(offsetof(struct demeter_cpu_stats, handled_records));
}

/**
 * demeter_finer_affordable_shift() - how much denser can samples be for what is left
 * @shift: as a power of two, no more than this
 *
 * Return: as a power of two.
 */
u32 demeter_finer_affordable_shift(u32 shift)
{
	return is_limited() ? demeter_finer_budget_shift(&budget, record_ns(), shift) : shift;
}

/* Of everybody's programs: they all pay for denser samples. */
static void charge_records(u32 dense_shift)
{
	u64 records = all_records() - records_before;

	records_before += records;
	bear(demeter_finer_budget_extra_records(&budget, records, dense_shift) * record_ns());
}

/* What placing base pages has gained since this was asked last, less what longer walks took. */
static s64 gained(s64 realised_ns)
{
	s64 ns = realised_ns - realised_before_ns;
	u64 accesses;

	realised_before_ns = realised_ns;
	if (!demeter_finer_table)
		return ns;
	accesses =
		(demeter_finer_table->walked * demeter_accesses_per_sample()) >> DEMETER_RATE_SHIFT;
	demeter_finer_table->walked = 0;
	return ns - (s64)(accesses * READ_ONCE(demeter_params.finer_walk_ns));
}

/*
 * For how long what is managed has been: a page is as old as its address space, and a youth
 * at most, so that a small old one beside a large young one does not speak for it.
 */
static u64 measure_managed(struct demeter_finer_budget_epoch *epoch)
{
	u64 pages = 0, young_pages = 0, page_ms = 0;
	u64 most_ms = div_u64(youth_ns(), NSEC_PER_MSEC);
	struct demeter_target *target;
	u32 space = 0;

	while ((target = demeter_target_next(&space))) {
		u64 run_ms = div_u64(target->managed_ns, NSEC_PER_MSEC);

		pages += target->own_pages;
		page_ms += target->own_pages * min(run_ms, most_ms);
		young_pages += run_ms < most_ms ? target->own_pages : 0;
	}
	if (!pages)
		return 0;
	epoch->run_ns = div64_u64(page_ms, pages) * NSEC_PER_MSEC;
	epoch->young_ns = mul_u64_u64_div_u64(epoch->passed_ns, young_pages, pages);
	return pages;
}

static void age_targets(u64 passed_ns)
{
	struct demeter_target *target;
	u32 space = 0;

	while ((target = demeter_target_next(&space))) {
		/* Of the epoch that it came in nobody knows how much was its own. */
		target->managed_ns += target->has_run ? passed_ns : 0;
		target->has_run = true;
	}
}

/**
 * demeter_finer_keep_accounts() - an epoch is over: what it has cost and gained
 * @dense_shift: by what its samples were denser, as a power of two
 */
void demeter_finer_keep_accounts(u32 dense_shift)
{
	struct demeter_finer_budget_epoch epoch = { .passed_ns = demeter_pacing_passed_ns() };
	u64 pages, moves_ns;

	epoch.gained_ns = gained(demeter_ledger_paged(&moves_ns));
	charged_ns = demeter_worker_clock();
	age_targets(epoch.passed_ns);
	pages = measure_managed(&epoch);
	granules = min_t(u64, pages / HPAGE_PMD_NR, demeter_finer_capacity());
	demeter_finer_budget_earn(&budget, &epoch, youth_ns());
	charge_records(dense_shift);
	charge_moves(moves_ns);
}
