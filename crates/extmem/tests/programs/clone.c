// SPDX-License-Identifier: Apache-2.0 OR MIT
// clone() of the C library with a stack for the child and memory of its own, as sandboxes and
// programs of containers call it: the child goes on there, sees what was evicted, and pages on.
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

#define PAGES (40 * MIB / PAGE)
#define STACK (256 << 10)

static char fixed[STACK] __attribute__((aligned(16)));
static char *memory, *stack;
static volatile sig_atomic_t ticks;

static void tick(int signal)
{
	(void)signal;
	ticks++;
}

static int child(void *argument)
{
	char here;
	sigset_t mask;

	CHECK(&here >= stack && &here < stack + STACK);
	CHECK(holds(memory, 0, PAGES, 1));
	fill(memory, 0, PAGES, 2);
	CHECK(holds(memory, 0, PAGES, 2));
	// The mask is the caller's, and signals come.
	CHECK(!sigprocmask(SIG_SETMASK, NULL, &mask));
	CHECK(sigismember(&mask, SIGUSR2) && !sigismember(&mask, SIGUSR1));
	raise(SIGUSR1);
	CHECK(ticks == 1);
	// A child of its own, and one on its own stack again.
	pid_t grandchild = fork();

	CHECK(grandchild >= 0);
	if (!grandchild)
		_exit(holds(memory, 0, PAGES, 2) ? 0 : 1);
	int status;

	CHECK(waitpid(grandchild, &status, 0) == grandchild && status == 0);
	// One that returns from here as its parent will.
	grandchild = fork();
	CHECK(grandchild >= 0);
	if (!grandchild) {
		CHECK(holds(memory, 0, PAGES, 2));
		return 3;
	}
	CHECK(waitpid(grandchild, &status, 0) == grandchild && WEXITSTATUS(status) == 3);
	return *(int *)argument;
}

// The page of the number that was written holds what it did, but for that.
static int told(void *argument)
{
	const uint64_t *words = (uint64_t *)(memory + 7 * PAGE);

	for (int index = 3; index < 512; index++)
		CHECK(words[index] == word_of(1, 7, index));
	return *(int *)argument;
}

// Whether the first thread of this process has ended.
static int first_has_ended(void)
{
	char path[64], text[256] = "";
	int file;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", getpid());
	file = open(path, O_RDONLY);
	CHECK(file >= 0 && read(file, text, sizeof(text) - 1) > 0 && !close(file));
	return !strncmp(strrchr(text, ')'), ") Z", 3);
}

static void *late(void *argument)
{
	while (!first_has_ended())
		usleep(1000);
	fill(memory, 0, PAGES, 5);
	CHECK(holds(memory, 0, PAGES, 5));
	return argument;
}

// Its first thread ends before the other, whose status is that of the process (since Linux 6.0).
static int first_ends(void *argument)
{
	pthread_t thread;

	CHECK(!pthread_create(&thread, NULL, late, argument));
	return 20;
}

static int idle(void *argument)
{
	return *(int *)argument;
}

static void run(int (*function)(void *), int flags, int result)
{
	int status;
	pid_t pid = clone(function, stack + STACK, flags | SIGCHLD, &result);

	if (pid < 0 && flags && (errno == EPERM || errno == ENOSPC)) {
		fprintf(stderr, "clone: no namespaces to be had here (errno %d)\n", errno);
		return;
	}
	CHECK(pid > 0);
	CHECK(holds(memory, 0, PAGES, 1));
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == result);
	CHECK(holds(memory, 0, PAGES, 1));
}

// The numbers that the kernel writes by itself, into pages that are out.
static void numbers(void)
{
	int status, result = 21;

	for (int round = 0; round < 3; round++) {
		int flags = round == 0 ? CLONE_CHILD_SETTID : round == 1 ? CLONE_PARENT_SETTID : CLONE_PIDFD;
		int *word = (int *)(memory + 7 * PAGE + 8 * round);

		fill(memory, 0, PAGES, 1);
		evict_the_rest();
		pid_t pid = clone(told, stack + STACK, flags | SIGCHLD, &result, word, NULL, word);

		CHECK(pid > 0);
		CHECK(round != 1 || *word == pid);
		CHECK(round != 2 || !close(*word));
		CHECK(waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == result);
		CHECK(holds(memory, 0, 7, 1) && holds(memory + 8 * PAGE, 8, PAGES - 8, 1));
	}
	fill(memory, 0, PAGES, 1);
}

int main(void)
{
	sigset_t blocked;

	memory = map(PAGES * PAGE);
	fill(memory, 0, PAGES, 1);
	signal(SIGUSR1, tick);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR2);
	CHECK(!sigprocmask(SIG_BLOCK, &blocked, NULL));
	stack = fixed;
	run(child, 0, 17);
	run(child, CLONE_NEWUSER | CLONE_NEWPID, 18);
	run(child, CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC, 19);
	run(first_ends, 0, 0);
	run(idle, 0, 22);
	numbers();
	stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
	CHECK(stack != MAP_FAILED);
	run(child, 0, 23);
	return done();
}
