// SPDX-License-Identifier: Apache-2.0 OR MIT
//! HeMem's module (`guest/peers/hemem/`): a thread that reads samples into counts of 2 MiB, and
//! one that looks which pages there are and promotes what is hot, first in, first out.

use std::collections::{BTreeMap, HashMap};

use demeter_core::peers::hemem::{self as core, Page, Rules};
use demeter_core::{FMEM, SMEM};

use super::room::{Room, Shifted};
use super::thread::Thread;
use super::{Counts, Managing, Sample};
use crate::memory::{Memory, Space};
use crate::params::{params, wrong};
use crate::{Error, HUGE_PAGES, HUGE_SHIFT, PAGE_SHIFT};

/// Of a process, a round (`pages.c`).
const LOOK_GRANULES: usize = 1024;

params! {
    /// Parameters of HeMem's module that a simulation heeds; a record has no stores.
    HememParams;
    /// Loads that one sample stands for.
    period = 19_997, 2u64, u64::from(u32::MAX);
    /// Sampled reads from which a page is hot.
    hot_reads = 4, 1u64, u64::from(u32::MAX);
    /// With more samples in one page all counts are halved.
    cooling_samples = 10, 1u64, u64::from(u32::MAX);
    /// Hot pages that a round looks at to find those that are hot no more.
    cooling_pages = 8192, 1u64, u64::from(u32::MAX);
    /// The least mapping that is managed.
    least_mapping_bytes = 1 << 30, 4096u64, u64::MAX >> 1;
    /// Between two looks at the samples.
    poll_ms = 10, 1u64, 10_000;
    /// Between two rounds.
    policy_ms = 10, 1u64, 10_000;
    /// Pages that a round moves at most.
    round_pages = 2_621_440, 1u64, u64::from(u32::MAX);
}

impl HememParams {
    /// Sets one by name.
    ///
    /// # Errors
    /// There is none of that name here, or the value is none for it.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), Error> {
        match name {
            "store_period" | "hot_writes" | "writes_first" => Err(wrong(
                name,
                "is of stores, which a record does not have".into(),
            )),
            _ => self.set_number(name, value),
        }
    }
}

/// What of an address space is managed.
#[derive(Default)]
struct Pass {
    /// When it was last looked which that is.
    chunks: usize,
    managed: Vec<u64>,
    /// How far this pass has come.
    hand: usize,
}

impl Pass {
    /// Mappings are not known; what is resident without a gap counts as one.
    fn follow(&mut self, space: &Space, least_pages: u64) {
        if self.chunks == space.chunks() {
            return;
        }
        self.chunks = space.chunks();
        self.managed.clear();
        let mut begun = 0;
        for run in space.runs() {
            let at = run.start >> HUGE_SHIFT;
            if self.managed.last().is_some_and(|last| last + 1 != at) {
                self.keep_large(begun, least_pages);
                begun = self.managed.len();
            }
            self.managed.push(at);
        }
        self.keep_large(begun, least_pages);
        self.hand = self.hand.min(self.managed.len());
    }

    fn keep_large(&mut self, begun: usize, least_pages: u64) {
        if ((self.managed.len() - begun) as u64) << HUGE_SHIFT < least_pages {
            self.managed.truncate(begun);
        }
    }
}

/// See the module.
pub struct Hemem {
    params: HememParams,
    /// What moves up is made a huge page first, of a program that has any.
    collapse: bool,
    pages: core::Hemem,
    room: Room,
    /// Those that were sampled.
    spaces: BTreeMap<u64, Pass>,
    /// Address space and number of 2 MiB, in the order in which they were found.
    places: Vec<(u64, u64)>,
    numbers: HashMap<(u64, u64), Page>,
    pending: Vec<Sample>,
    sampled: Thread,
    policy: Thread,
    counts: Counts,
}

impl Hemem {
    /// Knows of nothing yet.
    pub fn new(params: &HememParams, huge_pages: bool, room: Room) -> Self {
        let small = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        Self {
            params: *params,
            collapse: huge_pages,
            pages: core::Hemem::new(&Rules {
                hot_reads: small(params.hot_reads),
                // There are none.
                hot_writes: u32::MAX,
                cooling_samples: small(params.cooling_samples),
                writes_first: false,
            }),
            room,
            spaces: BTreeMap::new(),
            places: Vec::new(),
            numbers: HashMap::new(),
            pending: Vec::new(),
            sampled: Thread::new(params.poll_ms * 1_000_000),
            policy: Thread::new(params.policy_ms * 1_000_000),
            counts: Counts::default(),
        }
    }

    /// `sampled.c`: a space is known from its first sample on, a page once it was looked at.
    fn read_samples(&mut self) -> u64 {
        let cost_ns =
            self.room.costs.wake_ns + self.pending.len() as u64 * self.room.costs.count_ns;
        for sample in self.pending.drain(..) {
            self.spaces.entry(sample.space).or_default();
            let place = (sample.space, sample.page >> HUGE_SHIFT);
            if let Some(&page) = self.numbers.get(&place) {
                self.pages.count(page, false);
                self.counts.samples += 1;
                self.counts.tier_samples[sample.tier] += 1;
            }
        }
        cost_ns
    }

    /// `pages.c`: goes on with a pass over each space.
    fn look(&mut self, memory: &Memory) -> u64 {
        let least_pages = self.params.least_mapping_bytes.div_ceil(1 << PAGE_SHIFT);
        let mut cost_ns = 0;
        for (&number, pass) in &mut self.spaces {
            let Some(space) = memory.spaces.get(&number) else {
                continue;
            };
            pass.follow(space, least_pages);
            let end = (pass.hand + LOOK_GRANULES).min(pass.managed.len());
            for &at in &pass.managed[pass.hand..end] {
                cost_ns += self.room.look_ns(space, at);
                let Some(tier) = tier_of(space, at) else {
                    continue;
                };
                match self.numbers.get(&(number, at)) {
                    None => {
                        let page = self.pages.add(tier);
                        self.numbers.insert((number, at), page);
                        self.places.push((number, at));
                    }
                    Some(&page) if self.pages.tier(page) != Some(tier) => {
                        self.pages.moved(page, tier);
                    }
                    Some(_) => {}
                }
            }
            pass.hand = if end == pass.managed.len() { 0 } else { end };
        }
        cost_ns
    }

    /// `policy.c`: each page that is hot now is tried once at most.
    fn round(&mut self, memory: &mut Memory) -> u64 {
        self.room.look(memory);
        self.counts.epochs += 1;
        let mut cost_ns = self.room.costs.wake_ns + self.look(memory);
        self.pages.cool(self.params.cooling_pages);
        let mut budget = self.params.round_pages;
        let mut in_pieces = false;
        let mut tries = self.pages.pages(SMEM, true);
        while tries > 0 && budget > 0 {
            tries -= 1;
            let was_in_pieces = in_pieces;
            let (moved, more) = self.next(memory, &mut in_pieces, &mut cost_ns);
            // What found no room comes again, after something has gone.
            tries += u64::from(in_pieces && !was_in_pieces);
            budget = budget.saturating_sub(moved);
            if !more {
                break;
            }
        }
        cost_ns
    }

    /// One promotion, with what has to go before; whether either side has not run out. Free
    /// memory that had no room for a page in this round is none.
    fn next(
        &mut self,
        memory: &mut Memory,
        in_pieces: &mut bool,
        cost_ns: &mut u64,
    ) -> (u64, bool) {
        let has_room = !*in_pieces && self.room.above_high(memory) >= HUGE_PAGES;
        let Some(mut next) = self.pages.choose(has_room) else {
            return (0, false);
        };
        let mut freed = 0;
        if let Some(down) = next.down {
            freed = self.shift(memory, down, SMEM, 0, cost_ns).pages;
            match self.pages.choose(true) {
                Some(now) => next = now,
                None => return (freed, false),
            }
        }
        let up = self.shift(memory, next.up, FMEM, freed, cost_ns);
        *in_pieces |= up.refusals > 0;
        (freed + up.pages, true)
    }

    /// Moves what of a page is in the other tier; it is last of its list then.
    fn shift(
        &mut self,
        memory: &mut Memory,
        page: Page,
        to: usize,
        freed: u64,
        cost_ns: &mut u64,
    ) -> Shifted {
        let (number, at) = self.places[page.index()];
        let Some(space) = memory.spaces.get_mut(&number) else {
            return Shifted::default();
        };
        let pages = at << HUGE_SHIFT..(at + 1) << HUGE_SHIFT;
        if to == FMEM && self.collapse && space.has_huge && space.collapse(pages.start) {
            *cost_ns += HUGE_PAGES * self.room.costs.collapse_ns;
        }
        let from = if to == FMEM { SMEM } else { FMEM };
        let (units, _) = space.take(from, &pages, HUGE_PAGES);
        let done = self.room.shift(memory, number, &units, to, freed);
        *cost_ns += done.cost_ns;
        let moved = &mut self.counts.moved;
        moved.cost_ns += done.cost_ns;
        if to == FMEM {
            moved.promoted += done.pages;
            moved.filled += if freed == 0 { done.pages } else { 0 };
        } else {
            moved.demoted += done.pages;
        }
        let tier = memory
            .spaces
            .get(&number)
            .and_then(|space| tier_of(space, at));
        if let Some(tier) = tier {
            self.pages.moved(page, tier);
        }
        done
    }
}

/// The tier that most of 2 MiB is in.
fn tier_of(space: &Space, at: u64) -> Option<usize> {
    let [fast, slow] = space.count(&(at << HUGE_SHIFT..(at + 1) << HUGE_SHIFT));
    let tier = if fast >= slow { FMEM } else { SMEM };
    (fast + slow > 0).then_some(tier)
}

impl Managing for Hemem {
    fn period(&self) -> u64 {
        self.params.period
    }

    fn due_ps(&self) -> u64 {
        self.sampled.due_ps.min(self.policy.due_ps)
    }

    fn sample(&mut self, sample: Sample) {
        self.pending.push(sample);
    }

    fn turn(&mut self, memory: &mut Memory, _now_ps: u64) -> Result<u64, Error> {
        Ok(if self.sampled.due_ps <= self.policy.due_ps {
            let cost_ns = self.read_samples();
            self.sampled.worked(cost_ns);
            cost_ns
        } else {
            let cost_ns = self.round(memory);
            self.policy.worked(cost_ns);
            cost_ns
        })
    }

    fn counts(&self) -> Counts {
        self.counts
    }
}
