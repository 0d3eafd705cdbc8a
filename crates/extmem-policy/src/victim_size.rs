// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How large the victim cache should be.

use crate::abi::{Arrival, FIRST_TOUCH, VICTIM_CACHE};

/// The victim cache is as large as it is useful. It takes no DRAM that pages could have,
/// but a touch there costs a fault, so it must teach something: that those it saves are
/// wanted more often than others. Where all pages are wanted alike, a share of it is saved
/// that is as large as the cache is beside the pages in swap, and nothing is learnt.
#[derive(Debug)]
pub struct VictimSize {
    pages: u32,
    least: u32,
    most: u32,
    period: u32,
    passed: u32,
    saved: u32,
    /// Pages that left DRAM and did not come back.
    out_pages: u32,
}

impl VictimSize {
    /// Between one page in `shares.0` and one in `shares.1` of DRAM; at first a sixteenth.
    pub fn new(dram_pages: u32, shares: (u32, u32)) -> Self {
        Self {
            pages: dram_pages / 16,
            least: dram_pages / shares.0.max(1),
            most: dram_pages / shares.1.max(1),
            period: (dram_pages / 16).max(64),
            passed: 0,
            saved: 0,
            out_pages: 0,
        }
    }

    /// So many pages were named as victims.
    pub fn passed(&mut self, count: u32) {
        self.passed = self.passed.saturating_add(count);
        if self.passed < self.period {
            return;
        }
        let by_chance = u64::from(self.passed) * u64::from(self.pages)
            / u64::from(self.out_pages.max(self.pages).max(1));
        let saved = u64::from(self.saved);
        // Growing is done at once, for pages that are hot come in waves as they grow old
        // together.
        if self.saved > self.passed / 16 && saved > by_chance + by_chance / 2 {
            self.pages = (self.pages * 2 + 1).min(self.most);
        } else if self.saved < self.passed / 128 || saved < by_chance + by_chance / 8 {
            self.pages = (self.pages - self.pages / 4).max(self.least);
        }
        (self.passed, self.saved) = (0, 0);
    }

    /// So many pages left DRAM.
    pub fn left(&mut self, count: usize) {
        self.out_pages = self.out_pages.saturating_add(count as u32);
    }

    /// A page came to DRAM, or was wanted while it lay in the victim cache.
    pub fn arrived(&mut self, arrival: &Arrival) {
        match arrival.source {
            VICTIM_CACHE => self.saved = self.saved.saturating_add(1),
            FIRST_TOUCH => {}
            _ => self.out_pages = self.out_pages.saturating_sub(1),
        }
    }

    /// What it should have now.
    pub fn pages(&self) -> u32 {
        self.pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saves(size: &mut VictimSize, count: u32) {
        let arrival = Arrival {
            source: VICTIM_CACHE,
            ..Arrival::default()
        };
        (0..count).for_each(|_| size.arrived(&arrival));
    }

    #[test]
    fn follows_its_use_within_limits() {
        let mut size = VictimSize::new(6400, (64, 8));
        assert_eq!(size.pages(), 400);
        (0..50).for_each(|_| size.passed(2000));
        assert!((100..=110).contains(&size.pages()), "{}", size.pages());
        size.left(6400);
        for _ in 0..50 {
            saves(&mut size, 500);
            size.passed(2000);
        }
        assert_eq!(size.pages(), 800);
        // As many as chance saves where all pages are alike: nothing is learnt.
        for _ in 0..50 {
            let by_chance = 2000 * size.pages() / 6400;
            saves(&mut size, by_chance);
            size.passed(2000);
        }
        assert!((100..=110).contains(&size.pages()), "{}", size.pages());
    }
}
