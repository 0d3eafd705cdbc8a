/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Finer's budget: what may dividing granules cost before it has gained anything.
 *
 * Denser samples, splitting huge pages and exchanging base pages are paid at once, and
 * pay later. A program that ends meanwhile, or changes, has lost them. So no more is spent
 * than a small part of the time, so much of the horizon's at once, and half of what was
 * gained by what had been divided: whoever runs for the horizon or longer loses one
 * and a half percent at most, and what turns out to gain pays for the rest by itself. All of it is
 * what is expected, as samples say; and the last thing that was paid may exceed it.
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

void demeter_finer_budget_init(struct demeter_finer_budget *budget, u64 horizon_ns);
void demeter_finer_budget_earn(struct demeter_finer_budget *budget, u64 passed_ns, s64 gained_ns,
			       u64 horizon_ns);
void demeter_finer_budget_spend(struct demeter_finer_budget *budget, u64 ns);

#endif /* DEMETER_FINER_BUDGET_H */
