// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Forgone: see <demeter/forgone.h>.
 *
 * Steps are followed one after the other, and judged together: where hot memory still
 * wanders, one of them may be lucky, and those before it, which were not, are held
 * against it. Each counts half as much as the one after it, so that a program that
 * has settled is believed after one that saves a lot, or two that save enough.
 *
 * What would have paid may be chance, or come too late when it is really moved: then
 * there soon is another stop. Of each in a row twice as much is asked as of the one
 * before, which memory that stays hot saves in twice the time, and memory that is hot by
 * turns never.
 */
#include <demeter/forgone.h>
#include <demeter/judge.h>
#include <demeter/math.h>

/* Of what a step saves or loses, so many times what is asked for counts. */
#define FORGONE_CREDIT	      2U
/* And so many more samples of what would have been promoted than of what would have gone. */
#define FORGONE_LEAST_SAMPLES 32U
#define FORGONE_PS_PER_NS     1000ULL
#define FORGONE_S64_MAX	      (DEMETER_U64_MAX >> 1)

/**
 * demeter_forgone_begin - choose a step and follow it
 * @forgone: the account
 * @space: its address space
 * @ranked: the ranking, before anything is hidden in it
 * @nr: its length
 * @page_cost_ns: what moving a page takes
 * @horizon_ns: how long a placement is expected to last at most
 *
 * Nothing is chosen where nothing in SMEM is hotter than what is in FMEM. Where the space
 * has nothing in FMEM, what others would give up for it is not counted: that is for the
 * planner to weigh.
 */
void demeter_forgone_begin(struct demeter_forgone *forgone, u32 space,
			   const struct demeter_rank_entry *ranked, u32 nr, u64 page_cost_ns,
			   u64 horizon_ns)
{
	struct demeter_plan_step step = { .kind = DEMETER_PLAN_FILL, .lasts_ns = horizon_ns };
	bool any_hot = false, any_cold = false;
	u64 pages;
	u32 i;

	for (i = 0; i < nr; i++) {
		const struct demeter_rank_entry *e = &ranked[i];

		if (e->space != space || e->part)
			continue;
		if (!any_hot && e->pages[DEMETER_SMEM]) {
			any_hot = true;
			step.hot = i;
		}
		if (e->pages[DEMETER_FMEM]) {
			any_cold = true;
			step.cold = i;
		}
	}
	if (!any_hot || (any_cold && step.hot >= step.cold))
		return;
	pages = ranked[step.hot].pages[DEMETER_SMEM];
	if (any_cold) {
		step.kind = DEMETER_PLAN_SWAP;
		pages = demeter_min(pages, ranked[step.cold].pages[DEMETER_FMEM]);
	}
	demeter_placement_init(&forgone->step, &step, ranked);
	forgone->step.pages = pages;
	forgone->step.cost_ns =
		demeter_min(demeter_mul_sat(pages, page_cost_ns), FORGONE_S64_MAX / 512);
}

/* What counts of what the step would have saved. */
static s64 forgone_gain_ns(const struct demeter_placement *step, u32 stops)
{
	s64 most = (s64)((step->cost_ns * FORGONE_CREDIT) << stops);

	return step->realised_ns > most	   ? most
	       : step->realised_ns < -most ? -most
					   : step->realised_ns;
}

static u64 forgone_least_ns(u64 sample_period, u64 latency_gap_ps)
{
	u64 ps = demeter_mul_sat(demeter_mul_sat(sample_period, latency_gap_ps),
				 FORGONE_LEAST_SAMPLES);

	return demeter_min(div64_u64(ps, FORGONE_PS_PER_NS), FORGONE_S64_MAX);
}

/**
 * demeter_forgone_epoch - an epoch of a stopped address space is over
 * @forgone: the account
 * @rs: classification of the space, its epoch ended
 * @stops: in a row, as the judge counts them
 * @samples: that it got
 * @sample_period: accesses that one sample stands for
 * @latency_gap_ps: SMEM latency minus FMEM latency
 * @epoch_ns: length of the epoch
 *
 * Return: whether moving would have paid.
 */
bool demeter_forgone_epoch(struct demeter_forgone *forgone, const struct demeter_ranges *rs,
			   u32 stops, u64 samples, u64 sample_period, u64 latency_gap_ps,
			   u64 epoch_ns)
{
	struct demeter_placement *step = &forgone->step;
	u64 cost_ns;
	s64 gain_ns;

	if (demeter_forgone_wants(forgone))
		return false;
	stops = (u32)demeter_min(stops, DEMETER_JUDGE_MAX_STOPS);
	demeter_placement_realise(step, rs, NULL, step->hot.space, sample_period, latency_gap_ps);
	demeter_placement_age(step, epoch_ns);
	/* An epoch without any says nothing. */
	if (samples)
		demeter_placement_forget(step, epoch_ns);
	cost_ns = forgone->cost_ns + step->cost_ns;
	gain_ns = forgone->gain_ns + forgone_gain_ns(step, stops);
	if (step->realised_ns >= (s64)forgone_least_ns(sample_period, latency_gap_ps) &&
	    gain_ns >= (s64)(cost_ns << stops))
		return true;
	if (demeter_placement_is_open(step) && !demeter_placement_is_over(step, epoch_ns))
		return false;
	forgone->cost_ns = cost_ns / 2;
	forgone->gain_ns = gain_ns / 2;
	memset(step, 0, sizeof(*step));
	return false;
}
