/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Finer's budget: what may dividing granules cost before it has gained anything.
 *
 * Denser samples, splitting huge pages and exchanging base pages are paid at once, and
 * pay later. A program that ends meanwhile, or changes, has lost them. How long it will run
 * nobody knows. So no more is spent than a hundredth of the time that it has run so far, and
 * a 500th of what comes after the horizon, and half of what was gained by what had been
 * divided: whenever it ends, it has lost one percent at most, and what turns out to gain pays
 * for the rest by itself. All of it is what is expected, as samples say; and the last thing
 * that was paid may exceed it.
 */
#ifndef DEMETER_FINER_BUDGET_H
#define DEMETER_FINER_BUDGET_H

#include <demeter/deps.h>

/**
 * struct demeter_finer_budget - CPU time that may be spent
 * @left_ns: so much now; less than nothing where something took longer than expected
 *
 * Not synchronised: one owner at a time.
 */
struct demeter_finer_budget {
	s64 left_ns;
};

void demeter_finer_budget_init(struct demeter_finer_budget *budget, u64 run_ns, u64 horizon_ns);
void demeter_finer_budget_earn(struct demeter_finer_budget *budget, u64 passed_ns, s64 gained_ns,
			       u64 run_ns, u64 horizon_ns);
bool demeter_finer_budget_covers_look(const struct demeter_finer_budget *budget, u64 granules,
				      u64 horizon_ns);
void demeter_finer_budget_spend(struct demeter_finer_budget *budget, u64 ns);

#endif /* DEMETER_FINER_BUDGET_H */
