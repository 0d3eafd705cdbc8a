// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A policy that knows how PageRank uses a graph in compressed sparse rows.
//!
//! An iteration walks once through the edges, the largest array by far, and jumps about
//! in ranks and offsets. So the edges are streamed and everything else is kept. Of the
//! edges, those that are in DRAM when the walk begins stay there: a walk that is
//! repeated over more than fits would push out each page just before it is wanted, so
//! what the walk brings in is what leaves.
//!
//! The edges are the largest mapping, unless the program names them by
//! `DEMETER_EXTMEM_HINT_STREAM`; ranges with `DEMETER_EXTMEM_HINT_KEEP` never are.
//! Other walks over a large array beside small ones (SpMV, BFS by levels, k-means)
//! have the same shape.

mod mappings;

use std::ffi::CStr;

use demeter_extmem_policy::abi::{
    Arrival, HINT_KEEP, HINT_NORMAL, HINT_STREAM, NEVER, STREAM, VICTIM_CACHE,
};
use demeter_extmem_policy::{Algorithm, Host, Lists, Memory, PageSet, VictimSize};

use mappings::Mappings;

/// Edges that a walk brought: first to leave.
const PASSING: u8 = 0;
/// Edges that were there: they leave when nothing passes.
const EDGES: u8 = 1;
/// All else, the last to leave.
const KEPT: u8 = 2;
/// Of that, what came back soon.
const WANTED: u8 = 3;

/// Pages prefetched for a walk must be there until it comes: one in so many of DRAM, at
/// least a stream's windows if they are not more than one in so many, and at most what
/// many threads' windows take.
const PASSING_SHARE: u32 = 32;
const PASSING_LEAST: u32 = 256;
const PASSING_LEAST_SHARE: u32 = 16;
const PASSING_MOST: u32 = 4096;
/// Of what is kept, one page in so many is on probation at least.
const PROBATION_SHARE: u32 = 10;
/// A page that comes back before one in so many pages of DRAM were evicted is wanted.
const SOON_SHARE: u32 = 8;
/// Limits of the victim cache: one page in so many at least, and at most. While only
/// edges leave it saves nothing.
const VICTIM_SHARES: (u32, u32) = (256, 16);

/// The policy.
#[derive(Debug)]
pub struct PageRank {
    host: Host,
    pages: Lists<4>,
    mappings: Mappings,
    victims: VictimSize,
    /// Pages that left DRAM and did not come back.
    out: PageSet,
}

impl PageRank {
    fn passing_room(&self) -> u32 {
        let dram_pages = self.host.dram_pages();
        let least = PASSING_LEAST.min(dram_pages / PASSING_LEAST_SHARE);
        (dram_pages / PASSING_SHARE).min(PASSING_MOST).max(least)
    }

    fn next(&mut self) -> Option<u32> {
        let order = if self.pages.len(PASSING) > self.passing_room() {
            [PASSING, EDGES, KEPT, WANTED]
        } else if !self.pages.is_empty(EDGES) {
            [EDGES, PASSING, KEPT, WANTED]
        } else if self.pages.len(KEPT) > self.host.dram_pages() / PROBATION_SHARE {
            [KEPT, WANTED, PASSING, EDGES]
        } else {
            [WANTED, KEPT, PASSING, EDGES]
        };
        order
            .into_iter()
            .find_map(|list| self.pages.pop_oldest(list))
    }

    fn list_for(&self, arrival: &Arrival) -> u8 {
        if self.mappings.is_edge(arrival.page) {
            return if arrival.flags & STREAM != 0 {
                PASSING
            } else {
                EDGES
            };
        }
        let soon = self.host.dram_pages() / SOON_SHARE;
        if arrival.source == VICTIM_CACHE || (arrival.distance != NEVER && arrival.distance < soon)
        {
            WANTED
        } else {
            KEPT
        }
    }
}

impl Algorithm for PageRank {
    const NAME: &'static CStr = c"pagerank";

    fn memory_bytes(host: &Host, options: &str) -> Option<usize> {
        let pages = host.arena_pages();
        options
            .is_empty()
            .then(|| Lists::<4>::memory_bytes(pages) + PageSet::memory_bytes(pages))
    }

    fn start(memory: &mut Memory, host: Host, _options: &str) -> Option<Self> {
        Some(Self {
            host,
            pages: Lists::new(host.arena_pages(), memory)?,
            mappings: Mappings::default(),
            victims: VictimSize::new(host.dram_pages(), VICTIM_SHARES),
            out: PageSet::new(host.arena_pages(), memory)?,
        })
    }

    fn mapped(&mut self, first: u32, pages: u32) {
        self.mappings.add(first, pages);
    }

    fn unmapped(&mut self, first: u32, pages: u32) {
        self.pages.remove_range(first, pages);
        self.mappings.remove(first, pages);
        self.victims.forget(self.out.remove_range(first, pages));
    }

    fn arrived(&mut self, arrivals: &[Arrival]) {
        for arrival in arrivals {
            self.victims.arrived(arrival, self.out.remove(arrival.page));
            self.pages.push(self.list_for(arrival), arrival.page);
        }
    }

    fn choose(&mut self, victims: &mut [u32]) -> usize {
        let mut count = 0;
        while count < victims.len()
            && let Some(page) = self.next()
        {
            victims[count] = page;
            count += 1;
        }
        count
    }

    fn returned(&mut self, pages: &[u32]) {
        // They are in use. Among edges they might be all that is left there, and be named
        // again and again.
        for &page in pages {
            self.pages.push(WANTED, page);
        }
    }

    fn evicted(&mut self, pages: &[u32]) {
        self.victims.left(pages.len());
        for &page in pages {
            self.out.insert(page);
        }
    }

    fn hint(&mut self, first: u32, pages: u32, hint: u32) {
        match hint {
            HINT_STREAM => self.mappings.name(first, pages, true),
            HINT_KEEP => self.mappings.name(first, pages, false),
            HINT_NORMAL => self.mappings.unname(first, pages),
            _ => {}
        }
    }

    fn victim_cache_pages(&mut self) -> u32 {
        self.victims.pages()
    }
}

demeter_extmem_policy::export!(PageRank);

#[cfg(test)]
mod tests {
    use super::*;
    use demeter_extmem_policy::{Clock, Default2Q, model};

    #[test]
    fn edges_stream_and_ranks_stay() {
        let pattern = model::Pattern::PageRank;
        let clock = model::ideal_misses(pattern);
        let own = model::misses::<PageRank>(pattern);
        let default = model::misses::<Default2Q>(pattern);
        let other = model::misses::<Clock>(pattern);
        println!(
            "modelled misses, percent: CLOCK with bits {:.2}, pagerank {:.2}, default {:.2}, clock {:.2}",
            clock * 100.0,
            own * 100.0,
            default * 100.0,
            other * 100.0
        );
        assert!(own < clock * 0.72, "{own} against {clock}");
        // The default sees the walk too; what it cannot know is what to keep.
        assert!(own < default * 1.04, "{own} against {default}");
    }

    #[test]
    fn elsewhere_it_is_not_a_disaster() {
        for pattern in [model::Pattern::Uniform, model::Pattern::HotSet] {
            let (own, fifo) = (
                model::misses::<PageRank>(pattern),
                model::misses::<demeter_extmem_policy::Fifo>(pattern),
            );
            println!(
                "modelled misses, percent: {pattern:?}: pagerank {:.2}, fifo {:.2}",
                own * 100.0,
                fifo * 100.0
            );
            assert!(own < fifo * 2.0, "{own} against {fifo}");
        }
    }
}
