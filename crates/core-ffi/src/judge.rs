// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether moving the pages of an address space pays.

use crate::{Placement, sys};

/// One address space on trial. Times are of one clock that does not run backwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Judge {
    raw: sys::Judge,
}

impl Judge {
    /// Of a step taken at `taken_ns` whose time still runs, at the end of an epoch.
    pub fn hear(&mut self, placement: &Placement, taken_ns: u64, epoch_ns: u64, horizon_ns: u64) {
        // SAFETY: valid for the call.
        unsafe {
            sys::demeter_judge_hear(
                &mut self.raw,
                &placement.raw,
                taken_ns,
                epoch_ns,
                horizon_ns,
            );
        }
    }

    /// Of a step whose time is over.
    pub fn settle(&mut self, placement: &Placement, taken_ns: u64) {
        // SAFETY: valid for the call.
        unsafe { sys::demeter_judge_settle(&mut self.raw, &placement.raw, taken_ns) }
    }

    /// Of a step whose time still runs, but that is followed no more.
    pub fn conclude(&mut self, placement: &Placement, taken_ns: u64) {
        // SAFETY: valid for the call.
        unsafe { sys::demeter_judge_conclude(&mut self.raw, &placement.raw, taken_ns) }
    }

    /// All steps were heard; whether a stop begins.
    pub fn end_epoch(&mut self, now_ns: u64, epoch_ns: u64, horizon_ns: u64) -> bool {
        // SAFETY: valid for the call.
        unsafe { sys::demeter_judge_epoch(&mut self.raw, now_ns, epoch_ns, horizon_ns) }
    }

    /// Whether nothing is to be promoted.
    pub fn is_stopped(&self, now_ns: u64) -> bool {
        now_ns < self.raw.until_ns
    }

    /// Steps taken before are not heard.
    pub fn since_ns(&self) -> u64 {
        self.raw.since_ns
    }

    /// Whether what a step has demoted may come back while moving is stopped, to where so
    /// many pages have come since.
    pub fn may_return(&self, placement: &Placement, taken_ns: u64, returned_pages: u64) -> bool {
        // SAFETY: both are valid for the call.
        unsafe {
            sys::demeter_judge_may_return(&self.raw, &placement.raw, taken_ns, returned_pages)
        }
    }
}
