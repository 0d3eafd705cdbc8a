// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether pages that were hot still are.

use crate::abi::{Arrival, VICTIM_CACHE};
use crate::{Memory, PageSet};

/// What is known of pages on trial is halved after one page of DRAM in so many.
const MEMORY_SHARE: u32 = 8;
/// A page that comes back before one in so many pages of DRAM was evicted was wanted.
const SOON_SHARE: u32 = 2;
/// Where as many pages on trial are wanted again, hot pages are left alone, in permille.
const TRUSTED_PERMILLE: u32 = 500;
/// Where only as many are, the hot pages are other ones now.
const STALE_PERMILLE: u32 = 200;
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
    /// Pages that were put on trial lately, and those that were wanted again.
    begun: u32,
    wanted: u32,
    due_permille: u32,
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
            begun: 0,
            wanted: 0,
            due_permille: 0,
        })
    }

    /// A hot page gives up its place.
    pub fn call(&mut self, page: u32) {
        self.called.insert(page);
    }

    /// A page is named as victim.
    pub fn begin(&mut self, page: u32) {
        if !self.called.remove(page) || self.on_trial.insert(page) != Some(false) {
            return;
        }
        self.begun += 1;
        if self.begun >= self.memory {
            (self.begun, self.wanted) = (self.begun / 2, self.wanted / 2);
        }
    }

    /// A page came to DRAM, or was wanted while it lay in the victim cache.
    pub fn arrived(&mut self, arrival: &Arrival) {
        self.called.remove(arrival.page);
        if self.on_trial.remove(arrival.page)
            && (arrival.source == VICTIM_CACHE || arrival.distance < self.soon)
        {
            self.wanted = (self.wanted + 1).min(self.begun);
        }
    }

    /// A page came back that is not known to be hot: how many hot pages should be put on
    /// trial for it.
    pub fn due(&mut self) -> u32 {
        if self.begun < self.memory / 2 {
            // Hardly anything is known yet.
            return 0;
        }
        let wanted_permille = self.wanted * 1000 / self.begun;
        let doubt = TRUSTED_PERMILLE
            .saturating_sub(wanted_permille)
            .min(TRUSTED_PERMILLE - STALE_PERMILLE);
        self.due_permille += MOST_PERMILLE * doubt / (TRUSTED_PERMILLE - STALE_PERMILLE);
        let due = self.due_permille / 1000;
        self.due_permille %= 1000;
        due
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
    use crate::model::memory;

    /// Pages due for a thousand that come back, if so many of a thousand were wanted.
    fn due(wanted: u32) -> u32 {
        let pages = 10_000;
        let mut memory = memory(HotTrial::memory_bytes(pages));
        let mut trial = HotTrial::new(pages, 1000, &mut memory).unwrap();
        for page in 0..1000 {
            trial.call(page);
            trial.begin(page);
            // Others are not on trial.
            trial.begin(page + 2000);
            let mut arrival = Arrival {
                page,
                source: VICTIM_CACHE,
                ..Arrival::default()
            };
            if page % 10 < wanted / 100 {
                trial.arrived(&arrival);
            }
            arrival.page = 5000;
            trial.arrived(&arrival);
        }
        (0..1000).map(|_| trial.due()).sum()
    }

    #[test]
    fn the_fewer_are_wanted_the_more_are_tried() {
        assert_eq!(due(900), 0);
        assert_eq!(due(600), 0);
        let some = due(300);
        assert!((1000..1700).contains(&some), "{some}");
        assert_eq!(due(0), 2000);
    }

    #[test]
    fn who_comes_back_late_was_not_wanted() {
        let mut memory = memory(HotTrial::memory_bytes(100));
        let mut trial = HotTrial::new(100, 1000, &mut memory).unwrap();
        for page in 0..50 {
            trial.call(page);
            trial.begin(page);
            trial.arrived(&Arrival {
                page,
                distance: if page < 25 { 600 } else { 400 },
                ..Arrival::default()
            });
        }
        assert_eq!(trial.wanted, 25);
        trial.call(60);
        trial.begin(60);
        trial.forget(50, 50);
        trial.arrived(&Arrival {
            page: 60,
            ..Arrival::default()
        });
        assert_eq!(trial.wanted, 25);
    }
}
