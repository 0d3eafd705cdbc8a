// SPDX-License-Identifier: GPL-2.0-only
/*
 * Exchange under everything that changes page tables at the same time: fork and
 * copy on write, exit and kill, MADV_DONTNEED, mremap, mprotect, MADV_PAGEOUT, and in
 * one of them soft-dirty, userfaultfd, mbind, cpusets and memory that is unplugged.
 * Two children at a time, who trade pages among themselves and with each other,
 * live for a few hundred steps each, so that exits are frequent.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hammer.h"

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

#define RACERS 2

struct race_control {
	volatile int ready, stop;
	volatile uint64_t errors, steps;
	char *volatile arena;
};

struct race_traits {
	const char *name;
	size_t unit_bytes, units;
	size_t call_units;     /* in one call, at most */
	size_t fork_units;     /* written on both sides of a fork */
	unsigned int steps;    /* in the life of a child */
	unsigned int pageouts; /* of 32 steps */
	bool thp, sizes, nodes;
};

static const struct race_traits race_traits[] = {
	[RACE_SMALL] = { "4K races", PAGE, 1024, 512, 64, 2000, 0, false, false, false },
	[RACE_HUGE] = { "THP races", THP, 12, 6, 3, 200, 0, true, false, false },
	[RACE_SIZES] = { "size races", THP, 16, 3, 3, 200, 2, true, true, false },
	[RACE_SWAP] = { "swap races", PAGE, 1024, 512, 64, 3000, 8, false, false, false },
	[RACE_NODES] = { "node races", PAGE, 1024, 512, 64, 2000, 0, false, false, true },
};

struct race {
	const struct race_traits *traits;
	struct race_control *control;
	char *arena; /* the units, then as much again to park moved ones */
	size_t unit_bytes, units;
	uint32_t *round;
};

static char *unit_at(const struct race *race, size_t unit)
{
	return race->arena + unit * race->unit_bytes;
}

static uint64_t stamp(size_t unit, uint32_t round, size_t offset)
{
	return (unit + 1) * 0x9e3779b97f4a7c15ULL ^ (uint64_t)round << 20 ^ offset;
}

static void write_unit(struct race *race, size_t unit)
{
	char *at = unit_at(race, unit);
	size_t offset;

	race->round[unit]++;
	for (offset = 0; offset < race->unit_bytes; offset += PAGE) {
		*(volatile uint64_t *)(at + offset) = stamp(unit, race->round[unit], offset);
		*(volatile uint64_t *)(at + offset + PAGE - 8) =
			stamp(unit, race->round[unit], offset + 8);
	}
}

static uint64_t wrong_at(const struct race *race, size_t unit, const char *at, size_t offset)
{
	return (*(volatile uint64_t *)(at + offset) != stamp(unit, race->round[unit], offset)) +
	       (*(volatile uint64_t *)(at + offset + PAGE - 8) !=
		stamp(unit, race->round[unit], offset + 8));
}

static uint64_t verify_unit(const struct race *race, size_t unit)
{
	uint64_t wrong = 0;
	size_t offset;

	for (offset = 0; offset < race->unit_bytes; offset += PAGE)
		wrong += wrong_at(race, unit, unit_at(race, unit), offset);
	return wrong;
}

/* The child must see what was there at the fork, whatever the parent writes. */
static uint64_t step_fork(struct race *race, size_t first, bool parent_writes)
{
	size_t i, unit, count = race->traits->fork_units;
	uint64_t wrong = 0;
	int status = 0;
	pid_t pid = fork();

	if (!pid) {
		for (i = 0; i < count; i++) {
			unit = (first + i) % race->units;
			wrong += verify_unit(race, unit);
			*(volatile uint64_t *)unit_at(race, unit) = 7;
		}
		_exit(wrong ? 1 : 0);
	}
	for (i = 0; parent_writes && i < count; i++)
		write_unit(race, (first + i) % race->units);
	if (pid > 0)
		waitpid(pid, &status, 0);
	return status ? 1 : 0;
}

static uint64_t step_drop_page(struct race *race, size_t unit, size_t offset)
{
	volatile uint64_t *at = (uint64_t *)(unit_at(race, unit) + offset);
	uint64_t wrong;

	madvise((void *)at, PAGE, MADV_DONTNEED);
	wrong = *at != 0;
	at[0] = stamp(unit, race->round[unit], offset);
	at[PAGE / 8 - 1] = stamp(unit, race->round[unit], offset + 8);
	return wrong;
}

static uint64_t step_move(struct race *race, size_t unit)
{
	char *home = unit_at(race, unit), *away = unit_at(race, unit + race->units);
	uint64_t wrong = 0;

	if (mremap(home, race->unit_bytes, race->unit_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, away) ==
	    MAP_FAILED)
		return 0;
	wrong = wrong_at(race, unit, away, 0);
	sched_yield();
	if (mremap(away, race->unit_bytes, race->unit_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, home) ==
	    MAP_FAILED)
		return 1;
	return wrong;
}

static uint64_t race_step(struct race *race, uint64_t random)
{
	size_t unit = random % race->units;
	size_t offset = (random >> 20) % (race->unit_bytes / PAGE) * PAGE;
	uint64_t before = wrong_at(race, unit, unit_at(race, unit), offset), wrong = 0;
	unsigned int step = (random >> 32) % 32;

	write_unit(race, unit);
	switch (step) {
	case 0:
		wrong += step_fork(race, unit, random >> 50 & 1);
		break;
	case 1:
		madvise(unit_at(race, unit), race->unit_bytes, MADV_DONTNEED);
		write_unit(race, unit);
		break;
	case 2:
		wrong += step_drop_page(race, unit, offset);
		break;
	case 3:
	case 4:
		wrong += step_move(race, unit);
		break;
	case 5:
		mprotect(unit_at(race, unit) + offset, PAGE, PROT_READ);
		wrong += wrong_at(race, unit, unit_at(race, unit), offset);
		mprotect(unit_at(race, unit) + offset, PAGE, PROT_READ | PROT_WRITE);
		break;
	case 6:
		mprotect(unit_at(race, unit), race->unit_bytes, PROT_NONE);
		sched_yield();
		mprotect(unit_at(race, unit), race->unit_bytes, PROT_READ | PROT_WRITE);
		break;
	case 7 ... 14:
		if (step - 7 < race->traits->pageouts)
			madvise(unit_at(race, unit),
				(race->units - unit < 8 ? race->units - unit : 8) * PAGE,
				MADV_PAGEOUT);
		break;
	case 15 ... 18:
		if (race->traits->nodes)
			wrong += mark_step(unit_at(race, unit), race->unit_bytes, random >> 51);
		break;
	case 19:
	case 20:
		if (race->traits->nodes)
			bind_step(unit_at(race, unit), race->unit_bytes, random >> 51);
		break;
	}
	if (before || wrong)
		printf("#   %s: %llu words wrong before step %u, %llu mistakes in it\n",
		       race->traits->name, (unsigned long long)before, step,
		       (unsigned long long)wrong);
	return before + wrong;
}

/*
 * Half of the arena on each node. For the size races, half of each half in THPs:
 * the rest may become THPs, but is not yet.
 */
static void touch_arena(const struct race *race)
{
	size_t bytes = race->units * race->unit_bytes, unit;

	if (!race->traits->sizes) {
		touch_on(FMEM, race->arena, bytes / 2, race->traits->thp);
		touch_on(SMEM, race->arena + bytes / 2, bytes / 2, race->traits->thp);
		return;
	}
	for (unit = 0; unit < race->units; unit++)
		touch_on(unit & 1 ? SMEM : FMEM, unit_at(race, unit), race->unit_bytes, unit & 2);
	madvise(race->arena, 2 * bytes, MADV_HUGEPAGE);
}

static void race_child(struct race *race, uint64_t seed)
{
	struct race_control *control = race->control;
	unsigned int steps = race->traits->steps;
	size_t unit;

	setpriority(PRIO_PROCESS, 0, 0);
	if (race->traits->nodes)
		join_group();
	race->arena = reserve(2 * race->units * race->unit_bytes);
	touch_arena(race);
	prefer_both_nodes();
	race->round = calloc(race->units, sizeof(*race->round));
	for (unit = 0; unit < race->units; unit++)
		write_unit(race, unit);
	control->arena = race->arena;
	control->ready = 1;
	while (steps-- && !control->stop) {
		control->errors += race_step(race, next_random(&seed));
		control->steps++;
	}
	if (seed & 1)
		kill(getpid(), SIGKILL);
	_exit(0);
}

struct racer {
	struct race_control *control;
	pid_t pid;
};

struct race_result {
	uint64_t pages, calls, errors, steps, children;
	uint64_t collapsed_pages, split_pages, collapses_before, blocks;
	uint64_t refused[DEMETER_HAMMER_REASONS];
};

static void racer_start(struct racer *racer, struct race *race, uint64_t seed)
{
	memset(racer->control, 0, sizeof(*racer->control));
	race->control = racer->control;
	racer->pid = fork();
	if (!racer->pid)
		race_child(race, seed);
}

/* Whether it has died by now. */
static bool racer_reap(struct racer *racer, int flags, struct race_result *result)
{
	int status;

	if (waitpid(racer->pid, &status, flags) != racer->pid)
		return false;
	result->children++;
	result->steps += racer->control->steps;
	result->errors += racer->control->errors;
	if (!(WIFEXITED(status) && !WEXITSTATUS(status)) &&
	    !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)) {
		printf("#   child died: status %d\n", status);
		result->errors++;
	}
	return true;
}

/* From somewhere in a child's arena to its end: any two pages may meet. */
static void race_area(const struct race *race, const struct racer *racer, int nid, uint64_t random,
		      struct demeter_hammer_area *area)
{
	size_t skip = random % race->units * race->unit_bytes;

	area_set(area, racer->pid, nid, racer->control->arena + skip,
		 2 * race->units * race->unit_bytes - skip);
}

/* Some pages of one child for some of another, or of the same. */
static void race_exchange(const struct race *race, const struct racer *hot,
			  const struct racer *cold, uint64_t *state, struct race_result *result)
{
	uint64_t random = next_random(state);
	struct demeter_hammer_exchange req = {
		.max_pages = (1 + random % race->traits->call_units) * (race->unit_bytes / PAGE),
		.batch_pairs = random >> 20 & 1 ? 64 : 8,
		.pause_ms = random >> 24 & 15 ? 0 : 1,
		.match = race->traits->sizes,
	};
	int i;

	race_area(race, hot, SMEM, next_random(state), &req.hot);
	race_area(race, cold, FMEM, next_random(state), &req.cold);
	if (device_call(DEMETER_HAMMER_EXCHANGE, &req))
		return;
	result->calls++;
	result->pages += req.promoted_pages;
	result->collapsed_pages += req.collapsed_pages;
	result->split_pages += req.split_pages;
	for (i = 0; i < DEMETER_HAMMER_REASONS; i++)
		result->refused[i] += req.refused[i];
}

/* Collapse or split a few THPs, with no exchange after it. */
static void race_resize(const struct race *race, const struct racer *racer, uint64_t *state,
			struct race_result *result)
{
	uint64_t random = next_random(state);
	struct demeter_hammer_resize req = {
		/* Most of a long stretch are THPs already. */
		.max_pages = (1 + random % (random >> 20 & 1 ? 8 : 3)) * (THP / PAGE),
		.collapse = random >> 20 & 1,
		.pause_ms = random >> 24 & 15 ? 0 : 1,
	};

	race_area(race, racer, random >> 30 & 1, next_random(state), &req.area);
	if (!device_call(DEMETER_HAMMER_RESIZE, &req))
		result->split_pages += req.split_pages;
}

/*
 * Exchanges; in the size races, no more than four times what changed its size, in the
 * node races none before memory was unplugged.
 */
static uint64_t race_progress(const struct race_traits *traits, const struct race_result *result)
{
	uint64_t exchanges = result->pages / (traits->unit_bytes / PAGE), collapses, splits;

	if (traits->nodes && !result->blocks)
		return 0;
	if (!traits->sizes)
		return exchanges;
	/* khugepaged sleeps: the collapses are those asked for. */
	collapses = read_key("/proc/vmstat", "thp_collapse_alloc") - result->collapses_before;
	splits = result->split_pages / (THP / PAGE);
	if (exchanges > 4 * collapses)
		exchanges = 4 * collapses;
	return exchanges > 4 * splits ? 4 * splits : exchanges;
}

static void race(const struct race_traits *traits, const struct quota *quota,
		 struct race_result *result)
{
	struct race race = {
		.traits = traits,
		.unit_bytes = traits->unit_bytes,
		.units = traits->units,
	};
	uint64_t begin = now_ns(), state = 0x5eed0001 + traits->units * traits->steps;
	struct racer racer[RACERS];
	int i;

	for (i = 0; i < RACERS; i++) {
		racer[i].control = shared_page(sizeof(*racer[i].control));
		racer_start(&racer[i], &race, next_random(&state));
	}
	/* Four want two CPUs: let the exchange have most of one. */
	setpriority(PRIO_PROCESS, 0, -10);
	while (quota_open(quota, race_progress(traits, result), begin)) {
		uint64_t random = next_random(&state);
		struct racer *hot = &racer[(random >> 30) % RACERS];
		struct racer *cold = &racer[(random >> 40) % RACERS];

		for (i = 0; i < RACERS; i++)
			if (racer_reap(&racer[i], WNOHANG, result))
				racer_start(&racer[i], &race, random);
		if (traits->nodes)
			result->blocks += disturb_nodes(random >> 8, false);
		if (!hot->control->ready || !cold->control->ready)
			usleep(1000);
		else if (traits->sizes && random >> 50 & 1)
			race_resize(&race, hot, &state, result);
		else
			race_exchange(&race, hot, cold, &state, result);
	}
	setpriority(PRIO_PROCESS, 0, 0);
	if (traits->nodes)
		disturb_nodes(0, true);
	for (i = 0; i < RACERS; i++) {
		racer[i].control->stop = 1;
		racer_reap(&racer[i], 0, result);
	}
}

void test_races(enum race_kind kind, const struct quota *quota)
{
	const struct race_traits *traits = &race_traits[kind];
	struct race_result result = { 0 };
	long free_before, free_after, out = read_key("/proc/vmstat", "pswpout");
	uint64_t begin = now_ns(), exchanges, collapses;

	pin_cpu(-1);
	settle();
	free_before = free_kib();
	result.collapses_before = read_key("/proc/vmstat", "thp_collapse_alloc");
	hasten_khugepaged(kind == RACE_HUGE);
	race(traits, quota, &result);
	hasten_khugepaged(false);
	settle();
	free_after = free_kib();
	out = read_key("/proc/vmstat", "pswpout") - out;
	collapses = read_key("/proc/vmstat", "thp_collapse_alloc") - result.collapses_before;
	/* Too few for the size races, which exchange pages of both sizes. */
	exchanges = result.pages / (traits->unit_bytes / PAGE);
	exchanges_total += exchanges;
	exchanges_racing += exchanges;

	printf("#   %s: %llu pages exchanged in %llu calls, %llu s, %llu children, %llu steps; refused:",
	       traits->name, (unsigned long long)result.pages, (unsigned long long)result.calls,
	       (unsigned long long)(now_ns() - begin) / 1000000000,
	       (unsigned long long)result.children, (unsigned long long)result.steps);
	print_refused(result.refused);
	putchar('\n');
	check(exchanges && exchanges >= quota->exchanges, "%s: %llu exchanges, wanted %llu",
	      traits->name, (unsigned long long)exchanges, (unsigned long long)quota->exchanges);
	check(!result.errors, "%s: %llu errors", traits->name, (unsigned long long)result.errors);
	if (traits->sizes) {
		check(collapses >= quota->exchanges / 4,
		      "%s: %llu collapses, %llu pages by exchanges", traits->name,
		      (unsigned long long)collapses, (unsigned long long)result.collapsed_pages);
		check(result.split_pages / (THP / PAGE) >= quota->exchanges / 4,
		      "%s: %llu THPs split", traits->name,
		      (unsigned long long)result.split_pages / (THP / PAGE));
	}
	if (traits->nodes)
		check(result.blocks > 0, "%s: memory was unplugged %llu times", traits->name,
		      (unsigned long long)result.blocks);
	if (traits->pageouts)
		check(out > 0, "%s: %ld pages went out meanwhile", traits->name, out);
	else /* what zram keeps after swapping is not ours to judge */
		check(free_before - free_after < 24 << 10, "%s: no memory lost (%ld KiB)",
		      traits->name, free_before - free_after);
	check(kernel_log_clean(), "%s: kernel log clean", traits->name);
}
