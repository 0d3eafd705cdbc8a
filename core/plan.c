// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Plan: see <demeter/plan.h>.
 *
 * The paper swaps, while anything splits, all slow pages of hot ranges against
 * pages of the coldest ranges. Here a plan is made every epoch and each step
 * must pay for itself.
 *
 * How sure is a rate? A range's decayed count n is a sample; ordering hundreds
 * of such counts and pairing the top with the bottom finds "hot" and "cold"
 * ranges in pure noise. So the hot side is credited with n - b sqrt(n) and the
 * cold side charged with n + b sqrt(n + 1), where
 *
 *	b^2 = alpha^2 + 2 ln(number of ranges)
 *
 * is the union bound: with b deviations over N ranges, some range is as far out
 * as alpha deviations were for one. (The + 1: no sample at all is no proof of
 * no access.)
 *
 * What is it worth? A steady rate of s samples an epoch decays to a count of
 * 2 s. One page of a range of P pages thus sees, over the horizon,
 * n / 2 * period / P * horizon / epoch accesses, each cheaper by the latency
 * gap. All of it is computed in picoseconds and saturates.
 *
 * How long does it last? At most the horizon; but a range that got its bounds
 * just now is about to be split further, and most of it to turn out cold. What
 * a range has lasted is the best guess at what it will last, so the promise of
 * one of age a counts for 4 * 2^a epochs. A spot so hot that it pays within
 * four epochs is promoted at once, with what surrounds it; a range that is
 * barely warm waits until it has stopped being split. Without that, each level
 * of the tree on the way to a small hot spot exchanges all of FMEM; to wait
 * for a fixed age instead moves more and gains later.
 *
 * There is no rule of its own for when to stop. Once what is hot is in place no
 * step pays, which is what a hit ratio that has gone flat would say too; while
 * steps pay, it still rises, however slowly: where hot spots are many and
 * samples few, for a hundred epochs. Stopping by the ratio would end it there.
 */
#include <demeter/digest.h>
#include <demeter/math.h>
#include <demeter/plan.h>

#define PLAN_NS_PER_S	      1000000000ULL
#define PLAN_PS_PER_NS	      1000ULL
#define PLAN_PERMILLE	      1000ULL
#define PLAN_MAX_SIGNIFICANCE 1024U
/* How long a range that got its bounds this epoch is believed. */
#define PLAN_TRUST_EPOCHS     4U
/* More doublings than any horizon has room for, and none that wrap. */
#define PLAN_MAX_DOUBLINGS    32U
/* Counts below this have room for the square of the significance. */
#define PLAN_EXACT_RATE	      BIT_ULL(32)

/**
 * struct plan_terms - what the parameters come down to
 * @params: as given
 * @caution: b^2, in 1/256
 * @sample_worth: picoseconds saved over the horizon by one sample an epoch
 * @near_worth: the same in FMEM of its own socket
 * @sample_loss: the same lost, where the page is demoted
 * @move_bar: picoseconds that a move into free FMEM must save
 * @swap_bar: picoseconds that a swap must save
 */
struct plan_terms {
	const struct demeter_plan_params *params;
	u64 caution;
	u64 sample_worth;
	u64 near_worth;
	u64 sample_loss;
	u64 move_bar;
	u64 swap_bar;
};

/* A position in the ranking, and what the steps so far have left of it. */
struct plan_cursor {
	u32 at;
	u64 pages;
	u64 worth;
	u64 doubt;
};

/**
 * demeter_plan_resident - the pages that the accesses of a range are divided by
 * @e: ranked entry
 *
 * Return: 4 KiB pages, at least 1.
 */
u64 demeter_plan_resident(const struct demeter_rank_entry *e)
{
	u64 pages = demeter_add_sat(e->pages[DEMETER_FMEM], e->pages[DEMETER_SMEM]);

	return demeter_max(demeter_max(e->resident, pages), 1);
}

static u64 plan_bar(const struct demeter_plan_params *p, u64 cost_ns)
{
	/* ns * (1000 + permille) is in picoseconds: 1000 ps a ns, 1000 permille. */
	return demeter_mul_div(demeter_mul_sat(cost_ns, PLAN_PS_PER_NS),
			       PLAN_PERMILLE + p->hysteresis_permille, PLAN_PERMILLE);
}

/* Picoseconds over the horizon, at @gap_ps an access, of one sample an epoch. */
static u64 plan_sample_worth(const struct demeter_plan_params *p, u64 gap_ps)
{
	if (!p->epoch_ns)
		return 0;
	return demeter_mul_div(demeter_mul_sat(p->sample_period, gap_ps), p->horizon_ns,
			       p->epoch_ns);
}

static void plan_terms_init(struct plan_terms *t, const struct demeter_plan_params *p, u32 nr)
{
	u64 alpha = demeter_min(p->significance, PLAN_MAX_SIGNIFICANCE);

	t->params = p;
	t->caution = 0;
	if (alpha) /* 2 ln N = 1.386 log2 N; 355 / 256 = 1.387 */
		t->caution = alpha * alpha * 256 + 355ULL * demeter_log2(nr);
	t->sample_worth = plan_sample_worth(p, demeter_sub_sat(p->latency_gap_ps, p->remote_ps));
	t->near_worth = plan_sample_worth(p, p->latency_gap_ps);
	t->sample_loss = plan_sample_worth(p, demeter_add_sat(p->latency_gap_ps, p->remote_ps));
	t->move_bar = plan_bar(p, p->move_cost_ns);
	t->swap_bar = plan_bar(p, p->swap_cost_ns);
}

/* b * sqrt(rate), both in fixed point. */
static u64 plan_deviation(const struct plan_terms *t, u64 rate)
{
	/* sqrt(caution/256 * rate/256) * 256 = sqrt(caution * rate) */
	if (rate < PLAN_EXACT_RATE)
		return demeter_sqrt(t->caution * rate);
	return demeter_mul_sat(demeter_sqrt(t->caution) + 1, demeter_sqrt(rate) + 1);
}

/* Picoseconds per page over the horizon for a decayed count, at so many a sample. */
static u64 plan_worth(u64 sample_worth, u64 rate, u64 pages)
{
	/* 2: a decayed count is twice the samples of an epoch. */
	return demeter_mul_div(rate, sample_worth,
			       demeter_mul_sat(pages, 2ULL << DEMETER_RATE_SHIFT));
}

/* What a page of @e is surely worth in FMEM; @doubt: what was taken off. */
static u64 plan_worth_hot(const struct plan_terms *t, const struct demeter_rank_entry *e,
			  u64 *doubt)
{
	u64 pages = demeter_plan_resident(e);
	u64 sure_rate = demeter_sub_sat(e->rate, plan_deviation(t, e->rate));
	u64 sure = plan_worth(t->sample_worth, sure_rate, pages);

	*doubt = plan_worth(t->sample_worth, e->rate, pages) - sure;
	return sure;
}

/* What a page of @e may be worth in FMEM; @doubt: what was put on. */
static u64 plan_worth_cold(const struct plan_terms *t, const struct demeter_rank_entry *e,
			   u64 *doubt)
{
	u64 pages = demeter_plan_resident(e);
	u64 least = demeter_add_sat(e->rate, 1ULL << DEMETER_RATE_SHIFT);
	u64 most_rate = demeter_add_sat(e->rate, plan_deviation(t, least));
	u64 most = plan_worth(t->sample_loss, most_rate, pages);

	*doubt = most - plan_worth(t->sample_loss, e->rate, pages);
	return most;
}

/* How long a placement of @hot is believed to last. */
static u64 plan_lasts_ns(const struct plan_terms *t, const struct demeter_rank_entry *hot)
{
	u64 doubled = 1ULL << demeter_min(hot->age_epochs, PLAN_MAX_DOUBLINGS);

	return demeter_min(demeter_mul_sat(t->params->epoch_ns, PLAN_TRUST_EPOCHS * doubled),
			   t->params->horizon_ns);
}

/* What is left of a @gain over the horizon if @hot only lasts as it may. */
static u64 plan_trusted(const struct plan_terms *t, const struct demeter_rank_entry *hot, u64 gain)
{
	u64 lasts_ns = plan_lasts_ns(t, hot);

	if (lasts_ns >= t->params->horizon_ns)
		return gain;
	return demeter_mul_div(gain, lasts_ns, t->params->horizon_ns);
}

static void plan_refill(struct demeter_plan_state *state, const struct demeter_plan_params *p,
			u64 now_ns)
{
	u64 depth = p->burst_pages ? p->burst_pages : p->rate_pages_per_s;
	u64 earned;

	if (!state->primed) {
		state->primed = true;
		state->tokens_pages = depth;
		state->last_ns = now_ns;
	}
	/* The depth may have been lowered since. */
	state->tokens_pages = demeter_min(state->tokens_pages, depth);
	if (p->rate_pages_per_s == 0 || now_ns <= state->last_ns) {
		state->last_ns = now_ns;
		return;
	}
	earned = demeter_mul_div(now_ns - state->last_ns, p->rate_pages_per_s, PLAN_NS_PER_S);
	state->tokens_pages = demeter_add_sat(state->tokens_pages, earned);
	if (state->tokens_pages >= depth) {
		state->tokens_pages = depth;
		state->last_ns = now_ns;
	} else {
		/* Keep the fraction of a token: slow rates must not starve. */
		state->last_ns +=
			demeter_min(demeter_mul_div(earned, PLAN_NS_PER_S, p->rate_pages_per_s),
				    now_ns - state->last_ns);
	}
}

/* Up to @pages that the bucket allows at @price tokens each. */
static u64 plan_afford(const struct demeter_plan_state *state, const struct demeter_plan_params *p,
		       u64 pages, u64 price)
{
	if (p->rate_pages_per_s == 0)
		return pages;
	return demeter_min(pages, state->tokens_pages / price);
}

static void plan_take(struct demeter_plan_state *state, const struct demeter_plan_params *p,
		      u64 tokens)
{
	if (p->rate_pages_per_s)
		state->tokens_pages = demeter_sub_sat(state->tokens_pages, tokens);
}

static struct demeter_plan_step *
plan_add_step(struct demeter_plan *plan, enum demeter_plan_kind kind, u32 hot, u32 cold, u64 pages)
{
	struct demeter_plan_step *step = &plan->step[plan->nr++];

	/* Padding too: a caller may hash or copy whole steps. */
	memset(step, 0, sizeof(*step));
	step->kind = kind;
	step->hot = hot;
	step->cold = cold;
	step->imposed = false;
	step->pages = pages;
	if (kind == DEMETER_PLAN_FILL)
		plan->fill_pages = demeter_add_sat(plan->fill_pages, pages);
	else if (kind == DEMETER_PLAN_SWAP)
		plan->swap_pages = demeter_add_sat(plan->swap_pages, pages);
	else
		plan->demote_pages = demeter_add_sat(plan->demote_pages, pages);
	return step;
}

/* What the step was decided on, for whoever holds it against what comes of it. */
static void plan_promise(struct demeter_plan_step *step, const struct plan_terms *t,
			 const struct demeter_rank_entry *hot, u64 gain_ps)
{
	step->gain_ps = gain_ps;
	step->lasts_ns = plan_lasts_ns(t, hot);
	step->remote_ps = t->params->remote_ps;
}

/*
 * Promote into free FMEM, hottest first. On return @hot stands where swapping
 * must go on. False when the plan ends here.
 */
static bool plan_fill(struct demeter_plan *plan, struct demeter_plan_state *state,
		      const struct plan_terms *t, const struct demeter_rank_entry *ranked, u32 nr,
		      u64 free_pages, struct plan_cursor *hot)
{
	for (; hot->at < nr; hot->at++) {
		const struct demeter_rank_entry *e = &ranked[hot->at];
		u64 pages = e->pages[DEMETER_SMEM], gain;

		hot->pages = pages;
		if (free_pages == 0)
			return true;
		if (pages == 0)
			continue;
		gain = plan_trusted(t, e, plan_worth_hot(t, e, &hot->doubt));
		if (gain <= t->move_bar) {
			plan->end = DEMETER_PLAN_NO_GAIN;
			continue;
		}
		if (plan->nr == plan->capacity) {
			plan->end = DEMETER_PLAN_FULL;
			return false;
		}
		pages = plan_afford(state, t->params, demeter_min(pages, free_pages), 1);
		if (pages == 0) {
			plan->end = DEMETER_PLAN_NO_TOKENS;
			return false;
		}
		plan_promise(plan_add_step(plan, DEMETER_PLAN_FILL, hot->at, hot->at, pages), t, e,
			     gain);
		plan_take(state, t->params, pages);
		free_pages -= pages;
		hot->pages -= pages;
		if (hot->pages && free_pages) {
			plan->end = DEMETER_PLAN_NO_TOKENS;
			return false;
		}
		if (hot->pages)
			return true;
	}
	/* Still free FMEM, and nothing left that is worth a move: no swap either. */
	return false;
}

/*
 * Move @hot down to the next range with pages in SMEM that could pay at all;
 * @refused is set when one was passed over that could not.
 */
static bool plan_next_hot(struct plan_cursor *hot, const struct plan_terms *t,
			  const struct demeter_rank_entry *ranked, u32 limit, u64 coldest,
			  bool *refused)
{
	for (; hot->at < limit; hot->at++, hot->pages = 0) {
		if (hot->pages == 0)
			hot->pages = ranked[hot->at].pages[DEMETER_SMEM];
		if (hot->pages == 0)
			continue;
		hot->worth = plan_worth_hot(t, &ranked[hot->at], &hot->doubt);
		if (plan_trusted(t, &ranked[hot->at], demeter_sub_sat(hot->worth, coldest)) >
		    t->swap_bar)
			return true;
		*refused = true;
	}
	return false;
}

/* Move @cold up likewise. */
static bool plan_next_cold(struct plan_cursor *cold, const struct plan_terms *t,
			   const struct demeter_rank_entry *ranked, u32 limit, u64 hottest,
			   bool *refused)
{
	for (; cold->at > limit; cold->at--, cold->pages = 0) {
		if (cold->pages == 0)
			cold->pages = ranked[cold->at].pages[DEMETER_FMEM];
		if (cold->pages == 0)
			continue;
		cold->worth = plan_worth_cold(t, &ranked[cold->at], &cold->doubt);
		if (demeter_sub_sat(hottest, cold->worth) > t->swap_bar)
			return true;
		*refused = true;
	}
	return false;
}

/* Is any page in SMEM in a range ranked above one with pages in FMEM? */
static bool plan_misplaced(const struct demeter_rank_entry *ranked, u32 nr)
{
	bool smem_above = false;
	u32 i;

	for (i = 0; i < nr; i++) {
		if (ranked[i].pages[DEMETER_FMEM] && smem_above)
			return true;
		if (ranked[i].pages[DEMETER_SMEM])
			smem_above = true;
	}
	return false;
}

/*
 * Pair from both ends. Ranks follow densities, worths follow densities less
 * doubt, so the two orders differ a little: when a pair does not pay, the less
 * certain of the two is passed over and the other tries the next one. A hot one
 * that is only too young is passed over itself: no colder partner is left for
 * it. That looks at each range once.
 */
static void plan_swap(struct demeter_plan *plan, struct demeter_plan_state *state,
		      const struct plan_terms *t, const struct demeter_rank_entry *ranked, u32 nr,
		      struct plan_cursor hot)
{
	struct plan_cursor cold = { .at = nr - 1 };
	u64 hottest = 0, coldest = DEMETER_U64_MAX, doubt, gain, trusted, pages;
	bool refused = false;
	u32 i;

	for (i = hot.at; i < nr; i++) {
		const struct demeter_rank_entry *e = &ranked[i];

		if (e->pages[DEMETER_SMEM])
			hottest = demeter_max(hottest, plan_worth_hot(t, e, &doubt));
		if (e->pages[DEMETER_FMEM])
			coldest = demeter_min(coldest, plan_worth_cold(t, e, &doubt));
	}

	while (hot.at < cold.at) {
		if (!plan_next_hot(&hot, t, ranked, cold.at, coldest, &refused) ||
		    !plan_next_cold(&cold, t, ranked, hot.at, hottest, &refused))
			break;
		gain = demeter_sub_sat(hot.worth, cold.worth);
		trusted = plan_trusted(t, &ranked[hot.at], gain);
		if (trusted <= t->swap_bar) {
			refused = true;
			if (gain > t->swap_bar || hot.doubt > cold.doubt) {
				hot.at++;
				hot.pages = 0;
			} else {
				cold.at--;
				cold.pages = 0;
			}
			continue;
		}
		if (plan->nr == plan->capacity) {
			plan->end = DEMETER_PLAN_FULL;
			return;
		}
		pages = plan_afford(state, t->params, demeter_min(hot.pages, cold.pages), 2);
		if (pages == 0) {
			plan->end = DEMETER_PLAN_NO_TOKENS;
			return;
		}
		plan_promise(plan_add_step(plan, DEMETER_PLAN_SWAP, hot.at, cold.at, pages), t,
			     &ranked[hot.at], trusted);
		plan_take(state, t->params, demeter_mul_sat(pages, 2));
		hot.pages -= pages;
		cold.pages -= pages;
		if (hot.pages == 0)
			hot.at++;
		if (cold.pages == 0)
			cold.at--;
	}
	plan->end =
		refused && plan_misplaced(ranked, nr) ? DEMETER_PLAN_NO_GAIN : DEMETER_PLAN_DONE;
}

/* An empty plan, and what may be spent on it. */
static void plan_begin(struct demeter_plan *plan, struct demeter_plan_state *state,
		       const struct demeter_plan_params *params, u64 now_ns)
{
	plan->nr = 0;
	plan->fill_pages = 0;
	plan->swap_pages = 0;
	plan->demote_pages = 0;
	plan->end = DEMETER_PLAN_DONE;
	plan_refill(state, params, now_ns);
}

/**
 * demeter_plan_make - decide what to relocate this epoch
 * @plan: outcome; @plan->step and @plan->capacity are the caller's
 * @state: token bucket, zeroed by the caller before the first plan
 * @params: the economics
 * @ranked: entries as left by demeter_rank(), resident pages filled in
 * @nr: how many
 * @free_fmem_pages: pages of FMEM that may be filled
 * @now_ns: a clock that does not run backwards (one that does earns nothing)
 *
 * Promotions and demotions of a swap are equal by construction. Any input gives
 * a plan; parameters without sense (an epoch of no length) give an empty one.
 */
void demeter_plan_make(struct demeter_plan *plan, struct demeter_plan_state *state,
		       const struct demeter_plan_params *params,
		       const struct demeter_rank_entry *ranked, u32 nr, u64 free_fmem_pages,
		       u64 now_ns)
{
	struct plan_cursor hot = { 0 };
	struct plan_terms terms;

	plan_begin(plan, state, params, now_ns);
	if (nr == 0)
		return;
	plan_terms_init(&terms, params, nr);
	if (plan_fill(plan, state, &terms, ranked, nr, free_fmem_pages, &hot))
		plan_swap(plan, state, &terms, ranked, nr, hot);
}

#include "plan_groups.c"

/**
 * demeter_plan_digest - one number for a plan
 * @plan: the plan
 * @seed: 0, or a digest to continue
 *
 * Return: the digest.
 */
u64 demeter_plan_digest(const struct demeter_plan *plan, u64 seed)
{
	u64 digest = demeter_digest_start(seed);
	u32 i;

	digest = demeter_digest_add(digest, plan->nr);
	digest = demeter_digest_add(digest, plan->end);
	digest = demeter_digest_add(digest, plan->fill_pages);
	digest = demeter_digest_add(digest, plan->swap_pages);
	for (i = 0; i < plan->nr; i++) {
		digest = demeter_digest_add(digest, plan->step[i].kind);
		digest = demeter_digest_add(digest, plan->step[i].hot);
		digest = demeter_digest_add(digest, plan->step[i].cold);
		digest = demeter_digest_add(digest, plan->step[i].pages);
	}
	return digest;
}
