// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a page that is read alone brings its neighbours along.
//!
//! Programs that follow no stream (compressors, sorts, hash tables) may still come back to
//! the pages beside the one they wait for. Nobody sees whether they do: what is mapped
//! raises no fault. So it is tried. A turn ends when the program has computed for so long
//! between faults, however many faults that took, and the way that needs less time for it
//! has most turns.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::turns::Turns;

/// Pages that are brought together at most, an aligned block.
pub const NEIGHBOURS: u32 = 16;
/// What is counted as one step: 256 ns between two faults.
const STEP_SHIFT: u32 = 8;
/// A program that waits for somebody else computes nothing: more does not count.
const MOST_STEPS: u64 = 4096;
/// 4 ms between faults.
const TURN_STEPS: u32 = 16384;

/// The two ways of reading a page.
#[derive(Debug)]
pub struct Neighbours {
    /// Off unless asked for: it reads more than it spares.
    tried: bool,
    turns: Turns,
    ended_ns: AtomicU64,
}

impl Neighbours {
    /// Pages come alone unless `tried`.
    pub fn new(tried: bool) -> Self {
        Self {
            tried,
            // The pages that one way left serve the other for a while.
            turns: Turns::new(TURN_STEPS, true, 950),
            ended_ns: AtomicU64::new(0),
        }
    }

    /// A fault begins; whether it brings the page's neighbours.
    pub fn begins(&self, now_ns: u64) -> bool {
        if !self.tried {
            return false;
        }
        let ended_ns = self.ended_ns.load(Ordering::Relaxed);
        let steps = (now_ns.saturating_sub(ended_ns) >> STEP_SHIFT).min(MOST_STEPS);
        self.turns.step(steps as u32, || now_ns)
    }

    /// A fault is over.
    pub fn ended(&self, now_ns: u64) {
        self.ended_ns.store(now_ns, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Share of faults that bring neighbours, of a program that computes a microsecond
    /// between uses of pages; of what is brought along it uses `used` pages.
    fn share(used: u32) -> f64 {
        const SINGLE_NS: u64 = 60_000;
        const TOGETHER_NS: u64 = 120_000;
        let neighbours = Neighbours::new(true);
        let (mut now_ns, mut with, mut faults) = (1, 0, 0);
        let mut ready = 0;
        for use_of_page in 0..4_000_000u32 {
            now_ns += 1000;
            if ready > 0 {
                ready -= 1;
                continue;
            }
            let brings = neighbours.begins(now_ns);
            now_ns += if brings { TOGETHER_NS } else { SINGLE_NS };
            ready = if brings { used } else { 0 };
            neighbours.ended(now_ns);
            if use_of_page > 2_000_000 {
                with += u32::from(brings);
                faults += 1;
            }
        }
        f64::from(with) / f64::from(faults)
    }

    #[test]
    fn nothing_is_tried_unasked() {
        let neighbours = Neighbours::new(false);
        assert!((1..100_000).all(|time| !neighbours.begins(time * 100_000)));
    }

    #[test]
    fn neighbours_come_along_where_they_are_used() {
        assert!(share(0) < 0.1, "{}", share(0));
        // Fewer faults are left that could bring any.
        assert!(share(8) > 0.5, "{}", share(8));
    }
}
