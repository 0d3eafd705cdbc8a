// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a step was said to save, and what it then saved.

use crate::sys::{self, PlacementAccount, PlanStep};
use crate::{Promise, Ranges, Ranking, Step};

/// The account of a step that was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    pub(crate) raw: PlacementAccount,
}

impl Placement {
    /// Opens the account of a step of a plan over `ranking`, of which nothing was moved yet;
    /// `None` when the step is of other entries.
    pub fn new(step: &Step, promise: &Promise, ranking: &Ranking) -> Option<Self> {
        let (kind, hot, cold, pages) = match *step {
            Step::Fill { hot, pages } => (0, hot, hot, pages),
            Step::Swap { hot, cold, pages } => (1, hot, cold, pages),
            Step::Demote { cold, pages } => (2, cold, cold, pages),
        };
        if hot.max(cold) as usize >= ranking.entries.len() {
            return None;
        }
        let step = PlanStep {
            kind,
            hot,
            cold,
            pages,
            gain_ps: promise.gain_ps,
            lasts_ns: promise.lasts_ns,
            remote_ps: promise.remote_ps,
            imposed: promise.imposed,
        };
        let mut raw = PlacementAccount::default();
        // SAFETY: all are valid for the call, and both indices are within the entries.
        unsafe { sys::demeter_placement_init(&mut raw, &step, ranking.entries.as_ptr()) };
        Some(Self { raw })
    }

    /// So many pages were moved, at so much.
    pub fn moved(&mut self, pages: u64, cost_ns: u64) {
        self.raw.pages = self.raw.pages.saturating_add(pages);
        self.raw.cost_ns = self.raw.cost_ns.saturating_add(cost_ns);
    }

    /// Whether later epochs count for it.
    pub fn is_open(&self) -> bool {
        // SAFETY: valid for the call.
        unsafe { sys::demeter_placement_is_open(&self.raw) }
    }

    /// Address spaces that pages were promoted and demoted in.
    pub fn spaces(&self) -> [u32; 2] {
        [self.raw.hot.space, self.raw.cold.space]
    }

    /// Bytes that were demoted from; empty for a fill.
    pub fn demoted_span(&self) -> std::ops::Range<u64> {
        self.raw.cold.start..self.raw.cold.end
    }

    /// Bytes that were promoted from; empty for a demotion.
    pub fn promoted_span(&self) -> std::ops::Range<u64> {
        self.raw.hot.start..self.raw.hot.end
    }

    /// Pages that were moved.
    pub fn pages(&self) -> u64 {
        self.raw.pages
    }

    /// Adds what an epoch of one address space says; by how much the gain has changed.
    pub fn realise(
        &mut self,
        ranges: &Ranges,
        space: u32,
        sample_period: u64,
        latency_gap_ps: u64,
    ) -> i64 {
        // SAFETY: all are valid for the call; nothing is divided, so there are no classes.
        unsafe {
            sys::demeter_placement_realise(
                &mut self.raw,
                ranges.as_raw(),
                std::ptr::null(),
                space,
                sample_period,
                latency_gap_ps,
            )
        }
    }

    /// An epoch has passed; one without any samples says nothing of what is recent.
    pub fn age(&mut self, epoch_ns: u64, had_samples: bool) {
        // SAFETY: valid for the calls.
        unsafe {
            sys::demeter_placement_age(&mut self.raw, epoch_ns);
            if had_samples {
                sys::demeter_placement_forget(&mut self.raw, epoch_ns);
            }
        }
    }
}
