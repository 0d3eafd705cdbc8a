// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Init of the plugin's test guest: runs the tests named in the environment
 * variable T (kernel command line) and prints one "RESULT" line for each.
 *
 * c clock self-test     g random updates      q sequential reads
 * k known placement     p sampled addresses   m pages that move
 * t huge pages          a arithmetic          n uninstrumented
 * D demeter.ko           U the same untraced    B the same beside perf
 * N no PMU for it       E two tasks, one with an event of its own
 * s two vCPUs, one of which moves the other's pages
 * P two vCPUs, a sampled thread on each: by perf, then by demeter.ko
 * b accessed bits       l the same at every level, on each vCPU
 * x exceptions, interrupts and pauses
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <errno.h>
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include "../../../../uapi/demeter_model.h"

#define MAGIC(op, arg) \
	asm volatile(".byte 0x0f, 0x1f, 0x84, 0x00\n\t.long 0x5EB50000 + %c0" \
		     : : "i"(op), "D"((uint64_t)(arg)) : "memory")

#define MB (1ul << 20)
#define PAGE 4096ul

static struct demeter_model_header *model;

static uint64_t now_ns(void)
{
	struct timespec ts;

	syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ull + ts.tv_nsec;
}

static long env(const char *name, long otherwise)
{
	const char *value = getenv(name);

	return value ? atol(value) : otherwise;
}

static void write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		printf("cannot write %s\n", path);
	if (fd >= 0)
		close(fd);
}

/* Finds the ivshmem device that carries the magic. */
static int find_bar(void)
{
	DIR *dir = opendir("/sys/bus/pci/devices");
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		struct demeter_model_header *header;
		char path[300], id[16] = { 0 };
		int fd;

		snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/device", entry->d_name);
		fd = open(path, O_RDONLY);
		if (fd < 0)
			continue;
		if (read(fd, id, sizeof(id) - 1) < 0)
			id[0] = 0;
		close(fd);
		if (strncmp(id, "0x1110", 6))
			continue;
		snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/enable", entry->d_name);
		write_file(path, "1");
		snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/resource2", entry->d_name);
		fd = open(path, O_RDWR);
		header = mmap(NULL, DEMETER_MODEL_BAR_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (header == MAP_FAILED || header->magic != DEMETER_MODEL_MAGIC)
			continue;
		model = header;
		return 0;
	}
	return -1;
}

static __thread uint64_t seed;

static inline uint64_t next(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

/* Physical address of a page, from the kernel. */
static uint64_t pagemap(uint64_t va)
{
	static int fd = -1;
	uint64_t entry = 0;

	if (fd < 0)
		fd = open("/proc/self/pagemap", O_RDONLY);
	if (pread(fd, &entry, 8, va / PAGE * 8) != 8)
		return 0;
	return (entry & ((1ull << 55) - 1)) * PAGE + va % PAGE;
}

/* Replaces the area before; nodes: bit mask; advice: MADV_ about huge pages. */
static uint64_t *area(size_t bytes, unsigned long nodes, int advice)
{
	static char *last;
	static size_t last_bytes;

	char *raw, *start;
	size_t i;

	if (last)
		munmap(last, last_bytes);
	raw = mmap(NULL, bytes + 2 * MB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	start = (char *)(((uintptr_t)raw + 2 * MB - 1) & ~(2 * MB - 1));
	if (raw == MAP_FAILED) {
		printf("out of memory\n");
		reboot(RB_POWER_OFF);
	}
	last = raw;
	last_bytes = bytes + 2 * MB;
	madvise(start, bytes, advice);
	/* MPOL_BIND for one node, MPOL_INTERLEAVE for both */
	if (syscall(SYS_mbind, start, bytes, nodes == 3 ? 3 : 2, &nodes, 64, 0))
		printf("mbind failed\n");
	for (i = 0; i < bytes; i += PAGE)
		start[i] = 1;
	return (uint64_t *)start;
}

__attribute__((noinline)) static void updates(uint64_t *words, size_t count, long rounds)
{
	for (long i = 0; i < rounds; i++) {
		uint64_t value = next();

		words[value & (count - 1)] ^= value;
	}
}

/* One load a round, on a line of its own choice. */
__attribute__((noinline)) static uint64_t loads(const uint64_t *words, size_t count, long rounds)
{
	uint64_t sum = 0;

	for (long i = 0; i < rounds; i++)
		sum += words[next() & (count - 1) & ~7ul];
	return sum;
}

__attribute__((noinline)) static uint64_t arithmetic(long rounds)
{
	uint64_t sum = 0;

	for (long i = 0; i < rounds; i++)
		sum += next() * 3;
	return sum;
}

#include "sampling.h"

static void test_clock(void)
{
	uint64_t start, charged;

	for (int on = 0; on < 2; on++) {
		if (on)
			MAGIC(DEMETER_OP_MODEL_ON, 0);
		start = now_ns();
		for (int i = 0; i < 100; i++)
			MAGIC(DEMETER_OP_CHARGE_NS, 1000000);
		charged = now_ns() - start;
		if (on)
			MAGIC(DEMETER_OP_MODEL_OFF, 0);
		printf("RESULT clock%d charged_ns=100000000 seen_ns=%lu\n", on, charged);
	}
	start = now_ns();
	for (int i = 0; i < 5; i++) {
		struct timespec ts = { 0, 100000000 };

		nanosleep(&ts, NULL);
	}
	printf("RESULT sleep asked_ns=500000000 seen_ns=%lu\n", now_ns() - start);
}

static void timed(const char *name, char test, uint64_t *words, size_t bytes, long rounds)
{
	uint64_t start, spent, sum = 0;

	MAGIC(DEMETER_OP_MODEL_ON, 0);
	MAGIC(DEMETER_OP_MARK, test);
	start = now_ns();
	switch (test) {
	case 'g':
		updates(words, bytes / 8, rounds);
		break;
	case 'q':
		for (size_t i = 0; i < bytes / 8; i++)
			sum += words[i];
		break;
	case 'a':
		sum = arithmetic(rounds * 10);
		break;
	case 'k':
		sum = loads(words, bytes / 8, rounds);
		break;
	}
	spent = now_ns() - start;
	MAGIC(DEMETER_OP_PROGRESS, rounds);
	MAGIC(DEMETER_OP_MODEL_OFF, 0);
	printf("RESULT %s rounds=%ld spent_ns=%lu%s\n", name, rounds, spent, sum == 42 ? "." : "");
}

/* Moves every page of the area to the other node than the round before. */
static void move_all(uint64_t *words, size_t bytes, int round)
{
	size_t pages = bytes / PAGE;
	void **list = calloc(pages, sizeof(*list));
	int *node = calloc(pages, sizeof(*node)), *status = calloc(pages, sizeof(*status));

	for (size_t i = 0; i < pages; i++) {
		list[i] = (char *)words + i * PAGE;
		node[i] = (i + round) & 1;
	}
	if (syscall(SYS_move_pages, 0, pages, list, node, status, 2))
		printf("move_pages failed\n");
	free(list);
	free(node);
	free(status);
}

/* Pages that migrate between accesses must be sampled where they are. */
static void test_moving(uint64_t *words, size_t bytes)
{
	MAGIC(DEMETER_OP_MODEL_ON, 0);
	for (int round = 0; round < 4; round++) {
		char name[16];

		move_all(words, bytes, round);
		start_sampling(101);
		loads(words, bytes / 8, 100000);
		stop_sampling();
		snprintf(name, sizeof(name), "moving%d", round);
		compare_samples(name, words, bytes);
	}
	MAGIC(DEMETER_OP_MODEL_OFF, 0);
}

/* Has the kernel clear the accessed bits of our pages; it does not flush the TLB. */
static void clear_accessed(void)
{
	write_file("/proc/self/clear_refs", "1");
}

/* KiB marked accessed in the area of memory that starts at start. */
static long accessed_kib(void *start)
{
	FILE *file = fopen("/proc/self/smaps", "r");
	char line[300];
	int inside = 0;
	long kib = -1;

	while (file && fgets(line, sizeof(line), file)) {
		unsigned long from, to;

		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			inside = (unsigned long)start >= from && (unsigned long)start < to;
		else if (inside && sscanf(line, "Referenced: %ld", &kib) == 1)
			break;
	}
	if (file)
		fclose(file);
	return kib;
}

/* One line of each page, never the same as its neighbours': more than the L1 holds. */
static void touch_pages(char *start, size_t bytes, size_t page)
{
	for (size_t i = 0; i < bytes / page; i++)
		*(volatile char *)(start + i * page + i % 64 * 64);
}

static char *own_area(size_t bytes, int advice)
{
	char *raw = mmap(NULL, bytes + 2 * MB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *start = (char *)(((uintptr_t)raw + 2 * MB - 1) & ~(2 * MB - 1));

	madvise(start, bytes, advice);
	for (size_t i = 0; i < bytes; i += PAGE)
		start[i] = 1;
	return start;
}

/* Fills the modelled TLB with others: 8192 small and 64 huge pages, of 1536 entries. */
static void drive_out(void)
{
	static char *small, *huge;

	if (!small) {
		small = own_area(32 * MB, MADV_NOHUGEPAGE);
		huge = own_area(128 * MB, MADV_HUGEPAGE);
	}
	touch_pages(small, 32 * MB, PAGE);
	touch_pages(huge, 128 * MB, 2 * MB);
}

/*
 * What is in the modelled TLB stays unmarked when touched; what has left it is
 * marked. 4 MiB of small pages and 32 MiB of huge ones are well within 1536
 * entries.
 */
static void test_accessed(const char *name, size_t bytes, size_t page, int advice)
{
	char *start = (char *)area(bytes, 1, advice);
	long cleared, kept, evicted;

	drive_out(); /* takes its memory */
	accessed_kib(start); /* takes its memory before it counts */
	MAGIC(DEMETER_OP_MODEL_ON, 0);
	touch_pages(start, bytes, page);
	clear_accessed();
	cleared = accessed_kib(start);
	MAGIC(DEMETER_OP_MARK, name[4]);
	touch_pages(start, bytes, page);
	MAGIC(DEMETER_OP_PROGRESS, 0);
	kept = accessed_kib(start);
	drive_out();
	clear_accessed();
	touch_pages(start, bytes, page);
	evicted = accessed_kib(start);
	MAGIC(DEMETER_OP_MODEL_OFF, 0);
	printf("RESULT %s kib=%zu cleared=%ld kept=%ld evicted=%ld\n", name, bytes >> 10, cleared, kept, evicted);
}

static void test_events(void)
{
	const size_t faults = 2000;
	char *start = mmap(NULL, faults * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t began, spent;

	madvise(start, faults * PAGE, MADV_NOHUGEPAGE);
	MAGIC(DEMETER_OP_MODEL_ON, 0);
	MAGIC(DEMETER_OP_MARK, 'f');
	for (size_t i = 0; i < faults; i++)
		start[i * PAGE] = 1;
	MAGIC(DEMETER_OP_PROGRESS, faults);
	MAGIC(DEMETER_OP_MARK, 'u');
	began = now_ns();
	for (int i = 0; i < 1000000; i++)
		__builtin_ia32_pause();
	spent = now_ns() - began;
	MAGIC(DEMETER_OP_PROGRESS, 1000000);
	MAGIC(DEMETER_OP_MARK, 'i');
	began = now_ns();
	arithmetic(200000000);
	spent = spent << 32 | (now_ns() - began);
	MAGIC(DEMETER_OP_PROGRESS, 0);
	MAGIC(DEMETER_OP_MODEL_OFF, 0);
	printf("RESULT events faults=%zu pause_ns=%lu work_ns=%lu\n", faults, spent >> 32, spent & 0xffffffff);
	munmap(start, faults * PAGE);
}

#include "module.h"

/* What the two threads of test_two_vcpus() share. */
static struct {
	uint64_t *words;
	size_t bytes;
	volatile int round; /* the helper samples once in each */
	volatile int sampled; /* rounds that the helper is done with */
} two;

static void bind_to(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		printf("no CPU %d\n", cpu);
	seed = 88172645463325252ull + cpu;
}

static void sampled_loads(int round, int cpu)
{
	char name[16];

	start_sampling(101);
	loads(two.words, two.bytes / 8, 100000);
	stop_sampling();
	snprintf(name, sizeof(name), "two%d-%d", round, cpu);
	compare_samples(name, two.words, two.bytes);
}

/* Keeps its TLB full of the pages that the other thread moves. */
static void *helper(void *unused)
{
	bind_to(1);
	for (int round = 1; round <= 4; round++) {
		while (two.round < round)
			loads(two.words, two.bytes / 8, 1000);
		sampled_loads(round, 1);
		MAGIC(DEMETER_OP_PROGRESS, round);
		two.sampled = round;
	}
	return unused;
}

#include "bits.h"
#include "pair.h"

static void test_two_vcpus(uint64_t *words, size_t bytes)
{
	pthread_t thread;

	two.words = words;
	two.bytes = bytes;
	bind_to(0);
	MAGIC(DEMETER_OP_MODEL_ON, 0);
	pthread_create(&thread, NULL, helper, NULL);
	for (int round = 1; round <= 4; round++) {
		move_all(words, bytes, round);
		two.round = round;
		sampled_loads(round, 0);
		while (two.sampled < round)
			__builtin_ia32_pause();
	}
	pthread_join(thread, NULL);
	MAGIC(DEMETER_OP_MODEL_OFF, 0);
}

int main(void)
{
	size_t bytes = env("MB", 64) * MB;
	long rounds = env("ROUNDS", 1000000);
	const char *tests = getenv("T");
	uint64_t *words;

	mkdir("/proc", 0755);
	mkdir("/sys", 0755);
	mount("proc", "/proc", "proc", 0, NULL);
	mount("sysfs", "/sys", "sysfs", 0, NULL);
	setvbuf(stdout, NULL, _IONBF, 0);
	printf("\nINIT t_ns=%lu bar=%d\n", now_ns(), find_bar());
	/* The kernel's own start-up threads would share the vCPU with the tests. */
	nanosleep(&(struct timespec){ env("SETTLE_S", 6), 0 }, NULL);
	for (; tests && *tests && model; tests++) {
		seed = 88172645463325252ull;
		switch (*tests) {
		case 'c':
			test_clock();
			break;
		case 'g':
		case 'q':
		case 'a':
			words = area(bytes, 3, MADV_NOHUGEPAGE);
			timed((char[]){ *tests, 0 }, *tests, words, bytes, rounds);
			break;
		case 't':
			words = area(bytes, 1, MADV_HUGEPAGE);
			timed("thp", 'g', words, bytes, rounds);
			break;
		case 'k':
			timed("fmem", 'k', area(bytes, 1, MADV_NOHUGEPAGE), bytes, rounds);
			timed("smem", 'k', area(bytes, 2, MADV_NOHUGEPAGE), bytes, rounds);
			break;
		case 'p':
			words = area(bytes, 3, MADV_NOHUGEPAGE);
			MAGIC(DEMETER_OP_MODEL_ON, 0);
			start_sampling(4093 / 8);
			updates(words, bytes / 8, rounds);
			stop_sampling();
			compare_samples("samples", words, bytes);
			MAGIC(DEMETER_OP_MODEL_OFF, 0);
			break;
		case 'D':
			words = area(bytes, 3, MADV_NOHUGEPAGE);
			test_module("module", "", words, bytes, rounds, 0);
			break;
		case 'U':
			words = area(bytes, 3, MADV_NOHUGEPAGE);
			test_module("untraced", "pebs_interrupts=1", words, bytes, rounds, 0);
			break;
		case 'B':
			words = area(bytes, 3, MADV_NOHUGEPAGE);
			test_module("module", "", words, bytes, rounds, 1);
			break;
		case 'N':
			words = area(bytes, 3, MADV_NOHUGEPAGE);
			test_module("module", "sampler=pebs", words, bytes, rounds / 10, 0);
			break;
		case 'E':
			words = area(bytes, 3, MADV_NOHUGEPAGE);
			test_turns("turns", words, bytes, rounds);
			break;
		case 'F':
			words = area(bytes, 3, MADV_NOHUGEPAGE);
			test_form("module", words, bytes, rounds);
			break;
		case 'm':
			test_moving(area(8 * MB, 3, MADV_NOHUGEPAGE), 8 * MB);
			break;
		case 'b':
			test_accessed("bits4k", 4 * MB, PAGE, MADV_NOHUGEPAGE);
			test_accessed("bits2m", 32 * MB, 2 * MB, MADV_HUGEPAGE);
			break;
		case 'l':
			test_all_levels();
			break;
		case 'x':
			test_events();
			break;
		case 's':
			test_two_vcpus(area(8 * MB, 3, MADV_NOHUGEPAGE), 8 * MB);
			break;
		case 'P':
			test_pair(area(bytes, 3, MADV_NOHUGEPAGE), bytes, rounds / 2);
			break;
		case 'n': {
			uint64_t start = now_ns();

			arithmetic(rounds * 10);
			printf("RESULT off spent_ns=%lu\n", now_ns() - start);
			break;
		}
		}
	}
	printf("DONE t_ns=%lu\n", now_ns());
	sync();
	reboot(RB_POWER_OFF);
}
