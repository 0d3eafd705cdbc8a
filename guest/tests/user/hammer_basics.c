// SPDX-License-Identifier: GPL-2.0-only
/* One exchange of each kind, counting and migration, before anything rough. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "hammer.h"

static void exchange_once(bool thp)
{
	const char *kind = thp ? "THP" : "4K";
	size_t bytes = thp ? 8 * THP : 256 * PAGE;
	char *hot = map_on(SMEM, bytes, thp), *cold = map_on(FMEM, bytes, thp);
	struct demeter_hammer_exchange req = { .max_pages = bytes / PAGE, .batch_pairs = 64 };
	struct demeter_hammer_count count = { .other_nid = SMEM };
	unsigned int wrong = 0, misplaced = 0;
	size_t i;

	for (i = 0; i < bytes; i += 64) {
		*(uint64_t *)(hot + i) = i * 3 + 1;
		*(uint64_t *)(cold + i) = i * 5 + 2;
	}
	area_set(&req.hot, getpid(), SMEM, hot, bytes);
	area_set(&req.cold, getpid(), FMEM, cold, bytes);
	area_set(&count.area, getpid(), FMEM, hot, bytes);
	device_call(DEMETER_HAMMER_COUNT, &count);
	check(!count.pages[0] && count.pages[1] == bytes / PAGE,
	      "%s: counted %llu fast, %llu slow pages of %zu", kind, count.pages[0], count.pages[1],
	      bytes / PAGE);

	device_call(DEMETER_HAMMER_EXCHANGE, &req);
	check(req.promoted_pages == bytes / PAGE, "%s: exchanged %llu of %zu pages", kind,
	      req.promoted_pages, bytes / PAGE);
	printf("#   refused:");
	print_refused((uint64_t *)req.refused);
	printf("; %llu ns per 4K page in the exchange, %llu with the scans\n",
	       req.exchange_ns / (bytes / PAGE), req.total_ns / (bytes / PAGE));
	exchanges_total += thp ? req.promoted_pages / 512 : req.promoted_pages;

	for (i = 0; i < bytes; i += 64) {
		wrong += *(uint64_t *)(hot + i) != i * 3 + 1;
		wrong += *(uint64_t *)(cold + i) != i * 5 + 2;
	}
	for (i = 0; i < bytes; i += PAGE)
		misplaced += (node_of(hot + i) != FMEM) + (node_of(cold + i) != SMEM);
	check(!wrong && !misplaced, "%s: contents kept (%u wrong), places traded (%u not)", kind,
	      wrong, misplaced);
	device_call(DEMETER_HAMMER_COUNT, &count);
	check(count.pages[0] == bytes / PAGE && !count.pages[1],
	      "%s: counted %llu fast, %llu slow pages afterwards", kind, count.pages[0],
	      count.pages[1]);
	if (thp)
		check(anon_huge_kib(hot) * 1024 >= (long)bytes, "THP: still huge (%ld KiB)",
		      anon_huge_kib(hot));
	munmap(hot, bytes);
	munmap(cold, bytes);
}

static void stamp_all(char *at, size_t bytes, uint64_t salt)
{
	size_t i;

	for (i = 0; i < bytes; i += 64)
		*(uint64_t *)(at + i) = i * 7 + salt;
}

static unsigned int wrong_in(const char *at, size_t bytes, uint64_t salt, int node)
{
	unsigned int wrong = 0;
	size_t i;

	for (i = 0; i < bytes; i += 64)
		wrong += *(volatile uint64_t *)(at + i) != i * 7 + salt;
	for (i = 0; i < bytes; i += PAGE)
		wrong += node_of(at + i) != node;
	return wrong;
}

/*
 * Sizes that differ: hot 4 KiB pages become THPs if they may, else the THPs of
 * the other side are split.
 */
static void match_once(const char *what, bool hot_huge, bool may_collapse)
{
	size_t bytes = 4 * THP;
	char *hot = map_on(SMEM, bytes, hot_huge), *cold = map_on(FMEM, bytes, !hot_huge);
	struct demeter_hammer_exchange req = {
		.max_pages = bytes / PAGE,
		.batch_pairs = 64,
		.match = 1,
	};
	uint64_t collapsed = may_collapse ? bytes / PAGE : 0;
	unsigned int wrong;

	if (may_collapse)
		madvise(hot, bytes, MADV_HUGEPAGE);
	stamp_all(hot, bytes, 1);
	stamp_all(cold, bytes, 2);
	area_set(&req.hot, getpid(), SMEM, hot, bytes);
	area_set(&req.cold, getpid(), FMEM, cold, bytes);
	device_call(DEMETER_HAMMER_EXCHANGE, &req);
	wrong = wrong_in(hot, bytes, 1, FMEM) + wrong_in(cold, bytes, 2, SMEM);
	check(req.promoted_pages == bytes / PAGE && !wrong,
	      "sizes: %s: %llu of %zu pages exchanged, %u wrong", what, req.promoted_pages,
	      bytes / PAGE, wrong);
	check(req.collapsed_pages == collapsed && req.split_pages == bytes / PAGE - collapsed,
	      "sizes: %s: %llu pages collapsed, %llu split", what, req.collapsed_pages,
	      req.split_pages);
	exchanges_total += req.promoted_pages / (may_collapse ? 512 : 1);
	munmap(hot, bytes);
	munmap(cold, bytes);
}

/* Where a page is missing nothing is collapsed: that would take memory for it. */
static void match_holes(void)
{
	size_t bytes = 4 * THP, hole = 5 * PAGE;
	char *hot = map_on(SMEM, bytes, false), *cold = map_on(FMEM, bytes, true);
	struct demeter_hammer_exchange req = {
		.max_pages = bytes / PAGE,
		.batch_pairs = 64,
		.match = 1,
	};

	madvise(hot, bytes, MADV_HUGEPAGE);
	stamp_all(hot, bytes, 1);
	madvise(hot + hole, PAGE, MADV_DONTNEED);
	madvise(hot + 2 * THP + hole, PAGE, MADV_DONTNEED);
	area_set(&req.hot, getpid(), SMEM, hot, bytes);
	area_set(&req.cold, getpid(), FMEM, cold, bytes);
	device_call(DEMETER_HAMMER_EXCHANGE, &req);
	check(req.collapsed_pages == 2 * THP / PAGE && req.split_pages == 2 * THP / PAGE &&
		      req.promoted_pages == bytes / PAGE - 2,
	      "sizes: with a hole in two of four: %llu pages collapsed, %llu split, %llu exchanged",
	      req.collapsed_pages, req.split_pages, req.promoted_pages);
	check(node_of(hot + hole) < 0 && node_of(hot + 2 * THP + hole) < 0,
	      "sizes: holes are left as they are");
	exchanges_total += req.promoted_pages - req.collapsed_pages;
	munmap(hot, bytes);
	munmap(cold, bytes);
}

/*
 * A THP that was hardly written to: newer kernels map what is zero in it to the
 * zero page when it is split, and the pages thus unmapped are ours to free.
 */
static void match_zeros(void)
{
	size_t bytes = 4 * THP, i;
	char *hot = map_on(SMEM, bytes, false), *cold = map_on(FMEM, bytes, true);
	struct demeter_hammer_exchange req = {
		.max_pages = bytes / PAGE,
		.batch_pairs = 64,
		.match = 1,
	};
	unsigned int wrong = 0;

	memset(cold, 0, bytes);
	for (i = 0; i < bytes; i += 8 * PAGE)
		*(uint64_t *)(cold + i) = i + 1;
	stamp_all(hot, bytes, 1);
	area_set(&req.hot, getpid(), SMEM, hot, bytes);
	area_set(&req.cold, getpid(), FMEM, cold, bytes);
	device_call(DEMETER_HAMMER_EXCHANGE, &req);
	for (i = 0; i < bytes; i += 64) {
		wrong += *(volatile uint64_t *)(hot + i) != i * 7 + 1;
		wrong += *(volatile uint64_t *)(cold + i) != (i % (8 * PAGE) ? 0 : i + 1);
	}
	check(req.split_pages == bytes / PAGE && req.promoted_pages >= bytes / PAGE / 8 && !wrong,
	      "sizes: mostly zero: %llu pages split, %llu exchanged, %u words wrong",
	      req.split_pages, req.promoted_pages, wrong);
	printf("#   refused:");
	print_refused((uint64_t *)req.refused);
	putchar('\n');
	exchanges_total += req.promoted_pages;
	munmap(hot, bytes);
	munmap(cold, bytes);
}

static void migrate_once(bool thp)
{
	const char *kind = thp ? "THP" : "4K";
	size_t bytes = thp ? 8 * THP : 256 * PAGE;
	char *at = map_on(SMEM, bytes, thp);
	struct demeter_hammer_migrate req = { .max_pages = bytes / PAGE, .target_nid = FMEM };
	unsigned int wrong = 0;
	size_t i;

	area_set(&req.area, getpid(), SMEM, at, bytes);
	device_call(DEMETER_HAMMER_MIGRATE, &req);
	check(req.moved_pages == bytes / PAGE, "%s: migrated %llu of %zu pages into %llu free",
	      kind, req.moved_pages, bytes / PAGE, req.room_pages);
	for (i = 0; i < bytes; i += PAGE)
		wrong += node_of(at + i) != FMEM || *(uint64_t *)(at + i) != i + 1;
	check(!wrong, "%s: %u pages wrong after the promotion", kind, wrong);

	area_set(&req.area, getpid(), FMEM, at, bytes);
	req.target_nid = SMEM;
	device_call(DEMETER_HAMMER_MIGRATE, &req);
	for (i = 0; i < bytes; i += PAGE)
		wrong += node_of(at + i) != SMEM || *(uint64_t *)(at + i) != i + 1;
	check(req.moved_pages == bytes / PAGE && !wrong, "%s: and back, %llu pages, %u wrong", kind,
	      req.moved_pages, wrong);
	munmap(at, bytes);
}

/* Fill FMEM; a migration into it must then be refused, and OOM nobody. */
static void migrate_without_room(void)
{
	/* Bounded by FMEM's size: a mistake in the room must fail, not panic. */
	size_t step = 4UL << 20, used = 0, most = node_bytes(FMEM);
	struct demeter_hammer_migrate probe = { .max_pages = 0, .target_nid = FMEM };
	struct demeter_hammer_migrate req = { .max_pages = 16, .target_nid = FMEM };
	char *victim = map_on(SMEM, 16 * PAGE, false);
	char *filler = reserve(most);

	madvise(filler, most, MADV_NOHUGEPAGE);
	area_set(&probe.area, getpid(), SMEM, victim, PAGE);
	area_set(&req.area, getpid(), SMEM, victim, 16 * PAGE);
	prefer_node(FMEM, false);
	for (; used < most; used += step) {
		device_call(DEMETER_HAMMER_MIGRATE, &probe);
		if (!probe.room_pages)
			break;
		if (probe.room_pages * PAGE < step)
			step = 16 * PAGE;
		memset(filler + used, 1, step);
	}
	prefer_node(-1, false);
	device_call(DEMETER_HAMMER_MIGRATE, &req);
	check(!req.moved_pages && req.refused[reason("no_room")] == 16 && node_of(victim) == SMEM,
	      "refused: no_room (filled %zu MiB, moved %llu)", used >> 20, req.moved_pages);
	munmap(filler, most);
	munmap(victim, 16 * PAGE);
}

/* Words that a load cannot reach end an exchange, and nothing has changed. */
static void unreadable_words(void)
{
	struct demeter_hammer_contents req = {};

	device_call(DEMETER_HAMMER_CONTENTS, &req);
	check(req.checks > 1000 && !req.wrong,
	      "contents: %llu exchanges with memory that cannot be read, %llu mistakes", req.checks,
	      req.wrong);
}

/* Has the kernel taken a page from its owner? Asked without a signal. */
static bool is_taken(const char *at)
{
	int ends[2];
	bool taken;

	if (pipe(ends))
		return false;
	taken = write(ends[1], at, 1) < 0 && errno == EFAULT;
	close(ends[0]);
	close(ends[1]);
	return taken;
}

/*
 * A page that cannot be read stays, its partner too, all others move; the kernel
 * hears of it and keeps its owner from reading it.
 */
static void unreadable_page(bool thp)
{
	const char *kind = thp ? "THP" : "4K";
	size_t bytes = thp ? 4 * THP : 256 * PAGE, bad = bytes / 2 + (thp ? 5 * PAGE : 0), i;
	size_t pages = bytes / PAGE, stay = thp ? 512 : 1;
	char *hot = map_on(SMEM, bytes, thp), *cold = map_on(FMEM, bytes, thp);
	struct demeter_hammer_exchange req = { .max_pages = pages, .batch_pairs = 64 };
	struct demeter_hammer_hold hold = { .state = DEMETER_HAMMER_UNREADABLE };
	unsigned int wrong = 0;

	stamp_all(hot, bytes, 1);
	stamp_all(cold, bytes, 2);
	area_set(&req.hot, getpid(), SMEM, hot, bytes);
	area_set(&req.cold, getpid(), FMEM, cold, bytes);
	hold.addr = (uintptr_t)hot + bad;
	device_call(DEMETER_HAMMER_HOLD, &hold);
	device_call(DEMETER_HAMMER_EXCHANGE, &req);
	device_call(DEMETER_HAMMER_RELEASE, NULL);
	/* The kernel's own handling is done by a worker. */
	sleep(1);
	check(req.promoted_pages == pages - stay && req.refused[reason("poison")] == 2 * stay,
	      "%s: one page cannot be read: %llu of %zu pages exchanged, %llu refused", kind,
	      req.promoted_pages, pages, req.refused[reason("poison")]);
	for (i = 0; i < bytes; i += 64) {
		wrong += *(volatile uint64_t *)(cold + i) != i * 7 + 2;
		if (i / PAGE != bad / PAGE)
			wrong += *(volatile uint64_t *)(hot + i) != i * 7 + 1;
	}
	check(!wrong, "%s: one page cannot be read: %u other words wrong", kind, wrong);
	check(is_taken(hot + bad) && !is_taken(hot + bad - PAGE) && !is_taken(hot + bad + PAGE),
	      "%s: the kernel has taken that page and no other", kind);
	munmap(hot, bytes);
	munmap(cold, bytes);
}

void test_basics(void)
{
	/* Pages just touched wait in a batch of the CPU: stay where it is drained. */
	pin_cpu(0);
	exchange_once(false);
	exchange_once(true);
	match_once("hot small, may collapse", false, true);
	match_once("hot small, may not", false, false);
	match_once("hot huge", true, false);
	match_holes();
	match_zeros();
	unreadable_words();
	migrate_once(false);
	migrate_once(true);
	migrate_without_room();
	unreadable_page(false);
	unreadable_page(true);
	check(kernel_log_clean(), "basics: kernel log clean");
}
