// SPDX-License-Identifier: Apache-2.0 OR MIT
//! kmigrated, one of each tier (`migrated.c`).

use demeter_core::{FMEM, SMEM};

use super::{Memtis, granule};
use crate::memory::{Memory, Unit};
use crate::{HUGE_PAGES, HUGE_SHIFT};

/// Part of a process that is looked at while there is nothing to demote.
const IDLE_PART: u64 = 8;
const DEMOTION_PERCENT: u64 = 2;
pub const PROMOTION_PERCENT: u64 = 3;
pub const HISTOGRAM_PERCENT: u64 = 97;
/// Splitting one huge page: a guess.
const SPLIT_NS: u64 = 50_000;

impl Memtis {
    /// A round; what it took.
    pub fn migrate(&mut self, memory: &mut Memory, tier: usize) -> u64 {
        self.room.look(memory);
        let spent_ns = if tier == FMEM {
            self.cool(memory);
            self.demote(memory) + self.split(memory)
        } else {
            self.counts.epochs += 1;
            self.promote(memory)
        };
        self.room.costs.wake_ns + spent_ns
    }

    /// FMEM that is free or of programs.
    pub fn all_pages(&self, memory: &Memory) -> u64 {
        self.room.free(memory) + memory.used_pages()
    }

    /// What is kept free: a part of FMEM, but no less than the kernel does.
    pub fn reserve_pages(&self, all_pages: u64, percent: u64) -> u64 {
        (all_pages * percent / 100).max(self.room.high)
    }

    fn cool(&mut self, memory: &Memory) {
        for _ in 0..std::mem::take(&mut self.coolings) {
            self.hotness.cool();
            // Counts are halves now: by the old thresholds all that is hot would be cold.
            self.choose_thresholds(memory);
        }
    }

    /// Moves at most so many pages; how many it did.
    fn shift(
        &mut self,
        memory: &mut Memory,
        number: u64,
        units: &[Unit],
        to: usize,
        spent_ns: &mut u64,
    ) -> u64 {
        let done = self.room.shift(memory, number, units, to, 0);
        let moved = &mut self.counts.moved;
        moved.cost_ns += done.cost_ns;
        if to == FMEM {
            moved.promoted += done.pages;
            moved.filled += done.pages;
        } else {
            moved.demoted += done.pages;
        }
        *spent_ns += done.cost_ns;
        // It walks the page table for them, and looks what has become of all 2 MiB.
        if let (Some(space), Some(unit)) = (memory.spaces.get(&number), units.first()) {
            *spent_ns += self.room.look_ns(space, granule(unit.page)) * 3 / 2;
        }
        done.pages
    }

    fn demote(&mut self, memory: &mut Memory) -> u64 {
        let all = self.all_pages(memory);
        let free = self.room.free(memory);
        if self.waiting == 0 && free >= self.reserve_pages(all, DEMOTION_PERCENT) {
            return 0;
        }
        let target = self.waiting + self.reserve_pages(all, PROMOTION_PERCENT);
        let mut wanted = target.saturating_sub(free);
        if free < self.room.low {
            wanted += self.params.direct_pages;
        }
        let (mut spent_ns, mut found_any) = (0, false);
        for number in self.hands.keys().copied().collect::<Vec<_>>() {
            if wanted == 0 {
                break;
            }
            let done = self.demote_from(memory, number, wanted, &mut found_any, &mut spent_ns);
            wanted -= done.min(wanted);
        }
        self.found_cold = found_any;
        spent_ns
    }

    fn demote_from(
        &mut self,
        memory: &mut Memory,
        number: u64,
        wanted: u64,
        found_any: &mut bool,
        spent_ns: &mut u64,
    ) -> u64 {
        let Some(space) = memory.spaces.get(&number) else {
            return 0;
        };
        let mut granules = (space.resident[FMEM] + space.resident[SMEM]) / HUGE_PAGES + 1;
        if !self.found_cold {
            granules = granules / IDLE_PART + 1;
        }
        // All that will be looked at at most, in a circle from where the last look ended.
        let hand = self.hands[&number];
        let (before, after): (Vec<u64>, Vec<u64>) = (space.runs())
            .map(|run| run.start >> HUGE_SHIFT)
            .partition(|&at| at < hand);
        let circle = after.into_iter().chain(before);
        let (mut done, mut seen) = (0, 0);
        for at in circle {
            if done >= wanted || seen >= granules {
                break;
            }
            self.hands.insert(number, at + 1);
            seen += 1;
            if let Some(space) = memory.spaces.get(&number) {
                *spent_ns += self.room.look_ns(space, at);
            }
            let units = self.cold_units(memory, number, at);
            if units.is_empty() {
                continue;
            }
            *found_any = true;
            let left = usize::try_from(wanted - done).unwrap_or(usize::MAX);
            let some = if units[0].pages > 1 {
                &units[..]
            } else {
                &units[..units.len().min(left)]
            };
            done += self.shift(memory, number, some, SMEM, spent_ns);
        }
        done
    }

    /// What of 2 MiB is to be demoted.
    fn cold_units(&mut self, memory: &mut Memory, number: u64, at: u64) -> Vec<Unit> {
        let first = at << HUGE_SHIFT;
        let Some(space) = memory.spaces.get_mut(&number) else {
            return Vec::new();
        };
        let huge = space.chunk_mut(first).huge;
        self.hotness.follow(number, at, huge);
        let (mut units, _) = space.take(FMEM, &(first..first + HUGE_PAGES), HUGE_PAGES);
        units.retain(|unit| {
            if unit.pages > 1 {
                self.hotness.is_cold_huge(number, at)
            } else {
                self.hotness.is_cold_base(number, unit.page)
            }
        });
        units
    }

    /// What is hot and in SMEM, by address: huge pages, or base pages of 2 MiB each.
    fn hot_units(&self, memory: &mut Memory, number: u64) -> [Vec<Vec<Unit>>; 2] {
        let [mut huge, mut base] = [Vec::new(), Vec::new()];
        let Some(space) = memory.spaces.get_mut(&number) else {
            return [huge, base];
        };
        for (at, pages) in self.hotness.hot(number) {
            let first = at << HUGE_SHIFT;
            let chunk = space.chunk_mut(first);
            match pages {
                None if chunk.huge && chunk.is_slow(first) => huge.push(vec![Unit {
                    page: first,
                    pages: HUGE_PAGES,
                }]),
                Some(pages) if !chunk.huge => {
                    let units: Vec<Unit> = (pages.into_iter())
                        .filter(|&page| chunk.has(page) && chunk.is_slow(page))
                        .map(|page| Unit { page, pages: 1 })
                        .collect();
                    if !units.is_empty() {
                        base.push(units);
                    }
                }
                _ => {}
            }
        }
        [huge, base]
    }

    fn promote(&mut self, memory: &mut Memory) -> u64 {
        let (mut spent_ns, mut waiting) = (0, 0);
        for number in self.hands.keys().copied().collect::<Vec<_>>() {
            for batches in self.hot_units(memory, number) {
                for mut units in batches {
                    let room = self.promotion_room(memory);
                    if room < units[0].pages {
                        break;
                    }
                    units.truncate(usize::try_from(room).unwrap_or(usize::MAX));
                    self.shift(memory, number, &units, FMEM, &mut spent_ns);
                }
            }
            let left = self.hot_units(memory, number);
            let units = left.iter().flatten().flatten();
            waiting += units.map(|unit| unit.pages).sum::<u64>();
        }
        // It goes through all that is counted to know.
        spent_ns += self.hotness.tracked() * self.room.costs.look_base_ns;
        self.waiting = waiting;
        spent_ns
    }

    /// What may be taken of FMEM now.
    fn promotion_room(&self, memory: &Memory) -> u64 {
        let reserve = self.reserve_pages(self.all_pages(memory), PROMOTION_PERCENT);
        self.room.free(memory).saturating_sub(reserve)
    }

    fn split(&mut self, memory: &mut Memory) -> u64 {
        let count = self.splits.min(self.params.split_batch);
        self.splits -= count;
        let mut spent_ns = 0;
        for _ in 0..count {
            let Some((number, at)) = self.hotness.most_skewed() else {
                break;
            };
            if let Some(space) = memory.spaces.get_mut(&number) {
                space.split(at << HUGE_SHIFT);
            }
            self.hotness.follow(number, at, false);
            spent_ns += SPLIT_NS;
        }
        spent_ns
    }
}
