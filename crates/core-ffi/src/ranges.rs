// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How hot each part of one address space is.

use crate::sys::{self, Area, EpochChange, Range, RangesParams};
use crate::{Error, MAX_AREAS, room};
use std::mem::MaybeUninit;

/// The classification of one address space.
pub struct Ranges {
    raw: sys::Ranges,
    /// What `raw.range` points to; only its first `raw.nr` are initialised.
    _memory: Vec<MaybeUninit<Range>>,
}

// SAFETY: the pointer in `raw` is to memory that this value owns.
unsafe impl Send for Ranges {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for Ranges {}

/// Counts since the classifier was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Epochs ended, modulo 2^32.
    pub epoch: u32,
    /// Ranges split.
    pub splits: u64,
    /// Pairs merged.
    pub merges: u64,
    /// Samples that fell into a range.
    pub samples: u64,
    /// Samples outside every range.
    pub strays: u64,
    /// Splits not made for want of room.
    pub denied_splits: u64,
}

impl Ranges {
    /// A classifier of at most `capacity` ranges and no area yet.
    pub fn new(capacity: u32, params: &RangesParams) -> Result<Self, Error> {
        let mut memory = room::<Range>(capacity as usize)?;
        let mut raw = MaybeUninit::<sys::Ranges>::zeroed();
        // SAFETY: `memory` holds `capacity` ranges, and lives as long as `raw`;
        // its heap block does not move with the Vec.
        let code = unsafe {
            sys::demeter_ranges_init(
                raw.as_mut_ptr(),
                memory.as_mut_ptr().cast(),
                capacity,
                params,
            )
        };
        Error::from_c(code)?;
        Ok(Self {
            // SAFETY: initialised by C, and all zeros is valid anyway.
            raw: unsafe { raw.assume_init() },
            _memory: memory,
        })
    }

    pub(crate) fn as_raw(&self) -> &sys::Ranges {
        &self.raw
    }

    /// Changes the parameters; nothing changes on error.
    pub fn set_params(&mut self, params: &RangesParams) -> Result<(), Error> {
        // SAFETY: both are valid for the call.
        Error::from_c(unsafe { sys::demeter_ranges_set_params(&mut self.raw, params) })
    }

    /// Sets, moves, grows, shrinks or (with `start == end`) removes an area.
    pub fn set_area(&mut self, area: u32, start: u64, end: u64) -> Result<(), Error> {
        // SAFETY: valid for the call; every value is allowed.
        Error::from_c(unsafe { sys::demeter_ranges_set_area(&mut self.raw, area, start, end) })
    }

    /// Sets all areas: what they still hold of the ranges stays.
    pub fn set_areas(&mut self, areas: &[Area]) -> Result<(), Error> {
        let count = u32::try_from(areas.len()).map_err(|_| Error::Invalid)?;
        // SAFETY: `count` areas are there.
        Error::from_c(unsafe {
            sys::demeter_ranges_set_areas(&mut self.raw, areas.as_ptr(), count)
        })
    }

    /// Counts one sampled access; false when it is outside every range.
    pub fn sample(&mut self, gva: u64) -> bool {
        // SAFETY: valid for the call.
        unsafe { sys::demeter_ranges_sample(&mut self.raw, gva) == 0 }
    }

    /// The range that holds an address.
    pub fn find(&self, gva: u64) -> Option<&Range> {
        let raw: *const sys::Ranges = &self.raw;
        // SAFETY: C only reads here, and returns NULL or one of the ranges,
        // which stay as they are while `self` is borrowed.
        unsafe { sys::demeter_ranges_find(raw.cast_mut(), gva).as_ref() }
    }

    /// The running epoch has `1 << thin` times fewer samples of a program that goes on as it
    /// did than the one before: see [`Pace::thin`](crate::Pace::thin).
    pub fn set_thin(&mut self, thin: u32) {
        self.raw.thin = thin.min(sys::PACE_MAX_SHIFT);
    }

    /// Decays, merges, splits.
    pub fn end_epoch(&mut self) -> EpochChange {
        let mut change = EpochChange::default();
        // SAFETY: both are valid for the call.
        unsafe { sys::demeter_ranges_end_epoch(&mut self.raw, &mut change) };
        change
    }

    /// All ranges, by address.
    pub fn as_slice(&self) -> &[Range] {
        // SAFETY: C keeps the first `nr` initialised, and no borrow outlives
        // `self`.
        unsafe { std::slice::from_raw_parts(self.raw.range, self.raw.nr as usize) }
    }

    /// Bounds of the areas.
    pub fn areas(&self) -> &[Area; MAX_AREAS] {
        &self.raw.area
    }

    /// Counts so far.
    pub fn counters(&self) -> Counters {
        Counters {
            epoch: self.raw.epoch,
            splits: self.raw.splits,
            merges: self.raw.merges,
            samples: self.raw.samples,
            strays: self.raw.strays,
            denied_splits: self.raw.denied_splits,
        }
    }

    /// One number for all that was decided; `seed` continues an earlier one.
    pub fn digest(&self, seed: u64) -> u64 {
        // SAFETY: valid for the call.
        unsafe { sys::demeter_ranges_digest(&self.raw, seed) }
    }

    pub(crate) fn raw(&self) -> &sys::Ranges {
        &self.raw
    }
}
