// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a page that is brought for reading will be written.
//!
//! A page loaded writable spares the fault of the first write, but then nobody sees
//! whether that came, and the page has to be written out when it leaves. Two things tell:
//! what became of this page last time, and what becomes of most pages just now (a program
//! that counts, say, reads each word before it writes it).

use std::sync::atomic::{AtomicU32, Ordering};

use crate::page::{Entry, Flag};

/// Pages that were written last time are believed to be so again, but for one time in so
/// many, when they must prove it anew.
const PROOF_OF_KNOWN: u32 = 4;
/// The same where most pages are written.
const PROOF_OF_MOST: u32 = 8;
/// Most: all but one page in so many.
const MOST: u32 = 8;
/// Pages watched before they are judged.
const WATCHED: u32 = 256;
const RELAXED: Ordering = Ordering::Relaxed;

/// What became of pages that were brought for reading.
#[derive(Debug, Default)]
pub struct Forecast {
    asked: AtomicU32,
    brought: AtomicU32,
    written: AtomicU32,
    most_are_written: AtomicU32,
}

impl Forecast {
    /// Whether to trust what is known of single pages this time.
    pub fn trusts_known(&self) -> bool {
        !self
            .asked
            .fetch_add(1, RELAXED)
            .is_multiple_of(PROOF_OF_KNOWN)
    }

    /// Whether the page will be written after it is brought for reading.
    pub fn expects_write(&self, entry: Entry) -> bool {
        if entry.has(Flag::PredictDirty) {
            return self.trusts_known();
        }
        self.most_are_written.load(RELAXED) == 1
            && !self
                .asked
                .fetch_add(1, RELAXED)
                .is_multiple_of(PROOF_OF_MOST)
    }

    /// A page was brought write-protected.
    pub fn brought(&self) {
        if self.brought.fetch_add(1, RELAXED) + 1 == WATCHED {
            let written = self.written.swap(0, RELAXED);
            self.most_are_written
                .store(u32::from(written >= WATCHED - WATCHED / MOST), RELAXED);
            self.brought.store(0, RELAXED);
        }
    }

    /// The first write to such a page.
    pub fn written(&self) {
        self.written.fetch_add(1, RELAXED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::State;

    #[test]
    fn most_pages_decide_for_the_rest() {
        let forecast = Forecast::default();
        let unknown = Entry::new(State::Swapped);
        let expected =
            |forecast: &Forecast, entry| (0..64).filter(|_| forecast.expects_write(entry)).count();
        assert_eq!(expected(&forecast, unknown), 0);
        assert_eq!(
            expected(&forecast, unknown.with(Flag::PredictDirty, true)),
            48
        );
        for written in [WATCHED / 2, WATCHED] {
            (0..written).for_each(|_| forecast.written());
            (0..WATCHED).for_each(|_| forecast.brought());
            let most = written == WATCHED;
            assert_eq!(expected(&forecast, unknown), if most { 56 } else { 0 });
        }
        // None is written any more: what is brought to prove it says so.
        (0..WATCHED).for_each(|_| forecast.brought());
        assert_eq!(expected(&forecast, unknown), 0);
    }
}
