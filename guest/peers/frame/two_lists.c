// SPDX-License-Identifier: GPL-2.0-only
/* Which lists pages are on, see two_lists.h. Included by frame.c of the managers that ask. */
#include <linux/errno.h>
#include <linux/jump_label.h>
#include <linux/printk.h>

#include "symbols.h"
#include "two_lists.h"

int demeter_two_lists_check(void)
{
	struct static_key *caps = (void *)demeter_symbol_address("lru_gen_caps");

	if (!caps || !static_key_enabled(&caps[0]))
		return 0;
	pr_err("the multi-generation LRU is on, which has no active list; next: write n to /sys/kernel/mm/lru_gen/enabled\n");
	return -EOPNOTSUPP;
}
