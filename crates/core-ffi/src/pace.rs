// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How densely to sample and how often to decide.

use crate::sys::{self, PaceEpoch, PaceTick};

/// The pace; at its fullest to begin with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    raw: sys::Pace,
}

impl Pace {
    /// A pace of at most `1 << most` ticks an epoch.
    pub fn new(most: u32) -> Self {
        Self {
            raw: sys::Pace {
                most: most.min(sys::PACE_MAX_SHIFT),
                ..sys::Pace::default()
            },
        }
    }

    /// Log2 of the ticks of an epoch.
    pub fn shift(&self) -> u32 {
        self.raw.shift
    }

    /// Log2 of how much sparser samples are.
    pub fn sparse(&self) -> u32 {
        self.raw.sparse
    }

    /// Log2 of how many times fewer samples the next epoch holds than the last one did.
    pub fn thin(&self) -> u32 {
        self.raw.thin
    }

    /// Ticks of the epoch so far.
    pub fn ticks(&self) -> u32 {
        self.raw.ticks
    }

    /// A tick is over; whether the epoch ends with it.
    pub fn tick(&mut self, tick: &PaceTick) -> bool {
        // SAFETY: both are valid for the call.
        unsafe { sys::demeter_pace_tick(&mut self.raw, tick) }
    }

    /// An epoch is over.
    pub fn end_epoch(&mut self, epoch: &PaceEpoch) {
        // SAFETY: both are valid for the call.
        unsafe { sys::demeter_pace_end_epoch(&mut self.raw, epoch) }
    }

    /// Accesses between two samples where there are `period` at full pace.
    pub fn period(&self, period: u64) -> u64 {
        match self.raw.sparse {
            0 => period,
            shift => period << shift | 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quiet_epochs_grow_longer_and_a_change_ends_them() {
        let mut pace = Pace::new(u32::MAX);
        let tick = |fast, slow| PaceTick {
            samples: [fast, slow],
            untold: 0,
            resident_pages: 1000,
        };
        let mut ticks = 0;
        while pace.shift() < sys::PACE_MAX_SHIFT {
            ticks += 1;
            assert!(ticks < 1000, "never quiet");
            let each = 128 >> pace.shift();
            if pace.tick(&tick(each, each)) {
                pace.end_epoch(&PaceEpoch::default());
            }
        }
        assert_eq!(pace.period(1000), 8001);
        assert!(pace.tick(&tick(16, 1000)), "a change ends the epoch");
        pace.end_epoch(&PaceEpoch::default());
        assert_eq!((pace.shift(), pace.period(1000)), (0, 1000));
    }
}
