// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What it costs an address space that nothing is moved for it.

use crate::{Judge, Ranges, Ranking, sys};

/// Of one address space while it is stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forgone {
    raw: sys::Forgone,
}

impl Forgone {
    /// Chooses a step of `space`, if none is followed: the hottest range in SMEM for the
    /// coldest in FMEM, by a ranking in which nothing is hidden yet.
    pub fn follow(&mut self, space: u32, ranking: &Ranking, page_cost_ns: u64, horizon_ns: u64) {
        if self.raw.step.pages > 0 {
            return;
        }
        let entries = &ranking.entries;
        let nr = u32::try_from(entries.len()).unwrap_or(u32::MAX);
        // SAFETY: all are valid for the call, and there are at least `nr` entries.
        unsafe {
            sys::demeter_forgone_begin(
                &mut self.raw,
                space,
                entries.as_ptr(),
                nr,
                page_cost_ns,
                horizon_ns,
            );
        }
    }

    /// An epoch of the address space that `judge` has stopped is over; whether moving would
    /// have paid.
    pub fn end_epoch(
        &mut self,
        judge: &Judge,
        ranges: &Ranges,
        samples: u64,
        sample_period: u64,
        latency_gap_ps: u64,
        epoch_ns: u64,
    ) -> bool {
        // SAFETY: both are valid for the call.
        unsafe {
            sys::demeter_forgone_epoch(
                &mut self.raw,
                ranges.as_raw(),
                judge.raw.stops,
                samples,
                sample_period,
                latency_gap_ps,
                epoch_ns,
            )
        }
    }
}
