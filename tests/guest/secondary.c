// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * usage: secondary MIB
 * Fills so much memory, has an MMU besides the CPU's use it (demeter_hammer.ko plays
 * one), says "ready" and waits to be killed. To samplers of the CPU it looks idle.
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
	char *memory =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (!bytes || memory == MAP_FAILED) {
		fprintf(stderr, "usage: secondary MIB\n");
		return 2;
	}
	memset(memory, 1, bytes);
	if (device < 0 || ioctl(device, DEMETER_HAMMER_SECONDARY)) {
		perror("secondary: /dev/demeter-hammer");
		return 1;
	}
	puts("ready");
	fflush(stdout);
	pause();
	return 0;
}
