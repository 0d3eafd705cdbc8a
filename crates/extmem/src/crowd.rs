// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which of two ways is faster, by how many threads are at it.
//!
//! A program's phases differ in how many of its threads wait for pages at a time, and the
//! way that is best for one thread is seldom best for four. To find that out anew takes
//! seconds, so what was found is kept for each number of threads, and is the first guess for
//! another one.

use std::array;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::turns::Turns;

/// Numbers of other threads that are told apart: none, one, more.
const CROWDS: usize = 3;
/// One other thread.
const UNIT: u32 = 1 << 10;
/// Weight of one step in the mean, one in so many.
const WEIGHT: u32 = 64;
/// The mean must be so far beyond the middle between two numbers.
const MARGIN: u32 = UNIT / 8;
const RELAXED: Ordering = Ordering::Relaxed;

/// [`Turns`] for each number of threads. Races cost a vote, nothing else.
#[derive(Debug)]
pub struct CrowdTurns {
    turns: [Turns; CROWDS],
    /// Other threads, in the mean over the last steps.
    mean: AtomicU32,
    crowd: AtomicU32,
}

impl CrowdTurns {
    /// `turns` are made alike for all.
    pub fn new(turns: impl Fn() -> Turns) -> Self {
        Self {
            turns: array::from_fn(|_| turns()),
            mean: AtomicU32::new(0),
            crowd: AtomicU32::new(0),
        }
    }

    /// The turns for as many threads as there are now.
    pub fn now(&self) -> &Turns {
        &self.turns[self.crowd.load(RELAXED) as usize % CROWDS]
    }

    /// A thread is about to do a step while `others` do one, too.
    pub fn among(&self, others: u32) -> &Turns {
        let others = others.min(CROWDS as u32 - 1) * UNIT;
        let before = self.mean.load(RELAXED);
        let mean = before - before / WEIGHT + others / WEIGHT;
        self.mean.store(mean, RELAXED);
        let crowd = self.crowd.load(RELAXED);
        let middle = crowd * UNIT;
        if mean.abs_diff(middle) > UNIT / 2 + MARGIN {
            let next = (mean + UNIT / 2) / UNIT;
            let turns = self.now();
            turns.interrupt();
            self.crowd.store(next, RELAXED);
            self.now().guess(turns);
        }
        self.now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For one thread the second way is faster, for several the first.
    #[test]
    fn what_was_found_for_as_many_threads_is_kept() {
        const STEPS: u32 = 128;
        let crowd = CrowdTurns::new(|| Turns::new(STEPS, true, 1000));
        let mut now_ns = 1;
        let mut share = |others: u32, steps: u32| {
            let mut seconds = 0;
            for _ in 0..steps {
                let second = crowd.among(others).step(1, || now_ns);
                seconds += u32::from(second);
                now_ns += if second == (others == 0) {
                    10_000
                } else {
                    20_000
                };
            }
            f64::from(seconds) / f64::from(steps)
        };
        share(0, 1000 * STEPS);
        share(3, 1000 * STEPS);
        for _ in 0..3 {
            // The mean takes a moment.
            share(0, 2 * STEPS);
            let alone = share(0, 10 * STEPS);
            share(3, 2 * STEPS);
            let together = share(3, 10 * STEPS);
            assert!(alone > 0.8 && together < 0.2, "{alone} {together}");
        }
    }

    #[test]
    fn a_thread_that_comes_by_changes_nothing() {
        let crowd = CrowdTurns::new(|| Turns::new(8, false, 1000));
        let first = std::ptr::from_ref(crowd.now());
        let meets = |others: u32| {
            for _ in 0..1000 {
                crowd.among(others);
            }
        };
        for step in 0..10_000 {
            crowd.among(u32::from(step % 2 == 0));
        }
        assert!(std::ptr::eq(first, crowd.now()));
        meets(1);
        assert!(!std::ptr::eq(first, crowd.now()));
        meets(9);
        meets(0);
        assert!(std::ptr::eq(first, crowd.now()));
    }
}
