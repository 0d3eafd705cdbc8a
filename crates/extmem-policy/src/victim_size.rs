// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How large the victim cache should be.

/// The victim cache is as large as it is useful: it costs a move for each page that
/// passes, and DRAM that other pages could have. It starts at a sixteenth of DRAM.
#[derive(Debug)]
pub struct VictimSize {
    pages: u32,
    least: u32,
    most: u32,
    period: u32,
    passed: u32,
    saved: u32,
}

impl VictimSize {
    /// Between one page in `shares.0` and one in `shares.1` of DRAM.
    pub fn new(dram_pages: u32, shares: (u32, u32)) -> Self {
        Self {
            pages: dram_pages / 16,
            least: dram_pages / shares.0.max(1),
            most: dram_pages / shares.1.max(1),
            period: (dram_pages / 16).max(64),
            passed: 0,
            saved: 0,
        }
    }

    /// So many pages were named as victims.
    pub fn passed(&mut self, count: u32) {
        self.passed = self.passed.saturating_add(count);
        if self.passed < self.period {
            return;
        }
        // More than one in sixteen saved: worth more room, and at once, for pages that are
        // hot come in waves as they grow old together. Hardly any: worth less.
        if self.saved > self.passed / 16 {
            self.pages = (self.pages * 2 + 1).min(self.most);
        } else if self.saved < self.passed / 128 {
            self.pages = (self.pages - self.pages / 4).max(self.least);
        }
        (self.passed, self.saved) = (0, 0);
    }

    /// A page was wanted while it lay in the victim cache.
    pub fn saved(&mut self) {
        self.saved = self.saved.saturating_add(1);
    }

    /// What it should have now.
    pub fn pages(&self) -> u32 {
        self.pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_its_use_within_limits() {
        let mut size = VictimSize::new(6400, (64, 8));
        assert_eq!(size.pages(), 400);
        (0..50).for_each(|_| size.passed(2000));
        assert!((100..=110).contains(&size.pages()), "{}", size.pages());
        for _ in 0..50 {
            (0..500).for_each(|_| size.saved());
            size.passed(2000);
        }
        assert_eq!(size.pages(), 800);
    }
}
