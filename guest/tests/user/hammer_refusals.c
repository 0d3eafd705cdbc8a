// SPDX-License-Identifier: GPL-2.0-only
/* Every reason to leave a page alone, brought about on purpose and asserted by name. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hammer.h"

#define SPARE 8 /* cold pages at hand in each attempt */

/*
 * Try to exchange the 4 KiB pages [at, at + bytes) on node nid with cold pages,
 * and expect that all `pages` are refused for `why` and stay.
 */
static void expect_refused(const char *why, char *at, size_t bytes, int nid, uint64_t pages)
{
	char *other = map_on(!nid, bytes + SPARE * PAGE, false);
	struct demeter_hammer_exchange req = { .max_pages = 1024, .batch_pairs = 64 };

	area_set(&req.hot, getpid(), nid, at, bytes);
	area_set(&req.cold, getpid(), !nid, other, bytes + SPARE * PAGE);
	device_call(DEMETER_HAMMER_EXCHANGE, &req);
	check(req.refused[reason(why)] == pages && !req.promoted_pages,
	      "refused: %s (%llu of %llu pages)", why, req.refused[reason(why)],
	      (unsigned long long)pages);
	if (req.refused[reason(why)] != pages || req.promoted_pages) {
		printf("#   isolated %llu, exchanged %llu, refused:", req.hot_pages,
		       req.promoted_pages);
		print_refused((uint64_t *)req.refused);
		putchar('\n');
	}
	munmap(other, bytes + SPARE * PAGE);
}

/* After the obstacle is gone, the same page must move. */
static void expect_moves(const char *what, char *at, int nid)
{
	char *other = map_on(!nid, SPARE * PAGE, false);
	struct demeter_hammer_exchange req = { .max_pages = 1, .batch_pairs = 64 };
	uint64_t value = *(volatile uint64_t *)at;

	area_set(&req.hot, getpid(), nid, at, PAGE);
	area_set(&req.cold, getpid(), !nid, other, SPARE * PAGE);
	device_call(DEMETER_HAMMER_EXCHANGE, &req);
	check(req.promoted_pages == 1 && node_of(at) == !nid && *(volatile uint64_t *)at == value,
	      "moves again: %s", what);
	if (req.promoted_pages != 1) {
		printf("#   refused:");
		print_refused((uint64_t *)req.refused);
		putchar('\n');
	}
	munmap(other, SPARE * PAGE);
}

static void refuse_held(const char *why, unsigned int state)
{
	char *at = map_on(SMEM, PAGE, false);
	struct demeter_hammer_hold hold = { .addr = (uintptr_t)at, .state = state };
	int ret = device_call(DEMETER_HAMMER_HOLD, &hold);

	if (ret)
		printf("#   cannot bring the page into state %u: %d\n", state, ret);
	expect_refused(why, at, PAGE, SMEM, 1);
	device_call(DEMETER_HAMMER_RELEASE, NULL);
	expect_moves(why, at, SMEM);
	munmap(at, PAGE);
}

static void refuse_mlocked(void)
{
	char *at = map_on(SMEM, 4 * PAGE, false);

	mlock(at, 4 * PAGE);
	expect_refused("mlocked", at, 4 * PAGE, SMEM, 4);
	munlock(at, 4 * PAGE);
	expect_moves("munlocked", at, SMEM);
	munmap(at, 4 * PAGE);
}

static void refuse_zero_page(void)
{
	char *at = reserve(THP);
	volatile char byte;
	int nid;

	madvise(at, THP, MADV_NOHUGEPAGE);
	byte = at[0];
	nid = node_of(at) == SMEM ? SMEM : FMEM; /* move_pages() may not say */
	expect_refused("zero_page", at, PAGE, nid, 1);
	munmap(at, THP);

	at = reserve(THP);
	madvise(at, THP, MADV_HUGEPAGE);
	byte = at[0];
	(void)byte;
	{
		/* The huge zero page is wherever it was allocated: try both. */
		struct demeter_hammer_exchange req = { .max_pages = 1024, .batch_pairs = 1 };
		uint64_t seen = 0;

		for (nid = 0; nid < 2; nid++) {
			area_set(&req.hot, getpid(), nid, at, THP);
			area_set(&req.cold, getpid(), !nid, at, THP);
			device_call(DEMETER_HAMMER_EXCHANGE, &req);
			seen = seen > req.refused[reason("zero_page")]
				       ? seen
				       : req.refused[reason("zero_page")];
		}
		check(seen == 512, "refused: huge zero page (%llu of 512 pages)",
		      (unsigned long long)seen);
	}
	munmap(at, THP);
}

static void refuse_file(void)
{
	char *at = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	prefer_node(SMEM, true);
	memset(at, 1, 4 * PAGE);
	prefer_node(-1, false);
	expect_refused("file", at, 4 * PAGE, SMEM, 4);
	munmap(at, 4 * PAGE);
}

static void refuse_ksm(void)
{
	char *at = map_on(SMEM, 64 * PAGE, false), text[32];
	int tries;

	memset(at, 0x5a, 64 * PAGE);
	madvise(at, 64 * PAGE, MADV_MERGEABLE);
	write_file("/sys/kernel/mm/ksm/pages_to_scan", "1000");
	write_file("/sys/kernel/mm/ksm/sleep_millisecs", "5");
	write_file("/sys/kernel/mm/ksm/run", "1");
	for (tries = 0; tries < 200; tries++) {
		read_file("/sys/kernel/mm/ksm/pages_sharing", text, sizeof(text));
		if (atoi(text) >= 63)
			break;
		usleep(20000);
	}
	expect_refused("ksm", at, 64 * PAGE, node_of(at), 64);
	write_file("/sys/kernel/mm/ksm/run", "2");
	write_file("/sys/kernel/mm/ksm/run", "0");
	munmap(at, 64 * PAGE);
}

static void refuse_hugetlb(void)
{
	char *at;

	write_file("/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages", "1");
	at = mmap(NULL, THP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1,
		  0);
	if (at == MAP_FAILED) {
		check(false, "refused: hugetlb (no huge page to be had)");
		return;
	}
	at[0] = 1;
	expect_refused("hugetlb", at, THP, SMEM, 512);
	munmap(at, THP);
	write_file("/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages", "0");
}

static void refuse_shared(void)
{
	char *at = map_on(SMEM, 4 * PAGE, false), byte;
	int pipes[2];
	pid_t pid;

	if (pipe(pipes))
		return;
	pid = fork();
	if (!pid) {
		close(pipes[1]);
		_exit(read(pipes[0], &byte, 1) < 0);
	}
	expect_refused("shared", at, 4 * PAGE, SMEM, 4);
	close(pipes[0]);
	close(pipes[1]);
	waitpid(pid, NULL, 0);
	expect_moves("no longer shared", at, SMEM);
	munmap(at, 4 * PAGE);
}

static void refuse_lazyfree(void)
{
	char *at = map_on(SMEM, 4 * PAGE, false);

	device_call(DEMETER_HAMMER_DRAIN, NULL);
	madvise(at, 4 * PAGE, MADV_FREE);
	device_call(DEMETER_HAMMER_DRAIN, NULL);
	expect_refused("lazyfree", at, 4 * PAGE, SMEM, 4);
	munmap(at, 4 * PAGE);
}

static void refuse_mixed_size(void)
{
	char *huge = map_on(SMEM, THP, true), *partly = map_on(SMEM, THP, true);

	/* A THP finds only small partners: both sides are left over, 9 pages each. */
	expect_refused("mixed_size", huge, THP, SMEM, 2 * 512);
	/* One that lost its PMD mapping but was not split yet: migration only, and whole. */
	mprotect(partly + 8 * PAGE, PAGE, PROT_READ);
	expect_refused("mixed_size", partly, 4 * PAGE, SMEM, 512);
	munmap(huge, THP);
	munmap(partly, THP);
}

/* Unmapped between isolation and exchange; the folio must still be freed. */
static void refuse_unmapped(void)
{
	char *at = map_on(SMEM, 4 * PAGE, false), *other = map_on(FMEM, 4 * PAGE, false);
	struct demeter_hammer_exchange req = {
		.max_pages = 4,
		.batch_pairs = 64,
		.pause_ms = 800,
	};
	pid_t owner = getpid(), pid;
	int status;

	area_set(&req.hot, owner, SMEM, at, 4 * PAGE);
	area_set(&req.cold, owner, FMEM, other, 4 * PAGE);
	pid = fork();
	if (!pid) {
		/* The fork shares the pages until they are written to again. */
		usleep(200000);
		device_call(DEMETER_HAMMER_EXCHANGE, &req);
		_exit(req.refused[reason("unmapped")] == 4 && !req.promoted_pages ? 0 : 1);
	}
	munmap(at, 4 * PAGE);
	munmap(other, 4 * PAGE);
	/* Afresh, so that the child does not map them. */
	at = mmap(at, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		  0);
	other = mmap(other, 4 * PAGE, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	touch_on(SMEM, at, 4 * PAGE, false);
	touch_on(FMEM, other, 4 * PAGE, false);
	usleep(600000);
	munmap(at, 4 * PAGE);
	waitpid(pid, &status, 0);
	check(!status, "refused: unmapped (4 pages, unmapped while isolated)");
	munmap(other, 4 * PAGE);
}

/*
 * In the swap cache and mapped: swapped out alone, then its entry shared by
 * fork, then read back by one of the two.
 */
static void refuse_swapcache(void)
{
	char *at = map_on(SMEM, 4 * PAGE, false), byte;
	int pipes[2];
	pid_t pid;
	int i;

	device_call(DEMETER_HAMMER_DRAIN, NULL);
	madvise(at, 4 * PAGE, 21 /* MADV_PAGEOUT */);
	if (pipe(pipes))
		return;
	pid = fork();
	if (!pid) {
		close(pipes[1]);
		_exit(read(pipes[0], &byte, 1) < 0);
	}
	prefer_node(SMEM, true);
	for (i = 0; i < 4; i++)
		byte = *(volatile char *)(at + i * PAGE);
	prefer_node(-1, false);
	expect_refused("swapcache", at, 4 * PAGE, node_of(at), 4);
	close(pipes[0]);
	close(pipes[1]);
	waitpid(pid, NULL, 0);
	munmap(at, 4 * PAGE);
}

/* migrate_pages() itself gives up: someone holds a reference. */
static void refuse_migrate(void)
{
	char *at = map_on(SMEM, PAGE, false);
	struct demeter_hammer_hold hold = { .addr = (uintptr_t)at, .state = DEMETER_HAMMER_REF };
	struct demeter_hammer_migrate req = { .max_pages = 16, .target_nid = FMEM };

	device_call(DEMETER_HAMMER_HOLD, &hold);
	area_set(&req.area, getpid(), SMEM, at, PAGE);
	device_call(DEMETER_HAMMER_MIGRATE, &req);
	check(req.refused[reason("migrate")] == 1 && !req.moved_pages, "refused: migrate");
	device_call(DEMETER_HAMMER_RELEASE, NULL);
	munmap(at, PAGE);
}

/* Not reasons: VMAs that may not be read or written still move, contents kept. */
static void allow_protected(int protection, const char *name)
{
	char *at = map_on(SMEM, PAGE, false), *other = map_on(FMEM, PAGE, false);
	struct demeter_hammer_exchange req = { .max_pages = 1, .batch_pairs = 64 };

	strcpy(at, "protected");
	mprotect(at, PAGE, protection);
	area_set(&req.hot, getpid(), SMEM, at, PAGE);
	area_set(&req.cold, getpid(), FMEM, other, PAGE);
	device_call(DEMETER_HAMMER_EXCHANGE, &req);
	mprotect(at, PAGE, PROT_READ | PROT_WRITE);
	check(req.promoted_pages == 1 && !strcmp(at, "protected") && node_of(at) == FMEM,
	      "moves: %s VMA", name);
	munmap(at, PAGE);
	munmap(other, PAGE);
}

void test_refusals(void)
{
	pin_cpu(0);
	refuse_held("pinned", DEMETER_HAMMER_PIN);
	refuse_held("refs", DEMETER_HAMMER_REF);
	refuse_held("lock", DEMETER_HAMMER_LOCK);
	refuse_held("lru", DEMETER_HAMMER_ISOLATE);
	refuse_held("writeback", DEMETER_HAMMER_WRITEBACK);
	refuse_mlocked();
	refuse_zero_page();
	refuse_file();
	refuse_ksm();
	refuse_hugetlb();
	refuse_shared();
	refuse_lazyfree();
	refuse_mixed_size();
	refuse_unmapped();
	refuse_swapcache();
	refuse_migrate();
	allow_protected(PROT_READ, "read-only");
	allow_protected(PROT_NONE, "inaccessible");
	check(kernel_log_clean(), "refusals: kernel log clean");
}
