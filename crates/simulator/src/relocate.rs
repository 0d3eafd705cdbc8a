// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Moving pages between the tiers, as the module's executor does: from where the last
//! search of a range ended, whole huge pages, sizes matched (`guest/tmm/execute.c`,
//! `huge.c`). Nothing is refused here.

use std::collections::HashMap;
use std::ops::Range;

use demeter_core::{FMEM, RankEntry, SMEM};

use crate::memory::{Memory, Unit};
use crate::{Costs, HUGE_PAGES, PAGE_SHIFT};

/// Most base pages of a step that are taken at once.
const AT_ONCE: u64 = 8 * HUGE_PAGES;

/// What was moved, in base pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// To FMEM.
    pub promoted: u64,
    /// To SMEM.
    pub demoted: u64,
    /// Of those promoted, into free FMEM.
    pub filled: u64,
    /// What it took.
    pub cost_ns: u64,
}

/// Where searches of a range go on, by tier. Gone when the range gets other bounds.
pub type Cursors = HashMap<(u64, u64, u64), [u64; 2]>;

/// Moves pages.
pub struct Mover<'a> {
    /// Where they are.
    pub memory: &'a mut Memory,
    /// Where to go on.
    pub cursors: &'a mut Cursors,
    /// What it costs.
    pub costs: &'a Costs,
    /// Base pages are made huge where that lets them be exchanged for huge ones.
    pub collapse: bool,
}

fn pages(entry: &RankEntry) -> Range<u64> {
    entry.start >> PAGE_SHIFT..entry.end >> PAGE_SHIFT
}

impl Mover<'_> {
    fn take(&mut self, entry: &RankEntry, tier: usize, wanted: u64) -> Vec<Unit> {
        let Some(space) = self.memory.spaces.get(&u64::from(entry.space)) else {
            return Vec::new();
        };
        let all = pages(entry);
        let key = (u64::from(entry.space), entry.start, entry.end);
        let cursor = self.cursors.entry(key).or_insert([all.start; 2]);
        let from = cursor[tier].clamp(all.start, all.end);
        let (mut units, mut stop) = space.take(tier, &(from..all.end), wanted);
        if units.is_empty() && from > all.start {
            (units, stop) = space.take(tier, &(all.start..from), wanted);
        }
        cursor[tier] = stop;
        units
    }

    fn relocate(&mut self, entry: &RankEntry, unit: Unit, to: usize) {
        if let Some(space) = self.memory.spaces.get_mut(&u64::from(entry.space)) {
            space.relocate(unit, to);
        }
    }

    /// Exchanges so many pages of two ranges.
    pub fn swap(&mut self, hot: &RankEntry, cold: &RankEntry, wanted: u64) -> Moved {
        let mut sum = Moved::default();
        let mut left = wanted;
        while left > 0 {
            let warm = self.take(hot, SMEM, left.min(AT_ONCE));
            let warm_pages = warm.iter().map(|unit| unit.pages).sum();
            if warm_pages == 0 {
                break;
            }
            let cool = self.take(cold, FMEM, warm_pages);
            let moved = self.exchange(hot, cold, warm, cool);
            if moved.promoted == 0 {
                break;
            }
            left -= left.min(moved.promoted);
            sum.add(&moved);
        }
        sum
    }

    fn exchange(
        &mut self,
        hot: &RankEntry,
        cold: &RankEntry,
        warm: Vec<Unit>,
        cool: Vec<Unit>,
    ) -> Moved {
        let mut moved = Moved::default();
        let (mut huge, mut small): (Vec<Unit>, Vec<Unit>) =
            cool.into_iter().rev().partition(|unit| unit.pages > 1);
        let mut warm = warm.into_iter().peekable();
        while let Some(unit) = warm.next() {
            let mut unit = unit;
            if unit.pages == 1 && !huge.is_empty() && self.collapses(hot, unit.page) {
                unit = Unit {
                    page: unit.page & !(HUGE_PAGES - 1),
                    pages: HUGE_PAGES,
                };
                moved.cost_ns += HUGE_PAGES * self.costs.collapse_ns;
                let end = unit.page + HUGE_PAGES;
                while warm.next_if(|next| next.page < end).is_some() {}
            }
            if unit.pages > 1 {
                if let Some(other) = huge.pop() {
                    self.relocate(hot, unit, FMEM);
                    self.relocate(cold, other, SMEM);
                    moved.cost_ns += HUGE_PAGES * self.costs.swap_huge_ns;
                    moved.promoted += HUGE_PAGES;
                    moved.demoted += HUGE_PAGES;
                    continue;
                }
                self.split(hot, unit);
            } else if small.is_empty()
                && let Some(other) = huge.pop()
            {
                self.split(cold, other);
                small.extend((0..HUGE_PAGES).rev().map(|at| Unit {
                    page: other.page + at,
                    pages: 1,
                }));
            }
            for page in unit.page..unit.page + unit.pages {
                let Some(other) = small.pop() else {
                    return moved;
                };
                self.relocate(hot, Unit { page, pages: 1 }, FMEM);
                self.relocate(cold, other, SMEM);
                moved.cost_ns += self.costs.swap_ns;
                moved.promoted += 1;
                moved.demoted += 1;
            }
        }
        moved
    }

    fn collapses(&mut self, entry: &RankEntry, page: u64) -> bool {
        self.collapse
            && (self.memory.spaces.get_mut(&u64::from(entry.space)))
                .is_some_and(|space| space.collapse(page))
    }

    fn split(&mut self, entry: &RankEntry, unit: Unit) {
        if let Some(space) = self.memory.spaces.get_mut(&u64::from(entry.space)) {
            space.split(unit.page);
        }
    }

    /// Moves so many pages of a range into free FMEM.
    pub fn fill(&mut self, hot: &RankEntry, wanted: u64) -> Moved {
        let mut moved = Moved::default();
        while moved.promoted < wanted {
            let units = self.take(hot, SMEM, (wanted - moved.promoted).min(AT_ONCE));
            let before = moved.promoted;
            for unit in units {
                if self.memory.free_pages() < unit.pages {
                    break;
                }
                self.relocate(hot, unit, FMEM);
                moved.promoted += unit.pages;
                moved.filled += unit.pages;
                moved.cost_ns += unit.pages * self.costs.move_ns;
            }
            if moved.promoted == before {
                break;
            }
        }
        moved
    }

    /// Moves so many pages of a range to SMEM.
    pub fn demote(&mut self, cold: &RankEntry, wanted: u64) -> Moved {
        let mut moved = Moved::default();
        for unit in self.take(cold, FMEM, wanted) {
            self.relocate(cold, unit, SMEM);
            moved.demoted += unit.pages;
            moved.cost_ns += unit.pages * self.costs.move_ns;
        }
        moved
    }
}

impl Moved {
    /// Adds what another step moved.
    pub fn add(&mut self, other: &Self) {
        self.promoted += other.promoted;
        self.demoted += other.demoted;
        self.filled += other.filled;
        self.cost_ns += other.cost_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use demeter_recording::{First, Resident, Run};

    const COSTS: Costs = Costs {
        swap_ns: 3,
        swap_huge_ns: 2,
        move_ns: 1,
        collapse_ns: 10,
        sample_ns: 0,
        epoch_ns: 0,
        record_ns: 0,
        perf_ns: 0,
        wake_ns: 0,
        count_ns: 0,
        count_base_ns: 0,
        look_ns: 0,
        look_base_ns: 0,
        migrate_ns: 0,
        migrate_huge_ns: 0,
        age_huge_ns: 0,
        age_ns: 0,
        refused_ns: 0,
    };

    fn entry(chunk: u64) -> RankEntry {
        RankEntry {
            start: chunk << 21,
            end: (chunk + 1) << 21,
            space: 1,
            ..RankEntry::default()
        }
    }

    /// Chunk 0 is one huge page in FMEM, chunk 1 is `slow` base pages in SMEM.
    fn memory(slow: u64) -> Memory {
        let mut memory = Memory::new(512, false);
        let run = |page, pages, slow, huge| Run {
            page,
            pages,
            first: First { slow, huge },
        };
        memory.populate(&Resident {
            space: 1,
            runs: vec![run(0, 512, false, true), run(512, slow, true, false)],
        });
        memory.grow(512);
        memory
    }

    fn swap(memory: &mut Memory, collapse: bool, wanted: u64) -> Moved {
        let mut cursors = Cursors::default();
        Mover {
            memory,
            cursors: &mut cursors,
            costs: &COSTS,
            collapse,
        }
        .swap(&entry(1), &entry(0), wanted)
    }

    #[test]
    fn whole_base_pages_collapse_for_a_huge_one() {
        let mut whole = memory(512);
        let moved = swap(&mut whole, true, 100);
        assert_eq!((moved.promoted, moved.demoted), (512, 512));
        assert_eq!(moved.cost_ns, 512 * 12);
        assert!(whole.spaces.get_mut(&1).unwrap().chunk_mut(512).huge);
        assert_eq!(whole.spaces[&1].resident, [512, 512]);
    }

    #[test]
    fn a_huge_one_is_split_for_others() {
        for (slow, collapse) in [(511, true), (512, false)] {
            let mut parts = memory(slow);
            let moved = swap(&mut parts, collapse, 100);
            assert_eq!((moved.promoted, moved.demoted), (100, 100));
            assert_eq!(moved.cost_ns, 300);
            assert!(!parts.spaces.get_mut(&1).unwrap().chunk_mut(0).huge);
            assert_eq!(parts.spaces[&1].resident, [512, slow]);
        }
    }

    #[test]
    fn free_fmem_takes_what_fits() {
        let mut memory = memory(512);
        let mut cursors = Cursors::default();
        let mut mover = Mover {
            memory: &mut memory,
            cursors: &mut cursors,
            costs: &COSTS,
            collapse: true,
        };
        assert_eq!(mover.fill(&entry(1), 10_000).filled, 512);
        assert_eq!(mover.memory.free_pages(), 0);
        assert_eq!(mover.fill(&entry(1), 1).promoted, 0);
        assert_eq!(mover.demote(&entry(0), 1).demoted, 512);
        assert_eq!(memory.spaces[&1].resident, [512, 512]);
    }
}
