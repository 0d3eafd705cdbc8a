// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Finer: see <demeter/finer.h>.
 *
 * What would the pages with at least c samples be accessed? Not what they were
 * sampled: among 512 pages accessed alike, those that 64 samples happened to hit
 * twice got more than their share. But let accesses come independently, so that a
 * page of rate r has a count n with the distribution of Poisson; then, for any
 * function f of it,
 *
 *	E[r f(n)] = E[n f(n - 1)].
 *
 * With f(n) = (n >= c): the pages with n >= c are accessed as much, on average, as
 * the pages with n > c were sampled. Each sample counts if its page would have been
 * among the chosen without it. No half of the samples need be set aside, and it
 * holds for any mixture of rates. By the same rule the pages with just n samples
 * together are accessed as much as those with n + 1 were sampled, which is the heat
 * of a class.
 *
 * What is that worth? Let d be what a page at FMEM's cut is accessed. A granule with
 * N accesses that is placed whole saves N - 512 d, or nothing if that is less; P of
 * its pages with C accesses save C - P d. The difference, less deviations of C, is
 * the gain of dividing it, for the c where it is largest. By the same identity the
 * square of how far C is out is, on average, C and c (c + 1) for each page with just
 * c + 1 samples. Longer walks are paid by all N accesses.
 *
 * What was sampled in a divided granule is no part of its range's rate. Nor is it measured
 * by the cut again: each one divided makes room and lowers the cut, until none would seem
 * worth it. It stays divided while its accesses concentrate.
 */
#include <demeter/finer.h>
#include <demeter/math.h>

#define FINER_EMPTY	   0U
#define FINER_COUNT_MAX	   255U
/* More samples than this need no page to be one of those to be placed. */
#define FINER_MOST	   15U
#define FINER_WINDOW	   128U /* samples a granule, on average, that end a window */
#define FINER_WINDOW_LEAST 4096U
/* Fewer samples than this are no reason to estimate anything. */
#define FINER_LEAST	   16U
/* So many that did not speak for dividing it keep a granule whole. */
#define FINER_ENOUGH	   256U
/* Windows that what was kept whole, or spread again, is left alone. */
#define FINER_KEPT_WINDOWS 8U
/* Windows that what was divided and has gone idle is left alone. */
#define FINER_IDLE_WINDOWS 1U
/* Attempts to divide a granule: who holds a lock, or a page for a while, lets go of it. */
#define FINER_ATTEMPTS	   4U
#define FINER_SHIFT	   16U
/* Denser samples: an epoch of them takes so much credit, one without gives one. */
#define FINER_DENSE_PRICE  8U
#define FINER_CREDIT	   512U
/* Epochs for which they are asked for in vain, and for which they then are not. */
#define FINER_VAIN	   16U
#define FINER_VAIN_PAUSE   128U
/* Part of all samples that must be of what is undecided. */
#define FINER_DENSE_PART   8U
/* Pairs of samples on one page that are no chance: times their number if uniform. */
#define FINER_EXCESS	   2U
#define FINER_EXCESS_LEAST 24U
/* Epochs after which a range knows what it is sampled in a granule that it got back. */
#define FINER_SETTLE	   4U
/* Epochs for which the placement of a class is believed, as the age of a range is. */
#define FINER_AGE	   16U
/* Epochs at once, where granules are only looked at: to see to each takes longest. */
#define FINER_STRIDE	   4U
#define FINER_PS_PER_NS	   1000ULL
#define FINER_PERMILLE	   1000ULL
#define FINER_SIGNIFICANCE 1024U

static u32 finer_count(const struct demeter_finer_granule *g, u32 cell)
{
	return (u32)g->count[0][cell] + g->count[1][cell];
}

static u32 finer_class(u32 count)
{
	return count ? (u32)demeter_min(demeter_log2(count) + 1, DEMETER_FINER_CLASSES - 1) : 0;
}

static bool finer_test(const u64 *bits, u32 cell)
{
	return bits[cell / 64] >> (cell % 64) & 1;
}

static u32 finer_hash(u32 space, u64 start)
{
	u64 key = (start >> DEMETER_FINER_SHIFT) + ((u64)space << 32);

	return (u32)((key * 0x9e3779b97f4a7c15ULL) >> 32);
}

static void finer_index_add(struct demeter_finer *f, u32 slot)
{
	const struct demeter_finer_granule *g = &f->granule[slot];
	u32 at = finer_hash(g->space, g->start);

	while (f->index[at & f->index_mask] != FINER_EMPTY)
		at++;
	f->index[at & f->index_mask] = (u16)(slot + 1);
}

/* Taken anew whenever something goes: that is rare, and needs no marks of what went. */
static void finer_index(struct demeter_finer *f)
{
	u32 i;

	memset(f->index, 0, ((size_t)f->index_mask + 1) * sizeof(*f->index));
	for (i = 0; i < f->capacity; i++)
		if (f->granule[i].state != DEMETER_FINER_FREE)
			finer_index_add(f, i);
}

/**
 * demeter_finer_init - look at nothing
 * @f: what to initialise
 * @granule: array for the granules; stays the caller's
 * @capacity: its length, 1 to 32768
 * @index: array for finding them
 * @index_length: its length, a power of two above @capacity
 *
 * Return: 0, or -EINVAL.
 */
int demeter_finer_init(struct demeter_finer *f, struct demeter_finer_granule *granule, u32 capacity,
		       u16 *index, u32 index_length)
{
	if (!f || !granule || !index || !capacity || capacity > 32768 || index_length <= capacity ||
	    (index_length & (index_length - 1)))
		return -EINVAL;
	memset(f, 0, sizeof(*f));
	memset(granule, 0, capacity * sizeof(*granule));
	memset(index, 0, index_length * sizeof(*index));
	f->granule = granule;
	f->capacity = capacity;
	f->index = index;
	f->index_mask = index_length - 1;
	f->credit = FINER_CREDIT;
	return 0;
}

/**
 * demeter_finer_find - the granule that holds an address
 * @f: the granules
 * @space: number of the address space
 * @gva: guest virtual address
 *
 * Return: the granule, or NULL when it is not looked at.
 */
struct demeter_finer_granule *demeter_finer_find(const struct demeter_finer *f, u32 space, u64 gva)
{
	u64 start = gva >> DEMETER_FINER_SHIFT << DEMETER_FINER_SHIFT;
	u32 at;

	for (at = finer_hash(space, start); f->index[at & f->index_mask] != FINER_EMPTY; at++) {
		struct demeter_finer_granule *g = &f->granule[f->index[at & f->index_mask] - 1];

		if (g->start == start && g->space == space)
			return g;
	}
	return NULL;
}

static u64 finer_space_bit(u32 space)
{
	return 1ULL << (space % 64);
}

static u32 *finer_refused(struct demeter_finer *f, u32 space, u64 start)
{
	return &f->refused[finer_hash(space, start) % DEMETER_FINER_REFUSED];
}

/* Samples are the order: what is accessed most comes first. */
static struct demeter_finer_granule *finer_admit(struct demeter_finer *f, u32 space, u64 gva)
{
	u64 start = gva >> DEMETER_FINER_SHIFT << DEMETER_FINER_SHIFT;
	struct demeter_finer_granule *g;
	u32 i;

	if (*finer_refused(f, space, start) > f->window)
		return NULL;
	if (f->nr == f->capacity) {
		f->denied++;
		return NULL;
	}
	for (i = 0; f->granule[i].state != DEMETER_FINER_FREE; i++)
		;
	g = &f->granule[i];
	memset(g, 0, sizeof(*g));
	g->start = start;
	g->space = space;
	g->state = DEMETER_FINER_LOOK;
	f->nr++;
	finer_index_add(f, i);
	return g;
}

/* A page goes from one count to another: what of it the classes know. */
static void finer_move(struct demeter_finer_granule *g, u32 cell, u32 from, u32 to)
{
	u32 tier;

	if (from)
		g->known[finer_class(from - 1)] -= from;
	if (to)
		g->known[finer_class(to - 1)] += to;
	/* Where its pages are is of interest, and known, once it is divided. */
	if (finer_class(from) == finer_class(to) || g->state != DEMETER_FINER_DIVIDED)
		return;
	for (tier = 0; tier < DEMETER_TIERS; tier++) {
		if (!finer_test(g->where[tier], cell))
			continue;
		g->pages[finer_class(from)][tier]--;
		g->pages[finer_class(to)][tier]++;
	}
}

/* A sample of what a huge page would have found sooner; for as long as moves are credited. */
static void finer_walk(struct demeter_finer *f, const struct demeter_finer_granule *g, u32 weight)
{
	if (g->state == DEMETER_FINER_DIVIDED && g->was_huge && g->divided_ns < f->horizon_ns)
		f->walked = demeter_add_sat(f->walked, weight);
}

/**
 * demeter_finer_sample - count one sampled access
 * @f: the granules
 * @space: number of the address space
 * @gva: guest virtual address
 * @weight: that of the sample, fixed point, DEMETER_RATE_SHIFT; at most one
 *
 * Return: whether its granule is divided, so that it is no sample of its range.
 */
bool demeter_finer_sample(struct demeter_finer *f, u32 space, u64 gva, u32 weight)
{
	struct demeter_finer_granule *g = demeter_finer_find(f, space, gva);
	u32 cell = (u32)(gva >> DEMETER_PAGE_SHIFT) % DEMETER_FINER_CELLS, n;

	/* What finds no room is accessed, too. */
	f->epoch_samples++;
	if (!g)
		g = finer_admit(f, space, gva);
	if (!g)
		return false;
	f->window_samples++;
	finer_walk(f, g, weight);
	/* What is sampled so often is known well enough; the rest would come short. */
	if (g->count[0][cell] == FINER_COUNT_MAX)
		return g->state == DEMETER_FINER_DIVIDED;
	n = finer_count(g, cell);
	finer_move(g, cell, n, n + 1);
	g->count[0][cell]++;
	g->repeats += n;
	g->pairs += g->samples;
	g->samples++;
	g->seen++;
	g->weight[0] = (u32)demeter_min((u64)g->weight[0] + weight, ~0U / 2);
	return g->state == DEMETER_FINER_DIVIDED;
}

/* All that is summed up over the pages, from their counts. */
static void finer_sum(struct demeter_finer_granule *g)
{
	u32 cell, tier;

	memset(g->known, 0, sizeof(g->known));
	memset(g->pages, 0, sizeof(g->pages));
	g->samples = 0;
	for (cell = 0; cell < DEMETER_FINER_CELLS; cell++) {
		u32 n = finer_count(g, cell);

		if (n)
			g->known[finer_class(n - 1)] += n;
		g->samples += n;
		for (tier = 0; tier < DEMETER_TIERS; tier++)
			g->pages[finer_class(n)][tier] += finer_test(g->where[tier], cell);
	}
}

static void finer_roll(struct demeter_finer_granule *g)
{
	memcpy(g->count[1], g->count[0], sizeof(g->count[1]));
	memset(g->count[0], 0, sizeof(g->count[0]));
	g->epochs[1] = g->epochs[0];
	g->epochs[0] = 0;
	g->weight[1] = g->weight[0];
	g->weight[0] = 0;
	g->repeats = 0;
	g->pairs = 0;
	finer_sum(g);
	/* What was sampled since it was estimated last is not lost on it. */
	g->asked = (u32)demeter_min(g->asked, g->samples);
}

/**
 * struct finer_histogram - the pages of a granule by their samples
 * @exactly: pages with so many samples, at most FINER_MOST
 * @above: samples of pages with more than FINER_MOST
 * @pages_above: number of those
 */
struct finer_histogram {
	u32 exactly[FINER_MOST + 1];
	u32 above;
	u32 pages_above;
};

static void finer_histogram(const struct demeter_finer_granule *g, struct finer_histogram *h)
{
	u32 cell;

	memset(h, 0, sizeof(*h));
	for (cell = 0; cell < DEMETER_FINER_CELLS; cell++) {
		u32 n = finer_count(g, cell);

		if (n <= FINER_MOST) {
			h->exactly[n]++;
		} else {
			h->above += n;
			h->pages_above++;
		}
	}
}

/*
 * Do accesses concentrate at all: do some pages, three quarters at most, get an
 * eighth of them more than such pages would on average?
 */
static bool finer_is_uneven(const struct demeter_finer_granule *g)
{
	struct finer_histogram h;
	u64 covered, pages;
	u32 c;

	finer_histogram(g, &h);
	covered = h.above;
	pages = h.pages_above;
	for (c = FINER_MOST; c > 0; c--) {
		/* Pages with at least c samples, and samples of those with more. */
		pages += h.exactly[c];
		if (pages > DEMETER_FINER_CELLS * 3 / 4)
			return false;
		if (covered >= g->samples * pages / DEMETER_FINER_CELLS + g->samples / 8)
			return true;
		covered += (u64)h.exactly[c] * c;
	}
	return false;
}

static void finer_undivide(struct demeter_finer *f, struct demeter_finer_granule *g, u32 windows)
{
	g->state = DEMETER_FINER_KEPT;
	g->settle = FINER_SETTLE;
	f->settle = FINER_SETTLE;
	g->carried = 0;
	g->was_huge = false;
	f->divided--;
	*finer_refused(f, g->space, g->start) = f->window + windows;
}

/*
 * Of what is divided, what has been idle for a horizon while others were accessed, and what is
 * accessed evenly. Before the older half of what is known is forgotten.
 */
static void finer_review(struct demeter_finer *f, struct demeter_finer_granule *g)
{
	if (g->idle_ns >= f->horizon_ns)
		finer_undivide(f, g, FINER_IDLE_WINDOWS);
	else if (g->samples >= 4 * FINER_LEAST && !finer_is_uneven(g))
		finer_undivide(f, g, FINER_KEPT_WINDOWS);
}

static void finer_free(struct demeter_finer *f, struct demeter_finer_granule *g, u32 windows)
{
	*finer_refused(f, g->space, g->start) = f->window + windows;
	f->divided -= g->state == DEMETER_FINER_DIVIDED;
	f->nr--;
	memset(g, 0, sizeof(*g));
}

static void finer_end_window(struct demeter_finer *f)
{
	bool full = f->nr == f->capacity;
	u32 nr = f->nr, i;

	f->window++;
	f->window_samples = 0;
	f->window_ns = 0;
	for (i = 0; i < f->capacity; i++) {
		struct demeter_finer_granule *g = &f->granule[i];

		if (g->state == DEMETER_FINER_FREE)
			continue;
		if (g->state == DEMETER_FINER_DIVIDED) {
			finer_review(f, g);
		} else if (g->state == DEMETER_FINER_KEPT &&
			   *finer_refused(f, g->space, g->start) <= f->window) {
			g->state = DEMETER_FINER_LOOK;
			g->seen = 0;
			g->failures = 0;
		}
		/* What could not be divided for the moment has spoken for it. */
		if (!g->failures)
			demeter_finer_keep(f, g);
		/* Room for others: what was looked at for long enough, or is idle. */
		if (full && !g->settle &&
		    (g->state == DEMETER_FINER_KEPT ||
		     (g->state == DEMETER_FINER_LOOK && g->samples < FINER_LEAST))) {
			finer_free(f, g, g->state == DEMETER_FINER_KEPT ? FINER_KEPT_WINDOWS : 1);
			continue;
		}
		finer_roll(g);
	}
	/* Once for all of them: each time it is as long as the table. */
	if (f->nr != nr)
		finer_index(f);
}

/**
 * demeter_finer_is_due - has enough been learned to ask whether to divide it
 * @g: a granule
 *
 * Return: whether it should be estimated: samples have met the same pages half as often
 * again as chance would have it; each time takes an eighth more of them.
 */
bool demeter_finer_is_due(const struct demeter_finer_granule *g)
{
	return g->state == DEMETER_FINER_LOOK && g->samples >= FINER_LEAST &&
	       g->samples >= g->asked + g->asked / 8 &&
	       2 * DEMETER_FINER_CELLS * g->repeats > 3 * g->pairs;
}

/**
 * struct finer_sums - what an epoch finds in passing
 * @samples: in all granules
 * @open: of those that are undecided
 * @repeats: of these, pairs on one page
 * @pairs: of these, pairs
 */
struct finer_sums {
	u64 samples;
	u64 open;
	u64 repeats;
	u64 pairs;
};

/* The time of a granule that is divided: those epochs are seen to one by one. */
static void finer_age_divided(const struct demeter_finer *f, struct demeter_finer_granule *g,
			      u64 passed_ns)
{
	g->divided_ns = demeter_add_sat(g->divided_ns, passed_ns);
	/* Where nobody does anything, that it is idle says nothing. */
	if (g->samples >= FINER_LEAST)
		g->idle_ns = 0;
	else if (f->epoch_samples)
		g->idle_ns = demeter_add_sat(g->idle_ns, passed_ns);
}

/* @epochs have passed since the last time, of which the last took @passed_ns. */
static void finer_age(struct demeter_finer *f, u32 epochs, u64 passed_ns, struct finer_sums *sums)
{
	u32 i;

	memset(sums, 0, sizeof(*sums));
	f->spaces = 0;
	for (i = 0; i < f->capacity; i++) {
		struct demeter_finer_granule *g = &f->granule[i];

		if (g->state == DEMETER_FINER_FREE)
			continue;
		g->epochs[0] += f->full_epochs;
		g->carried >>= demeter_min(epochs + f->thin, 63U);
		g->settle -= (u8)demeter_min(g->settle, epochs);
		if (g->state == DEMETER_FINER_DIVIDED || g->settle)
			f->spaces |= finer_space_bit(g->space);
		if (g->state == DEMETER_FINER_DIVIDED)
			finer_age_divided(f, g, passed_ns);
		sums->samples += g->samples;
		if (g->state != DEMETER_FINER_LOOK)
			continue;
		f->due += demeter_finer_is_due(g);
		sums->open += g->samples;
		sums->repeats += g->repeats;
		sums->pairs += g->pairs;
	}
}

/* Would denser samples tell more: do those of what is undecided fall on few pages? */
static bool finer_is_suspect(const struct finer_sums *sums)
{
	u64 chance = FINER_EXCESS * sums->pairs / DEMETER_FINER_CELLS;

	return sums->open >= sums->samples / FINER_DENSE_PART &&
	       sums->repeats > chance + FINER_EXCESS_LEAST;
}

/*
 * What denser samples cost is only paid where there are any. The sampler may not be able
 * to: then it is no use to keep asking, as who asks wants the full pace.
 */
static void finer_pay(struct demeter_finer *f)
{
	if (f->dense)
		f->credit = (u32)demeter_sub_sat(f->credit, FINER_DENSE_PRICE);
	else
		f->credit = (u32)demeter_min(f->credit + 1, FINER_CREDIT);
	f->pause -= f->pause > 0;
	f->vain = f->denser && !f->dense ? f->vain + 1 : 0;
	if (f->vain == FINER_VAIN)
		f->pause = FINER_VAIN_PAUSE;
}

/**
 * demeter_finer_end_epoch - an epoch is over
 * @f: the granules
 * @passed_ns: how long it was
 * @horizon_ns: no window is longer
 *
 * @f->held is what demeter_pace_held() says of that epoch.
 *
 * @f->denser then says whether samples should be denser in the next one, and the caller
 * in @f->dense whether they are.
 *
 * Return: whether a window has ended with it.
 */
bool demeter_finer_end_epoch(struct demeter_finer *f, u64 passed_ns, u64 horizon_ns)
{
	u64 wanted = demeter_max((u64)f->nr * FINER_WINDOW, FINER_WINDOW_LEAST);
	struct finer_sums sums;
	bool over;

	f->horizon_ns = horizon_ns;
	f->window_ns = demeter_add_sat(f->window_ns, passed_ns);
	f->due = 0;
	f->epochs++;
	f->full_epochs += 1U << f->held;
	f->thin += (u32)demeter_sub_sat(f->was_held, f->held);
	f->was_held = f->held;
	finer_pay(f);
	if (!f->denser && !f->divided && f->epochs < FINER_STRIDE)
		return false;
	finer_age(f, f->epochs, passed_ns, &sums);
	f->settle -= (u32)demeter_min(f->settle, f->epochs);
	f->epochs = 0;
	f->full_epochs = 0;
	f->thin = 0;
	f->epoch_samples = 0;
	f->pairs = sums.pairs;
	over = f->window_samples >= wanted || f->window_ns >= horizon_ns;
	/* Once begun it goes on while there is any; to begin takes a quarter of it. */
	f->denser = !f->pause && f->credit >= (f->denser ? FINER_DENSE_PRICE : FINER_CREDIT / 4) &&
		    (f->eager || finer_is_suspect(&sums));
	if (over)
		finer_end_window(f);
	return over;
}

/* What @g has by now in samples of present epochs: of as many of them as it has @epochs. */
static u64 finer_weight(const struct demeter_finer *f, const struct demeter_finer_granule *g)
{
	return ((u64)g->weight[0] + g->weight[1]) << f->held;
}

/* 2^-16 samples of a page at the cut, in the time that @g was counted for. */
static u64 finer_cut(const struct demeter_finer *f, const struct demeter_finer_granule *g,
		     u64 cut_density)
{
	u64 weight = finer_weight(f, g);
	u64 epochs = (u64)g->epochs[0] + g->epochs[1];

	/*
	 * A density is rate << 16 a page, a rate twice an epoch's samples, << 8; so is
	 * the weight of @samples, but for the two.
	 */
	return demeter_mul_div(demeter_mul_sat(cut_density, epochs), g->samples, 2 * weight);
}

/* Picoseconds over the horizon for 2^-16 samples times picoseconds. */
static u64 finer_worth(const struct demeter_finer *f, const struct demeter_finer_granule *g,
		       const struct demeter_finer_params *params, u64 worth)
{
	u64 weight = finer_weight(f, g);
	u64 epochs = (u64)g->epochs[0] + g->epochs[1];
	u64 accesses = demeter_mul_div(params->sample_period, weight, g->samples);

	worth = demeter_mul_div(worth, accesses, 1ULL << (FINER_SHIFT + DEMETER_RATE_SHIFT));
	return demeter_mul_div(worth, params->horizon_ns,
			       demeter_mul_sat(params->epoch_ns, epochs));
}

static u64 finer_cost_ns(const struct demeter_finer_params *params, bool huge, u64 pages)
{
	u64 ns = demeter_add_sat(huge ? params->split_cost_ns : 0,
				 demeter_mul_sat(params->swap_cost_ns, pages));

	return demeter_mul_div(ns, FINER_PERMILLE + params->hysteresis_permille, FINER_PERMILLE);
}

/*
 * The square of the deviations that are taken off, in 1/256. As in plan.c, 2 ln N where
 * one of N is looked for. Where others are divided already it is one of fewer: of all
 * that are divided the same small part is so by chance (Benjamini and Hochberg's rule).
 */
static u64 finer_caution(const struct demeter_finer *f, const struct demeter_finer_params *params)
{
	u64 alpha = demeter_min(params->significance, FINER_SIGNIFICANCE);
	u64 among = demeter_max(f->nr / (f->divided + 1), 1);

	/* 2 ln N = 1.386 log2 N; 355 / 256 = 1.387 */
	return alpha ? alpha * alpha * 256 + 355ULL * demeter_log2(among) : 0;
}

/**
 * demeter_finer_estimate - what would dividing a granule come to
 * @f: the granules
 * @g: the one
 * @params: the economics
 * @huge: it is a huge page now, and will have longer walks
 * @estimate: out
 *
 * Return: whether it surely gains more than it costs.
 */
bool demeter_finer_estimate(const struct demeter_finer *f, struct demeter_finer_granule *g,
			    const struct demeter_finer_params *params, bool huge,
			    struct demeter_finer_estimate *estimate)
{
	u64 caution = finer_caution(f, params);
	u64 cut, all, whole, best = 0, covered, pages, worth, walks;
	struct finer_histogram h;
	u32 c;

	memset(estimate, 0, sizeof(*estimate));
	g->asked = g->samples;
	if (!g->samples || !(g->weight[0] + (u64)g->weight[1]) ||
	    !(g->epochs[0] + (u64)g->epochs[1]))
		return false;
	finer_histogram(g, &h);
	cut = finer_cut(f, g, params->cut_density);
	all = (u64)g->samples << FINER_SHIFT;
	whole = demeter_sub_sat(all, demeter_mul_sat(cut, DEMETER_FINER_CELLS));
	covered = h.above;
	pages = h.pages_above;
	for (c = FINER_MOST; c > 0; c--) {
		u64 edge = c < FINER_MOST ? (u64)h.exactly[c + 1] * (c + 1) * c : 0;
		u64 doubt = demeter_sqrt(caution * (covered + edge) << 8) << (FINER_SHIFT - 8);
		u64 sure = demeter_sub_sat(covered << FINER_SHIFT, doubt);
		u64 takes;

		pages += h.exactly[c];
		takes = demeter_add_sat(whole, demeter_mul_sat(cut, pages));
		if (sure > takes && sure - takes > best) {
			best = sure - takes;
			estimate->least = c;
			estimate->pages = (u32)pages;
			estimate->covered = (u32)covered;
		}
		covered += (u64)h.exactly[c] * c;
	}
	if (!best)
		return false;
	worth = demeter_mul_sat(best, params->latency_gap_ps);
	walks = huge ? demeter_mul_sat(all, params->walk_ps) : 0;
	worth = finer_worth(f, g, params, demeter_sub_sat(worth, walks));
	estimate->gain_ns = div64_u64(worth, FINER_PS_PER_NS);
	estimate->cost_ns = finer_cost_ns(params, huge, estimate->pages);
	return estimate->gain_ns > estimate->cost_ns;
}

/**
 * demeter_finer_keep - an estimate did not speak for dividing a granule
 * @f: the granules
 * @g: the one
 *
 * After enough samples nothing more is expected of them.
 */
void demeter_finer_keep(struct demeter_finer *f, struct demeter_finer_granule *g)
{
	if (g->state != DEMETER_FINER_LOOK || g->seen < FINER_ENOUGH)
		return;
	g->state = DEMETER_FINER_KEPT;
	*finer_refused(f, g->space, g->start) = f->window + FINER_KEPT_WINDOWS;
}

/**
 * demeter_finer_divide - a granule is placed by page from now on
 * @f: the granules
 * @g: the one; where its pages are is told by demeter_finer_locate()
 */
void demeter_finer_divide(struct demeter_finer *f, struct demeter_finer_granule *g)
{
	if (g->state == DEMETER_FINER_DIVIDED)
		return;
	g->state = DEMETER_FINER_DIVIDED;
	g->carried = demeter_finer_rate(f, g);
	g->divided_ns = 0;
	g->idle_ns = 0;
	g->failures = 0;
	f->divided++;
	f->spaces |= finer_space_bit(g->space);
}

/**
 * demeter_finer_fail - a granule was to be divided, and could not be
 * @f: the granules
 * @g: the one
 *
 * It is asked for again, once in a window, but not for ever.
 */
void demeter_finer_fail(struct demeter_finer *f, struct demeter_finer_granule *g)
{
	g->asked = ~0U / 2;
	if (++g->failures >= FINER_ATTEMPTS)
		demeter_finer_drop(f, g, FINER_KEPT_WINDOWS);
}

/**
 * demeter_finer_drop - look at a granule no more; it is part of its range again
 * @f: the granules
 * @g: the one
 * @windows: how many windows it is not looked at
 */
void demeter_finer_drop(struct demeter_finer *f, struct demeter_finer_granule *g, u32 windows)
{
	if (g->state == DEMETER_FINER_FREE)
		return;
	finer_free(f, g, windows);
	finer_index(f);
}

/**
 * demeter_finer_leave - an address space is gone
 * @f: the granules
 * @space: its number
 */
void demeter_finer_leave(struct demeter_finer *f, u32 space)
{
	u32 i;

	for (i = 0; i < f->capacity; i++)
		if (f->granule[i].state != DEMETER_FINER_FREE && f->granule[i].space == space)
			finer_free(f, &f->granule[i], 0);
	finer_index(f);
}

#include "finer_classes.c"
