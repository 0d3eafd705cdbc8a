// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a thread that reads one page should sleep until it comes or look for it.
//!
//! To sleep and be woken costs a fifth of a fast device's read, more in a virtual machine
//! whose idle CPU goes back to the host. But a thread that keeps looking takes CPU from
//! whoever needs it: threads that have their pages, or the host's side of a virtual disk.
//! So threads look only while no more of them read than there are CPUs, and they do not
//! yield: where somebody else wants the CPU, Linux (6.18) lets a thread that yields wait
//! for much longer than one that sleeps.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::clock;
use crate::turns::Turns;

/// Reads of a turn.
const TURN_READS: u32 = 128;
/// A thread looks no longer for a page than this; slower devices are for sleepers.
const LONGEST_NS: u64 = 200_000;
/// Who could not look for so long had to give the CPU to somebody else.
const ASIDE_NS: u64 = 500_000;
/// Reads that sleep after that.
const REST_READS: u32 = 1024;

/// Sleeping and looking in turns.
#[derive(Debug)]
pub struct Polling {
    turns: Turns,
    /// Threads that read single pages just now.
    readers: AtomicU32,
    /// With more readers than this all sleep.
    most_readers: u32,
    /// Reads that sleep whatever the turn, because somebody else wants the CPU.
    rest: AtomicU32,
}

impl Polling {
    /// On so many CPUs.
    pub fn new(cpus: u32) -> Self {
        Self {
            turns: Turns::new(TURN_READS, false, 1000),
            readers: AtomicU32::new(0),
            most_readers: cpus.max(1),
            rest: AtomicU32::new(0),
        }
    }

    /// A read begins: how it may look for its page, or None if it should sleep.
    /// [`Self::end`] follows.
    pub fn begin(&self) -> Option<Look<'_>> {
        let readers = self.readers.fetch_add(1, Ordering::Relaxed) + 1;
        let rest = self.rest.load(Ordering::Relaxed);
        if rest > 0 {
            self.rest.store(rest - 1, Ordering::Relaxed);
            return None;
        }
        let polls = self.turns.step(1, clock::now_ns);
        (polls && readers <= self.most_readers).then(|| {
            let now_ns = clock::now_ns();
            Look {
                polling: self,
                end_ns: now_ns + LONGEST_NS,
                last_ns: Cell::new(now_ns),
            }
        })
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
    end_ns: u64,
    last_ns: Cell<u64>,
}

impl Look<'_> {
    /// Whether to look again, rather than sleep.
    pub fn goes_on(&self) -> bool {
        let now_ns = clock::now_ns();
        if now_ns.saturating_sub(self.last_ns.replace(now_ns)) > ASIDE_NS {
            self.polling.rest.store(REST_READS, Ordering::Relaxed);
        }
        let polling = self.polling;
        polling.readers.load(Ordering::Relaxed) <= polling.most_readers && now_ns < self.end_ns
    }
}
