// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a thread that reads one page should look for it or sleep until it comes.
//!
//! To sleep and be woken costs a fifth of a fast device's read, more in a virtual machine
//! whose idle CPU goes back to the host. But a thread that keeps looking takes CPU from
//! whoever needs it: threads that have their pages, or the host's side of a virtual disk.
//! So only a thread that is the only one to read may look, and it does not yield: where
//! somebody else wants the CPU, Linux (6.18) lets a thread that yields wait for much
//! longer than one that sleeps. Which way is better depends on the machine, the program
//! and the moment; both take turns of [`PERIOD_READS`] reads by all threads together: the
//! way whose turns are over sooner, with all that the program did meanwhile, has most, the
//! other one in [`PROBE_PERIODS`].

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Reads in a row that wait the same way.
const PERIOD_READS: u32 = 128;
/// Of so many periods, one tries the slower way.
const PROBE_PERIODS: u32 = 12;
/// A period counts as so much longer than usual at most: a program that rests is chance.
const MOST_TIMES_USUAL: u64 = 3;
/// One period's weight in what is usual, one in so many.
const WEIGHT: u64 = 8;
/// A thread looks no longer for a page than this; slower devices are for sleepers.
pub const LONGEST_NS: u64 = 200_000;

/// How long periods of both ways took. Races between threads cost a vote, nothing else.
#[derive(Debug, Default)]
pub struct Polling {
    reads: AtomicU32,
    began_ns: AtomicU64,
    /// Whether this period polls.
    polls: AtomicBool,
    /// What a period usually takes, asleep and polling; 0 is not known.
    usual_ns: [AtomicU64; 2],
}

impl Polling {
    /// Whether the read that begins now polls. `now_ns` tells the time, seldom asked.
    pub fn next(&self, now_ns: impl FnOnce() -> u64) -> bool {
        let read = self.reads.fetch_add(1, Ordering::Relaxed);
        if read.is_multiple_of(PERIOD_READS) {
            self.turn(read / PERIOD_READS, now_ns());
        }
        self.polls.load(Ordering::Relaxed)
    }

    /// A period ends and the next begins.
    fn turn(&self, period: u32, now_ns: u64) {
        let began_ns = self.began_ns.swap(now_ns, Ordering::Relaxed);
        if period > 0 {
            let polled = self.polls.load(Ordering::Relaxed);
            let usual = &self.usual_ns[usize::from(polled)];
            let before = usual.load(Ordering::Relaxed);
            let took = now_ns.saturating_sub(began_ns).max(1);
            let now = if before == 0 {
                took
            } else {
                let took = took.min(before.saturating_mul(MOST_TIMES_USUAL));
                before - before / WEIGHT + took / WEIGHT
            };
            usual.store(now.max(1), Ordering::Relaxed);
        }
        let [asleep, polling] = [0, 1].map(|way| self.usual_ns[way].load(Ordering::Relaxed));
        let better = polling < asleep;
        let probes = period.is_multiple_of(PROBE_PERIODS);
        self.polls.store(better != probes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Share of reads that poll once it is known how long a read of each way takes, with
    /// what the program does in between.
    fn polls(way: &Polling, asleep_ns: u64, polling_ns: u64) -> f64 {
        const SETTLING: u32 = 100_000;
        const READS: u32 = 100_000;
        let mut polled = 0;
        let mut now_ns = way.began_ns.load(Ordering::Relaxed);
        for read in 0..SETTLING + READS {
            let polls = way.next(|| now_ns);
            polled += u32::from(polls && read >= SETTLING);
            let late = if read % 1000 == 0 { 40 } else { 1 };
            now_ns += late * if polls { polling_ns } else { asleep_ns };
        }
        f64::from(polled) / f64::from(READS)
    }

    #[test]
    fn the_faster_way_has_most_reads_and_the_other_is_tried() {
        let way = Polling::default();
        for _ in 0..3 {
            let share = polls(&way, 80_000, 70_000);
            assert!((0.8..0.96).contains(&share), "{share}");
            let share = polls(&way, 80_000, 90_000);
            assert!((0.04..0.2).contains(&share), "{share}");
        }
    }

    #[test]
    fn a_clock_that_jumps_does_not_overflow() {
        let way = Polling::default();
        let mut times = [u64::MAX, 0, u64::MAX, 1].into_iter().cycle();
        for _ in 0..100 * PERIOD_READS {
            way.next(|| times.next().unwrap_or(0));
        }
        // Neither stuck at an absurd value nor at none.
        let usual = way.usual_ns[1].load(Ordering::Relaxed);
        assert!((1..u64::MAX).contains(&usual), "{usual}");
    }
}
