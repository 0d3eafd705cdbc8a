// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where pages are: two bits for each, by aligned 2 MiB.

use std::collections::BTreeMap;
use std::ops::Range;

use demeter_core::{FMEM, SMEM};
use demeter_recording::{First, Resident};

use crate::{HUGE_PAGES, HUGE_SHIFT, PAGE_SHIFT};

const WORDS: usize = HUGE_PAGES as usize / 64;

/// Aligned 2 MiB of an address space.
#[derive(Clone, Debug, Default)]
pub struct Chunk {
    present: [u64; WORDS],
    slow: [u64; WORDS],
    /// One page.
    pub huge: bool,
    /// Was one when it was recorded.
    pub recorded_huge: bool,
}

impl Chunk {
    /// Whether a page is there.
    pub fn has(&self, page: u64) -> bool {
        let at = page % HUGE_PAGES;
        self.present[at as usize / 64] >> (at % 64) & 1 != 0
    }

    /// Whether a page is in SMEM.
    #[inline]
    pub fn is_slow(&self, page: u64) -> bool {
        let at = page % HUGE_PAGES;
        self.slow[at as usize / 64] >> (at % 64) & 1 != 0
    }

    fn put(&mut self, page: u64, slow: bool) {
        let at = page % HUGE_PAGES;
        let (word, bit) = (at as usize / 64, 1 << (at % 64));
        self.present[word] |= bit;
        if slow {
            self.slow[word] |= bit;
        } else {
            self.slow[word] &= !bit;
        }
    }

    /// Pages of a tier among those numbered so from the chunk's first, as bits.
    fn bits(&self, tier: usize, pages: &Range<u64>, word: usize) -> u64 {
        let first = word as u64 * 64;
        let from = pages.start.clamp(first, first + 64) - first;
        let to = pages.end.clamp(first, first + 64) - first;
        let below = |bit: u64| if bit >= 64 { u64::MAX } else { (1 << bit) - 1 };
        let of_tier = if tier == SMEM {
            self.slow[word]
        } else {
            !self.slow[word]
        };
        self.present[word] & of_tier & below(to) & !below(from)
    }

    fn count(&self, tier: usize, pages: &Range<u64>) -> u64 {
        (0..WORDS)
            .map(|word| u64::from(self.bits(tier, pages, word).count_ones()))
            .sum()
    }

    /// Whether all of it is in SMEM, as base pages.
    fn can_collapse(&self) -> bool {
        !self.huge && self.count(SMEM, &(0..HUGE_PAGES)) == HUGE_PAGES
    }
}

/// What is taken as one: a base page or a huge one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// First page.
    pub page: u64,
    /// 1, or those of a huge page.
    pub pages: u64,
}

/// Pages of one address space.
#[derive(Clone, Debug, Default)]
pub struct Space {
    chunks: BTreeMap<u64, Chunk>,
    /// Had a huge page ever: else, where the system makes them, it wants none.
    pub has_huge: bool,
    /// By tier.
    pub resident: [u64; 2],
}

impl Space {
    /// The chunk of a page.
    pub fn chunk_mut(&mut self, page: u64) -> &mut Chunk {
        self.chunks.entry(page >> HUGE_SHIFT).or_default()
    }

    /// Whether the 2 MiB that a page lies in are one.
    pub fn is_huge(&self, page: u64) -> bool {
        (self.chunks.get(&(page >> HUGE_SHIFT))).is_some_and(|chunk| chunk.huge)
    }

    /// Chunks so far.
    pub fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// Pages with something in them, by address: runs of chunks.
    pub fn runs(&self) -> impl Iterator<Item = Range<u64>> {
        (self.chunks.keys()).map(|&at| at << HUGE_SHIFT..(at + 1) << HUGE_SHIFT)
    }

    /// Notes a page that has come.
    pub fn arrive(&mut self, page: u64, first: First) {
        let (from, count) = if first.huge {
            (page & !(HUGE_PAGES - 1), HUGE_PAGES)
        } else {
            (page, 1)
        };
        let chunk = self.chunks.entry(page >> HUGE_SHIFT).or_default();
        let mut added = 0;
        if first.huge && chunk.present == [0; WORDS] {
            chunk.present = [u64::MAX; WORDS];
            chunk.slow = [if first.slow { u64::MAX } else { 0 }; WORDS];
            added = HUGE_PAGES;
        }
        for page in from..from + count {
            if !chunk.has(page) {
                chunk.put(page, first.slow);
                added += 1;
            }
        }
        if first.huge {
            self.has_huge = true;
            chunk.huge = added == HUGE_PAGES;
            chunk.recorded_huge = true;
        }
        self.resident[usize::from(first.slow)] += added;
    }

    /// Pages by tier.
    pub fn count(&self, pages: &Range<u64>) -> [u64; 2] {
        let mut sum = [0; 2];
        for (at, chunk) in self.between(pages) {
            let own = inside(at, pages);
            sum[FMEM] += chunk.count(FMEM, &own);
            sum[SMEM] += chunk.count(SMEM, &own);
        }
        sum
    }

    fn between(&self, pages: &Range<u64>) -> impl Iterator<Item = (u64, &Chunk)> {
        let first = pages.start >> HUGE_SHIFT;
        let end = pages.end.div_ceil(HUGE_PAGES).max(first);
        (self.chunks.range(first..end)).map(|(&at, chunk)| (at, chunk))
    }

    /// Up to about so many pages of a tier, from the first on; and where it stopped.
    pub fn take(&self, tier: usize, pages: &Range<u64>, wanted: u64) -> (Vec<Unit>, u64) {
        let mut units = Vec::new();
        let mut taken = 0;
        for (at, chunk) in self.between(pages) {
            let first = at << HUGE_SHIFT;
            let own = inside(at, pages);
            if chunk.huge {
                if chunk.count(tier, &own) == 0 {
                    continue;
                }
                units.push(Unit {
                    page: first,
                    pages: HUGE_PAGES,
                });
                taken += HUGE_PAGES;
                if taken >= wanted {
                    return (units, first + HUGE_PAGES);
                }
                continue;
            }
            for word in 0..WORDS {
                let mut bits = chunk.bits(tier, &own, word);
                while bits != 0 {
                    let page = first + word as u64 * 64 + u64::from(bits.trailing_zeros());
                    bits &= bits - 1;
                    units.push(Unit { page, pages: 1 });
                    taken += 1;
                    if taken >= wanted {
                        return (units, page + 1);
                    }
                }
            }
        }
        (units, pages.end)
    }

    /// Puts a unit into the other tier than it is in.
    pub fn relocate(&mut self, unit: Unit, to: usize) {
        let from = if to == FMEM { SMEM } else { FMEM };
        let chunk = self.chunk_mut(unit.page);
        for page in unit.page..unit.page + unit.pages {
            chunk.put(page, to == SMEM);
        }
        self.resident[to] += unit.pages;
        self.resident[from] -= unit.pages;
    }

    /// Makes a huge page of the base pages around one, all of which are in SMEM.
    pub fn collapse(&mut self, page: u64) -> bool {
        let chunk = self.chunk_mut(page);
        let can = chunk.can_collapse();
        chunk.huge |= can;
        can
    }

    /// Makes base pages of a huge one.
    pub fn split(&mut self, page: u64) {
        self.chunk_mut(page).huge = false;
    }
}

/// The part of a range that lies in a chunk, from the chunk's first page.
fn inside(chunk: u64, pages: &Range<u64>) -> Range<u64> {
    let first = chunk << HUGE_SHIFT;
    let within = |page: u64| page.clamp(first, first + HUGE_PAGES) - first;
    within(pages.start)..within(pages.end)
}

/// Pages of all address spaces, and what FMEM holds.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// By number.
    pub spaces: BTreeMap<u64, Space>,
    fmem_pages: u64,
    /// Beside them, free FMEM that Linux did not give away.
    left_pages: u64,
    /// FMEM is of another size than when it was recorded: who comes first has it.
    by_order: bool,
}

impl Memory {
    /// Nothing is resident in so much FMEM yet.
    pub fn new(fmem_pages: u64, by_order: bool) -> Self {
        Self {
            spaces: BTreeMap::new(),
            fmem_pages,
            left_pages: 0,
            by_order,
        }
    }

    /// FMEM that programs' pages are in.
    pub fn used_pages(&self) -> u64 {
        (self.spaces.values())
            .map(|space| space.resident[FMEM])
            .sum()
    }

    /// FMEM that holds nothing.
    pub fn free_pages(&self) -> u64 {
        self.fmem_pages.saturating_sub(self.used_pages())
    }

    /// FMEM that Linux did not give away when it put pages into SMEM: what it keeps for the
    /// kernel, or pieces in which a huge page finds no room.
    pub fn left_pages(&self) -> u64 {
        self.left_pages
    }

    /// FMEM that holds nothing, with what Linux did not give away.
    pub fn unused_pages(&self) -> u64 {
        (self.fmem_pages + self.left_pages).saturating_sub(self.used_pages())
    }

    /// More FMEM: from now on who comes first has it, whatever was recorded.
    pub fn grow(&mut self, pages: u64) {
        self.fmem_pages += pages;
        self.by_order = true;
    }

    /// Less FMEM; the pages that must leave it for that.
    pub fn shrink(&mut self, pages: u64) -> u64 {
        self.fmem_pages = self.fmem_pages.saturating_sub(pages);
        self.by_order = true;
        self.used_pages().saturating_sub(self.fmem_pages)
    }

    /// Puts at least so many pages of FMEM into SMEM, whole huge pages, going round all memory
    /// from `from` on, an address space and a page; how many.
    pub fn evacuate(&mut self, pages: u64, from: &mut (u64, u64)) -> u64 {
        let mut moved = 0;
        let begin = *from;
        let later = self.spaces.range(begin.0..).map(|(&number, _)| number);
        let earlier = self.spaces.range(..=begin.0).map(|(&number, _)| number);
        let round: Vec<u64> = later.chain(earlier).collect();
        for (turn, number) in round.into_iter().enumerate() {
            let first = if turn == 0 && number == begin.0 {
                begin.1
            } else {
                0
            };
            let Some(space) = self.spaces.get_mut(&number).filter(|_| moved < pages) else {
                break;
            };
            let (units, stop) = space.take(FMEM, &(first..u64::MAX >> PAGE_SHIFT), pages - moved);
            for unit in units {
                space.relocate(unit, SMEM);
                moved += unit.pages;
            }
            *from = (number, stop);
        }
        moved
    }

    /// Pages that are there to begin with.
    pub fn populate(&mut self, resident: &Resident) {
        let mut free = self.free_pages();
        let space = self.spaces.entry(resident.space).or_default();
        for run in &resident.runs {
            let step = if run.first.huge { HUGE_PAGES } else { 1 };
            let mut page = run.page;
            while page < run.page + run.pages {
                let slow = if self.by_order {
                    free < step
                } else {
                    run.first.slow
                };
                let before = space.resident[FMEM];
                space.arrive(page, First { slow, ..run.first });
                free = free.saturating_sub(space.resident[FMEM] - before);
                page += step;
            }
        }
        if resident.runs.iter().any(|run| run.first.slow) {
            self.refused();
        }
    }

    /// Linux has put a page into SMEM: so what is left of FMEM, it does not give away.
    fn refused(&mut self) {
        if !self.by_order {
            let left_pages = self.free_pages();
            self.fmem_pages -= left_pages;
            self.left_pages += left_pages;
        }
    }

    /// Where a page that is seen first goes, by where it was when it was recorded.
    pub fn first_touch(&mut self, recorded: First) -> First {
        if recorded.slow {
            self.refused();
        }
        let wanted = if recorded.huge { HUGE_PAGES } else { 1 };
        let full = self.free_pages() < wanted;
        First {
            slow: full || !self.by_order && recorded.slow,
            ..recorded
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use demeter_recording::Run;

    fn first(slow: bool, huge: bool) -> First {
        First { slow, huge }
    }

    #[test]
    fn pages_are_counted_taken_and_moved() {
        let mut space = Space::default();
        space.arrive(700, first(false, true));
        space.arrive(5, first(true, false));
        space.arrive(70, first(true, false));
        space.arrive(71, first(false, false));
        space.arrive(71, first(true, false)); // known
        assert_eq!(space.resident, [513, 2]);
        assert_eq!(space.count(&(0..2048)), [513, 2]);
        assert_eq!(space.count(&(6..600)), [1 + 88, 1]);
        assert_eq!(space.chunks(), 2);

        let base = |page| Unit { page, pages: 1 };
        assert_eq!(space.take(SMEM, &(0..512), 1), (vec![base(5)], 6));
        assert_eq!(space.take(SMEM, &(6..512), 9), (vec![base(70)], 512));
        let huge = Unit {
            page: 512,
            pages: 512,
        };
        let (units, stop) = space.take(FMEM, &(0..1024), 2);
        assert_eq!((units, stop), (vec![base(71), huge], 1024));
        space.relocate(huge, SMEM);
        space.relocate(base(5), FMEM);
        assert_eq!(space.resident, [2, 513]);
        assert_eq!(space.count(&(0..2048)), [2, 513]);
    }

    #[test]
    fn fmem_that_is_taken_is_emptied_all_around() {
        let run = |page, pages, huge| Run {
            page,
            pages,
            first: first(false, huge),
        };
        let mut memory = Memory::new(2000, true);
        for (space, runs) in [
            (1, vec![run(0, 512, false)]),
            (2, vec![run(512, 1024, true)]),
        ] {
            memory.populate(&Resident { space, runs });
        }
        let mut from = (0, 0);
        assert_eq!(memory.shrink(400), 0, "free");
        assert_eq!(memory.shrink(164), 100);
        assert_eq!(memory.evacuate(100, &mut from), 100);
        assert_eq!((memory.spaces[&1].resident, from), ([412, 100], (1, 100)));
        assert_eq!(memory.evacuate(413, &mut from), 412 + 512);
        assert_eq!(memory.spaces[&2].resident, [512, 512]);
        assert_eq!(memory.evacuate(5000, &mut from), 512, "no more is there");
        memory.grow(700);
        assert!(
            !memory.first_touch(first(true, true)).slow,
            "as in the record no more"
        );
    }

    #[test]
    fn only_whole_slow_chunks_collapse() {
        let mut space = Space::default();
        for page in 512..1023 {
            space.arrive(page, first(true, false));
        }
        assert!(!space.collapse(600));
        space.arrive(1023, first(true, false));
        assert!(space.collapse(600));
        assert_eq!(space.take(SMEM, &(512..1024), 1).0[0].pages, 512);
        space.split(600);
        assert_eq!(space.take(SMEM, &(512..1024), 1).0[0].pages, 1);
    }

    #[test]
    fn who_comes_first_has_fmem_of_another_size() {
        let resident = Resident {
            space: 1,
            runs: vec![Run {
                page: 0,
                pages: 10,
                first: first(true, false),
            }],
        };
        let mut memory = Memory::new(6, true);
        memory.populate(&resident);
        assert_eq!(memory.spaces[&1].resident, [6, 4]);
        assert!(memory.first_touch(first(false, false)).slow);
        let mut memory = Memory::new(6, false);
        memory.populate(&resident);
        assert_eq!(memory.spaces[&1].resident, [0, 10]);
        assert_eq!(memory.free_pages(), 0, "Linux gave no more");
        assert_eq!((memory.left_pages(), memory.unused_pages()), (6, 6));
        let mut memory = Memory::new(6, false);
        assert!(!memory.first_touch(first(false, false)).slow);
        assert!(memory.first_touch(first(false, true)).slow);
        assert_eq!(memory.free_pages(), 6);
        assert!(memory.first_touch(first(true, false)).slow);
        assert_eq!(memory.free_pages(), 0);
    }
}
