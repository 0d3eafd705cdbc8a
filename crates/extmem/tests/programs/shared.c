// SPDX-License-Identifier: Apache-2.0 OR MIT
// Many threads write to the same pages, each to a word of its own, and meet there: they walk
// in one order. No word may be lost that one of them wrote while another brought the page.
#include "check.h"
#include <pthread.h>

#define PAGES (40 * MIB / PAGE)
#define THREADS 32

static int rounds = 30000;
static char *shared;

static uint64_t page_of(uint64_t step)
{
	return word_of(7, step, 0) % PAGES;
}

static void *work(void *argument)
{
	uint64_t self = (uintptr_t)argument, sum = 0;

	for (int round = 0; round < rounds; round++) {
		// Some come clean, and are written later.
		sum += *(volatile uint64_t *)(shared + page_of(round + 3) * PAGE);
		++((volatile uint64_t *)(shared + page_of(round) * PAGE))[self];
	}
	return (void *)(uintptr_t)(sum & 1);
}

// usage: shared [ROUNDS]
int main(int argc, char **argv)
{
	pthread_t threads[THREADS];
	// Small enough to be left to the kernel.
	static uint32_t visits[PAGES];

	if (argc > 1)
		rounds = atoi(argv[1]);
	shared = map(PAGES * PAGE);
	for (uintptr_t index = 0; index < THREADS; index++)
		CHECK(pthread_create(&threads[index], NULL, work, (void *)index) == 0);
	for (int index = 0; index < THREADS; index++)
		CHECK(pthread_join(threads[index], NULL) == 0);
	for (int round = 0; round < rounds; round++)
		visits[page_of(round)]++;
	for (uint64_t page = 0; page < PAGES; page++) {
		const uint64_t *words = (const uint64_t *)(shared + page * PAGE);

		for (int index = 0; index < THREADS; index++)
			CHECK(words[index] == visits[page]);
	}
	return done();
}
