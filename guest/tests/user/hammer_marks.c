// SPDX-License-Identifier: GPL-2.0-only
/*
 * What others keep in page tables must outlive an exchange: soft-dirty bits, by which
 * checkpoints know what was written, and the write protection of userfaultfd.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hammer.h"

#define PAGEMAP_SOFT_DIRTY (1ULL << 55)
#define PAGEMAP_UFFD_WP	   (1ULL << 57)
#define MOST_UNITS	   64

static uint64_t pagemap_of(const void *at)
{
	uint64_t entry = 0;
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);

	if (fd < 0 ||
	    pread(fd, &entry, sizeof(entry), (uintptr_t)at / PAGE * sizeof(entry)) != sizeof(entry))
		entry = 0;
	if (fd >= 0)
		close(fd);
	return entry;
}

struct marked {
	const char *kind;
	char *hot, *cold;
	size_t unit_bytes, units;
	bool hot_before[MOST_UNITS], cold_before[MOST_UNITS];
};

static void marked_map(struct marked *m, bool thp)
{
	*m = (struct marked){
		.kind = thp ? "THP" : "4K",
		.unit_bytes = thp ? THP : PAGE,
		.units = thp ? 4 : MOST_UNITS,
	};
	m->hot = map_on(SMEM, m->units * m->unit_bytes, thp);
	m->cold = map_on(FMEM, m->units * m->unit_bytes, thp);
}

static void marked_unmap(struct marked *m)
{
	munmap(m->hot, m->units * m->unit_bytes);
	munmap(m->cold, m->units * m->unit_bytes);
}

static bool is_marked(const struct marked *m, const char *area, size_t unit, uint64_t bit)
{
	return pagemap_of(area + unit * m->unit_bytes) & bit;
}

static void remember(struct marked *m, uint64_t bit)
{
	size_t i;

	for (i = 0; i < m->units; i++) {
		m->hot_before[i] = is_marked(m, m->hot, i, bit);
		m->cold_before[i] = is_marked(m, m->cold, i, bit);
	}
}

static uint64_t exchange_all(const struct marked *m)
{
	size_t bytes = m->units * m->unit_bytes;
	struct demeter_hammer_exchange req = { .max_pages = bytes / PAGE, .batch_pairs = 64 };

	device_call(DEMETER_HAMMER_DRAIN, NULL);
	area_set(&req.hot, getpid(), SMEM, m->hot, bytes);
	area_set(&req.cold, getpid(), FMEM, m->cold, bytes);
	device_call(DEMETER_HAMMER_EXCHANGE, &req);
	exchanges_total += req.promoted_pages / (m->unit_bytes / PAGE);
	if (req.promoted_pages != bytes / PAGE) {
		printf("#   refused:");
		print_refused((uint64_t *)req.refused);
		putchar('\n');
	}
	return req.promoted_pages / (m->unit_bytes / PAGE);
}

/* How many units lost their mark, and how many have one that had none. */
static void compare(const struct marked *m, uint64_t bit, unsigned int *lost, unsigned int *gained)
{
	size_t i;

	*lost = 0;
	*gained = 0;
	for (i = 0; i < m->units; i++) {
		bool hot = is_marked(m, m->hot, i, bit), cold = is_marked(m, m->cold, i, bit);

		*lost += (m->hot_before[i] && !hot) + (m->cold_before[i] && !cold);
		*gained += (!m->hot_before[i] && hot) + (!m->cold_before[i] && cold);
	}
}

static void keep_soft_dirty(bool thp)
{
	struct marked m;
	unsigned int lost, gained, marks = 0;
	uint64_t exchanged;
	size_t i;

	marked_map(&m, thp);
	write_file("/proc/self/clear_refs", "4");
	for (i = 0; i < m.units; i += 2)
		m.hot[i * m.unit_bytes] = 1;
	for (i = 0; i < m.units; i += 3)
		m.cold[i * m.unit_bytes] = 1;
	remember(&m, PAGEMAP_SOFT_DIRTY);
	for (i = 0; i < m.units; i++)
		marks += m.hot_before[i] + m.cold_before[i];
	exchanged = exchange_all(&m);
	compare(&m, PAGEMAP_SOFT_DIRTY, &lost, &gained);
	check(marks == (m.units + 1) / 2 + (m.units + 2) / 3 && exchanged == m.units && !lost,
	      "%s: soft-dirty is kept: %llu of %zu exchanged, %u marks, %u lost", m.kind,
	      (unsigned long long)exchanged, m.units, marks, lost);
	/* Too many cost a checkpoint some time, and no more. */
	if (gained)
		printf("#   %u more are soft-dirty\n", gained);

	write_file("/proc/self/clear_refs", "4");
	for (lost = 0, i = 0; i < m.units; i++)
		lost += is_marked(&m, m.hot, i, PAGEMAP_SOFT_DIRTY);
	m.hot[0] = 2;
	check(!lost && is_marked(&m, m.hot, 0, PAGEMAP_SOFT_DIRTY),
	      "%s: soft-dirty can be cleared and comes again", m.kind);
	marked_unmap(&m);
}

/* ---- userfaultfd */

static int fault_fd = -1;

static bool faults_open(void)
{
	struct uffdio_api api = {
		.api = UFFD_API,
		.features = UFFD_FEATURE_PAGEFAULT_FLAG_WP,
	};

	fault_fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	if (fault_fd >= 0 && !ioctl(fault_fd, UFFDIO_API, &api))
		return true;
	printf("# userfaultfd: %s\n", strerror(errno));
	return false;
}

static bool faults_register(char *at, size_t bytes, uint64_t mode)
{
	struct uffdio_register req = { .range = { (uintptr_t)at, bytes }, .mode = mode };

	return !ioctl(fault_fd, UFFDIO_REGISTER, &req);
}

static bool faults_protect(char *at, size_t bytes, bool protect)
{
	struct uffdio_writeprotect req = {
		.range = { (uintptr_t)at, bytes },
		.mode = protect ? UFFDIO_WRITEPROTECT_MODE_WP : 0,
	};

	return !ioctl(fault_fd, UFFDIO_WRITEPROTECT, &req);
}

struct toucher {
	const struct marked *m;
	volatile bool done;
	unsigned int wrong;
};

/* Reads everything, which must wait for nobody, then writes, which must. */
static void *touch_units(void *argument)
{
	struct toucher *toucher = argument;
	const struct marked *m = toucher->m;
	size_t i;

	for (i = 0; i < m->units * m->unit_bytes; i += PAGE)
		toucher->wrong += *(volatile uint64_t *)(m->hot + i) != i + 1;
	for (i = 0; i < m->units; i++)
		*(volatile uint64_t *)(m->hot + i * m->unit_bytes) = i;
	toucher->done = true;
	return NULL;
}

static void keep_write_protection(bool thp)
{
	struct toucher toucher = { 0 };
	struct pollfd ready;
	struct uffd_msg message;
	unsigned int lost, gained, marks = 0, protects = 0, missing = 0;
	uint64_t exchanged, begin;
	pthread_t thread;
	struct marked m;
	size_t i;

	marked_map(&m, thp);
	if (!faults_open() ||
	    !faults_register(m.hot, m.units * m.unit_bytes,
			     UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP)) {
		check(false, "%s: userfaultfd: set up", m.kind);
		goto out;
	}
	for (i = 0; i < m.units; i += 2)
		marks += faults_protect(m.hot + i * m.unit_bytes, m.unit_bytes, true);
	remember(&m, PAGEMAP_UFFD_WP);
	for (i = 0; i < m.units; i++)
		marks -= m.hot_before[i];
	exchanged = exchange_all(&m);
	compare(&m, PAGEMAP_UFFD_WP, &lost, &gained);
	check(!marks && exchanged == m.units && !lost && !gained,
	      "%s: userfaultfd: %llu of %zu exchanged, %u protections lost, %u too many", m.kind,
	      (unsigned long long)exchanged, m.units, lost, gained);

	toucher.m = &m;
	pthread_create(&thread, NULL, touch_units, &toucher);
	ready = (struct pollfd){ .fd = fault_fd, .events = POLLIN };
	begin = now_ns();
	while (!toucher.done && now_ns() - begin < 60000000000ULL) {
		if (poll(&ready, 1, 20) <= 0 ||
		    read(fault_fd, &message, sizeof(message)) != sizeof(message))
			continue;
		if (message.arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WP) {
			uint64_t unit = message.arg.pagefault.address & ~(m.unit_bytes - 1);

			protects++;
			faults_protect((char *)unit, m.unit_bytes, false);
		} else {
			struct uffdio_zeropage zero = {
				.range = { message.arg.pagefault.address & ~(PAGE - 1), PAGE },
			};

			missing++;
			ioctl(fault_fd, UFFDIO_ZEROPAGE, &zero);
		}
	}
	check(toucher.done && !missing && protects == (m.units + 1) / 2 && !toucher.wrong,
	      "%s: userfaultfd: %u writes waited, %u pages were missed, %u words wrong", m.kind,
	      protects, missing, toucher.wrong);
	if (toucher.done)
		pthread_join(thread, NULL);
out:
	close(fault_fd);
	fault_fd = -1;
	marked_unmap(&m);
}

/*
 * Write, clear the soft-dirty bits, write, and say whether the kernel saw the second.
 *
 * It need not, beside migration: clear_refs leaves a migration entry writable, so the
 * page comes back writable and without the bit, and the next write faults no more. That
 * is Linux's own (see kernel_loses_soft_dirty()), whoever migrates; what an exchange
 * itself must keep, keep_soft_dirty() asks.
 */
static bool write_is_seen(char *at)
{
	volatile uint64_t *word = (uint64_t *)at;

	*word = *word;
	write_file("/proc/self/clear_refs", "4");
	*word = *word;
	return pagemap_of(at) & PAGEMAP_SOFT_DIRTY;
}

struct mover {
	char *at;
	volatile bool stop;
	unsigned long moves;
};

static void *move_pages_about(void *argument)
{
	struct mover *mover = argument;
	void *pages[MOST_UNITS];
	int nodes[MOST_UNITS], status[MOST_UNITS], i;

	for (i = 0; i < MOST_UNITS; i++)
		pages[i] = mover->at + i * PAGE;
	while (!mover->stop) {
		for (i = 0; i < MOST_UNITS; i++)
			nodes[i] = mover->moves & 1 ? FMEM : SMEM;
		syscall(SYS_move_pages, 0, (unsigned long)MOST_UNITS, pages, nodes, status, 2);
		mover->moves++;
	}
	return NULL;
}

/* How often Linux's own migration, by move_pages(), hides a write. Told, not judged. */
static void kernel_loses_soft_dirty(void)
{
	struct mover mover = { .at = map_on(SMEM, MOST_UNITS * PAGE, false) };
	unsigned int tries = 0, lost = 0;
	uint64_t begin = now_ns();
	pthread_t thread;

	pin_cpu(-1);
	pthread_create(&thread, NULL, move_pages_about, &mover);
	while (now_ns() - begin < 5000000000ULL && tries < 20000)
		lost += !write_is_seen(mover.at + tries++ % MOST_UNITS * PAGE);
	mover.stop = true;
	pthread_join(thread, NULL);
	printf("# Linux's own move_pages(), %lu times, hid %u of %u writes from soft-dirty\n",
	       mover.moves, lost, tries);
	munmap(mover.at, MOST_UNITS * PAGE);
	pin_cpu(0);
}

/*
 * One step of a race, on memory that is mapped: clear the soft-dirty bits, or protect
 * the memory for a while and see that it stays so. Returns mistakes.
 */
uint64_t mark_step(char *at, size_t bytes, uint64_t random)
{
	uint64_t wrong = 0, entry;
	size_t i;

	if (random & 1) {
		if (!write_is_seen(at))
			printf("#   a write was not seen by soft-dirty\n");
		return 0;
	}
	if (fault_fd < 0 && !faults_open())
		return 1;
	/* Each time: mremap() has ended it where it was. */
	if (!faults_register(at, bytes, UFFDIO_REGISTER_MODE_WP) ||
	    !faults_protect(at, bytes, true)) {
		printf("#   cannot protect %p: %s\n", at, strerror(errno));
		return 1;
	}
	sched_yield();
	for (i = 0; i < bytes; i += PAGE) {
		entry = pagemap_of(at + i);
		if (entry & PAGEMAP_UFFD_WP)
			continue;
		printf("#   no longer protected: %#llx\n", (unsigned long long)entry);
		wrong++;
	}
	if (!faults_protect(at, bytes, false)) {
		printf("#   cannot end the protection of %p: %s\n", at, strerror(errno));
		wrong++;
	}
	return wrong;
}

void test_marks(void)
{
	pin_cpu(0);
	keep_soft_dirty(false);
	keep_soft_dirty(true);
	kernel_loses_soft_dirty();
	keep_write_protection(false);
	keep_write_protection(true);
	check(kernel_log_clean(), "marks: kernel log clean");
}
