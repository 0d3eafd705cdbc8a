// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a thread that reads one page should look for it or sleep until it comes.
//!
//! To sleep and be woken costs a fifth of a fast device's read, more in a virtual machine
//! whose idle CPU goes back to the host. But a thread that keeps looking takes CPU from
//! whoever needs it: other threads, or the host's side of a virtual disk, and then reads
//! take longer than with sleep. Which it is depends on the machine and the moment, so
//! both ways are timed: the one whose reads were back sooner has most turns, the other
//! one period in [`PROBE_PERIODS`].

use std::sync::atomic::{AtomicU32, Ordering};

/// Reads in a row that wait the same way.
const PERIOD_READS: u32 = 64;
/// Of so many periods, one tries the slower way.
const PROBE_PERIODS: u32 = 16;
/// A read counts as so much longer than usual at most: being late once is chance.
const MOST_TIMES_USUAL: u32 = 8;
/// One read's weight in what is usual, one in so many.
const WEIGHT: u32 = 64;
/// A thread looks no longer for a page than this; slower devices are for sleepers.
pub const LONGEST_NS: u64 = 500_000;

/// What reads of both ways took. Races between threads cost a vote, nothing else.
#[derive(Debug, Default)]
pub struct Polling {
    turns: AtomicU32,
    /// What is usual, asleep and polling; 0 is not known.
    usual_ns: [AtomicU32; 2],
}

impl Polling {
    /// Whether the next read polls.
    pub fn next(&self) -> bool {
        let period = self.turns.fetch_add(1, Ordering::Relaxed) / PERIOD_READS;
        let [asleep, polling] = [0, 1].map(|way| self.usual_ns[way].load(Ordering::Relaxed));
        let better = polling < asleep;
        better != period.is_multiple_of(PROBE_PERIODS)
    }

    /// A read took so long.
    pub fn took(&self, polled: bool, took_ns: u64) {
        let usual = &self.usual_ns[usize::from(polled)];
        let took_ns = u32::try_from(took_ns).unwrap_or(u32::MAX).max(1);
        let before = usual.load(Ordering::Relaxed);
        let now = if before == 0 {
            took_ns
        } else {
            let took_ns = took_ns.min(before.saturating_mul(MOST_TIMES_USUAL));
            // In 64 bits: neither sum nor difference leaves them.
            let moved = i64::from(took_ns) - i64::from(before);
            (i64::from(before) + moved / i64::from(WEIGHT)).max(1) as u32
        };
        usual.store(now, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Share of reads that poll once each way is known to take so long.
    fn polls(way: &Polling, asleep_ns: u64, polling_ns: u64) -> f64 {
        const SETTLING: u32 = 20_000;
        const READS: u32 = 20_000;
        let mut polled = 0;
        for read in 0..SETTLING + READS {
            let polls = way.next();
            polled += u32::from(polls && read >= SETTLING);
            let late = if read % 50 == 0 { 40 } else { 1 };
            way.took(polls, late * if polls { polling_ns } else { asleep_ns });
        }
        f64::from(polled) / f64::from(READS)
    }

    #[test]
    fn the_faster_way_has_most_reads_and_the_other_is_tried() {
        let way = Polling::default();
        for _ in 0..3 {
            let share = polls(&way, 80_000, 60_000);
            assert!((0.8..0.96).contains(&share), "{share}");
            let share = polls(&way, 80_000, 100_000);
            assert!((0.04..0.2).contains(&share), "{share}");
        }
    }

    #[test]
    fn a_read_that_never_ends_does_not_overflow() {
        let way = Polling::default();
        (0..100).for_each(|_| way.took(true, u64::MAX));
        (0..100).for_each(|_| way.took(true, 0));
        (0..100).for_each(|_| way.took(false, 1));
        // Neither stuck at an absurd value nor at none.
        assert!((1..u32::MAX).contains(&way.usual_ns[1].load(Ordering::Relaxed)));
    }
}
