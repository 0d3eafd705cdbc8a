// SPDX-License-Identifier: Apache-2.0 OR MIT
// As many mappings as the kernel allows a process: a hole in one more is refused, as without the
// pager, and what lies there stays.
#include "check.h"

#define PIECES 70000UL

int main(void)
{
	char *own = map(3 * MIB), *pieces = map(2 * PIECES * PAGE);
	char *hole = own + MIB;
	uint64_t made = 0;

	fill(own, 0, 3 * MIB / PAGE, 1);
	while (made < PIECES && mprotect(pieces + 2 * made * PAGE, PAGE, PROT_READ) == 0)
		made++;
	CHECK(made < PIECES && errno == ENOMEM);
	CHECK(munmap(hole, MIB) == -1 && errno == ENOMEM);
	CHECK(holds(own, 0, 3 * MIB / PAGE, 1));
	// What needs no further mapping goes, and then there is room.
	CHECK(munmap(pieces, 2 * PIECES * PAGE) == 0);
	CHECK(munmap(hole, MIB) == 0);
	CHECK(holds(own, 0, MIB / PAGE, 1));
	CHECK(holds(own + 2 * MIB, 2 * MIB / PAGE, MIB / PAGE, 1));
	return done();
}
