// SPDX-License-Identifier: Apache-2.0 OR MIT
// Signals: blocked masks, handlers that touch evicted memory, alternate stacks that lie in
// it, the program's own SIGBUS handler, interrupted calls.
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>

static char *memory;
static volatile sig_atomic_t handled, own_bus;
static sigjmp_buf back;

static void on_alarm(int signal)
{
	(void)signal;
	// Every page of it may be on disk.
	CHECK(holds(memory + handled % 64 * PAGE, handled % 64, 1, 1));
	handled++;
}

static void on_bus(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	(void)context;
	CHECK(info->si_addr != NULL);
	own_bus++;
	siglongjmp(back, 1);
}

static void on_usr1(int signal)
{
	char local[2048];

	(void)signal;
	memset(local, 1, sizeof(local));
	CHECK(holds(memory, 0, 4, 1));
	handled++;
}

static void *blocked_thread(void *argument)
{
	sigset_t all;

	(void)argument;
	sigfillset(&all);
	CHECK(pthread_sigmask(SIG_SETMASK, &all, NULL) == 0);
	CHECK(holds(memory, 0, 512, 1));
	return NULL;
}

int main(void)
{
	sigset_t all, none, old;
	struct sigaction action = { .sa_handler = on_alarm };
	pthread_t thread;

	memory = map(8 * MIB);
	fill(memory, 0, 8 * MIB / PAGE, 1);
	// Everything blocked: faults work all the same.
	sigfillset(&all);
	sigemptyset(&none);
	evict_the_rest();
	CHECK(sigprocmask(SIG_SETMASK, &all, &old) == 0);
	CHECK(holds(memory, 0, 8 * MIB / PAGE, 1));
	CHECK(sigprocmask(SIG_SETMASK, &none, NULL) == 0);
	evict_the_rest();
	CHECK(pthread_create(&thread, NULL, blocked_thread, NULL) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	// A timer whose handler touches evicted memory while we do too; all blocked in it.
	sigfillset(&action.sa_mask);
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	struct itimerval timer = { { 0, 2000 }, { 0, 2000 } };

	CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
	for (int round = 0; round < 4; round++) {
		evict_the_rest();
		CHECK(holds(memory, 0, 8 * MIB / PAGE, 1));
	}
	timer = (struct itimerval){ 0 };
	CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
	CHECK(handled > 3);
	// An alternate stack in managed memory, evicted before the signal comes.
	stack_t stack = { .ss_sp = map(MIB), .ss_size = MIB };
	stack_t before;

	CHECK(sigaltstack(&stack, &before) == 0 && (before.ss_flags & SS_DISABLE));
	action = (struct sigaction){ .sa_handler = on_usr1, .sa_flags = SA_ONSTACK };
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	handled = 0;
	for (int round = 0; round < 3; round++) {
		evict_the_rest();
		CHECK(raise(SIGUSR1) == 0);
	}
	CHECK(handled == 3);
	CHECK(sigaltstack(NULL, &before) == 0 && before.ss_sp == stack.ss_sp);
	evict_the_rest();
	CHECK(holds(memory, 0, 64, 1));
	stack.ss_flags = SS_DISABLE;
	CHECK(sigaltstack(&stack, NULL) == 0);
	// The program's own SIGBUS handler: a file that is too short.
	action = (struct sigaction){ .sa_sigaction = on_bus, .sa_flags = SA_SIGINFO };
	CHECK(sigaction(SIGBUS, &action, NULL) == 0);
	CHECK(sigaction(SIGBUS, NULL, &action) == 0 && action.sa_sigaction == on_bus);
	char name[] = "/tmp/demeter-extmem-XXXXXX";
	int fd = mkstemp(name);

	CHECK(fd >= 0 && unlink(name) == 0);
	volatile char *file = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);

	CHECK(file != MAP_FAILED);
	if (!sigsetjmp(back, 1))
		(void)*file;
	CHECK(own_bus == 1);
	evict_the_rest();
	CHECK(holds(memory, 0, 8 * MIB / PAGE, 1) && own_bus == 1);
	// A call on a managed buffer is interrupted as without the pager.
	int pipes[2];

	CHECK(pipe(pipes) == 0);
	action = (struct sigaction){ .sa_handler = on_usr1 };
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	alarm(1);
	CHECK(read(pipes[0], memory + MIB, 100) == -1 && errno == EINTR);
	// sigsuspend with everything but one blocked.
	sigset_t but_alarm = all;

	sigdelset(&but_alarm, SIGALRM);
	CHECK(sigprocmask(SIG_SETMASK, &all, NULL) == 0);
	alarm(1);
	evict_the_rest();
	CHECK(sigsuspend(&but_alarm) == -1 && errno == EINTR);
	CHECK(holds(memory, 0, 256, 1));
	return done();
}
