// SPDX-License-Identifier: GPL-2.0-only
/*
 * Make chosen calls of a chosen module fail, or take long, for tests.
 *
 * Distributions leave out the kernel's own fault injection (failslab). This does
 * without: a kprobe at the entry of each function looks at who called it, and
 * returns an error in its stead for the calls that were asked for.
 *
 *   insmod demeter_fault.ko caller=demeter functions=vmalloc_noprof skip=2 count=1
 *
 * With call=FUNCTION it only makes the kernel do something to itself, such as
 * ftrace_kill. Only functions that return an integer or a pointer, and only in a throw-away
 * guest. skip, count and calls may be written while it is loaded: calls counts
 * from what was written, and who waits goes on at a count of 0.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/delay.h>
#include <linux/kallsyms.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/pgtable.h>
#include <linux/string.h>

#include "fault.h"

#define MAX_FUNCTIONS 16

static char *caller = "demeter";
module_param(caller, charp, 0444);
MODULE_PARM_DESC(caller, "Module whose calls count");

static char *functions[MAX_FUNCTIONS];
static int nr_functions;
module_param_array(functions, charp, &nr_functions, 0444);
MODULE_PARM_DESC(functions, "Kernel functions whose calls count; unknown ones are left out");

static char *call;
module_param(call, charp, 0444);
MODULE_PARM_DESC(call, "Kernel function without arguments to be called once, now");

static unsigned long skip;
module_param(skip, ulong, 0644);
MODULE_PARM_DESC(skip, "Calls that go well before any is touched");

static unsigned long count = 1;
module_param(count, ulong, 0644);
MODULE_PARM_DESC(count, "Calls that are touched then");

static long error;
module_param(error, long, 0644);
MODULE_PARM_DESC(error, "What they return instead: 0 (or NULL), or a negative error");

static unsigned int delay_ms;
module_param(delay_ms, uint, 0644);
MODULE_PARM_DESC(delay_ms, "Instead of failing, they wait for so long first");

/* Calls of several CPUs at once may be counted as one: tests make one at a time. */
static unsigned long calls;
module_param(calls, ulong, 0644);
MODULE_PARM_DESC(calls, "Calls until now");

static unsigned long hits;
module_param(hits, ulong, 0644);
MODULE_PARM_DESC(hits, "Calls that were touched until now");

static struct kprobe probes[MAX_FUNCTIONS];
static int nr_probes;

static bool is_caller(unsigned long address)
{
	char symbol[KSYM_SYMBOL_LEN];
	char *module;

	if (address < MODULES_VADDR || address >= MODULES_END)
		return false;
	/* name+offset/size [module] */
	sprint_symbol(symbol, address);
	module = strrchr(symbol, '[');
	if (!module)
		return false;
	module++;
	return !strncmp(module, caller, strlen(caller)) && module[strlen(caller)] == ']';
}

static int on_call(struct kprobe *probe, struct pt_regs *regs)
{
	unsigned int waited_ms;
	unsigned long nr;

	if (!is_caller(*(unsigned long *)regs->sp))
		return 0;
	nr = calls++;
	if (nr < skip || nr - skip >= count)
		return 0;
	hits++;
	if (delay_ms) {
		for (waited_ms = 0; waited_ms < delay_ms && READ_ONCE(count); waited_ms++)
			mdelay(1);
		return 0;
	}
	regs->ax = error;
	regs->ip = (unsigned long)demeter_fault_return;
	return 1;
}

/* With one, the kernel does not optimise the probe into a form that cannot return. */
static void after_call(struct kprobe *probe, struct pt_regs *regs, unsigned long flags)
{
}

/* By pointer, which production code must not do: no guest of the tests has IBT. */
static int call_once(const char *name)
{
	struct kprobe probe = { .symbol_name = name };
	void (*function)(void);
	int ret = register_kprobe(&probe);

	if (ret)
		return ret;
	function = (void *)probe.addr;
	unregister_kprobe(&probe);
	function();
	return 0;
}

static int __init demeter_fault_init(void)
{
	int i;

	if (call)
		return call_once(call);
	for (i = 0; i < nr_functions; i++) {
		struct kprobe *probe = &probes[nr_probes];

		probe->symbol_name = functions[i];
		probe->pre_handler = on_call;
		probe->post_handler = after_call;
		if (register_kprobe(probe))
			memset(probe, 0, sizeof(*probe));
		else
			nr_probes++;
	}
	if (nr_probes)
		return 0;
	pr_err("none of the functions can be probed; next: see /proc/kallsyms for their names\n");
	return -ENOENT;
}
module_init(demeter_fault_init);

static void __exit demeter_fault_exit(void)
{
	while (nr_probes)
		unregister_kprobe(&probes[--nr_probes]);
}
module_exit(demeter_fault_exit);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Failing and slow calls, for tests");
