// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Channel: see <demeter/channel.h>.
 *
 * A slot's sequence says whose turn it is: equal to a position, the producer
 * that takes the position may write; one more, the consumer may read; after
 * reading it becomes the position one lap later. Producers race for a position
 * by compare-and-swap on head and publish with a release store of the
 * sequence, which the consumer's acquire load pairs with, and the other way
 * round for slots given back.
 *
 * A producer interrupted between taking a position and publishing holds up the
 * consumer (pop returns false although later slots are full), never another
 * producer. A push from an interrupt or NMI on the same CPU is therefore safe.
 */
#include <demeter/channel.h>

/**
 * demeter_channel_init - make a channel over the caller's slots
 * @ch: what to initialise
 * @memory: array of slots; stays the caller's
 * @slots: its length, a power of two from 2 (with a single slot "full" and
 *	"empty one lap later" would look alike)
 *
 * Not to be called while anybody pushes or pops.
 *
 * Return: 0, or -EINVAL.
 */
int demeter_channel_init(struct demeter_channel *ch, struct demeter_channel_slot *memory, u32 slots)
{
	u32 i;

	if (!ch || !memory || slots < 2 || (slots & (slots - 1)))
		return -EINVAL;
	memset(ch, 0, sizeof(*ch));
	ch->slot = memory;
	ch->mask = slots - 1;
	for (i = 0; i < slots; i++)
		demeter_store_relaxed(&memory[i].sequence, (u64)i);
	return 0;
}

/**
 * demeter_channel_push - offer a sample; any number of callers at a time
 * @ch: the channel
 * @sample: copied
 *
 * Return: true, or false when the channel was full: the sample is dropped and
 * counted, with those that it stands for.
 */
bool demeter_channel_push(struct demeter_channel *ch, const struct demeter_sample *sample)
{
	u64 at = demeter_load_relaxed(&ch->head);

	for (;;) {
		struct demeter_channel_slot *slot = &ch->slot[at & ch->mask];
		s64 ahead = (s64)(demeter_load_acquire(&slot->sequence) - at);

		if (ahead == 0) {
			if (demeter_cas_relaxed(&ch->head, at, at + 1)) {
				slot->sample = *sample;
				demeter_store_release(&slot->sequence, at + 1);
				return true;
			}
		} else if (ahead < 0) {
			demeter_add_relaxed(&ch->lost, 1 + (u64)sample->more);
			return false;
		}
		at = demeter_load_relaxed(&ch->head);
	}
}

/**
 * demeter_channel_pop - take the oldest sample; one caller at a time
 * @ch: the channel
 * @sample: filled in
 *
 * Return: false when there is none (or the oldest is still being written).
 */
bool demeter_channel_pop(struct demeter_channel *ch, struct demeter_sample *sample)
{
	struct demeter_channel_slot *slot = &ch->slot[ch->tail & ch->mask];

	if (demeter_load_acquire(&slot->sequence) != ch->tail + 1)
		return false;
	*sample = slot->sample;
	demeter_store_release(&slot->sequence, ch->tail + ch->mask + 1);
	ch->tail++;
	return true;
}

/**
 * demeter_channel_lost - samples dropped so far
 * @ch: the channel
 *
 * Return: the count; only grows.
 */
u64 demeter_channel_lost(const struct demeter_channel *ch)
{
	return demeter_load_relaxed(&ch->lost);
}
