// SPDX-License-Identifier: GPL-2.0-only
/*
 * Fault: note the time of a touch, and put the page back before the kernel looks.
 *
 * The tracepoints page_fault_user and page_fault_kernel come first in every
 * page fault, with interrupts off. Once the entry is put back there, the kernel
 * finds a fault without a cause, as after a race with another CPU, and returns:
 * no NUMA statistics, no migration. Where the page-table lock stays taken, the
 * kernel's own do_numa_page() puts it back; waiting here could be for ever. It
 * counts the fault, and may move the page to the node of the CPU if that has free
 * memory, whatever was planned: with NUMA balancing off as well, as a task that was
 * never placed may take a page that nobody else faulted on last. left_to_kernel says
 * how often it may have happened.
 *
 * Marks that fork copied to a child, mremap moved, or that were left behind as
 * mmap_lock was not to be had, are put back likewise and counted. Once nothing is
 * watched any more, do_numa_page() does that, likewise.
 */
#define pr_fmt(fmt) "demeter: " fmt

#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/sched/clock.h>
#include <linux/tracepoint.h>
#include <asm/trap_pf.h>

#include "sampler_perf.h"
#include "symbols.h"
#include "tmm.h"
#include "touch.h"

/* What of a fault is not seen here: the exception, the kernel's look, the return. */
#define FAULT_UNSEEN_NS 600u

static struct tracepoint *fault_user;
static struct tracepoint *fault_kernel;
static struct tracepoint *task_switch;

/*
 * The CPU clock of the tick: a work item, of which one runs at a time, in a thread that
 * may be preempted. Written by it, and by the context switch while it does not run.
 */
static struct task_struct *tick_task;
static u64 tick_begun_ns;
static u64 tick_left_ns;
static u64 tick_off_ns;

/* Was the page at @address armed? Note the touch then. */
static bool claim(struct demeter_touch_space *space, unsigned long address, u64 now_ns,
		  u64 unseen_ns)
{
	struct demeter_touch_granule *granule;
	bool claimed = false;

	demeter_touch_space_lock(space);
	granule = demeter_touch_granule_of(space, address);
	if (granule && granule->armed) {
		unsigned long bytes = demeter_touch_armed_bytes(granule->armed);

		claimed = demeter_touch_armed_addr(granule->armed) == (address & ~(bytes - 1));
	}
	if (claimed) {
		demeter_touch_note_armed(space, granule, demeter_touch_clock(space, now_ns), true);
		granule->armed = 0;
	}
	/* The others that are armed are not exposed while this is dealt with. */
	space->lost_ns += local_clock() - now_ns + unseen_ns;
	demeter_touch_space_unlock(space);
	return claimed;
}

/**
 * demeter_touch_fault() - a page is asked for: put it back and note the time, if armed
 * @mm: address space, whose page tables stay meanwhile
 * @address: of the page
 * @unseen_ns: what the fault takes before and after this
 *
 * Called with interrupts off.
 */
void demeter_touch_fault(struct mm_struct *mm, unsigned long address, u64 unseen_ns)
{
	struct demeter_touch_space *space;
	enum demeter_touch_state state;
	u64 now_ns = local_clock();
	bool claimed = false;

	state = demeter_touch_restore(mm, address);
	if (state == DEMETER_TOUCH_UNMARKED)
		return;
	if (state == DEMETER_TOUCH_BUSY)
		this_cpu_inc(demeter_touch_cpu.left_to_kernel);
	rcu_read_lock();
	space = demeter_touch_space_of(mm);
	if (space)
		claimed = claim(space, address, now_ns, unseen_ns);
	rcu_read_unlock();
	if (claimed)
		this_cpu_inc(demeter_touch_cpu.touched);
	else
		this_cpu_inc(demeter_touch_cpu.unclaimed);
	now_ns = local_clock() - now_ns + unseen_ns;
	this_cpu_add(demeter_touch_cpu.spent_ns, now_ns);
	this_cpu_add(demeter_cpu_stats.drain_ns, now_ns);
}

static void touched(unsigned long address, unsigned long error_code)
{
	struct mm_struct *mm = current->mm;

	/*
	 * A page that is there and may not be used so is no business of ours. A profiler
	 * that reads a stack from an NMI may have interrupted who holds the lock below, and a
	 * tracer that reads one at a function of ours runs under it.
	 */
	if (in_nmi() || this_cpu_read(demeter_touch_holds_lock) || !mm ||
	    error_code & X86_PF_PROT || address >= TASK_SIZE_MAX || !demeter_touch_any_space())
		return;
	demeter_touch_fault(mm, address, FAULT_UNSEEN_NS);
}

/* The same arguments in 6.1, 6.12 and 7.x. */
static void probe_fault(void *data, unsigned long address, struct pt_regs *regs,
			unsigned long error_code)
{
	touched(address, error_code);
}

static void probe_switch(void *data, bool preempt, struct task_struct *prev,
			 struct task_struct *next, unsigned int prev_state)
{
	const struct task_struct *ticking = READ_ONCE(tick_task);

	if (prev == ticking)
		tick_left_ns = local_clock();
	else if (next == ticking)
		tick_off_ns += local_clock() - tick_left_ns;
	demeter_touch_switch(next->mm);
}

/**
 * demeter_touch_tick_begin() - keep a CPU clock for the task that ticks, the caller
 */
void demeter_touch_tick_begin(void)
{
	tick_off_ns = 0;
	tick_begun_ns = local_clock();
	WRITE_ONCE(tick_task, current);
}

/**
 * demeter_touch_tick_end() - undo it
 *
 * Return: CPU time since demeter_touch_tick_begin(), in nanoseconds.
 */
u64 demeter_touch_tick_end(void)
{
	s64 spent_ns;

	/* A switch between the two reads would be counted by one of them only. */
	preempt_disable();
	spent_ns = local_clock() - tick_begun_ns - READ_ONCE(tick_off_ns);
	WRITE_ONCE(tick_task, NULL);
	preempt_enable();
	/* Clocks of two CPUs differ a little. */
	return max(spent_ns, 0ll);
}

/**
 * demeter_touch_probes_start() - see page faults and context switches from now on
 * @reason: out: what is missing and what to do about it
 * @size: its length
 *
 * Return: 0 or a negative errno.
 */
int demeter_touch_probes_start(char *reason, size_t size)
{
	int ret;

	fault_user = demeter_tracepoint_find("page_fault_user");
	fault_kernel = demeter_tracepoint_find("page_fault_kernel");
	task_switch = demeter_tracepoint_find("sched_switch");
	if (!fault_user || !fault_kernel || !task_switch)
		return demeter_perf_refuse(reason, size, -EOPNOTSUPP,
					   "it lacks a tracepoint of page faults or switches",
					   "use a kernel with CONFIG_TRACEPOINTS");
	ret = tracepoint_probe_register(fault_user, probe_fault, NULL);
	if (ret)
		goto fail;
	ret = tracepoint_probe_register(fault_kernel, probe_fault, NULL);
	if (ret)
		goto unuser;
	ret = tracepoint_probe_register(task_switch, probe_switch, NULL);
	if (!ret)
		return 0;
	tracepoint_probe_unregister(fault_kernel, probe_fault, NULL);
unuser:
	tracepoint_probe_unregister(fault_user, probe_fault, NULL);
	tracepoint_synchronize_unregister();
fail:
	return demeter_perf_refuse(reason, size, ret, "the kernel refused a probe of page faults",
				   "see the kernel log");
}

/**
 * demeter_touch_probes_stop() - undo demeter_touch_probes_start()
 */
void demeter_touch_probes_stop(void)
{
	tracepoint_probe_unregister(task_switch, probe_switch, NULL);
	tracepoint_probe_unregister(fault_kernel, probe_fault, NULL);
	tracepoint_probe_unregister(fault_user, probe_fault, NULL);
	tracepoint_synchronize_unregister();
}
