// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Channel: order, bounds, losses, wrap. Threads: see channel_stress.c. */
#include <demeter/channel.h>

#include "harness.h"

static void ct_test_bad(struct test_tally *tally)
{
	struct demeter_channel_slot slot[4];
	struct demeter_channel ch;

	CHECK(demeter_channel_init(NULL, slot, 4) == -EINVAL);
	CHECK(demeter_channel_init(&ch, NULL, 4) == -EINVAL);
	CHECK(demeter_channel_init(&ch, slot, 0) == -EINVAL);
	CHECK(demeter_channel_init(&ch, slot, 1) == -EINVAL);
	CHECK(demeter_channel_init(&ch, slot, 3) == -EINVAL);
	CHECK(demeter_channel_init(&ch, slot, 4) == 0);
}

static void ct_test_order(struct test_tally *tally)
{
	struct demeter_channel_slot slot[8];
	struct demeter_sample s = { .space = 3, .latency_ns = 4, .tier = 1 };
	struct demeter_channel ch;
	u64 pushed = 0, popped = 0, lost = 0, seed = 31;
	u32 i;

	CHECK_EQ(demeter_channel_init(&ch, slot, 8), 0);
	CHECK(!demeter_channel_pop(&ch, &s));
	for (i = 0; i < TEST_ROUNDS(100000); i++) {
		if (test_random(&seed) & 1) {
			s.gva = pushed;
			if (pushed - popped == 8) {
				CHECK(!demeter_channel_push(&ch, &s));
				lost++;
			} else {
				CHECK(demeter_channel_push(&ch, &s));
				pushed++;
			}
		} else if (pushed == popped) {
			CHECK(!demeter_channel_pop(&ch, &s));
		} else {
			CHECK(demeter_channel_pop(&ch, &s));
			CHECK_EQ(s.gva, popped);
			CHECK(s.space == 3 && s.latency_ns == 4 && s.tier == 1);
			popped++;
		}
	}
	CHECK_EQ(demeter_channel_lost(&ch), lost);
}

/* Positions wrap at 2^64 like at any lap. */
static void ct_test_wrap(struct test_tally *tally)
{
	struct demeter_channel_slot slot[4];
	struct demeter_sample s = { 0 };
	struct demeter_channel ch;
	u64 start = 0 - 8ULL; /* a multiple of the length */
	u32 i, round;

	CHECK_EQ(demeter_channel_init(&ch, slot, 4), 0);
	ch.head = start;
	ch.tail = start;
	for (i = 0; i < 4; i++)
		slot[i].sequence = start + i;
	for (round = 0; round < 10; round++) {
		for (i = 0; i < 4; i++) {
			s.gva = round * 4 + i;
			CHECK(demeter_channel_push(&ch, &s));
		}
		CHECK(!demeter_channel_push(&ch, &s));
		for (i = 0; i < 4; i++) {
			CHECK(demeter_channel_pop(&ch, &s));
			CHECK_EQ(s.gva, round * 4 + i);
		}
		CHECK(!demeter_channel_pop(&ch, &s));
	}
	CHECK_EQ(demeter_channel_lost(&ch), 10);
}

static const struct test_case channel_tests[] = {
	{ "channel: bad lengths are refused", ct_test_bad },
	{ "channel: first in, first out, losses counted", ct_test_order },
	{ "channel: positions wrap", ct_test_wrap },
};
