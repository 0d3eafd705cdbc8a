/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Delivery: how a CPU's sampling unit hands its records over.
 *
 * In batches: it keeps records back, and whoever leaves the CPU has them taken out,
 * which costs something at each context switch, records or none. Or each by an
 * interrupt: that costs something for each record, and nothing at a switch. Which is
 * cheaper depends on the program and on the machine, and is told from what was
 * counted and what was measured. Where both are dear, sparser samples are the way out
 * (@least of <demeter/pace.h>).
 */
#ifndef DEMETER_DELIVERY_H
#define DEMETER_DELIVERY_H

#include <demeter/deps.h>

/**
 * struct demeter_delivery_costs - what either way costs on this machine
 * @switch_ns: in batches: a context switch; 0 = not known
 * @record_ns: each by an interrupt: a record; 0 = not known
 */
struct demeter_delivery_costs {
	u64 switch_ns;
	u64 record_ns;
};

/**
 * struct demeter_delivery_tick - what a CPU did in a tick
 * @tick_ns: its length
 * @switches: context switches
 * @records: records of the unit
 * @shift: log2 of how much sparser than at full pace they were
 * @throttled: the kernel stopped the unit for a while, for too many interrupts
 */
struct demeter_delivery_tick {
	u64 tick_ns;
	u64 switches;
	u64 records;
	u32 shift;
	bool throttled;
};

/**
 * struct demeter_delivery - delivery of a CPU; all zero to begin with
 * @each: each record by an interrupt; else in batches
 * @settled: ticks for which that stays as it is
 * @switches: of the last few ticks, decayed, fixed point
 * @records: likewise, as many as there are at full pace
 * @ticks: ticks that those are worth, fixed point
 */
struct demeter_delivery {
	bool each;
	u32 settled;
	u64 switches;
	u64 records;
	u64 ticks;
};

bool demeter_delivery_tick(struct demeter_delivery *delivery,
			   const struct demeter_delivery_costs *costs,
			   const struct demeter_delivery_tick *tick);
void demeter_delivery_try_batches(struct demeter_delivery *delivery);
u64 demeter_delivery_cost_ns(const struct demeter_delivery *delivery,
			     const struct demeter_delivery_costs *costs, u32 shift);
u32 demeter_delivery_least_shift(const u64 *cost_ns, u64 room_ns, u32 least, u32 most);

#endif /* DEMETER_DELIVERY_H */
