// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memtis: bins of hotness, thresholds, the pace of sampling, and what is split.

unsafe extern "C" {
    fn demeter_memtis_bin(units: u64) -> u32;
    fn demeter_memtis_move(histogram: *mut Histogram, from: u32, to: u32, pages: u64);
    fn demeter_memtis_choose(histogram: *const Histogram, fmem_pages: u64) -> Thresholds;
    fn demeter_memtis_load_period(step: u32) -> u32;
    fn demeter_memtis_step(step: u32, used_permille: u64, quota_permille: u64) -> u32;
    fn demeter_memtis_skew(samples: *const u32, hot: u32) -> u32;
    fn demeter_memtis_split_due(period: *const Period) -> bool;
    fn demeter_memtis_split(splitting: *mut Splitting, period: *const Period) -> u64;
}

/// Bins of hotness.
pub const BINS: usize = 16;
/// Base pages of a huge one.
pub const SPLIT_PAGES: usize = 512;
/// Huge pages of this bin or above stay whole.
pub const EXEMPT_BIN: u32 = 13;
/// As a bin: the page was not there before, or is gone.
pub const NOWHERE: u32 = BINS as u32;

/// Base pages by hotness; see `struct demeter_memtis_histogram`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    pub(super) pages: [u64; BINS],
}

impl Histogram {
    /// Pages change their bin.
    pub fn shift(&mut self, from: u32, to: u32, pages: u64) {
        // SAFETY: valid for the call; bins beyond the last are [`NOWHERE`].
        unsafe { demeter_memtis_move(self, from, to, pages) }
    }

    /// Thresholds for a size of FMEM.
    #[must_use]
    pub fn choose(&self, fmem_pages: u64) -> Thresholds {
        // SAFETY: valid for the call.
        unsafe { demeter_memtis_choose(self, fmem_pages) }
    }

    /// Pages in a bin.
    #[must_use]
    pub fn pages(&self, bin: u32) -> u64 {
        self.pages.get(bin as usize).copied().unwrap_or(0)
    }
}

/// Least bins; see `struct demeter_memtis_thresholds`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Of what belongs into FMEM.
    pub hot: u32,
    /// Of what is not demoted.
    pub warm: u32,
}

/// What was seen since the last look at splitting; see `struct demeter_memtis_period`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Period {
    /// All samples.
    pub samples: u64,
    /// Of these, served by FMEM.
    pub hits: u64,
    /// Of these, in base pages that would be hot, were all pages base pages.
    pub base_hits: u64,
    /// Of these, in huge pages.
    pub huge_samples: u64,
    /// Huge pages with samples.
    pub huge_pages: u64,
    /// Base pages of programs.
    pub resident_pages: u64,
    /// Base pages that FMEM has for them.
    pub fmem_pages: u64,
    /// By how much SMEM is slower than FMEM.
    pub gap_permille: u64,
}

impl Period {
    /// Whether there were samples enough to look at splitting.
    #[must_use]
    pub fn is_due(&self) -> bool {
        // SAFETY: valid for the call.
        unsafe { demeter_memtis_split_due(self) }
    }
}

/// What is known of splitting; see `struct demeter_memtis_splitting`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Splitting {
    pub(super) before_permille: u64,
    pub(super) tried: bool,
    pub(super) off: bool,
}

impl Splitting {
    /// How many huge pages to split.
    pub fn decide(&mut self, period: &Period) -> u64 {
        // SAFETY: both are valid for the call.
        unsafe { demeter_memtis_split(self, period) }
    }
}

/// Bin of so many units: 512 for a sample in a base page, 1 for one in a huge page.
#[must_use]
pub fn bin(units: u64) -> u32 {
    // SAFETY: no pointers.
    unsafe { demeter_memtis_bin(units) }
}

/// Loads for each sample.
#[must_use]
pub fn load_period(step: u32) -> u32 {
    // SAFETY: no pointers.
    unsafe { demeter_memtis_load_period(step) }
}

/// The step to go on with.
#[must_use]
pub fn step(step: u32, used_permille: u64, quota_permille: u64) -> u32 {
    // SAFETY: no pointers.
    unsafe { demeter_memtis_step(step, used_permille, quota_permille) }
}

/// How unevenly a huge page is accessed.
#[must_use]
pub fn skew(samples: &[u32; SPLIT_PAGES], hot: u32) -> u32 {
    // SAFETY: as many as C reads.
    unsafe { demeter_memtis_skew(samples.as_ptr(), hot) }
}

/// As C has them, for those who pass fixed arrays.
const _: () = assert!(BINS == 16 && SPLIT_PAGES == 512);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_hot() {
        let mut histogram = Histogram::default();
        histogram.shift(NOWHERE, 9, 512);
        histogram.shift(NOWHERE, 4, 5120);
        histogram.shift(9, 10, 100);
        assert_eq!([9, 10, 4].map(|bin| histogram.pages(bin)), [412, 100, 5120]);
        let few = histogram.choose(1000);
        assert_eq!((few.hot, few.warm), (5, 4));
        assert_eq!(histogram.choose(10_000).hot, 1);
        assert_eq!((bin(0), bin(511), bin(u64::MAX)), (0, 9, BINS as u32 - 1));
    }

    #[test]
    fn the_pace_keeps_to_its_quota() {
        assert_eq!(
            (load_period(0), load_period(1), load_period(99)),
            (199, 293, 19997)
        );
        assert_eq!([40, 32, 20].map(|used| step(5, used, 30)), [6, 5, 4]);
    }

    #[test]
    fn uneven_huge_pages_are_split() {
        let mut samples = [0; SPLIT_PAGES];
        samples[7] = 100;
        assert!(skew(&samples, 1) > skew(&[10; SPLIT_PAGES], 1));
        let mut period = Period {
            samples: 10_000,
            hits: 1000,
            base_hits: 9000,
            huge_samples: 10_000,
            huge_pages: 100,
            resident_pages: 1000,
            fmem_pages: 100,
            gap_permille: 1570,
        };
        assert!(period.is_due());
        let mut splitting = Splitting::default();
        assert!(splitting.decide(&period) > 0);
        assert_eq!(splitting.decide(&period), 0, "it did not help");
        period.samples = 0;
        assert!(!period.is_due());
    }
}
