// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * usage: touch_torture MIB SECONDS | touch_torture swapon DEVICE
 * SIGUSR1 ends it earlier, after the round of everything that it is in. Prints the PID of
 * a process that shares memory with it.
 * Does to its memory, while the sampler "touch" arms it, everything that changes
 * page tables or reaches memory without them: fork, mprotect, mremap, madvise
 * (DONTNEED, COLLAPSE, PAGEOUT, FREE), mlock, soft-dirty bits,
 * ptrace, pipes, O_DIRECT, munmap (touch_torture_unmap.c), userfaultfd
 * (touch_torture_uffd.c). A second thread hammers
 * half of it meanwhile. Shared memory is in touch_torture_shared.c. Every
 * word is checked after every step; each step is told by name when it fails.
 */
#include "touch_torture.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/swap.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

unsigned long *memory;
static size_t bytes, words;
static __thread sigjmp_buf before_fault;
static atomic_bool pause_hammer, hammer_paused, end_hammer, asked_to_end;
int failures;

static void on_fault(int signal)
{
	(void)signal;
	siglongjmp(before_fault, 1);
}

static void on_end(int signal)
{
	(void)signal;
	asked_to_end = true;
}

bool write_faults(volatile unsigned long *word)
{
	if (sigsetjmp(before_fault, 1))
		return true;
	*word = *word;
	return false;
}

bool read_faults(volatile unsigned long *word)
{
	if (sigsetjmp(before_fault, 1))
		return true;
	(void)*word;
	return false;
}

void nap(long ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000 };

	nanosleep(&t, NULL);
}

static void fill(void)
{
	size_t i;

	for (i = 0; i < words; i++)
		memory[i] = i;
}

void verify(const char *what)
{
	size_t i;

	for (i = 0; i < words; i++)
		if (memory[i] != i) {
			CHECK(false, what);
			memory[i] = i;
		}
}

/* Adds nothing to random words, so that it never changes what others check. */
static void *hammer(void *unused)
{
	unsigned long seed = 7, done = 0;

	(void)unused;
	while (!end_hammer) {
		if (pause_hammer) {
			hammer_paused = true;
			nap(1);
			continue;
		}
		hammer_paused = false;
		/* Mostly asleep: a guest that idles costs the host nothing. */
		if (!(++done % 512))
			nap(2);
		seed = seed * 6364136223846793005ul + 1442695040888963407ul;
		__atomic_fetch_add(&memory[(seed >> 33) % words], 0, __ATOMIC_RELAXED);
	}
	return NULL;
}

void hold_hammer(bool hold)
{
	pause_hammer = hold;
	while (hold && !hammer_paused)
		nap(1);
}

static void test_fork(void)
{
	int status;
	pid_t child;
	size_t i;

	child = fork();
	if (!child) {
		bool bad = false;

		for (i = 0; i < words; i += WORDS) {
			bad |= memory[i] != i;
			memory[i] = ~i;
		}
		nap(20);
		for (i = 0; i < words; i += WORDS)
			bad |= memory[i] != ~i;
		_exit(bad);
	}
	for (i = 0; i < words; i += 8 * WORDS)
		__atomic_fetch_add(&memory[i], 1, __ATOMIC_RELAXED);
	CHECK(waitpid(child, &status, 0) == child && !status, "a child's pages are its own");
	for (i = 0; i < words; i += 8 * WORDS)
		__atomic_fetch_sub(&memory[i], 1, __ATOMIC_RELAXED);
	verify("fork");
}

static void test_mprotect(void)
{
	size_t i, half = words / 2;
	bool kept = true;

	hold_hammer(true);
	nap(30);
	mprotect(memory, bytes / 2, PROT_NONE);
	for (i = 0; i < half; i += WORDS)
		kept &= write_faults(memory + i);
	nap(30);
	for (i = 256; i < half; i += WORDS)
		kept &= write_faults(memory + i);
	CHECK(kept, "PROT_NONE holds over armed pages");
	mprotect(memory, bytes / 2, PROT_READ);
	nap(30);
	for (i = 0, kept = true; i < half; i += WORDS)
		kept &= write_faults(memory + i);
	CHECK(kept, "PROT_READ holds over armed pages");
	mprotect(memory, bytes / 2, PROT_READ | PROT_WRITE);
	for (i = 0, kept = true; i < half; i += WORDS)
		kept &= !write_faults(memory + i);
	CHECK(kept, "what may be written again can be");
	hold_hammer(false);
	verify("mprotect");
}

static void test_kernel_access(void)
{
	static char name[] = "/tmp/touch_direct";
	int mem = open("/proc/self/mem", O_RDWR), ends[2], direct;
	bool piped = true, read_back = true;
	unsigned long value;
	size_t i;

	CHECK(mem >= 0 && !pipe(ends), "pipe and /proc/self/mem");
	for (i = 0; i < words; i += 4 * WORDS) {
		piped &= write(ends[1], memory + i, 8) == 8 && read(ends[0], &value, 8) == 8 &&
			 value == i;
		read_back &= pread(mem, &value, 8, (off_t)(memory + i + 3)) == 8 && value == i + 3;
		/* The kernel writes through its own mapping. */
		value = i + 4;
		read_back &= pwrite(mem, &value, 8, (off_t)(memory + i + 4)) == 8;
	}
	CHECK(piped, "pipe");
	CHECK(read_back, "/proc/self/mem");
	close(mem);
	close(ends[0]);
	close(ends[1]);
	direct = open(name, O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
	if (direct >= 0) {
		/* Out and in again, through pinned pages. */
		for (i = 0; i < 32; i++)
			CHECK(pwrite(direct, memory + i * 64 * WORDS, PAGE, i * PAGE) ==
				      (ssize_t)PAGE,
			      "O_DIRECT write");
		for (i = 0; i < 32; i++)
			CHECK(pread(direct, memory + i * 64 * WORDS, PAGE, i * PAGE) ==
				      (ssize_t)PAGE,
			      "O_DIRECT read");
		close(direct);
		unlink(name);
	}
	verify("accesses of the kernel");
}

static void test_madvise(unsigned int round)
{
	const size_t at = 3 * HUGE / 2, part = HUGE / 4;
	size_t i, from = at / 8, to = (at + part) / 8;
	bool zero = true;

	hold_hammer(true);
	madvise((char *)memory + at, part, MADV_DONTNEED);
	for (i = from; i < to; i++) {
		zero &= !memory[i];
		memory[i] = i;
	}
	CHECK(zero, "DONTNEED leaves nothing");
	hold_hammer(false);
	mlock((char *)memory + 4 * HUGE, HUGE);
	nap(20);
	munlock((char *)memory + 4 * HUGE, HUGE);
	madvise((char *)memory + 2 * HUGE, 4 * HUGE, MADV_PAGEOUT);
	if (round % 2)
		madvise(memory, bytes, MADV_COLLAPSE);
	else
		madvise((char *)memory + 6 * HUGE, 2 * HUGE, MADV_FREE);
	/* MADV_FREE may drop any page until it is written. */
	if (!(round % 2)) {
		hold_hammer(true);
		for (i = 6 * HUGE / 8; i < 8 * HUGE / 8; i++)
			memory[i] = i;
		hold_hammer(false);
	}
	verify("madvise");
}

static void test_soft_dirty(void)
{
	int fd = open("/proc/self/clear_refs", O_WRONLY);

	if (fd >= 0) {
		if (write(fd, "4", 1) != 1 && errno != EINVAL)
			CHECK(false, "clear_refs");
		if (write(fd, "1", 1) != 1)
			CHECK(false, "clear_refs of accessed bits");
		close(fd);
	}
	verify("soft-dirty");
}

static void test_mremap(void)
{
	char *to = mmap(NULL, HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *from = (char *)memory + 10 * HUGE;
	size_t i;
	bool same = true;

	hold_hammer(true);
	nap(30);
	CHECK(mremap(from, HUGE / 2, HUGE / 2, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to, "mremap");
	for (i = 0; i < HUGE / 16; i++)
		same &= ((unsigned long *)to)[i] == 10 * HUGE / 8 + i;
	CHECK(same, "what mremap moved is the same");
	CHECK(mremap(to, HUGE / 2, HUGE / 2, MREMAP_MAYMOVE | MREMAP_FIXED, from) == from,
	      "mremap back");
	munmap(to, HUGE);
	hold_hammer(false);
	verify("mremap");
}

static void test_ptrace(void)
{
	int status;
	pid_t child = fork();
	bool same = true;
	size_t i;

	if (!child) {
		ptrace(PTRACE_TRACEME, 0, NULL, NULL);
		raise(SIGSTOP);
		_exit(memory[7 * WORDS] != 4711);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status), "the child stops");
	for (i = 0; i < words; i += 16 * WORDS) {
		errno = 0;
		same &= ptrace(PTRACE_PEEKDATA, child, memory + i, NULL) == (long)i && !errno;
	}
	CHECK(same, "ptrace reads");
	CHECK(!ptrace(PTRACE_POKEDATA, child, memory + 7 * WORDS, (void *)4711), "ptrace writes");
	ptrace(PTRACE_CONT, child, NULL, NULL);
	CHECK(waitpid(child, &status, 0) == child && !status, "what ptrace wrote is there");
	verify("ptrace");
}

static int swap_on(const char *device)
{
	unsigned int header[1024] = { 0 };
	int fd = open(device, O_RDWR);
	off_t size = fd < 0 ? 0 : lseek(fd, 0, SEEK_END);

	header[256] = 1;
	header[257] = size / PAGE - 1;
	memcpy((char *)header + PAGE - 10, "SWAPSPACE2", 10);
	if (fd < 0 || pwrite(fd, header, PAGE, 0) != (ssize_t)PAGE || fsync(fd) ||
	    swapon(device, 0)) {
		perror("swapon");
		return 1;
	}
	return 0;
}

int main(int argc, char **argv)
{
	unsigned int round = 0;
	time_t end;
	pthread_t thread;
	char *map;

	if (argc == 3 && !strcmp(argv[1], "swapon"))
		return swap_on(argv[2]);
	if (argc != 3 || atol(argv[1]) < 32) {
		fprintf(stderr, "usage: touch_torture MIB SECONDS, with at least 32 MIB\n");
		return 2;
	}
	/* The other process shall have no copies of what is private. */
	share();
	bytes = (atol(argv[1]) << 20) & ~(HUGE - 1);
	words = bytes / sizeof(*memory);
	map = mmap(NULL, bytes + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (map == MAP_FAILED) {
		perror("mmap");
		return 2;
	}
	memory = (void *)(((unsigned long)map + HUGE - 1) & ~(HUGE - 1));
	fill();
	signal(SIGSEGV, on_fault);
	signal(SIGBUS, on_fault);
	signal(SIGUSR1, on_end);
	pthread_create(&thread, NULL, hammer, NULL);
	end = time(NULL) + atol(argv[2]);
	while ((time(NULL) < end && !asked_to_end) || round < 2) {
		test_fork();
		test_mprotect();
		test_kernel_access();
		test_madvise(round);
		test_soft_dirty();
		test_mremap();
		test_unmap();
		test_ptrace();
		test_shared(round);
		test_userfaultfd();
		round++;
	}
	unshare_all();
	end_hammer = true;
	pthread_join(thread, NULL);
	verify("the end");
	printf("%s - every word is right after %u rounds of everything\n",
	       failures ? "not ok" : "ok", round);
	return failures != 0;
}
