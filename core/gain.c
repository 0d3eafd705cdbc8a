// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Gain: see <demeter/gain.h>.
 *
 * A decayed count less half of what it was an epoch ago is what came in between.
 * Taking half of the count instead would be right in the mean, but would credit a
 * step with the accesses of an epoch before it, which is all that a step to a hot
 * spot gets that has moved on.
 */
#include <demeter/gain.h>
#include <demeter/math.h>

#define GAIN_PS_PER_NS	  1000ULL
#define GAIN_S64_MAX	  (DEMETER_U64_MAX >> 1)
/* Each epoch forgets one part in 2^this of what is recent. */
#define GAIN_FORGET	  3
/* A gain grows as long as one part in 2^this comes to it. */
#define GAIN_GROWTH	  3
/* So many quiet epochs are chance. */
#define GAIN_QUIET_EPOCHS 4U

static void gain_side(struct demeter_placement_side *side, const struct demeter_rank_entry *e)
{
	side->start = e->start;
	side->end = e->end;
	side->resident_pages = demeter_plan_resident(e);
	side->rate = e->rate;
	side->space = e->space;
	side->part = e->part;
}

/**
 * demeter_placement_init - begin the account of a step
 * @p: the account
 * @step: of a plan
 * @ranked: the entries it refers to
 *
 * Nothing has been moved yet: the caller sets @p->pages as it goes.
 */
void demeter_placement_init(struct demeter_placement *p, const struct demeter_plan_step *step,
			    const struct demeter_rank_entry *ranked)
{
	memset(p, 0, sizeof(*p));
	/* A demotion has no hot side, but its space keeps the account. */
	if (step->kind == DEMETER_PLAN_DEMOTE)
		p->hot.space = ranked[step->cold].space;
	else
		gain_side(&p->hot, &ranked[step->hot]);
	if (step->kind != DEMETER_PLAN_FILL)
		gain_side(&p->cold, &ranked[step->cold]);
	p->gain_ps = step->gain_ps;
	p->lasts_ns = step->lasts_ns;
	p->remote_ps = step->remote_ps;
}

/**
 * demeter_placement_predicted_ns - what is promised for the pages that were moved
 * @p: the account
 *
 * Return: nanoseconds of latency over the whole time that the promise runs.
 */
u64 demeter_placement_predicted_ns(const struct demeter_placement *p)
{
	return demeter_mul_div(p->gain_ps, p->pages, GAIN_PS_PER_NS);
}

/**
 * demeter_placement_is_open - does the promise still run
 * @p: the account
 *
 * Return: whether later epochs count for it.
 */
bool demeter_placement_is_open(const struct demeter_placement *p)
{
	return p->pages && p->age_ns < p->lasts_ns;
}

/* First range that ends behind @gva. */
static u32 gain_first(const struct demeter_ranges *rs, u64 gva)
{
	u32 low = 0, high = rs->nr;

	while (low < high) {
		u32 mid = low + (high - low) / 2;

		if (rs->range[mid].end <= gva)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

/**
 * demeter_gain_rate - decayed samples of a span of addresses, whatever its ranges are now
 * @rs: classification
 * @start: first byte
 * @end: one past the last byte
 *
 * The samples of a range that is only partly inside are taken to lie evenly.
 *
 * Return: fixed point, DEMETER_RATE_SHIFT.
 */
u64 demeter_gain_rate(const struct demeter_ranges *rs, u64 start, u64 end)
{
	u64 rate = 0;
	u32 i;

	for (i = gain_first(rs, start); i < rs->nr && rs->range[i].start < end; i++) {
		const struct demeter_range *r = &rs->range[i];
		u64 from = demeter_max(r->start, start);
		u64 to = demeter_min(r->end, end);
		u64 part;

		if (from >= to)
			continue;
		part = demeter_mul_div(r->rate, to - from, r->end - r->start);
		rate = demeter_add_sat(rate, part);
	}
	return rate;
}

/* Decayed samples of a side, of as many pages as it had. */
static u64 gain_side_rate(const struct demeter_placement_side *side,
			  const struct demeter_ranges *rs, const struct demeter_rank_entry *classes)
{
	const struct demeter_rank_entry *e;

	if (!side->part)
		return demeter_gain_rate(rs, side->start, side->end);
	if (!classes)
		return 0;
	e = &classes[side->part - DEMETER_FINER_PART];
	return demeter_mul_div(e->rate, side->resident_pages, demeter_plan_resident(e));
}

/* Latency of one epoch's accesses to the moved pages of a side, in nanoseconds. */
static s64 gain_side_ns(struct demeter_placement_side *side, u64 pages,
			const struct demeter_ranges *rs, const struct demeter_rank_entry *classes,
			u64 sample_period, u64 latency_gap_ps)
{
	u64 rate = gain_side_rate(side, rs, classes);
	/* What was counted before was thinned as well, if samples have become fewer. */
	u64 samples = demeter_sub_sat(rate, side->rate >> (1 + rs->thin));
	u64 share = demeter_min(pages, side->resident_pages);
	u64 ps = demeter_mul_div(samples, demeter_mul_sat(sample_period, latency_gap_ps),
				 1ULL << DEMETER_RATE_SHIFT);

	side->rate = rate;
	ps = demeter_mul_div(ps, share, side->resident_pages);
	return (s64)demeter_min(div64_u64(ps, GAIN_PS_PER_NS), GAIN_S64_MAX / 2);
}

/* a + b, where |b| is at most half the largest number. */
static s64 gain_add_sat(s64 a, s64 b)
{
	if (b > 0 && a > (s64)GAIN_S64_MAX - b)
		return (s64)GAIN_S64_MAX;
	if (b < 0 && a < -(s64)GAIN_S64_MAX - b)
		return -(s64)GAIN_S64_MAX;
	return a + b;
}

/**
 * demeter_placement_realise - add what an epoch of one address space says
 * @p: the account
 * @rs: classification of the space, its epoch ended
 * @classes: of the space, see demeter_finer_classes(); NULL when nothing is divided
 * @space: its number: sides in other spaces are left alone
 * @sample_period: accesses that one sample stands for
 * @latency_gap_ps: SMEM latency minus FMEM latency
 *
 * Nothing happens once the promise has run out.
 *
 * Return: by how much @p->realised_ns has changed.
 */
s64 demeter_placement_realise(struct demeter_placement *p, const struct demeter_ranges *rs,
			      const struct demeter_rank_entry *classes, u32 space,
			      u64 sample_period, u64 latency_gap_ps)
{
	s64 before = p->realised_ns, ns = 0;

	if (!demeter_placement_is_open(p))
		return 0;
	if (p->hot.space == space && p->hot.end)
		ns += gain_side_ns(&p->hot, p->pages, rs, classes, sample_period,
				   demeter_sub_sat(latency_gap_ps, p->remote_ps));
	if (p->cold.space == space && p->cold.end)
		ns -= gain_side_ns(&p->cold, p->pages, rs, classes, sample_period,
				   demeter_add_sat(latency_gap_ps, p->remote_ps));
	p->realised_ns = gain_add_sat(before, ns);
	p->recent_ns = gain_add_sat(p->recent_ns, ns);
	return p->realised_ns - before;
}

/**
 * demeter_placement_age - an epoch has passed
 * @p: the account
 * @epoch_ns: its length
 */
void demeter_placement_age(struct demeter_placement *p, u64 epoch_ns)
{
	p->age_ns = demeter_add_sat(p->age_ns, demeter_max(epoch_ns, 1));
}

/* Is what the step saves still growing? */
static void gain_note_growth(struct demeter_placement *p, u64 epoch_ns)
{
	if (p->realised_ns <= gain_add_sat(p->grown_ns, p->grown_ns >> GAIN_GROWTH)) {
		p->quiet_ns = demeter_add_sat(p->quiet_ns, epoch_ns);
		return;
	}
	p->grown_ns = p->realised_ns;
	p->grown_age_ns = p->age_ns;
	p->quiet_ns = 0;
}

/**
 * demeter_placement_forget - an epoch with accesses has passed: earlier ones count less
 * @p: the account
 * @epoch_ns: its length
 *
 * An epoch without any says nothing about what its program accesses.
 */
void demeter_placement_forget(struct demeter_placement *p, u64 epoch_ns)
{
	gain_note_growth(p, epoch_ns);
	p->recent_ns -= p->recent_ns / (1 << GAIN_FORGET);
	p->recent_age_ns -= p->recent_age_ns >> GAIN_FORGET;
	p->recent_age_ns = demeter_add_sat(p->recent_age_ns, epoch_ns - (epoch_ns >> GAIN_FORGET));
}

/**
 * demeter_placement_is_over - has the step saved what it saves
 * @p: the account
 * @epoch_ns: length of an epoch
 *
 * What stays hot saves as much in each epoch; what was hot for a while saves nothing after
 * that. It is over when it has been quiet for as long as it had been growing, and for some
 * epochs, as few samples have gaps.
 *
 * Return: whether to expect no more of it.
 */
bool demeter_placement_is_over(const struct demeter_placement *p, u64 epoch_ns)
{
	u64 gap_ns = demeter_mul_sat(epoch_ns, GAIN_QUIET_EPOCHS);

	return p->quiet_ns >= demeter_add_sat(p->grown_age_ns, gap_ns);
}

/**
 * demeter_placement_outlook_ns - what the step will have saved when its time is over
 * @p: the account
 *
 * If it goes on as of late.
 *
 * Return: nanoseconds of latency, its cost not taken off.
 */
s64 demeter_placement_outlook_ns(const struct demeter_placement *p)
{
	u64 left_ns = demeter_sub_sat(p->lasts_ns, p->age_ns);
	u64 late_ns = (u64)(p->recent_ns < 0 ? -p->recent_ns : p->recent_ns);

	if (!p->recent_age_ns)
		return p->realised_ns;
	late_ns =
		demeter_min(demeter_mul_div(late_ns, left_ns, p->recent_age_ns), GAIN_S64_MAX / 2);
	return gain_add_sat(p->realised_ns, p->recent_ns < 0 ? -(s64)late_ns : (s64)late_ns);
}
