// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a thread that reads one page should sleep until it comes or look for it.
//!
//! To sleep and be woken costs a fifth of a fast device's read, more in a virtual machine
//! whose idle CPU goes back to the host. But a thread that keeps looking takes CPU from
//! whoever needs it: threads that have their pages, or the host's side of a virtual disk.
//! While no more threads read than there are CPUs they keep theirs: where somebody else
//! wants it, Linux (6.18) lets a thread that yields wait for much longer than one that
//! sleeps. When more of them read, each yields between two looks, and the next to look, or
//! to go on with its page, is one that waited.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::clock;
use crate::crowd::CrowdTurns;
use crate::turns::Turns;

/// Reads of a turn.
const TURN_READS: u32 = 128;
/// A thread looks no longer for a page than this; slower devices are for sleepers.
const LONGEST_NS: u64 = 500_000;
/// Who could not look for so long had to give the CPU to somebody else.
const ASIDE_NS: u64 = 500_000;
/// If that happens twice within so many reads of each thread, somebody computes here; a host
/// that takes a CPU for a while does so less often.
const OFTEN_READS: u32 = 512;
/// Of threads that are set aside within so long, one: the whole process stood still.
const SAME_NS: u64 = 2_000_000;
/// Reads that sleep then.
const REST_READS: u32 = 1024;

/// Sleeping and looking in turns.
#[derive(Debug)]
pub struct Polling {
    turns: CrowdTurns,
    /// Threads that read single pages just now.
    readers: AtomicU32,
    /// With more readers than this they look in turn.
    cpus: u32,
    /// Reads so far, how many when a thread was set aside last, and when that was.
    reads: AtomicU32,
    reads_at_aside: AtomicU32,
    aside_ns: AtomicU64,
    /// Reads that sleep whatever the turn, because somebody else wants the CPU.
    rest: AtomicU32,
}

impl Polling {
    /// On so many CPUs.
    pub fn new(cpus: u32) -> Self {
        Self {
            turns: CrowdTurns::new(|| Turns::new(TURN_READS, false, 1000)),
            readers: AtomicU32::new(0),
            cpus: cpus.max(1),
            reads: AtomicU32::new(0),
            reads_at_aside: AtomicU32::new(0),
            aside_ns: AtomicU64::new(0),
            rest: AtomicU32::new(0),
        }
    }

    /// A read begins, beside so many others. [`Self::end`] follows.
    pub fn begin(&self) -> u32 {
        self.readers.fetch_add(1, Ordering::Relaxed)
    }

    /// How a read that began beside `others` may look for its page, or None if it should sleep.
    pub fn look(&self, others: u32) -> Option<Look<'_>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let rest = self.rest.load(Ordering::Relaxed);
        if rest > 0 {
            self.rest.store(rest - 1, Ordering::Relaxed);
            return None;
        }
        let turns = self.turns.among(others);
        turns.step(1, clock::now_ns).then(|| {
            let now_ns = clock::now_ns();
            Look {
                polling: self,
                turns,
                end_ns: now_ns + LONGEST_NS,
                last_ns: Cell::new(now_ns),
            }
        })
    }

    /// A thread that looked had to give its CPU away.
    fn set_aside(&self, now_ns: u64) {
        let before_ns = self.aside_ns.swap(now_ns, Ordering::Relaxed);
        if now_ns.saturating_sub(before_ns) < SAME_NS {
            return;
        }
        let reads = self.reads.load(Ordering::Relaxed);
        let before = self.reads_at_aside.swap(reads, Ordering::Relaxed);
        let often = OFTEN_READS.saturating_mul(self.readers().max(1));
        if before_ns > 0 && reads.wrapping_sub(before) < often {
            self.rest.store(REST_READS, Ordering::Relaxed);
        }
    }

    /// How many read just now.
    pub fn readers(&self) -> u32 {
        self.readers.load(Ordering::Relaxed)
    }

    /// The read is over.
    pub fn end(&self) {
        self.readers.fetch_sub(1, Ordering::Relaxed);
    }

    /// In the child of a fork, where nobody reads.
    pub fn forget_readers(&self) {
        self.readers.store(0, Ordering::Relaxed);
    }
}

/// One read that looks for its page.
#[derive(Debug)]
pub struct Look<'a> {
    polling: &'a Polling,
    turns: &'a Turns,
    end_ns: u64,
    last_ns: Cell<u64>,
}

/// What a thread does while its page is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It looks again.
    Look,
    /// It looks again when others have had the CPU.
    Yield,
    /// It sleeps.
    Sleep,
}

impl Look<'_> {
    /// What to do next.
    pub fn next(&self) -> Wait {
        self.next_at(clock::now_ns())
    }

    fn next_at(&self, now_ns: u64) -> Wait {
        if now_ns.saturating_sub(self.last_ns.replace(now_ns)) > ASIDE_NS {
            self.polling.set_aside(now_ns);
            // The time of those is nobody's turn.
            self.turns.interrupt();
        }
        if now_ns >= self.end_ns {
            Wait::Sleep
        } else if self.polling.readers() <= self.polling.cpus {
            Wait::Look
        } else {
            Wait::Yield
        }
    }

    /// The thread did something else meanwhile: nobody took the CPU from it.
    pub fn resume(&self) {
        self.resume_at(clock::now_ns());
    }

    fn resume_at(&self, now_ns: u64) {
        self.last_ns.set(now_ns);
    }

    /// The page is there, or the thread has slept.
    pub fn found(self) {
        // Who yields beside threads that compute waits for milliseconds.
        self.turns.cut_short(clock::now_ns());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A look of a turn in which threads look.
    fn look(polling: &Polling) -> Look<'_> {
        loop {
            if let Some(look) = polling.look(polling.begin()) {
                return look;
            }
            polling.end();
        }
    }

    #[test]
    fn readers_beyond_the_cpus_look_in_turn() {
        let polling = Polling::new(2);
        let looks = [look(&polling), look(&polling)];
        assert_eq!(looks[0].next(), Wait::Look);
        let third = look(&polling);
        assert_eq!(third.next(), Wait::Yield);
        assert_eq!(looks[0].next(), Wait::Yield);
        polling.end();
        assert_eq!(looks[1].next(), Wait::Look);
    }

    #[test]
    fn nobody_looks_for_long() {
        let polling = Polling::new(2);
        let look = look(&polling);
        assert_eq!(look.next_at(look.end_ns), Wait::Sleep);
    }

    #[test]
    fn who_did_something_else_had_the_cpu() {
        let polling = Polling::new(2);
        for time in 1..4 {
            let look = look(&polling);
            let now_ns = look.last_ns.get() + time * 4 * SAME_NS;
            look.resume_at(now_ns);
            look.next_at(now_ns + ASIDE_NS);
            polling.end();
            assert!(!rests(&polling));
        }
    }

    /// At `now_ns` a read has its CPU again, which was taken from it, and is over; so many
    /// others follow.
    fn set_aside(polling: &Polling, now_ns: u64, others: u32) {
        let look = look(polling);
        look.resume_at(now_ns - 2 * ASIDE_NS);
        look.next_at(now_ns);
        polling.end();
        for _ in 0..others {
            polling.look(polling.begin());
            polling.end();
        }
    }

    /// After two times with so many reads from one to the other.
    fn twice(reads: u32, apart_ns: u64) -> Polling {
        let polling = Polling::new(2);
        set_aside(&polling, 10 * SAME_NS, reads);
        set_aside(&polling, 10 * SAME_NS + apart_ns, 0);
        polling
    }

    fn rests(polling: &Polling) -> bool {
        polling.rest.load(Ordering::Relaxed) > 0
    }

    #[test]
    fn who_often_gives_the_cpu_away_lets_all_sleep_for_a_while() {
        let polling = twice(10, SAME_NS);
        for _ in 0..REST_READS {
            assert!(polling.look(polling.begin()).is_none());
            polling.end();
        }
        assert!(!rests(&polling));
        // To find a turn in which threads look takes up to two turns of reads.
        assert!(rests(&twice(OFTEN_READS - 2 * TURN_READS - 1, SAME_NS)));
        // A host takes it now and then.
        assert!(!rests(&twice(OFTEN_READS, SAME_NS)));
        // All of its CPUs at once.
        assert!(!rests(&twice(0, SAME_NS - 1)));
    }
}
