/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Finer's gate: when is a closer look (finer.h) worth its price.
 *
 * To count samples by page takes a little of the CPU, and denser samples take more:
 * for a program whose hot memory comes in ranges that buys nothing. So nothing is
 * looked at while ranges still find something to move, nor where FMEM serves most of
 * what is sampled already. Only where ranges have come to their end, and SMEM still
 * serves a substantial share, does a look begin. It is short: samples that meet the
 * same pages more often than by chance show within some of them for each granule, and
 * samples are denser for so many. A look that brings nothing is followed by a pause,
 * twice as long each time.
 */
#ifndef DEMETER_FINER_GATE_H
#define DEMETER_FINER_GATE_H

#include <demeter/finer.h>

/* Pauses grow no longer than this many doublings of the first. */
#define DEMETER_FINER_GATE_MAX_PAUSES 7U

/**
 * struct demeter_finer_gate - whether granules are looked at
 * @open: they are
 * @still: epochs in a row in which ranges had nothing to move
 * @pause: epochs for which it stays shut yet
 * @pauses: looks in a row that brought nothing, bounded
 * @looked: samples since it opened, or since something came of it
 * @recent: by tier: samples of late, each epoch counting for less than the next; << 8
 *
 * Zeroed by the caller to begin with. Not synchronised: one owner at a time.
 */
struct demeter_finer_gate {
	bool open;
	u32 still;
	u32 pause;
	u32 pauses;
	u64 looked;
	u64 recent[DEMETER_TIERS];
};

/**
 * struct demeter_finer_gate_epoch - what an epoch came to
 * @samples: by the tier that served them, without those that are there only because
 *	samples are denser
 * @extra: samples that are there only because they are denser
 * @promoted_pages: that were moved to FMEM
 * @is_poor: there are no means for a look that may come to something
 */
struct demeter_finer_gate_epoch {
	u64 samples[DEMETER_TIERS];
	u64 extra;
	u64 promoted_pages;
	bool is_poor;
};

bool demeter_finer_gate_epoch(struct demeter_finer_gate *gate,
			      const struct demeter_finer_gate_epoch *epoch,
			      const struct demeter_finer *f);
bool demeter_finer_gate_is_looking(const struct demeter_finer_gate *gate,
				   const struct demeter_finer *f);
bool demeter_finer_gate_wants_denser(const struct demeter_finer_gate *gate,
				     const struct demeter_finer *f);

#endif /* DEMETER_FINER_GATE_H */
