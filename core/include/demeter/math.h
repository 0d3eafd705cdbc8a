/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Integer arithmetic that saturates instead of wrapping: whatever a caller
 * passes in, a result is at worst the largest number, never a small wrong one.
 * 128-bit products are built from 32-bit halves, because a kernel links no
 * helper for 128-bit division and 32-bit targets have no __int128.
 */
#ifndef DEMETER_MATH_H
#define DEMETER_MATH_H

#include <demeter/deps.h>

#define DEMETER_U64_MAX	 (~0ULL)
#define DEMETER_LOW_HALF 0xffffffffULL

static inline u64 demeter_add_sat(u64 a, u64 b)
{
	return a + b < a ? DEMETER_U64_MAX : a + b;
}

static inline u64 demeter_sub_sat(u64 a, u64 b)
{
	return a > b ? a - b : 0;
}

static inline u64 demeter_min(u64 a, u64 b)
{
	return a < b ? a : b;
}

static inline u64 demeter_max(u64 a, u64 b)
{
	return a > b ? a : b;
}

/**
 * struct demeter_wide - a 128-bit product
 * @hi: upper half
 * @lo: lower half
 */
struct demeter_wide {
	u64 hi;
	u64 lo;
};

static inline struct demeter_wide demeter_mul_wide(u64 a, u64 b)
{
	u64 a_lo = a & DEMETER_LOW_HALF, a_hi = a >> 32;
	u64 b_lo = b & DEMETER_LOW_HALF, b_hi = b >> 32;
	u64 low = a_lo * b_lo;
	u64 cross = a_hi * b_lo + (low >> 32);		       /* cannot overflow */
	u64 middle = a_lo * b_hi + (cross & DEMETER_LOW_HALF); /* neither can this */
	struct demeter_wide product = {
		.hi = a_hi * b_hi + (cross >> 32) + (middle >> 32),
		.lo = (middle << 32) | (low & DEMETER_LOW_HALF),
	};

	return product;
}

static inline bool demeter_wide_above(struct demeter_wide a, struct demeter_wide b)
{
	return a.hi != b.hi ? a.hi > b.hi : a.lo > b.lo;
}

static inline u64 demeter_mul_sat(u64 a, u64 b)
{
	struct demeter_wide product = demeter_mul_wide(a, b);

	return product.hi ? DEMETER_U64_MAX : product.lo;
}

/* floor(a * b / c), saturating; c == 0 counts as infinitely large a result. */
static inline u64 demeter_mul_div(u64 a, u64 b, u64 c)
{
	struct demeter_wide product = demeter_mul_wide(a, b);
	u64 rest, quotient;
	u32 bit;

	if (product.hi == 0)
		return c ? div64_u64(product.lo, c) : product.lo ? DEMETER_U64_MAX : 0;
	if (product.hi >= c)
		return DEMETER_U64_MAX;

	/* Long division; rest < c holds, so the quotient fits 64 bits. */
	rest = product.hi;
	quotient = product.lo;
	for (bit = 0; bit < 64; bit++) {
		u64 carry = rest >> 63;

		rest = (rest << 1) | (quotient >> 63);
		quotient <<= 1;
		if (carry || rest >= c) {
			rest -= c;
			quotient |= 1;
		}
	}
	return quotient;
}

/* Index of the highest set bit; 0 for 0. */
static inline u32 demeter_log2(u64 value)
{
	return value ? 63 - (u32)__builtin_clzll(value) : 0;
}

/* floor(sqrt(value)) */
static inline u64 demeter_sqrt(u64 value)
{
	u64 root = 0;
	u64 bit = 1ULL << (demeter_log2(value) & ~1U);

	for (; bit; bit >>= 2) {
		if (value >= root + bit) {
			value -= root + bit;
			root = (root >> 1) + bit;
		} else {
			root >>= 1;
		}
	}
	return root;
}

#endif /* DEMETER_MATH_H */
