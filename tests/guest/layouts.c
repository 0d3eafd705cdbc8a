// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Programs with layouts that GUPS has not:
 *	layouts mappings ACCESSES	a hot array beside as many mappings as a process
 *					may have; prints their number
 *	layouts file PATH ACCESSES	reads a mapped file or device, most of it in its
 *					hot last part
 *	layouts objects PROCESSES MS	so many processes for so long, each with shared
 *					memory that no other one maps
 *	layouts pool ACCESSES		shared memory as of a database, of which one process uses
 *					all alike and another, which mapped it later, the end
 *	layouts views WHICH ACCESSES	one memfd mapped twice, and the first or the last view by
 *					address used; the other one was read once
 *	layouts alias ACCESSES		the same, where the one not used is half of it
 *	layouts clones ACCESSES		two processes read what both have mapped privately
 *	layouts holes ROUNDS		two processes share memory that is hot in both; one
 *					of them punches holes into it and truncates it
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE	   4096ul
#define MAPPINGS   65400ul
#define ARRAY	   (24ul << 20)
#define FILE_BYTES (80ul << 20)
#define HOT_BYTES  (8ul << 20)

static uint64_t random_word(void)
{
	static uint64_t state = 1;

	state = state * 6364136223846793005ul + 1442695040888963407ul;
	return state >> 32;
}

static int mappings(uint64_t accesses)
{
	char *at, *hot;
	uint64_t i, made = 0;

	hot = mmap(NULL, ARRAY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	at = mmap(NULL, MAPPINGS * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (hot == MAP_FAILED || at == MAP_FAILED)
		return 1;
	/* Neighbours that differ in protection cannot be one mapping. */
	for (i = 0; i < MAPPINGS; i += 2)
		made += 2 * !mprotect(at + i * PAGE, PAGE, PROT_READ | PROT_WRITE);
	for (i = 0; i < accesses; i++)
		hot[random_word() % ARRAY]++;
	printf("%lu\n", (unsigned long)made);
	return made < 65000;
}

static int file(const char *path, uint64_t accesses)
{
	int fd = open(path, O_RDONLY);
	const volatile char *at;
	uint64_t i, sum = 0;

	at = mmap(NULL, FILE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED) {
		perror(path);
		return 1;
	}
	for (i = 0; i < FILE_BYTES; i += PAGE)
		sum += at[i];
	for (i = 0; i < accesses; i++) {
		uint64_t word = random_word();

		sum += word % 10 ? at[FILE_BYTES - 1 - word % HOT_BYTES] : at[word % FILE_BYTES];
	}
	printf("%lu\n", (unsigned long)sum);
	return 0;
}

static int one_object(unsigned int ms)
{
	volatile char *at =
		mmap(NULL, ARRAY, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED) {
		perror("layouts: mmap");
		return 1;
	}
	*at = 1;
	return usleep(ms * 1000) != 0;
}

static int objects(unsigned long processes, unsigned int ms)
{
	int status, failed = 0;
	unsigned long i;

	for (i = 0; i < processes; i++) {
		pid_t pid = fork();

		if (!pid)
			_exit(one_object(ms));
		failed += pid < 0;
	}
	while (wait(&status) > 0)
		failed += status != 0;
	return failed > 0;
}

#define POOL_BYTES (96ul << 20)

static void use(volatile char *at, unsigned long bytes, uint64_t accesses)
{
	while (accesses--)
		at[random_word() % bytes]++;
}

static int pool(uint64_t accesses)
{
	volatile char *at = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int status;
	uint64_t i;
	pid_t child;

	if (at == MAP_FAILED)
		return 1;
	for (i = 0; i < POOL_BYTES; i += PAGE)
		at[i] = 1;
	child = fork();
	if (!child) {
		use(at + POOL_BYTES - HOT_BYTES, HOT_BYTES, accesses - accesses / 10);
		_exit(0);
	}
	use(at, POOL_BYTES, accesses / 10);
	return waitpid(child, &status, 0) != child || status;
}

static void read_all(const volatile char *at, unsigned long bytes)
{
	unsigned long i;

	for (i = 0; i < bytes; i += PAGE)
		(void)at[i];
}

/*
 * Memory mapped twice, @other_bytes of it at the other address: above the one that is used,
 * or below. The hot part is at the end, which both have, and so in SMEM.
 */
static int views(bool above, unsigned long other_bytes, uint64_t accesses)
{
	int fd = memfd_create("views", 0);
	volatile char *used, *other;
	unsigned long i;
	char *room;

	if (fd < 0 || ftruncate(fd, POOL_BYTES))
		return 1;
	/* With a gap, so that they are areas of their own. */
	room = mmap(NULL, 3 * POOL_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (room == MAP_FAILED)
		return 1;
	used = mmap(room + (above ? 0 : 2 * POOL_BYTES), POOL_BYTES, PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_FIXED, fd, 0);
	other = mmap(room + (above ? 2 * POOL_BYTES : 0), other_bytes, PROT_READ,
		     MAP_SHARED | MAP_FIXED, fd, (off_t)(POOL_BYTES - other_bytes));
	if (used == MAP_FAILED || other == MAP_FAILED)
		return 1;
	for (i = 0; i < POOL_BYTES; i += PAGE)
		used[i] = 1;
	read_all(other, other_bytes);
	use(used + POOL_BYTES - HOT_BYTES, HOT_BYTES, accesses);
	return 0;
}

/* Clones of a snapshot: what they read of it is that of all. */
static int clones(uint64_t accesses)
{
	int fd = memfd_create("clones", 0), status, failed = 0, i;
	volatile char *at;
	unsigned long k;

	if (fd < 0 || ftruncate(fd, POOL_BYTES))
		return 1;
	at = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		return 1;
	for (k = 0; k < POOL_BYTES; k += PAGE)
		at[k] = 1;
	munmap((void *)at, POOL_BYTES);
	at = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	if (at == MAP_FAILED)
		return 1;
	for (i = 0; i < 2; i++) {
		pid_t pid = fork();

		if (!pid) {
			read_all(at, POOL_BYTES);
			for (; accesses; accesses--)
				(void)at[POOL_BYTES - 1 - random_word() % HOT_BYTES];
			_exit(0);
		}
		failed += pid < 0;
	}
	while (wait(&status) > 0)
		failed += status != 0;
	return failed > 0;
}

#define HOLES_BYTES (16ul << 20)
#define WORDS	    (HOLES_BYTES / sizeof(uint64_t))

/*
 * Does to shared memory that another process uses what takes its pages away: holes, a
 * file that grows shorter, and longer again. What is taken reads as zero in both and is
 * written anew; all else must be what it was.
 */
static int holes(unsigned int rounds)
{
	int fd = memfd_create("holes", 0), status, failed = 0;
	volatile uint64_t *at, *told;
	uint64_t i, from, to;
	unsigned int round;
	pid_t child;

	if (fd < 0 || ftruncate(fd, HOLES_BYTES))
		return 1;
	at = mmap(NULL, HOLES_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	/* When the other one has to stop, as what is cut off must not be touched. */
	told = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED || told == MAP_FAILED)
		return 1;
	for (i = 0; i < WORDS; i++)
		at[i] = i;
	child = fork();
	while (!child) {
		for (i = 0; i < 4096; i++) {
			uint64_t word = random_word() % (WORDS / 2);
			uint64_t value = at[word];

			/* The first half is only punched: each word is there, or a hole. */
			if (value && value != word)
				_exit(1);
		}
		if (told[0])
			_exit(0);
	}
	for (round = 0; round < rounds; round++) {
		for (i = 0; i < 200000; i++) {
			uint64_t word = random_word() % WORDS;

			failed += at[word] != word;
		}
		/* Of the first half, a hole with base pages at both ends; the end of the second. */
		from = random_word() % (WORDS / 4) / 512 * 512;
		to = from + WORDS / 4;
		if (round % 2) {
			failed += fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
					    from * sizeof(*at), (to - from) * sizeof(*at)) != 0;
		} else {
			from = WORDS / 2 + from;
			to = WORDS;
			failed += ftruncate(fd, from * sizeof(*at)) != 0;
			failed += ftruncate(fd, HOLES_BYTES) != 0;
		}
		for (i = from; i < to; i++) {
			failed += at[i] != 0;
			at[i] = i;
		}
	}
	told[0] = 1;
	if (waitpid(child, &status, 0) != child || status)
		failed++;
	printf("%d\n", failed);
	return failed > 0;
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "mappings"))
		return mappings(strtoul(argv[2], NULL, 0));
	if (argc == 4 && !strcmp(argv[1], "file"))
		return file(argv[2], strtoul(argv[3], NULL, 0));
	if (argc == 4 && !strcmp(argv[1], "objects"))
		return objects(strtoul(argv[2], NULL, 0), strtoul(argv[3], NULL, 0));
	if (argc == 3 && !strcmp(argv[1], "pool"))
		return pool(strtoul(argv[2], NULL, 0));
	if (argc == 4 && !strcmp(argv[1], "views"))
		return views(!strcmp(argv[2], "first"), POOL_BYTES, strtoul(argv[3], NULL, 0));
	if (argc == 3 && !strcmp(argv[1], "alias"))
		return views(false, POOL_BYTES / 2, strtoul(argv[2], NULL, 0));
	if (argc == 3 && !strcmp(argv[1], "clones"))
		return clones(strtoul(argv[2], NULL, 0));
	if (argc == 3 && !strcmp(argv[1], "holes"))
		return holes(strtoul(argv[2], NULL, 0));
	fprintf(stderr, "usage: layouts mappings ACCESSES | layouts file PATH ACCESSES |"
			" layouts objects PROCESSES MS | layouts pool ACCESSES |"
			" layouts views first|last ACCESSES | layouts alias ACCESSES |"
			" layouts clones ACCESSES |"
			" layouts holes ROUNDS\n");
	return 2;
}
