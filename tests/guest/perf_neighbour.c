// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * usage: perf_neighbour THRESHOLD PINNED SECONDS
 * Another user of perf in the same guest: samples slow loads of all programs on
 * CPU 0 into a ring buffer, as "perf mem record" does, and prints how many
 * samples it got. THRESHOLD is in cycles.
 */
#include <errno.h>
#include <linux/perf_event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOAD_LATENCY 0x01cd
#define RING_PAGES   1024

int main(int argc, char **argv)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_RAW,
		.size = sizeof(attr),
		.config = LOAD_LATENCY,
		.sample_period = 1009,
		.precise_ip = 2,
		.sample_type = PERF_SAMPLE_IP | PERF_SAMPLE_ADDR | PERF_SAMPLE_WEIGHT |
			       PERF_SAMPLE_DATA_SRC,
		.exclude_kernel = 1,
		.exclude_hv = 1,
	};
	struct perf_event_mmap_page *page;
	size_t size = RING_PAGES * 4096, at = 0;
	long samples = 0;
	char *ring;
	int fd;

	if (argc != 4) {
		fprintf(stderr, "usage: perf_neighbour THRESHOLD PINNED SECONDS\n");
		return 2;
	}
	attr.config1 = strtoul(argv[1], NULL, 0);
	attr.pinned = atoi(argv[2]);
	fd = syscall(SYS_perf_event_open, &attr, -1, 0, -1, 0);
	if (fd < 0) {
		fprintf(stderr, "perf_event_open: %s\n", strerror(errno));
		return 1;
	}
	ring = mmap(NULL, 4096 + size, PROT_READ, MAP_SHARED, fd, 0);
	if (ring == MAP_FAILED) {
		fprintf(stderr, "mmap: %s\n", strerror(errno));
		return 1;
	}
	page = (void *)ring;
	sleep(atoi(argv[3]));
	ioctl(fd, PERF_EVENT_IOC_DISABLE, 0);
	/* Mapped read-only: the kernel overwrites the oldest, so count from its tail. */
	while (at < page->data_head && at < size) {
		struct perf_event_header *header = (void *)(ring + 4096 + at);

		if (!header->size)
			break;
		samples += header->type == PERF_RECORD_SAMPLE;
		at += header->size;
	}
	printf("%ld\n", samples);
	return 0;
}
