/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What Memtis decides, as pure functions: bins of hotness, thresholds, the pace of
 * sampling, and which huge pages to split. guest/peers/memtis/ does what follows from it.
 *
 * Hotness is counted in units: 512 for a sample in a base page, 1 for one in a huge page,
 * so that bins tell hotness a byte.
 */
#ifndef DEMETER_PEERS_MEMTIS_H
#define DEMETER_PEERS_MEMTIS_H

#include <demeter/deps.h>

#define DEMETER_MEMTIS_BINS	   16u
#define DEMETER_MEMTIS_HUGE_PAGES  512u
#define DEMETER_MEMTIS_SKEW_BINS   21u
/* Huge pages of this bin or above stay whole. */
#define DEMETER_MEMTIS_EXEMPT_BIN  13u
/* As a bin: the page was not there before, or is gone. */
#define DEMETER_MEMTIS_NOWHERE	   DEMETER_MEMTIS_BINS
#define DEMETER_MEMTIS_LOAD_STEPS  30u
#define DEMETER_MEMTIS_STORE_STEPS 5u

/**
 * struct demeter_memtis_histogram - pages by hotness
 * @pages: 4 KiB pages in each bin
 */
struct demeter_memtis_histogram {
	u64 pages[DEMETER_MEMTIS_BINS];
};

/**
 * struct demeter_memtis_thresholds - least bins
 * @hot: of what belongs into FMEM
 * @warm: of what is not demoted
 */
struct demeter_memtis_thresholds {
	u32 hot;
	u32 warm;
};

/**
 * struct demeter_memtis_period - what was seen since the last look at splitting
 * @samples: all
 * @hits: of these, served by FMEM
 * @base_hits: of these, in base pages that would be hot, were all pages base pages
 * @huge_samples: of these, in huge pages
 * @huge_pages: huge pages with samples
 * @resident_pages: 4 KiB pages of programs
 * @fmem_pages: 4 KiB pages that FMEM has for them
 * @gap_permille: by how much SMEM is slower than FMEM
 */
struct demeter_memtis_period {
	u64 samples;
	u64 hits;
	u64 base_hits;
	u64 huge_samples;
	u64 huge_pages;
	u64 resident_pages;
	u64 fmem_pages;
	u64 gap_permille;
};

/**
 * struct demeter_memtis_splitting - what is known of splitting; starts as zeroes
 * @before_permille: hit ratio when splitting was last decided
 * @tried: it was decided once
 * @off: it did not help, and is not tried again
 */
struct demeter_memtis_splitting {
	u64 before_permille;
	bool tried;
	bool off;
};

/**
 * demeter_memtis_bin() - bin of a page
 * @units: its hotness
 *
 * Return: below DEMETER_MEMTIS_BINS.
 */
u32 demeter_memtis_bin(u64 units);

/**
 * demeter_memtis_move() - pages change their bin
 * @histogram: the histogram
 * @from: bin, or DEMETER_MEMTIS_NOWHERE
 * @to: bin, or DEMETER_MEMTIS_NOWHERE
 * @pages: 4 KiB pages
 */
void demeter_memtis_move(struct demeter_memtis_histogram *histogram, u32 from, u32 to, u64 pages);

/**
 * demeter_memtis_choose() - thresholds for a size of FMEM
 * @histogram: of all pages
 * @fmem_pages: 4 KiB pages that FMEM has for programs
 *
 * Return: the thresholds.
 */
struct demeter_memtis_thresholds
demeter_memtis_choose(const struct demeter_memtis_histogram *histogram, u64 fmem_pages);

/**
 * demeter_memtis_load_period() - loads for each sample
 * @step: of the ladder; the last one from DEMETER_MEMTIS_LOAD_STEPS on
 *
 * Return: the period.
 */
u32 demeter_memtis_load_period(u32 step);

/**
 * demeter_memtis_store_period() - stores for each sample
 * @step: of the ladder of loads
 *
 * Return: the period.
 */
u32 demeter_memtis_store_period(u32 step);

/**
 * demeter_memtis_step() - the step to go on with
 * @step: of the ladder of loads
 * @used_permille: CPU time that samples took
 * @quota_permille: what they may take
 *
 * Return: a step at most one from @step.
 */
u32 demeter_memtis_step(u32 step, u64 used_permille, u64 quota_permille);

/**
 * demeter_memtis_skew() - how unevenly a huge page is accessed
 * @samples: of its base pages, DEMETER_MEMTIS_HUGE_PAGES
 * @hot: threshold of base pages
 *
 * Return: below DEMETER_MEMTIS_SKEW_BINS; 0 also if no base page is hot.
 */
u32 demeter_memtis_skew(const u32 *samples, u32 hot);

/**
 * demeter_memtis_split_due() - were there samples enough to look at splitting
 * @period: what was seen
 *
 * Return: whether.
 */
bool demeter_memtis_split_due(const struct demeter_memtis_period *period);

/**
 * demeter_memtis_split() - how many huge pages to split
 * @splitting: what is known; updated
 * @period: what was seen
 *
 * Return: huge pages, 0 if splitting would not pay or has not.
 */
u64 demeter_memtis_split(struct demeter_memtis_splitting *splitting,
			 const struct demeter_memtis_period *period);

#endif /* DEMETER_PEERS_MEMTIS_H */
