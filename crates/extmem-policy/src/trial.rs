// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether pages that were hot still are.

use crate::abi::{Arrival, VICTIM_CACHE};
use crate::{Memory, PageSet};

/// What is known of pages on trial is halved after one page of DRAM in so many.
const MEMORY_SHARE: u32 = 64;
/// But not after fewer: of a hundred pages used at random, of which a fourth is wanted again,
/// so many are once in some thousand times that hot pages would be trusted.
const LEAST_MEMORY: u32 = 512;
/// What is known of new ones is halved after so many: where others are hot now, that must be
/// seen soon.
const NEW_MEMORY: u32 = 128;
/// A page that comes back before one in so many pages of DRAM was evicted was wanted.
const SOON_SHARE: u32 = 4;
/// Where as many pages on trial are wanted again, hot pages are left alone, in permille.
const TRUSTED_PERMILLE: u32 = 400;
/// Where as many new ones are, others are hot now.
const NEW_TRUSTED_PERMILLE: u32 = 600;
/// Where only as many are, the hot pages are other ones now.
const STALE_PERMILLE: u32 = 200;
/// Where they are trusted, one in so many is tried all the same.
const PROOF_SHARE: u32 = 32;
const NEW_PROOF_SHARE: u32 = 8;
/// Pages put on trial for each that comes back where the hot pages are other ones, in permille.
const MOST_PERMILLE: u32 = 2000;
/// Where pages that were never hot are wanted again nearly as often, having been hot says
/// nothing: hot ones are trusted if so many permille as many of them are.
const BETTER_PERMILLE: u32 = 1200;
/// One in so many pages that were never hot is watched to tell.
const OTHERS_SHARE: u32 = 8;

/// Of pages that were named as victims, how many were wanted again lately.
#[derive(Debug, Clone, Copy)]
struct Tally {
    /// It is halved after so many.
    memory: u32,
    ended: u32,
    wanted: u32,
}

impl Tally {
    const fn new(memory: u32) -> Self {
        Self {
            memory,
            ended: 0,
            wanted: 0,
        }
    }

    fn end(&mut self) {
        self.ended += 1;
        if self.ended >= self.memory {
            (self.ended, self.wanted) = (self.ended / 2, self.wanted / 2);
        }
    }

    /// None while too few are known.
    fn wanted_permille(&self) -> Option<u32> {
        (self.ended >= self.memory / 2)
            .then(|| (u64::from(self.wanted) * 1000 / u64::from(self.ended)) as u32)
    }
}

/// What a page that comes was before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Was {
    /// Hot for long, and put on trial.
    OnTrial,
    /// New among the hot ones, and doubted.
    Doubted,
    /// None of these.
    Other,
}

/// Pages that are hot give up their place one by one, and whether they are wanted again
/// tells of the rest: the fewer are, the more others are put on trial, so that a set of hot
/// pages that is not used any more makes room for another.
#[derive(Debug)]
pub struct HotTrial {
    /// Were hot, and wait on probation.
    called: PageSet,
    /// Were hot when they were named as victims.
    on_trial: PageSet,
    /// Were not, and are watched.
    watched: PageSet,
    /// Were new among hot ones, and gave up their place to newer ones.
    doubted: PageSet,
    soon: u32,
    /// What became of pages that were hot, of others, and of those that were new.
    hot: Tally,
    others: Tally,
    new: Tally,
    due_permille: u32,
    /// New ones left alone since one was not.
    undoubted: u32,
    /// Pages left alone since one was not.
    spared: u32,
    /// Others named since one was watched.
    unwatched: u32,
}

impl HotTrial {
    /// Bytes of tables.
    pub fn memory_bytes(pages: u32) -> usize {
        4 * PageSet::memory_bytes(pages)
    }

    /// Nothing is known.
    pub fn new(pages: u32, dram_pages: u32, memory: &mut Memory) -> Option<Self> {
        let unknown = Tally::new((dram_pages / MEMORY_SHARE).max(LEAST_MEMORY));
        Some(Self {
            called: PageSet::new(pages, memory)?,
            on_trial: PageSet::new(pages, memory)?,
            watched: PageSet::new(pages, memory)?,
            doubted: PageSet::new(pages, memory)?,
            soon: dram_pages / SOON_SHARE,
            hot: unknown,
            others: unknown,
            new: Tally::new(NEW_MEMORY),
            due_permille: 0,
            undoubted: 0,
            spared: 0,
            unwatched: 0,
        })
    }

    /// A hot page gives up its place.
    pub fn call(&mut self, page: u32) {
        self.doubted.remove(page);
        self.called.insert(page);
    }

    /// A page that is new among the hot ones gives up its place. It says nothing of the rest.
    pub fn doubt(&mut self, page: u32) {
        self.doubted.insert(page);
    }

    /// A page is named as victim.
    pub fn begin(&mut self, page: u32) {
        if self.doubted.contains(page) {
            return;
        }
        if self.called.remove(page) {
            self.on_trial.insert(page);
            return;
        }
        self.unwatched += 1;
        if self.unwatched == OTHERS_SHARE {
            self.unwatched = 0;
            self.watched.insert(page);
        }
    }

    /// A page left DRAM. It may still be found to be wanted.
    pub fn left(&mut self, page: u32) {
        if self.doubted.contains(page) {
            self.new.end();
        } else if self.on_trial.contains(page) {
            self.hot.end();
        } else if self.watched.contains(page) {
            self.others.end();
        }
    }

    /// A page came to DRAM, or was wanted while it lay in the victim cache. What it was before.
    pub fn arrived(&mut self, arrival: &Arrival) -> Was {
        self.called.remove(arrival.page);
        let was_doubted = self.doubted.remove(arrival.page);
        let was_on_trial = self.on_trial.remove(arrival.page);
        let was_watched = self.watched.remove(arrival.page);
        let tally = if was_doubted {
            &mut self.new
        } else if was_on_trial {
            &mut self.hot
        } else if was_watched {
            &mut self.others
        } else {
            return Was::Other;
        };
        if arrival.source == VICTIM_CACHE {
            tally.end();
            tally.wanted += 1;
        } else if arrival.distance < self.soon {
            tally.wanted = (tally.wanted + 1).min(tally.ended);
        }
        if was_doubted {
            Was::Doubted
        } else if was_on_trial {
            Was::OnTrial
        } else {
            Was::Other
        }
    }

    /// Whether the next page that becomes hot counts as hot: most lately did so once more, and
    /// more than others, for others are hot now; and this one is not to prove it.
    pub fn trusts_next_new(&mut self) -> bool {
        let new = self.new.wanted_permille().unwrap_or(0);
        let others = self.others.wanted_permille().unwrap_or(1000);
        self.undoubted = (self.undoubted + 1) % NEW_PROOF_SHARE;
        let are_hot = new >= NEW_TRUSTED_PERMILLE && new * 1000 >= others * BETTER_PERMILLE;
        are_hot && self.undoubted != 0
    }

    /// A page came back that is not known to be hot: how many hot pages should be put on
    /// trial for it.
    pub fn due(&mut self) -> u32 {
        let doubt = TRUSTED_PERMILLE
            .saturating_sub(self.wanted_permille())
            .min(TRUSTED_PERMILLE - STALE_PERMILLE);
        self.due_permille += MOST_PERMILLE * doubt / (TRUSTED_PERMILLE - STALE_PERMILLE);
        let due = self.due_permille / 1000;
        self.due_permille %= 1000;
        due
    }

    /// Hardly any page that was hot still is.
    pub fn is_stale(&self) -> bool {
        self.wanted_permille() < STALE_PERMILLE
    }

    /// Whether the next hot page may be left alone: pages that were hot are wanted again, and
    /// this one is not to prove it.
    pub fn trusts_next(&mut self) -> bool {
        self.spared = (self.spared + 1) % PROOF_SHARE;
        self.is_trusted() && self.spared != 0
    }

    /// It is known that pages that were hot are wanted again, and more than others.
    pub fn is_trusted(&self) -> bool {
        let others = self.others.wanted_permille().unwrap_or(1000);
        self.hot
            .wanted_permille()
            .is_some_and(|hot| hot >= TRUSTED_PERMILLE && hot * 1000 >= others * BETTER_PERMILLE)
    }

    /// Until enough is known there is no doubt.
    fn wanted_permille(&self) -> u32 {
        self.hot.wanted_permille().unwrap_or(1000)
    }

    /// A range went.
    pub fn forget(&mut self, first: u32, pages: u32) {
        self.called.remove_range(first, pages);
        self.on_trial.remove_range(first, pages);
        self.watched.remove_range(first, pages);
        self.doubted.remove_range(first, pages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::SWAP;
    use crate::model::memory;

    fn trial() -> HotTrial {
        HotTrial::new(10_000, 6400, &mut memory(HotTrial::memory_bytes(10_000))).unwrap()
    }

    fn arrival(page: u32, source: u8, distance: u32) -> Arrival {
        Arrival {
            page,
            source,
            distance,
            ..Arrival::default()
        }
    }

    /// A hot page gives up its place and leaves DRAM.
    fn leaves(trial: &mut HotTrial, page: u32) {
        trial.call(page);
        trial.begin(page);
        trial.left(page);
    }

    /// Pages due for a thousand that come back, if so many of ten were wanted.
    fn due(wanted: u32) -> u32 {
        let mut trial = trial();
        for page in 0..1000 {
            trial.call(page);
            for named in [page, page + 2000] {
                trial.begin(named);
                if named % 10 < wanted {
                    trial.arrived(&arrival(named, VICTIM_CACHE, 0));
                } else {
                    trial.left(named);
                }
            }
        }
        (0..1000).map(|_| trial.due()).sum()
    }

    #[test]
    fn the_fewer_are_wanted_the_more_are_tried() {
        assert_eq!(due(9), 0);
        assert_eq!(due(5), 0);
        let some = due(3);
        assert!((700..1300).contains(&some), "{some}");
        assert_eq!(due(0), 2000);
    }

    #[test]
    fn who_comes_back_late_was_not_wanted() {
        let mut trial = trial();
        for page in 0..300 {
            leaves(&mut trial, page);
            trial.arrived(&arrival(page, SWAP, if page < 150 { 2000 } else { 1000 }));
        }
        assert_eq!((trial.hot.ended, trial.hot.wanted), (300, 150));
        // Who went is not on trial any more.
        trial.call(360);
        trial.begin(360);
        trial.forget(350, 50);
        trial.left(360);
        trial.arrived(&arrival(360, VICTIM_CACHE, 0));
        assert_eq!((trial.hot.ended, trial.hot.wanted), (300, 150));
    }

    #[test]
    fn little_evidence_is_none() {
        let mut trial = trial();
        for page in 0..LEAST_MEMORY / 2 - 1 {
            leaves(&mut trial, page);
        }
        assert!(!trial.is_stale() && !trial.is_trusted() && trial.due() == 0);
        leaves(&mut trial, LEAST_MEMORY);
        assert!(trial.is_stale() && trial.due() == 2);
    }

    /// Of the hot and of the others so many of ten come back soon, by chance.
    fn trusted_of(times: u32, hot: u64, others: u64) -> u32 {
        let mut trial = trial();
        let mut random = 1u64;
        let mut is_soon = |of_ten| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            if (random >> 33) % 10 < of_ten {
                1000
            } else {
                2000
            }
        };
        let mut trusted = 0;
        for page in (0..1000).cycle().take(times as usize) {
            leaves(&mut trial, page);
            trial.arrived(&arrival(page, SWAP, is_soon(hot)));
            for other in page * 9 + 1000..page * 9 + 1000 + OTHERS_SHARE {
                trial.begin(other);
                trial.left(other);
                trial.arrived(&arrival(other, SWAP, is_soon(others)));
            }
            trusted += u32::from(trial.is_trusted());
        }
        trusted
    }

    /// Of pages used at random hot ones are not trusted, or once in a thousand times.
    #[test]
    fn who_was_hot_must_be_wanted_more_than_others() {
        for chance in [0, 2, 5, 9, 10] {
            let trusted = trusted_of(100_000, chance, chance);
            assert!(trusted < 100, "{chance} of ten: {trusted}");
        }
        let known = LEAST_MEMORY / 2;
        assert_eq!(trusted_of(2000, 6, 0), 2000 - known + 1);
        assert_eq!(trusted_of(2000, 9, 3), 2000 - known + 1);
        assert_eq!(trusted_of(2000, 1, 0), 0);
    }

    #[test]
    fn one_of_those_trusted_proves_it() {
        let mut trial = trial();
        assert!(!trial.trusts_next());
        trial.hot = Tally {
            ended: 400,
            wanted: 300,
            ..trial.hot
        };
        trial.others = Tally {
            ended: 400,
            wanted: 40,
            ..trial.others
        };
        let spared = (0..64).filter(|_| trial.trusts_next()).count();
        assert_eq!(spared, 62);
    }
}
