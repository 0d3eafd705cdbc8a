// SPDX-License-Identifier: GPL-2.0-only
/*
 * Sustained exchange of pages that two threads, on two CPUs, keep rewriting.
 * Each thread owns every other group of words and knows what each must hold, so
 * any byte that a copy loses, duplicates or resurrects is seen.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hammer.h"

#define THREADS 2
#define WORDS	(PAGE / sizeof(uint64_t))

struct load_control {
	volatile int ready, stop;
	volatile uint64_t visits[THREADS], errors[THREADS];
	volatile uint64_t final_errors;
	char *volatile arena;
};

struct load {
	struct load_control *control;
	char *arena;
	size_t unit_bytes, units;
	unsigned int word_step; /* THPs are sampled: checking all would be all it does */
	uint32_t *round[THREADS];
};

struct worker {
	struct load *load;
	int index;
};

static uint64_t expected(uint64_t unit, uint64_t round, uint64_t word)
{
	return (unit * 0x9e3779b97f4a7c15ULL) ^ (round << 24) ^ (word * 0xd1b54a32d192ed03ULL);
}

static uint64_t verify_unit(const struct load *load, int thread, size_t unit)
{
	volatile uint64_t *words = (uint64_t *)(load->arena + unit * load->unit_bytes);
	uint64_t wrong = 0;
	size_t w;

	for (w = thread; w < load->unit_bytes / 8; w += load->word_step)
		wrong += words[w] != expected(unit, load->round[thread][unit], w);
	return wrong;
}

static void *worker_main(void *argument)
{
	struct worker *worker = argument;
	struct load *load = worker->load;
	uint64_t state = 88172645463325252ULL + worker->index * 7777777;

	pin_cpu(worker->index);
	while (!load->control->stop) {
		size_t unit = next_random(&state) % load->units;
		volatile uint64_t *words = (uint64_t *)(load->arena + unit * load->unit_bytes);
		uint64_t wrong = verify_unit(load, worker->index, unit);
		uint32_t round = ++load->round[worker->index][unit];
		size_t w;

		for (w = worker->index; w < load->unit_bytes / 8; w += load->word_step)
			words[w] = expected(unit, round, w);
		load->control->errors[worker->index] += wrong;
		load->control->visits[worker->index]++;
	}
	return NULL;
}

static void load_child(struct load *load, bool thp)
{
	struct worker workers[THREADS];
	pthread_t threads[THREADS];
	size_t bytes = load->units * load->unit_bytes, unit, w;
	uint64_t wrong = 0;
	int i;

	load->arena = reserve(bytes);
	touch_on(FMEM, load->arena, bytes / 2, thp);
	touch_on(SMEM, load->arena + bytes / 2, bytes / 2, thp);
	for (unit = 0; unit < load->units; unit++)
		for (w = 0; w < load->unit_bytes / 8; w++)
			((uint64_t *)(load->arena + unit * load->unit_bytes))[w] =
				expected(unit, 0, w);
	for (i = 0; i < THREADS; i++)
		load->round[i] = calloc(load->units, sizeof(uint32_t));
	load->control->arena = load->arena;
	load->control->ready = 1;
	for (i = 0; i < THREADS; i++) {
		workers[i] = (struct worker){ load, i };
		pthread_create(&threads[i], NULL, worker_main, &workers[i]);
	}
	for (i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	for (unit = 0; unit < load->units; unit++)
		for (i = 0; i < THREADS; i++)
			wrong += verify_unit(load, i, unit);
	load->control->final_errors = wrong;
	_exit(0);
}

void test_load(bool thp, const struct quota *quota)
{
	struct load load = {
		.control = shared_page(sizeof(struct load_control)),
		.unit_bytes = thp ? THP : PAGE,
		.units = thp ? 32 : 2048,
		.word_step = thp ? 32 * THREADS : 8 * THREADS,
	};
	const char *kind = thp ? "THP" : "4K";
	static const uint32_t batches[] = { 1, 16, 64, 512 };
	uint64_t refused[DEMETER_HAMMER_REASONS] = { 0 };
	uint64_t state = 1234567, done = 0, calls = 0, spent_ns = 0, errors;
	size_t bytes = load.units * load.unit_bytes;
	uint64_t begin;
	int status, i;
	pid_t pid;

	pin_cpu(-1);
	pid = fork();
	if (!pid)
		load_child(&load, thp);
	while (!load.control->ready)
		usleep(1000);

	/* Three want two CPUs: let the exchange have most of one. */
	setpriority(PRIO_PROCESS, 0, -10);
	begin = now_ns();
	do {
		struct demeter_hammer_exchange req = {
			/* From all of it down to a few, so that any two pages may meet. */
			.max_pages = (load.units / 2 >> calls % 5) * (load.unit_bytes / PAGE),
			.batch_pairs = batches[calls % 4],
		};
		size_t hot_at = next_random(&state) % load.units * load.unit_bytes;
		size_t cold_at = next_random(&state) % load.units * load.unit_bytes;

		area_set(&req.hot, pid, SMEM, load.control->arena + hot_at, bytes - hot_at);
		area_set(&req.cold, pid, FMEM, load.control->arena + cold_at, bytes - cold_at);
		if (device_call(DEMETER_HAMMER_EXCHANGE, &req))
			break;
		calls++;
		done += req.promoted_pages / (load.unit_bytes / PAGE);
		spent_ns += req.exchange_ns;
		for (i = 0; i < DEMETER_HAMMER_REASONS; i++)
			refused[i] += req.refused[i];
	} while (quota_open(quota, done, begin));

	setpriority(PRIO_PROCESS, 0, 0);
	load.control->stop = 1;
	waitpid(pid, &status, 0);
	errors = load.control->errors[0] + load.control->errors[1] + load.control->final_errors;
	exchanges_total += done;
	printf("#   %s load: %llu exchanges in %llu calls, %llu s, %llu ns each; visits %llu + %llu; refused:",
	       kind, (unsigned long long)done, (unsigned long long)calls,
	       (unsigned long long)(now_ns() - begin) / 1000000000,
	       (unsigned long long)(done ? spent_ns / done : 0),
	       (unsigned long long)load.control->visits[0],
	       (unsigned long long)load.control->visits[1]);
	print_refused(refused);
	putchar('\n');
	check(done >= quota->exchanges, "%s load: %llu exchanges, wanted %llu", kind,
	      (unsigned long long)done, (unsigned long long)quota->exchanges);
	check(!errors && !status, "%s load: %llu words wrong, child status %d", kind,
	      (unsigned long long)errors, status);
	check(load.control->visits[0] > 100 && load.control->visits[1] > 100,
	      "%s load: both threads ran", kind);
	check(kernel_log_clean(), "%s load: kernel log clean", kind);
}
