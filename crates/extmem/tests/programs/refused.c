// SPDX-License-Identifier: Apache-2.0 OR MIT
// Calls that paged memory does not know: refused with an argument (the pager's), and
// nothing is changed by it; without one they are the kernel's.
#include "check.h"

int main(int count, char **arguments)
{
	enum { BYTES = 40 * MIB };
	char *memory = map(BYTES);
	int refused = count > 1 ? -1 : 0;

	(void)arguments;
	fill(memory, 0, BYTES / PAGE, 3);
	CHECK(madvise(memory, MIB, MADV_WIPEONFORK) == refused);
	CHECK(madvise(memory, MIB, MADV_DONTFORK) == refused);
	if (refused) {
		CHECK(errno == EINVAL);
		CHECK(mremap(memory, MIB, MIB, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL) ==
		      MAP_FAILED);
		CHECK(errno == EINVAL);
		CHECK(mlockall(MCL_CURRENT) == -1);
	}
	CHECK(holds(memory, 0, BYTES / PAGE, 3));
	return done();
}
