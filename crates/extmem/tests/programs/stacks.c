// SPDX-License-Identifier: Apache-2.0 OR MIT
// Programs on stacks of their own making, in memory of malloc: coroutines, threads, children.
// Their next page is missing, or out, whenever the kernel wants to push the frame of a signal.
// A longjmp looks whether the thread is on its alternate stack.
#undef _FORTIFY_SOURCE
#define _FORTIFY_SOURCE 2
#include "check.h"
#include <alloca.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>

#define STACK (256 << 10)
#define STACKS 4
#define ROUNDS 3

extern char **environ;

static __thread ucontext_t caller, inside;
static __thread volatile sig_atomic_t ticks;
static sigjmp_buf again;
// The program's own stack for signals.
static void *alternate;

static void tick(int signal)
{
	(void)signal;
	ticks++;
}

static void jump(int signal)
{
	(void)signal;
	siglongjmp(again, 1);
}

// Goes down so many pages, looks at all of them on its way back.
static uint64_t descend(uint64_t seed, int pages)
{
	volatile uint64_t words[512];

	for (int index = 0; index < 512; index++)
		words[index] = word_of(seed, pages, index);
	uint64_t below = pages > 1 ? descend(seed, pages - 1) : 0;

	for (int index = 0; index < 512; index++)
		CHECK(words[index] == word_of(seed, pages, index));
	return below + 1;
}

static void child_of(pid_t child, int result)
{
	int status;

	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	if (status != result << 8)
		fprintf(stderr, "status %#x instead of %d\n", status, result);
	CHECK(status == result << 8);
}

static void spawn(void)
{
	char *arguments[] = { "true", NULL };
	pid_t child;

	CHECK(!posix_spawnp(&child, "true", NULL, NULL, arguments, environ));
	child_of(child, 0);
}

// With the next page down untouched.
static __attribute__((noinline)) void raise_at_the_edge(void)
{
	uintptr_t here = (uintptr_t)__builtin_frame_address(0);
	volatile char *room = alloca((here - 600) % PAGE);
	int seen = ticks;

	__asm__ volatile("" : : "r"(room) : "memory");
	raise(SIGUSR1);
	CHECK(ticks == seen + 1);
}

// Calls whose buffers are on this stack, or that are about memory, processes and signals.
static void calls(void)
{
	char text[3 * PAGE], *memory = map(MIB);
	int pipes[2], file = open("/proc/self/stat", O_RDONLY);
	stack_t before;
	sigset_t mask;

	CHECK(file >= 0 && read(file, text, sizeof(text)) > 0 && !close(file));
	fill(memory, 7, MIB / PAGE, 7);
	CHECK(holds(memory, 7, MIB / PAGE, 7) && !munmap(memory, MIB));
	CHECK(!sigaltstack(NULL, &before) && before.ss_sp == alternate);
	CHECK(before.ss_flags == (alternate ? 0 : SS_DISABLE));
	CHECK(!sigprocmask(SIG_SETMASK, NULL, &mask) && !sigismember(&mask, SIGUSR1));
	int seen = ticks;

	raise(SIGUSR1);
	CHECK(ticks == seen + 1);
	CHECK(!pipe(pipes));
	pid_t child = fork();

	CHECK(child >= 0);
	if (!child) {
		char last[2 * PAGE];

		memset(last, 'x', sizeof(last));
		CHECK(descend(5, 9) == 9);
		_exit(write(pipes[1], last, sizeof(last)) == sizeof(last) ? 5 : 1);
	}
	for (size_t got = 0; got < 2 * PAGE;) {
		ssize_t more = read(pipes[0], text + got, sizeof(text) - got);

		CHECK(more > 0);
		got += more;
	}
	CHECK(text[0] == 'x' && text[2 * PAGE - 1] == 'x' && !close(pipes[0]) && !close(pipes[1]));
	child_of(child, 5);
	spawn();
}

// A call that waits is left by a handler that does not return; the next ones find all in order.
static void interrupted(void)
{
	int pipes[2];

	CHECK(!pipe(pipes));
	for (volatile int round = 0; round < 3; round++) {
		struct sigaction action = { .sa_handler = jump };
		struct itimerval soon = { .it_value.tv_usec = 20000 };
		char text[64];

		CHECK(!sigaction(SIGALRM, &action, NULL));
		if (!sigsetjmp(again, 1)) {
			CHECK(!setitimer(ITIMER_REAL, &soon, NULL));
			CHECK(read(pipes[0], text, sizeof(text)) == -2);
		}
		CHECK(descend(6, 5) == 5);
	}
	CHECK(!close(pipes[0]) && !close(pipes[1]));
}

static void run(void)
{
	for (int round = 0; round < ROUNDS; round++) {
		stack_t none = { .ss_flags = SS_DISABLE };

		CHECK(!sigaltstack(&none, NULL));
		// Its frame does not fit into what is left of the page.
		if (round == 0)
			raise_at_the_edge();
		CHECK(descend(round, 30) == 30);
		calls();
		CHECK(swapcontext(&inside, &caller) == 0);
	}
}

// As often as it waits, everything else is brought in, and the stack goes out.
static void *coroutines(void *alone)
{
	char *stacks[STACKS];
	static __thread ucontext_t contexts[STACKS];
	const size_t pages = 24 * MIB / PAGE;
	char *memory = map(pages * PAGE);

	for (int stack = 0; stack < STACKS; stack++) {
		stacks[stack] = malloc(STACK);
		CHECK(!getcontext(&contexts[stack]));
		contexts[stack].uc_stack.ss_sp = stacks[stack];
		contexts[stack].uc_stack.ss_size = STACK;
		contexts[stack].uc_link = &caller;
		makecontext(&contexts[stack], run, 0);
	}
	for (int round = 0; round <= ROUNDS; round++) {
		for (int stack = 0; stack < STACKS; stack++) {
			CHECK(!swapcontext(&caller, &contexts[stack]));
			contexts[stack] = inside;
			if (alone)
				fill(memory, 0, pages, round);
		}
	}
	for (int stack = 0; stack < STACKS; stack++)
		free(stacks[stack]);
	return NULL;
}

// Whoever looks where a handler came from finds what it interrupted.
static char *raised_from;
static int shortened = -1;

static void look_back(void)
{
	void *callers[16];
	int found = 0, count = backtrace(callers, 16);

	for (int at = 0; at < count; at++)
		found += (uintptr_t)callers[at] - (uintptr_t)raised_from < 1024;
	CHECK(found);
}

// All that this handler does not look at itself leaves, and a part of its frame with it.
static void evicts(int signal)
{
	volatile char room[3 * PAGE];

	memset((char *)room, signal, sizeof(room));
	if (signal == SIGUSR2)
		look_back();
	char *frame = (char *)((uintptr_t)__builtin_frame_address(0) & -PAGE);

	CHECK(!madvise(frame, 2 * PAGE, MADV_PAGEOUT));
	evict_the_rest();
	if (__builtin_cpu_supports("avx"))
		__asm__ volatile("vpxor %%xmm15, %%xmm15, %%xmm15" : : : "xmm15");
	else
		__asm__ volatile("pxor %%xmm15, %%xmm15" : : : "xmm15");
	if (signal == SIGBUS)
		CHECK(!ftruncate(shortened, PAGE));
	tick(signal);
}

// The signal comes with so much of the page used; what is in the CPU comes back.
static __attribute__((noinline)) void raise_with(int signal, int used)
{
	volatile char *room = alloca(used + 16);
	// As wide as a register is everywhere, and where it is twice so.
	uint64_t before[4], after[4] = { 0 };
	const int bytes = __builtin_cpu_supports("avx") ? 32 : 16;
	long result = SYS_tgkill;
	sigset_t mask;
	int seen = ticks;

	for (int word = 0; word < 4; word++)
		before[word] = word_of(signal, used, word);
	__asm__ volatile("" : : "r"(room) : "memory");
#define CALL(move, whole)                                                       \
	__asm__ volatile(move " (%[before]), %%" whole "mm15; syscall; "        \
			 move " %%" whole "mm15, (%[after])"                    \
			 : "+a"(result)                                         \
			 : "D"(getpid()), "S"(gettid()), "d"(signal),           \
			   [before] "r"(before), [after] "r"(after)             \
			 : "rcx", "r11", "xmm15", "memory")
	if (bytes == 32)
		CALL("vmovdqu", "y");
	else
		CALL("movdqu", "x");
#undef CALL
	CHECK(!result && ticks == seen + 1 && !memcmp(before, after, bytes));
	CHECK(!sigprocmask(SIG_SETMASK, NULL, &mask) && !sigismember(&mask, signal));
}

static __attribute__((noinline)) void touch_with(volatile char *file, int used)
{
	volatile char *room = alloca(used + 16);
	int seen = ticks;

	__asm__ volatile("" : : "r"(room) : "memory");
	CHECK(!ftruncate(shortened, 0) && !*file && ticks == seen + 1);
}

static void handlers_whose_frames_leave(void)
{
	void *callers[4];
	struct sigaction action = { .sa_handler = evicts }, before;
	char *stack = malloc(STACK);
	stack_t wanted = { .ss_sp = stack, .ss_size = STACK };
	char name[] = "/tmp/stacks-XXXXXX";

	// The first of these loads a library.
	CHECK(backtrace(callers, 4) > 0);
	raised_from = (char *)raise_with;
	CHECK(!sigaction(SIGUSR2, &action, NULL));
	for (int used = 0; used < (int)PAGE; used += 512)
		raise_with(SIGUSR2, used);
	action.sa_flags = SA_ONSTACK;
	CHECK(!sigaction(SIGUSR2, &action, NULL) && !sigaltstack(&wanted, NULL));
	for (int odd = 0; odd < (int)PAGE; odd += 512) {
		wanted.ss_size = STACK - odd;
		CHECK(!sigaltstack(&wanted, NULL));
		raise_with(SIGUSR2, 0);
	}
	wanted.ss_flags = SS_DISABLE;
	CHECK(!sigaltstack(&wanted, NULL));
	free(stack);
	// One that the pager hands on.
	shortened = mkstemp(name);
	CHECK(shortened >= 0 && !unlink(name) && !ftruncate(shortened, PAGE));
	action.sa_flags = 0;
	CHECK(!sigaction(SIGBUS, &action, &before));
	volatile char *file = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, shortened, 0);

	CHECK(file != MAP_FAILED);
	for (int used = 0; used < (int)PAGE; used += 512)
		touch_with(file, used);
	CHECK(!munmap((void *)file, PAGE) && !close(shortened));
	CHECK(!sigaction(SIGBUS, &before, NULL));
	CHECK(!swapcontext(&inside, &caller));
}

static void left(void)
{
	interrupted();
	CHECK(!swapcontext(&inside, &caller));
}

static void *on_given_stack(void *argument)
{
	char here;

	CHECK(&here > (char *)argument && &here < (char *)argument + STACK);
	CHECK(descend(8, 30) == 30);
	evict_the_rest();
	calls();
	CHECK(descend(9, 40) == 40);
	return argument;
}

static void thread_on_given_stack(void)
{
	for (int round = 0; round < 2; round++) {
		char *stack = aligned_alloc(PAGE, STACK);
		pthread_attr_t attributes;
		pthread_t thread;
		void *result;

		CHECK(!pthread_attr_init(&attributes));
		CHECK(!pthread_attr_setstack(&attributes, stack, STACK));
		evict_the_rest();
		CHECK(!pthread_create(&thread, &attributes, on_given_stack, stack));
		CHECK(!pthread_join(thread, &result) && result == stack);
		free(stack);
	}
}

static int child(void *argument)
{
	CHECK(descend(10, 30) == 30);
	evict_the_rest();
	CHECK(descend(11, 40) == 40);
	calls();
	return *(int *)argument;
}

static void child_on_given_stack(int flags)
{
	int result = 17;
	char *stack = malloc(STACK);

	evict_the_rest();
	child_of(clone(child, stack + STACK, flags | SIGCHLD, &result), result);
	free(stack);
}

static int in_parents_memory(void *argument)
{
	CHECK(descend(12, 30) == 30);
	_exit(*(int *)argument);
}

// What a crash handler does, on its own stack, to which signals of its children must not come.
static void spawns(int signal)
{
	volatile char words[PAGE];

	memset((char *)words, signal, sizeof(words));
	for (int round = 0; round < 3; round++)
		spawn();
	for (size_t index = 0; index < sizeof(words); index++)
		CHECK(words[index] == signal);
	tick(signal);
}

static void spawn_from_a_handler(void)
{
	static char stack[64 << 10];
	stack_t wanted = { .ss_sp = stack, .ss_size = sizeof(stack) }, before;
	struct sigaction action = { .sa_handler = spawns, .sa_flags = SA_ONSTACK };
	int seen = ticks;

	CHECK(!sigaltstack(&wanted, &before) && before.ss_flags == SS_DISABLE);
	CHECK(!sigaction(SIGUSR2, &action, NULL));
	CHECK(!raise(SIGUSR2) && ticks == seen + 1);
	CHECK(!sigaltstack(NULL, &before) && before.ss_sp == stack);
	// With a small one of the program's own it is the pager's that is worked on.
	wanted.ss_size = 12 << 10;
	CHECK(!sigaltstack(&wanted, NULL));
	alternate = stack;
	child_on_given_stack(0);
	wanted.ss_flags = SS_DISABLE;
	CHECK(!sigaltstack(&wanted, NULL));
	CHECK(!sigaltstack(NULL, &before) && before.ss_flags == SS_DISABLE);
}

// A handler that asks for an alternate stack, of which its thread has none, does not return.
static void *jumps(void *argument)
{
	struct sigaction action = { .sa_handler = jump, .sa_flags = SA_ONSTACK };
	static __thread volatile int jumped;

	CHECK(!sigaction(SIGUSR2, &action, NULL));
	for (jumped = 0; jumped < 3; jumped++) {
		if (!sigsetjmp(again, 1)) {
			raise(SIGUSR2);
			CHECK(0);
		}
	}
	return argument;
}

// Where plain handlers do not run.
static char *forbidden;

static void tick_on_much(int signal)
{
	volatile char room[6 << 10];

	memset((char *)room, signal, sizeof(room));
	CHECK((char *)room < forbidden || (char *)room > forbidden + 6 * PAGE);
	tick(signal);
}

// Plain handlers come between a program's calls, which has a small alternate stack for others.
static void ticks_between_calls(void)
{
	const size_t bytes = 12 << 10;
	char *stack = mmap(NULL, 2 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct sigaction action = { .sa_handler = tick_on_much };
	struct itimerval often = { { 0, 200 }, { 0, 200 } }, never = { 0 };
	stack_t wanted = { .ss_sp = stack + bytes, .ss_size = bytes };
	sigset_t mask;

	CHECK(stack != MAP_FAILED && !mprotect(stack + bytes, bytes, PROT_READ | PROT_WRITE));
	forbidden = stack;
	CHECK(!sigaltstack(&wanted, NULL) && !sigaction(SIGALRM, &action, NULL));
	CHECK(!sigaction(SIGUSR2, &action, NULL));
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR2);
	ticks = 0;
	CHECK(!setitimer(ITIMER_REAL, &often, NULL));
	while (ticks < 1000)
		CHECK(!sigprocmask(SIG_BLOCK, &mask, NULL) &&
		      !sigprocmask(SIG_UNBLOCK, &mask, NULL));
	CHECK(!setitimer(ITIMER_REAL, &never, NULL));
	// Two at a time.
	sigaddset(&mask, SIGALRM);
	CHECK(!sigprocmask(SIG_BLOCK, &mask, NULL));
	ticks = 0;
	CHECK(!raise(SIGUSR2) && !raise(SIGALRM) && ticks == 0);
	CHECK(!sigprocmask(SIG_UNBLOCK, &mask, NULL) && ticks == 2);
	wanted.ss_flags = SS_DISABLE;
	CHECK(!sigaltstack(&wanted, NULL) && !munmap(stack, 2 * bytes));
}

// Nothing writes to it but the program and its handlers.
static void an_alternate_stack_is_the_programs(void)
{
	char *stack = malloc(STACK);
	struct sigaction action = { .sa_handler = tick, .sa_flags = SA_ONSTACK };
	stack_t wanted = { .ss_sp = stack, .ss_size = STACK }, before;
	sigset_t mask;

	CHECK(!sigaction(SIGUSR2, &action, NULL) && !sigaltstack(&wanted, NULL));
	memset(stack, 7, STACK);
	evict_the_rest();
	for (int round = 0; round < 3; round++) {
		CHECK(!sigprocmask(SIG_SETMASK, NULL, &mask) && !sigaltstack(NULL, &before));
		CHECK(before.ss_sp == stack && before.ss_size == STACK && !before.ss_flags);
		spawn();
	}
	for (int at = 0; at < STACK; at++)
		CHECK(stack[at] == 7);
	ticks = 0;
	raise(SIGUSR2);
	CHECK(ticks == 1 && stack[0] == 7 && !memchr(stack, 0, STACK / 2));
	wanted.ss_flags = SS_DISABLE;
	CHECK(memchr(stack, 0, STACK) && !sigaltstack(&wanted, NULL));
	free(stack);
}

// A coroutine whose stack is made by a signal that it takes there, as in GNU Pth and QEMU.
void jump_unchecked(sigjmp_buf, int) __asm__("siglongjmp") __attribute__((noreturn));
static sigjmp_buf born, back;

static void give_birth(int signal)
{
	tick(signal);
	if (sigsetjmp(born, 0)) {
		// Long after the handler has returned.
		CHECK(descend(13, 20) == 20);
		calls();
		jump_unchecked(back, 1);
	}
}

static void coroutine_by_signal(void)
{
	for (volatile int round = 0; round < 3; round++) {
		char *volatile stack = malloc(STACK);
		struct sigaction action = { .sa_handler = give_birth, .sa_flags = SA_ONSTACK };
		stack_t wanted = { .ss_sp = stack, .ss_size = STACK };

		CHECK(!sigaction(SIGUSR2, &action, NULL) && !sigaltstack(&wanted, NULL));
		ticks = 0;
		raise(SIGUSR2);
		wanted.ss_flags = SS_DISABLE;
		CHECK(ticks == 1 && !sigaltstack(&wanted, NULL));
		evict_the_rest();
		if (!sigsetjmp(back, 0))
			jump_unchecked(born, 1);
		free(stack);
	}
}

// A stack for signals that is told of on a stack in managed memory.
static void tells(void)
{
	static char own[64 << 10];
	stack_t wanted = { .ss_sp = own, .ss_size = sizeof(own) }, before;
	struct sigaction action = { .sa_handler = spawns, .sa_flags = SA_ONSTACK };

	CHECK(!sigaction(SIGUSR2, &action, NULL));
	CHECK(!sigaltstack(&wanted, NULL) && !sigaltstack(NULL, &before) && before.ss_sp == own);
	ticks = 0;
	raise(SIGUSR2);
	// The frame came there; what of it is not zero depends on the processor.
	CHECK(ticks == 1 && !is_zero(own + sizeof(own) - PAGE, 1));
	wanted.ss_flags = SS_DISABLE;
	CHECK(!sigaltstack(&wanted, &before) && before.ss_sp == own);
	CHECK(!sigaltstack(NULL, &before) && before.ss_flags == SS_DISABLE);
	CHECK(!swapcontext(&inside, &caller));
}

static void ends_the_program(void)
{
	evict_the_rest();
	exit(descend(14, 10) == 10 ? 29 : 1);
}

// Runs on a stack of malloc until it comes back.
static void on_new_stack(void (*function)(void))
{
	char *stack = malloc(STACK);

	CHECK(!getcontext(&inside));
	inside.uc_stack.ss_sp = stack;
	inside.uc_stack.ss_size = STACK;
	makecontext(&inside, function, 0);
	CHECK(!swapcontext(&caller, &inside));
	free(stack);
}

// What is asked for is what was set.
static void actions(void)
{
	struct sigaction action = { .sa_handler = tick, .sa_flags = SA_RESTART }, before;
	int seen = ticks;

	CHECK(!sigaction(SIGUSR2, &action, NULL) && !sigaction(SIGUSR2, NULL, &before));
	// With it comes what the C library adds.
	CHECK(before.sa_handler == tick && (before.sa_flags & SA_RESTART));
	CHECK(!(before.sa_flags & (SA_ONSTACK | SA_SIGINFO)));
	action = before;
	CHECK(!sigaction(SIGUSR2, &action, &before) && before.sa_handler == tick);
	before.sa_handler(SIGUSR2);
	raise(SIGUSR2);
	CHECK(ticks == seen + 2);
	CHECK(signal(SIGUSR2, SIG_IGN) == tick && signal(SIGUSR2, SIG_DFL) == SIG_IGN);
}

static void *ends(void *argument)
{
	volatile char *page = argument;

	*page = 1;
	return NULL;
}

int main(void)
{
	pthread_t threads[3];
	int result = 23;

	signal(SIGUSR1, tick);
	ticks_between_calls();
	an_alternate_stack_is_the_programs();
	CHECK(!pthread_create(&threads[0], NULL, jumps, NULL) && !pthread_join(threads[0], NULL));
	actions();
	coroutines(threads);
	actions();
	ticks_between_calls();
	CHECK(!pthread_create(&threads[0], NULL, jumps, NULL) && !pthread_join(threads[0], NULL));
	on_new_stack(left);
	on_new_stack(tells);
	on_new_stack(handlers_whose_frames_leave);
	fflush(stdout);
	pid_t last = fork();

	CHECK(last >= 0);
	if (!last)
		on_new_stack(ends_the_program);
	child_of(last, 29);
	an_alternate_stack_is_the_programs();
	coroutine_by_signal();
	for (int thread = 0; thread < 3; thread++)
		CHECK(!pthread_create(&threads[thread], NULL, coroutines, NULL));
	for (int thread = 0; thread < 3; thread++)
		CHECK(!pthread_join(threads[thread], NULL));
	// Many, one after another.
	char *memory = map(MIB);

	for (int round = 0; round < 300; round++) {
		CHECK(!pthread_create(&threads[0], NULL, ends, memory + round % 256 * PAGE));
		CHECK(!pthread_join(threads[0], NULL));
	}
	thread_on_given_stack();
	child_on_given_stack(0);
	child_on_given_stack(CLONE_PARENT_SETTID);
	char *stack = malloc(STACK);

	child_of(clone(in_parents_memory, stack + STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, &result),
		 result);
	child_of(clone(in_parents_memory, stack + STACK, CLONE_VM | SIGCHLD, &result), result);
	free(stack);
	spawn_from_a_handler();
	return done();
}
