/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tracepoints: one for each decision. /sys/kernel/tracing/events/demeter/
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM demeter

#if !defined(DEMETER_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define DEMETER_TRACE_H

#include <linux/tracepoint.h>

/* clang-format off */

TRACE_EVENT(demeter_target,
	    TP_PROTO(bool added, u32 space, pid_t pid, int origin),
	    TP_ARGS(added, space, pid, origin),
	    TP_STRUCT__entry(__field(bool, added)
			     __field(u32, space)
			     __field(pid_t, pid)
			     __field(int, origin)),
	    TP_fast_assign(__entry->added = added;
			   __entry->space = space;
			   __entry->pid = pid;
			   __entry->origin = origin;),
	    TP_printk("%s space=%u pid=%d by=%s", __entry->added ? "add" : "remove",
		      __entry->space, __entry->pid,
		      __print_symbolic(__entry->origin, { 0, "pid" }, { 1, "cgroup" },
				       { 2, "size" })));

TRACE_EVENT(demeter_classify,
	    TP_PROTO(u64 epoch, u32 space, u32 samples, u32 splits, u32 merges, u32 ranges),
	    TP_ARGS(epoch, space, samples, splits, merges, ranges),
	    TP_STRUCT__entry(__field(u64, epoch)
			     __field(u32, space)
			     __field(u32, samples)
			     __field(u32, splits)
			     __field(u32, merges)
			     __field(u32, ranges)),
	    TP_fast_assign(__entry->epoch = epoch;
			   __entry->space = space;
			   __entry->samples = samples;
			   __entry->splits = splits;
			   __entry->merges = merges;
			   __entry->ranges = ranges;),
	    TP_printk("epoch=%llu space=%u samples=%u splits=%u merges=%u ranges=%u",
		      __entry->epoch, __entry->space, __entry->samples, __entry->splits,
		      __entry->merges, __entry->ranges));

TRACE_EVENT(demeter_plan,
	    TP_PROTO(u64 epoch, u32 steps, u64 fill_pages, u64 swap_pages, int end),
	    TP_ARGS(epoch, steps, fill_pages, swap_pages, end),
	    TP_STRUCT__entry(__field(u64, epoch)
			     __field(u32, steps)
			     __field(u64, fill_pages)
			     __field(u64, swap_pages)
			     __field(int, end)),
	    TP_fast_assign(__entry->epoch = epoch;
			   __entry->steps = steps;
			   __entry->fill_pages = fill_pages;
			   __entry->swap_pages = swap_pages;
			   __entry->end = end;),
	    TP_printk("epoch=%llu steps=%u fill_pages=%llu swap_pages=%llu end=%s",
		      __entry->epoch, __entry->steps, __entry->fill_pages, __entry->swap_pages,
		      __print_symbolic(__entry->end, { 0, "done" }, { 1, "no_gain" },
				       { 2, "no_tokens" }, { 3, "full" })));

TRACE_EVENT(demeter_step,
	    TP_PROTO(const struct demeter_plan_step *step, const struct demeter_rank_entry *hot,
		     const struct demeter_rank_entry *cold),
	    TP_ARGS(step, hot, cold),
	    TP_STRUCT__entry(__field(int, kind)
			     __field(u64, pages)
			     __field(u32, hot_space)
			     __field(u32, cold_space)
			     __field(u64, hot_start)
			     __field(u64, hot_end)
			     __field(u64, hot_density)
			     __field(u64, cold_start)
			     __field(u64, cold_end)
			     __field(u64, cold_density)),
	    TP_fast_assign(__entry->kind = step->kind;
			   __entry->pages = step->pages;
			   __entry->hot_space = hot->space;
			   __entry->hot_start = hot->start;
			   __entry->hot_end = hot->end;
			   __entry->hot_density = hot->density;
			   __entry->cold_space = cold ? cold->space : 0;
			   __entry->cold_start = cold ? cold->start : 0;
			   __entry->cold_end = cold ? cold->end : 0;
			   __entry->cold_density = cold ? cold->density : 0;),
	    TP_printk("%s pages=%llu hot=%u:%llx-%llx density=%llu cold=%u:%llx-%llx density=%llu",
		      __print_symbolic(__entry->kind, { 0, "fill" }, { 1, "swap" },
				       { 2, "demote" }),
		      __entry->pages, __entry->hot_space, __entry->hot_start, __entry->hot_end,
		      __entry->hot_density, __entry->cold_space, __entry->cold_start,
		      __entry->cold_end, __entry->cold_density));

DECLARE_EVENT_CLASS(demeter_batch,
		    TP_PROTO(u64 wanted, u64 moved, u64 ns),
		    TP_ARGS(wanted, moved, ns),
		    TP_STRUCT__entry(__field(u64, wanted)
				     __field(u64, moved)
				     __field(u64, ns)),
		    TP_fast_assign(__entry->wanted = wanted;
				   __entry->moved = moved;
				   __entry->ns = ns;),
		    TP_printk("wanted_pages=%llu moved_pages=%llu ns=%llu", __entry->wanted,
			      __entry->moved, __entry->ns));

DEFINE_EVENT(demeter_batch, demeter_exchange,
	     TP_PROTO(u64 wanted, u64 moved, u64 ns),
	     TP_ARGS(wanted, moved, ns));

DEFINE_EVENT(demeter_batch, demeter_fill,
	     TP_PROTO(u64 wanted, u64 moved, u64 ns),
	     TP_ARGS(wanted, moved, ns));

DEFINE_EVENT(demeter_batch, demeter_demote,
	     TP_PROTO(u64 wanted, u64 moved, u64 ns),
	     TP_ARGS(wanted, moved, ns));

/* The time of a decision is over: what its moved pages were to save, and did. */
TRACE_EVENT(demeter_settled,
	    TP_PROTO(u64 decision, u32 space, u64 pages, u64 predicted_ns, s64 realised_ns),
	    TP_ARGS(decision, space, pages, predicted_ns, realised_ns),
	    TP_STRUCT__entry(__field(u64, decision)
			     __field(u32, space)
			     __field(u64, pages)
			     __field(u64, predicted_ns)
			     __field(s64, realised_ns)),
	    TP_fast_assign(__entry->decision = decision;
			   __entry->space = space;
			   __entry->pages = pages;
			   __entry->predicted_ns = predicted_ns;
			   __entry->realised_ns = realised_ns;),
	    TP_printk("decision=%llu space=%u pages=%llu predicted_ns=%llu realised_ns=%lld",
		      __entry->decision, __entry->space, __entry->pages, __entry->predicted_ns,
		      __entry->realised_ns));

/* Moving did not pay for an address space, for the nth time, and is stopped for so long. */
TRACE_EVENT(demeter_stopped,
	    TP_PROTO(u32 space, u64 stopped_ns, u32 stops),
	    TP_ARGS(space, stopped_ns, stops),
	    TP_STRUCT__entry(__field(u32, space)
			     __field(u64, stopped_ns)
			     __field(u32, stops)),
	    TP_fast_assign(__entry->space = space;
			   __entry->stopped_ns = stopped_ns;
			   __entry->stops = stops;),
	    TP_printk("space=%u stopped_ns=%llu stops=%u", __entry->space, __entry->stopped_ns,
		      __entry->stops));

/* Reasons by number, in the order of enum demeter_refusal (tmm/refusal.h). */
TRACE_EVENT(demeter_refused,
	    TP_PROTO(int reason, u64 pages),
	    TP_ARGS(reason, pages),
	    TP_STRUCT__entry(__field(int, reason)
			     __field(u64, pages)),
	    TP_fast_assign(__entry->reason = reason;
			   __entry->pages = pages;),
	    TP_printk("reason=%d pages=%llu", __entry->reason, __entry->pages));

/* clang-format on */

#endif /* DEMETER_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
