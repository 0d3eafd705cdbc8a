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

#define LOCKABLE (256 * 1024UL)

static void is_lockable(void)
{
	char *other = map(LOCKABLE);

	CHECK(mlock(other, LOCKABLE) == 0);
	CHECK(munlock(other, LOCKABLE) == 0 && munmap(other, LOCKABLE) == 0);
}

// What is locked counts until it is unlocked or gone, whatever way it goes.
static void locked_memory_goes(void)
{
	for (int round = 0; round < 64; round++) {
		char *locked = map(LOCKABLE);
		stack_t stack = { .ss_sp = locked, .ss_size = LOCKABLE, .ss_flags = 12345 };

		switch (round % 4) {
		case 0:
			CHECK(mlock(locked, LOCKABLE) == 0);
			break;
		case 1:
			CHECK(mlock(locked, LOCKABLE) == 0);
			CHECK(mmap(locked, LOCKABLE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
				   -1, 0) == locked);
			break;
		case 2:
			CHECK(mlock(locked, LOCKABLE) == 0);
			fill(locked, 0, LOCKABLE / PAGE, 3);
			locked = mremap(locked, LOCKABLE, 2 * LOCKABLE, MREMAP_MAYMOVE);
			CHECK(locked != MAP_FAILED && holds(locked, 0, LOCKABLE / PAGE, 3));
			CHECK(munmap(locked + LOCKABLE, LOCKABLE) == 0);
			break;
		default:
			CHECK(sigaltstack(&stack, NULL) == -1 && errno == EINVAL);
		}
		is_lockable();
		CHECK(munmap(locked, LOCKABLE) == 0);
	}
}

static char *stacks;
static pthread_barrier_t barrier;

// Its alternate stack ends inside the page where the next thread's begins.
static void *on_shared_pages(void *argument)
{
	uintptr_t number = (uintptr_t)argument;
	size_t bytes = 4 * PAGE + PAGE / 2;
	stack_t stack = { .ss_sp = stacks + PAGE / 4 + number * bytes, .ss_size = bytes };

	CHECK(sigaltstack(&stack, NULL) == 0);
	pthread_barrier_wait(&barrier);
	stack.ss_flags = SS_DISABLE;
	if (number != 1)
		CHECK(sigaltstack(&stack, NULL) == 0);
	pthread_barrier_wait(&barrier);
	if (number == 1) {
		// Our own stack stays, though the others' do not, nor what is unlocked by hand.
		for (int round = 0; round < 2; round++) {
			CHECK(madvise(stacks, MIB, MADV_COLD) == 0);
			evict_the_rest();
			CHECK(raise(SIGUSR1) == 0);
			CHECK(holds(memory, 0, 64, 1));
			CHECK(munlock(stacks, MIB) == 0);
		}
		CHECK(sigaltstack(&stack, NULL) == 0);
	}
	return NULL;
}

static void stacks_share_pages(void)
{
	pthread_t threads[3];

	stacks = map(MIB);
	CHECK(pthread_barrier_init(&barrier, NULL, 3) == 0);
	for (uintptr_t number = 0; number < 3; number++)
		CHECK(pthread_create(&threads[number], NULL, on_shared_pages, (void *)number) == 0);
	for (int number = 0; number < 3; number++)
		CHECK(pthread_join(threads[number], NULL) == 0);
	CHECK(munmap(stacks, MIB) == 0);
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
	handled = 0;
	stacks_share_pages();
	CHECK(handled == 2);
	locked_memory_goes();
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
