/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Finer's budget: what may dividing granules cost before it has gained anything.
 *
 * Denser samples, splitting huge pages and exchanging base pages are paid at once, and
 * pay later. A program that ends meanwhile, or changes, has lost them. How long it will run
 * nobody knows. So no more is spent than a 160th of the time that it has run so far, and a
 * 500th of what comes after its youth, and half of what was gained by what had been
 * divided: whenever it ends, that is what it has lost at most, a hundredth with what
 * management takes besides, and what turns out to gain pays for the rest by itself. All of
 * it is what is expected, as samples say; and the last thing that was paid may exceed it.
 *
 * There is one budget for all that is managed, and time is that of one CPU. Of several
 * programs each counts by its pages: what old ones have left over is laid aside while a
 * young one runs, and is not for that.
 */
#ifndef DEMETER_FINER_BUDGET_H
#define DEMETER_FINER_BUDGET_H

#include <demeter/deps.h>

/**
 * struct demeter_finer_budget - CPU time that may be spent; all zero to begin with
 * @left_ns: so much now; less than nothing where something took longer than expected
 * @aside_ns: beside it, of who is old, while somebody is young
 * @gained_ns: by what is divided, earlier epochs counting for less
 * @credited_ns: of that, likewise
 * @records: of samples that an epoch may have, were they not denser
 *
 * Not synchronised: one owner at a time.
 */
struct demeter_finer_budget {
	s64 left_ns;
	s64 aside_ns;
	s64 gained_ns;
	s64 credited_ns;
	u64 records;
};

/**
 * struct demeter_finer_budget_epoch - what an epoch came to
 * @passed_ns: how long it was
 * @young_ns: of it, the part, by pages, of what is young
 * @run_ns: for so long what is managed has run, each page for its youth at most, on
 *	average; 0 where nothing is managed
 * @gained_ns: what was gained meanwhile by what is divided; a loss is one
 */
struct demeter_finer_budget_epoch {
	u64 passed_ns;
	u64 young_ns;
	u64 run_ns;
	s64 gained_ns;
};

void demeter_finer_budget_earn(struct demeter_finer_budget *budget,
			       const struct demeter_finer_budget_epoch *epoch, u64 youth_ns);
void demeter_finer_budget_spend(struct demeter_finer_budget *budget, u64 ns);
void demeter_finer_budget_bear(struct demeter_finer_budget *budget, u64 ns, u64 youth_ns);
u64 demeter_finer_budget_extra_records(struct demeter_finer_budget *budget, u64 records, u32 shift);
u32 demeter_finer_budget_shift(const struct demeter_finer_budget *budget, u64 record_ns, u32 shift);
bool demeter_finer_budget_covers_look(const struct demeter_finer_budget *budget, u64 granules,
				      u64 youth_ns);

#endif /* DEMETER_FINER_BUDGET_H */
