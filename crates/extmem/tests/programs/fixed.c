// SPDX-License-Identifier: Apache-2.0 OR MIT
// Starts itself anew where its addresses are random, as programs do that want them fixed.
#include "check.h"
#include <errno.h>
#include <sys/personality.h>

int main(int count, char **arguments)
{
	int before = personality(0xffffffff);

	(void)count;
	if (!(before & ADDR_NO_RANDOMIZE)) {
		personality(before | ADDR_NO_RANDOMIZE);
		execv("/proc/self/exe", arguments);
		CHECK(errno == EPERM);
		// It goes on with what it has, and may ask for it again.
		CHECK(personality(0xffffffff) & ADDR_NO_RANDOMIZE);
	}
	puts("ok");
	return 0;
}
