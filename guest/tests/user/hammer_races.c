// SPDX-License-Identifier: GPL-2.0-only
/*
 * Exchange under everything that changes page tables at the same time: fork and
 * copy on write, exit and kill, MADV_DONTNEED, mremap, mprotect, MADV_PAGEOUT.
 * Children live for a few hundred steps each, so that exits are frequent.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hammer.h"

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

struct race_control {
	volatile int ready;
	volatile uint64_t errors, steps;
	char *volatile arena;
};

struct race {
	struct race_control *control;
	char *arena; /* the units, then as much again to park moved ones */
	size_t unit_bytes, units;
	uint32_t *round;
	bool swap;
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
static uint64_t step_fork(struct race *race, bool parent_writes)
{
	int status = 0;
	uint64_t wrong = 0;
	size_t unit;
	pid_t pid = fork();

	if (!pid) {
		for (unit = 0; unit < race->units; unit++) {
			wrong += verify_unit(race, unit);
			*(volatile uint64_t *)unit_at(race, unit) = 7;
		}
		_exit(wrong ? 1 : 0);
	}
	if (parent_writes)
		for (unit = 0; unit < race->units; unit++)
			write_unit(race, unit);
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
	uint64_t wrong = wrong_at(race, unit, unit_at(race, unit), offset);

	write_unit(race, unit);
	switch ((random >> 32) % 32) {
	case 0:
		return wrong + step_fork(race, random >> 50 & 1);
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
		if (race->swap)
			madvise(unit_at(race, unit),
				(race->units - unit < 8 ? race->units - unit : 8) *
					race->unit_bytes,
				MADV_PAGEOUT);
		break;
	}
	return wrong;
}

static void race_child(struct race *race, bool thp, unsigned int steps, uint64_t seed)
{
	size_t bytes = race->units * race->unit_bytes, unit;

	race->arena = reserve(2 * bytes);
	touch_on(FMEM, race->arena, bytes / 2, thp);
	touch_on(SMEM, race->arena + bytes / 2, bytes / 2, thp);
	race->round = calloc(race->units, sizeof(*race->round));
	for (unit = 0; unit < race->units; unit++)
		write_unit(race, unit);
	race->control->arena = race->arena;
	race->control->ready = 1;
	while (steps--) {
		race->control->errors += race_step(race, next_random(&seed));
		race->control->steps++;
	}
	if (seed & 1)
		kill(getpid(), SIGKILL);
	_exit(0);
}

struct race_result {
	uint64_t exchanges, calls, errors, steps, children;
	uint64_t refused[DEMETER_HAMMER_REASONS];
};

/* One child from birth to death, its pages exchanged all the while. */
static void race_round(struct race *race, bool thp, uint64_t *state, struct race_result *result)
{
	size_t bytes = race->units * race->unit_bytes;
	uint64_t seed = next_random(state);
	int status, i;
	pid_t pid;

	memset(race->control, 0, sizeof(*race->control));
	pid = fork();
	if (!pid)
		race_child(race, thp, race->swap ? 3000 : thp ? 100 : 600, seed);
	result->children++;
	while (!race->control->ready && !waitpid(pid, &status, WNOHANG))
		sched_yield();

	while (waitpid(pid, &status, WNOHANG) == 0) {
		uint64_t random = next_random(state);
		struct demeter_hammer_exchange req = {
			.max_pages = (1 + random % (race->units / 2)) * (race->unit_bytes / PAGE),
			.batch_pairs = random >> 20 & 1 ? 64 : 8,
			.pause_ms = random >> 24 & 7 ? 0 : 1,
		};

		area_set(&req.hot, pid, SMEM, race->control->arena, 2 * bytes);
		area_set(&req.cold, pid, FMEM, race->control->arena, 2 * bytes);
		if (device_call(DEMETER_HAMMER_EXCHANGE, &req))
			continue;
		result->calls++;
		result->exchanges += req.promoted_pages / (race->unit_bytes / PAGE);
		for (i = 0; i < DEMETER_HAMMER_REASONS; i++)
			result->refused[i] += req.refused[i];
	}
	result->errors += race->control->errors;
	if (!(WIFEXITED(status) && !WEXITSTATUS(status)) &&
	    !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)) {
		printf("#   child died: status %d\n", status);
		result->errors++;
	}
	result->steps += race->control->steps;
}

static void race_phase(const char *name, struct race *race, bool thp, unsigned int seconds)
{
	uint64_t begin = now_ns(), state = 0x5eed0001 + thp + 2 * race->swap;
	struct race_result result = { 0 };
	long free_before, free_after;

	pin_cpu(-1);
	race->control = shared_page(sizeof(*race->control));
	settle();
	free_before = free_kib();
	while ((now_ns() - begin) / 1000000000 < seconds)
		race_round(race, thp, &state, &result);
	settle();
	free_after = free_kib();
	exchanges_total += result.exchanges;

	printf("#   %s: %llu exchanges in %llu calls, %llu children, %llu steps; refused:", name,
	       (unsigned long long)result.exchanges, (unsigned long long)result.calls,
	       (unsigned long long)result.children, (unsigned long long)result.steps);
	print_refused(result.refused);
	putchar('\n');
	check(result.exchanges > 0, "%s: pages were exchanged", name);
	check(!result.errors, "%s: %llu errors", name, (unsigned long long)result.errors);
	/* Not after swapping: what zram keeps is not ours to judge. */
	check(race->swap || free_before - free_after < 24 << 10, "%s: no memory lost (%ld KiB)",
	      name, free_before - free_after);
	check(kernel_log_clean(), "%s: kernel log clean", name);
}

void test_races(unsigned int seconds, bool thp)
{
	struct race race = { .unit_bytes = thp ? THP : PAGE, .units = thp ? 12 : 256 };

	race_phase(thp ? "THP races" : "4K races", &race, thp, seconds);
}

void test_swap_races(unsigned int seconds)
{
	struct race race = { .unit_bytes = PAGE, .units = 512, .swap = true };
	long before = read_key("/proc/vmstat", "pswpout"), after;

	race_phase("swap races", &race, false, seconds);
	after = read_key("/proc/vmstat", "pswpout");
	check(after > before, "swap races: %ld pages went out meanwhile", after - before);
}
