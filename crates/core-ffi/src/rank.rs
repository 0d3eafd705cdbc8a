// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ranges of all address spaces in one order, hottest first.

use crate::Ranges;
use crate::sys::{self, RankEntry};

/// Entries to be ranked. Fill in `pages` of each before ranking.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranking {
    /// The entries; in order after [`Ranking::sort`].
    pub entries: Vec<RankEntry>,
}

impl Ranking {
    /// Appends the ranges of one address space.
    pub fn gather(&mut self, ranges: &Ranges, space: u32) {
        let before = self.entries.len();
        let added = ranges.raw().nr;
        self.entries
            .resize(before + added as usize, RankEntry::default());
        // SAFETY: room for `added` entries was just made behind `before`.
        unsafe {
            sys::demeter_rank_gather(
                ranges.raw(),
                space,
                self.entries.as_mut_ptr().add(before),
                0,
                added,
            )
        };
    }

    /// Fills in the densities and sorts.
    pub fn sort(&mut self) {
        let count = self.count();
        // SAFETY: `count` entries at most are there.
        unsafe { sys::demeter_rank(self.entries.as_mut_ptr(), count) }
    }

    /// How many leading entries fit as a whole into so many pages.
    pub fn cut(&self, fmem_budget_pages: u64) -> usize {
        // SAFETY: `count` entries at most are there.
        unsafe {
            sys::demeter_rank_cut(self.entries.as_ptr(), self.count(), fmem_budget_pages) as usize
        }
    }

    /// One number for the ranking; `seed` continues an earlier one.
    pub fn digest(&self, seed: u64) -> u64 {
        // SAFETY: `count` entries at most are there.
        unsafe { sys::demeter_rank_digest(self.entries.as_ptr(), self.count(), seed) }
    }

    fn count(&self) -> u32 {
        u32::try_from(self.entries.len()).unwrap_or(u32::MAX)
    }
}
