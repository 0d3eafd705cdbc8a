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
 * records that it could not attribute, in the same way, and
 * perf_sample_event_took(), by which it reports how long an interrupt took.
 *
 * Both run where perf drains: in an NMI, under the run queue lock, or in an
 * interrupt from another CPU. The callback calls nothing that ends in either of
 * them for one of our counters; for other users' it returns at the comparison.
 * So it needs no guard against recursion, by which records could be missed.
 */
#define pr_fmt(fmt) "demeter: " fmt

#include <linux/errno.h>
#include <linux/ftrace.h>
#include <linux/module.h>

#include "ftrace_args.h"
#include "kernel_calls.h"
#include "sampler_perf.h"
#include "symbols.h"
#include "tmm.h"

#ifdef CONFIG_DYNAMIC_FTRACE_WITH_ARGS

/* How far from the start of a function its tracing call can be. */
#define CALL_OFFSET_MAX 16

static void (*record_handler)(struct perf_sample_data *data);
static unsigned long output_address;
static unsigned long took_address;

/* The interrupt that runs has delivered a single record of ours. */
static DEFINE_PER_CPU(bool, timed);

/* perf tells itself how long an interrupt has taken. */
static void notrace note_time(u64 ns)
{
	if (!this_cpu_read(timed))
		return;
	this_cpu_write(timed, false);
	this_cpu_inc(demeter_cpu_stats.timed_interrupts);
	this_cpu_add(demeter_cpu_stats.interrupt_ns, ns);
}

static void notrace traced(unsigned long ip, unsigned long parent, struct ftrace_ops *ops,
			   struct ftrace_regs *fregs)
{
	/* 0 where it could not be found. */
	if (ip - took_address < CALL_OFFSET_MAX) {
		note_time(demeter_ftrace_argument(fregs, 0));
		return;
	}
	if (!demeter_perf_is_ours((void *)demeter_ftrace_argument(fregs, 0)))
		return;
	if (ip - output_address < CALL_OFFSET_MAX) {
		this_cpu_inc(demeter_cpu_stats.traced_records);
		record_handler((void *)demeter_ftrace_argument(fregs, 1));
	} else {
		this_cpu_add(demeter_cpu_stats.lost_records, demeter_ftrace_argument(fregs, 1));
	}
}

/*
 * One for all functions: taking one away waits for every task once.
 *
 * Permanent: while it is registered, nobody can switch all tracing off by
 * kernel.ftrace_enabled, and while that is off, registering is refused. Without
 * the flag samples would just stay away.
 */
static struct ftrace_ops hook = {
	.func = traced,
	.flags = FTRACE_OPS_FL_PERMANENT,
};

DEMETER_DECLARE_CALL(ftrace_is_dead);
DEMETER_DEFINE_CALL(ftrace_is_dead);
DEMETER_DECLARE_CALL(ftrace_location);
DEMETER_DEFINE_CALL(ftrace_location);

/* Written under demeter_control_lock or by the worker, not by both at once. */
static bool can_tell_dead;
static bool can_tell_site;
static bool is_dead;

/*
 * When tracing finds something wrong with itself, it stops for good and patches no
 * code any more. The calls of our callback that are in the code stay there.
 */
static void note_death(void)
{
	if (is_dead)
		return;
	is_dead = true;
	__module_get(THIS_MODULE);
	pr_err("the kernel's tracing has died of an error of its own, so what it patched stays: sampling goes on, but this module can be unloaded no more; next: look for the error in this log, and restart the machine when it suits you\n");
}

/**
 * demeter_perf_hook_look() - see whether the records can still come
 *
 * Once a tick.
 */
void demeter_perf_hook_look(void)
{
	if (can_tell_dead && demeter_call(ftrace_is_dead)())
		note_death();
}

/*
 * By address: by name, the kernel would look up the name of each of its sixty
 * thousand traceable functions. Where the tracing call is not at the very address (IBT), it
 * takes any that is found up to the next symbol, which may be that of an overridden weak
 * function without a name: such a hook would never be called.
 */
static int filter(unsigned long address, bool reset)
{
	unsigned long site = address;

	if (can_tell_site)
		site = demeter_call(ftrace_location)(address);
	if (!site || site - address >= CALL_OFFSET_MAX)
		return -ENOENT;
	return ftrace_set_filter_ip(&hook, site, 0, reset);
}

/**
 * demeter_perf_hook_time() - learn how long the running interrupt takes
 *
 * In the overflow handler of a counter that interrupts for each record.
 */
void demeter_perf_hook_time(void)
{
	this_cpu_write(timed, true);
}

/* Frees the tables of functions. While nothing is registered. */
static void unfilter(void)
{
	ftrace_free_filter(&hook);
	/* Kernels before 6.15 leave the freed tables in it, to be freed again. */
	hook = (struct ftrace_ops){
		.func = traced,
		.flags = FTRACE_OPS_FL_PERMANENT,
	};
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

	if (is_dead)
		return -ENODEV;
	can_tell_dead = demeter_symbol_aim_call(ftrace_is_dead, "ftrace_is_dead");
	can_tell_site = demeter_symbol_aim_call(ftrace_location, "ftrace_location");
	output_address = demeter_symbol_address("perf_event_output");
	ret = filter(output_address, true);
	if (ret)
		goto unfilter;
	if (filter(demeter_symbol_address("perf_log_lost_samples"), false))
		pr_warn("perf_log_lost_samples() cannot be traced, so stats/lost_samples lacks records that perf could not attribute\n");
	/* What an interrupt costs is then estimated (sampler_form.c). */
	took_address = demeter_symbol_address("perf_sample_event_took");
	if (filter(took_address, false))
		took_address = 0;
	record_handler = record;
	ret = register_ftrace_function(&hook);
	if (!ret)
		return 0;
unfilter:
	unfilter();
	return ret;
}

/**
 * demeter_perf_unhook() - undo demeter_perf_hook()
 *
 * After the last counter is released. Waits for callbacks that still run.
 */
void demeter_perf_unhook(void)
{
	demeter_perf_hook_look();
	if (!is_dead && unregister_ftrace_function(&hook))
		note_death();
	if (!is_dead)
		unfilter();
}

#else /* the arguments cannot be read */

int demeter_perf_hook(void (*record)(struct perf_sample_data *data))
{
	return -EOPNOTSUPP;
}

void demeter_perf_unhook(void)
{
}

void demeter_perf_hook_look(void)
{
}

void demeter_perf_hook_time(void)
{
}

#endif
