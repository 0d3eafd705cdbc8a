// SPDX-License-Identifier: Apache-2.0 OR MIT
//! First in, first out: what every other policy is measured against.

use std::ffi::CStr;

use crate::abi::Arrival;
use crate::{Algorithm, Host, Lists, Memory};

const QUEUE: u8 = 0;

/// First in, first out, without a victim cache.
#[derive(Debug)]
pub struct Fifo {
    pages: Lists<1>,
}

impl Algorithm for Fifo {
    const NAME: &'static CStr = c"fifo";

    fn memory_bytes(host: &Host, options: &str) -> Option<usize> {
        options
            .is_empty()
            .then(|| Lists::<1>::memory_bytes(host.arena_pages()))
    }

    fn start(memory: &mut Memory, host: Host, _options: &str) -> Option<Self> {
        Some(Self {
            pages: Lists::new(host.arena_pages(), memory)?,
        })
    }

    fn unmapped(&mut self, first: u32, pages: u32) {
        self.pages.remove_range(first, pages);
    }

    fn arrived(&mut self, arrivals: &[Arrival]) {
        for arrival in arrivals {
            // A page that is queued keeps its turn.
            if self.pages.list_of(arrival.page).is_none() {
                self.pages.push(QUEUE, arrival.page);
            }
        }
    }

    fn choose(&mut self, victims: &mut [u32]) -> usize {
        let mut count = 0;
        for place in victims {
            let Some(page) = self.pages.pop_oldest(QUEUE) else {
                break;
            };
            *place = page;
            count += 1;
        }
        count
    }

    fn returned(&mut self, pages: &[u32]) {
        for &page in pages {
            self.pages.push(QUEUE, page);
        }
    }

    fn victim_cache_pages(&mut self) -> u32 {
        0
    }
}
