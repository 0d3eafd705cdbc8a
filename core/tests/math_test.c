// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Saturating arithmetic against first principles, no 128-bit type needed. */
#include <demeter/digest.h>
#include <demeter/math.h>

#include "harness.h"

static void math_test_mul_div(struct test_tally *tally)
{
	u64 seed = 1;
	u32 i;

	CHECK_EQ(demeter_mul_div(~0ULL, ~0ULL, ~0ULL), ~0ULL);
	CHECK_EQ(demeter_mul_div(~0ULL, ~0ULL, ~0ULL - 1), ~0ULL);
	CHECK_EQ(demeter_mul_div(~0ULL, 10, 100), ~0ULL / 10);
	CHECK_EQ(demeter_mul_div(1ULL << 63, 6, 12), 1ULL << 62);
	CHECK_EQ(demeter_mul_div(7, 0, 0), 0);
	CHECK_EQ(demeter_mul_div(7, 1, 0), ~0ULL);

	for (i = 0; i < TEST_ROUNDS(200000); i++) {
		u64 a = test_nasty(&seed), b = test_nasty(&seed), c = test_nasty(&seed);
		u64 q = demeter_mul_div(a, b, c);
		struct demeter_wide product = demeter_mul_wide(a, b);
		struct demeter_wide back, next;

		if (c == 0)
			continue;
		back = demeter_mul_wide(q, c);
		/* q c <= a b, and a b < (q + 1) c unless saturated */
		CHECK(!demeter_wide_above(back, product));
		if (q == ~0ULL)
			continue;
		next = demeter_mul_wide(q + 1, c);
		CHECK(demeter_wide_above(next, product));
	}
}

static void math_test_mul_wide(struct test_tally *tally)
{
	u64 seed = 2;
	u32 i;

	for (i = 0; i < TEST_ROUNDS(100000); i++) {
		u64 a = test_nasty(&seed), b = test_nasty(&seed), k = test_nasty(&seed);
		struct demeter_wide ab = demeter_mul_wide(a, b), ba = demeter_mul_wide(b, a);
		struct demeter_wide more = demeter_mul_wide(a, b + 1);

		CHECK_EQ(ab.lo, a * b);
		CHECK(ab.hi == ba.hi && ab.lo == ba.lo);
		if (b != ~0ULL) { /* a (b + 1) = a b + a */
			CHECK_EQ(more.lo, ab.lo + a);
			CHECK_EQ(more.hi, ab.hi + (ab.lo + a < a));
		}
		CHECK(demeter_mul_sat(a, b) == (ab.hi ? ~0ULL : ab.lo));
		CHECK(demeter_add_sat(a, k) >= demeter_max(a, k));
		CHECK(demeter_sub_sat(a, k) <= a);
	}
}

static void math_test_sqrt(struct test_tally *tally)
{
	u64 seed = 3;
	u32 i;

	CHECK_EQ(demeter_sqrt(0), 0);
	CHECK_EQ(demeter_sqrt(1), 1);
	CHECK_EQ(demeter_sqrt(~0ULL), 0xffffffffULL);
	for (i = 0; i < TEST_ROUNDS(100000); i++) {
		u64 value = test_nasty(&seed), root = demeter_sqrt(value);

		CHECK(root * root <= value);
		CHECK(root == 0xffffffffULL || (root + 1) * (root + 1) > value);
	}
	for (i = 0; i < 64; i++)
		CHECK_EQ(demeter_log2(1ULL << i), i);
	CHECK_EQ(demeter_log2(0), 0);
}

static void math_test_digest(struct test_tally *tally)
{
	/* FNV-1a of "demeter!" */
	CHECK_EQ(demeter_digest_add(demeter_digest_start(0), 0x21726574656d6564ULL),
		 0xfd1b514319713026ULL);
	CHECK_EQ(demeter_digest_start(0), DEMETER_DIGEST_BASIS);
	CHECK_EQ(demeter_digest_start(5), 5);
}

static const struct test_case math_tests[] = {
	{ "math: mul_div is exact or saturates", math_test_mul_div },
	{ "math: 128-bit products", math_test_mul_wide },
	{ "math: square root", math_test_sqrt },
	{ "math: digest is FNV-1a", math_test_digest },
};
