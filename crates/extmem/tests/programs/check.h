// SPDX-License-Identifier: Apache-2.0 OR MIT
// Memory whose every byte can be told, and the one line a test program ends with.
#pragma once
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096UL
#define MIB (1UL << 20)

#define CHECK(condition)                                                        \
	do {                                                                    \
		if (!(condition)) {                                             \
			fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__,     \
				__LINE__, #condition, errno);                   \
			_exit(1);                                               \
		}                                                               \
	} while (0)

static inline uint64_t word_of(uint64_t seed, uint64_t page, uint64_t index)
{
	uint64_t x = seed * 0x9E3779B97F4A7C15UL + page * 0xBF58476D1CE4E5B9UL + index + 1;

	x ^= x >> 30;
	x *= 0xBF58476D1CE4E5B9UL;
	x ^= x >> 27;
	x *= 0x94D049BB133111EBUL;
	return x ^ (x >> 31);
}

// Fills pages; what a page holds depends on the seed and its number alone.
static inline void fill(void *memory, uint64_t first, uint64_t pages, uint64_t seed)
{
	for (uint64_t page = 0; page < pages; page++) {
		uint64_t *words = (uint64_t *)((char *)memory + page * PAGE);

		for (int index = 0; index < 512; index++)
			words[index] = word_of(seed, first + page, index);
	}
}

static inline int holds(const void *memory, uint64_t first, uint64_t pages, uint64_t seed)
{
	for (uint64_t page = 0; page < pages; page++) {
		const volatile uint64_t *words =
			(const uint64_t *)((const char *)memory + page * PAGE);

		for (int index = 0; index < 512; index++) {
			if (words[index] != word_of(seed, first + page, index)) {
				fprintf(stderr, "page %lu word %d at %p: %lx\n",
					(unsigned long)(first + page), index,
					(void *)&words[index], (unsigned long)words[index]);
				return 0;
			}
		}
	}
	return 1;
}

static inline int is_zero(const void *memory, uint64_t pages)
{
	const volatile uint64_t *words = memory;

	for (uint64_t index = 0; index < pages * 512; index++)
		if (words[index])
			return 0;
	return 1;
}

static inline void *map(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(memory != MAP_FAILED);
	return memory;
}

// Pushes everything else out of DRAM: 48 MiB against the tests' 24.
static inline void evict_the_rest(void)
{
	static void *ballast;

	if (!ballast)
		ballast = map(48 * MIB);
	fill(ballast, 0, 48 * MIB / PAGE, 99);
}

static inline int done(void)
{
	puts("ok");
	return 0;
}
