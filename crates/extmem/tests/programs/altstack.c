// SPDX-License-Identifier: Apache-2.0 OR MIT
// An alternate signal stack in memory that has left DRAM and come back to be read: the kernel
// pushes the frame of each fault on it.
#include "check.h"
#include <signal.h>

int main(void)
{
	const size_t bytes = 64 * MIB, stack_bytes = 16 * PAGE;
	char *memory = map(bytes);
	stack_t wanted = { .ss_sp = memory, .ss_size = stack_bytes };

	fill(memory, 0, bytes / PAGE, 1);
	for (int round = 0; round < 2; round++)
		CHECK(holds(memory, 0, bytes / PAGE, 1));
	CHECK(sigaltstack(&wanted, NULL) == 0);
	for (int round = 0; round < 3; round++)
		CHECK(holds(memory + stack_bytes, 16, bytes / PAGE - 16, 1));
	return done();
}
