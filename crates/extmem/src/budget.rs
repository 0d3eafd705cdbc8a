// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bound on DRAM: pages in use, and pages promised.
//!
//! Everything the pager itself touches (page table, buffers, rings, compressed
//! pages) is taken off the limit; what is left is for the program's pages.

use std::sync::atomic::{AtomicI64, Ordering};

/// Counters in pages.
#[derive(Debug)]
pub struct Budget {
    dram_pages: i64,
    /// Taken by the pager for itself.
    overhead_pages: AtomicI64,
    /// Program pages in DRAM, those in the victim cache included.
    resident_pages: AtomicI64,
    /// Pages the program may touch.
    promised_pages: AtomicI64,
    capacity_pages: i64,
}

impl Budget {
    /// A budget of `dram_pages`, with room in swap for `capacity_pages`.
    pub fn new(dram_pages: u64, capacity_pages: u64) -> Self {
        Self {
            dram_pages: dram_pages as i64,
            overhead_pages: AtomicI64::new(0),
            resident_pages: AtomicI64::new(0),
            promised_pages: AtomicI64::new(0),
            capacity_pages: capacity_pages as i64,
        }
    }

    /// Pages the program may have in DRAM now.
    pub fn limit_pages(&self) -> i64 {
        // Whatever the overhead grows to, a program makes progress with a few pages.
        (self.dram_pages - self.overhead_pages.load(Ordering::Relaxed)).max(512)
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

    /// Takes frames if they fit under the limit.
    pub fn try_take(&self, pages: i64) -> bool {
        let now = self.resident_pages.fetch_add(pages, Ordering::Relaxed) + pages;
        if now <= self.limit_pages() {
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
        let budget = Budget::new(2000, 100);
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
}
