// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * usage: secondary MIB [none|notifier|interval [busy]]
 * On SIGUSR1 it keeps its mmap_lock for four seconds.
 * Fills so much memory, has an MMU besides the CPU's use it (demeter_hammer.ko plays
 * one), says "ready" and waits to be killed: to samplers of the CPU it looks idle. Or
 * writes to half of its memory until it is killed, and to all of it after SIGUSR1.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../guest/tests/hammer_abi.h"

static int device;
static volatile size_t reach; /* bytes that are written to */

static void sit(int unused)
{
	struct demeter_hammer_hold hold = { .addr = 4000, .state = DEMETER_HAMMER_MMAP_LOCK };

	(void)unused;
	if (ioctl(device, DEMETER_HAMMER_HOLD, &hold))
		_exit(1);
	reach *= 2;
}

int main(int argc, char **argv)
{
	size_t bytes = argc > 1 ? strtoul(argv[1], NULL, 10) << 20 : 0;
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
	device = open("/dev/demeter-hammer", O_RDWR | O_CLOEXEC);
	signal(SIGUSR1, sit);
	memset(memory, 1, bytes);
	reach = bytes / 2;
	if (strcmp(kind, "none") && (device < 0 || ioctl(device, request))) {
		perror("secondary: /dev/demeter-hammer");
		return 1;
	}
	puts("ready");
	fflush(stdout);
	while (argc <= 3)
		pause();
	for (at = 0;; at = (at + 4096) % reach)
		((volatile char *)memory)[at]++;
}
