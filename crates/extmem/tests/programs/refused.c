// SPDX-License-Identifier: Apache-2.0 OR MIT
// Calls that paged memory does not know: refused with an argument (the pager's), and
// nothing is changed by it; without one they are the kernel's.
#include "check.h"
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

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
	// A copy of the memory, and the same table of descriptors: the child's own userfaultfd
	// would be the parent's.
	pid_t child = syscall(SYS_clone, CLONE_FILES | SIGCHLD, NULL, NULL, NULL, 0);

	if (!child)
		_exit(0);
	if (refused)
		CHECK(child == -1 && errno == EINVAL);
	else
		CHECK(waitpid(child, NULL, 0) == child);
	CHECK(holds(memory, 0, BYTES / PAGE, 3));
	return done();
}
