// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a core knows of its stores: the lines that are dirty in its L1, and the pages whose
//! entries in the TLB are. A store to any other page makes hardware walk again, to mark it.
//!
//! An entry of the TLB that goes takes its mark along. Here the marks are kept apart, as many as
//! the second level has entries, and go by a turn of their own.

use crate::filter::LineFilter;
use crate::walk::Keys;

const PAGES: u64 = 2048;
const LARGE: u64 = 1 << 60;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) lines: LineFilter,
    pages: Keys,
}

impl Default for Stored {
    fn default() -> Self {
        Self {
            lines: LineFilter::default(),
            pages: Keys::new(PAGES),
        }
    }
}

impl Stored {
    const fn key(va: u64, large: bool) -> u64 {
        if large { va >> 21 | LARGE } else { va >> 12 }
    }

    /// Marks the page; whether it was.
    pub(crate) fn page(&mut self, va: u64, large: bool) -> bool {
        self.pages.access(Self::key(va, large))
    }

    /// Forgets the page at `va`, of either size.
    pub(crate) fn forget_page(&mut self, va: u64) {
        self.lines.forget_page(va);
        for large in [false, true] {
            self.pages.forget(Self::key(va, large));
        }
    }

    pub(crate) fn forget_all(&mut self) {
        self.lines.clear();
        self.pages.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_both_sizes_are_marked_and_forgotten() {
        let mut stored = Stored::default();
        assert!(!stored.page(0x40_0000, false) && stored.page(0x40_0fff, false));
        assert!(!stored.page(0x40_1000, false) && !stored.page(0x40_0000, true));
        assert!(!stored.lines.hit(0x40_0040));
        stored.forget_page(0x40_0000);
        assert!(!stored.page(0x40_0000, false) && !stored.page(0x40_0000, true));
        assert!(stored.page(0x40_1000, false) && !stored.lines.hit(0x40_0040));
        stored.forget_all();
        assert!(!stored.page(0x40_1000, false) && !stored.lines.hit(0x40_0040));
    }
}
