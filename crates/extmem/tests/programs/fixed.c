// SPDX-License-Identifier: Apache-2.0 OR MIT
// Starts itself anew where its addresses are random, as programs do that want them fixed, and
// others from there.
#include "check.h"
#include <sys/personality.h>

int main(int count, char **arguments)
{
	int before = personality(0xffffffff);

	(void)count;
	if (!(before & ADDR_NO_RANDOMIZE)) {
		personality(before | ADDR_NO_RANDOMIZE);
		execv("/proc/self/exe", arguments);
		CHECK(!"it is started anew");
	}
	CHECK(system("/bin/true && sort /dev/null && sh -c true") == 0);
	CHECK(personality(0xffffffff) & ADDR_NO_RANDOMIZE);
	execl("/no/such/file", "x", NULL);
	CHECK(personality(0xffffffff) & ADDR_NO_RANDOMIZE);
	puts("ok");
	return 0;
}
