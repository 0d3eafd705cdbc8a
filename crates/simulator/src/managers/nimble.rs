// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Nimble's module (`guest/peers/nimble/`): a thread that ages page lists by accessed bits at a
//! fixed pace, and exchanges what is active in SMEM for what is inactive in FMEM. A page counts
//! as accessed where a line of it was filled from memory.

use std::collections::{HashSet, VecDeque};

use demeter_core::peers::nimble::{Lists, share};
use demeter_core::{FMEM, SMEM};
use demeter_recording::Row;

use super::room::Room;
use super::thread::Thread;
use super::{Counts, Managing, Sample};
use crate::memory::{Memory, Unit};
use crate::params::{params, wrong};
use crate::{Error, HUGE_PAGES, HUGE_SHIFT};

/// Pages of a tier that are off their lists at once (`nimble.c`).
const TAKE_PAGES: u64 = 16 * HUGE_PAGES;

params! {
    /// Parameters of Nimble's module that a simulation heeds.
    NimbleParams;
    /// Between two rounds.
    period_ms = 5000, 1u64, 100_000;
    /// Part of each list that a round looks at.
    scan_permille = 500, 1u64, 1000;
    /// Whether huge pages are exchanged, or moved out and then in.
    exchange = 1, 0u64, 1;
}

impl NimbleParams {
    /// Sets one by name.
    ///
    /// # Errors
    /// There is none of that name here, or the value is none for it.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), Error> {
        match name {
            "batch" => Err(wrong(name, "changes nothing that is simulated".into())),
            _ => self.set_number(name, value),
        }
    }
}

/// A page on a list: its address space and where it is.
type Page = (u64, Unit);

/// A list, its head first.
#[derive(Default)]
struct List {
    pages: VecDeque<Page>,
    length: u64,
}

impl List {
    fn push(&mut self, page: Page) {
        self.length += page.1.pages;
        self.pages.push_front(page);
    }

    fn pop(&mut self) -> Option<Page> {
        let page = self.pages.pop_back()?;
        self.length -= page.1.pages;
        Some(page)
    }
}

/// See the module.
pub struct Nimble {
    params: NimbleParams,
    room: Room,
    /// By tier, inactive and active.
    lists: [[List; 2]; 2],
    known: HashSet<(u64, u64)>,
    accessed: HashSet<(u64, u64)>,
    thread: Thread,
    counts: Counts,
}

impl Nimble {
    /// Knows of nothing yet.
    pub fn new(params: &NimbleParams, room: Room) -> Self {
        Self {
            params: *params,
            room,
            lists: Default::default(),
            known: HashSet::new(),
            accessed: HashSet::new(),
            thread: Thread::new(params.period_ms * 1_000_000),
            counts: Counts::default(),
        }
    }

    /// Linux has what is new at the head of an inactive list.
    fn follow(&mut self, memory: &Memory) {
        for (&number, space) in &memory.spaces {
            for tier in [FMEM, SMEM] {
                let (units, _) = space.take(tier, &(0..u64::MAX >> HUGE_SHIFT), u64::MAX);
                for unit in units {
                    if self.known.insert((number, unit.page)) {
                        self.lists[tier][0].push((number, unit));
                    }
                }
            }
        }
    }

    /// Looks at a part of both lists of a tier, from their ends; what it took.
    fn age(&mut self, tier: usize) -> u64 {
        let lengths = [1, 0].map(|active| {
            let pages = self.lists[tier][active].length;
            (active, share(pages, self.params.scan_permille))
        });
        let mut cost_ns = 0;
        for (active, pages) in lengths {
            let mut done = 0;
            while done < pages {
                let Some((number, unit)) = self.lists[tier][active].pop() else {
                    break;
                };
                done += unit.pages;
                cost_ns += if unit.pages > 1 {
                    self.room.costs.age_huge_ns
                } else {
                    self.room.costs.age_ns
                };
                let is_active = self.accessed.remove(&(number, unit.page));
                self.lists[tier][usize::from(is_active)].push((number, unit));
            }
        }
        cost_ns
    }

    /// Takes pages off the end of a list.
    fn take(&mut self, tier: usize, active: usize, pages: u64) -> Parts {
        let mut parts = Parts::default();
        let mut done = 0;
        while done < pages {
            let Some(page) = self.lists[tier][active].pop() else {
                break;
            };
            done += page.1.pages;
            if page.1.pages > 1 {
                parts.huge.push_back(page);
            } else {
                parts.base.push_back(page);
            }
        }
        parts
    }

    /// As many of both sides as there are, some at a time.
    fn manage(&mut self, memory: &mut Memory) -> u64 {
        let mut hot_pages = self.lists[SMEM][1].length;
        let mut cold_pages = self.lists[FMEM][0].length;
        let mut spent_ns = 0;
        while hot_pages > 0 {
            let (hot_part, cold_part) = (hot_pages.min(TAKE_PAGES), cold_pages.min(TAKE_PAGES));
            if cold_part == 0 && self.room.above_high(memory) == 0 {
                break;
            }
            let hot = self.take(SMEM, 1, hot_part);
            let cold = self.take(FMEM, 0, cold_part);
            spent_ns += self.shift(memory, hot, cold);
            hot_pages -= hot_part;
            cold_pages -= cold_part;
        }
        spent_ns
    }

    fn shift(&mut self, memory: &mut Memory, mut hot: Parts, mut cold: Parts) -> u64 {
        let plan = Lists {
            hot_huge: pages(&hot.huge),
            hot_base: pages(&hot.base),
            cold_huge: pages(&cold.huge),
            cold_base: pages(&cold.base),
            room: self.room.above_high(memory),
            huge: HUGE_PAGES,
        }
        .plan();
        let mut spent_ns = 0;
        for (from, pages) in [
            (&mut hot.huge, plan.fill_huge),
            (&mut hot.base, plan.fill_base),
        ] {
            for page in first(from, pages) {
                let moved = self.migrate(memory, page, FMEM, 0, &mut spent_ns);
                self.counts.moved.filled += moved;
            }
        }
        let up = first(&mut hot.huge, plan.exchange);
        let down = first(&mut cold.huge, plan.exchange);
        if self.params.exchange != 0 {
            for (up, down) in up.into_iter().zip(down) {
                self.exchange(memory, up, down);
                spent_ns += HUGE_PAGES * self.room.costs.swap_huge_ns;
            }
        } else {
            self.trade(memory, up, down, &mut spent_ns);
        }
        let up = first(&mut hot.base, plan.trade);
        let down = first(&mut cold.base, plan.trade);
        self.trade(memory, up, down, &mut spent_ns);
        for (parts, tier, active) in [(hot, SMEM, 1), (cold, FMEM, 0)] {
            for page in parts.huge.into_iter().chain(parts.base) {
                self.lists[tier][active].push(page);
            }
        }
        self.counts.moved.cost_ns += spent_ns;
        spent_ns
    }

    fn exchange(&mut self, memory: &mut Memory, up: Page, down: Page) {
        for ((number, unit), to) in [(down, SMEM), (up, FMEM)] {
            if let Some(space) = memory.spaces.get_mut(&number) {
                space.relocate(unit, to);
            }
        }
        self.lists[FMEM][1].push(up);
        self.lists[SMEM][0].push(down);
        self.counts.moved.promoted += up.1.pages;
        self.counts.moved.demoted += down.1.pages;
    }

    /// Out, then in, by two copies.
    fn trade(&mut self, memory: &mut Memory, up: Vec<Page>, down: Vec<Page>, spent_ns: &mut u64) {
        let mut freed = 0;
        for page in down {
            freed += self.migrate(memory, page, SMEM, 0, spent_ns);
        }
        for page in up {
            let moved = self.migrate(memory, page, FMEM, freed, spent_ns);
            freed -= moved.min(freed);
        }
    }

    /// Moves a page that is on no list, and puts it onto one.
    fn migrate(
        &mut self,
        memory: &mut Memory,
        page: Page,
        to: usize,
        freed: u64,
        spent_ns: &mut u64,
    ) -> u64 {
        let done = self.room.shift(memory, page.0, &[page.1], to, freed);
        *spent_ns += done.cost_ns;
        let active = usize::from(to == FMEM);
        let tier = if done.refusals > 0 { SMEM } else { to };
        self.lists[tier][active].push(page);
        if to == FMEM {
            self.counts.moved.promoted += done.pages;
        } else {
            self.counts.moved.demoted += done.pages;
        }
        done.pages
    }
}

/// Pages off their list.
#[derive(Default)]
struct Parts {
    huge: VecDeque<Page>,
    base: VecDeque<Page>,
}

fn pages(list: &VecDeque<Page>) -> u64 {
    list.iter().map(|page| page.1.pages).sum()
}

/// The first of a list, so many base pages.
fn first(list: &mut VecDeque<Page>, pages: u64) -> Vec<Page> {
    let mut some = Vec::new();
    let mut taken = 0;
    while let Some(page) = list.front().filter(|page| taken + page.1.pages <= pages) {
        taken += page.1.pages;
        some.push(*page);
        list.pop_front();
    }
    some
}

impl Managing for Nimble {
    /// It takes no samples.
    fn period(&self) -> u64 {
        u64::MAX
    }

    fn due_ps(&self) -> u64 {
        self.thread.due_ps
    }

    fn sample(&mut self, _sample: Sample) {}

    fn accessed(&mut self, space: u64, huge: bool, rows: &[Row]) {
        if huge {
            let head = rows.first().map(|row| row.page & !(HUGE_PAGES - 1));
            self.accessed.extend(head.map(|page| (space, page)));
        } else {
            self.accessed
                .extend(rows.iter().map(|row| (space, row.page)));
        }
    }

    fn turn(&mut self, memory: &mut Memory, _now_ps: u64) -> Result<u64, Error> {
        self.room.look(memory);
        self.follow(memory);
        let aged_ns = self.age(FMEM) + self.age(SMEM);
        let cost_ns = self.room.costs.wake_ns + aged_ns + self.manage(memory);
        self.counts.epochs += 1;
        self.thread.worked(cost_ns);
        Ok(cost_ns)
    }

    fn counts(&self) -> Counts {
        self.counts
    }
}
