// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hypervisor's table: an entry for each page of guest memory, of 4 KiB or 2 MiB.
//!
//! Pages that user addresses have reached are *managed*: they have a tier, and are on one
//! of the two lists of that tier, as in Linux. All others are the guest kernel's and its
//! ballast: they lie in FMEM and count towards nothing, as guests whose own manager places
//! pages have them in FMEM beyond `--fmem`.

use super::share::Share;
use crate::layout::{MemoryLayout, Place};

/// Ends a list.
const NONE: u32 = u32::MAX;

/// A page, by its place in guest memory.
pub type Page = u32;

/// Where a page lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Fast memory.
    Fmem,
    /// Slow memory.
    Smem,
}

/// What is known of a page, a bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mark {
    /// A translation is in the table: its absence makes an access a violation.
    Present = 0,
    /// Set by walks.
    Accessed = 1,
    /// Set by walks for stores.
    Dirty = 2,
    /// On the active list of its tier.
    Active = 3,
    /// Found accessed once while inactive.
    Referenced = 4,
    /// The host has taken its own mapping away, to see who touches the page.
    Hint = 5,
    /// Has been demoted and not promoted since.
    Demoted = 6,
    /// Is a page table of the guest's.
    Table = 7,
}

const MANAGED: u16 = 1 << 8;
const IN_SMEM: u16 = 1 << 9;

#[derive(Clone, Copy, Debug)]
struct Entry {
    bits: u16,
    /// Towards the head, which is what came last.
    newer: u32,
    older: u32,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    head: u32,
    tail: u32,
    pages: u64,
}

/// The table and its lists.
#[derive(Clone, Debug)]
pub struct Ept {
    layout: MemoryLayout,
    page_shift: u32,
    /// First page of node 1 of the layout, which says nothing about tiers here.
    second: u32,
    entries: Vec<Entry>,
    lists: [Ends; 4],
    capacity_pages: u64,
    share: Share,
}

impl Ept {
    /// A table of a guest with this memory, whose managed pages find so much of FMEM.
    #[must_use]
    pub fn new(layout: MemoryLayout, fmem_bytes: u64, page_bytes: u64) -> Self {
        let page_shift = page_bytes.max(1).ilog2();
        let bytes = |node| -> u64 {
            let ranges = layout.ranges(node);
            ranges.iter().map(|range| range.end - range.start).sum()
        };
        let pages = |bytes: u64| u32::try_from(bytes >> page_shift).unwrap_or(NONE);
        let empty = Entry {
            bits: 0,
            newer: NONE,
            older: NONE,
        };
        let ends = Ends {
            head: NONE,
            tail: NONE,
            pages: 0,
        };
        Self {
            second: pages(bytes(0)),
            entries: vec![empty; pages(bytes(0) + bytes(1)) as usize],
            layout,
            page_shift,
            lists: [ends; 4],
            capacity_pages: fmem_bytes >> page_shift,
            share: Share::new(1, fmem_bytes >> page_shift),
        }
    }

    /// The page of a guest-physical address; none outside of memory.
    #[inline]
    #[must_use]
    pub fn page(&self, pa: u64) -> Option<Page> {
        match self.layout.locate(pa) {
            Place::Node { node, offset } => {
                let first = if node == 0 { 0 } else { self.second };
                Some(first + (offset >> self.page_shift) as u32)
            }
            Place::Outside => None,
        }
    }

    /// How many pages of 4 KiB one of them is.
    #[must_use]
    pub const fn small_pages(&self) -> u64 {
        1 << (self.page_shift - 12)
    }

    /// How many pages there are, managed or not.
    #[must_use]
    pub fn pages(&self) -> Page {
        self.entries.len() as Page
    }

    fn bits(&self, page: Page) -> u16 {
        self.entries.get(page as usize).map_or(0, |of| of.bits)
    }

    /// Whether the page is managed.
    #[must_use]
    pub fn is_managed(&self, page: Page) -> bool {
        self.bits(page) & MANAGED != 0
    }

    /// Where the page lies.
    #[inline]
    #[must_use]
    pub fn tier(&self, page: Page) -> Tier {
        if self.bits(page) & IN_SMEM == 0 {
            Tier::Fmem
        } else {
            Tier::Smem
        }
    }

    /// Whether the page has the mark.
    #[must_use]
    pub fn has(&self, page: Page, mark: Mark) -> bool {
        self.bits(page) >> mark as u8 & 1 != 0
    }

    /// Sets or clears a mark other than [`Mark::Active`], which goes with the lists; whether
    /// it was set.
    pub fn put(&mut self, page: Page, mark: Mark, set: bool) -> bool {
        debug_assert!(mark != Mark::Active);
        let Some(entry) = self.entries.get_mut(page as usize) else {
            return false;
        };
        let bit = 1 << mark as u8;
        let was = entry.bits & bit != 0;
        entry.bits = if set {
            entry.bits | bit
        } else {
            entry.bits & !bit
        };
        was
    }

    /// FMEM that managed pages have.
    #[must_use]
    pub fn used_pages(&self) -> u64 {
        self.list_pages(Tier::Fmem, false) + self.list_pages(Tier::Fmem, true)
    }

    /// FMEM that managed pages do not have yet, of this guest or of those that share it: what
    /// watermarks are compared with.
    #[must_use]
    pub fn free_pages(&self) -> u64 {
        (self.share).free_pages(self.capacity_pages, self.used_pages())
    }

    /// The part of it that this guest may take now: what decides whether a page can come.
    #[must_use]
    pub fn room_pages(&self) -> u64 {
        self.share.room_pages(self.used_pages())
    }

    /// How many guests share FMEM, this one among them.
    #[must_use]
    pub const fn sharers(&self) -> u64 {
        self.share.guests()
    }

    /// This guest's part of kswapd's time.
    #[must_use]
    pub const fn kswapd_permille(&self) -> u64 {
        self.share.kswapd_permille()
    }

    /// FMEM is one pool for so many guests, of which none has anything yet.
    pub fn share_among(&mut self, guests: u64) {
        self.share = Share::new(guests, self.capacity_pages);
    }

    /// Says what has become of the pool.
    pub fn share(&mut self, share: Share) {
        self.share = share;
    }

    /// FMEM for managed pages, of all that share it.
    #[must_use]
    pub const fn capacity_pages(&self) -> u64 {
        self.capacity_pages
    }

    /// Length of a list.
    #[must_use]
    pub fn list_pages(&self, tier: Tier, active: bool) -> u64 {
        self.lists[list(tier, active)].pages
    }

    /// What has been on a list for longest.
    #[must_use]
    pub fn oldest(&self, tier: Tier, active: bool) -> Option<Page> {
        let tail = self.lists[list(tier, active)].tail;
        (tail != NONE).then_some(tail)
    }

    /// Manages a page that was not, in a tier; false if it was, or the tier is full.
    pub fn manage(&mut self, page: Page, tier: Tier) -> bool {
        if self.is_managed(page) || (tier == Tier::Fmem && self.room_pages() == 0) {
            return false;
        }
        let Some(entry) = self.entries.get_mut(page as usize) else {
            return false;
        };
        entry.bits |= MANAGED | 1 << Mark::Present as u8;
        if tier == Tier::Smem {
            entry.bits |= IN_SMEM;
        }
        self.link(page);
        true
    }

    /// Puts a managed page first on a list of its tier.
    pub fn enlist(&mut self, page: Page, active: bool) {
        if !self.is_managed(page) {
            return;
        }
        self.unlink(page);
        let entry = &mut self.entries[page as usize];
        let bit = 1 << Mark::Active as u8;
        entry.bits = if active {
            entry.bits | bit
        } else {
            entry.bits & !bit
        };
        self.link(page);
    }

    /// Puts a managed page into the other tier, with all its marks; false if that is full.
    pub fn relocate(&mut self, page: Page) -> bool {
        let to_fmem = self.tier(page) == Tier::Smem;
        if !self.is_managed(page) || (to_fmem && self.room_pages() == 0) {
            return false;
        }
        self.unlink(page);
        self.entries[page as usize].bits ^= IN_SMEM;
        self.link(page);
        true
    }

    fn list_of(&self, page: Page) -> usize {
        list(self.tier(page), self.has(page, Mark::Active))
    }

    fn link(&mut self, page: Page) {
        let at = self.list_of(page);
        let ends = &mut self.lists[at];
        let second = ends.head;
        ends.head = page;
        ends.pages += 1;
        if second == NONE {
            ends.tail = page;
        } else {
            self.entries[second as usize].newer = page;
        }
        let entry = &mut self.entries[page as usize];
        entry.newer = NONE;
        entry.older = second;
    }

    fn unlink(&mut self, page: Page) {
        let at = self.list_of(page);
        let Entry { newer, older, .. } = self.entries[page as usize];
        let ends = &mut self.lists[at];
        ends.pages -= 1;
        if newer == NONE {
            ends.head = older;
        }
        if older == NONE {
            ends.tail = newer;
        }
        if newer != NONE {
            self.entries[newer as usize].older = older;
        }
        if older != NONE {
            self.entries[older as usize].newer = newer;
        }
    }
}

const fn list(tier: Tier, active: bool) -> usize {
    tier as usize * 2 + active as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;
    const PAGE: u64 = 4096;

    fn ept(fmem_pages: u64) -> Ept {
        Ept::new(MemoryLayout::new(4 * MIB, 4 * MIB), fmem_pages * PAGE, PAGE)
    }

    #[test]
    fn pages_are_numbered_across_the_nodes() {
        let ept = ept(1);
        assert_eq!(ept.pages(), 2048);
        assert_eq!(ept.page(0x1fff), Some(1));
        assert_eq!(ept.page(4 * MIB), Some(1024));
        assert_eq!(ept.page(8 * MIB), None);
        // Above the hole too.
        let high = Ept::new(MemoryLayout::new(1 << 30, 3 << 30), MIB, PAGE);
        assert_eq!(high.page(1 << 32), Some(2 << 18));
        let large = Ept::new(MemoryLayout::new(4 * MIB, 4 * MIB), 5 * MIB, 2 * MIB);
        assert_eq!((large.pages(), large.capacity_pages()), (4, 2));
        assert_eq!(large.page(5 * MIB), Some(2));
        assert_eq!((large.small_pages(), ept.small_pages()), (512, 1));
    }

    #[test]
    fn what_the_kernel_has_is_fmem_and_counts_nothing() {
        let mut ept = ept(1);
        assert_eq!(ept.tier(3), Tier::Fmem);
        assert!(ept.manage(3, Tier::Fmem));
        assert!(!ept.manage(3, Tier::Smem), "managed already");
        assert!(!ept.manage(4, Tier::Fmem), "full");
        assert!(ept.manage(4, Tier::Smem));
        assert_eq!((ept.tier(4), ept.free_pages()), (Tier::Smem, 0));
        assert!(!ept.manage(1 << 20, Tier::Smem), "no such page");
    }

    #[test]
    fn demotion_keeps_the_marks() {
        let mut ept = ept(1);
        ept.manage(3, Tier::Fmem);
        for mark in [Mark::Accessed, Mark::Dirty, Mark::Referenced] {
            ept.put(3, mark, true);
        }
        assert!(ept.relocate(3));
        assert_eq!(ept.tier(3), Tier::Smem);
        for mark in [Mark::Accessed, Mark::Dirty, Mark::Referenced] {
            assert!(ept.has(3, mark), "{mark:?}");
        }
        assert_eq!(ept.list_pages(Tier::Smem, false), 1);
    }

    #[test]
    fn the_oldest_is_what_came_first() {
        let mut ept = ept(8);
        for page in 0..3 {
            ept.manage(page, Tier::Fmem);
        }
        assert_eq!(ept.oldest(Tier::Fmem, false), Some(0));
        ept.enlist(0, false);
        assert_eq!(ept.oldest(Tier::Fmem, false), Some(1));
        ept.enlist(1, true);
        assert_eq!(ept.oldest(Tier::Fmem, false), Some(2));
        assert_eq!(ept.oldest(Tier::Fmem, true), Some(1));
        assert_eq!(ept.oldest(Tier::Smem, true), None);
    }

    proptest! {
        /// Whatever is asked for, FMEM holds no more than it can, and lists hold every page once.
        #[test]
        fn capacity_is_never_exceeded(steps in prop::collection::vec((0u32..24, 0u8..4), 1..400)) {
            let mut ept = ept(5);
            for (page, what) in steps {
                match what {
                    0 => { ept.manage(page, Tier::Fmem); }
                    1 => { ept.manage(page, Tier::Smem); }
                    2 => { ept.relocate(page); }
                    _ => ept.enlist(page, page % 2 == 0),
                }
                let mut found = 0;
                for tier in [Tier::Fmem, Tier::Smem] {
                    for active in [false, true] {
                        let mut at = ept.oldest(tier, active);
                        let mut pages = 0;
                        while let Some(page) = at {
                            prop_assert_eq!((ept.tier(page), ept.has(page, Mark::Active)), (tier, active));
                            pages += 1;
                            let newer = ept.entries[page as usize].newer;
                            at = (newer != NONE).then_some(newer);
                        }
                        prop_assert_eq!(pages, ept.list_pages(tier, active));
                        found += pages;
                    }
                }
                let managed = (0..24).filter(|&page| ept.is_managed(page)).count() as u64;
                prop_assert_eq!(found, managed);
                let fast = (0..24).filter(|&page| ept.is_managed(page) && ept.tier(page) == Tier::Fmem);
                prop_assert!(fast.count() <= 5);
            }
        }
    }
}
