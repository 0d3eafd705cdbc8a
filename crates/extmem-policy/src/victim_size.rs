// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How large the victim cache should be.

use crate::abi::{Arrival, FIRST_TOUCH, STREAM, VICTIM_CACHE};

/// A rest, and the period after it in which the cache fills.
const REST_PERIODS: u32 = 8;
/// It is large for so long at a time: each page of DRAM has passed through it one and a half
/// times by then.
const LEARNING_PERIODS: u32 = 24;
/// Then it stays small for so long, a share of the largest.
const SETTLED_PERIODS: u32 = 128;
/// At least for so long if that was ended early before, and each time twice as long: where the
/// program is done with most of what is out, the rest comes back early whatever is known.
const LEAST_SETTLED_PERIODS: u32 = 8;
const SETTLED_SHARE: u32 = 4;
/// A page comes back early if it does so before one in so many of the pages in swap left.
const EARLY_SHARE: u32 = 8;
/// Where all pages are wanted alike, as many come back early: 1 - exp(-1/8), in permille.
const EARLY_PERMILLE: u64 = 117;
/// Whether pages are alike is judged by what one in so many pages of DRAM tells.
const ALIKE_SHARE: u32 = 2;

/// The victim cache is as large as it is useful. It takes no DRAM that pages could have,
/// but a touch there costs a fault, so it must teach something: that those it saves are
/// wanted more often than others. Where all pages are wanted alike, a share of it is saved
/// that is as large as the cache is beside the pages in swap, and nothing is learnt. Then
/// it rests, for to move pages there has its price too, and is tried again now and then.
/// Pages that come back from swap early tell the same without it: where an eighth more of
/// them do than chance would have it (and three standard deviations, so that it is not
/// chance), there is much to learn, and it is as large as may be for a while. What was
/// learnt is then kept by a small one as well, for a fraction of the faults, until twice as many
/// come back early as by chance: others are hot now.
#[derive(Debug)]
pub struct VictimSize {
    pages: u32,
    /// Periods that are not judged: it rests in them, but for the last, in which it fills.
    rest: u32,
    /// Periods that it may still be large.
    learning: u32,
    /// Periods in which it still stays small, and those in which it does so whatever comes back.
    settled: u32,
    certain: u32,
    /// What `certain` will be next time.
    next_certain: u32,
    least: u32,
    most: u32,
    period: u32,
    /// Victims whose fate is known, and those of them that were saved.
    passed: u32,
    saved: u32,
    /// Of those saved, those in the younger half of it.
    young: u32,
    /// Pages that came back from swap by themselves, and those that did so early.
    returned: u32,
    early: u32,
    /// Pages that left DRAM and did not come back.
    out_pages: u32,
    alike: Alike,
    /// They were found to be, and what was learnt of them is nothing.
    are_alike: bool,
    /// Of those that came back meanwhile, so many did early, in permille: more than by chance
    /// where the program is done with some that are out.
    alike_early_permille: u64,
}

/// Are the pages that pass through the cache wanted alike? Tells only while the cache keeps
/// its size.
#[derive(Debug, Default)]
struct Alike {
    /// Since its size changed: the first period, in which it fills, does not count.
    fills: bool,
    passed: u32,
    saved: u32,
    /// Of those saved, those in the younger half.
    young: u32,
    /// Pages that came back from swap by themselves, and those that did so early.
    returned: u32,
    early: u32,
}

impl Alike {
    /// A period of so many ends; if it can be told that pages are alike, how many permille of
    /// those that come back do so early. Of pages that are, a share `F` is saved, and of those
    /// 1 / (1 + sqrt(1 - F)) in the younger half.
    fn judge(&mut self, period: &Self, is_same_size: bool, enough: u32) -> Option<u64> {
        if !is_same_size || self.fills {
            *self = Self {
                fills: !is_same_size,
                ..Self::default()
            };
            return None;
        }
        self.passed = self.passed.saturating_add(period.passed);
        self.saved = self.saved.saturating_add(period.saved);
        self.young = self.young.saturating_add(period.young);
        self.returned = self.returned.saturating_add(period.returned);
        self.early = self.early.saturating_add(period.early);
        if self.saved < enough {
            return None;
        }
        let (saved, passed) = (u64::from(self.saved), u64::from(self.passed));
        let staying = passed.saturating_sub(saved) * 1_000_000 / passed.max(1);
        let young_if_alike = saved * 1000 / (1000 + staying.isqrt());
        // And by chance a little more, a standard deviation; that it is no chance would take
        // three, but not to see that some are hot costs more than to look again.
        let most = young_if_alike + young_if_alike / 32 + saved.isqrt() / 2;
        let are_alike = u64::from(self.young) <= most;
        let early_permille = u64::from(self.early) * 1000 / u64::from(self.returned.max(1));
        *self = Self::default();
        are_alike.then_some(early_permille)
    }
}

impl VictimSize {
    /// Between one page in `shares.0` and one in `shares.1` of DRAM; at first a sixteenth.
    pub fn new(dram_pages: u32, shares: (u32, u32)) -> Self {
        Self {
            pages: dram_pages / 16,
            rest: 0,
            learning: 0,
            settled: 0,
            certain: 0,
            next_certain: 0,
            least: dram_pages / shares.0.max(1),
            most: dram_pages / shares.1.max(1),
            period: (dram_pages / 16).max(64),
            passed: 0,
            saved: 0,
            young: 0,
            returned: 0,
            early: 0,
            out_pages: 0,
            alike: Alike::default(),
            are_alike: false,
            alike_early_permille: 0,
        }
    }

    /// It is known what became of so many victims.
    fn passed(&mut self, count: u32) {
        self.passed = self.passed.saturating_add(count);
        if self.passed < self.period {
            return;
        }
        let before_pages = self.pages;
        let by_chance = u64::from(self.passed) * u64::from(self.pages)
            / u64::from(self.out_pages.max(self.pages).max(1));
        let saved = u64::from(self.saved);
        let teaches_little =
            self.are_alike || self.saved < self.passed / 128 || saved < by_chance + by_chance / 8;
        let teaches_much = self.saved > self.passed / 16 && saved > by_chance + by_chance / 2;
        let returned = u64::from(self.returned);
        let early_by_chance = returned * EARLY_PERMILLE / 1000;
        let returns_early = self.returned > self.period / 2
            && u64::from(self.early)
                > early_by_chance + early_by_chance / 8 + 3 * early_by_chance.isqrt();
        // Others are wanted than those that it was settled for.
        let as_then = (returned * self.alike_early_permille * 3 / 2000).max(2 * early_by_chance);
        if self.settled > 0 && !returns_early {
            self.next_certain = 0;
        } else if self.settled > 0
            && self.certain == 0
            && u64::from(self.early) > as_then + 3 * as_then.isqrt()
        {
            self.next_certain =
                (2 * self.next_certain).clamp(LEAST_SETTLED_PERIODS, SETTLED_PERIODS);
            self.begin_anew();
        }
        if returns_early && self.settled == 0 {
            (self.pages, self.rest) = (self.most, 0);
            self.begin_learning();
        } else if self.rest > 0 {
            self.rest -= 1;
        } else if teaches_much && self.settled == 0 {
            // At once, for pages that are hot come in waves as they grow old together.
            self.pages = (self.pages * 2 + 1).min(self.most);
            self.begin_learning();
        } else if teaches_little && self.pages == self.least {
            self.rest = REST_PERIODS;
        } else {
            let least = if self.settled > 0 && !teaches_little {
                self.least.max(self.most / SETTLED_SHARE)
            } else {
                self.least
            };
            self.pages = (self.pages - self.pages / 4).max(least);
        }
        self.grow_older();
        let period = Alike {
            passed: self.passed,
            saved: self.saved,
            young: self.young,
            returned: self.returned,
            early: self.early,
            fills: false,
        };
        let is_same_size = self.pages == before_pages && self.rest == 0;
        let enough = self.period * 16 / ALIKE_SHARE;
        if let Some(early_permille) = self.alike.judge(&period, is_same_size, enough) {
            self.alike_early_permille = early_permille;
            // There is nothing to learn: as if it were learnt.
            (self.are_alike, self.learning) = (true, 0);
            self.begin_settled();
            (self.pages, self.rest) = (self.least, REST_PERIODS);
        }
        (self.passed, self.saved, self.young) = (0, 0, 0);
        (self.returned, self.early) = (0, 0);
    }

    /// What was learnt is of no use any more.
    pub fn begin_anew(&mut self) {
        (self.settled, self.are_alike) = (0, false);
        self.alike_early_permille = 0;
    }

    fn begin_learning(&mut self) {
        if self.learning == 0 {
            self.learning = LEARNING_PERIODS;
        }
    }

    fn begin_settled(&mut self) {
        (self.settled, self.certain) = (SETTLED_PERIODS, self.next_certain);
    }

    /// A period ends.
    fn grow_older(&mut self) {
        if self.learning > 0 {
            self.learning -= 1;
            if self.learning == 0 {
                self.begin_settled();
            }
        } else if self.settled > 0 {
            self.settled -= 1;
            self.certain = self.certain.saturating_sub(1);
            if self.settled == 0 {
                self.begin_anew();
            }
        }
    }

    /// So many pages left DRAM.
    pub fn left(&mut self, count: usize) {
        self.out_pages = self.out_pages.saturating_add(count as u32);
        self.passed(count as u32);
    }

    /// So many of those are done with: their memory was given back.
    pub fn forget(&mut self, count: u32) {
        self.out_pages = self.out_pages.saturating_sub(count);
    }

    /// A page came to DRAM, or was wanted while it lay in the victim cache; whether it was one of
    /// those that had left.
    pub fn arrived(&mut self, arrival: &Arrival, was_out: bool) {
        match arrival.source {
            VICTIM_CACHE => {
                self.saved = self.saved.saturating_add(1);
                self.young += u32::from(arrival.cache_permille < 500);
                self.passed(1);
            }
            // It says nothing of those that made room for it.
            FIRST_TOUCH => {
                self.passed = self.passed.saturating_sub(1);
                // What had left as all zero comes as if it were new.
                self.forget(u32::from(was_out));
            }
            _ => {
                if arrival.flags & STREAM == 0 {
                    self.returned = self.returned.saturating_add(1);
                    self.early += u32::from(arrival.distance < self.out_pages / EARLY_SHARE);
                }
                self.out_pages = self.out_pages.saturating_sub(1);
            }
        }
    }

    /// Whether it teaches enough to be larger than it must be.
    pub fn is_large(&self) -> bool {
        self.pages > self.least
    }

    /// What it should have now.
    pub fn pages(&self) -> u32 {
        if self.rest > 1 { 0 } else { self.pages }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::SWAP;

    /// Sizes in 60 periods, in each of which `save` of 2000 pages are saved, all of them young.
    fn sizes(size: &mut VictimSize, save: impl Fn(u32) -> u32) -> Vec<u32> {
        let mut sizes = vec![];
        for _ in 0..60 {
            size.saved += save(size.pages());
            size.young = size.saved;
            size.passed(2000);
            sizes.push(size.pages());
        }
        sizes
    }

    /// Half of the pages that pass are saved, as many of them young as stated, and others come
    /// back early, whatever is saved.
    fn size_after(periods: u32, young_permille: u32) -> u32 {
        let mut size = VictimSize::new(6400, (64, 8));
        size.left(6400);
        for _ in 0..periods {
            (size.saved, size.young) = (200, 200 * young_permille / 1000);
            (size.returned, size.early) = (400, 200);
            size.passed(400);
        }
        size.pages()
    }

    #[test]
    fn pages_that_are_alike_teach_nothing() {
        // Of a half that is saved 1 / (1 + sqrt(1/2)) go in the younger half.
        assert_eq!(size_after(14, 585), 800);
        assert_eq!(size_after(20, 585), 0);
        assert_eq!(size_after(20, 700), 800);
        // It is tried now and then, and at last anew.
        let tried = (20..20 + REST_PERIODS).any(|periods| size_after(periods, 585) == 100);
        assert!(tried);
        assert_eq!(size_after(20 + SETTLED_PERIODS, 585), 800);
    }

    /// Where pages were alike, and some are hot now, that is looked for at once.
    #[test]
    fn pages_that_were_alike_may_be_so_no_more() {
        let early_after = |early: u32| {
            let mut size = VictimSize::new(6400, (64, 8));
            size.left(6400);
            for period in 0..24 {
                (size.saved, size.young) = (200, 117);
                (size.returned, size.early) = (400, if period < 20 { 60 } else { early });
                size.passed(400);
            }
            size.pages()
        };
        assert_eq!((early_after(60), early_after(100)), (0, 0));
        assert_eq!(early_after(200), 800);
    }

    /// Of what is out most is done with: the rest comes back early for good.
    #[test]
    fn to_learn_in_vain_is_not_repeated_soon() {
        let mut size = VictimSize::new(6400, (64, 8));
        size.left(6400);
        let large = (0..600).filter(|_| {
            (size.saved, size.young) = (100, 100);
            (size.returned, size.early) = (400, 150);
            size.passed(400);
            size.pages() == 800
        });
        let large = large.count();
        assert!((120..240).contains(&large), "{large}");
    }

    /// To grow or to shrink says nothing of what is in it.
    #[test]
    fn only_pages_whose_fate_is_known_count() {
        let saved = Arrival {
            source: VICTIM_CACHE,
            ..Arrival::default()
        };
        let mut size = VictimSize::new(6400, (64, 8));
        size.out_pages = 6400;
        // Of 400 pages 399 were saved.
        (0..399).for_each(|_| size.arrived(&saved, false));
        assert_eq!(size.pages(), 400);
        size.left(1);
        assert_eq!((size.pages(), size.passed, size.saved), (800, 0, 0));
        // Of the next 400 none.
        (0..400).for_each(|_| size.left(1));
        assert_eq!(size.pages(), 600);
    }

    /// It rests but for the period in which it fills, and the one that is judged.
    fn assert_rests(sizes: &[u32]) {
        let awake: Vec<_> = sizes[42..].iter().filter(|&&pages| pages > 0).collect();
        assert_eq!(awake.len(), 4, "{sizes:?}");
        assert!(awake.iter().all(|pages| (100..=110).contains(*pages)));
    }

    #[test]
    fn follows_its_use_within_limits() {
        let mut size = VictimSize::new(6400, (64, 8));
        assert_eq!(size.pages(), 400);
        assert_rests(&sizes(&mut size, |_| 0));
        size.left(6400);
        // Until it has taught what it can; nobody comes back early for it.
        let while_useful = sizes(&mut size, |_| 500);
        let largest = while_useful.iter().filter(|&&pages| pages == 800).count();
        assert!((20..=24).contains(&largest), "{largest}");
        assert_eq!(while_useful[59], 800 / SETTLED_SHARE);
        size.begin_anew();
        // As many as chance saves where all pages are alike: nothing is learnt.
        assert_rests(&sizes(&mut size, |pages| 2000 * pages / 6400));
    }

    #[test]
    fn pages_that_come_back_early_wake_it() {
        let mut size = VictimSize::new(6400, (64, 8));
        let returns = |size: &mut VictimSize, early: u32| {
            let back = |distance| Arrival {
                source: SWAP,
                distance,
                ..Arrival::default()
            };
            for at in 0..400 {
                size.arrived(&back(if at * 79 % 400 < early { 10 } else { 5000 }), true);
                size.left(1);
            }
        };
        size.left(6400);
        // As many as by chance.
        (0..30).for_each(|_| returns(&mut size, 46));
        assert!(size.pages() <= 100, "{}", size.pages());
        (0..2).for_each(|_| returns(&mut size, 80));
        assert_eq!(size.pages(), 800);
        // Until what there is to learn is learnt.
        (0..LEARNING_PERIODS - 2).for_each(|_| returns(&mut size, 80));
        assert_eq!(size.pages(), 800);
        let save = |size: &mut VictimSize, saved: u32, early: u32| {
            size.saved += saved;
            returns(size, early);
        };
        // And stays small, whether some pages come back early or not.
        for period in 0..20 {
            save(&mut size, 100, if period % 4 == 0 { 80 } else { 46 });
        }
        assert_eq!(size.pages(), 800 / SETTLED_SHARE);
        // Others are hot now.
        save(&mut size, 100, 130);
        assert_eq!(size.pages(), 800);
    }
}
