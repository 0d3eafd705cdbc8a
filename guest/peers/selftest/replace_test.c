// SPDX-License-Identifier: GPL-2.0-only
/*
 * For tests only: /proc/uptime says "replaced" while this is enabled, after a sleep of
 * params/sleep_ms, so that a test can take the replacement back under a sleeping caller.
 */
#include <linux/delay.h>
#include <linux/seq_file.h>

#include "../contract.h"
#include "replace.h"

static u64 sleep_ms;
static atomic64_t calls;

static int replaced_show(struct seq_file *m, void *v);

static struct demeter_replacement uptime_replacement = {
	.function = "uptime_proc_show",
	.with = replaced_show,
};

static int replaced_show(struct seq_file *m, void *v)
{
	int index = demeter_replacement_enter(&uptime_replacement);

	atomic64_inc(&calls);
	if (sleep_ms)
		msleep(sleep_ms);
	seq_puts(m, "replaced\n");
	demeter_replacement_leave(&uptime_replacement, index);
	return 0;
}

static int test_start(void)
{
	return demeter_replace(&uptime_replacement);
}

static void test_stop(void)
{
	demeter_restore(&uptime_replacement);
}

static const struct demeter_peer_param test_params[] = { { "sleep_ms", &sleep_ms, 0, 60000 }, {} };
static const struct demeter_peer_stat test_stats[] = { { "calls", &calls }, {} };

const struct demeter_peer demeter_peer_this = {
	.name = "replace_test",
	.params = test_params,
	.stats = test_stats,
	.start = test_start,
	.stop = test_stop,
};
