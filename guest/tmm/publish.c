// SPDX-License-Identifier: GPL-2.0-only
/*
 * Publish: the ranges of a target as others may read them.
 *
 * The worker makes a new array each epoch, without a lock, and exchanges it for
 * the one before. What it learned about moving a range stays with the range for
 * as long as that keeps its bounds.
 */
#include <linux/mm.h>
#include <linux/slab.h>

#include "finer.h"
#include "tmm.h"

/**
 * demeter_target_lock() - lock what a target has published
 * @target: the target
 *
 * Return: for demeter_target_unlock().
 */
u64 demeter_target_lock(struct demeter_target *target)
{
	mutex_lock(&target->lock);
	return demeter_worker_clock();
}

/**
 * demeter_target_unlock() - unlock it
 * @target: the target
 * @since_ns: as returned when it was locked
 */
void demeter_target_unlock(struct demeter_target *target, u64 since_ns)
{
	u64 held_ns = demeter_worker_clock() - since_ns;

	mutex_unlock(&target->lock);
	demeter_stats_max(&demeter_stats.lock_held_max_ns, held_ns);
}

/**
 * demeter_target_count() - what is published of the range at an address
 * @target: the target
 * @start: where the range begins
 *
 * For the worker, or under the target's lock.
 *
 * Return: the count, or NULL.
 */
struct demeter_count *demeter_target_count(struct demeter_target *target, u64 start)
{
	u32 low = 0, high = target->nr_counts;

	while (low < high) {
		u32 mid = low + (high - low) / 2;

		if (target->count[mid].start < start)
			low = mid + 1;
		else
			high = mid;
	}
	if (low < target->nr_counts && target->count[low].start == start)
		return &target->count[low];
	return NULL;
}

/* Room for as many counts as the ranges have; with less, some stay unpublished. */
static void make_room(struct demeter_target *target)
{
	struct demeter_count *longer;

	if (target->spare_capacity >= target->ranges.nr)
		return;
	longer = demeter_table_alloc(target->ranges.capacity, sizeof(*longer));
	if (!longer)
		return;
	kvfree(target->spare);
	target->spare = longer;
	target->spare_capacity = target->ranges.capacity;
}

/* Of all nodes of a tier together. */
static void sum_resident(const struct demeter_target *target, struct demeter_rank_entry *entries,
			 u32 nr)
{
	u32 column;

	demeter_resident_sum(&target->resident[0], entries, nr);
	for (column = 1; column < demeter_tiers.columns; column++)
		demeter_resident_add(&target->resident[column], entries, nr);
}

/**
 * demeter_publish() - append the ranges of a target to a ranking, and publish them
 * @target: the target
 * @entries: ranking to append to
 * @nr: entries in use
 * @capacity: length of @entries
 *
 * For the worker.
 *
 * Return: entries in use now.
 */
u32 demeter_publish(struct demeter_target *target, struct demeter_rank_entry *entries, u32 nr,
		    u32 capacity)
{
	struct demeter_rank_entry *entry = entries + nr;
	const struct demeter_ranges *rs = &target->ranges;
	u32 old = 0, own, known = 0, i, group = READ_ONCE(target->group);
	bool sees;
	u64 since_ns;

	own = demeter_rank_gather(rs, target->space, entries, nr, capacity) - nr;
	for (i = 0; i < own; i++)
		entry[i].group = group;
	WRITE_ONCE(demeter_stats.unranked_ranges, demeter_stats.unranked_ranges + rs->nr - own);
	/*
	 * Part of the truth would make what is known too little of look too hot, and
	 * what nobody samples would look cold: without pages, neither is moved.
	 */
	sees = demeter_sampler_sees(target->mm);
	if (sees)
		known = demeter_recount_known(target, own);
	sum_resident(target, entry, known);

	make_room(target);
	for (i = 0; i < min(own, target->spare_capacity); i++) {
		const struct demeter_range *range = &rs->range[i];
		struct demeter_count *count = &target->spare[i];

		while (old < target->nr_counts && target->count[old].start < range->start)
			old++;
		if (old < target->nr_counts && target->count[old].start == range->start &&
		    target->count[old].end == range->end)
			*count = target->count[old];
		else
			*count = (struct demeter_count){ .start = range->start, .end = range->end };
		count->rate = range->rate;
		count->born_epoch = range->born_epoch;
		count->area = range->area;
		memcpy(count->pages, entry[i].pages, sizeof(count->pages));
	}
	demeter_finer_warm(target, target->spare, i);
	nr += own;
	if (sees && known == own)
		nr += demeter_finer_publish(target, entry, own, capacity - nr);

	since_ns = demeter_target_lock(target);
	swap(target->count, target->spare);
	swap(target->count_capacity, target->spare_capacity);
	target->nr_counts = i;
	target->count_epoch = rs->epoch;
	demeter_target_unlock(target, since_ns);
	return nr;
}
