// SPDX-License-Identifier: Apache-2.0 OR MIT
// Some memory of the heap, written and read.
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
	enum { WORDS = 1 << 20 };
	unsigned long *words = malloc(WORDS * sizeof(*words));
	unsigned long wrong = 0;

	if (!words)
		return 1;
	for (unsigned long at = 0; at < WORDS; at++)
		words[at] = at * 7;
	for (unsigned long at = 0; at < WORDS; at++)
		wrong += words[at] != at * 7;
	free(words);
	puts(wrong ? "wrong" : "right");
	return wrong != 0;
}
