// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * usage: probe latency NODE [MIB] | walk NODE [MIB] | stream NODE [MIB] |
 *              pause | fault | protect | switch
 * Measures what the testbed's model takes as parameters (docs/model.md): on hardware it
 * says what they are, in a guest of the testbed what the model makes of them. Prints
 * "name value unit" lines. docs/hardware.md says how to run it and what to expect.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAGE	  4096ul
#define HUGE	  (2ul << 20)
#define LINE	  64ul
#define MPOL_BIND 2

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static uint64_t next_random(void)
{
	static uint64_t state = 88172645463325252ull;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static int die(const char *what, const char *next)
{
	fprintf(stderr, "probe: error: %s (%s); next: %s\n", what, strerror(errno), next);
	exit(1);
}

/* Memory of a node, in pages of 2 MiB or of 4 KiB. */
static char *memory_on(int node, size_t bytes, int advice)
{
	unsigned long mask = 1ul << node;
	char *at = mmap(NULL, bytes + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			0);

	if (at == MAP_FAILED)
		die("no address space", "take less memory");
	at = (char *)(((uintptr_t)at + HUGE - 1) & ~(HUGE - 1));
	madvise(at, bytes, advice);
	if (syscall(SYS_mbind, at, bytes, MPOL_BIND, &mask, 8 * sizeof(mask), 0))
		die("memory cannot be bound to that node", "name one that numactl -H shows");
	memset(at, 1, bytes);
	return at;
}

/* Nanoseconds a step of a random cycle through cells of @stride bytes. */
static double chase(char *memory, size_t bytes, size_t stride)
{
	size_t cells = bytes / stride, i, steps = cells < 1000000 ? 4 * cells : 2000000;
	uint32_t *order = malloc(cells * sizeof(*order));
	void **at;
	double begin;

	if (!order)
		die("no memory for the order", "take less memory");
	for (i = 0; i < cells; i++)
		order[i] = i;
	/* Sattolo's: one cycle through all. */
	for (i = cells - 1; i > 0; i--) {
		size_t j = next_random() % i;
		uint32_t other = order[j];

		order[j] = order[i];
		order[i] = other;
	}
	for (i = 0; i < cells; i++) {
		/* Not the same line of every page, or few sets of a cache would serve all. */
		size_t from = order[i] * stride + order[i] * LINE % stride;
		size_t to = order[(i + 1) % cells];

		*(void **)(memory + from) = memory + to * stride + to * LINE % stride;
	}
	at = (void **)(memory + order[0] * stride + order[0] * LINE % stride);
	free(order);
	for (i = 0; i < steps / 4; i++)
		at = *(void *volatile *)at;
	begin = now_ns();
	for (i = 0; i < steps; i++)
		at = *(void *volatile *)at;
	begin = now_ns() - begin;
	__asm__ volatile("" : : "r"(at));
	return begin / steps;
}

static void latency(int node, size_t bytes)
{
	printf("latency_node%d %.2f ns\n", node,
	       chase(memory_on(node, bytes, MADV_HUGEPAGE), bytes, LINE));
}

/* What small pages add to the same chase, a line in each page. */
static void walk(int node, size_t bytes)
{
	double huge = chase(memory_on(node, bytes, MADV_HUGEPAGE), bytes, PAGE);
	double small = chase(memory_on(node, bytes, MADV_NOHUGEPAGE), bytes, PAGE);

	printf("walk_node%d %.2f ns\n", node, small - huge);
}

static void stream(int node, size_t bytes)
{
	const uint64_t *at = (uint64_t *)memory_on(node, bytes, MADV_HUGEPAGE);
	const size_t words = bytes / sizeof(*at);
	uint64_t sum = 0;
	double ns;
	size_t i;

	ns = now_ns();
	for (i = 0; i < words; i += 8)
		sum += at[i];
	ns = now_ns() - ns;
	__asm__ volatile("" : : "r"(sum));
	printf("stream_node%d %.2f GB/s\n", node, bytes / ns);
}

static void pauses(void)
{
	const int nr = 1000000;
	double ns = now_ns();
	int i;

	for (i = 0; i < nr; i++)
		__asm__ volatile("pause");
	printf("pause %.2f ns\n", (now_ns() - ns) / nr);
}

/* A page fault that finds its page there: exception, the kernel's look, return. */
static void fault(void)
{
	const size_t pages = 4096;
	char *at =
		mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	size_t i, round;
	double ns = 0;

	if (at == MAP_FAILED)
		die("no shared memory", "free some");
	memset(at, 1, pages * PAGE);
	for (round = 0; round < 8; round++) {
		double begin;

		/* The entries go, the pages stay; a store maps one, a load its neighbours, too. */
		madvise(at, pages * PAGE, MADV_DONTNEED);
		begin = now_ns();
		for (i = 0; i < pages; i++)
			*(volatile char *)(at + i * PAGE) = 1;
		ns += now_ns() - begin;
	}
	printf("fault %.2f ns\n", ns / (8 * pages));
}

/* Two system calls that change one entry, and its flush on this CPU. */
static void protect(void)
{
	const int nr = 100000;
	char *at = memory_on(0, HUGE, MADV_NOHUGEPAGE);
	double ns = now_ns();
	int i;

	for (i = 0; i < nr; i++) {
		mprotect(at, PAGE, PROT_READ);
		mprotect(at, PAGE, PROT_READ | PROT_WRITE);
		at[0]++;
	}
	printf("protect %.2f ns\n", (now_ns() - ns) / nr);
}

/* Two processes on one CPU that wait for each other. */
static void switches(void)
{
	const int nr = 50000;
	int there[2], back[2], i;
	cpu_set_t cpus;
	char byte = 0;
	double ns;

	CPU_ZERO(&cpus);
	CPU_SET(sched_getcpu(), &cpus);
	sched_setaffinity(0, sizeof(cpus), &cpus);
	if (pipe(there) || pipe(back))
		die("no pipes", "raise the limit of open files");
	if (!fork()) {
		for (i = 0; i < nr; i++)
			if (read(there[0], &byte, 1) != 1 || write(back[1], &byte, 1) != 1)
				break;
		_exit(0);
	}
	ns = now_ns();
	for (i = 0; i < nr; i++)
		if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
			break;
	printf("switch %.2f ns\n", (now_ns() - ns) / (2 * nr));
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	int node = argc > 2 ? atoi(argv[2]) : -1;
	size_t bytes = (argc > 3 ? strtoul(argv[3], NULL, 10) : 1024) << 20;
	const int has_memory = node >= 0 && node < 64 && bytes && bytes >> 20 <= 65536;

	if (!strcmp(what, "latency") && has_memory)
		latency(node, bytes);
	else if (!strcmp(what, "walk") && has_memory)
		walk(node, bytes);
	else if (!strcmp(what, "stream") && has_memory)
		stream(node, bytes);
	else if (!strcmp(what, "pause"))
		pauses();
	else if (!strcmp(what, "fault"))
		fault();
	else if (!strcmp(what, "protect"))
		protect();
	else if (!strcmp(what, "switch"))
		switches();
	else {
		fprintf(stderr,
			"usage: probe latency NODE [MIB] | walk NODE [MIB] | stream NODE [MIB] | pause | fault | protect | switch\n");
		return 2;
	}
	return 0;
}
