// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which part of a walk that is repeated stays in DRAM.
//!
//! Of a walk over more than fits, any part may stay: the gain is the same, as long as it
//! is always the same part. It is the lower part of each chunk of the address space: of several
//! threads that walk in parts of an array each finds about as much of its own in DRAM, and a
//! loop takes as long as the slowest of its threads. Within a chunk a walk that begins anew
//! before it came to the end meets what is kept first. Chunks are large, for behind each part
//! that is kept a stream must be recognised anew: threads whose parts are smaller than a
//! chunk find all of theirs, or none.

use crate::{Memory, PageSet};

/// Words of ranks looked at in one search for the highest that is kept.
const MOST_STEPS: usize = 1 << 14;

/// A chunk has so many parts, as a power of two: all the lowest ones are kept, then the next.
const PART_BITS: u32 = 4;
/// Parts of so many chunks at most come before those of other chunks, as a power of two.
const CHUNK_BITS: u32 = 9;
/// A part has one page in so many of DRAM, as a power of two, but 4 MiB at least.
const PART_SHARE_BITS: u32 = 10;
const LEAST_PART_BITS: u32 = 10;

/// The order in which pages are kept: ranks, which are page numbers with two groups of bits
/// exchanged.
#[derive(Clone, Copy, Debug)]
struct Ranks {
    part_bits: u32,
    chunk_bits: u32,
    /// Pages from here on, of chunks that are not all there, are their own ranks.
    end: u32,
}

impl Ranks {
    fn new(pages: u32, dram_pages: u32) -> Self {
        let part_bits = dram_pages.max(1).ilog2().saturating_sub(PART_SHARE_BITS);
        Self::with_parts(pages, part_bits.max(LEAST_PART_BITS))
    }

    /// With parts of so many pages, as a power of two.
    fn with_parts(pages: u32, part_bits: u32) -> Self {
        let own_bits = part_bits + PART_BITS;
        let chunk_bits = pages
            .max(1)
            .ilog2()
            .saturating_sub(own_bits)
            .min(CHUNK_BITS);
        let all_bits = own_bits + chunk_bits;
        let whole = pages.checked_shr(all_bits).unwrap_or(0);
        Self {
            part_bits,
            chunk_bits,
            end: whole.checked_shl(all_bits).unwrap_or(0),
        }
    }

    /// Exchanges a group of so many bits above the numbers within a part with the group above.
    fn exchange(self, number: u32, lower_bits: u32) -> u32 {
        if number >= self.end {
            return number;
        }
        let both_bits = PART_BITS + self.chunk_bits;
        let both = (number >> self.part_bits) & ((1 << both_bits) - 1);
        let (lower, upper) = (both & ((1 << lower_bits) - 1), both >> lower_bits);
        let exchanged = lower << (both_bits - lower_bits) | upper;
        number & !(((1 << both_bits) - 1) << self.part_bits) | exchanged << self.part_bits
    }

    fn of(self, page: u32) -> u32 {
        self.exchange(page, PART_BITS)
    }

    fn page(self, rank: u32) -> u32 {
        self.exchange(rank, self.chunk_bits)
    }
}

/// The border, and bits for pages.
#[derive(Debug)]
pub struct KeptWalk {
    ranks: Ranks,
    /// Came as part of a stream before.
    seen: PageSet,
    /// Was kept, and may still be, by rank.
    kept: PageSet,
    /// What is kept lies below this rank.
    below: u32,
}

impl KeptWalk {
    /// Bytes of tables.
    pub fn memory_bytes(pages: u32) -> usize {
        2 * PageSet::memory_bytes(pages)
    }

    /// Nothing is kept.
    pub fn new(pages: u32, dram_pages: u32, memory: &mut Memory) -> Option<Self> {
        Some(Self {
            ranks: Ranks::new(pages, dram_pages),
            seen: PageSet::new(pages, memory)?,
            kept: PageSet::new(pages, memory)?,
            below: 0,
        })
    }

    /// The same with parts so small that a model of few pages has many.
    #[cfg(test)]
    pub fn cut(&mut self, pages: u32, part_bits: u32) {
        self.ranks = Ranks::with_parts(pages, part_bits);
    }

    /// A page came as part of a stream. Whether it did before.
    pub fn passes(&mut self, page: u32) -> bool {
        self.seen.insert(page) == Some(true)
    }

    /// Whether to keep such a page: if there is room, and the border is behind it then; or
    /// instead of the one of the highest rank, if that is `margin` higher at least. Those next
    /// to the border may just have been prefetched.
    pub fn keeps(&mut self, page: u32, has_room: bool, margin: u32) -> bool {
        let rank = self.ranks.of(page);
        let keeps = has_room || rank < self.below.saturating_sub(margin);
        if keeps && self.kept.insert(rank).is_some() {
            self.below = self.below.max(rank + 1);
        }
        keeps
    }

    /// The page of the highest rank that is kept, and from now on is not.
    pub fn give_up(&mut self, is_kept: impl Fn(u32) -> bool) -> Option<u32> {
        for _ in 0..MOST_STEPS {
            match self.kept.highest_nearby(self.below)? {
                Err(first) => {
                    self.below = first;
                    continue;
                }
                Ok(highest) => self.below = highest,
            }
            self.kept.remove(self.below);
            let page = self.ranks.page(self.below);
            if is_kept(page) {
                return Some(page);
            }
        }
        None
    }

    /// A range went.
    pub fn forget(&mut self, first: u32, pages: u32) {
        self.seen.remove_range(first, pages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::memory;

    #[test]
    fn the_lowest_pages_stay() {
        let mut walk = KeptWalk::new(1000, 100, &mut memory(KeptWalk::memory_bytes(1000))).unwrap();
        assert!(!walk.passes(7) && walk.passes(7));
        assert!(!walk.keeps(7, false, 2) && walk.keeps(7, true, 2));
        assert!(walk.keeps(3, false, 2) && !walk.keeps(7, false, 2));
        assert!(walk.keeps(100, true, 2) && walk.keeps(98, false, 2) && !walk.keeps(99, false, 2));
        let kept = [3, 7, 100];
        assert_eq!(walk.give_up(|page| kept.contains(&page)), Some(100));
        assert!(!walk.keeps(100, false, 0));
        assert_eq!(walk.give_up(|page| kept.contains(&page)), Some(7));
        assert_eq!(walk.give_up(|_| false), None);
        assert!(!walk.keeps(0, false, 0));
        // Pages that do not exist are nobody's.
        assert!(!walk.passes(5000) && !walk.passes(5000));
    }

    #[test]
    fn ranks_are_all_pages_and_the_first_parts_of_chunks_come_first() {
        for (pages, dram_pages) in [
            ((1 << 24) + 12_345, 1 << 17),
            (1 << 15, 1 << 17),
            (u32::MAX, 1 << 28),
            (u32::MAX, u32::MAX),
            (5000, 0),
        ] {
            let ranks = Ranks::new(pages, dram_pages);
            let step = (pages / 20_011).max(1) as usize;
            for page in (0..pages).step_by(step).chain(pages - 5000..pages) {
                let rank = ranks.of(page);
                assert!(rank < pages && ranks.page(rank) == page, "{page} {rank}");
            }
        }
        // 1 GiB in chunks of 64 MiB: of each chunk the lowest 4 MiB come before the next ones.
        let ranks = Ranks::new(1 << 25, 1 << 17);
        let part = |page: u32| page / (1 << 10) % 16;
        let mut by_rank: Vec<u32> = (0..1 << 18).step_by(64).collect();
        by_rank.sort_by_key(|&page| ranks.of(page));
        assert!(by_rank.is_sorted_by_key(|&page| part(page)));
        // Where there is little of all, a page is its own rank.
        assert_eq!(Ranks::new(1000, 1 << 17).of(777), 777);
    }

    /// Whatever share of the array DRAM holds.
    #[test]
    fn each_of_several_threads_keeps_some_of_its_part() {
        const PAGES: u32 = 1 << 22;
        for room_pages in [6554, 16_384, 32_768, 50_000] {
            each_keeps_its_share(PAGES, room_pages);
        }
    }

    fn each_keeps_its_share(pages: u32, room_pages: usize) {
        let mut walk = KeptWalk::new(pages, 1 << 12, &mut memory(KeptWalk::memory_bytes(pages)));
        let walk = walk.as_mut().unwrap();
        let mut kept = std::collections::BTreeSet::new();
        // Four threads walk quarters of 16384 pages page by page, in turns, three times.
        for step in 0..3 * 16_384 {
            for thread in 0..4 {
                let page = thread * 16_384 + step % 16_384;
                let room = kept.len() < room_pages;
                if walk.passes(page) && !kept.contains(&page) && walk.keeps(page, room, 64) {
                    kept.insert(page);
                    if !room {
                        let highest = walk.give_up(|page| kept.contains(&page)).unwrap();
                        kept.remove(&highest);
                    }
                }
            }
        }
        for thread in 0..4 {
            let own = kept.range(thread * 16_384..(thread + 1) * 16_384).count();
            let share = room_pages / 4;
            assert!(
                own.abs_diff(share) <= 1024 + 128,
                "{own} of {share}, thread {thread}"
            );
        }
    }

    #[test]
    fn what_went_was_never_seen() {
        let mut walk = KeptWalk::new(300, 100, &mut memory(KeptWalk::memory_bytes(300))).unwrap();
        (0..300).for_each(|page| {
            walk.passes(page);
        });
        walk.forget(60, 70);
        walk.forget(290, u32::MAX);
        let seen: Vec<_> = (0..300).filter(|&page| walk.passes(page)).collect();
        assert_eq!(seen, (0..60).chain(130..290).collect::<Vec<_>>());
    }
}
