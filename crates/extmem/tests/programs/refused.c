// SPDX-License-Identifier: Apache-2.0 OR MIT
// Calls that paged memory does not know: refused with an argument (the pager's), and
// nothing is changed by it; without one they are the kernel's.
#include "check.h"
#include <sched.h>
#include <signal.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static int never(void *argument)
{
	(void)argument;
	return 1;
}

int main(int count, char **arguments)
{
	static char stack[64 << 10] __attribute__((aligned(16)));
	char *top = stack + sizeof(stack);
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
		// What a kernel without protection keys answers, on whatever processor: where there are
		// some, a program would ask for its heap to have one (Chromium does).
		CHECK(pkey_alloc(0, 0) == -1 && errno == ENOSYS);
		// With the one that all memory has it is mprotect; others there are none.
		int pipes[2];

		CHECK(!pipe(pipes));
		CHECK(!syscall(SYS_pkey_mprotect, memory, PAGE, PROT_NONE, 0UL));
		CHECK(write(pipes[1], memory, 1) == -1 && errno == EFAULT);
		CHECK(!syscall(SYS_pkey_mprotect, memory, PAGE, PROT_READ | PROT_WRITE, 0UL));
		CHECK(write(pipes[1], memory, 1) == 1);
		CHECK(syscall(SYS_pkey_mprotect, memory, PAGE, PROT_READ, 1UL) == -1);
		CHECK(errno == EINVAL);
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
	if (refused) {
		// A parent that waits for its child's exec, another thread pointer.
		for (int at = 0; at < 2; at++) {
			int flags = at == 0 ? CLONE_VFORK : CLONE_SETTLS;

			CHECK(clone(never, top, flags | SIGCHLD, NULL, NULL, NULL, NULL) == -1);
			CHECK(errno == EINVAL);
		}
		int segment = shmget(IPC_PRIVATE, MIB, IPC_CREAT | 0600);

		CHECK(segment >= 0);
		CHECK(shmat(segment, memory + 4 * MIB, SHM_REMAP) == (void *)-1 && errno == EINVAL);
		CHECK(!shmctl(segment, IPC_RMID, NULL));
	}
	CHECK(holds(memory, 0, BYTES / PAGE, 3));
	return done();
}
