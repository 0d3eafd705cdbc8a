// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Finer's budget: see <demeter/finer_budget.h>. */
#include <demeter/finer_budget.h>
#include <demeter/math.h>

/*
 * Part of the horizon in advance, and of the time as it passes: one and a half percent in
 * all. To look at 280 granules and to divide so many that it shows takes a hundredth.
 */
#define BUDGET_ADVANCE 80U
#define BUDGET_PART    500U
/* Part of what was gained, longer walks taken off: both are as samples say. */
#define BUDGET_GAIN    2
#define BUDGET_MOST    ((s64)BIT_ULL(61))

static s64 budget_clamp(s64 ns, s64 most)
{
	if (ns > most)
		return most;
	return ns < -BUDGET_MOST ? -BUDGET_MOST : ns;
}

/**
 * demeter_finer_budget_init - what may be spent in advance
 * @budget: the budget
 * @horizon_ns: how long a placement is expected to last
 */
void demeter_finer_budget_init(struct demeter_finer_budget *budget, u64 horizon_ns)
{
	budget->left_ns = (s64)(demeter_min(horizon_ns, (u64)BUDGET_MOST) / BUDGET_ADVANCE);
}

/**
 * demeter_finer_budget_earn - time has passed
 * @budget: the budget
 * @passed_ns: how much
 * @gained_ns: what was gained meanwhile by what is divided; a loss is one
 * @horizon_ns: what is left over is kept up to what may be spent in advance, for so long
 */
void demeter_finer_budget_earn(struct demeter_finer_budget *budget, u64 passed_ns, s64 gained_ns,
			       u64 horizon_ns)
{
	s64 most = (s64)(demeter_min(horizon_ns, (u64)BUDGET_MOST) / BUDGET_ADVANCE);
	s64 debt = (s64)(demeter_min(horizon_ns, (u64)BUDGET_MOST) / BUDGET_PART);
	s64 passed = (s64)(demeter_min(passed_ns, (u64)BUDGET_MOST) / BUDGET_PART);
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
