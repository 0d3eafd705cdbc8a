// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Finer's budget: see <demeter/finer_budget.h>. */
#include <demeter/finer_budget.h>
#include <demeter/math.h>

/*
 * Part of the time that programs have run while they are young, and of the time as it passes
 * afterwards. Of the hundredth that a program may lose in all, management takes three to four
 * tenths without it.
 */
#define BUDGET_YOUNG	   160U
#define BUDGET_PART	   500U
/*
 * What a look takes for each granule, with the division of one in seven: some dozens must be
 * divided until it shows. And the part of a youth that is enough for any number.
 */
#define BUDGET_LOOK_NS	   280000ULL
#define BUDGET_LOOK_ENOUGH 200U
/* Part of what was gained, if longer walks leave any of it: both are as samples say. */
#define BUDGET_GAIN	   2
/* Part of what is left that an epoch's denser samples may take: the rest is to divide by. */
#define BUDGET_RECORDS	   4
/* What an epoch had of records is expected again, less an eighth with each that has fewer. */
#define BUDGET_FADE	   8U
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

/*
 * Into @aside what is too much for who is young. Where nobody is it comes back, no faster than
 * an old program earns: else who has just grown old would spend it at once.
 */
static void budget_lay_aside(struct demeter_finer_budget *budget, s64 most, u64 old_ns)
{
	s64 over = budget->left_ns > most ? budget->left_ns - most : 0;
	s64 back = budget_clamp(budget->aside_ns, budget_part(old_ns, BUDGET_PART));

	budget->left_ns += back - over;
	budget->aside_ns = budget_clamp(budget->aside_ns + over - back, BUDGET_MOST);
}

/* @ns less the part of it that is forgotten in @passed_ns. */
static s64 budget_fade(s64 ns, u64 passed_ns, u64 youth_ns)
{
	u64 size = (u64)(ns < 0 ? -ns : ns);

	size -= demeter_mul_div(size, demeter_min(passed_ns, youth_ns), demeter_max(youth_ns, 1));
	return ns < 0 ? -(s64)size : (s64)size;
}

/*
 * Half of a gain, and all of a loss. Both are as samples say, of which chance has some cold and
 * some hot: what was lost in one epoch and gained in the next is neither. So it is their sum
 * that counts; what of a loss cannot be borne at once is taken from later gains.
 */
static void budget_credit(struct demeter_finer_budget *budget, s64 gained_ns, u64 passed_ns,
			  u64 youth_ns)
{
	s64 least = -budget_part(youth_ns, BUDGET_PART) - budget_part(youth_ns, BUDGET_YOUNG);
	s64 sum = budget_fade(budget->gained_ns, passed_ns, youth_ns);
	s64 before = budget_fade(budget->credited_ns, passed_ns, youth_ns);
	s64 left = budget->left_ns, worth;

	sum = budget_clamp(sum + budget_clamp(gained_ns, BUDGET_MOST), BUDGET_MOST);
	sum = sum < least ? least : sum;
	worth = sum > 0 ? sum / BUDGET_GAIN : sum;
	if (worth > before)
		budget->left_ns += worth - before;
	else
		demeter_finer_budget_bear(budget, (u64)(before - worth), youth_ns);
	budget->gained_ns = sum;
	budget->credited_ns = before + (budget->left_ns - left);
}

/**
 * demeter_finer_budget_earn - time has passed
 * @budget: the budget
 * @epoch: what it came to
 * @youth_ns: for so long a program counts as young
 *
 * No more is saved than that part of a youth: who has run for so long would not miss it.
 * Where nothing is managed any more, nobody is left to pay a debt, or to have saved anything.
 */
void demeter_finer_budget_earn(struct demeter_finer_budget *budget,
			       const struct demeter_finer_budget_epoch *epoch, u64 youth_ns)
{
	s64 most = budget_part(demeter_min(epoch->run_ns, youth_ns), BUDGET_YOUNG);
	u64 young_ns = demeter_min(epoch->young_ns, epoch->passed_ns);

	if (!epoch->run_ns) {
		memset(budget, 0, sizeof(*budget));
		return;
	}
	budget_lay_aside(budget, most, young_ns ? 0 : epoch->passed_ns);
	budget->left_ns += budget_part(young_ns, BUDGET_YOUNG);
	budget->left_ns += budget_part(epoch->passed_ns - young_ns, BUDGET_PART);
	budget_credit(budget, epoch->gained_ns, epoch->passed_ns, youth_ns);
	budget->left_ns = budget_clamp(budget->left_ns, most);
}

/**
 * demeter_finer_budget_bear - something was lost, or took what nobody could know before
 * @budget: the budget
 * @ns: how much
 * @youth_ns: for so long a program counts as young
 *
 * Of it so much is owed as is made up for within a youth.
 */
void demeter_finer_budget_bear(struct demeter_finer_budget *budget, u64 ns, u64 youth_ns)
{
	s64 least = -budget_part(youth_ns, BUDGET_PART);
	s64 lost = budget_part(ns, 1);

	if (budget->left_ns - lost >= least)
		budget->left_ns -= lost;
	else if (budget->left_ns > least)
		budget->left_ns = least;
}

/**
 * demeter_finer_budget_spend - something was done
 * @budget: the budget
 * @ns: CPU time that it takes
 */
void demeter_finer_budget_spend(struct demeter_finer_budget *budget, u64 ns)
{
	budget->left_ns = budget_clamp(budget->left_ns - budget_part(ns, 1), BUDGET_MOST);
}

/**
 * demeter_finer_budget_extra_records - an epoch is over: what of its records are more than usual
 * @budget: the budget
 * @records: that there were
 * @shift: by what they were denser, as a power of two
 *
 * Return: those that there are only because they are denser.
 */
u64 demeter_finer_budget_extra_records(struct demeter_finer_budget *budget, u64 records, u32 shift)
{
	u64 usual = records >> demeter_min(shift, 63U);

	/* One that is quiet, as at a barrier, says nothing about the next. */
	budget->records = demeter_max(usual, budget->records - budget->records / BUDGET_FADE);
	return records - usual;
}

/**
 * demeter_finer_budget_shift - how much denser may samples be in the next epoch
 * @budget: the budget
 * @record_ns: what a record takes
 * @shift: as a power of two, no more than this
 *
 * Whether an epoch of them was dear is only known when it is over, and with many CPUs it could
 * take all that there is many times over.
 *
 * Return: as a power of two.
 */
u32 demeter_finer_budget_shift(const struct demeter_finer_budget *budget, u64 record_ns, u32 shift)
{
	u64 ns = demeter_mul_sat(demeter_max(budget->records, 1), record_ns);

	if (budget->left_ns <= 0)
		return 0;
	while (shift &&
	       demeter_mul_sat(ns, (1ULL << shift) - 1) > (u64)budget->left_ns / BUDGET_RECORDS)
		shift--;
	return shift;
}

/**
 * demeter_finer_budget_covers_look - is there enough for a look that may come to something
 * @budget: the budget
 * @granules: that are looked at
 * @youth_ns: for so long a program counts as young
 *
 * A look that ends for want of means has cost what it has cost, and gains nothing.
 *
 * Return: whether there is.
 */
bool demeter_finer_budget_covers_look(const struct demeter_finer_budget *budget, u64 granules,
				      u64 youth_ns)
{
	u64 enough_ns = (u64)budget_part(youth_ns, BUDGET_LOOK_ENOUGH);

	granules = demeter_min(granules, enough_ns);
	return budget->left_ns >= (s64)demeter_min(granules * BUDGET_LOOK_NS, enough_ns);
}
