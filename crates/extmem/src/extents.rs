// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Free address space of the arena: sorted runs of free pages, first fit.
//!
//! Bounded memory: when the table is full, what is freed is forgotten (address
//! space leaks, nothing else), which takes tens of thousands of holes.

use crate::page::PageIndex;
use crate::region::{Region, carved_bytes};

/// A run of free pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Extent {
    /// First page.
    pub first: PageIndex,
    /// How many.
    pub pages: u32,
}

impl Extent {
    fn end(self) -> u32 {
        self.first + self.pages
    }
}

/// All free runs, sorted by address, never touching one another.
#[derive(Debug)]
pub struct Extents {
    table: &'static mut [Extent],
    used: usize,
}

/// Runs the table can hold.
pub const CAPACITY: usize = 64 * 1024;

impl Extents {
    /// Bytes of address space for the table.
    pub const fn footprint_bytes() -> usize {
        carved_bytes::<Extent>(CAPACITY)
    }

    /// Starts with one free run.
    pub fn new(mut region: Region, whole: Extent) -> Option<Self> {
        // SAFETY: zero is an Extent.
        let table = unsafe { region.carve::<Extent>(CAPACITY) }?;
        table[0] = whole;
        Some(Self { table, used: 1 })
    }

    /// Takes the first run of `pages` that fits.
    pub fn take(&mut self, pages: u32) -> Option<PageIndex> {
        let at = self.table[..self.used]
            .iter()
            .position(|extent| extent.pages >= pages)?;
        let first = self.table[at].first;
        self.cut(at, first, pages);
        Some(first)
    }

    /// Takes exactly these pages if all are free.
    pub fn take_at(&mut self, first: PageIndex, pages: u32) -> bool {
        let after = self.table[..self.used].partition_point(|extent| extent.first <= first);
        let Some(at) = after.checked_sub(1) else {
            return false;
        };
        let Some(end) = first.checked_add(pages) else {
            return false;
        };
        if end > self.table[at].end() {
            return false;
        }
        self.cut(at, first, pages)
    }

    /// Gives pages back. They must not be free already.
    pub fn give(&mut self, first: PageIndex, pages: u32) {
        let at = self.table[..self.used].partition_point(|extent| extent.first < first);
        let joins_before = at > 0 && self.table[at - 1].end() == first;
        let joins_after = at < self.used && first + pages == self.table[at].first;
        match (joins_before, joins_after) {
            (true, true) => {
                self.table[at - 1].pages += pages + self.table[at].pages;
                self.remove(at);
            }
            (true, false) => self.table[at - 1].pages += pages,
            (false, true) => {
                self.table[at].first = first;
                self.table[at].pages += pages;
            }
            (false, false) => {
                self.insert(at, Extent { first, pages });
            }
        }
    }

    /// Cuts a piece out of run `at`. False when the table has no room for the rest
    /// behind the piece; then nothing is changed.
    fn cut(&mut self, at: usize, first: PageIndex, pages: u32) -> bool {
        let extent = self.table[at];
        let before = Extent {
            first: extent.first,
            pages: first - extent.first,
        };
        let behind = Extent {
            first: first + pages,
            pages: extent.end() - first - pages,
        };
        match (before.pages > 0, behind.pages > 0) {
            (false, false) => self.remove(at),
            (true, false) => self.table[at] = before,
            (false, true) => self.table[at] = behind,
            (true, true) => {
                if !self.insert(at + 1, behind) {
                    return false;
                }
                self.table[at] = before;
            }
        }
        true
    }

    fn insert(&mut self, at: usize, extent: Extent) -> bool {
        if self.used == self.table.len() {
            return false;
        }
        self.table.copy_within(at..self.used, at + 1);
        self.table[at] = extent;
        self.used += 1;
        true
    }

    fn remove(&mut self, at: usize) {
        self.table.copy_within(at + 1..self.used, at);
        self.used -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn extents(pages: u32) -> Extents {
        let region = Region::map_anonymous(Extents::footprint_bytes()).unwrap();
        Extents::new(region, Extent { first: 0, pages }).unwrap()
    }

    #[test]
    fn pieces_come_back_together() {
        let mut free = extents(100);
        assert_eq!(free.take(10), Some(0));
        assert_eq!(free.take(10), Some(10));
        assert!(free.take_at(50, 5));
        assert!(!free.take_at(54, 2));
        assert!(!free.take_at(5, 2));
        assert!(!free.take_at(98, 3));
        free.give(0, 10);
        free.give(50, 5);
        free.give(10, 10);
        assert_eq!(free.used, 1);
        assert_eq!(free.take(100), Some(0));
        assert_eq!(free.take(1), None);
    }

    proptest! {
        #[test]
        fn no_page_is_given_twice(steps in prop::collection::vec((0u32..40, 1u32..12, any::<bool>()), 1..200)) {
            let mut free = extents(64);
            let mut taken = [false; 64];
            for (first, pages, take) in steps {
                let span = first as usize..((first + pages) as usize).min(64);
                if take {
                    let all_free = span.len() == pages as usize && taken[span.clone()].iter().all(|&t| !t);
                    prop_assert_eq!(free.take_at(first, pages), all_free);
                    if all_free { taken[span].fill(true); }
                } else {
                    for page in span { if taken[page] { taken[page] = false; free.give(page as u32, 1); } }
                }
                let counted: u32 = free.table[..free.used].iter().map(|e| e.pages).sum();
                prop_assert_eq!(counted as usize, taken.iter().filter(|&&t| !t).count());
            }
        }
    }
}
