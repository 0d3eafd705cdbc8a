// SPDX-License-Identifier: Apache-2.0 OR MIT
// Loaded beside the pager: a clock of another time, that counts in a variable of each thread.
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static __thread long calls;

int clock_gettime(clockid_t clock, struct timespec *time)
{
	long result = syscall(SYS_clock_gettime, clock, time);

	time->tv_sec -= 1000 * calls++;
	return result;
}
