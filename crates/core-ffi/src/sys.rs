// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The C interface, as `core/include/demeter/*.h` declares it. What its fields
//! mean is said there.

use std::ffi::c_int;

pub const QUARTERS: usize = 4;
pub const MAX_AREAS: usize = 16;
pub const TIERS: usize = 2;

/// What steers the classifier; see `struct demeter_ranges_params`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangesParams {
    /// Tau: decayed samples by which parts must differ, times `vcpus`.
    pub split_samples: u32,
    /// Alpha: and by this many standard deviations.
    pub significance: u32,
    /// Factor of `split_samples`: the paper's is the number of vCPUs, 1 lets samples speak for
    /// themselves.
    pub vcpus: u32,
    /// Epochs that neighbours must be alike before they merge.
    pub merge_epochs: u32,
    /// Smallest range in bytes, a power of two.
    pub granule_bytes: u64,
}

impl Default for RangesParams {
    fn default() -> Self {
        Self {
            split_samples: 15,
            significance: 2,
            vcpus: 1,
            merge_epochs: 8,
            granule_bytes: 2 << 20,
        }
    }
}

/// One range; see `struct demeter_range`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Decayed samples, fixed point with 8 fractional bits.
    pub rate: u64,
    /// The part of the rate whose quarter is known.
    pub quarter: [u64; QUARTERS],
    /// Samples of the running epoch.
    pub hits: [u32; QUARTERS],
    /// Epoch in which it got its bounds.
    pub born_epoch: u32,
    /// Epochs in a row that it did not differ from its successor.
    pub alike_epochs: u32,
    /// The area it belongs to.
    pub area: u32,
}

/// Bounds of an area; equal when unused.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Area {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

#[repr(C)]
pub struct Ranges {
    pub range: *mut Range,
    pub capacity: u32,
    pub nr: u32,
    pub epoch: u32,
    pub tau_raise: u32,
    pub splits: u64,
    pub merges: u64,
    pub samples: u64,
    pub strays: u64,
    pub denied_splits: u64,
    pub area: [Area; MAX_AREAS],
    pub params: RangesParams,
    pub granule_shift: u32,
    pub thin: u32,
}

/// What one epoch changed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpochChange {
    /// Ranges split.
    pub splits: u32,
    /// Pairs merged.
    pub merges: u32,
}

/// One range as the planner sees it; see `struct demeter_rank_entry`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankEntry {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Decayed samples, fixed point with 8 fractional bits.
    pub rate: u64,
    /// Filled in by ranking: rate per resident page.
    pub density: u64,
    /// Resident 4 KiB pages: in FMEM, in SMEM.
    pub pages: [u64; TIERS],
    /// Filled in by ranking: their sum, which rates are divided by.
    pub resident: u64,
    /// Epochs since the range got its bounds.
    pub age_epochs: u32,
    /// The caller's number of the address space.
    pub space: u32,
    /// The caller's number of its group.
    pub group: u32,
    /// 0 for a range, else pages scattered over it.
    pub part: u32,
}

/// The economics; see `struct demeter_plan_params`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanParams {
    /// Accesses that one sample stands for.
    pub sample_period: u64,
    /// Length of an epoch.
    pub epoch_ns: u64,
    /// SMEM latency minus FMEM latency.
    pub latency_gap_ps: u64,
    /// Latency that is added where the tiers are of two sockets.
    pub remote_ps: u64,
    /// How long a placement is expected to last.
    pub horizon_ns: u64,
    /// Cost of exchanging a pair of pages.
    pub swap_cost_ns: u64,
    /// Cost of migrating a page into free FMEM.
    pub move_cost_ns: u64,
    /// How much more than its cost a swap must gain.
    pub hysteresis_permille: u32,
    /// Standard deviations that rates are taken apart.
    pub significance: u32,
    /// Pages relocated per second at most, 0: no cap.
    pub rate_pages_per_s: u64,
    /// Depth of the token bucket, 0: what a second brings.
    pub burst_pages: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PlanState {
    pub tokens_pages: u64,
    pub last_ns: u64,
    pub primed: bool,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PlanStep {
    pub kind: u32,
    pub hot: u32,
    pub cold: u32,
    pub pages: u64,
    pub gain_ps: u64,
    pub lasts_ns: u64,
    pub remote_ps: u64,
    pub imposed: bool,
}

#[repr(C)]
pub struct Plan {
    pub step: *mut PlanStep,
    pub capacity: u32,
    pub nr: u32,
    pub fill_pages: u64,
    pub swap_pages: u64,
    pub demote_pages: u64,
    pub end: u32,
}

/// Areas in the making; see `struct demeter_areas`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Areas {
    pub area: [Area; MAX_AREAS],
    pub nr: u32,
    pub granule_bytes: u64,
    pub min_gap_bytes: u64,
}

pub const PACE_MAX_SHIFT: u32 = 3;

/// What a tick brought; see `struct demeter_pace_tick`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PaceTick {
    /// Samples of managed memory: in FMEM, in SMEM.
    pub samples: [u64; TIERS],
    /// Those whose tier is not known.
    pub untold: u64,
    /// Resident pages of all that is managed.
    pub resident_pages: u64,
}

/// What an epoch came to; see `struct demeter_pace_epoch`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PaceEpoch {
    /// Pages that were moved.
    pub moved_pages: u64,
    /// Ranges split.
    pub splits: u64,
    /// Ranges in all.
    pub ranges: u64,
    /// More is to be done than an epoch may do.
    pub waiting: bool,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    pub shift: u32,
    pub sparse: u32,
    pub thin: u32,
    pub most: u32,
    pub least: u32,
    pub ticks: u32,
    pub quiet_epochs: u32,
    pub changed: bool,
    pub by_share_alone: bool,
    pub usual: [u64; TIERS + 1],
    pub recent: [u64; TIERS + 1],
    pub recent_ticks: u64,
    pub usual_ticks: u32,
    pub resident_pages: u64,
}

/// One of the two ranges of a step; see `struct demeter_placement_side`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlacementSide {
    /// First byte.
    pub start: u64,
    /// One past the last byte, 0 when there is no such side.
    pub end: u64,
    /// Resident pages when it was planned.
    pub resident_pages: u64,
    /// Decayed samples when it was last looked at.
    pub rate: u64,
    /// The caller's number of the address space.
    pub space: u32,
    /// 0 for a range.
    pub part: u32,
}

/// A step that was carried out; see `struct demeter_placement`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlacementAccount {
    /// Where pages came from SMEM.
    pub hot: PlacementSide,
    /// Where as many went there.
    pub cold: PlacementSide,
    /// How many were moved.
    pub pages: u64,
    /// Promised for each of them over `lasts_ns`.
    pub gain_ps: u64,
    /// How long the promise runs.
    pub lasts_ns: u64,
    /// Latency that is added where the tiers are of two sockets.
    pub remote_ps: u64,
    /// How long it has run.
    pub age_ns: u64,
    /// Latency that was saved so far, less what was caused.
    pub realised_ns: i64,
    /// What moving the pages cost.
    pub cost_ns: u64,
    /// Of `realised_ns` what is of late.
    pub recent_ns: i64,
    /// Of `age_ns` likewise.
    pub recent_age_ns: u64,
    /// What `realised_ns` was when it last grew by much.
    pub grown_ns: i64,
    /// `age_ns` then.
    pub grown_age_ns: u64,
    /// Since then, without epochs that say nothing.
    pub quiet_ns: u64,
}

/// One address space on trial; see `struct demeter_judge`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Judge {
    pub cost_ns: u64,
    pub gain_ns: i64,
    pub heard_cost_ns: u64,
    pub heard_gain_ns: i64,
    pub since_ns: u64,
    pub until_ns: u64,
    pub stops: u32,
    pub all_stops: u32,
}

/// A position in a group's part of the ranking; the planner's.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupCursor {
    pages: u64,
    worth: u64,
    doubt: u64,
    at: u32,
}

/// One group; see `struct demeter_group`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// FMEM that it is guaranteed.
    pub floor_pages: u64,
    /// Most FMEM that it may have.
    pub cap_pages: u64,
    /// FMEM that it has; the planner goes on counting.
    pub fmem_pages: u64,
    /// Filled in: pages that are worth holding in FMEM.
    pub worth_pages: u64,
    /// Filled in: what of the floor it is due.
    pub due_pages: u64,
    hot: GroupCursor,
    cold: GroupCursor,
    first: u32,
    nr: u32,
    promoted_end: u32,
    demoted_first: u32,
}

impl Group {
    /// A group with limits (`u64::MAX` is no cap), and what it has.
    pub fn new(floor_pages: u64, cap_pages: u64, fmem_pages: u64) -> Self {
        Self {
            floor_pages,
            cap_pages,
            fmem_pages,
            worth_pages: 0,
            due_pages: 0,
            hot: GroupCursor::default(),
            cold: GroupCursor::default(),
            first: 0,
            nr: 0,
            promoted_end: 0,
            demoted_first: 0,
        }
    }
}

#[repr(C)]
pub struct Groups {
    pub group: *mut Group,
    pub nr: u32,
    pub unit_shift: u32,
}

/// One sampled access; see `struct demeter_sample`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Guest virtual address.
    pub gva: u64,
    /// The caller's number of the address space.
    pub space: u32,
    /// Measured latency, 0: not known.
    pub latency_ns: u16,
    /// 0 FMEM, 1 SMEM, 2 not known.
    pub tier: u8,
    /// How many it stands for beside itself.
    pub more: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Slot {
    pub sequence: u64,
    pub sample: Sample,
}

#[repr(C, align(64))]
pub struct Aligned(pub u64);

#[repr(C)]
pub struct Channel {
    pub slot: *mut Slot,
    pub mask: u64,
    pub head: HeadLine,
    pub tail: Aligned,
}

#[repr(C, align(64))]
pub struct HeadLine {
    pub head: u64,
    pub lost: u64,
}

unsafe extern "C" {
    pub fn demeter_ranges_init(
        rs: *mut Ranges,
        memory: *mut Range,
        capacity: u32,
        params: *const RangesParams,
    ) -> c_int;
    pub fn demeter_ranges_set_params(rs: *mut Ranges, params: *const RangesParams) -> c_int;
    pub fn demeter_ranges_set_area(rs: *mut Ranges, area: u32, start: u64, end: u64) -> c_int;
    pub fn demeter_ranges_set_areas(rs: *mut Ranges, area: *const Area, nr: u32) -> c_int;
    pub fn demeter_areas_begin(areas: *mut Areas, granule_bytes: u64, min_gap_bytes: u64) -> c_int;
    pub fn demeter_areas_add(areas: *mut Areas, start: u64, end: u64) -> c_int;
    pub fn demeter_pace_tick(pace: *mut Pace, tick: *const PaceTick) -> bool;
    pub fn demeter_pace_end_epoch(pace: *mut Pace, epoch: *const PaceEpoch);
    pub fn demeter_ranges_sample(rs: *mut Ranges, gva: u64) -> c_int;
    pub fn demeter_ranges_find(rs: *mut Ranges, gva: u64) -> *mut Range;
    pub fn demeter_ranges_end_epoch(rs: *mut Ranges, done: *mut EpochChange);
    pub fn demeter_ranges_digest(rs: *const Ranges, seed: u64) -> u64;

    pub fn demeter_rank_gather(
        rs: *const Ranges,
        space: u32,
        entries: *mut RankEntry,
        nr: u32,
        capacity: u32,
    ) -> u32;
    pub fn demeter_rank(entries: *mut RankEntry, nr: u32);
    pub fn demeter_rank_cut(entries: *const RankEntry, nr: u32, budget: u64) -> u32;
    pub fn demeter_rank_digest(entries: *const RankEntry, nr: u32, seed: u64) -> u64;

    pub fn demeter_plan_make(
        plan: *mut Plan,
        state: *mut PlanState,
        params: *const PlanParams,
        ranked: *const RankEntry,
        nr: u32,
        free_fmem_pages: u64,
        now_ns: u64,
    );
    pub fn demeter_plan_make_grouped(
        plan: *mut Plan,
        state: *mut PlanState,
        params: *const PlanParams,
        ranked: *const RankEntry,
        nr: u32,
        gs: *mut Groups,
        free_fmem_pages: u64,
        now_ns: u64,
    );
    pub fn demeter_plan_digest(plan: *const Plan, seed: u64) -> u64;

    pub fn demeter_placement_init(
        p: *mut PlacementAccount,
        step: *const PlanStep,
        ranked: *const RankEntry,
    );
    pub fn demeter_placement_is_open(p: *const PlacementAccount) -> bool;
    pub fn demeter_placement_realise(
        p: *mut PlacementAccount,
        rs: *const Ranges,
        classes: *const RankEntry,
        space: u32,
        sample_period: u64,
        latency_gap_ps: u64,
    ) -> i64;
    pub fn demeter_placement_age(p: *mut PlacementAccount, epoch_ns: u64);
    pub fn demeter_placement_forget(p: *mut PlacementAccount, epoch_ns: u64);
    pub fn demeter_judge_hear(
        judge: *mut Judge,
        placement: *const PlacementAccount,
        taken_ns: u64,
        epoch_ns: u64,
        horizon_ns: u64,
    );
    pub fn demeter_judge_settle(
        judge: *mut Judge,
        placement: *const PlacementAccount,
        taken_ns: u64,
    );
    pub fn demeter_judge_conclude(
        judge: *mut Judge,
        placement: *const PlacementAccount,
        taken_ns: u64,
    );
    pub fn demeter_judge_may_return(
        judge: *const Judge,
        placement: *const PlacementAccount,
        taken_ns: u64,
        returned_pages: u64,
    ) -> bool;
    pub fn demeter_judge_epoch(
        judge: *mut Judge,
        now_ns: u64,
        epoch_ns: u64,
        horizon_ns: u64,
    ) -> bool;

    pub fn demeter_channel_init(ch: *mut Channel, memory: *mut Slot, slots: u32) -> c_int;
    pub fn demeter_channel_push(ch: *mut Channel, sample: *const Sample) -> bool;
    pub fn demeter_channel_pop(ch: *mut Channel, sample: *mut Sample) -> bool;
    pub fn demeter_channel_lost(ch: *const Channel) -> u64;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    #[test]
    fn layouts_are_those_of_c() {
        const FACTS: usize = 38;
        unsafe extern "C" {
            static demeter_layout: [usize; FACTS];
        }
        let ours: [usize; FACTS] = [
            size_of::<RangesParams>(),
            size_of::<Range>(),
            offset_of!(Range, hits),
            offset_of!(Range, area),
            size_of::<Ranges>(),
            offset_of!(Ranges, splits),
            offset_of!(Ranges, area),
            offset_of!(Ranges, granule_shift),
            size_of::<EpochChange>(),
            size_of::<RankEntry>(),
            offset_of!(RankEntry, space),
            offset_of!(RankEntry, group),
            size_of::<PlanParams>(),
            offset_of!(PlanParams, burst_pages),
            size_of::<PlanState>(),
            size_of::<PlanStep>(),
            size_of::<Plan>(),
            offset_of!(Plan, end),
            size_of::<Group>(),
            offset_of!(Group, demoted_first),
            size_of::<Groups>(),
            size_of::<Sample>(),
            size_of::<Slot>(),
            size_of::<Channel>(),
            offset_of!(Channel, head) + offset_of!(HeadLine, lost),
            offset_of!(Channel, tail),
            size_of::<Areas>(),
            offset_of!(Areas, min_gap_bytes),
            PACE_MAX_SHIFT as usize,
            size_of::<PaceTick>(),
            size_of::<PaceEpoch>(),
            size_of::<Pace>(),
            offset_of!(Pace, changed),
            offset_of!(Pace, resident_pages),
            size_of::<PlacementAccount>(),
            offset_of!(PlacementAccount, quiet_ns),
            size_of::<Judge>(),
            offset_of!(Judge, all_stops),
        ];
        // SAFETY: a constant array of that length in src/layout.c.
        assert_eq!(unsafe { &demeter_layout }, &ours);
    }
}
