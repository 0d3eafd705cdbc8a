// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Ranges: the areas they tile, see <demeter/ranges.h>. A part of ranges.c, which
 * includes this file where it needs it.
 */

/* Cut what belongs to @area down to [start, end). */
static void ranges_trim(struct demeter_ranges *rs, u32 area, u64 start, u64 end)
{
	u32 from, to = 0;

	for (from = 0; from < rs->nr; from++) {
		struct demeter_range *r = &rs->range[from];

		if (r->area == area) {
			if (r->end <= start || r->start >= end)
				continue;
			if (r->start < start || r->end > end)
				ranges_reshape(r, rs->granule_shift, demeter_max(r->start, start),
					       demeter_min(r->end, end), rs->epoch);
		}
		rs->range[to++] = *r;
	}
	rs->nr = to;
}

static bool ranges_idle(const struct demeter_range *r)
{
	u32 k, hits = 0;

	for (k = 0; k < DEMETER_QUARTERS; k++)
		hits |= r->hits[k];
	return r->rate == 0 && hits == 0;
}

/*
 * Add [start, end) to @area at its lower or upper end. An idle range at that
 * end simply grows (a heap that grows a little each epoch must not leave a
 * range per epoch), and so does a busy one when there is no room.
 */
static int ranges_grow(struct demeter_ranges *rs, u32 area, u64 start, u64 end)
{
	u32 at = ranges_search(rs, start), none = rs->nr;
	struct demeter_range *edge = NULL;

	if (at < rs->nr && rs->range[at].area == area && rs->range[at].start == end)
		edge = &rs->range[at];
	else if (at && rs->range[at - 1].area == area && rs->range[at - 1].end == start)
		edge = &rs->range[at - 1];

	if (edge && (ranges_idle(edge) || rs->nr == rs->capacity)) {
		ranges_reshape(edge, rs->granule_shift, demeter_min(edge->start, start),
			       demeter_max(edge->end, end), rs->epoch);
		return 0;
	}
	if (rs->nr == rs->capacity) {
		if (!ranges_make_room(rs, &none))
			return -ENOSPC;
		at = ranges_search(rs, start);
	}
	if (at && rs->range[at - 1].area == area)
		rs->range[at - 1].alike_epochs = 0;
	ranges_insert_slot(rs, at);
	ranges_clear(&rs->range[at], start, end, area, rs->epoch);
	return 0;
}

/**
 * demeter_ranges_set_area - set, move, grow, shrink or remove an area
 * @rs: the ranges
 * @area: index below DEMETER_MAX_AREAS
 * @start: first byte; rounded down to the granule
 * @end: one past the last byte; rounded up to the granule, down at the very top
 *	of the address space. @start == @end removes the area.
 *
 * A part that is added becomes a range of its own, a part that is dropped takes
 * its samples along. A heap grows at its end, an mmap area at its start.
 *
 * Return: 0; -EINVAL for bounds in the wrong order, an unknown area, or an
 * overlap with another area; -ENOSPC when no range is left for a new area.
 * Nothing has changed then.
 */
int demeter_ranges_set_area(struct demeter_ranges *rs, u32 area, u64 start, u64 end)
{
	u64 mask = rs->params.granule_bytes - 1;
	u64 old_start, old_end;
	u32 none = rs->nr, i;
	int err;

	if (area >= DEMETER_MAX_AREAS || start > end)
		return -EINVAL;
	if (start == end) {
		ranges_trim(rs, area, 0, 0);
		rs->area[area].start = 0;
		rs->area[area].end = 0;
		return 0;
	}
	start &= ~mask;
	end = end > ~mask ? ~mask : (end + mask) & ~mask;
	if (start >= end)
		return -EINVAL;
	for (i = 0; i < DEMETER_MAX_AREAS; i++)
		if (i != area && rs->area[i].start < end && start < rs->area[i].end)
			return -EINVAL;

	old_start = rs->area[area].start;
	old_end = rs->area[area].end;
	if (start >= old_end || end <= old_start) {
		/* New, or moved to where it shares nothing with its past. */
		if (rs->nr == rs->capacity && old_start == old_end && !ranges_make_room(rs, &none))
			return -ENOSPC;
		ranges_trim(rs, area, 0, 0);
		rs->area[area].start = start;
		rs->area[area].end = end;
		return ranges_grow(rs, area, start, end);
	}

	ranges_trim(rs, area, start, end);
	rs->area[area].start = demeter_max(start, old_start);
	rs->area[area].end = demeter_min(end, old_end);
	if (end > old_end) {
		err = ranges_grow(rs, area, old_end, end);
		if (err)
			return err;
		rs->area[area].end = end;
	}
	if (start < old_start) {
		err = ranges_grow(rs, area, start, old_start);
		if (err)
			return err;
		rs->area[area].start = start;
	}
	return 0;
}

/*
 * Make room whatever it costs: where no neighbours are alike, the pair with the
 * fewest samples is merged.
 */
static bool ranges_force_room(struct demeter_ranges *rs)
{
	u32 none = rs->nr, best = rs->nr, i;

	if (ranges_make_room(rs, &none))
		return true;
	for (i = 0; i + 1 < rs->nr; i++) {
		if (!ranges_neighbours(&rs->range[i], &rs->range[i + 1]))
			continue;
		if (best == rs->nr || rs->range[i].rate + rs->range[i + 1].rate <
					      rs->range[best].rate + rs->range[best + 1].rate)
			best = i;
	}
	if (best == rs->nr)
		return false;
	rs->range[best] = ranges_union(rs, &rs->range[best], &rs->range[best + 1]);
	ranges_remove(rs, best + 1);
	rs->merges++;
	return true;
}

/*
 * Cut what lies outside of all areas, and number the rest anew. A range that spans
 * several areas reaches from the first of them to the last afterwards.
 */
static void ranges_trim_all(struct demeter_ranges *rs, const struct demeter_area *area, u32 nr)
{
	u32 from, to = 0, first = 0, last;

	for (from = 0; from < rs->nr; from++) {
		struct demeter_range *r = &rs->range[from];
		u64 start, end;

		while (first < nr && area[first].end <= r->start)
			first++;
		if (first == nr || area[first].start >= r->end)
			continue;
		for (last = first; last + 1 < nr && area[last + 1].start < r->end;)
			last++;
		start = demeter_max(r->start, area[first].start);
		end = demeter_min(r->end, area[last].end);
		if (start != r->start || end != r->end)
			ranges_reshape(r, rs->granule_shift, start, end, rs->epoch);
		r->area = first;
		rs->range[to++] = *r;
	}
	rs->nr = to;
}

/*
 * Divide the range at @at in two, with nothing between @lower_end and @upper_start.
 * Returns where to go on: room for the upper part may have moved both.
 */
static u32 ranges_open_gap(struct demeter_ranges *rs, u32 at, u64 lower_end, u64 upper_start)
{
	struct demeter_range upper = rs->range[at];

	ranges_reshape(&upper, rs->granule_shift, upper_start, upper.end, rs->epoch);
	upper.area++;
	ranges_reshape(&rs->range[at], rs->granule_shift, rs->range[at].start, lower_end,
		       rs->epoch);
	if (rs->nr == rs->capacity)
		ranges_force_room(rs);
	at = ranges_search(rs, upper.start);
	if (rs->nr == rs->capacity)
		return at; /* Its area is covered anew, without what was known of it. */
	ranges_insert_slot(rs, at);
	rs->range[at] = upper;
	return at;
}

/* Fill the holes that @area has between its ranges and at both ends. */
static int ranges_cover(struct demeter_ranges *rs, u32 area, u64 start, u64 end)
{
	u64 at = start, stop;
	u32 i;
	int err;

	while (at < end) {
		i = ranges_search(rs, at);
		if (i < rs->nr && rs->range[i].start <= at) {
			at = rs->range[i].end;
			continue;
		}
		stop = i < rs->nr ? demeter_min(rs->range[i].start, end) : end;
		if (rs->nr == rs->capacity)
			ranges_force_room(rs);
		err = ranges_grow(rs, area, at, stop);
		if (err)
			return err;
		at = stop;
	}
	return 0;
}

static bool ranges_has_area(const struct demeter_ranges *rs, const struct demeter_area *area)
{
	u32 at = ranges_search(rs, area->start);

	return at < rs->nr && rs->range[at].start < area->end;
}

/**
 * demeter_ranges_set_areas - replace all areas at once
 * @rs: the ranges
 * @area: the new areas: sorted, disjoint, none empty, on the granule
 * @nr: how many, at most DEMETER_MAX_AREAS and the capacity
 *
 * What was learnt belongs to addresses, not to areas: wherever an address was in
 * an area and is in one now, its samples stay, however the areas were cut. When
 * the array is full, neighbours are merged to make room, the coldest first.
 *
 * Return: 0; -EINVAL for areas that are not as above, -ENOSPC for a capacity below
 * @nr. Nothing has changed then.
 */
int demeter_ranges_set_areas(struct demeter_ranges *rs, const struct demeter_area *area, u32 nr)
{
	u64 mask = rs->params.granule_bytes - 1;
	bool same = true;
	u32 i, pass;

	if (nr > DEMETER_MAX_AREAS || (nr && !area))
		return -EINVAL;
	if (nr > rs->capacity)
		return -ENOSPC;
	for (i = 0; i < nr; i++) {
		if (area[i].start >= area[i].end || ((area[i].start | area[i].end) & mask) ||
		    (i && area[i].start < area[i - 1].end))
			return -EINVAL;
		same = same && area[i].start == rs->area[i].start && area[i].end == rs->area[i].end;
	}
	for (; i < DEMETER_MAX_AREAS; i++)
		same = same && rs->area[i].start == rs->area[i].end;
	if (same)
		return 0;

	ranges_trim_all(rs, area, nr);
	memset(rs->area, 0, sizeof(rs->area));
	for (i = 0; i < nr; i++)
		rs->area[i] = area[i];
	for (i = 0; i < rs->nr;) {
		const struct demeter_range *r = &rs->range[i];

		if (r->end > area[r->area].end)
			i = ranges_open_gap(rs, i, area[r->area].end, area[r->area + 1].start);
		else
			i++;
	}
	/*
	 * Areas that have ranges first. Once these are covered, one of them has
	 * neighbours to merge whenever the array is full and an area has no range.
	 */
	for (pass = 0; pass < 2; pass++)
		for (i = 0; i < nr; i++)
			if (pass || ranges_has_area(rs, &area[i]))
				ranges_cover(rs, i, area[i].start, area[i].end);
	for (i = 1; i < rs->nr; i++)
		if (rs->range[i - 1].area != rs->range[i].area)
			rs->range[i - 1].alike_epochs = 0;
	return 0;
}
