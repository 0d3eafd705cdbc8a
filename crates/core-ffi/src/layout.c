// SPDX-License-Identifier: Apache-2.0 OR MIT
/* Sizes and offsets as C sees them, for the layout test of src/sys.rs. */
#include <demeter/areas.h>
#include <demeter/channel.h>
#include <demeter/groups.h>
#include <demeter/judge.h>
#include <demeter/pace.h>
#include <demeter/plan.h>

const size_t demeter_layout[];
const size_t demeter_layout[] = {
	sizeof(struct demeter_ranges_params),
	sizeof(struct demeter_range),
	offsetof(struct demeter_range, hits),
	offsetof(struct demeter_range, area),
	sizeof(struct demeter_ranges),
	offsetof(struct demeter_ranges, splits),
	offsetof(struct demeter_ranges, area),
	offsetof(struct demeter_ranges, granule_shift),
	sizeof(struct demeter_ranges_epoch),
	sizeof(struct demeter_rank_entry),
	offsetof(struct demeter_rank_entry, space),
	offsetof(struct demeter_rank_entry, group),
	sizeof(struct demeter_plan_params),
	offsetof(struct demeter_plan_params, burst_pages),
	sizeof(struct demeter_plan_state),
	sizeof(struct demeter_plan_step),
	sizeof(struct demeter_plan),
	offsetof(struct demeter_plan, end),
	sizeof(struct demeter_group),
	offsetof(struct demeter_group, demoted_first),
	sizeof(struct demeter_groups),
	sizeof(struct demeter_sample),
	sizeof(struct demeter_channel_slot),
	sizeof(struct demeter_channel),
	offsetof(struct demeter_channel, lost),
	offsetof(struct demeter_channel, tail),
	sizeof(struct demeter_areas),
	offsetof(struct demeter_areas, min_gap_bytes),
	DEMETER_PACE_MAX_SHIFT,
	sizeof(struct demeter_pace_tick),
	sizeof(struct demeter_pace_epoch),
	sizeof(struct demeter_pace),
	offsetof(struct demeter_pace, changed),
	offsetof(struct demeter_pace, resident_pages),
	sizeof(struct demeter_placement),
	offsetof(struct demeter_placement, quiet_ns),
	sizeof(struct demeter_judge),
	offsetof(struct demeter_judge, all_stops),
};
