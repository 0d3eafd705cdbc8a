// SPDX-License-Identifier: GPL-2.0-only
/*
 * See every record that perf decodes for one of our counters.
 *
 * With large PEBS, perf calls a counter's overflow handler only for the last
 * record of an interrupt. All others, and every record that it drains when a
 * task leaves the CPU or a counter is disabled, it hands to perf_event_output(),
 * which writes to the counter's ring buffer; a kernel counter has none. The
 * record is decoded by then, so this traces that function and reads its
 * arguments. It also traces perf_log_lost_samples(), by which perf reports
 * records that it could not attribute, in the same way.
 *
 * Both run where perf drains: in an NMI, under the run queue lock, or in an
 * interrupt from another CPU. The callback calls nothing that ends in either of
 * them for one of our counters; for other users' it returns at the comparison.
 * So it needs no guard against recursion, by which records could be missed.
 */
#define pr_fmt(fmt) "demeter: " fmt

#include <linux/errno.h>
#include <linux/ftrace.h>

#include "ftrace_args.h"
#include "sampler_perf.h"
#include "tmm.h"

#ifdef CONFIG_DYNAMIC_FTRACE_WITH_ARGS

static void (*record_handler)(struct perf_sample_data *data);

static void notrace traced_output(unsigned long ip, unsigned long parent, struct ftrace_ops *ops,
				  struct ftrace_regs *fregs)
{
	if (!demeter_perf_is_ours((void *)demeter_ftrace_argument(fregs, 0)))
		return;
	this_cpu_inc(demeter_cpu_stats.traced_records);
	record_handler((void *)demeter_ftrace_argument(fregs, 1));
}

static void notrace traced_lost(unsigned long ip, unsigned long parent, struct ftrace_ops *ops,
				struct ftrace_regs *fregs)
{
	if (demeter_perf_is_ours((void *)demeter_ftrace_argument(fregs, 0)))
		this_cpu_add(demeter_cpu_stats.lost_records, demeter_ftrace_argument(fregs, 1));
}

/*
 * Permanent: while it is registered, nobody can switch all tracing off by
 * kernel.ftrace_enabled, and while that is off, registering is refused. Without
 * the flag samples would just stay away.
 */
static struct ftrace_ops output_ops = {
	.func = traced_output,
	.flags = FTRACE_OPS_FL_PERMANENT,
};

static struct ftrace_ops lost_ops = {
	.func = traced_lost,
	.flags = FTRACE_OPS_FL_PERMANENT,
};

static bool lost_traced;

static int trace(struct ftrace_ops *ops, char *function)
{
	int ret;

	ret = ftrace_set_filter(ops, function, strlen(function), 1);
	return ret ?: register_ftrace_function(ops);
}

/**
 * demeter_perf_hook() - see records of our counters from now on
 * @record: called for each one that is not given to the overflow handler, in
 *	any context, NMI included
 *
 * Return: 0, or a negative errno when this kernel does not trace.
 */
int demeter_perf_hook(void (*record)(struct perf_sample_data *data))
{
	int ret;

	record_handler = record;
	ret = trace(&output_ops, "perf_event_output");
	if (ret)
		return ret;
	lost_traced = !trace(&lost_ops, "perf_log_lost_samples");
	if (!lost_traced)
		pr_warn("perf_log_lost_samples() cannot be traced, so stats/lost_samples lacks records that perf could not attribute\n");
	return 0;
}

/**
 * demeter_perf_unhook() - undo demeter_perf_hook()
 *
 * After the last counter is released. Waits for callbacks that still run.
 */
void demeter_perf_unhook(void)
{
	unregister_ftrace_function(&output_ops);
	if (lost_traced)
		unregister_ftrace_function(&lost_ops);
}

#else /* the arguments cannot be read */

int demeter_perf_hook(void (*record)(struct perf_sample_data *data))
{
	return -EOPNOTSUPP;
}

void demeter_perf_unhook(void)
{
}

#endif
