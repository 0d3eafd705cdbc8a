// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The line filter: what the core's L1 would serve, decided by virtual address.
//!
//! It is the only part of the model that every access pays for, so it is one
//! compare: direct mapped, 512 lines (32 KiB). Being virtual it must forget a
//! page whenever the TLB does, or an access to a page that has moved would be
//! taken for a hit on the old place.

const LINES: usize = 512;

/// Direct-mapped filter of recently used lines.
#[derive(Clone, Debug)]
pub struct LineFilter {
    /// Line number, 0 for none: line 0 is the null page, which is never mapped.
    lines: [u64; LINES],
    /// Whether the line was filled through a large page.
    large: [bool; LINES],
}

impl Default for LineFilter {
    fn default() -> Self {
        Self {
            lines: [0; LINES],
            large: [false; LINES],
        }
    }
}

impl LineFilter {
    /// Whether the line of `va` is in; if not it is put in, as of a small page.
    #[inline(always)]
    pub fn hit(&mut self, va: u64) -> bool {
        let line = va >> 6;
        let slot = &mut self.lines[line as usize % LINES];
        if *slot == line {
            return true;
        }
        *slot = line;
        false
    }

    /// Records through what size of page the line just put in was translated.
    #[inline]
    pub fn set_large(&mut self, va: u64, large: bool) {
        self.large[(va >> 6) as usize % LINES] = large;
    }

    /// Forgets the page at `va`: its 4 KiB page, and its 2 MiB page for lines filled through one.
    pub fn forget_page(&mut self, va: u64) {
        for (line, &large) in self.lines.iter_mut().zip(&self.large) {
            if *line >> 6 == va >> 12 || (large && *line >> 15 == va >> 21) {
                *line = 0;
            }
        }
    }

    /// Forgets the lower half of the address space.
    pub fn forget_user(&mut self) {
        for line in &mut self.lines {
            // A line number has the sign bit of its address at bit 57.
            if *line >> 57 == 0 {
                *line = 0;
            }
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.lines.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KERNEL: u64 = 0xffff_8880_0000_0000;

    #[test]
    fn lines_32_kib_apart_collide() {
        let mut filter = LineFilter::default();
        assert!(!filter.hit(0x10_0000));
        assert!(filter.hit(0x10_003f));
        assert!(!filter.hit(0x10_8000));
        assert!(!filter.hit(0x10_0000));
    }

    #[test]
    fn user_flush_keeps_the_kernel() {
        let mut filter = LineFilter::default();
        filter.hit(0x40_0000);
        filter.hit(KERNEL + 64);
        filter.forget_user();
        assert!(!filter.hit(0x40_0000));
        assert!(filter.hit(KERNEL + 64));
    }

    #[test]
    fn large_page_is_forgotten_whole() {
        let mut filter = LineFilter::default();
        filter.hit(0x40_0040);
        filter.set_large(0x40_0040, true);
        filter.hit(0x40_1080);
        filter.set_large(0x40_1080, false);
        filter.forget_page(0x5f_f000);
        assert!(!filter.hit(0x40_0040));
        assert!(filter.hit(0x40_1080));
    }

    proptest! {
        /// After a page is forgotten none of its lines hits.
        #[test]
        fn no_hit_survives(vas in prop::collection::vec(0x1000u64..0x4_0000, 1..500), page in 1u64..0x40) {
            let mut filter = LineFilter::default();
            for &va in &vas { filter.hit(va); }
            let before = filter.clone();
            filter.forget_page(page << 12);
            for line in 0..64 {
                prop_assert!(!filter.clone().hit(page << 12 | line << 6));
            }
            for &va in vas.iter().filter(|va| *va >> 12 != page) {
                prop_assert_eq!(before.clone().hit(va), filter.clone().hit(va));
            }
        }
    }
}
