// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CLOCK (Corbató, "A paging experiment with the Multics system", 1968) with the victim
//! cache in place of accessed bits: a page that was wanted while it was on its way out
//! has its bit set, and the hand passes it over once.

use std::ffi::CStr;

use crate::abi::{Arrival, VICTIM_CACHE};
use crate::{Algorithm, Host, Lists, Memory};

/// Pages that the hand has not passed since they were wanted.
const UNSEEN: u8 = 0;
/// Pages that the hand passes over once.
const WANTED: u8 = 1;
/// The victim cache takes one page in so many.
const VICTIM_SHARE: u32 = 12;

/// CLOCK.
#[derive(Debug)]
pub struct Clock {
    pages: Lists<2>,
    /// Position of the hand: it takes from both lists in turn, by their lengths.
    hand: u32,
    dram_pages: u32,
}

impl Algorithm for Clock {
    const NAME: &'static CStr = c"clock";

    fn memory_bytes(host: &Host, options: &str) -> Option<usize> {
        options
            .is_empty()
            .then(|| Lists::<2>::memory_bytes(host.arena_pages()))
    }

    fn start(memory: &mut Memory, host: Host, _options: &str) -> Option<Self> {
        Some(Self {
            pages: Lists::new(host.arena_pages(), memory)?,
            hand: 0,
            dram_pages: host.dram_pages(),
        })
    }

    fn unmapped(&mut self, first: u32, pages: u32) {
        self.pages.remove_range(first, pages);
    }

    fn arrived(&mut self, arrivals: &[Arrival]) {
        for arrival in arrivals {
            if arrival.source == VICTIM_CACHE {
                self.pages.push(WANTED, arrival.page);
            } else if self.pages.list_of(arrival.page).is_none() {
                self.pages.push(UNSEEN, arrival.page);
            }
        }
    }

    fn choose(&mut self, victims: &mut [u32]) -> usize {
        let mut count = 0;
        while count < victims.len() {
            // On its way round the hand meets wanted pages as often as there are of them.
            let (unseen, wanted) = (self.pages.len(UNSEEN), self.pages.len(WANTED));
            if unseen == 0 && wanted == 0 {
                break;
            }
            self.hand = self
                .hand
                .wrapping_mul(1_664_525)
                .wrapping_add(1_013_904_223);
            let at = (u64::from(self.hand) * u64::from(unseen + wanted)) >> 32;
            if at < u64::from(wanted) {
                if let Some(page) = self.pages.pop_oldest(WANTED) {
                    self.pages.push(UNSEEN, page);
                }
            } else if let Some(page) = self.pages.pop_oldest(UNSEEN) {
                victims[count] = page;
                count += 1;
            }
        }
        count
    }

    fn returned(&mut self, pages: &[u32]) {
        for &page in pages {
            self.pages.push(UNSEEN, page);
        }
    }

    fn victim_cache_pages(&mut self) -> u32 {
        self.dram_pages / VICTIM_SHARE
    }
}
