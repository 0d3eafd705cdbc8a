// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Plan: under floors and caps, see <demeter/groups.h>. A part of plan.c, which
 * includes this file where it needs it.
 *
 * Each group has a hot and a cold cursor into its own part of the ranking, and the
 * pair of all of them that gains most is taken next, so that groups without limits
 * are ranked together. In this order:
 *
 * 1. Free FMEM is filled, first by those below what they are due, then by all below
 *    their caps.
 * 2. Groups above their caps give up what is too much.
 * 3. Groups below what they are due take of those above it.
 * 4. Swaps between and inside groups, while they pay.
 *
 * What is given up is never hotter than what is promoted in the same group: no page
 * of a plan is moved to and fro.
 */
#include <demeter/groups.h>

/**
 * struct plan_round - a plan in the making
 * @plan: the plan
 * @state: token bucket
 * @t: what a move must gain
 * @ranked: the ranking
 * @gs: the groups
 * @free_pages: FMEM that nobody has
 * @hottest: no page in SMEM is worth more
 * @coldest: no page in FMEM is worth less
 * @refused: a pair, or a page for free FMEM, did not pay
 */
struct plan_round {
	struct demeter_plan *plan;
	struct demeter_plan_state *state;
	const struct plan_terms *t;
	const struct demeter_rank_entry *ranked;
	struct demeter_groups *gs;
	u64 free_pages;
	u64 hottest;
	u64 coldest;
	bool refused;
};

static void round_pass_hot(struct demeter_group *g)
{
	g->hot.at++;
	g->hot.pages = 0;
}

static void round_pass_cold(struct demeter_group *g)
{
	g->cold.at--;
	g->cold.pages = 0;
}

/* Has @g pages in SMEM that may come up? Its hot cursor then stands at them. */
static bool round_hot(const struct plan_round *r, struct demeter_group *g)
{
	u32 end = (u32)demeter_min((u64)g->first + g->nr, g->demoted_first);

	for (; g->hot.at < end; g->hot.at++) {
		if (g->hot.pages)
			return true;
		g->hot.pages = r->ranked[g->hot.at].pages[DEMETER_SMEM];
		if (!g->hot.pages)
			continue;
		g->hot.worth = plan_worth_hot(r->t, &r->ranked[g->hot.at], &g->hot.doubt);
		return true;
	}
	return false;
}

/* Has @g pages in FMEM that may go down? Its cold cursor then stands behind them. */
static bool round_cold(const struct plan_round *r, struct demeter_group *g)
{
	u32 end = (u32)demeter_max(g->first, g->promoted_end);

	for (; g->cold.at > end; g->cold.at--) {
		if (g->cold.pages)
			return true;
		g->cold.pages = r->ranked[g->cold.at - 1].pages[DEMETER_FMEM];
		if (!g->cold.pages)
			continue;
		g->cold.worth = plan_worth_cold(r->t, &r->ranked[g->cold.at - 1], &g->cold.doubt);
		return true;
	}
	return false;
}

/* The same, of pages that gain more than @bar against a partner worth @cold. */
static bool round_hot_above(struct plan_round *r, struct demeter_group *g, u64 cold, u64 bar)
{
	while (round_hot(r, g)) {
		u64 gain = demeter_sub_sat(g->hot.worth, cold);

		if (plan_trusted(r->t, &r->ranked[g->hot.at], gain) > bar)
			return true;
		r->refused = true;
		round_pass_hot(g);
	}
	return false;
}

static bool round_cold_below(struct plan_round *r, struct demeter_group *g, u64 hot, u64 bar)
{
	while (round_cold(r, g)) {
		if (demeter_sub_sat(hot, g->cold.worth) > bar)
			return true;
		r->refused = true;
		round_pass_cold(g);
	}
	return false;
}

/*
 * Add a step of @most pages at most: @taker NULL is a demotion, @giver NULL a fill.
 * Returns how many it has; 0 when the plan ends here.
 */
static u64 round_step(struct plan_round *r, struct demeter_group *taker,
		      struct demeter_group *giver, u64 most)
{
	const struct demeter_plan_params *p = r->t->params;
	u64 price = taker && giver ? 2 : 1, pages, gain;
	const struct demeter_rank_entry *hot;
	struct demeter_plan_step *step;
	u32 up, down;

	if (r->plan->nr == r->plan->capacity) {
		r->plan->end = DEMETER_PLAN_FULL;
		return 0;
	}
	pages = plan_afford(r->state, p, most, price);
	if (pages == 0) {
		r->plan->end = DEMETER_PLAN_NO_TOKENS;
		return 0;
	}
	if (!taker) {
		down = giver->cold.at - 1;
		step = plan_add_step(r->plan, DEMETER_PLAN_DEMOTE, down, down, pages);
		step->lasts_ns = p->horizon_ns;
	} else {
		up = taker->hot.at;
		down = giver ? giver->cold.at - 1 : up;
		hot = &r->ranked[up];
		gain = demeter_sub_sat(taker->hot.worth, giver ? giver->cold.worth : 0);
		step = plan_add_step(r->plan, giver ? DEMETER_PLAN_SWAP : DEMETER_PLAN_FILL, up,
				     down, pages);
		plan_promise(step, r->t, hot, plan_trusted(r->t, hot, gain));
		taker->promoted_end = up + 1;
		taker->hot.pages -= pages;
		if (taker->hot.pages == 0)
			taker->hot.at++;
	}
	plan_take(r->state, p, demeter_mul_sat(pages, price));
	if (giver) {
		giver->demoted_first = down;
		giver->cold.pages -= pages;
		if (giver->cold.pages == 0)
			giver->cold.at--;
	}
	demeter_groups_moved(r->gs, taker, giver, pages);
	return pages;
}

/* Into free FMEM, hottest first; of those who are due only, or of all below their caps. */
static bool round_fill(struct plan_round *r, bool due)
{
	while (r->free_pages) {
		struct demeter_group *best = NULL;
		u64 allowed = 0, wanted, pages;
		u32 i;

		for (i = 0; i < r->gs->nr; i++) {
			struct demeter_group *g = &r->gs->group[i];
			u64 may =
				due ? demeter_groups_need(r->gs, g) : demeter_groups_room(r->gs, g);

			if (!may || !round_hot_above(r, g, 0, r->t->move_bar))
				continue;
			if (best && best->hot.worth >= g->hot.worth)
				continue;
			best = g;
			allowed = may;
		}
		if (!best)
			return true;
		wanted = demeter_min(demeter_min(best->hot.pages, allowed), r->free_pages);
		pages = round_step(r, best, NULL, wanted);
		if (pages < wanted) {
			if (pages)
				r->plan->end = DEMETER_PLAN_NO_TOKENS;
			return false;
		}
		r->free_pages -= pages;
	}
	return true;
}

/* Who but @giver has the hottest page that is worth a swap for itself, and may take? */
static struct demeter_group *round_taker(struct plan_round *r, const struct demeter_group *giver)
{
	struct demeter_group *best = NULL;
	u32 i;

	for (i = 0; i < r->gs->nr; i++) {
		struct demeter_group *g = &r->gs->group[i];

		if (g == giver || !demeter_groups_room(r->gs, g) ||
		    !round_hot_above(r, g, 0, r->t->swap_bar))
			continue;
		if (!best || g->hot.worth > best->hot.worth)
			best = g;
	}
	return best;
}

/* Who but @taker has the coldest page that others may have? */
static struct demeter_group *round_giver(struct plan_round *r, const struct demeter_group *taker)
{
	struct demeter_group *best = NULL;
	u32 i;

	for (i = 0; i < r->gs->nr; i++) {
		struct demeter_group *g = &r->gs->group[i];

		if (g == taker || !demeter_groups_spare(r->gs, g) || !round_cold(r, g))
			continue;
		if (!best || g->cold.worth < best->cold.worth)
			best = g;
	}
	return best;
}

/* The last step is a matter of limits: what it gains is nobody's fault. */
static void round_impose(struct plan_round *r)
{
	r->plan->step[r->plan->nr - 1].imposed = true;
}

/* Bring groups down to their caps. */
static bool round_caps(struct plan_round *r)
{
	u64 excess, most;
	u32 i;

	for (i = 0; i < r->gs->nr; i++) {
		struct demeter_group *g = &r->gs->group[i], *taker;

		while ((excess = demeter_groups_excess(g)) && round_cold(r, g)) {
			taker = round_taker(r, g);
			most = demeter_min(g->cold.pages, excess);
			if (taker) {
				most = demeter_min(most, taker->hot.pages);
				most = demeter_min(most, demeter_groups_room(r->gs, taker));
			}
			if (!round_step(r, taker, g, most))
				return false;
			round_impose(r);
		}
	}
	return true;
}

/* Bring groups up to what they are due. */
static bool round_floors(struct plan_round *r)
{
	u64 need, most;
	u32 i;

	for (i = 0; i < r->gs->nr; i++) {
		struct demeter_group *g = &r->gs->group[i], *giver;

		while ((need = demeter_groups_need(r->gs, g)) &&
		       round_hot_above(r, g, 0, r->t->swap_bar)) {
			giver = round_giver(r, g);
			if (!giver)
				break;
			most = demeter_min(demeter_min(g->hot.pages, giver->cold.pages), need);
			most = demeter_min(most, demeter_groups_spare(r->gs, giver));
			if (!round_step(r, g, giver, most))
				return false;
			round_impose(r);
		}
	}
	return true;
}

/**
 * struct plan_pair - two groups, or one, that may swap
 * @taker: whose hot cursor it is
 * @giver: whose cold cursor it is
 * @gain: what a page gains
 */
struct plan_pair {
	struct demeter_group *taker;
	struct demeter_group *giver;
	u64 gain;
};

/* The pair that gains most; false when there is none. */
static bool round_pair(struct plan_round *r, struct plan_pair *best)
{
	/* The two coldest of different groups that others may take. */
	struct demeter_group *first = NULL, *second = NULL;
	u32 i;

	*best = (struct plan_pair){ 0 };
	for (i = 0; i < r->gs->nr; i++) {
		struct demeter_group *g = &r->gs->group[i];

		if (!round_cold_below(r, g, r->hottest, r->t->swap_bar) ||
		    !demeter_groups_spare(r->gs, g))
			continue;
		if (!first || g->cold.worth < first->cold.worth) {
			second = first;
			first = g;
		} else if (!second || g->cold.worth < second->cold.worth) {
			second = g;
		}
	}
	for (i = 0; i < r->gs->nr; i++) {
		struct demeter_group *g = &r->gs->group[i], *giver = NULL;
		u64 gain;

		if (!round_hot_above(r, g, r->coldest, r->t->swap_bar))
			continue;
		if (demeter_groups_room(r->gs, g))
			giver = first != g ? first : second;
		/* Inside the group: always, but not with what ranks above. */
		if (round_cold(r, g) && g->hot.at + 1 < g->cold.at &&
		    (!giver || g->cold.worth <= giver->cold.worth))
			giver = g;
		if (!giver)
			continue;
		gain = demeter_sub_sat(g->hot.worth, giver->cold.worth);
		if (!best->taker || gain > best->gain)
			*best = (struct plan_pair){ .taker = g, .giver = giver, .gain = gain };
	}
	return best->taker;
}

/* Swap while it pays; as plan_swap() does, of a pair that does not, one is passed over. */
static bool round_swaps(struct plan_round *r)
{
	struct plan_pair pair;
	u64 trusted, most;

	while (round_pair(r, &pair)) {
		struct demeter_group *taker = pair.taker, *giver = pair.giver;

		trusted = plan_trusted(r->t, &r->ranked[taker->hot.at], pair.gain);
		if (trusted <= r->t->swap_bar) {
			r->refused = true;
			if (pair.gain > r->t->swap_bar || taker->hot.doubt > giver->cold.doubt)
				round_pass_hot(taker);
			else
				round_pass_cold(giver);
			continue;
		}
		most = demeter_min(taker->hot.pages, giver->cold.pages);
		if (taker != giver) {
			most = demeter_min(most, demeter_groups_room(r->gs, taker));
			most = demeter_min(most, demeter_groups_spare(r->gs, giver));
		}
		if (!round_step(r, taker, giver, most))
			return false;
	}
	return true;
}

/* Find each group in the ranking; what is worth holding, and within which bounds. */
static void round_begin(struct plan_round *r, u32 nr)
{
	const struct demeter_rank_entry *ranked = r->ranked;
	struct demeter_group *g;
	u64 doubt;
	u32 i;

	for (i = 0; i < r->gs->nr; i++) {
		g = &r->gs->group[i];
		g->worth_pages = 0;
		g->first = 0;
		g->nr = 0;
		g->promoted_end = 0;
		g->demoted_first = ~0U;
		memset(&g->hot, 0, sizeof(g->hot));
		memset(&g->cold, 0, sizeof(g->cold));
	}
	r->hottest = 0;
	r->coldest = DEMETER_U64_MAX;
	for (i = 0; i < nr; i++) {
		const struct demeter_rank_entry *e = &ranked[i];
		u64 pages = demeter_add_sat(e->pages[DEMETER_FMEM], e->pages[DEMETER_SMEM]);
		u64 worth;

		if (e->group >= r->gs->nr)
			continue;
		g = &r->gs->group[e->group];
		if (g->nr == 0)
			g->first = i;
		/* Entries of a group lie together in any ranking; others are left alone. */
		if (g->first + g->nr != i)
			continue;
		g->nr++;
		/* What is due is the same along every route. */
		worth = plan_worth(r->t->near_worth, e->rate, demeter_plan_resident(e));
		if (worth > r->t->move_bar)
			g->worth_pages =
				demeter_add_sat(g->worth_pages, demeter_max(e->resident, pages));
		if (e->pages[DEMETER_SMEM])
			r->hottest = demeter_max(r->hottest, plan_worth_hot(r->t, e, &doubt));
		if (e->pages[DEMETER_FMEM])
			r->coldest = demeter_min(r->coldest, plan_worth_cold(r->t, e, &doubt));
	}
	for (i = 0; i < r->gs->nr; i++) {
		g = &r->gs->group[i];
		g->hot.at = g->first;
		g->cold.at = g->first + g->nr;
	}
	demeter_groups_set_due(r->gs, r->free_pages);
}

/**
 * demeter_plan_make_grouped - decide what to relocate this epoch, under floors and caps
 * @plan: outcome; @plan->step and @plan->capacity are the caller's
 * @state: token bucket, zeroed by the caller before the first plan
 * @params: the economics
 * @ranked: entries as left by demeter_rank(), resident pages filled in
 * @nr: how many
 * @gs: limits of the groups, and the FMEM that they have; what they are due is
 *	filled in
 * @free_fmem_pages: pages of FMEM that may be filled
 * @now_ns: a clock that does not run backwards
 *
 * With one group and no limits it is the plan of demeter_plan_make(). Entries of a
 * group whose number is too large are left alone.
 */
void demeter_plan_make_grouped(struct demeter_plan *plan, struct demeter_plan_state *state,
			       const struct demeter_plan_params *params,
			       const struct demeter_rank_entry *ranked, u32 nr,
			       struct demeter_groups *gs, u64 free_fmem_pages, u64 now_ns)
{
	struct plan_terms terms;
	struct plan_round r = {
		.plan = plan,
		.state = state,
		.t = &terms,
		.ranked = ranked,
		.gs = gs,
		.free_pages = free_fmem_pages,
	};

	plan_begin(plan, state, params, now_ns);
	plan_terms_init(&terms, params, (u32)demeter_max(nr, 1));
	round_begin(&r, nr);
	if (round_fill(&r, true) && round_fill(&r, false) && round_caps(&r) && round_floors(&r) &&
	    round_swaps(&r) && r.refused && (r.free_pages || plan_misplaced(ranked, nr)))
		plan->end = DEMETER_PLAN_NO_GAIN;
}
