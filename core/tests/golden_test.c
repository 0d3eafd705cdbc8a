// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* The golden traces: every build must take the decisions on record. */
#include "golden.h"
#include "golden/traces.inc"

static void gt_test_traces(struct test_tally *tally)
{
	u64 all = demeter_digest_start(0), digest;
	u32 i;

	for (i = 0; i < ARRAY_SIZE(golden_traces); i++) {
		const struct golden_trace *t = &golden_traces[i];

		CHECK_EQ(golden_replay(t->text, &digest), 0);
		CHECK_EQ(digest, t->digest);
		test_print("digest %s %016llx\n", t->name, (test_ull)digest);
		all = demeter_digest_add(all, digest);
	}
	test_print("digest all %016llx\n", (test_ull)all);
}

static void gt_test_bad(struct test_tally *tally)
{
	u64 digest;

	CHECK_EQ(golden_replay("", &digest), 0);
	CHECK(golden_replay("nonsense\n", &digest) == -EINVAL);
	CHECK(golden_replay("epoch\n", &digest) == -EINVAL);
	CHECK(golden_replay("space 0 1 1 1 1 4096\n", &digest) == -EINVAL);
}

static const struct test_case golden_tests[] = {
	{ "golden: decisions are those on record", gt_test_traces },
	{ "golden: senseless traces are refused", gt_test_bad },
};
