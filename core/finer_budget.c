// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Finer's budget: see <demeter/finer_budget.h>. */
#include <demeter/finer_budget.h>
#include <demeter/math.h>

/*
 * Part of the time that programs have run, up to the horizon, and of the time as it passes
 * afterwards. To look at 280 granules and to divide so many that it shows takes a hundredth
 * of the default horizon.
 */
#define BUDGET_YOUNG	   100U
#define BUDGET_PART	   500U
/*
 * What a look takes for each granule, with the division of one in seven: some dozens must be
 * divided until it shows. And the part of the horizon that is enough for any number.
 */
#define BUDGET_LOOK_NS	   280000ULL
#define BUDGET_LOOK_ENOUGH 125U
/* Part of what was gained, longer walks taken off: both are as samples say. */
#define BUDGET_GAIN	   2
#define BUDGET_MOST	   ((s64)BIT_ULL(61))

static s64 budget_clamp(s64 ns, s64 most)
{
	if (ns > most)
		return most;
	return ns < -BUDGET_MOST ? -BUDGET_MOST : ns;
}

/* What may be left over: who has run for so long would not miss it. */
static s64 budget_most(u64 run_ns, u64 horizon_ns)
{
	return (s64)(demeter_min(demeter_min(run_ns, horizon_ns), (u64)BUDGET_MOST) / BUDGET_YOUNG);
}

/**
 * demeter_finer_budget_init - nothing was spent yet
 * @budget: the budget
 * @run_ns: for so long what is managed has run
 * @horizon_ns: how long a placement is expected to last
 */
void demeter_finer_budget_init(struct demeter_finer_budget *budget, u64 run_ns, u64 horizon_ns)
{
	budget->left_ns = budget_most(run_ns, horizon_ns);
}

/**
 * demeter_finer_budget_earn - time has passed
 * @budget: the budget
 * @passed_ns: how much
 * @gained_ns: what was gained meanwhile by what is divided; a loss is one
 * @run_ns: for so long what is managed has run; less than before where something joined
 * @horizon_ns: how long a placement is expected to last
 */
void demeter_finer_budget_earn(struct demeter_finer_budget *budget, u64 passed_ns, s64 gained_ns,
			       u64 run_ns, u64 horizon_ns)
{
	s64 most = budget_most(run_ns, horizon_ns);
	s64 debt = (s64)(demeter_min(horizon_ns, (u64)BUDGET_MOST) / BUDGET_PART);
	s64 passed = (s64)(demeter_min(passed_ns, (u64)BUDGET_MOST) /
			   (run_ns < horizon_ns ? BUDGET_YOUNG : BUDGET_PART));
	s64 gained = budget_clamp(gained_ns, BUDGET_MOST) / BUDGET_GAIN;

	/* A loss, as where what is hot moves, is made up for within a horizon. */
	if (gained < 0 && budget->left_ns + gained < -debt)
		gained = budget->left_ns > -debt ? -debt - budget->left_ns : 0;
	budget->left_ns = budget_clamp(budget->left_ns + passed + gained, most);
}

/**
 * demeter_finer_budget_spend - something was done
 * @budget: the budget
 * @ns: CPU time that it takes
 */
void demeter_finer_budget_spend(struct demeter_finer_budget *budget, u64 ns)
{
	budget->left_ns =
		budget_clamp(budget->left_ns - (s64)demeter_min(ns, (u64)BUDGET_MOST), BUDGET_MOST);
}

/**
 * demeter_finer_budget_covers_look - is there enough for a look that may come to something
 * @budget: the budget
 * @granules: that are looked at
 * @horizon_ns: how long a placement is expected to last
 *
 * A look that ends for want of means has cost what it has cost, and gains nothing.
 *
 * Return: whether there is.
 */
bool demeter_finer_budget_covers_look(const struct demeter_finer_budget *budget, u64 granules,
				      u64 horizon_ns)
{
	u64 enough_ns = demeter_min(horizon_ns, (u64)BUDGET_MOST) / BUDGET_LOOK_ENOUGH;

	granules = demeter_min(granules, enough_ns);
	return budget->left_ns >= (s64)demeter_min(granules * BUDGET_LOOK_NS, enough_ns);
}
