// SPDX-License-Identifier: GPL-2.0-only
/*
 * Exchange between memory cgroups: the charges must stay what they were, follow
 * the contents across the nodes, and be gone when the processes are.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hammer.h"

#define PAGES 1024UL

struct member {
	volatile int ready;
	volatile int wrong;
	char *volatile small;
	char *volatile huge;
};

static const char *const group_dir[2] = { "/cg/fast", "/cg/slow" };

static void group_path(char *path, size_t size, int group, const char *file)
{
	snprintf(path, size, "%s/%s", group_dir[group], file);
}

/* Anonymous bytes of a group on a node. */
static long group_anon(int group, int node)
{
	char path[64], text[8192], key[8], *at;

	group_path(path, sizeof(path), group, "memory.numa_stat");
	read_file(path, text, sizeof(text));
	snprintf(key, sizeof(key), "N%d=", node);
	at = strstr(text, "anon ");
	at = at ? strstr(at, key) : NULL;
	return at ? strtol(at + 3, NULL, 10) : -1;
}

static long group_current(int group)
{
	char path[64], text[64];

	group_path(path, sizeof(path), group, "memory.current");
	read_file(path, text, sizeof(text));
	return atol(text);
}

/* How often a group was at its limit. */
static long group_at_max(int group)
{
	char path[64], text[512], *at;

	group_path(path, sizeof(path), group, "memory.events");
	read_file(path, text, sizeof(text));
	at = strstr(text, "\nmax ");
	return at ? atol(at + 5) : -1;
}

static void member_child(struct member *member, int group, int release)
{
	char path[64], text[16], byte;
	size_t i;

	group_path(path, sizeof(path), group, "cgroup.procs");
	snprintf(text, sizeof(text), "%d", getpid());
	write_file(path, text);
	/* group 0 sits in FMEM, group 1 in SMEM */
	member->small = map_on(group, PAGES * PAGE, false);
	member->huge = map_on(group, 2 * THP, true);
	for (i = 0; i < PAGES * PAGE / 8; i++)
		((volatile uint64_t *)member->small)[i] = i * (group + 3);
	madvise(member->small, PAGES * PAGE, MADV_HUGEPAGE);
	member->ready = 1;
	if (read(release, &byte, 1) < 0)
		_exit(1);
	for (i = 0; i < PAGES * PAGE / 8; i++)
		member->wrong += ((volatile uint64_t *)member->small)[i] != i * (group + 3);
	_exit(0);
}

/* From Linux 7 on a charge is by node: no page may be exchanged for one of another group. */
static bool charges_by_node(void)
{
	struct utsname name;

	return !uname(&name) && atoi(name.release) >= 7;
}

/*
 * Hot 4 KiB pages meet a cold THP in FMEM: no THP is made of them while their group is
 * near its limit, and one is when it is not.
 */
static void collapse_at_limit(const struct member *members, const pid_t *pids)
{
	/* Those that are in SMEM by now. */
	int group = charges_by_node(), half, tries;
	char path[64], text[32];
	long events;

	group_path(path, sizeof(path), group, "memory.max");
	for (half = 0; half < 2; half++) {
		struct demeter_hammer_exchange req = {
			.max_pages = THP / PAGE,
			.batch_pairs = 64,
			.match = 1,
		};

		snprintf(text, sizeof(text), "%ld", group_current(group) + (long)THP / 2);
		check(write_file(path, half ? "max" : text), "memcg: limit set");
		events = group_at_max(group);
		area_set(&req.hot, pids[group], SMEM, members[group].small + half * THP, THP);
		area_set(&req.cold, pids[0], FMEM, members[0].huge + half * THP, THP);
		/* A page that waits in another CPU's batch cannot be taken: not at once, that is. */
		for (tries = 0; tries < (half ? 20 : 1) && !req.collapsed_pages; tries++) {
			usleep(tries * 50000);
			device_call(DEMETER_HAMMER_EXCHANGE, &req);
			exchanges_total += req.promoted_pages;
		}
		check(req.collapsed_pages == (half ? THP / PAGE : 0) &&
			      group_at_max(group) == events,
		      "memcg: %s its limit %llu pages are collapsed, met %ld times",
		      half ? "far from" : "near", req.collapsed_pages,
		      group_at_max(group) - events);
	}
}

void test_memcg(void)
{
	struct member *members = shared_page(2 * sizeof(*members));
	struct demeter_hammer_exchange req = { .max_pages = PAGES, .batch_pairs = 64 };
	long current[2], anon[2][2], slack = 64 * PAGE;
	int pipes[2], g, tries, left = 0;
	pid_t pids[2];

	mkdir("/cg", 0755);
	if (mount("cgroup", "/cg", "cgroup2", 0, NULL) ||
	    !write_file("/cg/cgroup.subtree_control", "+memory") || pipe(pipes)) {
		check(false, "memcg: set up");
		return;
	}
	hasten_khugepaged(false);
	for (g = 0; g < 2; g++) {
		mkdir(group_dir[g], 0755);
		pids[g] = fork();
		if (!pids[g]) {
			close(pipes[1]);
			member_child(&members[g], g, pipes[0]);
		}
		while (!members[g].ready)
			usleep(1000);
	}
	settle();
	usleep(2500000); /* cgroup statistics are flushed every two seconds */
	for (g = 0; g < 2; g++) {
		current[g] = group_current(g);
		anon[g][0] = group_anon(g, 0);
		anon[g][1] = group_anon(g, 1);
	}

	area_set(&req.hot, pids[1], SMEM, members[1].small, PAGES * PAGE);
	area_set(&req.cold, pids[0], FMEM, members[0].small, PAGES * PAGE);
	device_call(DEMETER_HAMMER_EXCHANGE, &req);
	exchanges_total += req.promoted_pages;
	if (charges_by_node())
		check(!req.promoted_pages && req.refused[reason("memcg")] >= PAGES,
		      "memcg: no page exchanged across groups, %llu refused",
		      req.refused[reason("memcg")]);
	else
		check(req.promoted_pages >= PAGES - 64,
		      "memcg: %llu of %lu pages exchanged across groups", req.promoted_pages,
		      PAGES);
	usleep(2500000);
	for (g = 0; g < 2; g++) {
		long moved = req.promoted_pages * PAGE;
		long here = group_anon(g, g), there = group_anon(g, !g);

		check(labs(group_current(g) - current[g]) <= slack,
		      "memcg: %s is charged as before (%ld, was %ld)", group_dir[g],
		      group_current(g), current[g]);
		check(labs(here - (anon[g][g] - moved)) <= slack &&
			      labs(there - (anon[g][!g] + moved)) <= slack,
		      "memcg: %s is charged where its pages are (%ld and %ld)", group_dir[g], here,
		      there);
	}

	area_set(&req.hot, pids[1], SMEM, members[1].huge, 2 * THP);
	area_set(&req.cold, pids[0], FMEM, members[0].huge, 2 * THP);
	device_call(DEMETER_HAMMER_EXCHANGE, &req);
	check(req.refused[reason("memcg")] == 4 * 512 && !req.promoted_pages,
	      "refused: memcg (THPs of two groups, %llu pages)", req.refused[reason("memcg")]);

	collapse_at_limit(members, pids);
	close(pipes[0]);
	close(pipes[1]);
	for (g = 0; g < 2; g++)
		waitpid(pids[g], NULL, 0);
	check(!members[0].wrong && !members[1].wrong, "memcg: contents kept");
	for (tries = 0; tries < 50; tries++) {
		left = !!group_current(0) + !!group_current(1);
		if (!left)
			break;
		usleep(100000);
	}
	printf("#   left after exit: %ld and %ld bytes\n", group_current(0), group_current(1));
	/* What the last one of a group returned stays in stock on each CPU where one ran. */
	slack *= sysconf(_SC_NPROCESSORS_ONLN);
	check(group_current(0) <= slack && group_current(1) <= slack,
	      "memcg: nothing stays charged after exit");
	check(!rmdir(group_dir[0]) && !rmdir(group_dir[1]), "memcg: groups can be removed");
	check(kernel_log_clean(), "memcg: kernel log clean");
}
