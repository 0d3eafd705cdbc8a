// SPDX-License-Identifier: Apache-2.0 OR MIT
// Two threads protect the same memory at once: it is as one of them wants it, all of it, and
// what swap is promised is not lost.
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>

#define RESERVE	   (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)
#define READ_WRITE (PROT_READ | PROT_WRITE)

static char *place;
static size_t place_bytes;
static int wanted;
static atomic_int over, turn, done_with;
static sigjmp_buf back;

static void on_segv(int signal)
{
	(void)signal;
	siglongjmp(back, 1);
}

static int faults(volatile char *address)
{
	if (sigsetjmp(back, 1))
		return 1;
	(void)*address;
	return 0;
}

// Ends as it began, accessible or not.
static void protect(int protection)
{
	for (int step = 0; step < 101; step++)
		CHECK(mprotect(place, place_bytes, step % 2 ? READ_WRITE - protection : protection) == 0);
}

static void *protect_too(void *argument)
{
	for (int seen = 0;; done_with = seen) {
		while (turn == seen)
			sched_yield();
		seen = turn;
		if (over)
			return argument;
		protect(wanted);
	}
}

static void protect_twice(int ours, int other)
{
	wanted = other;
	turn++;
	protect(ours);
	while (done_with != turn)
		sched_yield();
}

// usage: protect [MIB that can be promised]
int main(int argc, char **argv)
{
	size_t most = (argc > 1 ? (size_t)atol(argv[1]) : 64) * MIB;
	struct sigaction action = { .sa_handler = on_segv };
	pthread_t other;

	alarm(120);
	CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
	CHECK(pthread_create(&other, NULL, protect_too, NULL) == 0);
	place_bytes = 8 * MIB;
	for (int round = 0; round < 100; round++) {
		place = mmap(NULL, place_bytes, PROT_NONE, RESERVE, -1, 0);
		CHECK(place != MAP_FAILED);
		protect_twice(round & 1 ? READ_WRITE : PROT_NONE, round & 2 ? READ_WRITE : PROT_NONE);
		int first = faults(place);

		for (size_t at = 0; at < place_bytes; at += place_bytes / 8)
			CHECK(faults(place + at) == first);
		CHECK(faults(place + place_bytes - 1) == first);
		CHECK(munmap(place, place_bytes) == 0);
	}
	char *all = map(most);

	CHECK(munmap(all, most) == 0);
	over = 1;
	turn++;
	CHECK(pthread_join(other, NULL) == 0);
	return done();
}
