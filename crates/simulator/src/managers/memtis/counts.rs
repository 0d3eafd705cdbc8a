// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hotness of pages by address space and address, and histograms of it (`spaces.c`).

use std::collections::BTreeMap;

use demeter_core::FMEM;
use demeter_core::peers::memtis::{
    EXEMPT_BIN, Histogram, NOWHERE, Period, SPLIT_PAGES, Thresholds, bin, skew,
};

use super::granule;
use crate::HUGE_PAGES;

/// Counts of 2 MiB with at least one sample.
enum Counted {
    /// Units of each base page.
    Base(Box<[u32; SPLIT_PAGES]>),
    /// Of a huge page: units, which are samples, and those by base page.
    Huge(u64, Box<[u32; SPLIT_PAGES]>),
}

/// See the module.
pub struct Hotness {
    counted: BTreeMap<(u64, u64), Counted>,
    totals: Totals,
    /// Since the last look at splitting.
    pub period: Period,
}

struct Totals {
    /// Pages as they are, and as if all were base pages.
    histogram: Histogram,
    base_histogram: Histogram,
    thresholds: Thresholds,
    base_thresholds: Thresholds,
    /// Base pages that have units.
    tracked: u64,
}

fn base_units(samples: u32) -> u64 {
    u64::from(samples) * HUGE_PAGES
}

/// What has no units is nowhere.
fn place(units: u64) -> u32 {
    if units > 0 { bin(units) } else { NOWHERE }
}

impl Totals {
    fn base(&mut self, from: u64, to: u64) {
        self.histogram.shift(place(from), place(to), 1);
        self.tracked += u64::from(from == 0 && to > 0);
        self.tracked -= u64::from(from > 0 && to == 0);
        self.part(from, to);
    }

    fn huge(&mut self, from: u64, to: u64) {
        self.histogram.shift(place(from), place(to), HUGE_PAGES);
    }

    fn part(&mut self, from: u64, to: u64) {
        self.base_histogram.shift(place(from), place(to), 1);
    }

    fn is_hot(&self, units: u64) -> bool {
        bin(units) >= self.thresholds.hot
    }

    fn is_cold(&self, units: u64) -> bool {
        bin(units) < self.thresholds.warm
    }
}

impl Hotness {
    /// Of nothing; all that has a sample is hot.
    pub fn new(gap_permille: u64) -> Self {
        let all = Thresholds { hot: 1, warm: 1 };
        Self {
            counted: BTreeMap::new(),
            totals: Totals {
                histogram: Histogram::default(),
                base_histogram: Histogram::default(),
                thresholds: all,
                base_thresholds: all,
                tracked: 0,
            },
            period: Period {
                gap_permille,
                ..Period::default()
            },
        }
    }

    /// Chooses what is hot by the histograms as they are.
    pub fn choose(&mut self, fmem_pages: u64) {
        let totals = &mut self.totals;
        totals.thresholds = totals.histogram.choose(fmem_pages);
        totals.base_thresholds = totals.base_histogram.choose(fmem_pages);
    }

    /// What is counted follows a page that is huge, or is not any more.
    pub fn follow(&mut self, space: u64, at: u64, huge: bool) {
        let Some(counted) = self.counted.get_mut(&(space, at)) else {
            return;
        };
        let totals = &mut self.totals;
        match counted {
            Counted::Base(units) if huge => {
                let mut samples = Box::new([0; SPLIT_PAGES]);
                let mut sum = 0;
                for (own, &units) in samples.iter_mut().zip(units.iter()) {
                    *own = units / HUGE_PAGES as u32;
                    sum += u64::from(*own);
                    totals.base(units.into(), 0);
                    totals.part(0, base_units(*own));
                }
                totals.huge(0, sum);
                self.period.huge_pages += 1;
                *counted = Counted::Huge(sum, samples);
            }
            Counted::Huge(sum, samples) if !huge => {
                totals.huge(*sum, 0);
                let mut units = Box::new([0; SPLIT_PAGES]);
                for (own, &samples) in units.iter_mut().zip(samples.iter()) {
                    totals.part(base_units(samples), 0);
                    *own = u32::try_from(base_units(samples)).unwrap_or(u32::MAX);
                    totals.base(0, u64::from(*own));
                }
                self.period.huge_pages -= 1;
                *counted = Counted::Base(units);
            }
            _ => {}
        }
    }

    /// One more sample.
    pub fn count(&mut self, space: u64, page: u64, huge: bool, tier: usize) {
        let at = granule(page);
        let part = (page % HUGE_PAGES) as usize;
        self.follow(space, at, huge);
        let period = &mut self.period;
        let counted = self.counted.entry((space, at)).or_insert_with(|| {
            let none = Box::new([0; SPLIT_PAGES]);
            if huge {
                period.huge_pages += 1;
                Counted::Huge(0, none)
            } else {
                Counted::Base(none)
            }
        });
        let totals = &mut self.totals;
        let own = match counted {
            Counted::Huge(sum, samples) => {
                totals.huge(*sum, *sum + 1);
                *sum += 1;
                let before = samples[part];
                samples[part] = before.saturating_add(1);
                totals.part(base_units(before), base_units(samples[part]));
                period.huge_samples += 1;
                base_units(samples[part])
            }
            Counted::Base(units) => {
                let before = units[part];
                units[part] = before.saturating_add(HUGE_PAGES as u32);
                totals.base(before.into(), units[part].into());
                units[part].into()
            }
        };
        if bin(own) >= totals.base_thresholds.hot {
            period.base_hits += 1;
        }
        period.samples += 1;
        period.hits += u64::from(tier == FMEM);
    }

    /// Pages of kernel memory that counts take: of a huge page a whole one, of 64 base pages a node
    /// of an XArray, seven of which are in a page.
    pub fn own_pages(&self) -> u64 {
        self.period.huge_pages + self.totals.tracked / (64 * 7)
    }

    /// Base pages that have units.
    pub fn tracked(&self) -> u64 {
        self.totals.tracked
    }

    /// Halves all counts.
    pub fn cool(&mut self) {
        let (totals, period) = (&mut self.totals, &mut self.period);
        self.counted.retain(|_, counted| match counted {
            Counted::Base(units) => {
                let mut any = false;
                for own in units.iter_mut().filter(|own| **own > 0) {
                    totals.base((*own).into(), (*own / 2).into());
                    *own /= 2;
                    any |= *own > 0;
                }
                any
            }
            Counted::Huge(sum, samples) => {
                totals.huge(*sum, *sum / 2);
                *sum /= 2;
                let is_kept = *sum > 0;
                for own in samples.iter_mut().filter(|own| **own > 0) {
                    let half = if is_kept { *own / 2 } else { 0 };
                    totals.part(base_units(*own), base_units(half));
                    *own = half;
                }
                period.huge_pages -= u64::from(!is_kept);
                is_kept
            }
        });
    }

    /// Whether a huge page is to leave FMEM.
    pub fn is_cold_huge(&self, space: u64, at: u64) -> bool {
        match self.counted.get(&(space, at)) {
            Some(Counted::Huge(sum, _)) => self.totals.is_cold(*sum),
            _ => self.totals.is_cold(0),
        }
    }

    /// Whether a base page is.
    pub fn is_cold_base(&self, space: u64, page: u64) -> bool {
        match self.counted.get(&(space, granule(page))) {
            Some(Counted::Base(units)) => {
                (self.totals).is_cold(units[(page % HUGE_PAGES) as usize].into())
            }
            _ => self.totals.is_cold(0),
        }
    }

    /// Numbers of 2 MiB of an address space, from one on, in which a page is hot: whether it is
    /// a huge one, or which base pages are.
    pub fn hot(&self, space: u64) -> impl Iterator<Item = (u64, Option<Vec<u64>>)> {
        (self.counted.range((space, 0)..=(space, u64::MAX))).filter_map(|(&(_, at), counted)| {
            match counted {
                Counted::Huge(sum, _) => self.totals.is_hot(*sum).then_some((at, None)),
                Counted::Base(units) => {
                    let pages: Vec<u64> = (units.iter().enumerate())
                        .filter(|(_, own)| **own > 0 && self.totals.is_hot(u64::from(**own)))
                        .map(|(part, _)| at * HUGE_PAGES + part as u64)
                        .collect();
                    (!pages.is_empty()).then_some((at, Some(pages)))
                }
            }
        })
    }

    /// The huge page that is accessed most unevenly, of those that are not exempt.
    pub fn most_skewed(&self) -> Option<(u64, u64)> {
        let mut most = (0, None);
        for (&place, counted) in &self.counted {
            let Counted::Huge(sum, samples) = counted else {
                continue;
            };
            if bin(*sum) >= EXEMPT_BIN {
                continue;
            }
            let skew = skew(samples, self.totals.base_thresholds.hot);
            if skew > most.0 {
                most = (skew, Some(place));
            }
        }
        most.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use demeter_core::SMEM;

    #[test]
    fn counts_follow_a_page_that_is_split() {
        let mut hotness = Hotness::new(1570);
        for page in [3, 3, 3, 512] {
            hotness.count(1, page, true, SMEM);
        }
        assert_eq!((hotness.period.huge_pages, hotness.period.samples), (2, 4));
        hotness.choose(700);
        let hot: Vec<_> = hotness.hot(1).collect();
        assert_eq!(hot, [(0, None)], "the hotter one fits");
        assert!(hotness.is_cold_huge(1, 7) && !hotness.is_cold_huge(1, 1));
        assert_eq!(hotness.most_skewed(), None, "by far too few samples");
        hotness.follow(1, 0, false);
        assert_eq!(hotness.period.huge_pages, 1);
        let hot: Vec<_> = hotness.hot(1).collect();
        assert_eq!(hot[0], (0, Some(vec![3])));
        assert!(hotness.is_cold_base(1, 4) && !hotness.is_cold_base(1, 3));
        hotness.follow(1, 0, true);
        assert_eq!(hotness.hot(1).next(), Some((0, None)));
    }

    #[test]
    fn halving_forgets_what_is_hardly_used() {
        let mut hotness = Hotness::new(1570);
        hotness.count(1, 3, true, FMEM);
        hotness.count(1, 700, false, FMEM);
        hotness.cool();
        assert_eq!(hotness.period.huge_pages, 0);
        assert_eq!(hotness.hot(1).count(), 1, "a base page has units left");
        for _ in 0..9 {
            hotness.cool();
        }
        assert_eq!(hotness.hot(1).count(), 0);
        assert!(hotness.counted.is_empty());
        assert_eq!(hotness.tracked(), 0);
        let empty = Histogram::default();
        assert_eq!(hotness.totals.histogram, empty);
        assert_eq!(hotness.totals.base_histogram, empty);
    }
}
