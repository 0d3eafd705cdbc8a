// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Free FMEM as migration finds it (`guest/tmm/room.c`, `migrate.c`): what lies below the
//! kernel's watermarks is not to be had, and a huge page needs 2 MiB that are in one piece.

use demeter_core::{FMEM, SMEM};

use crate::memory::{Memory, Space, Unit};
use crate::{Costs, HUGE_PAGES, HUGE_SHIFT};

/// `vm.min_free_kbytes` of every guest (`vm/manager.rs` of the crate `demeter`).
const MIN_FREE_PAGES: u64 = 1024;
/// `vm.watermark_scale_factor`, of all pages.
const SCALE_DIVISOR: u64 = 1000;
/// What of the fast node the kernel has for itself before it counts pages.
const KERNEL_PAGES: u64 = 11_500;
/// And what it takes afterwards, when FMEM is measured already: the module, lists of free pages of
/// its CPU, what starts the program. Fitted to a HeMem that demoted only where no page was free: with
/// more than 819 it would have.
const TAKEN_PAGES: u64 = 800;
/// Pages of the zone for old devices, and the part of the others that it keeps back.
const DMA_PAGES: u64 = 4096;
const DMA_DIVISOR: u64 = 256;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Below this many free pages programs get SMEM, as Memtis' module reckons: without what zones
    /// keep back from each other.
    pub low: u64,
    /// Below this many nobody may take one for a promotion.
    pub high: u64,
    /// Free pages that are in pieces.
    loose: u64,
    /// What of [`Memory::left_pages`] has been counted among them.
    left_seen: u64,
    /// Of that, what the kernel has taken.
    taken: u64,
    /// What the manager's own counts take.
    pub own_pages: u64,
    /// What looking, moving and waiting cost.
    pub costs: Costs,
}

/// What came of moving some pages, in base pages but for `refusals`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shifted {
    /// Moved.
    pub pages: u64,
    /// Pages, huge or not, that found no room.
    pub refusals: u64,
    /// What it took.
    pub cost_ns: u64,
}

impl Room {
    /// Of nodes of so many pages.
    pub fn new(node_pages: [u64; 2], costs: Costs) -> Self {
        let [fast, slow] = [node_pages[0].saturating_sub(KERNEL_PAGES), node_pages[1]];
        let min = MIN_FREE_PAGES * fast / (fast + slow).max(1);
        let step = (min / 4).max(fast / SCALE_DIVISOR);
        let kept = fast.saturating_sub(DMA_PAGES) / DMA_DIVISOR;
        Self {
            low: min + step,
            high: min + 2 * step + kept,
            loose: 0,
            left_seen: 0,
            taken: 0,
            own_pages: 0,
            costs,
        }
    }

    /// What Linux did not give to a program is in pieces: a huge page had found no room in it.
    pub fn look(&mut self, memory: &Memory) {
        let left = memory.left_pages() - self.left_seen;
        self.left_seen = memory.left_pages();
        let taken = left.min(TAKEN_PAGES - self.taken);
        self.taken += taken;
        self.loose += left - taken;
    }

    /// Pages that are free.
    pub fn free(&self, memory: &Memory) -> u64 {
        memory
            .unused_pages()
            .saturating_sub(self.taken + self.own_pages)
    }

    /// What a promotion may take.
    pub fn above_high(&self, memory: &Memory) -> u64 {
        self.free(memory).saturating_sub(self.high)
    }

    /// Moves units to the other tier that are not in it; to FMEM as far as there is room, or
    /// `freed` pages that were made for them.
    pub fn shift(
        &mut self,
        memory: &mut Memory,
        number: u64,
        units: &[Unit],
        to: usize,
        freed: u64,
    ) -> Shifted {
        let mut done = Shifted::default();
        let mut left = self.above_high(memory).max(freed);
        for &unit in units {
            if to == FMEM && (left < unit.pages || !self.has(memory, unit)) {
                done.refusals += 1;
                continue;
            }
            let Some(space) = memory.spaces.get_mut(&number) else {
                continue;
            };
            space.relocate(unit, to);
            self.account(unit, to);
            done.pages += unit.pages;
            done.cost_ns += unit.pages
                * if unit.pages > 1 {
                    self.costs.migrate_huge_ns
                } else {
                    self.costs.migrate_ns
                };
            left = left.saturating_sub(unit.pages);
        }
        if done.refusals > 0 {
            done.cost_ns += self.costs.refused_ns;
        }
        done
    }

    /// What a look at 2 MiB through the page table takes.
    pub fn look_ns(&self, space: &Space, at: u64) -> u64 {
        let first = at << HUGE_SHIFT;
        let base_pages = if space.is_huge(first) {
            0
        } else {
            space.count(&(first..first + HUGE_PAGES)).iter().sum()
        };
        self.costs.look_ns + base_pages * self.costs.look_base_ns
    }

    fn has(&self, memory: &Memory, unit: Unit) -> bool {
        let free = self.free(memory);
        if unit.pages == 1 {
            free > 0
        } else {
            // The manager's own are out of the pieces.
            (free + self.own_pages).saturating_sub(self.loose) >= unit.pages
        }
    }

    /// Pieces go before what is whole.
    fn account(&mut self, unit: Unit, to: usize) {
        match (unit.pages, to) {
            (1, SMEM) => self.loose += 1,
            (1, _) if self.loose > 0 => self.loose -= 1,
            (1, _) => self.loose += HUGE_PAGES - 1,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use demeter_machine::{MachineConfig, Preset};
    use demeter_recording::{First, Resident, Run};

    #[test]
    fn a_huge_page_needs_room_in_one_piece() {
        let costs = Costs::testbed(&MachineConfig::preset(Preset::Pmem));
        let run = |page, pages, slow, huge| Run {
            page,
            pages,
            first: First { slow, huge },
        };
        let mut memory = Memory::new(4000, false);
        memory.populate(&Resident {
            space: 1,
            runs: vec![
                run(0, 512, false, true),
                run(512, 100, false, false),
                run(1024, 1024, true, true),
                run(2048, 10, true, false),
            ],
        });
        let mut room = Room::new([KERNEL_PAGES + 20_000, 20_000], costs);
        assert_eq!((room.low, room.high), (512 + 128, 512 + 256 + 62));
        room.look(&memory);
        let taken = 612 + TAKEN_PAGES + room.high;
        assert_eq!(room.above_high(&memory), 4000 - taken);
        let huge = |page| Unit { page, pages: 512 };
        let base: Vec<Unit> = (0..10)
            .map(|at| Unit {
                page: 2048 + at,
                pages: 1,
            })
            .collect();
        let mut shift = |units: &[Unit], to| room.shift(&mut memory, 1, units, to, 0);
        let [none, whole] = [
            (0, 1, costs.refused_ns),
            (512, 0, 512 * costs.migrate_huge_ns),
        ]
        .map(|(pages, refusals, cost_ns)| Shifted {
            pages,
            refusals,
            cost_ns,
        });
        assert_eq!(
            shift(&[huge(1024)], FMEM),
            none,
            "all that is free is in pieces"
        );
        assert_eq!(shift(&base, FMEM).pages, 10);
        assert_eq!(shift(&[huge(0)], SMEM), whole);
        let both = shift(&[huge(1024), huge(1536)], FMEM);
        assert_eq!((both.pages, both.refusals), (512, 1));
        assert_eq!(memory.spaces[&1].resident, [512 + 110, 1024]);
    }
}
