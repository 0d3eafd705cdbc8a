// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * usage: keep_pages MIB0 MIB1
 * Keeps so much anonymous memory on nodes 0 and 1, checks every word of it again and
 * again, and renews a part each time: some pages in place, some given back to the
 * kernel and fetched anew. After each round it writes their number to /tmp/kept. A
 * wrong word is told in /tmp/wrong, and ends it.
 */
#include <linux/mempolicy.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE_BYTES = 4096, WORDS = PAGE_BYTES / sizeof(uint64_t), REST_US = 200 * 1000 };

struct area {
	uint64_t *words;
	uint32_t *version; /* of each page */
	size_t pages;
};

static uint64_t mixed(uint64_t number)
{
	number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9ULL;
	number = (number ^ (number >> 27)) * 0x94d049bb133111ebULL;
	return number ^ (number >> 31);
}

static uint64_t wanted(int node, size_t page, uint32_t version, size_t word)
{
	uint64_t name = (uint64_t)version << 32 | (uint64_t)node << 31 | page;

	return mixed(name) + word;
}

static void fill(const struct area *area, int node, size_t page)
{
	uint64_t first = wanted(node, page, area->version[page], 0);

	for (size_t word = 0; word < WORDS; word++)
		area->words[page * WORDS + word] = first + word;
}

static void check(const struct area *area, int node, size_t page)
{
	uint64_t first = wanted(node, page, area->version[page], 0);

	for (size_t word = 0; word < WORDS; word++) {
		uint64_t found = area->words[page * WORDS + word];

		if (found != first + word) {
			FILE *file = fopen("/tmp/wrong", "w");

			fprintf(file, "node %d page %zu word %zu version %u: %llx, not %llx\n",
				node, page, word, area->version[page], (unsigned long long)found,
				(unsigned long long)(first + word));
			fclose(file);
			exit(1);
		}
	}
}

static void renew(struct area *area, int node, size_t page, int anew)
{
	if (anew)
		madvise(&area->words[page * WORDS], PAGE_BYTES, MADV_DONTNEED);
	area->version[page]++;
	fill(area, node, page);
}

static struct area made(int node, size_t bytes)
{
	/* Preferred, not bound: a page may go elsewhere when its node shrinks. */
	unsigned long mask = 1UL << node;
	struct area area = { .pages = bytes / PAGE_BYTES };

	area.version = calloc(area.pages, sizeof(*area.version));
	area.words = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (!area.version || area.words == MAP_FAILED ||
	    syscall(SYS_mbind, area.words, bytes, MPOL_PREFERRED, &mask, 8 * sizeof(mask), 0)) {
		perror("keep_pages: error: memory; next: give the guest more");
		exit(2);
	}
	for (size_t page = 0; page < area.pages; page++)
		fill(&area, node, page);
	return area;
}

int main(int argc, char **argv)
{
	struct area areas[2];

	if (argc != 3) {
		fputs("usage: keep_pages MIB0 MIB1\n", stderr);
		return 2;
	}
	for (int node = 0; node < 2; node++)
		areas[node] = made(node, strtoul(argv[1 + node], NULL, 10) << 20);
	for (unsigned long round = 1;; round++) {
		FILE *file;

		for (int node = 0; node < 2; node++) {
			for (size_t page = 0; page < areas[node].pages; page++)
				check(&areas[node], node, page);
			/* Which ones is chance, and the same in every run. */
			for (size_t page = 0; page < areas[node].pages; page++) {
				uint64_t lot = mixed(round << 32 | page) % 16;

				if (lot < 2)
					renew(&areas[node], node, page, lot == 0);
			}
		}
		/* Whole at any moment. */
		file = fopen("/tmp/kept.new", "w");
		if (!file)
			return 2;
		fprintf(file, "%lu\n", round);
		fclose(file);
		rename("/tmp/kept.new", "/tmp/kept");
		usleep(REST_US);
	}
}
