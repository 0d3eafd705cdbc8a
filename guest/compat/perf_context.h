/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * linux/perf_event.h: what changed between 6.1 and 7.x about perf contexts.
 *
 * Drop the file when the oldest supported kernel is newer than the version it
 * names. Written 2026-11.
 */
#ifndef DEMETER_COMPAT_PERF_CONTEXT_H
#define DEMETER_COMPAT_PERF_CONTEXT_H

#include <linux/sched.h>
#include <linux/version.h>

/*
 * 6.2 (2023-02) gave a task one context for the events of all PMUs. perf takes a
 * task that has one for having drained the buffer of every PMU that wants it at
 * a switch, and only drains those of which the task has an event. Before, there
 * was a context for each kind of PMU, and no such gap. Goes with 6.1.
 */
#if KERNEL_VERSION(6, 2, 0) <= LINUX_VERSION_CODE
#define demeter_may_skip_drain(task) (!!READ_ONCE((task)->perf_event_ctxp))
#else
#define demeter_may_skip_drain(task) ((void)(task), false)
#endif

#endif /* DEMETER_COMPAT_PERF_CONTEXT_H */
