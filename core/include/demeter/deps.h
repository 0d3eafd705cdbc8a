/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The one file of core/ that knows where it is compiled. Everything else in
 * core/ is freestanding C11 over these names: integers only, caller-supplied
 * memory, time passed in, no libc.
 */
#ifndef DEMETER_DEPS_H
#define DEMETER_DEPS_H

#ifdef __KERNEL__

#include <linux/bits.h>
#include <linux/kernel.h>
#include <linux/types.h>
#include <linux/math64.h>
#include <linux/string.h>
#include <linux/errno.h>
#include <asm/barrier.h>
#include <linux/atomic.h>

/* Pairs with demeter_store_release() of the other side, see channel.c. */
#define demeter_load_acquire(p)	    smp_load_acquire(p)
/* Pairs with demeter_load_acquire() of the other side. */
#define demeter_store_release(p, v) smp_store_release(p, v)
#define demeter_load_relaxed(p)	    READ_ONCE(*(p))
#define demeter_store_relaxed(p, v) WRITE_ONCE(*(p), v)

/* Returns true and swaps when *p == old. Full ordering is not needed. */
static inline bool demeter_cas_relaxed(u64 *p, u64 old, u64 new)
{
	return cmpxchg_relaxed(p, old, new) == old;
}

#else /* user space */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t s32;
typedef int64_t s64;

/* The compiler may emit calls to these even when freestanding. */
void *memcpy(void *dst, const void *src, size_t n);
void *memmove(void *dst, const void *src, size_t n);
void *memset(void *dst, int c, size_t n);

#ifndef EINVAL
#define ENOENT 2
#define ENOMEM 12
#define EINVAL 22
#define ENOSPC 28
#define ERANGE 34
#endif

#ifndef ARRAY_SIZE
#define ARRAY_SIZE(array) (sizeof(array) / sizeof((array)[0]))
#endif
#ifndef BIT_ULL
#define BIT_ULL(bit) (1ULL << (bit))
#endif
#ifndef __aligned
#define __aligned(bytes) __attribute__((aligned(bytes)))
#endif

static inline u64 div64_u64(u64 dividend, u64 divisor)
{
	return dividend / divisor;
}

#define demeter_load_acquire(p)	    __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define demeter_store_release(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)
#define demeter_load_relaxed(p)	    __atomic_load_n(p, __ATOMIC_RELAXED)
#define demeter_store_relaxed(p, v) __atomic_store_n(p, v, __ATOMIC_RELAXED)

static inline bool demeter_cas_relaxed(u64 *p, u64 old, u64 new)
{
	return __atomic_compare_exchange_n(p, &old, new, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

#endif /* __KERNEL__ */

/* Not xadd(): only some architectures have it, and losses are rare. */
static inline void demeter_add_relaxed(u64 *counter, u64 value)
{
	u64 seen;

	do {
		seen = demeter_load_relaxed(counter);
	} while (!demeter_cas_relaxed(counter, seen, seen + value));
}

/* Two memory tiers, in this order wherever an array is indexed by tier. */
enum demeter_tier { DEMETER_FMEM = 0, DEMETER_SMEM = 1, DEMETER_TIERS = 2 };

#define DEMETER_PAGE_SHIFT 12
#define DEMETER_PAGE_BYTES BIT_ULL(DEMETER_PAGE_SHIFT)

#endif /* DEMETER_DEPS_H */
