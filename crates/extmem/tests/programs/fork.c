// SPDX-License-Identifier: Apache-2.0 OR MIT
// fork: the child sees what was evicted, both change their copies, neither sees the other's.
#include "check.h"
#include <sys/wait.h>

#define PAGES (40 * MIB / PAGE)

static void wait_for(pid_t child)
{
	int status;

	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
	char *memory = map(PAGES * PAGE);
	pid_t children[3];

	fill(memory, 0, PAGES, 1);
	for (int round = 0; round < 3; round++) {
		children[round] = fork();
		CHECK(children[round] >= 0);
		if (!children[round]) {
			CHECK(holds(memory, 0, PAGES, 1 + round));
			fill(memory, 0, PAGES / 2, 100 + round);
			pid_t grandchild = fork();

			CHECK(grandchild >= 0);
			if (!grandchild) {
				CHECK(holds(memory, 0, PAGES / 2, 100 + round));
				fill(memory, 0, PAGES, 200);
				CHECK(holds(memory, 0, PAGES, 200));
				_exit(0);
			}
			CHECK(holds(memory + PAGES / 2 * PAGE, PAGES / 2, PAGES / 2, 1 + round));
			wait_for(grandchild);
			CHECK(holds(memory, 0, PAGES / 2, 100 + round));
			_exit(0);
		}
		fill(memory, 0, PAGES, 2 + round);
		CHECK(holds(memory, 0, PAGES, 2 + round));
	}
	for (int round = 0; round < 3; round++)
		wait_for(children[round]);
	CHECK(holds(memory, 0, PAGES, 4));
	// Memory mapped after a fork, in both.
	pid_t child = fork();

	CHECK(child >= 0);
	char *more = map(16 * MIB);

	fill(more, 0, 16 * MIB / PAGE, child ? 7 : 8);
	CHECK(holds(more, 0, 16 * MIB / PAGE, child ? 7 : 8));
	CHECK(holds(memory, 0, PAGES, 4));
	if (!child)
		_exit(0);
	wait_for(child);
	return done();
}
