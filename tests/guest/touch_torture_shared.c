// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Shared memory under "touch": all that takes pages away from those who map them (holes,
 * truncation, DONTNEED, PAGEOUT), and what else changes entries (COLLAPSE, mprotect,
 * mremap, a second and a private mapping). Another process adds nothing to its words
 * meanwhile, as the second thread does to private memory.
 */
#include "touch_torture.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES	     (4 * HUGE)
#define SHARED_WORDS (BYTES / sizeof(unsigned long))

/* What the two processes tell each other. */
struct told {
	atomic_bool pause, paused, end;
	atomic_ulong wrong;
};

static volatile unsigned long *shared;
static struct told *told;
static int fd;
static pid_t other;

static void *map_aligned(int object, size_t length, int flags)
{
	char *at = mmap(NULL, length + HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	at = (void *)(((unsigned long)at + HUGE - 1) & ~(HUGE - 1));
	if (mmap(at, length, PROT_READ | PROT_WRITE, flags | MAP_FIXED, object, 0) != at) {
		perror("mmap");
		exit(2);
	}
	madvise(at, length, MADV_HUGEPAGE);
	return at;
}

static void use_other(void)
{
	unsigned long seed = 11, done = 0;

	while (!told->end) {
		if (told->pause) {
			told->paused = true;
			nap(1);
			continue;
		}
		told->paused = false;
		if (!(++done % 512))
			nap(2);
		seed = seed * 6364136223846793005ul + 1442695040888963407ul;
		unsigned long at = (seed >> 33) % SHARED_WORDS;
		unsigned long was = __atomic_fetch_add(&shared[at], 0, __ATOMIC_RELAXED);

		if (was != at)
			told->wrong++;
	}
}

static void hold_other(bool hold)
{
	told->pause = hold;
	while (hold && !told->paused)
		nap(1);
}

void share(void)
{
	size_t i;

	fd = memfd_create("touch_torture", 0);
	if (fd < 0 || ftruncate(fd, BYTES)) {
		perror("memfd_create");
		exit(2);
	}
	shared = map_aligned(fd, BYTES, MAP_SHARED);
	told = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (i = 0; i < SHARED_WORDS; i++)
		shared[i] = i;
	other = fork();
	if (!other) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		use_other();
		_exit(0);
	}
	printf("shared with %d\n", other);
	fflush(stdout);
}

void unshare_all(void)
{
	int status;

	told->end = true;
	CHECK(waitpid(other, &status, 0) == other && !status, "the other process ends");
	CHECK(!told->wrong, "every word that the other process saw was right");
}

unsigned long *shared_twice(unsigned long **again)
{
	int object = memfd_create("touch_twice", 0);
	unsigned long *at;

	if (object < 0 || ftruncate(object, HUGE))
		return NULL;
	at = map_aligned(object, HUGE, MAP_SHARED);
	*again = map_aligned(object, HUGE, MAP_SHARED);
	close(object);
	return at;
}

static void verify_shared(const char *what)
{
	size_t i;

	for (i = 0; i < SHARED_WORDS; i++)
		if (shared[i] != i) {
			CHECK(false, what);
			shared[i] = i;
		}
}

/* [from, to) shall be zeros; then it is as before. */
static void refill(size_t from, size_t to, const char *what)
{
	bool zero = true;
	size_t i;

	for (i = from; i < to; i++) {
		zero &= !shared[i];
		shared[i] = i;
	}
	CHECK(zero, what);
}

static void test_holes(void)
{
	const size_t from = HUGE / 2 + 3 * PAGE, length = HUGE;

	hold_other(true);
	CHECK(!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, from, length), "a hole");
	refill(from / 8, (from + length) / 8, "a hole leaves nothing");
	nap(30);
	CHECK(!madvise((char *)shared + from, length, MADV_REMOVE), "REMOVE");
	refill(from / 8, (from + length) / 8, "REMOVE leaves nothing");
	hold_other(false);
	verify_shared("holes");
}

static void test_truncation(void)
{
	const size_t left = 2 * HUGE + 5 * PAGE;
	bool gone = true;
	size_t i;

	hold_other(true);
	nap(30);
	CHECK(!ftruncate(fd, left), "a shorter file");
	for (i = left / 8; i < SHARED_WORDS; i += 8 * WORDS)
		gone &= write_faults(shared + i);
	CHECK(gone, "behind the end there is nothing");
	CHECK(!ftruncate(fd, BYTES), "a longer file");
	refill(left / 8, SHARED_WORDS, "what was cut off is gone");
	hold_other(false);
	verify_shared("truncation");
}

static void test_protection(void)
{
	bool kept = true;
	size_t i;

	nap(30);
	mprotect((void *)shared, BYTES / 2, PROT_NONE);
	for (i = 0; i < SHARED_WORDS / 2; i += WORDS)
		kept &= write_faults(shared + i);
	CHECK(kept, "PROT_NONE holds over armed shared pages");
	mprotect((void *)shared, BYTES / 2, PROT_READ);
	nap(30);
	for (i = 0, kept = true; i < SHARED_WORDS / 2; i += WORDS)
		kept &= write_faults(shared + i);
	CHECK(kept, "PROT_READ holds over armed shared pages");
	mprotect((void *)shared, BYTES / 2, PROT_READ | PROT_WRITE);
	verify_shared("mprotect of shared memory");
}

static void test_mappings(void)
{
	volatile unsigned long *second = map_aligned(fd, BYTES, MAP_SHARED);
	volatile unsigned long *private = map_aligned(fd, BYTES, MAP_PRIVATE);
	char *to = mmap(NULL, HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	bool same = true, own = true;
	size_t i;

	for (i = 0; i < SHARED_WORDS; i += WORDS) {
		same &= second[i] == i && private[i] == i;
		if (!(i % (4 * WORDS)))
			private[i] = ~i;
	}
	nap(30);
	for (i = 0; i < SHARED_WORDS; i += 4 * WORDS) {
		same &= second[i] == i && shared[i] == i;
		own &= private[i] == ~i;
	}
	CHECK(same, "two mappings show the same");
	CHECK(own, "a private mapping has its own");
	CHECK(mremap((void *)second, HUGE / 2, HUGE / 2, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to,
	      "mremap of shared memory");
	for (i = 0, same = true; i < HUGE / 16; i++)
		same &= ((unsigned long *)to)[i] == i;
	CHECK(same, "what mremap moved of shared memory is the same");
	munmap(to, HUGE);
	munmap((void *)second, BYTES);
	munmap((void *)private, BYTES);
	verify_shared("other mappings");
}

void test_shared(unsigned int round)
{
	verify_shared("shared memory");
	test_holes();
	test_truncation();
	test_protection();
	madvise((char *)shared + HUGE, 2 * HUGE, round % 2 ? MADV_DONTNEED : MADV_PAGEOUT);
	verify_shared("DONTNEED and PAGEOUT of shared memory");
	if (round % 2)
		madvise((void *)shared, BYTES, MADV_COLLAPSE);
	verify_shared("COLLAPSE of shared memory");
	test_mappings();
}
