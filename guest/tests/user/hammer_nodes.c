// SPDX-License-Identifier: GPL-2.0-only
/*
 * Who says where memory may be: mempolicies, cpusets, and whoever takes a piece of
 * the memory away.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hammer.h"

#define PAGES		256UL
#define NODE_DIR	"/sys/devices/system/node/node1"
#define GROUP		"/cg/placed"
#define MPOL_DEFAULT	0
#define MPOL_BIND	2
#define MPOL_MF_MOVE	2
#define STEPS_PER_BLOCK 128 /* taking 128 MiB away takes long */

/* ---- pieces of memory that go and come */

/* Write to the state of a block of SMEM; quiet, as a refusal is usual. */
static bool block_is_now(int block, const char *state)
{
	char path[96];
	FILE *file;
	bool good;

	snprintf(path, sizeof(path), "%s/memory%d/state", NODE_DIR, block);
	file = fopen(path, "we");
	if (!file)
		return false;
	good = fputs(state, file) >= 0;
	return !fclose(file) && good;
}

static int nr_blocks(int *blocks, int most)
{
	DIR *dir = opendir(NODE_DIR);
	struct dirent *entry;
	int nr = 0;

	while (dir && nr < most && (entry = readdir(dir)))
		nr += sscanf(entry->d_name, "memory%d", &blocks[nr]) == 1;
	if (dir)
		closedir(dir);
	return nr;
}

/* The next block that the kernel lets go, or -1. */
static int take_block(void)
{
	static unsigned int turn;
	int blocks[64], nr = nr_blocks(blocks, 64), i;

	for (i = 0; i < nr; i++) {
		int block = blocks[turn++ % nr];

		if (block_is_now(block, "offline"))
			return block;
	}
	return -1;
}

static bool give_block(int block)
{
	return block_is_now(block, "online_movable") || block_is_now(block, "online");
}

/* ---- cpusets */

static bool group_open(void)
{
	static bool is_open;

	if (is_open)
		return true;
	mkdir("/cg", 0755);
	mount("cgroup", "/cg", "cgroup2", 0, NULL); /* by another phase, maybe */
	if (!write_file("/cg/cgroup.subtree_control", "+cpuset"))
		return false;
	mkdir(GROUP, 0755);
	is_open = write_file(GROUP "/cpuset.mems", "0-1");
	return is_open;
}

void join_group(void)
{
	char text[16];

	snprintf(text, sizeof(text), "%d", getpid());
	if (group_open())
		write_file(GROUP "/cgroup.procs", text);
}

/*
 * One step of a race: now and then take a block of SMEM away, or give it back, or change
 * the nodes that the racers may use. Returns blocks taken.
 */
unsigned int disturb_nodes(uint64_t random, bool at_end)
{
	static const char *const mems[] = { "0-1", "1", "0-1", "0" };
	static int block = -1;
	static unsigned int steps;

	if (at_end) {
		if (block >= 0)
			give_block(block);
		block = -1;
		write_file(GROUP "/cpuset.mems", "0-1");
		return 0;
	}
	steps++;
	if (steps % 32 == 0)
		write_file(GROUP "/cpuset.mems", mems[random % 4]);
	if (steps % STEPS_PER_BLOCK)
		return 0;
	if (block >= 0) {
		give_block(block);
		block = -1;
		return 0;
	}
	block = take_block();
	return block >= 0;
}

/* Bind memory to one node, then to none. What cannot be moved stays. */
void bind_step(char *at, size_t bytes, uint64_t random)
{
	unsigned long mask = 1UL << (random & 1);

	syscall(SYS_mbind, at, bytes, MPOL_BIND, &mask, 64UL, MPOL_MF_MOVE);
	syscall(SYS_mbind, at, bytes, MPOL_DEFAULT, NULL, 0UL, 0U);
}

/* ---- one after the other */

/* Exchange a process's memory in SMEM with ours in FMEM, heeding who forbids it. */
static void expect(const char *what, pid_t owner, char *at, bool refused)
{
	char *other = map_on(FMEM, PAGES * PAGE, false);
	struct demeter_hammer_exchange req = { .max_pages = PAGES, .batch_pairs = 64, .bound = 1 };
	uint64_t policy;

	device_call(DEMETER_HAMMER_DRAIN, NULL);
	area_set(&req.hot, owner, SMEM, at, PAGES * PAGE);
	area_set(&req.cold, getpid(), FMEM, other, PAGES * PAGE);
	device_call(DEMETER_HAMMER_EXCHANGE, &req);
	exchanges_total += req.promoted_pages;
	policy = req.refused[reason("policy")];
	check(refused ? policy == PAGES && !req.promoted_pages : req.promoted_pages == PAGES,
	      "%s: %llu of %lu pages refused for a policy, %llu exchanged", what,
	      (unsigned long long)policy, PAGES, (unsigned long long)req.promoted_pages);
	munmap(other, PAGES * PAGE);
}

static void heed_policies(void)
{
	char *at = map_on(SMEM, PAGES * PAGE, false);
	unsigned long slow = 1UL << SMEM;

	syscall(SYS_mbind, at, PAGES * PAGE, MPOL_BIND, &slow, 64UL, 0U);
	expect("bound by mbind()", getpid(), at, true);
	syscall(SYS_mbind, at, PAGES * PAGE, MPOL_DEFAULT, NULL, 0UL, 0U);
	expect("bound no longer", getpid(), at, false);
	munmap(at, PAGES * PAGE);
}

struct bound_child {
	char *volatile at;
	volatile int wrong;
};

static void heed_groups(void)
{
	struct bound_child *control = shared_page(sizeof(*control));
	char byte;
	int ends[2];
	size_t i;
	pid_t pid;

	if (!group_open() || !write_file(GROUP "/cpuset.mems", "1") || pipe(ends)) {
		check(false, "cpuset: set up");
		return;
	}
	pid = fork();
	if (!pid) {
		char *at;

		close(ends[1]);
		join_group();
		at = map_on(SMEM, PAGES * PAGE, false);
		control->at = at;
		if (read(ends[0], &byte, 1) < 0)
			_exit(1);
		for (i = 0; i < PAGES * PAGE; i += PAGE)
			control->wrong += *(volatile uint64_t *)(at + i) != i + 1;
		_exit(0);
	}
	while (!control->at)
		usleep(1000);
	expect("bound by a cpuset", pid, control->at, true);
	write_file(GROUP "/cpuset.mems", "0-1");
	expect("a cpuset of both nodes", pid, control->at, false);
	/* The kernel itself moves them back now. */
	write_file(GROUP "/cpuset.mems", "1");
	close(ends[0]);
	close(ends[1]);
	waitpid(pid, NULL, 0);
	check(!control->wrong, "cpuset: %d words wrong", control->wrong);
	write_file(GROUP "/cpuset.mems", "0-1");
}

static void survive_unplug(void)
{
	size_t bytes = 16UL << 20, i;
	char *at = map_on(SMEM, bytes, false), *other = map_on(FMEM, bytes, false);
	struct demeter_hammer_exchange req = { .max_pages = 1024, .batch_pairs = 64 };
	uint64_t exchanged = 0;
	int round, taken = 0, wrong = 0;

	for (round = 0; round < 4; round++) {
		int block = take_block();

		taken += block >= 0;
		/* There and back, so that each finds something on either node. */
		area_set(&req.hot, getpid(), SMEM, round & 1 ? other : at, bytes);
		area_set(&req.cold, getpid(), FMEM, round & 1 ? at : other, bytes);
		device_call(DEMETER_HAMMER_EXCHANGE, &req);
		exchanged += req.promoted_pages;
		if (block >= 0)
			wrong += !give_block(block);
	}
	exchanges_total += exchanged;
	for (i = 0; i < bytes; i += PAGE)
		wrong += (*(volatile uint64_t *)(at + i) != i + 1) +
			 (*(volatile uint64_t *)(other + i) != i + 1);
	check(taken && exchanged && !wrong,
	      "hotplug: memory went %d times, %llu exchanges meanwhile, %d wrong", taken,
	      (unsigned long long)exchanged, wrong);
	munmap(at, bytes);
	munmap(other, bytes);
}

void test_nodes(void)
{
	pin_cpu(0);
	heed_policies();
	heed_groups();
	survive_unplug();
	check(kernel_log_clean(), "nodes: kernel log clean");
}
