// SPDX-License-Identifier: Apache-2.0 OR MIT
// Threads write to pages all the time, also while those leave DRAM, and while children of
// forks have the same pages: no word may be lost between the moment that a page is taken hold
// of and the moment that it is unmapped.
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

#define PAGES (40 * MIB / PAGE)
// What all of them write to; the rest drives these pages out.
#define SHARED (12 * MIB / PAGE)
#define FORKS 150

static char *memory;
static atomic_int working = 1;
// Small enough to be left to the kernel.
static uint32_t in_turn[SHARED], at_random[SHARED];

static void add(uint64_t page, int index, uint32_t *counts)
{
	++((volatile uint64_t *)(memory + page * PAGE))[index];
	counts[page]++;
}

// Each page every few dozen microseconds.
static void *walk(void *unused)
{
	while (working)
		for (uint64_t page = 0; page < SHARED; page++)
			add(page, 0, in_turn);
	return unused;
}

// Many pages not at all between two forks.
static void *jump(void *unused)
{
	for (uint64_t step = 0; working; step++) {
		add(SHARED / 2 + word_of(3, step, 0) % (SHARED / 2), 1, at_random);
		for (volatile int pause = 0; pause < 1000; pause++)
			;
	}
	return unused;
}

static void *push(void *unused)
{
	for (uint64_t step = 0; working; step++)
		memory[(SHARED + word_of(5, step, 0) % (PAGES - SHARED)) * PAGE + 8] = 7;
	return unused;
}

int main(int argc, char **argv)
{
	void *(*const works[])(void *) = { jump, push, argc > 1 ? walk : push };
	pthread_t threads[3];

	(void)argv;
	memory = map(PAGES * PAGE);
	fill(memory, 0, PAGES, 1);
	for (int index = 0; index < 3; index++)
		CHECK(pthread_create(&threads[index], NULL, works[index], NULL) == 0);
	for (int forks = 0; forks < FORKS; forks++) {
		pid_t child = fork();
		int status;

		CHECK(child >= 0);
		if (!child) {
			usleep(8000);
			_exit(0);
		}
		usleep(4000);
		CHECK(waitpid(child, &status, 0) == child && status == 0);
	}
	working = 0;
	for (int index = 0; index < 3; index++)
		CHECK(pthread_join(threads[index], NULL) == 0);
	for (uint64_t page = 0; page < SHARED; page++)
		for (int index = 0; index < 512; index++) {
			uint64_t more = index == 0 ? in_turn[page] :
					index == 1 ? at_random[page] : 0;
			uint64_t word = ((volatile uint64_t *)(memory + page * PAGE))[index];

			CHECK(word == word_of(1, page, index) + more);
		}
	return done();
}
