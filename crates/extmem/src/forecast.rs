// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a page that is brought for reading will be written.
//!
//! A page loaded writable spares the fault of the first write, but then nobody sees
//! whether that came, and the page has to be written out when it leaves. Two things tell:
//! what became of this page last time, and what becomes of most pages just now (a program
//! that counts, say, reads each word before it writes it).

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::page::{Entry, Flag};

/// Of pages that are believed to be written, one in so many is loaded write-protected all
/// the same, to see what becomes of it.
const PROOF_OF_KNOWN: u32 = 4;
const PROOF_OF_MOST: u32 = 8;
/// Pages watched before they are judged.
const WATCHED: u32 = 256;
/// Of those, so many must be written: half of the pages that were last time, or seven in
/// eight of all others.
const LEAST_KNOWN: u32 = WATCHED / 2;
const LEAST_MOST: u32 = WATCHED / 8 * 7;
const RELAXED: Ordering = Ordering::Relaxed;

/// What became of pages of one kind that were brought for reading.
#[derive(Debug)]
struct Watch {
    brought: AtomicU32,
    written: AtomicU32,
    is_written: AtomicBool,
    least: u32,
}

impl Watch {
    const fn new(is_written: bool, least: u32) -> Self {
        Self {
            brought: AtomicU32::new(0),
            written: AtomicU32::new(0),
            is_written: AtomicBool::new(is_written),
            least,
        }
    }

    fn brought(&self) {
        if self.brought.fetch_add(1, RELAXED) + 1 == WATCHED {
            let written = self.written.swap(0, RELAXED);
            self.is_written.store(written >= self.least, RELAXED);
            self.brought.store(0, RELAXED);
        }
    }
}

/// What became of pages that were brought for reading.
#[derive(Debug)]
pub struct Forecast {
    asked: AtomicU32,
    /// Pages that were written when they were in DRAM last.
    known: Watch,
    /// All others.
    others: Watch,
}

impl Default for Forecast {
    fn default() -> Self {
        Self {
            asked: AtomicU32::new(0),
            known: Watch::new(true, LEAST_KNOWN),
            others: Watch::new(false, LEAST_MOST),
        }
    }
}

impl Forecast {
    fn watch(&self, entry: Entry) -> &Watch {
        if entry.has(Flag::PredictDirty) {
            &self.known
        } else {
            &self.others
        }
    }

    /// Whether pages that were written last time are believed to be so again this time.
    pub fn trusts_known(&self) -> bool {
        self.trusts(&self.known, PROOF_OF_KNOWN)
    }

    fn trusts(&self, watch: &Watch, proof: u32) -> bool {
        watch.is_written.load(RELAXED) && !self.asked.fetch_add(1, RELAXED).is_multiple_of(proof)
    }

    /// Whether the page will be written after it is brought for reading.
    pub fn expects_write(&self, entry: Entry) -> bool {
        if entry.has(Flag::PredictDirty) {
            self.trusts_known()
        } else {
            self.trusts(&self.others, PROOF_OF_MOST)
        }
    }

    /// A page was brought write-protected. It keeps what was known of it until it leaves.
    pub fn brought(&self, entry: Entry) {
        self.watch(entry).brought();
    }

    /// The first write to such a page.
    pub fn written(&self, entry: Entry) {
        self.watch(entry).written.fetch_add(1, RELAXED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::State;

    #[test]
    fn what_becomes_of_most_decides() {
        let forecast = Forecast::default();
        let others = Entry::new(State::Swapped);
        let known = others.with(Flag::PredictDirty, true);
        let expected = |entry: Entry| (0..64).filter(|_| forecast.expects_write(entry)).count();
        let see = |entry: Entry, written| {
            (0..written).for_each(|_| forecast.written(entry));
            (0..WATCHED).for_each(|_| forecast.brought(entry));
        };
        assert_eq!((expected(others), expected(known)), (0, 48));
        see(others, WATCHED / 2);
        assert_eq!((expected(others), expected(known)), (0, 48));
        see(others, WATCHED);
        assert_eq!((expected(others), expected(known)), (56, 48));
        // A program that wrote all its pages, and now reads them.
        see(known, WATCHED / 4);
        assert_eq!((expected(others), expected(known)), (56, 0));
        see(known, WATCHED / 4 * 3);
        see(others, 0);
        assert_eq!((expected(others), expected(known)), (0, 48));
    }
}
