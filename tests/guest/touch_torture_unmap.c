// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Page tables that vanish under a fault: one thread reads what another maps, fills and
 * unmaps, in a gibibyte of its own, so that all of its tables go each time.
 */
#include "touch_torture.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#define GIB	(1ul << 30)
#define BYTES	(4 * HUGE)
/* Each for some epochs, so that pages of it are armed. */
#define ROUNDS	8
#define STAY_MS 80

static char *place;
static atomic_bool end_reader;
static atomic_ulong faults, reads;

static void *reader(void *unused)
{
	unsigned long seed = 11;

	(void)unused;
	while (!end_reader) {
		seed = seed * 6364136223846793005ul + 1442695040888963407ul;
		if (read_faults((unsigned long *)(place + (seed >> 33) % (BYTES / PAGE) * PAGE)))
			faults++;
		else
			reads++;
	}
	return NULL;
}

void test_unmap(void)
{
	char *slot =
		mmap(NULL, 2 * GIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	pthread_t thread;
	bool same = true;
	size_t i, round;

	CHECK(slot != MAP_FAILED, "a place of its own");
	if (slot == MAP_FAILED)
		return;
	place = (char *)(((unsigned long)slot + GIB - 1) & ~(GIB - 1));
	munmap(slot, 2 * GIB);
	end_reader = false;
	CHECK(!pthread_create(&thread, NULL, reader, NULL), "a reader");
	for (round = 0; round < ROUNDS; round++) {
		unsigned long *word =
			mmap(place, BYTES, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

		CHECK(word == (unsigned long *)place, "mapped again");
		if (word != (unsigned long *)place)
			break;
		/* Huge pages and others in turn. */
		madvise(word, BYTES, round % 2 ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
		for (i = 0; i < BYTES / sizeof(*word); i += WORDS)
			word[i] = i;
		nap(STAY_MS);
		for (i = 0; i < BYTES / sizeof(*word); i += WORDS)
			same &= word[i] == i;
		munmap(word, BYTES);
	}
	end_reader = true;
	pthread_join(thread, NULL);
	CHECK(same, "what is unmapped at last was right until then");
	CHECK(faults && reads, "the reader met both what is there and what is not");
}
