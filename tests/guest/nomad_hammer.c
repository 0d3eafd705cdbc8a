// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * usage: nomad_hammer MIB SECONDS
 * Loses no write while its pages move between the tiers and their old copies are kept.
 *
 * Each thread has a word of its own in every page, and notes what it last wrote there:
 * a stale copy that is mapped again shows the value before. Threads read a window of pages
 * that wanders through the memory, so that pages become hot and cold in turn, and write
 * few of them. The main thread meanwhile changes what writes depend on: fork, mprotect,
 * ptrace-like writes to what is read-only, O_DIRECT-like writes through the kernel, mremap,
 * madvise. Its own words are checked after each step.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE	  4096ul
#define THREADS	  3
/* Words of a page by who writes them; the last is the main thread's. */
#define MAIN	  THREADS
#define WINDOW	  1024ul
/* Pages at the end that only the main thread uses: they lose their mapping. */
#define OWN_PAGES 1024ul

static char *memory;
static size_t pages, shared_pages;
static atomic_bool end;
static atomic_int failures;
static atomic_ulong reads, writes;
static uint32_t *versions[THREADS + 1];

static volatile uint64_t *word(size_t page, int owner)
{
	/* Far apart, so that half a page that is stale shows. */
	return (volatile uint64_t *)(memory + page * PAGE + owner * 1024 + (page % 16) * 64);
}

static uint64_t value(size_t page, int owner)
{
	return ((uint64_t)page << 40) | ((uint64_t)owner << 32) | versions[owner][page];
}

static void put(size_t page, int owner)
{
	versions[owner][page]++;
	*word(page, owner) = value(page, owner);
}

static void check(size_t page, int owner, const char *step)
{
	uint64_t is = *word(page, owner);

	if (is != value(page, owner) && atomic_fetch_add(&failures, 1) < 20)
		printf("not ok - page %zu of thread %d after %s: %#lx in place of %#lx\n", page,
		       owner, step, is, value(page, owner));
}

static void fail(const char *step)
{
	if (atomic_fetch_add(&failures, 1) < 20)
		printf("not ok - %s (errno %d)\n", step, errno);
}

static void nap(long ms)
{
	struct timespec time = { 0, ms * 1000000 };

	nanosleep(&time, NULL);
}

static void *thread(void *arg)
{
	int owner = (int)(intptr_t)arg;
	unsigned long seed = 7 + owner, done = 0;
	size_t window = 0;

	while (!end) {
		size_t page;

		if (!(++done % 1000000))
			window = (window + WINDOW / 2) % (shared_pages - WINDOW);
		seed = seed * 6364136223846793005ul + 1442695040888963407ul;
		page = window + (seed >> 33) % WINDOW;
		check(page, owner, "its own writes");
		/* In one page of 16 often, in others hardly ever: those keep their shadows. */
		if (!(seed >> 60) && (page % 16 == 0 || !(seed >> 44 & 65535))) {
			put(page, owner);
			writes++;
		}
		if (!(done % 4096))
			reads += 4096;
	}
	return NULL;
}

static void check_all(size_t from, size_t to, const char *step)
{
	for (size_t page = from; page < to; page++)
		check(page, MAIN, step);
}

static void write_some(void)
{
	for (size_t page = rand() % 64; page < shared_pages; page += 64 + rand() % 64)
		put(page, MAIN);
}

static void test_fork(void)
{
	pid_t child = fork();
	int status;

	if (!child) {
		check_all(0, shared_pages, "fork, in the child");
		write_some();
		check_all(0, shared_pages, "writes of the child");
		_exit(failures != 0);
	}
	write_some();
	check_all(0, shared_pages, "fork, in the parent");
	if (waitpid(child, &status, 0) != child || status)
		fail("the child sees what is its own");
}

/* The kernel writes to pages that the program may not write to, as debuggers do. */
static void test_read_only(int mem)
{
	size_t page, from = shared_pages;

	check_all(from, pages, "reading");
	if (mprotect(memory + from * PAGE, OWN_PAGES * PAGE, PROT_READ))
		fail("mprotect to read-only");
	for (page = from; page < pages; page += 3) {
		uint64_t new;

		versions[MAIN][page]++;
		new = value(page, MAIN);
		if (pwrite(mem, &new, sizeof(new), (off_t)(uintptr_t)word(page, MAIN)) != 8)
			fail("write to read-only memory through /proc/self/mem");
	}
	nap(20);
	check_all(from, pages, "writes to read-only memory");
	if (mprotect(memory + from * PAGE, OWN_PAGES * PAGE, PROT_READ | PROT_WRITE))
		fail("mprotect to writable");
	nap(20);
	check_all(from, pages, "mprotect");
}

static void test_kernel_writes(void)
{
	for (size_t page = rand() % 32; page < shared_pages; page += 32) {
		uint64_t new;
		struct iovec here = { &new, sizeof(new) };
		struct iovec there = { (void *)word(page, MAIN), sizeof(new) };

		versions[MAIN][page]++;
		new = value(page, MAIN);
		if (process_vm_writev(getpid(), &here, 1, &there, 1, 0) != 8)
			fail("process_vm_writev");
	}
	check_all(0, shared_pages, "writes by the kernel");
}

static void test_unmap(unsigned int round)
{
	char *at = memory + shared_pages * PAGE, *to;
	size_t page;

	if (madvise(at, OWN_PAGES * PAGE / 2, round % 2 ? MADV_DONTNEED : MADV_FREE))
		fail("madvise");
	for (page = shared_pages; page < shared_pages + OWN_PAGES / 2; page++)
		put(page, MAIN);
	to = mmap(NULL, OWN_PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mremap(at, OWN_PAGES * PAGE, OWN_PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) !=
	    to) {
		fail("mremap");
		return;
	}
	nap(10);
	if (mremap(to, OWN_PAGES * PAGE, OWN_PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at) != at)
		fail("mremap back");
	check_all(shared_pages, pages, "mremap");
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];
	unsigned int round = 0;
	time_t until;
	int mem;

	if (argc != 4 || atol(argv[1]) < 16) {
		fprintf(stderr, "usage: nomad_hammer MIB SECONDS QUIET_MS, with at least 16 MIB\n");
		return 2;
	}
	pages = ((size_t)atol(argv[1]) << 20) / PAGE;
	shared_pages = pages - OWN_PAGES;
	memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		      0);
	mem = open("/proc/self/mem", O_RDWR);
	if (memory == MAP_FAILED || mem < 0) {
		perror("memory");
		return 2;
	}
	for (int owner = 0; owner <= MAIN; owner++) {
		versions[owner] = calloc(pages, sizeof(*versions[owner]));
		if (!versions[owner])
			return 2;
		for (size_t page = 0; page < pages; page++)
			put(page, owner);
	}
	for (intptr_t owner = 0; owner < THREADS; owner++)
		pthread_create(&threads[owner], NULL, thread, (void *)owner);
	until = time(NULL) + atol(argv[2]);
	while (time(NULL) < until || round < 2) {
		/* Quiet for long enough that pages go up, and down again to their old copies. */
		for (long quiet_ms = atol(argv[3]); quiet_ms > 0; quiet_ms -= 40)
			nap(40);
		test_fork();
		test_read_only(mem);
		test_kernel_writes();
		test_unmap(round++);
	}
	end = true;
	for (int owner = 0; owner < THREADS; owner++)
		pthread_join(threads[owner], NULL);
	for (int owner = 0; owner <= MAIN; owner++)
		for (size_t page = 0; page < (owner == MAIN ? pages : shared_pages); page++)
			check(page, owner, "the end");
	printf("%s - no write is lost: %lu reads, %lu writes, %u rounds of everything\n",
	       failures ? "not ok" : "ok", reads, writes, round);
	return failures != 0;
}
