// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Programs with layouts that GUPS has not:
 *	layouts mappings ACCESSES	a hot array beside as many mappings as a process
 *					may have; prints their number
 *	layouts file PATH ACCESSES	reads a mapped file or device, most of it in its
 *					hot last part
 *	layouts objects PROCESSES MS	so many processes for so long, each with shared
 *					memory that no other one maps
 */
#define _GNU_SOURCE
#include <fcntl.h>
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

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "mappings"))
		return mappings(strtoul(argv[2], NULL, 0));
	if (argc == 4 && !strcmp(argv[1], "file"))
		return file(argv[2], strtoul(argv[3], NULL, 0));
	if (argc == 4 && !strcmp(argv[1], "objects"))
		return objects(strtoul(argv[2], NULL, 0), strtoul(argv[3], NULL, 0));
	fprintf(stderr, "usage: layouts mappings ACCESSES | layouts file PATH ACCESSES |"
			" layouts objects PROCESSES MS\n");
	return 2;
}
