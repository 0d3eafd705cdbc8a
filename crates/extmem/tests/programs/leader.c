// SPDX-License-Identifier: Apache-2.0 OR MIT
// The first thread ends before the others: the process goes on by another thread's number. That
// one has a small stack.
#include "check.h"
#include <pthread.h>
#include <sys/uio.h>

#define PAGES (40 * MIB / PAGE)
#define STACK (32 * 1024)

static char *memory;
static pthread_t first;

static void *work(void *unused)
{
	int file = memfd_create("leader", 0);
	char *there = malloc(2 * PAGE);

	CHECK(file >= 0 && there && pthread_join(first, NULL) == 0);
	for (uint64_t step = 0; step < 600; step++) {
		uint64_t pages[2] = { word_of(7, step, 0) % PAGES, word_of(7, step, 1) % PAGES };
		struct iovec from[2] = { { memory + pages[0] * PAGE, PAGE },
					 { memory + pages[1] * PAGE, PAGE } };

		CHECK(pwritev(file, from, 2, 0) == 2 * PAGE);
		CHECK(pread(file, there, 2 * PAGE, 0) == 2 * PAGE);
		CHECK(holds(there, pages[0], 1, 1) && holds(there + PAGE, pages[1], 1, 1));
		// And into what is out: the same again.
		CHECK(preadv(file, from, 2, 0) == 2 * PAGE);
	}
	CHECK(holds(memory, 0, PAGES, 1));
	exit(done());
	return unused;
}

int main(void)
{
	pthread_attr_t small;
	pthread_t thread;

	memory = map(PAGES * PAGE);
	fill(memory, 0, PAGES, 1);
	first = pthread_self();
	CHECK(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, STACK) == 0);
	CHECK(pthread_create(&thread, &small, work, NULL) == 0);
	pthread_exit(NULL);
}
