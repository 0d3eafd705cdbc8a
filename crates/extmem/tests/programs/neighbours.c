// SPDX-License-Identifier: Apache-2.0 OR MIT
// One thread moves evicted mappings about while others walk through new ones, which
// may come to lie right below the place where a mapping is just being moved to.
#include "check.h"
#include <pthread.h>
#include <time.h>

#define MAPPINGS 300
#define PAGES 43UL
#define MOST_PAGES 80

static volatile int stop;

// A word a page, so that most of the time goes into moving.
static uint64_t *word(char *mapping, size_t page)
{
	return (uint64_t *)(mapping + page * PAGE);
}

static void *walk(void *argument)
{
	unsigned int state = (uintptr_t)argument;

	while (!stop) {
		size_t pages = 33 + rand_r(&state) % 40;
		volatile char *memory = map(pages * PAGE);

		for (size_t page = 0; page < pages; page++)
			memory[page * PAGE] = 1;
		CHECK(munmap((void *)memory, pages * PAGE) == 0);
	}
	return NULL;
}

int main(int count, char **arguments)
{
	static char *mappings[MAPPINGS];
	static size_t pages[MAPPINGS];
	time_t end = time(NULL) + (count > 1 ? atoi(arguments[1]) : 1);
	pthread_t threads[2];
	unsigned int state = 7;

	for (int at = 0; at < MAPPINGS; at++) {
		pages[at] = PAGES;
		mappings[at] = map(PAGES * PAGE);
		for (size_t page = 0; page < PAGES; page++)
			*word(mappings[at], page) = word_of(at, page, 0);
	}
	for (uintptr_t at = 0; at < 2; at++)
		CHECK(pthread_create(&threads[at], NULL, walk, (void *)(at + 1)) == 0);
	while (time(NULL) < end) {
		int at = rand_r(&state) % MAPPINGS;
		size_t next = pages[at] > MOST_PAGES ? PAGES : pages[at] + 1 + rand_r(&state) % 20;

		mappings[at] = mremap(mappings[at], pages[at] * PAGE, next * PAGE, MREMAP_MAYMOVE);
		CHECK(mappings[at] != MAP_FAILED);
		pages[at] = next;
		for (size_t page = 0; page < next; page++)
			CHECK(*word(mappings[at], page) ==
			      (page < PAGES ? word_of(at, page, 0) : 0));
	}
	stop = 1;
	for (int at = 0; at < 2; at++)
		CHECK(pthread_join(threads[at], NULL) == 0);
	return done();
}
