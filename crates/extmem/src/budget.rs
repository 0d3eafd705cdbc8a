// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bound on DRAM: pages in use, and pages promised.
//!
//! Everything the pager itself touches (page table, buffers, rings, compressed
//! pages) is taken off the limit; what is left is for the program's pages. Where the
//! programs of a run share one budget, the bound is what this one has of it (`share.rs`).

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use demeter_extmem_tree::FLOOR_PAGES;

use crate::share::Share;

/// Counters in pages.
#[derive(Debug)]
pub struct Budget {
    /// The whole, of all programs where they share it.
    dram_pages: i64,
    share: Option<Share>,
    /// Taken by the pager for itself.
    overhead_pages: AtomicI64,
    /// Program pages in DRAM, those in the victim cache included.
    resident_pages: AtomicI64,
    /// Pages the program may touch.
    promised_pages: AtomicI64,
    capacity_pages: i64,
    reserve: Reserve,
}

/// How many frames are kept free, so that nobody has to wait for one. Each is one page
/// less for the program, so it is as few as will do: twice as many each time that
/// threads had to evict by themselves, a quarter less for each period in which none had to.
#[derive(Debug)]
struct Reserve {
    pages: AtomicI64,
    stalled: AtomicBool,
    /// It has grown since the evictor last made frames.
    grown: AtomicBool,
}

/// The smallest reserve: two batches of first touches.
const LEAST_RESERVE_PAGES: i64 = 64;
/// Frames beyond the reserve that are made once the evictor is awake.
const MOST_AHEAD_PAGES: i64 = 256;
/// A program makes progress with a few pages, whatever else there is.
const LEAST_PAGES: i64 = 512;
/// A batch has at most one page of DRAM in so many, and not less than so many.
const BATCH_SHARE: usize = 256;
const LEAST_BATCH_PAGES: usize = 32;
/// The largest is one page of DRAM in so many.
const MOST_RESERVE_SHARE: i64 = 32;

impl Budget {
    /// A budget of `dram_pages`, alone or with others, with room in swap for
    /// `capacity_pages`.
    pub fn new(dram_pages: u64, capacity_pages: u64, share: Option<Share>) -> Self {
        Self {
            dram_pages: dram_pages as i64,
            share,
            overhead_pages: AtomicI64::new(0),
            resident_pages: AtomicI64::new(0),
            promised_pages: AtomicI64::new(0),
            capacity_pages: capacity_pages as i64,
            reserve: Reserve {
                pages: AtomicI64::new(LEAST_RESERVE_PAGES),
                stalled: AtomicBool::new(false),
                grown: AtomicBool::new(false),
            },
        }
    }

    /// Frames that should be free before anybody has to wait for one.
    pub fn reserve_pages(&self) -> i64 {
        let most = self.limit_pages() / MOST_RESERVE_SHARE;
        self.reserve.pages.load(Ordering::Relaxed).min(most)
    }

    /// Frames that the evictor makes once it is at it, so that it is not woken for each page.
    pub fn ahead_pages(&self) -> i64 {
        let reserve = self.reserve_pages();
        reserve + reserve.min(MOST_AHEAD_PAGES)
    }

    /// The evictor has made frames.
    pub fn made_frames(&self) {
        self.reserve.grown.store(false, Ordering::Relaxed);
    }

    /// A thread found no free frame. However many find none, it is one shortage until the
    /// evictor has made some.
    pub fn stalled(&self) {
        self.reserve.stalled.store(true, Ordering::Relaxed);
        if self.reserve.grown.swap(true, Ordering::Relaxed) {
            return;
        }
        let most = self.dram_pages / MOST_RESERVE_SHARE;
        let pages = self.reserve.pages.load(Ordering::Relaxed);
        let more = (2 * pages).min(most.max(LEAST_RESERVE_PAGES));
        self.reserve.pages.store(more, Ordering::Relaxed);
    }

    /// A period ends: a reserve that was not used up may be smaller.
    pub fn relax_reserve(&self) {
        if !self.reserve.stalled.swap(false, Ordering::Relaxed) {
            let pages = self.reserve.pages.load(Ordering::Relaxed);
            let less = (pages - pages / 4).max(LEAST_RESERVE_PAGES);
            self.reserve.pages.store(less, Ordering::Relaxed);
        }
    }

    /// Pages the program may have in DRAM now.
    pub fn limit_pages(&self) -> i64 {
        let overhead = self.overhead_pages.load(Ordering::Relaxed);
        match &self.share {
            // Whatever the overhead grows to.
            None => (self.dram_pages - overhead).max(LEAST_PAGES),
            Some(share) => (share.limit_pages() - overhead).max(FLOOR_PAGES),
        }
    }

    /// What it has of DRAM now, of so many pages that the whole would be worth.
    pub fn share_of(&self, pages: u64) -> u64 {
        match &self.share {
            None => pages,
            Some(share) => {
                let limit = share
                    .limit_pages()
                    .clamp(FLOOR_PAGES, self.dram_pages.max(1));
                (u128::from(pages) * limit as u128 / self.dram_pages.max(1) as u128) as u64
            }
        }
    }

    /// The share of this program, if there is one budget for several.
    pub fn share(&self) -> Option<&Share> {
        self.share.as_ref()
    }

    /// Pages of DRAM in use, the pager's own with them.
    fn used_pages(&self) -> i64 {
        self.resident_pages() + self.overhead_pages()
    }

    /// Whether fewer frames are free than so many, and more are not to be had. `needs`: the
    /// program waits, or soon will.
    pub fn is_short_of(&self, frames: i64, needs: bool) -> bool {
        let missing = frames - self.free_pages();
        missing > 0 && !self.gets(missing, needs)
    }

    fn gets(&self, pages: i64, needs: bool) -> bool {
        self.share
            .as_ref()
            .is_some_and(|share| share.ask(pages, needs) >= pages)
    }

    /// Whether it has so much of a shared budget that others may want some of it.
    pub fn may_owe(&self) -> bool {
        (self.share.as_ref()).is_some_and(|share| share.limit_pages() > 2 * FLOOR_PAGES)
    }

    /// Whether it has more than it may keep.
    pub fn owes_pages(&self) -> bool {
        self.free_pages() < 0
    }

    /// Gives back what others want and this program does not use.
    pub fn settle_share(&self) {
        if let Some(share) = &self.share {
            share.settle(self.used_pages());
        }
    }

    /// Program pages in DRAM now.
    pub fn resident_pages(&self) -> i64 {
        self.resident_pages.load(Ordering::Relaxed)
    }

    /// Takes the pager's own pages off the limit (or gives them back, if negative).
    pub fn charge_overhead(&self, pages: i64) {
        self.overhead_pages.fetch_add(pages, Ordering::Relaxed);
    }

    /// The pager's own pages.
    pub fn overhead_pages(&self) -> i64 {
        self.overhead_pages.load(Ordering::Relaxed)
    }

    /// Takes frames if they fit under the limit, or under what can be had.
    pub fn try_take(&self, pages: i64) -> bool {
        let now = self.resident_pages.fetch_add(pages, Ordering::Relaxed) + pages;
        let over = now - self.limit_pages();
        if over <= 0 || self.gets(over, true) {
            if let Some(share) = &self.share {
                share.cover(now + self.overhead_pages());
            }
            return true;
        }
        self.resident_pages.fetch_sub(pages, Ordering::Relaxed);
        false
    }

    /// Gives frames back.
    pub fn give(&self, pages: i64) {
        self.resident_pages.fetch_sub(pages, Ordering::Relaxed);
    }

    /// Frames still free.
    pub fn free_pages(&self) -> i64 {
        self.limit_pages() - self.resident_pages()
    }

    /// The whole of it.
    pub fn dram_pages(&self) -> i64 {
        self.dram_pages
    }

    /// As much of a batch of so many pages as its buffers are worth of this DRAM.
    pub fn batch_pages(&self, most: usize) -> usize {
        let dram_pages = self.share_of(self.dram_pages.max(0) as u64);
        let fair = dram_pages as usize / BATCH_SHARE;
        fair.max(LEAST_BATCH_PAGES).min(most)
    }

    /// Promises that so many more pages can be kept, or refuses.
    pub fn promise(&self, pages: u64) -> bool {
        let pages = pages as i64;
        let now = self.promised_pages.fetch_add(pages, Ordering::Relaxed) + pages;
        if now <= self.capacity_pages {
            return true;
        }
        self.promised_pages.fetch_sub(pages, Ordering::Relaxed);
        false
    }

    /// Promises without asking: for what was promised a moment ago.
    pub fn take_promise(&self, pages: u64) {
        self.promised_pages
            .fetch_add(pages as i64, Ordering::Relaxed);
    }

    /// Takes a promise back.
    pub fn release(&self, pages: u64) {
        self.promised_pages
            .fetch_sub(pages as i64, Ordering::Relaxed);
    }

    /// Pages promised.
    pub fn promised_pages(&self) -> i64 {
        self.promised_pages.load(Ordering::Relaxed)
    }

    /// How many pages may be promised in all.
    pub fn capacity_pages(&self) -> i64 {
        self.capacity_pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_does_not_fit_and_forgets_the_refusal() {
        let budget = Budget::new(2000, 100, None);
        budget.charge_overhead(1000);
        assert_eq!(budget.limit_pages(), 1000);
        assert!(budget.try_take(900));
        assert!(!budget.try_take(101));
        assert!(budget.try_take(100));
        budget.give(1000);
        assert_eq!(budget.resident_pages(), 0);
        assert!(budget.promise(60));
        assert!(!budget.promise(41));
        assert!(budget.promise(40));
        budget.release(100);
        assert_eq!(budget.promised_pages(), 0);
    }

    #[test]
    fn the_reserve_follows_those_who_had_to_wait() {
        let budget = Budget::new(32_000, 1, None);
        assert_eq!(budget.reserve_pages(), LEAST_RESERVE_PAGES);
        assert_eq!(budget.ahead_pages(), 2 * LEAST_RESERVE_PAGES);
        let shortages = |count| {
            (0..count).for_each(|_| {
                (0..4).for_each(|_| budget.stalled());
                budget.made_frames();
            });
        };
        shortages(3);
        assert_eq!(budget.reserve_pages(), 8 * LEAST_RESERVE_PAGES);
        shortages(30);
        assert_eq!((budget.reserve_pages(), budget.ahead_pages()), (1000, 1256));
        // The period of the stalls themselves does not count.
        budget.relax_reserve();
        assert_eq!(budget.reserve_pages(), 1000);
        (0..50).for_each(|_| budget.relax_reserve());
        assert_eq!(budget.reserve_pages(), LEAST_RESERVE_PAGES);
        assert_eq!(Budget::new(512, 1, None).reserve_pages(), 16);
    }
}
