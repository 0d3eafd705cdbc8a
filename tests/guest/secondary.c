// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * usage: secondary MIB [none|notifier|interval [busy]]
 * Fills so much memory, has an MMU besides the CPU's use it (demeter_hammer.ko plays
 * one), says "ready" and waits to be killed: to samplers of the CPU it looks idle. Or
 * writes to its memory until it is killed.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../guest/tests/hammer_abi.h"

int main(int argc, char **argv)
{
	size_t bytes = argc > 1 ? strtoul(argv[1], NULL, 10) << 20 : 0;
	int device = open("/dev/demeter-hammer", O_RDWR | O_CLOEXEC);
	const char *kind = argc > 2 ? argv[2] : "notifier";
	unsigned long request =
		strcmp(kind, "interval") ? DEMETER_HAMMER_SECONDARY : DEMETER_HAMMER_INTERVAL;
	char *memory =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	size_t at;

	if (!bytes || memory == MAP_FAILED) {
		fprintf(stderr, "usage: secondary MIB [none|notifier|interval [busy]]\n");
		return 2;
	}
	memset(memory, 1, bytes);
	if (strcmp(kind, "none") && (device < 0 || ioctl(device, request))) {
		perror("secondary: /dev/demeter-hammer");
		return 1;
	}
	puts("ready");
	fflush(stdout);
	if (argc <= 3)
		pause();
	for (at = 0;; at = (at + 4096) % bytes)
		((volatile char *)memory)[at]++;
}
