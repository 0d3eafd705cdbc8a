/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Ranges: how hot each part of one address space is.
 *
 * An address space starts as a few areas (see <demeter/areas.h>); each area is one
 * range. Samples land in ranges; once an epoch counts decay, ranges whose
 * parts differ are split, and ranges that no longer differ are merged. The
 * shape follows "Demeter" (SOSP'25) section on range-based classification;
 * what differs from the paper is said at each function.
 */
#ifndef DEMETER_RANGES_H
#define DEMETER_RANGES_H

#include <demeter/areas.h>
#include <demeter/deps.h>

#define DEMETER_QUARTERS   4
/* Rates are fixed point: samples << DEMETER_RATE_SHIFT. */
#define DEMETER_RATE_SHIFT 8

#define DEMETER_MAX_SPLIT_SAMPLES 0x1000000U
#define DEMETER_MAX_SIGNIFICANCE  1024U
#define DEMETER_MAX_VCPUS	  65536U

/**
 * struct demeter_ranges_params - what steers the classifier
 * @split_samples: tau: decayed samples by which parts of a range must differ
 *	before it is split (paper: 15)
 * @significance: alpha: the difference must also exceed this many times the
 *	square root of the range's decayed samples (paper: 2)
 * @vcpus: factor of @split_samples, as in the paper, which takes the number of
 *	vCPUs; 1 says that samples speak for themselves
 * @merge_epochs: tau_merge: epochs that neighbours must stay alike before
 *	they become one range again
 * @granule_bytes: smallest range, a power of two (paper: 2 MiB)
 *
 * Accepted: @split_samples 1 to DEMETER_MAX_SPLIT_SAMPLES, @significance up to
 * DEMETER_MAX_SIGNIFICANCE, @vcpus 1 to DEMETER_MAX_VCPUS, @merge_epochs from
 * 1, @granule_bytes from one page to 2^62.
 */
struct demeter_ranges_params {
	u32 split_samples;
	u32 significance;
	u32 vcpus;
	u32 merge_epochs;
	u64 granule_bytes;
};

#define DEMETER_RANGES_PARAMS_DEFAULT                                                              \
	{                                                                                          \
		.split_samples = 15, .significance = 2, .vcpus = 1, .merge_epochs = 8,             \
		.granule_bytes = 2ULL << 20,                                                       \
	}

/**
 * struct demeter_range - one range of guest virtual addresses
 * @start: first byte, multiple of the granule
 * @end: one past the last byte, multiple of the granule
 * @rate: decayed samples, fixed point: halves every epoch (and is thinned as much as
 *	they are), then gains the epoch's samples
 * @quarter: the part of @rate whose quarter of the range is known, lowest
 *	addresses first; the rest was inherited from before the range got its
 *	bounds. Quarters begin at whole granules, so those of a range of few
 *	granules are of unequal size, and some are empty
 * @hits: samples of the running epoch by quarter, not yet in @rate
 * @born_epoch: epoch in which the range got its present bounds
 * @alike_epochs: epochs in a row that it did not differ from its successor
 * @area: index of the area it belongs to
 */
struct demeter_range {
	u64 start;
	u64 end;
	u64 rate;
	u64 quarter[DEMETER_QUARTERS];
	u32 hits[DEMETER_QUARTERS];
	u32 born_epoch;
	u32 alike_epochs;
	u32 area;
};

/**
 * struct demeter_ranges - the classification of one address space
 * @range: caller's array, sorted by address, disjoint, gaps only between areas
 * @capacity: length of @range
 * @nr: ranges in use
 * @epoch: epochs ended so far
 * @tau_raise: by how much tau is raised at present because splits were denied,
 *	in 1/256 of it
 * @splits: splits since initialisation
 * @merges: merges since initialisation
 * @samples: samples that fell into a range
 * @strays: samples outside every range
 * @denied_splits: splits not made because @range was full
 * @area: bounds of each area; start == end means unused
 * @params: as given
 * @granule_shift: log2 of the granule
 * @thin: the caller's: the running epoch has 2^@thin times fewer samples for as many
 *	accesses a second than the one before, @thin of a pace; what was
 *	counted until then becomes as much less with its end
 *
 * Not synchronised: one owner at a time (the classifier worker).
 */
struct demeter_ranges {
	struct demeter_range *range;
	u32 capacity;
	u32 nr;
	u32 epoch;
	u32 tau_raise;
	u64 splits;
	u64 merges;
	u64 samples;
	u64 strays;
	u64 denied_splits;
	struct demeter_area area[DEMETER_MAX_AREAS];
	struct demeter_ranges_params params;
	u32 granule_shift;
	u32 thin;
};

int demeter_ranges_init(struct demeter_ranges *rs, struct demeter_range *memory, u32 capacity,
			const struct demeter_ranges_params *params);
int demeter_ranges_set_params(struct demeter_ranges *rs,
			      const struct demeter_ranges_params *params);
int demeter_ranges_set_area(struct demeter_ranges *rs, u32 area, u64 start, u64 end);
int demeter_ranges_set_areas(struct demeter_ranges *rs, const struct demeter_area *area, u32 nr);
int demeter_ranges_sample(struct demeter_ranges *rs, u64 gva);
int demeter_ranges_samples(struct demeter_ranges *rs, u64 gva, u32 samples);
struct demeter_range *demeter_ranges_find(struct demeter_ranges *rs, u64 gva);

/**
 * struct demeter_ranges_epoch - what one epoch changed
 * @splits: ranges split
 * @merges: pairs of ranges merged
 */
struct demeter_ranges_epoch {
	u32 splits;
	u32 merges;
};

void demeter_ranges_resume(struct demeter_ranges *rs, u32 thin);
void demeter_ranges_end_epoch(struct demeter_ranges *rs, struct demeter_ranges_epoch *done);

/* ranges_room.c */
u32 demeter_ranges_room_wanted(const struct demeter_ranges *rs, u32 most);
struct demeter_range *demeter_ranges_grow(struct demeter_ranges *rs, struct demeter_range *memory,
					  u32 capacity);

/* ranges_digest.c */
u64 demeter_ranges_digest(const struct demeter_ranges *rs, u64 seed);

#endif /* DEMETER_RANGES_H */
