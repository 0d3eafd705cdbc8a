// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * What Memtis decides: see <demeter/peers/memtis.h>.
 */
#include <demeter/math.h>
#include <demeter/peers/memtis.h>

/* Part of FMEM that is kept free. */
#define MEMTIS_RESERVE_PERCENT	 3u
/* With less of FMEM hot than this, the bin below hot is not demoted either. */
#define MEMTIS_WARM_PERCENT	 75u
#define MEMTIS_STEP_PERMILLE	 5u
/* Splitting is looked at while hits fall short of this part of what could be hit. */
#define MEMTIS_SHORTFALL_PERCENT 95u
#define MEMTIS_SPLIT_TENTHS	 4u
/* What splitting has to add to the hit ratio to go on. */
#define MEMTIS_GAIN_PERMILLE	 30u
#define MEMTIS_SKEW_DIVISOR	 11u

static const u32 memtis_load_periods[DEMETER_MEMTIS_LOAD_STEPS] = {
	199,  293,  401,  499,	599,   701,   797,   907,   997,   1201,
	1399, 1601, 1801, 1999, 2503,  3001,  3499,  4001,  4507,  4999,
	6007, 7001, 7993, 9001, 10007, 12007, 13999, 16001, 17989, 19997,
};

static const u32 memtis_store_periods[DEMETER_MEMTIS_STORE_STEPS] = {
	100007, 300007, 600011, 1000003, 1500003,
};

u32 demeter_memtis_bin(u64 units)
{
	return demeter_min(demeter_log2(demeter_add_sat(units, 1)), DEMETER_MEMTIS_BINS - 1);
}

void demeter_memtis_move(struct demeter_memtis_histogram *histogram, u32 from, u32 to, u64 pages)
{
	if (from < DEMETER_MEMTIS_BINS)
		histogram->pages[from] = demeter_sub_sat(histogram->pages[from], pages);
	if (to < DEMETER_MEMTIS_BINS)
		histogram->pages[to] = demeter_add_sat(histogram->pages[to], pages);
}

struct demeter_memtis_thresholds
demeter_memtis_choose(const struct demeter_memtis_histogram *histogram, u64 fmem_pages)
{
	u64 room = demeter_mul_div(fmem_pages, 100 - MEMTIS_RESERVE_PERCENT, 100);
	struct demeter_memtis_thresholds least = { .hot = DEMETER_MEMTIS_BINS };
	u64 hot_pages = 0;

	/* Bin 0 is what was not accessed, so never hot. */
	while (least.hot > 1) {
		u64 pages = demeter_add_sat(hot_pages, histogram->pages[least.hot - 1]);

		if (pages > room)
			break;
		hot_pages = pages;
		least.hot--;
	}
	/* The hottest bin is hot even if it does not fit. */
	least.hot = demeter_min(least.hot, DEMETER_MEMTIS_BINS - 1);
	least.warm = least.hot;
	if (hot_pages < demeter_mul_div(fmem_pages, MEMTIS_WARM_PERCENT, 100))
		/* What was not accessed is not warm. */
		least.warm = (u32)demeter_max(least.warm - 1, 1);
	return least;
}

u32 demeter_memtis_load_period(u32 step)
{
	return memtis_load_periods[demeter_min(step, DEMETER_MEMTIS_LOAD_STEPS - 1)];
}

u32 demeter_memtis_store_period(u32 step)
{
	u32 loads_a_store = DEMETER_MEMTIS_LOAD_STEPS / DEMETER_MEMTIS_STORE_STEPS;

	return memtis_store_periods[demeter_min(step / loads_a_store,
						DEMETER_MEMTIS_STORE_STEPS - 1)];
}

u32 demeter_memtis_step(u32 step, u64 used_permille, u64 quota_permille)
{
	if (used_permille > demeter_add_sat(quota_permille, MEMTIS_STEP_PERMILLE))
		return demeter_min(step + 1, DEMETER_MEMTIS_LOAD_STEPS - 1);
	if (demeter_add_sat(used_permille, MEMTIS_STEP_PERMILLE) < quota_permille)
		return step ? step - 1 : 0;
	return step;
}

u32 demeter_memtis_skew(const u32 *samples, u32 hot)
{
	u64 squares = 0, used = 0;
	u32 i;

	for (i = 0; i < DEMETER_MEMTIS_HUGE_PAGES; i++) {
		u64 units = (u64)samples[i] * DEMETER_MEMTIS_HUGE_PAGES;

		if (samples[i] && demeter_memtis_bin(units) >= hot)
			used++;
		squares = demeter_add_sat(squares, (u64)samples[i] * samples[i]);
	}
	if (!used)
		return 0;
	squares = div64_u64(div64_u64(squares, MEMTIS_SKEW_DIVISOR), used * used);
	return demeter_min(demeter_log2(demeter_add_sat(squares, 1)), DEMETER_MEMTIS_SKEW_BINS - 1);
}

bool demeter_memtis_split_due(const struct demeter_memtis_period *period)
{
	return period->samples > demeter_max(period->resident_pages / 4, period->fmem_pages);
}

u64 demeter_memtis_split(struct demeter_memtis_splitting *splitting,
			 const struct demeter_memtis_period *period)
{
	u64 real = demeter_mul_div(period->hits, 1000, period->samples);
	u64 could =
		demeter_mul_div(period->base_hits, 10 * MEMTIS_SHORTFALL_PERCENT, period->samples);
	u64 count;

	if (!period->samples || splitting->off)
		return 0;
	if (splitting->tried && real < splitting->before_permille + MEMTIS_GAIN_PERMILLE) {
		splitting->off = true;
		return 0;
	}
	splitting->tried = false;
	if (real >= could || !period->huge_samples)
		return 0;
	/* Samples that missed, in huge pages that have so many each. */
	count = demeter_mul_div(could - real, period->samples, 1000);
	count = demeter_mul_div(count, period->huge_pages, period->huge_samples);
	count = demeter_mul_div(count, demeter_mul_sat(period->gap_permille, MEMTIS_SPLIT_TENTHS),
				10000);
	count = demeter_min(count, period->huge_pages);
	if (count) {
		splitting->tried = true;
		splitting->before_permille = real;
	}
	return count;
}
