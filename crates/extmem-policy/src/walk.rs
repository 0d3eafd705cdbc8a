// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which part of a walk that is repeated stays in DRAM.
//!
//! Of a walk over more than fits, any part may stay: the gain is the same, as long as it
//! is always the same part. The parts with the lowest addresses are as good as any for a
//! walk that goes all the way round, and better for one that begins anew before it came to
//! the end: it meets them first. But they are the lowest parts of chunks, not of all: of
//! several threads that walk in parts of an array each finds as much of its own in DRAM, and
//! a loop takes as long as the slowest of its threads.

use crate::{Memory, PageSet};

/// Words of ranks looked at in one search for the highest that is kept.
const MOST_STEPS: usize = 1 << 14;

/// A chunk has so many parts, as a power of two: all the first ones are kept, then second ones.
const PART_BITS: u32 = 2;
/// Parts of so many chunks come before those of other chunks.
const CHUNK_BITS: u32 = 8;
/// A part has one page in so many of DRAM, but 16 MiB at least: behind each part that is kept
/// a stream must be recognised anew.
const PART_SHARE_BITS: u32 = 8;
const LEAST_PART_BITS: u32 = 12;

/// The order in which pages are kept: ranks, which are page numbers with two groups of bits
/// exchanged.
#[derive(Clone, Copy, Debug)]
struct Ranks {
    part_bits: u32,
    /// Pages from here on, of chunks that are not all there, are their own ranks.
    end: u32,
}

impl Ranks {
    fn new(pages: u32, dram_pages: u32) -> Self {
        let part_bits = dram_pages.max(1).ilog2().saturating_sub(PART_SHARE_BITS);
        let part_bits = part_bits.max(LEAST_PART_BITS);
        let all_bits = part_bits + PART_BITS + CHUNK_BITS;
        let end = (pages.checked_shr(all_bits).unwrap_or(0))
            .checked_shl(all_bits)
            .unwrap_or(0);
        Self { part_bits, end }
    }

    /// Exchanges a group of so many bits above the numbers within a part with the group above.
    fn exchange(self, number: u32, lower_bits: u32) -> u32 {
        if number >= self.end {
            return number;
        }
        let both_bits = PART_BITS + CHUNK_BITS;
        let both = (number >> self.part_bits) & ((1 << both_bits) - 1);
        let (lower, upper) = (both & ((1 << lower_bits) - 1), both >> lower_bits);
        let exchanged = lower << (both_bits - lower_bits) | upper;
        number & !(((1 << both_bits) - 1) << self.part_bits) | exchanged << self.part_bits
    }

    fn of(self, page: u32) -> u32 {
        self.exchange(page, PART_BITS)
    }

    fn page(self, rank: u32) -> u32 {
        self.exchange(rank, CHUNK_BITS)
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
        let (pages, dram_pages) = ((1 << 24) + 12_345, 1 << 17);
        let ranks = Ranks::new(pages, dram_pages);
        assert_eq!(ranks.part_bits, 12);
        for page in (0..pages).step_by(997).chain(pages - 20_000..pages) {
            let rank = ranks.of(page);
            assert!(rank < pages && ranks.page(rank) == page, "{page} {rank}");
        }
        // 1 GiB in chunks of 64 MiB: all first quarters come before the second ones.
        let quarter = |page: u32| page / (1 << 12) % 4;
        let mut by_rank: Vec<u32> = (0..1 << 18).step_by(64).collect();
        by_rank.sort_by_key(|&page| ranks.of(page));
        assert!(by_rank.is_sorted_by_key(|&page| quarter(page)));
        // Where there is little of all, a page is its own rank.
        assert_eq!(Ranks::new(1000, 1 << 17).of(777), 777);
        assert_eq!(
            Ranks::new(u32::MAX, u32::MAX).of(u32::MAX - 1),
            u32::MAX - 1
        );
        assert_eq!(Ranks::new(5000, 0).of(4999), 4999);
    }

    #[test]
    fn each_of_several_threads_keeps_some_of_its_part() {
        const PAGES: u32 = 1 << 22;
        let mut walk = KeptWalk::new(PAGES, 1 << 12, &mut memory(KeptWalk::memory_bytes(PAGES)));
        let walk = walk.as_mut().unwrap();
        let mut kept = std::collections::BTreeSet::new();
        // Four threads walk quarters of 16384 pages page by page, in turns, three times.
        for step in 0..3 * 16_384 {
            for thread in 0..4 {
                let page = thread * 16_384 + step % 16_384;
                let room = kept.len() < 32_768;
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
            assert!((7000..9400).contains(&own), "{own} of thread {thread}");
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
