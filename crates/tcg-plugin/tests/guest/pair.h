/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Of the test guest: two threads at once, each on a vCPU of its own, both sampled. */

static struct {
	uint64_t *words; /* each thread's half after the other's */
	size_t half_bytes;
	long rounds;
} pair;

/* Labels around what perf samples; what demeter.ko samples has those of module.h. */
#define MARK_PERF_BEGUN 1003
#define MARK_PERF_ENDED 1004

static void *sampled_by_perf(void *cpu)
{
	uint64_t *words = pair.words + (long)cpu * pair.half_bytes / 8;
	char name[16];

	bind_to((long)cpu);
	start_sampling(511);
	updates(words, pair.half_bytes / 8, pair.rounds);
	stop_sampling();
	snprintf(name, sizeof(name), "pair%ld", (long)cpu);
	compare_samples(name, words, pair.half_bytes);
	return NULL;
}

static void *sampled_by_module(void *cpu)
{
	bind_to((long)cpu);
	updates_with_sleeps(pair.words + (long)cpu * pair.half_bytes / 8, pair.half_bytes, pair.rounds);
	return NULL;
}

static void on_both_vcpus(void *(*work)(void *))
{
	pthread_t threads[2];

	for (long cpu = 0; cpu < 2; cpu++)
		pthread_create(&threads[cpu], NULL, work, (void *)cpu);
	for (int cpu = 0; cpu < 2; cpu++)
		pthread_join(threads[cpu], NULL);
}

static void test_pair(uint64_t *words, size_t bytes, long rounds)
{
	int error;

	pair.words = words;
	pair.half_bytes = bytes / 2;
	pair.rounds = rounds;
	MAGIC(DEMETER_OP_MODEL_ON, 0);
	MAGIC(DEMETER_OP_MARK, MARK_PERF_BEGUN);
	on_both_vcpus(sampled_by_perf);
	MAGIC(DEMETER_OP_MARK, MARK_PERF_ENDED);

	MAGIC(DEMETER_OP_MARK, MARK_BEGUN);
	bar_taken = 1;
	error = start_module("", "511");
	if (error)
		printf("RESULT refused errno=%d\n", error);
	on_both_vcpus(sampled_by_module);
	if (!error)
		stop_module("module");
	MAGIC(DEMETER_OP_MODEL_OFF, 0);
}
