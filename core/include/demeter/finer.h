/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Finer: which granules of 2 MiB are worth placing by base page.
 *
 * A hot page of 4 KiB in cold memory around it makes a granule lukewarm, and ranges
 * know no smaller part. For a bounded number of granules this counts samples by page
 * over two windows of time. Where they concentrate, and only where that is worth what
 * it costs (exchanging the hot pages, and the longer walks once the huge page is
 * gone), the granule is divided: its pages are then ranked by their counts, in
 * classes, pages of all divided granules of an address space together.
 *
 * Memtis estimates from a histogram what hit ratio pages could reach. Counts that
 * choose the pages cannot also say what these are accessed: with few samples uniform
 * accesses look concentrated. Here each sample asks whether its page would have been
 * chosen without it (see finer.c), which is right whatever the number of samples.
 */
#ifndef DEMETER_FINER_H
#define DEMETER_FINER_H

#include <demeter/resident.h>

#define DEMETER_FINER_SHIFT   21U
#define DEMETER_FINER_CELLS   512U
#define DEMETER_FINER_WORDS   (DEMETER_FINER_CELLS / 64U)
/* Classes of pages: no sample, 1, 2 to 3, 4 to 7, 8 and more in two windows. */
#define DEMETER_FINER_CLASSES 5U
/* Of a rank entry: 0 is a range, from here on the classes. */
#define DEMETER_FINER_PART    1U
/* Granules that are remembered as not worth a look, by hash. */
#define DEMETER_FINER_REFUSED 1024U
/* How much denser than usual samples can be, as a power of two. */
#define DEMETER_FINER_DENSER  4U

enum demeter_finer_state {
	DEMETER_FINER_FREE,    /* the slot is not in use */
	DEMETER_FINER_LOOK,    /* under a closer look */
	DEMETER_FINER_KEPT,    /* looked at for long enough, and left whole */
	DEMETER_FINER_DIVIDED, /* placed by page */
};

/**
 * struct demeter_finer_granule - a granule whose samples are counted by page
 * @start: its first byte
 * @space: the caller's number of the address space
 * @state: what is done with it
 * @moving: pages of it are on their way; the caller's
 * @stale: some are not where @where says; the caller's
 * @taken: by tier: classes of which all were tried in this epoch; the caller's
 * @settle: epochs for which its range, of which it is part again, knows too little of it
 * @failures: attempts to divide it that failed
 * @was_huge: it was a huge page that was split to divide it, and has longer walks since; the
 *	caller's
 * @divided_ns: time since it was divided
 * @idle_ns: time in which others were accessed since there were last enough samples of it
 * @samples: sum of all counts
 * @asked: @samples when it was estimated last
 * @seen: samples since it was admitted
 * @epochs: that it was counted for, in this window and the one before; one that held the
 *	samples of several ticks at full pace counts as so many
 * @weight: of the samples in the same, in DEMETER_RATE_SHIFT of one at the usual
 *	period
 * @carried: of its range's rate, what is its own: samples from before it was divided
 * @repeats: pairs of samples of one page
 * @pairs: pairs of samples
 * @known: by class: sum of the counts of the pages that would be in it with one
 *	sample less
 * @pages: by class and tier: resident pages
 * @where: by tier: which pages are resident there
 * @count: by page: samples of this window and of the one before; each stops at 255
 */
struct demeter_finer_granule {
	u64 start;
	u32 space;
	u8 state;
	bool moving;
	bool stale;
	u8 taken[DEMETER_TIERS];
	u8 settle;
	u8 failures;
	bool was_huge;
	u64 divided_ns;
	u64 idle_ns;
	u32 samples;
	u32 asked;
	u32 seen;
	u32 epochs[2];
	u32 weight[2];
	u64 carried;
	u64 repeats;
	u64 pairs;
	u32 known[DEMETER_FINER_CLASSES];
	u16 pages[DEMETER_FINER_CLASSES][DEMETER_TIERS];
	u64 where[DEMETER_TIERS][DEMETER_FINER_WORDS];
	u8 count[2][DEMETER_FINER_CELLS];
};

/**
 * struct demeter_finer - all of them
 * @granule: caller's array
 * @capacity: its length, at most 32768
 * @index: caller's array: where a granule is, by hash, + 1
 * @index_mask: its length, a power of two above @capacity, less 1
 * @nr: granules in use
 * @divided: of them, those divided
 * @due: of them, those to be estimated when the last epoch ended
 * @window: windows that have ended
 * @window_samples: samples of the running window
 * @window_ns: how long it has run
 * @epoch_samples: since granules were seen to
 * @horizon_ns: how long a placement is expected to last, as told when an epoch ended
 * @epochs: that have passed since granules were seen to: several, where they are only
 *	looked at
 * @held: log2 of the ticks at full pace whose samples the epoch that ends held; the
 *	caller's, demeter_pace_held()
 * @was_held: what it was an epoch ago
 * @full_epochs: as @epochs, each as often as that
 * @thin: by how much @held has fallen in @epochs
 * @settle: epochs for which a granule that went back to its range may need to settle
 * @spaces: a bit for each address space, by its number modulo 64, that may have granules
 *	which are divided or settle
 * @walked: samples with longer walks since the caller took note of them, in
 *	DEMETER_RATE_SHIFT of one at the usual period
 * @pairs: of samples on one granule that is undecided, when they were
 * @credit: epochs of denser samples that may follow
 * @eager: denser samples are wanted whatever is suspected; the caller's
 * @denser: denser samples would tell more
 * @dense: they are denser; the caller's
 * @vain: epochs in a row in which they would have told more, and were not
 * @pause: epochs for which they are not asked for
 * @denied: samples of granules for which there was no room, since initialisation
 * @refused: by hash of the granule: not looked at before this window
 *
 * Not synchronised: one owner at a time.
 */
struct demeter_finer {
	struct demeter_finer_granule *granule;
	u32 capacity;
	u16 *index;
	u32 index_mask;
	u32 nr;
	u32 divided;
	u32 due;
	u32 window;
	u64 window_samples;
	u64 window_ns;
	u64 epoch_samples;
	u64 horizon_ns;
	u32 epochs;
	u32 held;
	u32 was_held;
	u32 full_epochs;
	u32 thin;
	u32 settle;
	u64 spaces;
	u64 walked;
	u64 pairs;
	u32 credit;
	bool eager;
	bool denser;
	bool dense;
	u32 vain;
	u32 pause;
	u64 denied;
	u32 refused[DEMETER_FINER_REFUSED];
};

/**
 * struct demeter_finer_params - the economics
 * @cut_density: of the hottest that finds no room in FMEM, see struct
 *	demeter_rank_entry
 * @sample_period: accesses that one sample at the usual period stands for
 * @epoch_ns: length of an epoch
 * @latency_gap_ps: SMEM latency less FMEM latency
 * @walk_ps: how much longer a sampled access takes where a huge page was divided
 * @horizon_ns: how long a placement is expected to last
 * @swap_cost_ns: measured cost of exchanging a pair of base pages
 * @split_cost_ns: measured cost of dividing a huge page
 * @hysteresis_permille: how much more than it costs it must gain
 * @significance: standard deviations of doubt, see struct demeter_plan_params
 */
struct demeter_finer_params {
	u64 cut_density;
	u64 sample_period;
	u64 epoch_ns;
	u64 latency_gap_ps;
	u64 walk_ps;
	u64 horizon_ns;
	u64 swap_cost_ns;
	u64 split_cost_ns;
	u32 hysteresis_permille;
	u32 significance;
};

/**
 * struct demeter_finer_estimate - what dividing a granule would come to
 * @least: samples from which on a page is one to be placed
 * @pages: how many are
 * @covered: samples, of all of the granule's, that these pages would get anew
 * @gain_ns: latency that is surely saved over the horizon, longer walks taken off
 * @cost_ns: what dividing and placing costs, with the hysteresis
 */
struct demeter_finer_estimate {
	u32 least;
	u32 pages;
	u32 covered;
	u64 gain_ns;
	u64 cost_ns;
};

int demeter_finer_init(struct demeter_finer *f, struct demeter_finer_granule *granule, u32 capacity,
		       u16 *index, u32 index_length);
struct demeter_finer_granule *demeter_finer_find(const struct demeter_finer *f, u32 space, u64 gva);
bool demeter_finer_sample(struct demeter_finer *f, u32 space, u64 gva, u32 weight);
bool demeter_finer_end_epoch(struct demeter_finer *f, u64 passed_ns, u64 horizon_ns);
bool demeter_finer_is_due(const struct demeter_finer_granule *g);
bool demeter_finer_estimate(const struct demeter_finer *f, struct demeter_finer_granule *g,
			    const struct demeter_finer_params *params, bool huge,
			    struct demeter_finer_estimate *estimate);
void demeter_finer_keep(struct demeter_finer *f, struct demeter_finer_granule *g);
void demeter_finer_divide(struct demeter_finer *f, struct demeter_finer_granule *g);
void demeter_finer_fail(struct demeter_finer *f, struct demeter_finer_granule *g);
void demeter_finer_leave(struct demeter_finer *f, u32 space);
bool demeter_finer_has(const struct demeter_finer *f, u32 space);
void demeter_finer_drop(struct demeter_finer *f, struct demeter_finer_granule *g, u32 windows);
void demeter_finer_locate(struct demeter_finer_granule *g, const u64 *fmem, const u64 *smem);
u32 demeter_finer_select(const struct demeter_finer_granule *g, u32 class, enum demeter_tier tier,
			 u64 *select);
u64 demeter_finer_rate(const struct demeter_finer *f, const struct demeter_finer_granule *g);
u64 demeter_finer_undivided(const struct demeter_finer *f, u32 space, u64 start, u64 end);
u64 demeter_finer_whole(const struct demeter_finer *f, u32 space, u64 *start, u64 end);
void demeter_finer_hide(const struct demeter_finer *f, u32 space,
			const struct demeter_resident *resident, struct demeter_rank_entry *entries,
			u32 nr);
void demeter_finer_classes(const struct demeter_finer *f, u32 space,
			   struct demeter_rank_entry *entries);

#endif /* DEMETER_FINER_H */
