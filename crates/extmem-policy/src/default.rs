// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The default: three queues and a victim cache.
//!
//! User space has no accessed bits. What it has is faults, and so this follows 2Q
//! (Johnson and Shasha, VLDB 1994): a page starts on probation, and becomes hot when it
//! comes back so soon that a slightly larger DRAM would have kept it, or when it was
//! wanted while it lay in the victim cache. Each page that becomes hot by coming back from
//! swap puts the oldest hot one on probation: what was hot once must not stay so for ever
//! (after CAR, Bansal and Modha, FAST 2004, which balances its two clocks like this). If few
//! of them are wanted again, any page that comes back does so ([`HotTrial`]).
//! While most of those that were tried are wanted again, hot pages are trusted: few are tried,
//! and all but the newest are said to stay, so that the compressed tier gives up its copies. Who
//! comes back soon then does so by chance as often as not, so each that does puts the oldest of
//! the newest on probation, and stays if it comes back soon once more.
//! Pages of streams have a queue of their own that may only hold a small share: a long
//! walk passes through without pushing out what is used. Of a walk that is repeated the
//! lowest parts ([`KeptWalk`]) take the place of pages on probation, which win it back one by
//! one as they are read again.
//! Pages on probation leave with their neighbours, if those wait nearly as long: pages that
//! lie close together can be taken from the program at the price of one.

use std::ffi::CStr;

use crate::abi::{
    Arrival, HINT_COLD, HINT_STREAM, HINT_WILLNEED, NEVER, STREAM as STREAMING, VICTIM_CACHE,
};
use crate::{
    Algorithm, BLOCK_PAGES, Host, HotTrial, KeptWalk, Lists, Memory, PageSet, VictimSize, Was,
};

const PROBATION: u8 = 0;
const HOT: u8 = 1;
const STREAM: u8 = 2;
/// Pages of streams that stay.
const WALK: u8 = 3;
/// The older half of the pages on probation.
const AGED: u8 = 4;
/// Hot pages that came lately.
const NEW: u8 = 5;
/// Those that are no longer new, and were not yet said to stay.
const PROVEN: u8 = 6;
/// Queues.
const LISTS: usize = 7;

/// One page in so many may be of a stream, while one in so many that come is.
const STREAM_SHARE: u32 = 16;
/// Beside hot pages one in so many is on probation at least.
const PROBATION_SHARE: u32 = 24;
/// For each so many hot pages another one on probation is enough.
const ENOUGH_SHARE: u32 = 16;
/// One hot page in so many is new.
const NEW_SHARE: u32 = 32;
/// Pages that become proven at a time.
const PROVEN_BATCH: usize = 64;
/// Room for the kept walk is what pages on probation have beyond one in so many of DRAM, those
/// of streams beyond their share, and a margin of one in so many.
const WALK_ROOM_SHARE: u32 = 40;
const WALK_MARGIN_SHARE: u32 = 48;
/// A page that comes back before one in so many pages of DRAM were evicted is hot.
const SOON_SHARE: u32 = 12;
/// Limits of the victim cache: one page in so many at least, and at most.
const VICTIM_SHARES: (u32, u32) = (32, 4);

/// The default policy.
#[derive(Debug)]
pub struct Default2Q {
    host: Host,
    pages: Lists<LISTS>,
    walk: KeptWalk,
    /// Pages that the kept walk owes to those on probation.
    owed_pages: u32,
    /// Pages named since one in [`STREAM_SHARE`] was of a stream.
    unstreamed_pages: u32,
    trial: HotTrial,
    victims: VictimSize,
    /// Pages that left DRAM.
    out: PageSet,
}

impl Default2Q {
    /// With parts of walks so small that a model of few pages has many.
    #[cfg(test)]
    pub fn cut_walk(&mut self, part_bits: u32) {
        self.walk.cut(self.host.arena_pages(), part_bits);
    }

    fn probation_pages(&self) -> u32 {
        self.pages.len(PROBATION) + self.pages.len(AGED)
    }

    fn hot_pages(&self) -> u32 {
        self.pages.len(HOT) + self.pages.len(PROVEN) + self.pages.len(NEW)
    }

    /// Pages of streams beyond their share of DRAM and so many.
    fn stream_pages_beyond(&self, margin: u32) -> u32 {
        let share = self.host.dram_pages() / STREAM_SHARE;
        self.pages.len(STREAM).saturating_sub(share + margin)
    }

    fn oldest_on_probation(&mut self) -> Option<u32> {
        while self.pages.len(AGED) < self.pages.len(PROBATION) {
            let page = self.pages.pop_oldest(PROBATION)?;
            self.pages.push(AGED, page);
        }
        self.pages.pop_oldest(AGED)
    }

    /// Names the aged neighbours of a page. Returns how many.
    fn name_neighbours(&mut self, page: u32, victims: &mut [u32]) -> usize {
        let first = page / BLOCK_PAGES * BLOCK_PAGES;
        let mut count = 0;
        for page in first..first + BLOCK_PAGES {
            if count < victims.len() && self.pages.list_of(page) == Some(AGED) {
                self.pages.remove(page);
                victims[count] = page;
                count += 1;
            }
        }
        count
    }

    fn next(&mut self) -> Option<(u8, u32)> {
        let dram_pages = self.host.dram_pages();
        let (probation, hot, stream) = (
            self.probation_pages(),
            self.hot_pages(),
            self.pages.len(STREAM),
        );
        let gives = self.owed_pages > 0 && !self.pages.is_empty(WALK);
        let is_over = stream > 0 && self.unstreamed_pages > dram_pages / STREAM_SHARE;
        let order = if is_over || stream > dram_pages / STREAM_SHARE || (probation == 0 && hot == 0)
        {
            [STREAM, PROBATION, WALK, HOT]
        } else if gives {
            [WALK, PROBATION, HOT, STREAM]
        } else if probation > (probation + hot) / PROBATION_SHARE {
            [PROBATION, WALK, HOT, STREAM]
        } else {
            [WALK, HOT, PROBATION, STREAM]
        };
        order.into_iter().find_map(|list| {
            let page = match list {
                WALK => self.give_up_walk(),
                HOT => self.call_hot(),
                PROBATION => self.oldest_on_probation(),
                _ => self.pages.pop_oldest(list),
            };
            Some((list, page?))
        })
    }

    /// A hot page gives up its place: the oldest, or the oldest of the new ones while hot pages
    /// are trusted.
    fn call_hot(&mut self) -> Option<u32> {
        if self.trial.trusts_next()
            && let Some(page) = self.pages.pop_oldest(NEW)
        {
            self.trial.doubt(page);
            return Some(page);
        }
        self.call_oldest_hot()
    }

    fn call_oldest_hot(&mut self) -> Option<u32> {
        let oldest = [HOT, PROVEN, NEW]
            .into_iter()
            .find_map(|list| self.pages.pop_oldest(list))?;
        self.trial.call(oldest);
        Some(oldest)
    }

    fn put_oldest_on_trial(&mut self) {
        if let Some(oldest) = self.call_oldest_hot() {
            self.pages.push(PROBATION, oldest);
        }
    }

    /// A page came back soon, or was wanted in the victim cache: where it belongs. Another hot
    /// one goes on probation for it.
    fn list_for_hot(&mut self, was: Was, cached: bool) -> u8 {
        if !self.trial.is_trusted() {
            if !cached {
                self.put_oldest_on_trial();
            }
            return NEW;
        }
        match was {
            // It proved itself for the rest.
            Was::OnTrial => PROVEN,
            // It is hot. Is the one that has been so for longest?
            Was::Doubted => {
                self.put_oldest_on_trial();
                PROVEN
            }
            // It teaches something.
            Was::Other if cached && self.victims.is_large() => NEW,
            Was::Other => {
                if self.trial.trusts_next_new() {
                    self.put_oldest_on_trial();
                } else if (self.has_new(1)
                    || self.probation_pages() <= self.hot_pages() / ENOUGH_SHARE)
                    && let Some(oldest) = self.call_hot()
                {
                    self.pages.push(PROBATION, oldest);
                }
                NEW
            }
        }
    }

    /// Whether more hot pages are new than one in [`NEW_SHARE`], or so many times that.
    fn has_new(&self, times: u32) -> bool {
        self.pages.len(NEW) > self.hot_pages() / NEW_SHARE * times
    }

    /// The oldest of those that are new, if they are so many that it has been hot for long.
    fn pop_proven(&mut self) -> Option<u32> {
        let many = self.trial.is_trusted() && self.has_new(2);
        many.then(|| self.pages.pop_oldest(NEW)).flatten()
    }

    fn prove_oldest(&mut self) {
        for _ in 0..PROVEN_BATCH {
            let Some(page) = self.pop_proven() else {
                return;
            };
            self.pages.push(PROVEN, page);
        }
    }

    fn give_up_walk(&mut self) -> Option<u32> {
        if self.pages.is_empty(WALK) {
            return None;
        }
        self.owed_pages = self.owed_pages.saturating_sub(1);
        let highest = self
            .walk
            .give_up(|page| self.pages.list_of(page) == Some(WALK));
        // Nothing near the border: any will do, for once.
        let page = highest.or_else(|| self.pages.pop_newest(WALK))?;
        self.pages.remove(page);
        Some(page)
    }

    fn list_for_stream(&mut self, page: u32) -> u8 {
        let is_repeated = self.walk.passes(page);
        let dram_pages = self.host.dram_pages();
        // Well above what those lists are cut down to: where both would be so in turns, the
        // pages that the walk took last would leave before they are used.
        let margin = dram_pages / WALK_MARGIN_SHARE;
        let has_room = self.stream_pages_beyond(margin) > 0
            || (self.owed_pages == 0
                && self.probation_pages() > dram_pages / WALK_ROOM_SHARE + margin);
        if is_repeated && self.walk.keeps(page, has_room, margin) {
            WALK
        } else {
            STREAM
        }
    }
}

impl Algorithm for Default2Q {
    const NAME: &'static CStr = c"default";

    fn memory_bytes(host: &Host, options: &str) -> Option<usize> {
        options.is_empty().then(|| {
            Lists::<LISTS>::memory_bytes(host.arena_pages())
                + KeptWalk::memory_bytes(host.arena_pages())
                + HotTrial::memory_bytes(host.arena_pages())
                + PageSet::memory_bytes(host.arena_pages())
        })
    }

    fn start(memory: &mut Memory, host: Host, _options: &str) -> Option<Self> {
        Some(Self {
            host,
            pages: Lists::new(host.arena_pages(), memory)?,
            walk: KeptWalk::new(host.arena_pages(), host.dram_pages(), memory)?,
            owed_pages: 0,
            unstreamed_pages: 0,
            trial: HotTrial::new(host.arena_pages(), host.dram_pages(), memory)?,
            victims: VictimSize::new(host.dram_pages(), VICTIM_SHARES),
            out: PageSet::new(host.arena_pages(), memory)?,
        })
    }

    fn unmapped(&mut self, first: u32, pages: u32) {
        self.pages.remove_range(first, pages);
        self.walk.forget(first, pages);
        self.trial.forget(first, pages);
        self.victims.forget(self.out.remove_range(first, pages));
    }

    fn arrived(&mut self, arrivals: &[Arrival]) {
        for arrival in arrivals {
            self.victims.arrived(arrival, self.out.remove(arrival.page));
            let was = self.trial.arrived(arrival);
            let soon = self.host.dram_pages() / SOON_SHARE;
            let comes_soon = arrival.distance != NEVER && arrival.distance < soon;
            let list = if arrival.source == VICTIM_CACHE {
                self.list_for_hot(was, true)
            } else if arrival.flags & STREAMING != 0 {
                self.unstreamed_pages = self.unstreamed_pages.saturating_sub(STREAM_SHARE);
                self.list_for_stream(arrival.page)
            } else if comes_soon {
                self.list_for_hot(was, false)
            } else {
                if arrival.distance != NEVER {
                    // While the stream has too much it gives: the kept walk owes nothing.
                    if self.stream_pages_beyond(0) == 0 {
                        self.owed_pages = (self.owed_pages + 1).min(self.pages.len(WALK));
                    }
                    for _ in 0..self.trial.due() {
                        self.put_oldest_on_trial();
                    }
                    if self.trial.is_stale() {
                        self.victims.begin_anew();
                    }
                }
                PROBATION
            };
            self.pages.push(list, arrival.page);
        }
    }

    fn choose(&mut self, victims: &mut [u32]) -> usize {
        self.prove_oldest();
        let mut count = 0;
        while count < victims.len() {
            let Some((list, page)) = self.next() else {
                break;
            };
            let first = count;
            victims[count] = page;
            count += 1;
            if list == PROBATION {
                count += self.name_neighbours(page, &mut victims[count..]);
            }
            for &page in &victims[first..count] {
                self.trial.begin(page);
            }
        }
        self.unstreamed_pages = self.unstreamed_pages.saturating_add(count as u32);
        count
    }

    fn returned(&mut self, pages: &[u32]) {
        // They are in use. On probation they might be all that is left there, and be named
        // again and again.
        for &page in pages {
            self.trial.forget(page, 1);
            self.pages.push(NEW, page);
        }
    }

    fn evicted(&mut self, pages: &[u32]) {
        self.victims.left(pages.len());
        for &page in pages {
            self.out.insert(page);
            self.trial.left(page);
        }
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

    fn staying(&mut self, pages: &mut [u32]) -> usize {
        if !self.trial.is_trusted() {
            return 0;
        }
        let mut count = 0;
        while let Some(place) = pages.get_mut(count)
            && let Some(page) = (self.pages.pop_oldest(PROVEN)).or_else(|| self.pop_proven())
        {
            self.pages.push(HOT, page);
            *place = page;
            count += 1;
        }
        count
    }
}
