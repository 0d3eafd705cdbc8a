// SPDX-License-Identifier: Apache-2.0 OR MIT
// A program that blocks all signals by a system call of its own, as some run-time systems
// do: its next missing page is the kernel's to end it for. With an argument it blocks
// none, and ends well.
#include "check.h"
#include <sys/syscall.h>

int main(int count, char **arguments)
{
	enum { BYTES = 64 * MIB };
	char *memory = map(BYTES);
	uint64_t all = count > 1 ? 0 : ~0UL;
	long status;

	(void)arguments;
	fill(memory, 0, BYTES / PAGE, 1);
	register long size asm("r10") = sizeof(all);
	asm volatile("syscall"
		     : "=a"(status)
		     : "a"(SYS_rt_sigprocmask), "D"(2), "S"(&all), "d"(0), "r"(size)
		     : "rcx", "r11", "memory");
	CHECK(status == 0 && holds(memory, 0, BYTES / PAGE, 1));
	return done();
}
