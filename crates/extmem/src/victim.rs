// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The victim cache: pages on their way out, still in DRAM.
//!
//! User space has no accessed bits. What it has is this: a page that is chosen for
//! eviction is first brought out of the program's sight into a ring. If the program
//! touches it there, it was hot, and comes back for the price of a copy. If it
//! reaches the end of the ring untouched, it is written out, and because the ring is
//! contiguous memory, many pages go in one write.
//!
//! Memory that the program used is not taken from it page by page where that can be
//! helped, for each time all its processors flush their TLBs: what came back by copy
//! stays in the ring until several such pages are freed at once.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::futex;
use crate::lock::Lock;
use crate::page::PageIndex;
use crate::region::{PAGE_BYTES, Region, carved_bytes};

/// Nothing lies at this position.
const HOLE: u32 = 0;
/// A page lies here that its owner took back (by copy): only memory to free.
const STALE: u32 = u32::MAX;
/// Emptied, while an older position is not yet.
const EMPTIED: u32 = u32::MAX - 1;

/// Deserted positions whose memory is freed together.
pub const DESERTED: usize = 32;

/// What lies at a position of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tenant {
    /// No page.
    Hole,
    /// A page nobody needs any more.
    Stale,
    /// The page of this owner.
    Page(PageIndex),
}

/// Running numbers of positions, ever growing: `head <= next <= tail`.
#[derive(Debug, Default)]
pub struct Span {
    /// Oldest in use.
    pub head: u64,
    /// Oldest that nobody empties yet.
    pub next: u64,
    /// Next free.
    pub tail: u64,
}

/// Positions deserted lately.
#[derive(Debug, Default)]
struct Deserted {
    positions: [u32; DESERTED],
    count: usize,
}

/// The ring.
#[derive(Debug)]
pub struct VictimCache {
    base: usize,
    mask: u64,
    owners: &'static [AtomicU32],
    slots: &'static [AtomicU32],
    /// Held while positions are filled.
    pub span: Lock<Span>,
    deserted: Lock<Deserted>,
    /// Counts ranges that were emptied: who waits for that sleeps on it.
    drains: AtomicU32,
    target_pages: AtomicU32,
    most_pages: AtomicU32,
    /// Position that was entered last.
    newest: AtomicU32,
}

impl VictimCache {
    fn positions(most_pages: u32) -> usize {
        (most_pages as usize + 2 * crate::context::BATCH_PAGES).next_power_of_two()
    }

    /// Bytes of address space for the ring's pages.
    pub fn memory_bytes(most_pages: u32) -> usize {
        Self::positions(most_pages) * PAGE_BYTES
    }

    /// Bytes of address space for its tables.
    pub fn footprint_bytes(most_pages: u32) -> usize {
        2 * carved_bytes::<AtomicU32>(Self::positions(most_pages))
    }

    /// A ring over `memory_bytes(most_pages)` of registered memory at `base`.
    pub fn new(base: usize, most_pages: u32, mut region: Region) -> Option<Self> {
        let positions = Self::positions(most_pages);
        // SAFETY: zero is an AtomicU32.
        let (owners, slots) = unsafe { (region.carve(positions)?, region.carve(positions)?) };
        Some(Self {
            base,
            mask: positions as u64 - 1,
            owners,
            slots,
            span: Lock::new(Span::default()),
            deserted: Lock::new(Deserted::default()),
            drains: AtomicU32::new(0),
            target_pages: AtomicU32::new(most_pages),
            most_pages: AtomicU32::new(most_pages),
            newest: AtomicU32::new(0),
        })
    }

    /// Pages the ring should hold before it is emptied from the other end.
    pub fn target_pages(&self) -> u32 {
        self.target_pages.load(Ordering::Relaxed)
    }

    /// Steers the size, up to what was said to be the most.
    pub fn set_target_pages(&self, pages: u32) {
        let most = self.most_pages.load(Ordering::Relaxed);
        self.target_pages.store(pages.min(most), Ordering::Relaxed);
    }

    /// Sizes to come are at most this.
    pub fn set_most_pages(&self, pages: u32) {
        let room = self.owners.len() - 2 * crate::context::BATCH_PAGES;
        self.most_pages
            .store(pages.min(room as u32), Ordering::Relaxed);
    }

    /// Takes the oldest positions that nobody empties yet, at most `want` and in one piece:
    /// the first's running number, and how many. Several threads may be at it; each ends
    /// with [`Self::emptied`].
    pub fn take_oldest(&self, want: usize) -> Option<(u64, usize)> {
        let mut span = self.span.lock();
        let first = span.next;
        let count = (span.tail - first)
            .min(want as u64)
            .min(self.until_wrap(first));
        span.next += count;
        (count > 0).then_some((first, count as usize))
    }

    /// The positions hold neither pages nor memory any more, and may be used again once
    /// all older ones are empty, too.
    pub fn emptied(&self, first: u64, count: usize) {
        {
            let mut span = self.span.lock();
            for number in first..first + count as u64 {
                let owner = &self.owners[self.position(number) as usize];
                owner.store(EMPTIED, Ordering::Release);
            }
            while span.head < span.next {
                let owner = &self.owners[self.position(span.head) as usize];
                if owner.load(Ordering::Acquire) != EMPTIED {
                    break;
                }
                owner.store(HOLE, Ordering::Release);
                span.head += 1;
            }
        }
        self.drains.fetch_add(1, Ordering::Release);
        futex::wake(&self.drains, futex::ALL);
    }

    /// How often positions were emptied, for [`Self::wait_for_drain`].
    pub fn drains(&self) -> u32 {
        self.drains.load(Ordering::Acquire)
    }

    /// Sleeps until positions are emptied by somebody else, or a little while.
    pub fn wait_for_drain(&self, seen: u32) {
        const MOST_NS: u32 = 1_000_000;
        futex::wait(&self.drains, seen, Some(MOST_NS));
    }

    /// Positions that nobody empties yet.
    pub fn idle_pages(&self) -> u64 {
        let span = self.span.lock();
        span.tail - span.next
    }

    /// Positions in use.
    pub fn fill_pages(&self) -> u64 {
        let span = self.span.lock();
        span.tail - span.head
    }

    /// Positions in all.
    pub fn capacity(&self) -> u64 {
        self.mask + 1
    }

    /// Where its pages lie: address and bytes.
    pub fn memory(&self) -> (usize, usize) {
        (self.base, self.owners.len() * PAGE_BYTES)
    }

    /// Position of a running number.
    pub fn position(&self, number: u64) -> u32 {
        (number & self.mask) as u32
    }

    /// Positions from `number` to the end of the ring's memory.
    pub fn until_wrap(&self, number: u64) -> u64 {
        self.capacity() - (number & self.mask)
    }

    /// Address of a position.
    pub fn address(&self, position: u32) -> usize {
        self.base + position as usize * PAGE_BYTES
    }

    /// How far what lies at a position has come: from 0, just in, to 1000, about to leave.
    pub fn age_permille(&self, position: u32) -> u16 {
        let newest = u64::from(self.newest.load(Ordering::Relaxed));
        let behind = newest.wrapping_sub(u64::from(position)) & self.mask;
        let whole = u64::from(self.target_pages()).max(1);
        (behind * 1000 / whole).min(1000) as u16
    }

    /// Enters a page; `slot` is its swap slot if it is the same there.
    pub fn enter(&self, position: u32, page: PageIndex, slot: u32) {
        self.newest.store(position, Ordering::Relaxed);
        self.slots[position as usize].store(slot, Ordering::Relaxed);
        self.owners[position as usize].store(page + 1, Ordering::Release);
    }

    /// What lies at a position.
    pub fn tenant(&self, position: u32) -> Tenant {
        match self.owners[position as usize].load(Ordering::Acquire) {
            HOLE | EMPTIED => Tenant::Hole,
            STALE => Tenant::Stale,
            owner => Tenant::Page(owner - 1),
        }
    }

    /// The swap slot with the same contents, or `u32::MAX` (a dirty page).
    pub fn slot(&self, position: u32) -> u32 {
        self.slots[position as usize].load(Ordering::Relaxed)
    }

    /// The owner took the contents: what lies here is only memory to free. For the
    /// thread that made the owner's page busy.
    pub fn desert(&self, position: u32) {
        self.owners[position as usize].store(STALE, Ordering::Release);
    }

    /// Remembers a deserted position; gives all that are remembered once they are
    /// enough to be freed.
    pub fn remember(&self, position: u32) -> Option<[u32; DESERTED]> {
        let mut deserted = self.deserted.lock();
        let at = deserted.count;
        deserted.positions[at] = position;
        deserted.count = (at + 1) % DESERTED;
        (deserted.count == 0).then_some(deserted.positions)
    }

    /// Whoever gets true frees the memory of a deserted position, and nobody else.
    pub fn clear_deserted(&self, position: u32) -> bool {
        self.owners[position as usize]
            .compare_exchange(STALE, HOLE, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Another page owns the contents now (mremap).
    pub fn rename(&self, position: u32, page: PageIndex) {
        self.owners[position as usize].store(page + 1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> VictimCache {
        let region = Region::map_anonymous(VictimCache::footprint_bytes(64)).unwrap();
        VictimCache::new(0x10000, 64, region).unwrap()
    }

    #[test]
    fn a_page_grows_older_as_others_enter() {
        let ring = ring();
        ring.set_target_pages(40);
        let last = ring.capacity() as u32 - 1;
        ring.enter(last, 1, 7);
        assert_eq!(ring.age_permille(last), 0);
        (0..10).for_each(|position| ring.enter(position, 2, 7));
        assert_eq!(ring.age_permille(last), 250);
        assert_eq!(ring.age_permille(9), 0);
        (10..60).for_each(|position| ring.enter(position, 2, 7));
        assert_eq!(ring.age_permille(last), 1000);
    }

    #[test]
    fn it_has_no_more_than_was_said_to_be_the_most() {
        let ring = ring();
        let sizes = |wanted: [u32; 2]| {
            wanted.map(|pages| {
                ring.set_target_pages(pages);
                ring.target_pages()
            })
        };
        assert_eq!(sizes([40, 1000]), [40, 64]);
        ring.set_most_pages(20);
        assert_eq!(sizes([10, 40]), [10, 20]);
        ring.set_most_pages(u32::MAX);
        // As many as lie in it beside what is on its way in and out.
        let room = ring.capacity() as u32 - 2 * crate::context::BATCH_PAGES as u32;
        assert_eq!(sizes([64, u32::MAX]), [64, room]);
    }

    #[test]
    fn deserted_positions_are_freed_together_and_once() {
        let ring = ring();
        let mut given = vec![];
        for position in 0..2 * DESERTED as u32 {
            ring.enter(position, 1000 + position, 7);
            ring.desert(position);
            assert_eq!(ring.tenant(position), Tenant::Stale);
            given.extend(ring.remember(position).into_iter().flatten());
        }
        let all: Vec<_> = (0..2 * DESERTED as u32).collect();
        assert_eq!(given, all);
        for position in given {
            // By those who free many, or by who empties the ring: whoever comes first.
            assert!(ring.clear_deserted(position));
            assert!(!ring.clear_deserted(position));
            assert_eq!(ring.tenant(position), Tenant::Hole);
        }
        // Somebody else lives there now.
        ring.enter(3, 5, 7);
        assert!(!ring.clear_deserted(3));
        assert_eq!(ring.tenant(3), Tenant::Page(5));
    }
}
