// SPDX-License-Identifier: Apache-2.0 OR MIT
// clone() of the C library with a stack for the child and memory of its own, as sandboxes and
// programs of containers call it: the child goes on there, sees what was evicted, and pages on.
#include "check.h"
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
	return *(int *)argument;
}

static void run(int flags, int result)
{
	int status;
	pid_t pid = clone(child, stack + STACK, flags | SIGCHLD, &result);

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

int main(void)
{
	sigset_t blocked;

	const char *mode = getenv("DEMETER_EXTMEM_MODE");

	memory = map(PAGES * PAGE);
	fill(memory, 0, PAGES, 1);
	if (mode && !strcmp(mode, "handler")) {
		// Its threads would outlive the child's only one.
		CHECK(clone(child, fixed + STACK, SIGCHLD, NULL) == -1 && errno == EINVAL);
		return done();
	}
	signal(SIGUSR1, tick);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR2);
	CHECK(!sigprocmask(SIG_BLOCK, &blocked, NULL));
	stack = fixed;
	run(0, 17);
	run(CLONE_NEWUSER | CLONE_NEWPID, 18);
	run(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC, 19);
	stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
	CHECK(stack != MAP_FAILED);
	run(0, 20);
	return done();
}
