// SPDX-License-Identifier: Apache-2.0 OR MIT
// Mappings at exact places by several threads at once, and over what is only reserved: each
// place has one owner, what is given back can be had again, and a refusal changes nothing.
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#define PART	   48UL
#define PART_BYTES (PART * PAGE)
#define PRIVATE	   (MAP_PRIVATE | MAP_ANONYMOUS)
#define RESERVE	   (PRIVATE | MAP_NORESERVE)
#define READ_WRITE (PROT_READ | PROT_WRITE)
#define GIB	   (1UL << 30)

static char *place;
static size_t place_bytes;
static atomic_int over, turn, gone;

// A file's mapping over reserved space that nothing was mapped in before.
static void a_file_over_reserved_space(void)
{
	char *whole = mmap(NULL, 64 * MIB, PROT_NONE, RESERVE, -1, 0);
	char *part = (char *)(((uintptr_t)whole + 4 * MIB - 1) & ~(4 * MIB - 1));
	int file = memfd_create("exact", 0);

	CHECK(whole != MAP_FAILED && file >= 0 && ftruncate(file, 8 * MIB) == 0);
	for (int round = 0; round < 3; round++) {
		CHECK(mmap(part, 8 * MIB, READ_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == part);
		fill(part, 0, 8, 3);
		CHECK(munmap(part, 8 * MIB) == 0);
		CHECK(mmap(part, 8 * MIB, READ_WRITE, PRIVATE | MAP_FIXED, -1, 0) == part);
		CHECK(is_zero(part, 8));
		CHECK(mmap(part, 8 * MIB, READ_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == part);
		CHECK(holds(part, 0, 8, 3));
		CHECK(mmap(part, 8 * MIB, PROT_NONE, RESERVE | MAP_FIXED, -1, 0) == part);
	}
	CHECK(munmap(whole, 64 * MIB) == 0);
	CHECK(close(file) == 0);
}

static void *unmap_too(void *argument)
{
	for (int seen = 0;; gone = 1) {
		while (turn == seen)
			sched_yield();
		seen = turn;
		if (over)
			return argument;
		munmap(place, place_bytes);
	}
}

// Two threads give the same reservation back; it is given out once.
static void a_reservation_given_back_twice(void)
{
	enum { PIECES = 8 };
	char *pieces[PIECES];
	size_t bytes = 512 * GIB / PIECES;
	pthread_t other;

	over = turn = 0;
	place_bytes = 512 * GIB;
	CHECK(pthread_create(&other, NULL, unmap_too, NULL) == 0);
	for (int round = 0; round < 1000; round++) {
		place = mmap(NULL, place_bytes, PROT_NONE, RESERVE, -1, 0);
		CHECK(place != MAP_FAILED);
		gone = 0;
		turn++;
		munmap(place, place_bytes);
		while (!gone)
			sched_yield();
		for (int piece = 0; piece < PIECES; piece++) {
			char *own = mmap(NULL, bytes, PROT_NONE, RESERVE, -1, 0);

			CHECK(own != MAP_FAILED);
			for (int before = 0; before < piece; before++)
				CHECK(own + bytes <= pieces[before] ||
				      pieces[before] + bytes <= own);
			pieces[piece] = own;
		}
		for (int piece = 0; piece < PIECES; piece++)
			CHECK(munmap(pieces[piece], bytes) == 0);
	}
	over = 1;
	turn++;
	CHECK(pthread_join(other, NULL) == 0);
}

static void *replace(void *argument)
{
	int protection = argument ? PROT_NONE : READ_WRITE;

	for (int round = 0; round < 3000; round++) {
		CHECK(mmap(place, PART_BYTES, protection, PRIVATE | MAP_FIXED, -1, 0) == place);
		// Not in place: what is there goes, and its promise with it.
		CHECK(mmap(place, PART_BYTES, READ_WRITE, PRIVATE | MAP_FIXED, -1, 0) == place);
	}
	over++;
	return NULL;
}

static void *settle(void *argument)
{
	while (over < 2) {
		char *own = map(PART_BYTES);

		CHECK(own + PART_BYTES <= place || place + PART_BYTES <= own);
		CHECK(munmap(own, PART_BYTES) == 0);
	}
	return argument;
}

// Two threads replace one mapping: neither is refused, nobody else gets the place, and no
// promise is lost (all of the swap can be promised afterwards).
static void a_place_replaced_twice(size_t most)
{
	pthread_t threads[3];
	char *whole = map(3 * PART_BYTES), *all;

	over = 0;
	place = whole + PART_BYTES;
	CHECK(pthread_create(&threads[0], NULL, replace, NULL) == 0);
	CHECK(pthread_create(&threads[1], NULL, replace, "none") == 0);
	CHECK(pthread_create(&threads[2], NULL, settle, NULL) == 0);
	for (int index = 0; index < 3; index++)
		CHECK(pthread_join(threads[index], NULL) == 0);
	CHECK(munmap(whole, 3 * PART_BYTES) == 0);
	all = map(most);
	CHECK(munmap(all, most) == 0);
}

static void *touch(void *argument)
{
	volatile char *bytes = place;

	for (size_t page = 0; !over; page = (page + 1) % PART)
		bytes[page * PAGE] = 1;
	return argument;
}

// Memory that may be written before as after may be written all the time.
static void replaced_under_a_writer(void)
{
	pthread_t writer;

	over = 0;
	place = map(PART_BYTES);
	CHECK(pthread_create(&writer, NULL, touch, NULL) == 0);
	for (int round = 0; round < 5000; round++)
		CHECK(mmap(place, PART_BYTES, READ_WRITE, PRIVATE | MAP_FIXED, -1, 0) == place);
	over = 1;
	CHECK(pthread_join(writer, NULL) == 0);
	fill(place, 0, PART, 4);
	CHECK(mmap(place, PART_BYTES, PROT_READ, PRIVATE | MAP_FIXED, -1, 0) == place);
	CHECK(is_zero(place, PART));
	CHECK(munmap(place, PART_BYTES) == 0);
}

// What swap has no room for is refused, and what was there before still is.
static void refused_and_kept(void)
{
	char *whole = mmap(NULL, 64 * GIB, PROT_NONE, RESERVE, -1, 0), *other;

	CHECK(whole != MAP_FAILED);
	CHECK(mprotect(whole, 8 * PAGE, READ_WRITE) == 0);
	fill(whole, 0, 8, 2);
	CHECK(mmap(whole, 64 * GIB, READ_WRITE, PRIVATE | MAP_FIXED, -1, 0) == MAP_FAILED);
	CHECK(errno == ENOMEM);
	CHECK(holds(whole, 0, 8, 2));
	other = map(64 * MIB);
	CHECK(other + 64 * MIB <= whole || whole + 64 * GIB <= other);
	CHECK(munmap(other, 64 * MIB) == 0 && munmap(whole, 64 * GIB) == 0);
}

// usage: exact [MIB that can be promised [CASE]]
int main(int argc, char **argv)
{
	size_t most = (argc > 1 ? (size_t)atol(argv[1]) : 64) * MIB;
	int only = argc > 2 ? atoi(argv[2]) : 0;

	if (!only || only == 1)
		a_file_over_reserved_space();
	if (!only || only == 2)
		a_reservation_given_back_twice();
	if (!only || only == 3)
		a_place_replaced_twice(most);
	// Without a pager the kernel may promise anything.
	if (argc > 1 && (!only || only == 4))
		refused_and_kept();
	if (!only || only == 5)
		replaced_under_a_writer();
	return done();
}
