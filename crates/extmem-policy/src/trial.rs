// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether pages that were hot still are.

use crate::abi::{Arrival, VICTIM_CACHE};
use crate::{Memory, PageSet};

/// What is known of pages on trial is halved after one page of DRAM in so many.
const MEMORY_SHARE: u32 = 64;
/// A page that comes back before one in so many pages of DRAM was evicted was wanted.
const SOON_SHARE: u32 = 4;
/// Where as many pages on trial are wanted again, hot pages are left alone, in permille.
const TRUSTED_PERMILLE: u32 = 400;
/// Where only as many are, the hot pages are other ones now.
const STALE_PERMILLE: u32 = 200;
/// Where they are trusted, one in so many is tried all the same.
const PROOF_SHARE: u32 = 32;
/// Pages put on trial for each that comes back, if so, in permille.
const MOST_PERMILLE: u32 = 2000;

/// Pages that are hot give up their place one by one, and whether they are wanted again
/// tells of the rest: the fewer are, the more others are put on trial, so that a set of hot
/// pages that is not used any more makes room for another.
#[derive(Debug)]
pub struct HotTrial {
    /// Were hot, and wait on probation.
    called: PageSet,
    /// Were hot when they were named as victims.
    on_trial: PageSet,
    soon: u32,
    memory: u32,
    /// Pages whose trial ended lately, and those that were wanted again.
    ended: u32,
    wanted: u32,
    due_permille: u32,
    /// Pages left alone since one was not.
    spared: u32,
}

impl HotTrial {
    /// Bytes of tables.
    pub fn memory_bytes(pages: u32) -> usize {
        2 * PageSet::memory_bytes(pages)
    }

    /// Nothing is known.
    pub fn new(pages: u32, dram_pages: u32, memory: &mut Memory) -> Option<Self> {
        Some(Self {
            called: PageSet::new(pages, memory)?,
            on_trial: PageSet::new(pages, memory)?,
            soon: dram_pages / SOON_SHARE,
            memory: (dram_pages / MEMORY_SHARE).max(64),
            ended: 0,
            wanted: 0,
            due_permille: 0,
            spared: 0,
        })
    }

    /// A hot page gives up its place.
    pub fn call(&mut self, page: u32) {
        self.called.insert(page);
    }

    /// A page is named as victim.
    pub fn begin(&mut self, page: u32) {
        if self.called.remove(page) {
            self.on_trial.insert(page);
        }
    }

    /// A page left DRAM. It may still be found to be wanted.
    pub fn left(&mut self, page: u32) {
        if self.on_trial.contains(page) {
            self.end();
        }
    }

    /// A page came to DRAM, or was wanted while it lay in the victim cache.
    pub fn arrived(&mut self, arrival: &Arrival) {
        self.called.remove(arrival.page);
        if !self.on_trial.remove(arrival.page) {
            return;
        }
        if arrival.source == VICTIM_CACHE {
            self.end();
            self.wanted += 1;
        } else if arrival.distance < self.soon {
            self.wanted = (self.wanted + 1).min(self.ended);
        }
    }

    fn end(&mut self) {
        self.ended += 1;
        if self.ended >= self.memory {
            (self.ended, self.wanted) = (self.ended / 2, self.wanted / 2);
        }
    }

    /// A page came back that is not known to be hot: how many hot pages should be put on
    /// trial for it.
    pub fn due(&mut self) -> u32 {
        let wanted_permille = self.wanted_permille();
        let doubt = TRUSTED_PERMILLE
            .saturating_sub(wanted_permille)
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

    /// It is known that pages that were hot are wanted again.
    pub fn is_trusted(&self) -> bool {
        self.is_known() && self.wanted_permille() >= TRUSTED_PERMILLE
    }

    fn is_known(&self) -> bool {
        self.ended >= self.memory / 2
    }

    fn wanted_permille(&self) -> u32 {
        if !self.is_known() {
            // Until then there is no doubt.
            return 1000;
        }
        (u64::from(self.wanted) * 1000 / u64::from(self.ended)) as u32
    }

    /// A range went.
    pub fn forget(&mut self, first: u32, pages: u32) {
        self.called.remove_range(first, pages);
        self.on_trial.remove_range(first, pages);
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
        for page in 0..50 {
            leaves(&mut trial, page);
            trial.arrived(&arrival(page, SWAP, if page < 25 { 2000 } else { 1000 }));
        }
        assert_eq!((trial.ended, trial.wanted), (50, 25));
        assert!(trial.is_trusted());
        let spared = (0..64).filter(|_| trial.trusts_next()).count();
        assert_eq!(spared, 62);
        // Who went is not on trial any more.
        trial.call(60);
        trial.begin(60);
        trial.forget(50, 50);
        trial.left(60);
        trial.arrived(&arrival(60, VICTIM_CACHE, 0));
        assert_eq!((trial.ended, trial.wanted), (50, 25));
    }

    #[test]
    fn little_evidence_is_none() {
        let mut trial = trial();
        for page in 0..49 {
            leaves(&mut trial, page);
        }
        assert!(!trial.is_stale() && !trial.is_trusted() && trial.due() == 0);
        leaves(&mut trial, 49);
        assert!(trial.is_stale() && trial.due() == 2);
    }
}
