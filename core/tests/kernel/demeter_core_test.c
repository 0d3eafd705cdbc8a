// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The tests of core/ inside a kernel: loading the module runs them and prints
 *
 *	demeter_core_test: digest NAME HEX	one line a golden trace
 *	demeter_core_test: ok N passed		or FAIL N of M failed
 *
 * A failure also fails the load, so that a script sees it without the log.
 */
#include <linux/init.h>
#include <linux/module.h>

#include "../../core.c"
#include "../../peers/memtis.c"
#include "../../peers/hemem.c"
#include "../../peers/nimble.c"

#include "suite.h"

static int __init demeter_core_test_init(void)
{
	struct test_tally tally = { 0 };

	suite_run(&tally);
	if (tally.failed) {
		pr_err("demeter_core_test: FAIL %u of %u failed\n", tally.failed,
		       tally.passed + tally.failed);
		return -EINVAL;
	}
	pr_info("demeter_core_test: ok %u passed\n", tally.passed);
	return 0;
}

static void __exit demeter_core_test_exit(void)
{
}

module_init(demeter_core_test_init);
module_exit(demeter_core_test_exit);

MODULE_DESCRIPTION("Tests of Demeter's core");
MODULE_LICENSE("Dual MIT/GPL");
