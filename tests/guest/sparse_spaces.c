// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Large sparse address spaces for little memory: each of many processes maps so
 * many GiB and writes to one 4 KiB page in each of so many places; once all have,
 * they read a few hot ones of their places for a while, side by side.
 *
 * usage: sparse_spaces PROCESSES GIB_EACH PLACES_EACH HOT_EACH ROUNDS
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t random_next(uint64_t *state)
{
	uint64_t z = (*state += 0x9e3779b97f4a7c15ULL);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
	return z ^ (z >> 31);
}

static size_t place(uint64_t seed, uint64_t i, size_t bytes)
{
	uint64_t state = seed * 0x100000001b3ULL + i;

	return random_next(&state) % bytes & ~(size_t)4095;
}

/* Tell the parent, and wait until it closes its end. */
static void wait_for_all(const int ready[2], const int go[2])
{
	char byte = 0;

	close(go[1]);
	if (write(ready[1], &byte, 1) != 1 || read(go[0], &byte, 1) < 0)
		perror("sparse_spaces: pipe");
}

static int one(uint64_t seed, const uint64_t number[5], const int ready[2], const int go[2])
{
	uint64_t places = number[2], hot = number[3], rounds = number[4];
	size_t bytes = number[1] << 30;
	volatile char *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uint64_t state = seed, i;

	if (map == MAP_FAILED) {
		perror("sparse_spaces: mmap");
		return 1;
	}
	madvise((void *)map, bytes, MADV_NOHUGEPAGE);
	for (i = 0; i < places; i++)
		map[place(seed, i, bytes)] = 1;
	wait_for_all(ready, go);
	for (i = 0; i < rounds; i++) {
		uint64_t pick = random_next(&state);

		pick = pick % 10 ? pick % hot : pick % places;
		(void)map[place(seed, pick, bytes) + random_next(&state) % 4096];
	}
	return 0;
}

int main(int argc, char **argv)
{
	uint64_t number[5];
	int i, status, failed = 0, ready[2], go[2];
	char byte;

	if (argc != 6) {
		fprintf(stderr,
			"usage: sparse_spaces PROCESSES GIB_EACH PLACES_EACH HOT_EACH ROUNDS\n");
		return 2;
	}
	for (i = 0; i < 5; i++)
		number[i] = strtoull(argv[i + 1], NULL, 10);
	if (!number[2] || !number[3] || pipe(ready) || pipe(go))
		return 2;
	for (i = 0; i < (int)number[0]; i++) {
		pid_t child = fork();

		if (child < 0) {
			perror("sparse_spaces: fork");
			failed = 1;
		} else if (!child) {
			_exit(one(i + 1, number, ready, go));
		}
	}
	/* One that failed keeps nobody waiting: it closed its end. */
	close(ready[1]);
	for (i = 0; i < (int)number[0] && read(ready[0], &byte, 1) == 1; i++)
		;
	close(go[1]);
	while (wait(&status) > 0)
		failed |= status != 0;
	return failed;
}
