// SPDX-License-Identifier: Apache-2.0 OR MIT
// Threads write pages of one another's neighbourhood, by themselves and through the
// kernel, while their neighbours leave DRAM and one thread makes its own unreadable.
#include "check.h"
#include <pthread.h>
#include <time.h>

#define PAGES (64 * MIB / PAGE)
#define WRITERS 3UL
// Of these in a row every other thread has one page, but for the last sixteen.
#define ROW 64UL
#define SHARED 48UL

static char *memory;
static uint32_t counts[PAGES];
static volatile int stop;

static uint32_t *word(size_t page, size_t index)
{
	return (uint32_t *)(memory + page * PAGE) + 8 + index;
}

static void *writes(void *argument)
{
	uintptr_t thread = (uintptr_t)argument;
	unsigned int state = thread + 1;
	int ends[2];

	CHECK(pipe(ends) == 0);
	while (!stop) {
		size_t page = rand_r(&state) % (PAGES / ROW) * ROW +
			      rand_r(&state) % (SHARED / WRITERS) * WRITERS + thread;
		uint32_t next = counts[page] + 1;

		CHECK(*word(page, 0) == counts[page] && *word(page, 1) == counts[page]);
		*word(page, 0) = next;
		CHECK(write(ends[1], &next, sizeof(next)) == sizeof(next));
		CHECK(read(ends[0], word(page, 1), sizeof(next)) == sizeof(next));
		counts[page] = next;
	}
	return NULL;
}

static void *hides(void *argument)
{
	unsigned int state = 99;

	(void)argument;
	while (!stop) {
		size_t row = rand_r(&state) % (PAGES / ROW) * ROW;
		char *start = memory + (row + SHARED) * PAGE;

		CHECK(mprotect(start, (ROW - SHARED) * PAGE, PROT_NONE) == 0);
		usleep(rand_r(&state) % 200);
		CHECK(mprotect(start, (ROW - SHARED) * PAGE, PROT_READ | PROT_WRITE) == 0);
		for (size_t page = row + SHARED; page < row + ROW; page++) {
			CHECK(*word(page, 0) == counts[page]);
			// Half of them stay clean for as long as they are in DRAM.
			if (page % 2)
				*word(page, 0) = ++counts[page];
		}
	}
	return NULL;
}

int main(int count, char **arguments)
{
	time_t end = time(NULL) + (count > 1 ? atoi(arguments[1]) : 1);
	pthread_t threads[WRITERS + 1];

	memory = map(PAGES * PAGE);
	for (size_t page = 0; page < PAGES; page++)
		for (int at = 0; at < 8; at++)
			*word(page, 100 * (at + 1)) = word_of(1, page, at);
	for (uintptr_t at = 0; at < WRITERS; at++)
		CHECK(pthread_create(&threads[at], NULL, writes, (void *)at) == 0);
	CHECK(pthread_create(&threads[WRITERS], NULL, hides, NULL) == 0);
	while (time(NULL) < end)
		usleep(10000);
	stop = 1;
	for (unsigned long at = 0; at <= WRITERS; at++)
		CHECK(pthread_join(threads[at], NULL) == 0);
	for (size_t page = 0; page < PAGES; page++) {
		CHECK(*word(page, 0) == counts[page]);
		for (int at = 0; at < 8; at++)
			CHECK(*word(page, 100 * (at + 1)) == (uint32_t)word_of(1, page, at));
	}
	return done();
}
