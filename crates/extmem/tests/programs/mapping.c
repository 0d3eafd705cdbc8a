// SPDX-License-Identifier: Apache-2.0 OR MIT
// munmap in the middle, mremap every way, mprotect, madvise, MAP_FIXED, brk.
#include "check.h"
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/uio.h>

static sigjmp_buf back;

static void on_segv(int signal)
{
	(void)signal;
	siglongjmp(back, 1);
}

static int faults(volatile char *address, int write)
{
	if (sigsetjmp(back, 1))
		return 1;
	if (write)
		*address = 1;
	else
		(void)*address;
	return 0;
}

static void partial_unmap(void)
{
	char *memory = map(32 * MIB);
	uint64_t pages = 32 * MIB / PAGE;

	fill(memory, 0, pages, 1);
	CHECK(munmap(memory + 8 * MIB, 4 * MIB) == 0);
	CHECK(munmap(memory + 10 * MIB, 4 * MIB) == 0);
	CHECK(faults(memory + 8 * MIB, 0) && faults(memory + 14 * MIB - 1, 1));
	CHECK(holds(memory, 0, 8 * MIB / PAGE, 1));
	CHECK(holds(memory + 14 * MIB, 14 * MIB / PAGE, 18 * MIB / PAGE, 1));
	// A hole is filled again, and new memory is zero.
	char *again = mmap(memory + 8 * MIB, 6 * MIB, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	CHECK(again == memory + 8 * MIB);
	CHECK(is_zero(again, 6 * MIB / PAGE));
	fill(again, 0, 6 * MIB / PAGE, 2);
	evict_the_rest();
	CHECK(holds(again, 0, 6 * MIB / PAGE, 2));
	CHECK(munmap(memory, 32 * MIB) == 0);
	CHECK(faults(memory, 0));
}

static void remap(void)
{
	uint64_t pages = 16 * MIB / PAGE;
	char *memory = map(16 * MIB);

	fill(memory, 0, pages, 3);
	evict_the_rest();
	fill(memory, 0, pages / 4, 4);
	// Shrink, grow in place or not, grow where it cannot stay.
	memory = mremap(memory, 16 * MIB, 12 * MIB, 0);
	CHECK(memory != MAP_FAILED);
	char *next = map(MIB);

	memory = mremap(memory, 12 * MIB, 20 * MIB, MREMAP_MAYMOVE);
	CHECK(memory != MAP_FAILED);
	CHECK(holds(memory, 0, pages / 4, 4));
	CHECK(holds(memory + 4 * MIB, pages / 4, pages / 2, 3));
	CHECK(is_zero(memory + 12 * MIB, 8 * MIB / PAGE));
	char *block = mmap(memory + 20 * MIB, PAGE, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(block != MAP_FAILED);
	fill(memory, 0, 20 * MIB / PAGE, 5);
	char *moved = mremap(memory, 20 * MIB, 40 * MIB, MREMAP_MAYMOVE);

	CHECK(moved != MAP_FAILED);
	CHECK(holds(moved, 0, 20 * MIB / PAGE, 5));
	CHECK(is_zero(moved + 20 * MIB, 20 * MIB / PAGE));
	// To an exact place.
	char *target = map(40 * MIB);

	fill(target, 0, 10 * MIB / PAGE, 6);
	CHECK(mremap(moved, 40 * MIB, 40 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, target) == target);
	CHECK(holds(target, 0, 20 * MIB / PAGE, 5));
	evict_the_rest();
	CHECK(holds(target, 0, 20 * MIB / PAGE, 5));
	CHECK(mremap(target, 40 * MIB, 80 * MIB, 0) == MAP_FAILED || munmap(target + 40 * MIB, 40 * MIB) == 0);
	CHECK(munmap(target, 40 * MIB) == 0);
	munmap(next, MIB);
}

static void protect(void)
{
	uint64_t pages = 16 * MIB / PAGE;
	char *memory = map(16 * MIB);

	fill(memory, 0, pages, 7);
	CHECK(mprotect(memory, 8 * MIB, PROT_READ) == 0);
	CHECK(mprotect(memory + 8 * MIB, 4 * MIB, PROT_NONE) == 0);
	evict_the_rest();
	CHECK(holds(memory, 0, pages / 2, 7));
	CHECK(faults(memory + PAGE, 1) && !faults(memory + PAGE, 0));
	CHECK(faults(memory + 8 * MIB, 0));
	// Three mappings by now: they grow no more, and stay as they are.
	CHECK(mremap(memory, 16 * MIB, 32 * MIB, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT);
	CHECK(mprotect(memory + 8 * MIB, 4 * MIB, PROT_READ | PROT_WRITE) == 0);
	CHECK(holds(memory, 0, pages, 7));
	CHECK(mprotect(memory, 16 * MIB, PROT_READ | PROT_WRITE) == 0);
	fill(memory, 0, pages, 8);
	evict_the_rest();
	CHECK(holds(memory, 0, pages, 8));
	// Reserved first, made usable later: how allocators grow.
	char *reserve = mmap(NULL, 64 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	CHECK(reserve != MAP_FAILED && faults(reserve, 0));
	for (uint64_t step = 0; step < 32; step++) {
		CHECK(mprotect(reserve + step * MIB, MIB, PROT_READ | PROT_WRITE) == 0);
		fill(reserve + step * MIB, step * 256, 256, 9);
	}
	CHECK(holds(reserve, 0, 32 * 256, 9));
	CHECK(faults(reserve + 32 * MIB, 0));
	CHECK(munmap(reserve, 64 * MIB) == 0 && munmap(memory, 16 * MIB) == 0);
}

static void advise(void)
{
	uint64_t pages = 32 * MIB / PAGE;
	char *memory = map(32 * MIB);

	fill(memory, 0, pages, 10);
	CHECK(madvise(memory, 8 * MIB, MADV_DONTNEED) == 0);
	CHECK(is_zero(memory, 8 * MIB / PAGE));
	CHECK(holds(memory + 8 * MIB, 8 * MIB / PAGE, 24 * MIB / PAGE, 10));
	CHECK(madvise(memory + 8 * MIB, 8 * MIB, MADV_FREE) == 0);
	fill(memory + 8 * MIB, 0, 8 * MIB / PAGE, 11);
	evict_the_rest();
	CHECK(holds(memory + 8 * MIB, 0, 8 * MIB / PAGE, 11));
	CHECK(madvise(memory, 32 * MIB, MADV_WILLNEED) == 0);
	CHECK(madvise(memory, 32 * MIB, MADV_HUGEPAGE) == 0);
	CHECK(madvise(memory, 32 * MIB, MADV_SEQUENTIAL) == 0);
	CHECK(holds(memory + 16 * MIB, 16 * MIB / PAGE, 16 * MIB / PAGE, 10));
	CHECK(madvise(memory, MIB, MADV_POPULATE_WRITE) == 0 || errno == EINVAL);
	CHECK(munmap(memory, 32 * MIB) == 0);
}

// Advice on our own memory that names it by a descriptor of our process, where the kernel
// takes that (6.13 and later): followed or refused, and not half of each.
static void advise_by_descriptor(void)
{
	uint64_t pages = 4 * MIB / PAGE;
	char *memory = map(4 * MIB);
	// PIDFD_SELF, of a thread and of its group, and what needs no such name.
	int descriptors[] = { -10000, -10001, syscall(SYS_pidfd_open, getpid(), 0) };

	alarm(60);
	for (int at = 0; at < 3; at++) {
		struct iovec whole = { memory, 4 * MIB };

		fill(memory, 0, pages, 14);
		if (syscall(SYS_process_madvise, descriptors[at], &whole, 1UL, MADV_DONTNEED, 0) < 0)
			CHECK(holds(memory, 0, pages, 14));
		else
			CHECK(is_zero(memory, pages));
	}
	alarm(0);
	close(descriptors[2]);
	CHECK(munmap(memory, 4 * MIB) == 0);
}

static void file_inside(void)
{
	char *memory = map(8 * MIB);
	char name[] = "/tmp/demeter-extmem-XXXXXX";
	int fd = mkstemp(name);

	CHECK(fd >= 0 && unlink(name) == 0 && ftruncate(fd, MIB) == 0);
	fill(memory, 0, 8 * MIB / PAGE, 12);
	char *file = mmap(memory + 4 * MIB, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);

	CHECK(file == memory + 4 * MIB && is_zero(file, 256));
	fill(file, 0, 256, 13);
	evict_the_rest();
	CHECK(holds(file, 0, 256, 13));
	CHECK(holds(memory, 0, 4 * MIB / PAGE, 12));
	CHECK(holds(memory + 5 * MIB, 5 * MIB / PAGE, 3 * MIB / PAGE, 12));
	CHECK(msync(file, MIB, MS_SYNC) == 0);
	CHECK(munmap(memory, 8 * MIB) == 0);
	close(fd);
}

static void heap(void)
{
	// Small allocations: the C library's break.
	enum { COUNT = 200000 };
	char **pieces = malloc(COUNT * sizeof(*pieces));

	CHECK(pieces);
	for (int index = 0; index < COUNT; index++) {
		pieces[index] = malloc(200);
		CHECK(pieces[index]);
		memset(pieces[index], index, 200);
	}
	for (int index = 0; index < COUNT; index++)
		for (int byte = 0; byte < 200; byte += 50)
			CHECK(pieces[index][byte] == (char)index);
	for (int index = 0; index < COUNT; index += 2)
		pieces[index] = realloc(pieces[index], 1000);
	for (int index = 0; index < COUNT; index++) {
		CHECK(pieces[index][150] == (char)index);
		free(pieces[index]);
	}
	free(pieces);
	void *before = sbrk(0);

	CHECK(sbrk(MIB) == before && sbrk(0) == (char *)before + MIB);
	memset(before, 1, MIB);
	CHECK(sbrk(-(long)MIB) == (char *)before + MIB && sbrk(0) == before);
}

static void too_much(void)
{
	errno = 0;
	CHECK(mmap(NULL, 1UL << 38, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED);
	CHECK(errno == ENOMEM);
	CHECK(malloc(1UL << 38) == NULL);
	CHECK(mmap(NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == EINVAL);
}

int main(int count, char **arguments)
{
	struct sigaction action = { .sa_handler = on_segv };

	(void)arguments;
	CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
	partial_unmap();
	remap();
	protect();
	advise();
	advise_by_descriptor();
	file_inside();
	heap();
	if (count > 1)
		too_much();
	return done();
}
