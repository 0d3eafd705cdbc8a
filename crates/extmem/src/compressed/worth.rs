// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much DRAM the tier should have.
//!
//! What the tier takes, resident pages lack. Its gain are faults that it serves and that
//! resident pages in its place would not have caught: they come after more evictions
//! than it takes pages. Its cost are faults that those resident pages would have caught:
//! those served from swap in full, those served from the tier by what it takes to
//! decompress a page. Both are counted, and the limit follows the larger.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Faults that must be counted before the limit moves.
const LEAST_FAULTS: u32 = 64;
/// The limit does not fall below one byte of the most in so many: nothing could be learnt.
const LEAST_SHARE: usize = 64;
/// A page is back from the tier so many times sooner than from swap.
const TIMES_SOONER: u32 = 8;

/// The limit and the evidence.
#[derive(Debug)]
pub struct Worth {
    gains: AtomicU32,
    costs: AtomicU32,
    /// Faults that the tier serves and that would not be without it.
    detours: AtomicU32,
    limit_bytes: AtomicUsize,
    most_bytes: usize,
}

impl Worth {
    /// Worth all of `most_bytes`, until there is evidence.
    pub fn new(most_bytes: usize) -> Self {
        Self {
            gains: AtomicU32::new(0),
            costs: AtomicU32::new(0),
            detours: AtomicU32::new(0),
            limit_bytes: AtomicUsize::new(most_bytes),
            most_bytes,
        }
    }

    /// A fault that came `distance_pages` evictions after its page had left, while the
    /// tier took `taken_pages` of DRAM.
    pub fn fault(&self, from_tier: bool, distance_pages: u32, taken_pages: u32) {
        let is_near = distance_pages < taken_pages;
        let count = match (from_tier, is_near) {
            (true, false) => &self.gains,
            (true, true) => &self.detours,
            (false, true) => &self.costs,
            (false, false) => return,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// A period ends; the new limit.
    pub fn settle(&self) -> usize {
        let limit = self.limit_bytes.load(Ordering::Relaxed);
        let counts = [&self.gains, &self.costs, &self.detours];
        let [gains, costs, detours] = counts.map(|count| count.load(Ordering::Relaxed));
        let costs = costs.saturating_add(detours / TIMES_SOONER);
        if gains.saturating_add(costs) < LEAST_FAULTS {
            return limit;
        }
        for count in counts {
            count.store(0, Ordering::Relaxed);
        }
        // What a page from the tier spares is a read from swap, less the detour.
        let gains = gains - gains / TIMES_SOONER;
        let next = if costs > gains {
            (limit - limit / 8).max(self.most_bytes / LEAST_SHARE)
        } else {
            (limit + limit / 8).min(self.most_bytes)
        };
        self.limit_bytes.store(next, Ordering::Relaxed);
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_follows_what_the_tier_earns() {
        let worth = Worth::new(16_000);
        let period = |from_tier, distance_pages| {
            (0..LEAST_FAULTS).for_each(|_| worth.fault(from_tier, distance_pages, 100));
            worth.settle()
        };
        // Pages that come back late from the tier, or from swap, speak not against it.
        assert_eq!(period(true, 5000), 16_000);
        assert_eq!(period(false, 5000), 16_000);
        // Pages that went to swap for want of DRAM do.
        assert_eq!(period(false, 50), 14_000);
        (0..100).for_each(|_| {
            period(false, 50);
        });
        assert_eq!(worth.settle(), 250);
        (0..100).for_each(|_| {
            period(true, 5000);
        });
        assert_eq!(worth.settle(), 16_000);
    }

    #[test]
    fn pages_that_come_straight_back_from_the_tier_speak_against_it() {
        let worth = Worth::new(16_000);
        let period = |near: u32, far: u32| {
            (0..near).for_each(|_| worth.fault(true, 50, 100));
            (0..far).for_each(|_| worth.fault(true, 5000, 100));
            worth.settle()
        };
        assert_eq!(period(2000, 300), 16_000);
        assert_eq!(period(2000, 100), 14_000);
        assert_eq!(period(2000, 100), 12_250);
        // A detour is cheap: few of them say nothing.
        assert_eq!(period(LEAST_FAULTS, 0), 12_250);
    }
}
