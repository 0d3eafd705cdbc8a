// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Finer's budget: see <demeter/finer_budget.h>. */
#include <demeter/finer_budget.h>
#include <demeter/math.h>

/*
 * Part of the time that programs have run, up to the horizon, and of the time as it passes
 * afterwards. Of the hundredth that a program may lose in all, management takes three to four
 * tenths without it.
 */
#define BUDGET_YOUNG	   160U
#define BUDGET_PART	   500U
/*
 * What a look takes for each granule, with the division of one in seven: some dozens must be
 * divided until it shows. And the part of the horizon that is enough for any number.
 */
#define BUDGET_LOOK_NS	   280000ULL
#define BUDGET_LOOK_ENOUGH 200U
/* Part of what was gained, if longer walks leave any of it: both are as samples say. */
#define BUDGET_GAIN	   2
#define BUDGET_MOST	   ((s64)BIT_ULL(61))

static s64 budget_clamp(s64 ns, s64 most)
{
	if (ns > most)
		return most;
	return ns < -BUDGET_MOST ? -BUDGET_MOST : ns;
}

static s64 budget_part(u64 ns, u64 part)
{
	return (s64)(demeter_min(ns, (u64)BUDGET_MOST) / part);
}

/* A loss, as where what is hot moves, is made up for within a horizon. */
static s64 budget_bearable(const struct demeter_finer_budget *budget, s64 gained, u64 horizon_ns)
{
	s64 debt = budget_part(horizon_ns, BUDGET_PART);

	if (gained >= 0 || budget->saved_ns + gained >= -debt)
		return gained;
	return budget->saved_ns > -debt ? -debt - budget->saved_ns : 0;
}

/**
 * demeter_finer_budget_earn - time has passed
 * @budget: the budget
 * @epoch: what it came to
 * @horizon_ns: how long a placement is expected to last
 *
 * No more is saved than that part of the horizon: who has run for so long would not miss
 * it. Where nothing is managed any more, nobody is left to pay a debt.
 */
void demeter_finer_budget_earn(struct demeter_finer_budget *budget,
			       const struct demeter_finer_budget_epoch *epoch, u64 horizon_ns)
{
	u64 young_ns = demeter_min(epoch->young_ns, epoch->passed_ns);
	s64 gained = budget_clamp(epoch->gained_ns, BUDGET_MOST / BUDGET_GAIN);
	s64 earned = budget_part(young_ns, BUDGET_YOUNG) +
		     budget_part(epoch->passed_ns - young_ns, BUDGET_PART);

	budget->most_ns = budget_part(demeter_min(epoch->run_ns, horizon_ns), BUDGET_YOUNG);
	if (!epoch->run_ns) {
		if (budget->saved_ns < 0)
			budget->saved_ns = 0;
		return;
	}
	/* A loss is one in full. */
	if (gained > 0)
		gained /= BUDGET_GAIN;
	gained = budget_bearable(budget, gained, horizon_ns);
	budget->saved_ns = budget_clamp(budget->saved_ns + earned + gained,
					budget_part(horizon_ns, BUDGET_YOUNG));
}

/**
 * demeter_finer_budget_spend - something was done
 * @budget: the budget
 * @ns: CPU time that it takes
 */
void demeter_finer_budget_spend(struct demeter_finer_budget *budget, u64 ns)
{
	budget->saved_ns = budget_clamp(budget->saved_ns - budget_part(ns, 1), BUDGET_MOST);
}

/**
 * demeter_finer_budget_left_ns - what may be spent now
 * @budget: the budget
 *
 * Return: nanoseconds; less than nothing while a debt is paid off.
 */
s64 demeter_finer_budget_left_ns(const struct demeter_finer_budget *budget)
{
	return budget_clamp(budget->saved_ns, budget->most_ns);
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
	return demeter_finer_budget_left_ns(budget) >=
	       (s64)demeter_min(granules * BUDGET_LOOK_NS, enough_ns);
}
