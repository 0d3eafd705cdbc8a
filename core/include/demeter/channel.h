/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Channel: bounded lock-free queue, many producers (context switches on every
 * CPU), one consumer (the classifier worker). A full channel counts the loss
 * and drops the newest sample: producers never wait. After Vyukov's bounded
 * queue: each slot carries a sequence number.
 */
#ifndef DEMETER_CHANNEL_H
#define DEMETER_CHANNEL_H

#include <demeter/deps.h>

/**
 * struct demeter_sample - one sampled access, or several of the same place
 * @gva: guest virtual address
 * @space: the caller's number of the address space
 * @latency_ns: measured latency, 0 = not known
 * @tier: enum demeter_tier, or DEMETER_TIERS when not known
 * @more: how many it stands for beside itself
 */
struct demeter_sample {
	u64 gva;
	u32 space;
	u16 latency_ns;
	u8 tier;
	u8 more;
};

struct demeter_channel_slot {
	u64 sequence;
	struct demeter_sample sample;
};

/**
 * struct demeter_channel - the queue over the caller's slots
 * @slot: caller's array
 * @mask: its length, a power of two, less one
 * @head: next slot to produce into
 * @lost: samples dropped because the channel was full, with those that they stood for
 * @tail: next slot to consume; the consumer's own
 */
struct demeter_channel {
	struct demeter_channel_slot *slot;
	u64 mask;

	u64 head __aligned(64);
	u64 lost;

	u64 tail __aligned(64);
};

int demeter_channel_init(struct demeter_channel *ch, struct demeter_channel_slot *memory,
			 u32 slots);
bool demeter_channel_push(struct demeter_channel *ch, const struct demeter_sample *sample);
bool demeter_channel_pop(struct demeter_channel *ch, struct demeter_sample *sample);
u64 demeter_channel_lost(const struct demeter_channel *ch);

#endif /* DEMETER_CHANNEL_H */
