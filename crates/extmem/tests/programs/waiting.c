// SPDX-License-Identifier: Apache-2.0 OR MIT
// Threads wait in read() for data that does not come, each with a large buffer, together with
// more than all of DRAM; the others go on, and what comes in the end is whole.
#include "check.h"
#include <pthread.h>

#define THREADS 160
#define BYTES (256UL << 10)

static int pipes[THREADS][2];
static char *buffers[THREADS];

static void *wait_for_data(void *argument)
{
	uintptr_t self = (uintptr_t)argument;
	size_t have = 0;

	while (have < PAGE) {
		ssize_t got = read(pipes[self][0], buffers[self] + have, BYTES - have);

		CHECK(got > 0);
		have += got;
	}
	CHECK(holds(buffers[self], self, 1, 5));
	return NULL;
}

int main(void)
{
	pthread_t threads[THREADS];
	uint64_t page[512];
	char *own;

	// In place of waiting for ever.
	alarm(120);
	for (uintptr_t index = 0; index < THREADS; index++) {
		CHECK(pipe(pipes[index]) == 0);
		buffers[index] = map(BYTES);
		fill(buffers[index], 0, BYTES / PAGE, 2);
	}
	for (uintptr_t index = 0; index < THREADS; index++)
		CHECK(pthread_create(&threads[index], NULL, wait_for_data, (void *)index) == 0);
	own = map(48 * MIB);
	for (int round = 0; round < 2; round++) {
		fill(own, 0, 48 * MIB / PAGE, round);
		CHECK(holds(own, 0, 48 * MIB / PAGE, round));
	}
	for (uintptr_t index = 0; index < THREADS; index++) {
		fill(page, index, 1, 5);
		CHECK(write(pipes[index][1], page, PAGE) == (ssize_t)PAGE);
	}
	for (int index = 0; index < THREADS; index++)
		CHECK(pthread_join(threads[index], NULL) == 0);
	return done();
}
