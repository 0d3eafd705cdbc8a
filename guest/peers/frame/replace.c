// SPDX-License-Identifier: GPL-2.0-only
/*
 * Replacement of kernel functions, see replace.h. Included by frame.c of each module.
 */
#include <linux/ftrace.h>
#include <linux/module.h>
#include <linux/rcupdate.h>

#include "replace.h"
#include "symbols.h"

/*
 * Calls nothing that is traced, so it needs no guard against recursion: a guard would
 * let the kernel's own function run now and then.
 */
static void notrace replace_divert(unsigned long ip, unsigned long parent, struct ftrace_ops *ops,
				   struct ftrace_regs *fregs)
{
	struct demeter_replacement *replacement =
		container_of(ops, struct demeter_replacement, ops);

	ftrace_regs_set_instruction_pointer(fregs, (unsigned long)replacement->with);
}

static const char *replace_advice(int error)
{
	switch (error) {
	case -EBUSY:
		return "unload who replaced it, such as livepatch; set kernel.ftrace_enabled=1";
	case -ENOENT:
	case -EINVAL:
		return "use the kernel that this manager is made for, or another function to hook";
	default:
		return "see what else the kernel log says";
	}
}

int demeter_replace(struct demeter_replacement *replacement)
{
	unsigned long address = demeter_symbol_address(replacement->function);
	int ret;

	if (replacement->in_place)
		return -EALREADY;
	ret = init_srcu_struct(&replacement->inside);
	if (ret)
		return ret;
	/* Permanent: kernel.ftrace_enabled=0 would put the kernel's own back unseen. */
	replacement->ops = (struct ftrace_ops){
		.func = replace_divert,
		.flags = FTRACE_OPS_FL_DYNAMIC | FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_PERMANENT,
	};
	ret = address ? ftrace_set_filter_ip(&replacement->ops, address, 0, 0) : -ENOENT;
	if (!ret)
		ret = register_ftrace_function(&replacement->ops);
	if (!ret) {
		replacement->in_place = true;
		return 0;
	}
	pr_err("%s() cannot be replaced (error %d); next: %s\n", replacement->function, ret,
	       replace_advice(ret));
	ftrace_free_filter(&replacement->ops);
	cleanup_srcu_struct(&replacement->inside);
	return ret;
}

bool demeter_restore(struct demeter_replacement *replacement)
{
	if (!replacement->in_place)
		return true;
	/* Waits for those in the trampoline, which it frees. */
	if (unregister_ftrace_function(&replacement->ops)) {
		__module_get(THIS_MODULE);
		pr_err("the kernel's tracing has died of an error of its own, so %s() stays replaced and this module loaded; next: look for the error in this log, and restart the machine when it suits you\n",
		       replacement->function);
		return false;
	}
	synchronize_rcu_tasks();
	synchronize_srcu(&replacement->inside);
	synchronize_rcu_tasks();
	ftrace_free_filter(&replacement->ops);
	cleanup_srcu_struct(&replacement->inside);
	replacement->in_place = false;
	return true;
}
