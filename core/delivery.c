// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Delivery: see <demeter/delivery.h>.
 *
 * Each tick counts half of the one after it. The way is changed when the other one
 * would have cost a third less, and saves more than a 512th of the time: a change
 * stops the unit for a moment, and what is saved has to be worth it. Then it stays for
 * some ticks, so that a program between the two does not change it all the time.
 */
#include <demeter/delivery.h>
#include <demeter/math.h>

#define DELIVERY_SHIFT	     8U /* of counts in fixed point */
/* Less than so much of the time is not worth a change, as a power of two. */
#define DELIVERY_WORTH	     9U
/* Ticks that a way is kept at least, and those that interrupts are kept away for. */
#define DELIVERY_SETTLED     8U
#define DELIVERY_THROTTLED   128U
/* Counts and costs above these have no room for their product. */
#define DELIVERY_MAX_COUNT   BIT_ULL(26)
#define DELIVERY_MAX_COST_NS BIT_ULL(26)

static u64 delivery_product(u64 count, u64 cost_ns)
{
	return count * demeter_min(cost_ns, DELIVERY_MAX_COST_NS);
}

static void delivery_see(struct demeter_delivery *delivery,
			 const struct demeter_delivery_tick *tick)
{
	u64 switches = demeter_min(tick->switches, DELIVERY_MAX_COUNT);
	u64 records = demeter_min(tick->records, DELIVERY_MAX_COUNT);

	/* As many as there would be at full pace. */
	records = demeter_min(records << demeter_min(tick->shift, 16), DELIVERY_MAX_COUNT);
	delivery->switches = delivery->switches / 2 + (switches << DELIVERY_SHIFT);
	delivery->records = delivery->records / 2 + (records << DELIVERY_SHIFT);
	delivery->ticks = delivery->ticks / 2 + BIT_ULL(DELIVERY_SHIFT);
}

static bool delivery_change(struct demeter_delivery *delivery, u32 settled)
{
	delivery->each = !delivery->each;
	delivery->settled = settled;
	return true;
}

/**
 * demeter_delivery_tick - a tick is over: how are records delivered from now on
 * @delivery: the CPU's; @delivery->each is the answer
 * @costs: what either way costs
 * @tick: what the CPU did
 *
 * Return: whether that is another way than before.
 */
bool demeter_delivery_tick(struct demeter_delivery *delivery,
			   const struct demeter_delivery_costs *costs,
			   const struct demeter_delivery_tick *tick)
{
	u64 batches, each, mine, other;

	delivery_see(delivery, tick);
	if (delivery->each && tick->throttled)
		return delivery_change(delivery, DELIVERY_THROTTLED);
	if (delivery->settled) {
		delivery->settled--;
		return false;
	}
	if (!costs->switch_ns || !costs->record_ns)
		return false;
	batches = delivery_product(delivery->switches, costs->switch_ns);
	each = delivery_product(delivery->records >> demeter_min(tick->shift, 16),
				costs->record_ns);
	mine = delivery->each ? each : batches;
	other = delivery->each ? batches : each;
	if (mine <= other || mine - other < mine / 3)
		return false;
	if (div64_u64(mine - other, delivery->ticks) < tick->tick_ns >> DELIVERY_WORTH)
		return false;
	return delivery_change(delivery, DELIVERY_SETTLED);
}

/**
 * demeter_delivery_try_batches - back to batches for some ticks, to measure what they cost
 * @delivery: the CPU's; each record has an interrupt now
 */
void demeter_delivery_try_batches(struct demeter_delivery *delivery)
{
	delivery->each = false;
	delivery->settled = DELIVERY_SETTLED;
}

/**
 * demeter_delivery_cost_ns - what the cheaper way costs at a pace
 * @delivery: the CPU's
 * @costs: what either way costs
 * @shift: log2 of how much sparser than at full pace samples are
 *
 * Return: CPU time of a tick, in nanoseconds; 0 while it cannot be told.
 */
u64 demeter_delivery_cost_ns(const struct demeter_delivery *delivery,
			     const struct demeter_delivery_costs *costs, u32 shift)
{
	u64 batches = delivery_product(delivery->switches, costs->switch_ns);
	u64 each = delivery_product(delivery->records >> demeter_min(shift, 16), costs->record_ns);

	return delivery->ticks ? div64_u64(demeter_min(batches, each), delivery->ticks) : 0;
}

/**
 * demeter_delivery_least_shift - how sparse samples have to be so as not to be dear
 * @cost_ns: what delivery costs in a tick, by log2 of how much sparser; @most + 1 of them
 * @room_ns: what it may cost
 * @least: the answer before
 * @most: no more than this
 *
 * Return: log2 of how much sparser; less than before only where there is room to spare.
 */
u32 demeter_delivery_least_shift(const u64 *cost_ns, u64 room_ns, u32 least, u32 most)
{
	least = (u32)demeter_min(least, most);
	while (least && cost_ns[least - 1] < room_ns - room_ns / 4)
		least--;
	while (least < most && cost_ns[least] > room_ns)
		least++;
	return least;
}
