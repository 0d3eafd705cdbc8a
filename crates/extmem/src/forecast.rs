// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a page that is brought for reading will be written.
//!
//! A page loaded writable spares the fault of the first write, but then nobody sees
//! whether that came, and the page has to be written out when it leaves. Two things tell:
//! what became of this page last time, and what becomes of most pages just now (a program
//! that counts, say, reads each word before it writes it).

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::page::{Entry, Flag};

/// Of pages (and of windows of a stream) that are believed to be written, one in so many is
/// loaded write-protected all the same, to see what becomes of it. To lift the protection
/// flushes the TLBs of all processors.
const PROOF_SHARE: u32 = 64;
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

/// Pages that come one by one, and those of streams.
#[derive(Debug)]
struct Kind {
    /// Pages that were written when they were in DRAM last.
    known: Watch,
    /// All others.
    others: Watch,
}

impl Kind {
    const fn new() -> Self {
        Self {
            known: Watch::new(true, LEAST_KNOWN),
            others: Watch::new(false, LEAST_MOST),
        }
    }
}

/// What became of pages that were brought for reading.
#[derive(Debug)]
pub struct Forecast {
    asked: AtomicU32,
    singles: Kind,
    streams: Kind,
}

impl Default for Forecast {
    fn default() -> Self {
        Self {
            asked: AtomicU32::new(0),
            singles: Kind::new(),
            streams: Kind::new(),
        }
    }
}

/// Which pages of a window of a stream are expected to be written: all pages of a sort
/// alike, so that what was read together is mapped together.
#[derive(Clone, Copy, Debug)]
pub struct StreamForecast {
    known: bool,
    others: bool,
}

impl StreamForecast {
    /// Whether this page of the window is.
    pub fn expects_write(self, entry: Entry) -> bool {
        if entry.has(Flag::PredictDirty) {
            self.known
        } else {
            self.others
        }
    }
}

impl Forecast {
    fn watch(&self, entry: Entry) -> &Watch {
        let kind = if entry.has(Flag::Stream) {
            &self.streams
        } else {
            &self.singles
        };
        if entry.has(Flag::PredictDirty) {
            &kind.known
        } else {
            &kind.others
        }
    }

    fn is_proof(&self) -> bool {
        self.asked.fetch_add(1, RELAXED).is_multiple_of(PROOF_SHARE)
    }

    /// Whether the page will be written after it is brought for reading.
    pub fn expects_write(&self, entry: Entry) -> bool {
        self.watch(entry).is_written.load(RELAXED) && !self.is_proof()
    }

    /// The same for the pages of a window of a stream.
    pub fn of_stream(&self) -> StreamForecast {
        let trusts = !self.is_proof();
        StreamForecast {
            known: trusts && self.streams.known.is_written.load(RELAXED),
            others: trusts && self.streams.others.is_written.load(RELAXED),
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
        assert_eq!((expected(others), expected(known)), (0, 63));
        see(others, WATCHED / 2);
        assert_eq!((expected(others), expected(known)), (0, 63));
        see(others, WATCHED);
        assert_eq!((expected(others), expected(known)), (63, 63));
        // A program that wrote all its pages, and now reads them.
        see(known, WATCHED / 4);
        assert_eq!((expected(others), expected(known)), (63, 0));
        see(known, WATCHED / 4 * 3);
        see(others, 0);
        assert_eq!((expected(others), expected(known)), (0, 63));
    }

    #[test]
    fn streams_are_judged_by_themselves() {
        let forecast = Forecast::default();
        let single = Entry::new(State::Swapped);
        let others = single.with(Flag::Stream, true);
        let known = others.with(Flag::PredictDirty, true);
        let expected = || {
            let of_streams: Vec<_> = (0..64).map(|_| forecast.of_stream()).collect();
            [others, known].map(|entry| {
                let written = of_streams.iter().filter(|of| of.expects_write(entry));
                written.count()
            })
        };
        // A window at a time, written while the next one is brought.
        let see = |entry: Entry, is_written: bool| {
            for _ in 0..2 * WATCHED / 32 {
                (0..32).for_each(|_| forecast.brought(entry));
                (0..32 * u32::from(is_written)).for_each(|_| forecast.written(entry));
            }
        };
        assert_eq!(expected(), [0, 63]);
        see(single, true);
        assert_eq!(expected(), [0, 63]);
        see(others, true);
        assert_eq!(expected(), [63, 63]);
        see(known, false);
        assert_eq!(expected(), [63, 0]);
        see(others, false);
        see(known, true);
        assert_eq!(expected(), [0, 63]);
    }
}
