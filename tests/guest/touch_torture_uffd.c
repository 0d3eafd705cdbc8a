// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * userfaultfd over memory that "touch" has armed: each write that is to be told is told,
 * once for each page (WP; RWP of Linux 7.3: each access), pages come as they are asked for
 * (MISSING), and those that are there already are mapped as asked for (MINOR).
 */
#include "touch_torture.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Of Linux 7.3. */
#ifndef UFFD_FEATURE_RWP
#define UFFD_FEATURE_RWP	  (1 << 17)
#define UFFDIO_REGISTER_MODE_RWP  ((__u64)1 << 3)
#define UFFD_PAGEFAULT_FLAG_RWP	  (1 << 3)
#define UFFDIO_RWPROTECT_MODE_RWP ((__u64)1 << 0)
#define UFFDIO_RWPROTECT	  _IOWR(UFFDIO, 0x09, struct uffdio_writeprotect)
#endif

static int uffd;
static atomic_bool end_handler;
static atomic_ulong told_writes, told_accesses, told_missing, told_minor, failed;
static unsigned long page_of_ones[WORDS];

static void answer(const struct uffd_msg *message)
{
	unsigned long at = message->arg.pagefault.address & ~(PAGE - 1);
	unsigned long flags = message->arg.pagefault.flags;

	if (flags & UFFD_PAGEFAULT_FLAG_RWP) {
		struct uffdio_writeprotect undo = { .range = { at, PAGE } };

		told_accesses++;
		failed += ioctl(uffd, UFFDIO_RWPROTECT, &undo) != 0;
	} else if (flags & UFFD_PAGEFAULT_FLAG_WP) {
		struct uffdio_writeprotect undo = { .range = { at, PAGE } };

		told_writes++;
		failed += ioctl(uffd, UFFDIO_WRITEPROTECT, &undo) != 0;
	} else if (flags & UFFD_PAGEFAULT_FLAG_MINOR) {
		struct uffdio_continue go_on = { .range = { at, PAGE } };

		told_minor++;
		failed += ioctl(uffd, UFFDIO_CONTINUE, &go_on) != 0 && errno != EEXIST;
	} else {
		struct uffdio_copy copy = { at, (unsigned long)page_of_ones, PAGE, 0, 0 };

		told_missing++;
		failed += ioctl(uffd, UFFDIO_COPY, &copy) != 0 && errno != EEXIST;
	}
}

static void *handle(void *unused)
{
	struct pollfd waits = { .fd = uffd, .events = POLLIN };
	struct uffd_msg message;

	(void)unused;
	while (!end_handler)
		if (poll(&waits, 1, 20) > 0 && read(uffd, &message, sizeof(message)) > 0 &&
		    message.event == UFFD_EVENT_PAGEFAULT)
			answer(&message);
	return NULL;
}

/* False where this kernel has it not. */
static bool open_with(unsigned long features)
{
	struct uffdio_api api = { .api = UFFD_API, .features = features };

	uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	CHECK(uffd >= 0, "userfaultfd");
	if (uffd < 0)
		return false;
	if (!ioctl(uffd, UFFDIO_API, &api))
		return true;
	close(uffd);
	return false;
}

static bool track(void *at, size_t length, unsigned long mode)
{
	struct uffdio_register range = { .range = { (unsigned long)at, length }, .mode = mode };

	return !ioctl(uffd, UFFDIO_REGISTER, &range);
}

static void untrack(void *at, size_t length)
{
	struct uffdio_range range = { (unsigned long)at, length };

	CHECK(!ioctl(uffd, UFFDIO_UNREGISTER, &range), "UFFDIO_UNREGISTER");
}

/* Of private memory that was armed before, and would be meanwhile: is every page told? */
static void test_protecting(unsigned long mode)
{
	const size_t from = 12 * HUGE / 8, pages = HUGE / PAGE;
	bool rwp = mode == UFFDIO_REGISTER_MODE_RWP;
	struct uffdio_writeprotect protect = {
		.range = { (unsigned long)(memory + from), HUGE },
		.mode = rwp ? UFFDIO_RWPROTECT_MODE_RWP : UFFDIO_WRITEPROTECT_MODE_WP,
	};
	pthread_t handler;
	size_t i;

	hold_hammer(true);
	for (i = 0; i < pages; i++)
		memory[from + i * WORDS] = from + i * WORDS;
	nap(30);
	CHECK(track(memory + from, HUGE, mode), "tracking writes or accesses");
	CHECK(!ioctl(uffd, rwp ? UFFDIO_RWPROTECT : UFFDIO_WRITEPROTECT, &protect), "protecting");
	end_handler = false;
	told_writes = told_accesses = 0;
	pthread_create(&handler, NULL, handle, NULL);
	nap(30);
	for (i = 0; i < pages; i++)
		__atomic_fetch_add(&memory[from + i * WORDS + 1], 0, __ATOMIC_RELAXED);
	end_handler = true;
	pthread_join(handler, NULL);
	CHECK((rwp ? told_accesses : told_writes) == pages, "every page is told once");
	untrack(memory + from, HUGE);
	hold_hammer(false);
	verify("userfaultfd");
}

static void test_missing(void)
{
	volatile unsigned long *at =
		mmap(NULL, HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_t handler;
	bool right = true;
	size_t i;

	memset(page_of_ones, 0xff, sizeof(page_of_ones));
	CHECK(track((void *)at, HUGE, UFFDIO_REGISTER_MODE_MISSING), "MISSING");
	end_handler = false;
	told_missing = 0;
	pthread_create(&handler, NULL, handle, NULL);
	for (i = 0; i < HUGE / 8; i += WORDS / 2)
		right &= at[i] == ~0ul;
	nap(30);
	for (i = 0; i < HUGE / 8; i += WORDS / 2)
		right &= at[i] == ~0ul;
	end_handler = true;
	pthread_join(handler, NULL);
	CHECK(right && told_missing == HUGE / PAGE, "pages that were missing come once");
	untrack((void *)at, HUGE);
	munmap((void *)at, HUGE);
}

static void test_minor(void)
{
	unsigned long *again, *at = shared_twice(&again);
	pthread_t handler;
	bool right = true;
	size_t i;

	CHECK(at && track(again, HUGE, UFFDIO_REGISTER_MODE_MINOR), "MINOR");
	if (!at)
		return;
	for (i = 0; i < HUGE / 8; i += WORDS)
		at[i] = i;
	nap(30);
	end_handler = false;
	told_minor = 0;
	pthread_create(&handler, NULL, handle, NULL);
	for (i = 0; i < HUGE / 8; i += WORDS)
		right &= again[i] == i;
	nap(30);
	for (i = 0; i < HUGE / 8; i += WORDS)
		right &= __atomic_fetch_add(&again[i], 1, __ATOMIC_RELAXED) == i && at[i] == i + 1;
	end_handler = true;
	pthread_join(handler, NULL);
	/* Reclaim unmaps a page and may then keep it: where memory is aged it is told again. */
	if (told_minor != HUGE / PAGE)
		printf("# %zu faults of %zu pages that were there\n", (size_t)told_minor,
		       (size_t)(HUGE / PAGE));
	CHECK(right && told_minor >= HUGE / PAGE, "pages that are there are mapped");
	untrack(again, HUGE);
	munmap(again, HUGE);
	munmap(at, HUGE);
}

void test_userfaultfd(void)
{
	if (open_with(UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_MINOR_SHMEM)) {
		test_protecting(UFFDIO_REGISTER_MODE_WP);
		test_missing();
		test_minor();
		close(uffd);
	} else {
		CHECK(false, "userfaultfd of Linux 6.1");
	}
	if (open_with(UFFD_FEATURE_RWP)) {
		test_protecting(UFFDIO_REGISTER_MODE_RWP);
		close(uffd);
	}
	CHECK(!failed, "userfaultfd's answers are taken");
}
