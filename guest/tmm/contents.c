// SPDX-License-Identifier: GPL-2.0-only
/*
 * Contents of two areas, exchanged, see contents.h.
 *
 * A load of memory with an uncorrectable error raises a machine check. The kernel
 * goes on if it finds the load in its exception table as one that may, and else
 * panics. So the loads in contents_swap.S have entries there; when one fails,
 * what was exchanged before is exchanged back. Nothing is copied twice for that,
 * so it costs what an exchange with plain loads costs.
 */
#include <linux/compiler.h>
#include <linux/minmax.h>

#include "contents.h"

/**
 * demeter_contents_swap_back() - undo an exchange
 * @a: one area
 * @b: the other
 * @bytes: length of each, a multiple of 8
 *
 * With plain loads: an error in what has just been written leaves nothing that
 * could be given to anybody, so it ends as an error in the kernel's own memory.
 */
void demeter_contents_swap_back(void *a, void *b, size_t bytes)
{
	u64 *word_a = a, *word_b = b, *end = a + bytes;

	for (; word_a < end; word_a++, word_b++)
		swap(*word_a, *word_b);
}

/**
 * demeter_contents_swap() - exchange the contents of two areas
 * @a: one area, aligned to 8 bytes
 * @b: the other, likewise, apart from @a
 * @bytes: length of each, a multiple of 32
 *
 * Nobody else may look at either meanwhile. Does not sleep.
 *
 * Return: NULL, or where memory could not be read, to 16 bytes: both areas then
 * hold what they held before.
 */
void *demeter_contents_swap(void *a, void *b, size_t bytes)
{
	void *bad = demeter_contents_swap_groups(a, b, bytes);

	if (unlikely(bad))
		demeter_contents_swap_back(a, b, bad >= a && bad < a + bytes ? bad - a : bad - b);
	return bad;
}
