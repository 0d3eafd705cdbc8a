// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The default: three queues and a victim cache.
//!
//! User space has no accessed bits. What it has is faults, and so this follows 2Q
//! (Johnson and Shasha, VLDB 1994): a page starts on probation, and becomes hot when it
//! comes back so soon that a slightly larger DRAM would have kept it, or when it was
//! wanted while it lay in the victim cache. Each page that becomes hot by coming back from
//! swap puts the oldest hot one on probation: what was hot once must not stay so for ever
//! (after CAR, Bansal and Modha, FAST 2004, which balances its two clocks like this).
//! Pages of streams have a queue of their own that may only hold a small share: a long
//! walk passes through without pushing out what is used, and of a walk repeated over more
//! than fits the part that is in DRAM stays there.

use std::ffi::CStr;

use crate::abi::{
    Arrival, HINT_COLD, HINT_STREAM, HINT_WILLNEED, NEVER, STREAM as STREAMING, VICTIM_CACHE,
};
use crate::{Algorithm, Host, Lists, Memory, VictimSize};

const PROBATION: u8 = 0;
const HOT: u8 = 1;
const STREAM: u8 = 2;

/// One page in so many may be of a stream.
const STREAM_SHARE: u32 = 16;
/// One page in so many is on probation at least.
const PROBATION_SHARE: u32 = 40;
/// A page that comes back before one in so many pages of DRAM were evicted is hot.
const SOON_SHARE: u32 = 12;
/// Limits of the victim cache: one page in so many at least, and at most.
const VICTIM_SHARES: (u32, u32) = (32, 4);

/// The default policy.
#[derive(Debug)]
pub struct Default2Q {
    host: Host,
    pages: Lists<3>,
    victims: VictimSize,
}

impl Default2Q {
    fn next(&mut self) -> Option<u32> {
        let dram_pages = self.host.dram_pages();
        let (probation, hot, stream) = (
            self.pages.len(PROBATION),
            self.pages.len(HOT),
            self.pages.len(STREAM),
        );
        let order = if stream > dram_pages / STREAM_SHARE || (probation == 0 && hot == 0) {
            [STREAM, PROBATION, HOT]
        } else if probation > dram_pages / PROBATION_SHARE || hot == 0 {
            [PROBATION, HOT, STREAM]
        } else {
            [HOT, PROBATION, STREAM]
        };
        order
            .into_iter()
            .find_map(|list| self.pages.pop_oldest(list))
    }
}

impl Algorithm for Default2Q {
    const NAME: &'static CStr = c"default";

    fn memory_bytes(host: &Host, options: &str) -> Option<usize> {
        options
            .is_empty()
            .then(|| Lists::<3>::memory_bytes(host.arena_pages()))
    }

    fn start(memory: &mut Memory, host: Host, _options: &str) -> Option<Self> {
        Some(Self {
            host,
            pages: Lists::new(host.arena_pages(), memory)?,
            victims: VictimSize::new(host.dram_pages(), VICTIM_SHARES),
        })
    }

    fn unmapped(&mut self, first: u32, pages: u32) {
        self.pages.remove_range(first, pages);
    }

    fn arrived(&mut self, arrivals: &[Arrival]) {
        for arrival in arrivals {
            self.victims.arrived(arrival);
            let soon = self.host.dram_pages() / SOON_SHARE;
            let list = if arrival.source == VICTIM_CACHE {
                HOT
            } else if arrival.flags & STREAMING != 0 {
                STREAM
            } else if arrival.distance != NEVER && arrival.distance < soon {
                if let Some(oldest) = self.pages.pop_oldest(HOT) {
                    self.pages.push(PROBATION, oldest);
                }
                HOT
            } else {
                PROBATION
            };
            self.pages.push(list, arrival.page);
        }
    }

    fn choose(&mut self, victims: &mut [u32]) -> usize {
        let mut count = 0;
        while count < victims.len() {
            let Some(page) = self.next() else {
                break;
            };
            victims[count] = page;
            count += 1;
        }
        self.victims.passed(count as u32);
        count
    }

    fn returned(&mut self, pages: &[u32]) {
        for &page in pages {
            self.pages.push(PROBATION, page);
        }
    }

    fn evicted(&mut self, pages: &[u32]) {
        self.victims.left(pages.len());
    }

    fn hint(&mut self, first: u32, pages: u32, hint: u32) {
        match hint {
            HINT_WILLNEED => self
                .host
                .prefetch(first, pages.min(self.host.dram_pages() / 4), 0),
            HINT_COLD | HINT_STREAM => {
                let end = first.saturating_add(pages).min(self.host.arena_pages());
                for page in first..end {
                    if self.pages.list_of(page).is_some() {
                        self.pages.push(STREAM, page);
                    }
                }
            }
            _ => {}
        }
    }

    fn victim_cache_pages(&mut self) -> u32 {
        self.victims.pages()
    }
}
