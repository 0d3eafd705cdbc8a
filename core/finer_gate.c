// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Finer's gate: see <demeter/finer_gate.h>.
 *
 * How long must a look be? Of the pairs of samples in a granule chance puts one in 512
 * on the same page; finer.c suspects that more is behind it from twice as many (and
 * some) on. With GATE_PAIRS it does so where nine tenths of the accesses go to a seventh
 * of the pages or less. Those come with 16 samples in each of 64 granules, or 8 in each
 * of 256.
 */
#include <demeter/finer_gate.h>
#include <demeter/math.h>

#define GATE_SHIFT	 8U
/* Epochs without a promotion after which ranges are taken to have found what they can. */
#define GATE_STILL	 8U
/* Part of the samples that SMEM must serve for a look to be worth it. */
#define GATE_SHARE	 4U
/* Fewer samples than this, of late, say nothing about the tiers. */
#define GATE_LEAST	 128U
/* What an epoch counts for in the next one: 7 / 8. */
#define GATE_FADE	 8U
/* Pairs of samples in one granule that end a look that they have not made suspicious. */
#define GATE_PAIRS	 8192U
/* So do so many samples a granule, on average: where most of them are decided. */
#define GATE_LOOK	 16U
#define GATE_GRANULES	 64U
/* Epochs of the first pause. */
#define GATE_PAUSE	 64U
#define GATE_MAX_SAMPLES BIT_ULL(32)

static void gate_see(struct demeter_finer_gate *gate, const struct demeter_finer_gate_epoch *epoch)
{
	u32 tier;

	for (tier = 0; tier < DEMETER_TIERS; tier++) {
		u64 seen = demeter_min(epoch->samples[tier], GATE_MAX_SAMPLES) << GATE_SHIFT;

		gate->recent[tier] -= gate->recent[tier] / GATE_FADE;
		gate->recent[tier] += seen;
	}
	gate->still = epoch->promoted_pages ? 0 : gate->still + (gate->still < GATE_STILL);
	gate->pause -= gate->pause > 0;
}

/* Have ranges come to their end, and left much in SMEM; and are there means for a look? */
static bool gate_should_open(const struct demeter_finer_gate *gate,
			     const struct demeter_finer_gate_epoch *epoch)
{
	u64 slow = gate->recent[DEMETER_SMEM], all = slow + gate->recent[DEMETER_FMEM];

	return !gate->pause && !epoch->is_poor && gate->still >= GATE_STILL &&
	       all >= GATE_LEAST << GATE_SHIFT && slow >= all / GATE_SHARE;
}

static void gate_shut(struct demeter_finer_gate *gate)
{
	gate->open = false;
	gate->pause = GATE_PAUSE << gate->pauses;
	gate->pauses += gate->pauses < DEMETER_FINER_GATE_MAX_PAUSES;
	/* Ranges that were promoted meanwhile may do for what is left. */
	gate->still = 0;
}

/* Were there so many samples that what concentrates would have shown? */
static bool gate_has_seen(const struct demeter_finer_gate *gate, const struct demeter_finer *f)
{
	return f->pairs >= GATE_PAIRS ||
	       gate->looked >= (u64)demeter_max(f->nr, GATE_GRANULES) * GATE_LOOK;
}

/**
 * demeter_finer_gate_is_looking - is it open, and nothing has come of it yet
 * @gate: the gate
 * @f: what is looked at, NULL for nothing: without memory for it there is no look
 *
 * Such a look should be over soon, so samples should be no sparser than they can be.
 *
 * Return: whether it is.
 */
bool demeter_finer_gate_is_looking(const struct demeter_finer_gate *gate,
				   const struct demeter_finer *f)
{
	return gate->open && f && !f->divided;
}

/**
 * demeter_finer_gate_wants_denser - should a look be over sooner by denser samples
 * @gate: the gate
 * @f: what is looked at, NULL for nothing
 *
 * Return: whether it should, whatever is suspected.
 */
bool demeter_finer_gate_wants_denser(const struct demeter_finer_gate *gate,
				     const struct demeter_finer *f)
{
	return demeter_finer_gate_is_looking(gate, f) && !gate_has_seen(gate, f);
}

/**
 * demeter_finer_gate_epoch - an epoch is over: should granules be looked at in the next
 * @gate: the gate
 * @epoch: what it came to
 * @f: what is looked at, with this epoch ended; NULL for nothing
 *
 * Once open it stays so while anything is divided, or under suspicion.
 *
 * Return: whether it is open.
 */
bool demeter_finer_gate_epoch(struct demeter_finer_gate *gate,
			      const struct demeter_finer_gate_epoch *epoch,
			      const struct demeter_finer *f)
{
	gate_see(gate, epoch);
	if (!gate->open) {
		gate->open = gate_should_open(gate, epoch);
		gate->looked = 0;
		return gate->open;
	}
	/* There was no memory for it: that is no look, and is tried again. */
	if (!f)
		return true;
	if (f->divided) {
		gate->pauses = 0;
		gate->looked = 0;
		return true;
	}
	gate->looked = demeter_add_sat(gate->looked, epoch->samples[DEMETER_FMEM]);
	gate->looked = demeter_add_sat(gate->looked, epoch->samples[DEMETER_SMEM]);
	gate->looked = demeter_add_sat(gate->looked, epoch->extra);
	if (!f->denser && gate_has_seen(gate, f))
		gate_shut(gate);
	return gate->open;
}
