// SPDX-License-Identifier: Apache-2.0 OR MIT
// Mappings at exact places, beside threads that map wherever there is room. What is replaced is
// never free in between; a place that another thread has just been given is refused, and what
// that thread has there is left alone.
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>

#define PART	   48UL
#define PART_BYTES (PART * PAGE)
#define SETTLERS   3
#define PRIVATE	   (MAP_PRIVATE | MAP_ANONYMOUS)

static int rounds = 400;
static atomic_int over;

// Takes the first room that there is, uses it, and gives it back.
static void *settle(void *argument)
{
	uint64_t self = (uintptr_t)argument;

	while (!over) {
		char *own = map(PART_BYTES);

		fill(own, 0, 2, self);
		fill(own + (PART - 1) * PAGE, PART - 1, 1, self);
		CHECK(holds(own, 0, 2, self));
		CHECK(holds(own + (PART - 1) * PAGE, PART - 1, 1, self));
		CHECK(munmap(own, PART_BYTES) == 0);
	}
	return NULL;
}

static void replace_by_zeroes(char *part)
{
	CHECK(mmap(part, PART_BYTES, PROT_READ | PROT_WRITE, PRIVATE | MAP_FIXED, -1, 0) == part);
	CHECK(is_zero(part, PART));
	fill(part, 0, PART, 5);
}

static void replace_by_nothing(char *part)
{
	CHECK(mmap(part, PART_BYTES, PROT_NONE, PRIVATE | MAP_FIXED, -1, 0) == part);
	CHECK(mprotect(part, PART_BYTES, PROT_READ | PROT_WRITE) == 0);
	fill(part, 0, PART, 5);
}

static void replace_by_shared(char *part)
{
	CHECK(mmap(part, PART_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED,
		   -1, 0) == part);
	CHECK(is_zero(part, PART));
	replace_by_zeroes(part);
}

static void replace_by_moved(char *part)
{
	char *own = map(PART_BYTES);

	fill(own, 0, PART, 6);
	CHECK(mremap(own, PART_BYTES, PART_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, part) == part);
	CHECK(holds(part, 0, PART, 6));
	fill(part, 0, PART, 5);
}

// A mapping that the pager does not manage comes to lie there.
static void replace_by_foreign(char *part)
{
	char *own =
		mmap(NULL, PART_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(own != MAP_FAILED);
	fill(own, 0, PART, 6);
	CHECK(mremap(own, PART_BYTES, PART_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, part) == part);
	CHECK(holds(part, 0, PART, 6));
	replace_by_zeroes(part);
}

// The part may go to another thread, until that gives it back.
static void leave_and_return(char *part)
{
	void *found;

	CHECK(munmap(part, PART_BYTES) == 0);
	do {
		found = mmap(part, PART_BYTES, PROT_READ | PROT_WRITE,
			     PRIVATE | MAP_FIXED_NOREPLACE, -1, 0);
		CHECK(found == part || (found == MAP_FAILED && errno == EEXIST));
	} while (found != part);
	CHECK(is_zero(part, PART));
	fill(part, 0, PART, 5);
}

// usage: places [ROUNDS]
int main(int argc, char **argv)
{
	void (*const ways[])(char *) = { replace_by_zeroes, replace_by_nothing, replace_by_shared,
					 replace_by_moved,  replace_by_foreign, leave_and_return };
	pthread_t settlers[SETTLERS];
	// The lowest mapping: a hole in it is the first that is found.
	char *whole = map(3 * PART_BYTES);

	if (argc > 1)
		rounds = atoi(argv[1]);
	fill(whole, 0, PART, 1);
	fill(whole + 2 * PART_BYTES, 2 * PART, PART, 1);
	for (uintptr_t index = 0; index < SETTLERS; index++)
		CHECK(pthread_create(&settlers[index], NULL, settle, (void *)index) == 0);
	for (int round = 0; round < rounds; round++) {
		for (size_t way = 0; way < sizeof(ways) / sizeof(*ways); way++) {
			ways[way](whole + PART_BYTES);
			CHECK(holds(whole + PART_BYTES, 0, PART, 5));
		}
		CHECK(holds(whole, 0, PART, 1));
		CHECK(holds(whole + 2 * PART_BYTES, 2 * PART, PART, 1));
	}
	over = 1;
	for (int index = 0; index < SETTLERS; index++)
		CHECK(pthread_join(settlers[index], NULL) == 0);
	return done();
}
