/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Of the test guest: demeter.ko, and what it counted. */
#define MODULE "/sys/kernel/mm/demeter/"

/* Writes a file of demeter.ko; 0 or the error. */
static int set(const char *name, const char *value)
{
	char path[100];
	int fd, error = 0;

	snprintf(path, sizeof(path), MODULE "%s", name);
	fd = open(path, O_WRONLY);
	if (fd < 0 || write(fd, value, strlen(value)) < 0)
		error = errno;
	if (fd >= 0)
		close(fd);
	return error;
}

static long get(const char *name)
{
	char path[100];

	snprintf(path, sizeof(path), MODULE "stats/%s", name);
	return number_in(path);
}

/* Loads demeter.ko and lets it manage this process, moving nothing. */
static int start_module(const char *parameters, const char *period)
{
	int fd = open("/demeter.ko", O_RDONLY);
	char pid[16];

	if (fd < 0 || syscall(SYS_finit_module, fd, parameters, 0)) {
		printf("demeter.ko: %s\n", strerror(errno));
		return errno;
	}
	close(fd);
	snprintf(pid, sizeof(pid), "%d", getpid());
	set("params/sample_period", period);
	set("params/epoch_ms", "20");
	set("params/rate_pages_per_s", "0");
	set("targets/pid_add", pid);
	return set("enabled", "1");
}

/*
 * Labels in the time series around a module's test. The module takes the BAR for
 * itself while it is loaded, so that what the model counted is read there.
 */
#define MARK_BEGUN 1001
#define MARK_ENDED 1002

/* Lets it take what it has sampled, stops it and tells what it counted. */
static void stop_module(const char *name)
{
	nanosleep(&(struct timespec){ 0, 100000000 }, NULL);
	set("enabled", "0");
	MAGIC(DEMETER_OP_MARK, MARK_ENDED);
	printf("RESULT %s traced=%ld handled=%ld unused=%ld lost_records=%ld throttled=%ld samples=%ld stray=%ld "
	       "lost_samples=%ld fmem=%ld smem=%ld\n",
	       name, get("sampler/traced_records"), get("sampler/handled_records"),
	       get("sampler/unused_records"), get("sampler/lost_records"), get("sampler/throttled"),
	       get("samples"), get("stray_samples"), get("lost_samples"), get("fmem_samples"),
	       get("smem_samples"));
	syscall(SYS_delete_module, "demeter", O_NONBLOCK);
	bar_taken = 0;
}

/* Updates with a sleep now and then: records are drained at switches and by interrupts. */
static void updates_with_sleeps(uint64_t *words, size_t bytes, long rounds)
{
	for (int i = 0; i < 10; i++) {
		updates(words, bytes / 8, rounds / 10);
		if (i % 2)
			nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
	}
}

/* demeter.ko samples this process; beside it, if asked, a perf event of its own does. */
static void test_module(const char *name, const char *parameters, uint64_t *words, size_t bytes,
			long rounds, int beside)
{
	int error;

	MAGIC(DEMETER_OP_MODEL_ON, 0);
	MAGIC(DEMETER_OP_MARK, MARK_BEGUN);
	bar_taken = 1;
	error = start_module(parameters, "511");
	if (error)
		printf("RESULT refused errno=%d\n", error);
	if (beside)
		start_sampling(509);
	updates_with_sleeps(words, bytes, rounds);
	if (beside) {
		stop_sampling();
		compare_samples("beside", words, bytes);
	}
	if (!error)
		stop_module(name);
	MAGIC(DEMETER_OP_MODEL_OFF, 0);
}

/* A task that is not managed, touches next to nothing, and takes turns with this one. */
struct partner {
	int there[2], back[2];
	pid_t pid;
};

static void partner_start(struct partner *partner)
{
	char token = 0;

	if (pipe(partner->there) || pipe(partner->back))
		printf("no pipes\n");
	partner->pid = fork();
	if (!partner->pid) {
		close(partner->there[1]);
		while (read(partner->there[0], &token, 1) == 1 && arithmetic(1000) &&
		       write(partner->back[1], &token, 1) == 1)
			;
		_exit(0);
	}
}

static void partner_turn(const struct partner *partner)
{
	char token = 0;

	if (write(partner->there[1], &token, 1) != 1 || read(partner->back[0], &token, 1) != 1)
		printf("no turn\n");
}

static void partner_end(const struct partner *partner)
{
	close(partner->there[1]);
	waitpid(partner->pid, NULL, 0);
}

/* The module samples a task that takes turns with a partner. Return: as start_module(). */
static int begin_with(struct partner *partner)
{
	int error;

	partner_start(partner);
	MAGIC(DEMETER_OP_MODEL_ON, 0);
	MAGIC(DEMETER_OP_MARK, MARK_BEGUN);
	bar_taken = 1;
	error = start_module("", "511");
	if (error)
		printf("RESULT refused errno=%d\n", error);
	return error;
}

/* @error: what begin_with() returned */
static void end_with(const struct partner *partner, int error, const char *name)
{
	if (!error)
		stop_module(name);
	partner_end(partner);
	MAGIC(DEMETER_OP_MODEL_OFF, 0);
}

/*
 * A task with a perf event of its own, one that has nothing to do with the PMU, and
 * takes turns with a task that is not managed: what it sampled before each switch is
 * its own, and nothing is stray.
 */
static void test_turns(const char *name, uint64_t *words, size_t bytes, long rounds)
{
	struct perf_event_attr attr = {
		.size = sizeof(attr),
		.type = PERF_TYPE_SOFTWARE,
		.config = PERF_COUNT_SW_PAGE_FAULTS,
	};
	struct partner partner;
	int error;

	if (syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0) < 0)
		printf("no event\n");
	error = begin_with(&partner);
	for (int turn = 0; turn < 250; turn++) {
		loads(words, bytes / 8, rounds / 250);
		partner_turn(&partner);
	}
	end_with(&partner, error, name);
}

static void say_form(const char *name)
{
	printf("RESULT %s interrupt_cpus=%ld changes=%ld switch_cost_ns=%ld record_cost_ns=%ld handled=%ld "
	       "traced=%ld\n",
	       name, get("sampler/interrupt_cpus"), get("sampler/form_changes"),
	       get("sampler/switch_cost_ns"), get("sampler/record_cost_ns"),
	       get("sampler/handled_records"), get("sampler/traced_records"));
}

/* Many switches and few samples, then few switches and many samples. */
static void test_form(const char *name, uint64_t *words, size_t bytes, long rounds)
{
	struct partner partner;
	int error;

	error = begin_with(&partner);
	for (int turn = 0; turn < 4000; turn++) {
		loads(words, bytes / 8, 20);
		partner_turn(&partner);
	}
	say_form("switches");
	updates(words, bytes / 8, 2 * rounds);
	say_form("computes");
	end_with(&partner, error, name);
}
