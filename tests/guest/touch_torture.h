/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What the files of touch_torture share. */
#ifndef TOUCH_TORTURE_H
#define TOUCH_TORTURE_H

#define _GNU_SOURCE
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#define HUGE  (2ul << 20)
#define PAGE  4096ul
#define WORDS (PAGE / sizeof(unsigned long))

/* Private memory; each word is its index. */
extern unsigned long *memory;
extern int failures;

#define CHECK(condition, what)                                                                     \
	do {                                                                                       \
		if (!(condition) && failures++ < 20)                                               \
			printf("not ok - %s (%s:%d, errno %d)\n", what, __FILE__, __LINE__, errno); \
	} while (0)

/* Does a write to it, or a read, raise a signal? */
bool write_faults(volatile unsigned long *word);
bool read_faults(volatile unsigned long *word);
void nap(long ms);
/* Is every word of the private memory right? */
void verify(const char *what);
/* Keep the second thread from the private memory. */
void hold_hammer(bool hold);

/* touch_torture_shared.c: map shared memory, and have another process use it, too. */
void share(void);
void test_shared(unsigned int round);
void unshare_all(void);
/* Shared memory of one huge page that nobody else uses, mapped twice. */
unsigned long *shared_twice(unsigned long **again);

/* touch_torture_unmap.c */
void test_unmap(void);

/* touch_torture_uffd.c */
void test_userfaultfd(void);

#endif /* TOUCH_TORTURE_H */
