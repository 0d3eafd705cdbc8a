// SPDX-License-Identifier: Apache-2.0 OR MIT
// Threads that come and go, allocate, free, and share memory that does not fit.
#include "check.h"
#include <pthread.h>

#define PAGES (32 * MIB / PAGE)
#define THREADS 4

static int rounds = 3000;
static char *shared;
static pthread_mutex_t *mutex;
static uint64_t *counter;

static void *work(void *argument)
{
	uint64_t self = (uintptr_t)argument, state = self + 1;

	for (int round = 0; round < rounds; round++) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		uint64_t page = state % (PAGES / THREADS) * THREADS + self;

		CHECK(holds(shared + page * PAGE, page, 1, 1));
		// Somebody else's page: read only.
		page = state % PAGES;
		CHECK(*(volatile uint64_t *)(shared + page * PAGE) == word_of(1, page, 0));
		if (round % 64 == 0) {
			char *own = malloc(300000);

			CHECK(own);
			memset(own, round, 300000);
			CHECK(own[299999] == (char)round);
			free(own);
			pthread_mutex_lock(mutex);
			++*counter;
			pthread_mutex_unlock(mutex);
		}
	}
	return NULL;
}

static void *brief(void *argument)
{
	uint64_t page = (uintptr_t)argument;

	CHECK(holds(shared + page * PAGE, page, 1, 1));
	return NULL;
}

// usage: threads [ROUNDS]
int main(int argc, char **argv)
{
	pthread_t threads[THREADS];

	if (argc > 1)
		rounds = atoi(argv[1]);

	shared = map(PAGES * PAGE);
	// Lock and counter live in pages that come and go.
	mutex = (pthread_mutex_t *)map(MIB);
	counter = (uint64_t *)((char *)mutex + 3 * PAGE);
	pthread_mutex_init(mutex, NULL);
	fill(shared, 0, PAGES, 1);
	for (uintptr_t index = 0; index < THREADS; index++)
		CHECK(pthread_create(&threads[index], NULL, work, (void *)index) == 0);
	for (int index = 0; index < THREADS; index++)
		CHECK(pthread_join(threads[index], NULL) == 0);
	CHECK(*counter == THREADS * (((uint64_t)rounds + 63) / 64));
	for (uintptr_t index = 0; index < 300; index++) {
		CHECK(pthread_create(&threads[0], NULL, brief, (void *)(index * 27)) == 0);
		CHECK(pthread_join(threads[0], NULL) == 0);
	}
	return done();
}
