// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much DRAM the tier should have.
//!
//! What the tier takes, resident pages lack. Its gain are faults that it serves and that
//! resident pages in its place would not have caught: they come after more evictions
//! than it takes pages. Its cost are faults that those resident pages would have caught:
//! those served from swap in full, those served from the tier by what it takes to
//! decompress a page. Both are counted, and the limit follows the larger.
//!
//! A page that is wanted at random now and then comes back after any number of evictions,
//! so that some come late though the tier's DRAM would hold all of them. Such pages thin
//! out evenly: as many of those that are late by one length of the tier are late by two as
//! were late by one at all. What is late beyond that would not have been caught.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Faults that must be counted before the limit moves.
const LEAST_FAULTS: u32 = 64;
/// The limit does not fall below one byte of the most in so many: nothing could be learnt.
const LEAST_SHARE: usize = 64;
/// A page is back from the tier so many times sooner than from swap.
const TIMES_SOONER: u32 = 8;
/// Evidence that is so many times that of the contrary moves the limit by half, else by an
/// eighth.
const CLEARLY: u32 = 4;
/// A tier that does not even earn its least rests for so many periods, and holds nothing;
/// each time that it is tried in vain twice as many.
const REST_PERIODS: (u32, u32) = (16, 256);

/// The limit and the evidence.
#[derive(Debug)]
pub struct Worth {
    /// Faults that the tier serves, by how late: after fewer evictions than it takes pages,
    /// before twice as many, and later.
    served: [AtomicU32; 3],
    /// Faults from swap that resident pages in the tier's place would have caught.
    costs: AtomicU32,
    limit_bytes: AtomicUsize,
    most_bytes: usize,
    may_rest: bool,
    /// Periods that it still rests, and those of the rest to come.
    rest: AtomicU32,
    next_rest: AtomicU32,
}

impl Worth {
    /// Worth all of `most_bytes`, until there is evidence. `may_rest`: it may be worth nothing.
    pub fn new(most_bytes: usize, may_rest: bool) -> Self {
        Self {
            served: [const { AtomicU32::new(0) }; 3],
            costs: AtomicU32::new(0),
            limit_bytes: AtomicUsize::new(most_bytes),
            most_bytes,
            may_rest,
            rest: AtomicU32::new(0),
            next_rest: AtomicU32::new(REST_PERIODS.0),
        }
    }

    /// A fault that came `distance_pages` evictions after its page had left, while the
    /// tier took `taken_pages` of DRAM.
    pub fn fault(&self, from_tier: bool, distance_pages: u32, taken_pages: u32) {
        let lengths = if distance_pages < taken_pages {
            0
        } else if distance_pages / 2 < taken_pages {
            1
        } else {
            2
        };
        let count = match (from_tier, lengths) {
            (true, _) => &self.served[lengths],
            (false, 0) => &self.costs,
            (false, _) => return,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// The highest limit.
    pub fn most_bytes(&self) -> usize {
        self.most_bytes
    }

    /// A period ends, in which the tier took so much; the new limit. For one thread.
    pub fn settle(&self, taken_bytes: usize) -> usize {
        let least = self.most_bytes / LEAST_SHARE;
        let rest = self.rest.load(Ordering::Relaxed);
        if rest > 0 {
            self.rest.store(rest - 1, Ordering::Relaxed);
            if rest > 1 {
                return 0;
            }
            self.forget();
            self.limit_bytes.store(least, Ordering::Relaxed);
            return least;
        }
        let limit = self.limit_bytes.load(Ordering::Relaxed);
        let served = (self.served.each_ref()).map(|count| count.load(Ordering::Relaxed));
        let (gains, detours) = gains_and_detours(served);
        let costs = self.costs.load(Ordering::Relaxed);
        let costs = costs.saturating_add(detours / TIMES_SOONER);
        if gains.saturating_add(costs) < LEAST_FAULTS {
            return limit;
        }
        self.forget();
        // What a page from the tier spares is a read from swap, less the detour.
        let gains = gains - gains / TIMES_SOONER;
        let step = |bytes: usize, less: u32, more: u32| {
            bytes
                / if less.saturating_mul(CLEARLY) < more {
                    2
                } else {
                    8
                }
        };
        let next = if costs <= gains {
            self.next_rest.store(REST_PERIODS.0, Ordering::Relaxed);
            (limit + step(limit, costs, gains)).min(self.most_bytes)
        } else if limit > least || !self.may_rest {
            // A limit that is not reached bounds nothing.
            let bytes = limit.min(taken_bytes);
            (bytes - step(bytes, gains, costs)).max(least)
        } else {
            let rest = self.next_rest.load(Ordering::Relaxed);
            self.rest.store(rest, Ordering::Relaxed);
            let next_rest = (2 * rest).min(REST_PERIODS.1);
            self.next_rest.store(next_rest, Ordering::Relaxed);
            0
        };
        self.limit_bytes.store(next, Ordering::Relaxed);
        next
    }

    fn forget(&self) {
        for count in self.served.iter().chain([&self.costs]) {
            count.store(0, Ordering::Relaxed);
        }
    }
}

/// Of faults that the tier serves, by how late: those that resident pages in its place would
/// not have caught, and the others.
///
/// Pages are taken for a share `far` that comes back later than two lengths of the tier, and
/// others that are wanted at random: `stays` of those are out for longer than one length, and
/// the square of that for longer than two.
fn gains_and_detours(served: [u32; 3]) -> (u32, u32) {
    let [near, late, later] = served.map(f64::from);
    let all = near + late + later;
    if near == 0.0 {
        return (all as u32, 0);
    }
    let (late, later) = ((late + later) / all, later / all);
    let far = ((later - late * late) / (1.0 - 2.0 * late + later)).clamp(0.0, late);
    let stays = (late - far) / (1.0 - far);
    // Their mean time out, in lengths of the tier, is -1 / ln(stays), and a page's worth of
    // DRAM holds one of them: of a time of one length and less all would be held.
    let missed = (1.0 + stays.ln()).max(0.0);
    let gains = (all * (far + (1.0 - far) * missed)) as u32;
    (gains, (all as u32).saturating_sub(gains))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 16_000;

    /// A period with so many faults of pages that come back from the tier near and far, and
    /// from swap near and far; the limit after it.
    fn period(worth: &Worth, tier: (u32, u32), swap: (u32, u32), taken_bytes: usize) -> usize {
        for (from_tier, (near, far)) in [(true, tier), (false, swap)] {
            (0..near).for_each(|_| worth.fault(from_tier, 50, 100));
            (0..far).for_each(|_| worth.fault(from_tier, 5000, 100));
        }
        worth.settle(taken_bytes)
    }

    #[test]
    fn the_limit_follows_what_the_tier_earns() {
        let worth = Worth::new(MOST, false);
        // Pages that come back late from the tier, or from swap, speak not against it.
        assert_eq!(period(&worth, (0, 100), (0, 0), MOST), MOST);
        assert_eq!(period(&worth, (0, 0), (0, 100), MOST), MOST);
        // Pages that went to swap for want of DRAM do, a little and clearly.
        assert_eq!(period(&worth, (0, 100), (100, 0), MOST), 14_000);
        assert_eq!(period(&worth, (0, 10), (100, 0), MOST), 7_000);
        (0..10).for_each(|_| {
            period(&worth, (0, 0), (100, 0), MOST);
        });
        assert_eq!(worth.settle(MOST), 250);
        assert_eq!(period(&worth, (0, 100), (0, 0), MOST), 375);
        assert_eq!(period(&worth, (0, 100), (50, 0), MOST), 421);
        (0..20).for_each(|_| {
            period(&worth, (0, 100), (0, 0), MOST);
        });
        assert_eq!(worth.settle(MOST), MOST);
    }

    #[test]
    fn pages_that_are_wanted_at_random_and_would_all_be_held_are_no_gain() {
        let share = |served| {
            let (gains, detours) = gains_and_detours(served);
            f64::from(gains) / f64::from(gains + detours)
        };
        // By time out, in lengths of the tier: exp(-1 / t) stay out for one length.
        assert_eq!(share([7500, 1875, 625]), 0.0);
        assert!((share([3935, 2387, 3679]) - 0.5).abs() < 0.01);
        assert!((share([952, 861, 8187]) - 0.9).abs() < 0.01);
        // Beside them some that come far too late for it.
        assert!((share([7500, 1875, 10_625]) - 0.5).abs() < 0.01);
        // No such page, and nothing but such pages.
        assert_eq!(share([0, 100, 0]), 1.0);
        assert_eq!(share([100, 0, 0]), 0.0);
        let worth = Worth::new(MOST, false);
        for distance_pages in [(50, 7500), (150, 1875), (250, 625)] {
            (0..distance_pages.1).for_each(|_| worth.fault(true, distance_pages.0, 100));
        }
        assert_eq!(worth.settle(MOST), MOST / 2);
    }

    #[test]
    fn a_limit_that_is_not_reached_falls_below_what_is_taken_at_once() {
        let worth = Worth::new(MOST, false);
        assert_eq!(period(&worth, (0, 0), (100, 0), 1000), 500);
        let worth = Worth::new(MOST, false);
        assert_eq!(period(&worth, (0, 0), (100, 0), 0), 250);
    }

    #[test]
    fn a_tier_that_earns_nothing_rests_and_is_tried_again() {
        let worth = Worth::new(MOST, true);
        assert_eq!(period(&worth, (0, 0), (100, 0), 100), 250);
        let rest_periods = |expected: u32| {
            assert_eq!(period(&worth, (0, 0), (100, 0), 250), 0);
            (1..expected).for_each(|_| assert_eq!(worth.settle(0), 0));
            assert_eq!(worth.settle(0), 250);
        };
        [16, 32, 64, 128, 256, 256]
            .into_iter()
            .for_each(rest_periods);
        // It earns something now: the next rest is a short one.
        assert_eq!(period(&worth, (0, 100), (0, 0), 250), 375);
        assert_eq!(period(&worth, (0, 0), (100, 0), 250), 250);
        rest_periods(16);
        // Unless nothing but the tier is wanted.
        let worth = Worth::new(MOST, false);
        (0..100).for_each(|_| assert!(period(&worth, (0, 0), (100, 0), 100) >= 250));
    }

    #[test]
    fn pages_that_come_straight_back_from_the_tier_speak_against_it() {
        let worth = Worth::new(MOST, false);
        assert_eq!(period(&worth, (2000, 300), (0, 0), MOST), MOST);
        assert_eq!(period(&worth, (2000, 100), (0, 0), MOST), 14_000);
        assert_eq!(period(&worth, (2000, 100), (0, 0), MOST), 12_250);
        // A detour is cheap: few of them say nothing.
        assert_eq!(period(&worth, (LEAST_FAULTS, 0), (0, 0), MOST), 12_250);
    }
}
