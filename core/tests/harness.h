/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * A test harness of one page that works in user space and in a kernel module
 * (Debian's kernels are built without KUnit). Lines are TAP.
 */
#ifndef DEMETER_TESTS_HARNESS_H
#define DEMETER_TESTS_HARNESS_H

#include <demeter/deps.h>

#ifdef __KERNEL__
#include <linux/printk.h>
#include <linux/sched.h>
#include <linux/vmalloc.h>
#define test_print(...)	  printk(KERN_INFO "demeter_core_test: " __VA_ARGS__)
#define test_alloc(bytes) vzalloc(bytes)
#define test_free(memory) vfree(memory)
#define test_yield()	  cond_resched()
/* The kernel runs the same bodies in an emulated machine: fewer rounds. */
#define TEST_ROUNDS(n)	  ((n) / 10 + 1)
#else
#include <stdio.h>
#include <stdlib.h>
#define test_print(...)	  printf(__VA_ARGS__)
#define test_alloc(bytes) calloc(1, bytes)
#define test_free(memory) free(memory)
#define test_yield()	  ((void)0)
#define TEST_ROUNDS(n)	  (n)
#endif

typedef unsigned long long test_ull;

/**
 * struct test_tally - what happened so far
 * @passed: tests without a failed check
 * @failed: the others
 * @failed_checks: failed checks of the running test
 */
struct test_tally {
	u32 passed;
	u32 failed;
	u32 failed_checks;
};

/**
 * struct test_case - one test
 * @name: for the report
 * @run: the body; checks through CHECK()
 */
struct test_case {
	const char *name;
	void (*run)(struct test_tally *tally);
};

#define TEST_SHOWN_CHECKS 5

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition) && tally->failed_checks++ < TEST_SHOWN_CHECKS)                    \
			test_print("# %s:%d: %s\n", __FILE__, __LINE__, #condition);               \
	} while (0)

/* Like CHECK() for two integers, shows both. */
#define CHECK_EQ(a, b)                                                                             \
	do {                                                                                       \
		test_ull check_a = (test_ull)(a), check_b = (test_ull)(b);                         \
		if (check_a != check_b && tally->failed_checks++ < TEST_SHOWN_CHECKS)              \
			test_print("# %s:%d: %s is %llu (0x%llx), not %llu (0x%llx)\n", __FILE__,  \
				   __LINE__, #a, check_a, check_a, check_b, check_b);              \
	} while (0)

static inline void test_run(const struct test_case *cases, u32 nr, struct test_tally *tally)
{
	u32 i;

	for (i = 0; i < nr; i++) {
		tally->failed_checks = 0;
		cases[i].run(tally);
		test_print("%s %u - %s\n", tally->failed_checks ? "not ok" : "ok",
			   tally->passed + tally->failed + 1, cases[i].name);
		if (tally->failed_checks)
			tally->failed++;
		else
			tally->passed++;
		test_yield();
	}
}

#define TEST_RUN(cases, tally) test_run(cases, ARRAY_SIZE(cases), tally)

/* SplitMix64: the same sequence everywhere, from any seed. */
static inline u64 test_random(u64 *state)
{
	u64 z = (*state += 0x9e3779b97f4a7c15ULL);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
	return z ^ (z >> 31);
}

/* Numbers that break things: extremes, powers of two and their neighbours. */
static inline u64 test_nasty(u64 *state)
{
	u64 pick = test_random(state);

	switch (pick & 7) {
	case 0:
		return 0;
	case 1:
		return ~0ULL;
	case 2:
		return 1;
	case 3:
		return (1ULL << ((pick >> 8) & 63));
	case 4:
		return (1ULL << ((pick >> 8) & 63)) - 1;
	case 5:
		return ~0ULL - ((pick >> 8) & 0xff);
	case 6:
		return (pick >> 8) & 0xffff;
	default:
		return test_random(state);
	}
}

#endif /* DEMETER_TESTS_HARNESS_H */
