// SPDX-License-Identifier: Apache-2.0 OR MIT
// Address space that is not used: reservations promise nothing and cost nothing, and what is
// made accessible of them is paged; memory that is mapped costs nothing until it is touched.
#include "check.h"
#include <signal.h>
#include <stdbool.h>
#include <sys/time.h>
#include <sys/wait.h>

#define GIB (1UL << 30)
#define TIB (1UL << 40)

static char *reserve(size_t bytes, void *hint)
{
	return mmap(hint, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

static long resident_pages(void)
{
	long size, resident;
	FILE *file = fopen("/proc/self/statm", "r");

	CHECK(file && fscanf(file, "%ld %ld", &size, &resident) == 2);
	fclose(file);
	return resident;
}

// Some of a reservation by mprotect, some by a mapping over it.
static void commit(char *at, bool over, uint64_t seed)
{
	if (over)
		CHECK(mmap(at, 20 * MIB, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
	else
		CHECK(mprotect(at, 20 * MIB, PROT_READ | PROT_WRITE) == 0);
	CHECK(is_zero(at, 4));
	fill(at, 0, 20 * MIB / PAGE, seed);
}

static volatile sig_atomic_t handled;

static void on_alarm(int signal)
{
	char *own = reserve(MIB, NULL);

	(void)signal;
	CHECK(own != MAP_FAILED && munmap(own, MIB) == 0);
	handled++;
}

// A handler reserves whatever it interrupts, and so does the child of a fork.
static void reserved_at_any_time(void)
{
	enum { HOLES = 3000 };
	struct sigaction action = { .sa_handler = on_alarm };
	struct itimerval timer = { { 0, 500 }, { 0, 500 } };
	static char *parts[2 * HOLES];

	// Many holes that are too small, so that it takes a while to find one that is not.
	for (int at = 0; at < 2 * HOLES; at++)
		CHECK((parts[at] = reserve(128 * 1024, NULL)) != MAP_FAILED);
	for (int at = 0; at < 2 * HOLES; at += 2)
		CHECK(munmap(parts[at], 128 * 1024) == 0);
	CHECK(sigaction(SIGVTALRM, &action, NULL) == 0);
	CHECK(setitimer(ITIMER_VIRTUAL, &timer, NULL) == 0);
	alarm(60);
	for (int round = 0; round < 100000 && handled < 100; round++) {
		char *own = reserve(MIB, NULL);

		CHECK(own != MAP_FAILED && munmap(own, MIB) == 0);
	}
	alarm(0);
	timer = (struct itimerval){ 0 };
	CHECK(setitimer(ITIMER_VIRTUAL, &timer, NULL) == 0);
	for (int at = 1; at < 2 * HOLES; at += 2)
		CHECK(munmap(parts[at], 128 * 1024) == 0);
}

// Memory that is mapped and not touched costs next to nothing: no word a page.
static void untouched(bool paged)
{
	enum { STEPS = 12 };
	const size_t bytes = 900 * MIB, step = bytes / STEPS;
	long before = resident_pages();
	char *large = map(bytes);

	// A word for each page would be 450 pages.
	CHECK(resident_pages() - before < 225);
	for (int at = 0; at < STEPS; at++) {
		CHECK(is_zero(large + at * step, 1));
		fill(large + at * step, 7, 2, at);
	}
	// What is protected, dropped or taken away in the midst of it is so, and nothing else.
	CHECK(mprotect(large + 10 * MIB + PAGE, 30 * MIB, PROT_READ) == 0);
	CHECK(is_zero(large + 20 * MIB, 3));
	CHECK(mprotect(large + 10 * MIB + PAGE, 30 * MIB, PROT_READ | PROT_WRITE) == 0);
	fill(large + 20 * MIB, 0, 3, 5);
	CHECK(madvise(large + 2 * step, 2 * step, MADV_DONTNEED) == 0);
	CHECK(munmap(large + 6 * step, step) == 0);
	CHECK(mprotect(large + 6 * step, PAGE, PROT_READ) == -1 && errno == ENOMEM);
	CHECK(mmap(large + 6 * step, step, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == large + 6 * step);
	pid_t child = fork();

	CHECK(child >= 0);
	for (int at = 0; at < STEPS; at++) {
		bool gone = at == 2 || at == 3 || at == 6;

		CHECK(gone ? is_zero(large + at * step, 9) : holds(large + at * step, 7, 2, at));
		CHECK(is_zero(large + at * step + 11 * MIB, 1));
	}
	CHECK(holds(large + 20 * MIB, 0, 3, 5));
	if (!child) {
		// What nobody has touched is paged in the child, too.
		fill(large + 8 * step + 12 * MIB, 0, 48 * MIB / PAGE, 3);
		if (paged)
			CHECK(resident_pages() < 40 * (long)(MIB / PAGE));
		CHECK(holds(large + 8 * step + 12 * MIB, 0, 48 * MIB / PAGE, 3));
		_exit(0);
	}
	int status;

	CHECK(waitpid(child, &status, 0) == child && status == 0);
	before = resident_pages();
	CHECK(munmap(large, bytes) == 0);
	// Nor does it get words by being taken away: more than what went with it.
	CHECK(resident_pages() < before);
}

int main(int count, char **arguments)
{
	bool paged = count > 1 && strcmp(arguments[1], "paged") == 0;
	long before;
	char *large;

	// The second time in the place of the first: all that was promised is given back.
	untouched(paged);
	untouched(paged);
	before = resident_pages();
	large = reserve(8 * TIB, NULL);

	CHECK(large != MAP_FAILED);
	// All of it at once, while it is nothing.
	CHECK(madvise(large, 8 * TIB, MADV_DONTNEED) == 0);
	CHECK(mprotect(large, 8 * TIB, PROT_NONE) == 0);
	CHECK(resident_pages() - before < 4096);
	// Not at block boundaries, and far apart.
	commit(large + 5 * PAGE, false, 1);
	commit(large + TIB - 3 * PAGE, true, 2);
	commit(large + 5 * TIB + 100 * MIB, false, 3);
	for (int round = 0; round < 2; round++) {
		CHECK(holds(large + 5 * PAGE, 0, 20 * MIB / PAGE, 1));
		CHECK(holds(large + TIB - 3 * PAGE, 0, 20 * MIB / PAGE, 2));
		CHECK(holds(large + 5 * TIB + 100 * MIB, 0, 20 * MIB / PAGE, 3));
	}
	if (paged)
		CHECK(resident_pages() - before < 40 * (long)(MIB / PAGE));
	pid_t child = fork();

	CHECK(child >= 0);
	if (!child) {
		CHECK(holds(large + TIB - 3 * PAGE, 0, 20 * MIB / PAGE, 2));
		commit(large + 7 * TIB, true, 4);
		CHECK(holds(large + 7 * TIB, 0, 20 * MIB / PAGE, 4));
		_exit(0);
	}
	int status;

	CHECK(waitpid(child, &status, 0) == child && status == 0);
	// Given back in pieces; the same places serve again.
	CHECK(munmap(large + TIB, 6 * TIB) == 0);
	CHECK(holds(large + 5 * PAGE, 0, 20 * MIB / PAGE, 1));
	CHECK(holds(large + TIB - 3 * PAGE, 0, 3, 2));
	CHECK(mprotect(large + 3 * TIB, PAGE, PROT_READ) == -1 && errno == ENOMEM);
	char *second = reserve(5 * TIB, NULL);

	CHECK(second != MAP_FAILED);
	commit(second + 4 * TIB, false, 5);
	CHECK(holds(second + 4 * TIB, 0, 20 * MIB / PAGE, 5));
	CHECK(munmap(second, 5 * TIB) == 0);
	CHECK(munmap(large, 8 * TIB) == 0);
	// Whoever wants an exact place gets it in the end: those who cannot live without try on.
	char *wish = (char *)0x200000000000UL, *got = NULL;

	for (int attempt = 0; attempt < 1000 && got != wish; attempt++) {
		if (got)
			CHECK(munmap(got, 16 * GIB) == 0);
		wish += 32 * GIB;
		got = reserve(16 * GIB, wish);
		CHECK(got != MAP_FAILED);
	}
	CHECK(got == wish);
	// More reservations than there is room for in any arena.
	for (int at = 0; at < 6; at++)
		CHECK(reserve(4 * TIB, NULL) != MAP_FAILED);
	// Nor for these: page numbers have 32 bits.
	CHECK(reserve(16 * TIB, NULL) != MAP_FAILED);
	CHECK(reserve(20 * TIB + PAGE, NULL) != MAP_FAILED);
	reserved_at_any_time();
	return done();
}
