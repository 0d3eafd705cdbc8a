// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One guest under one manager, window by window.

use demeter_core::{FMEM, SMEM, digest_add};
use demeter_machine::MachineConfig;
use demeter_recording::{Resident, Row, Window};

use crate::managers::{self, Known, Manager, Managing, Sample};
use crate::memory::{Chunk, Memory};
use crate::report::{Placed, Report};
use crate::sampler::Sampler;
use crate::{Costs, Error, HUGE_SHIFT, Header, PAGE_SHIFT};

/// What a fill costs more from SMEM than from FMEM: a random one, and one of a stream.
#[must_use]
pub fn dearer_ps(machine: &MachineConfig) -> [u64; 2] {
    // As the machine's tiers have it.
    let transfer_ps = |bytes_per_s: u64| 64 * 1_000_000_000_000 / bytes_per_s.max(1);
    let tier = |latency_ps: u64, bytes_per_s: u64| {
        let transfer_ps = transfer_ps(bytes_per_s);
        [
            latency_ps.max(transfer_ps),
            transfer_ps.max(latency_ps / machine.stream_overlap.max(1)),
        ]
    };
    let fast = tier(machine.fmem_latency_ps, machine.fmem_bandwidth_bytes_per_s);
    let slow = tier(machine.smem_latency_ps, machine.smem_bandwidth_bytes_per_s);
    [0, 1].map(|kind: usize| slow[kind].saturating_sub(fast[kind]))
}

/// Turns of a manager's threads, at the end of one window, that are due only by what turns before
/// them took: with more, there is no end of them.
const MOST_LATE_TURNS: u32 = 10_000;

/// Fills by tier, and the time at which.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    progress_ps: u64,
    fills: [u64; 2],
}

/// What a guest tells of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Base pages by tier.
    pub resident_pages: [u64; 2],
    /// Those of hot ranges, where a manager knows.
    pub hot_pages: Option<u64>,
    /// Samples so far, by tier.
    pub tier_samples: [u64; 2],
}

/// A replay that goes on.
pub struct Simulation {
    dearer_ps: [u64; 2],
    memory: Memory,
    manager: Option<Box<dyn Managing>>,
    sampler: Sampler,
    period: u64,
    sample_ps: u64,
    /// Moving a page out of FMEM that the host takes.
    move_ps: u64,
    /// Where it went on taking last.
    evacuated: (u64, u64),
    evacuated_pages: u64,
    now_ps: u64,
    at: Mark,
    /// The mark before each window: what the last quarter began with.
    marks: Vec<Mark>,
    digest: u64,
}

/// What rows of one chunk came to.
#[derive(Clone, Copy, Default)]
struct Sum {
    slow: [u64; 2],
    fills: u64,
    walks_saved: i64,
}

impl Simulation {
    /// A guest as recorded but for its FMEM, its machine and its manager; guests of different
    /// seeds sample other loads.
    #[must_use]
    pub fn new(
        header: &Header,
        fmem_bytes: u64,
        machine: &MachineConfig,
        manager: Manager,
        seed: u64,
    ) -> Self {
        let dearer_ps = dearer_ps(machine);
        let managing = managers::begin(header, fmem_bytes, dearer_ps[0], manager);
        let period = managing.as_ref().map_or(u64::MAX, |one| one.period());
        Self {
            dearer_ps,
            memory: Memory::new(
                fmem_bytes >> PAGE_SHIFT,
                fmem_bytes != header.tier_bytes[FMEM],
            ),
            manager: managing,
            sampler: Sampler::new(period, seed),
            period,
            sample_ps: manager.sample_ns() * 1000,
            move_ps: Costs::testbed(machine).move_ns * 1000,
            evacuated: (0, 0),
            evacuated_pages: 0,
            now_ps: 0,
            at: Mark::default(),
            marks: vec![Mark::default()],
            digest: 0,
        }
    }

    /// What is resident to begin with.
    pub fn resident(&mut self, resident: &Resident) {
        self.memory.populate(resident);
    }

    /// Plays a window, in which so many loads are eligible.
    ///
    /// # Errors
    /// The core refused something, or the manager leaves the program no time.
    pub fn window(&mut self, window: &Window, eligible: u64) -> Result<(), Error> {
        if self.manager.is_some() {
            self.sampler.begin(eligible, self.period);
        }
        // What a fill of a base page costs more for its walk than one of a huge page.
        let mean = |(ps, fills): (u64, u64)| ps.checked_div(fills).unwrap_or(0);
        let walk_ps = mean(window.walks[0]).saturating_sub(mean(window.walks[1])) as i64;
        let mut sum = Sum::default();
        let mut before = 0;
        let mut samples = 0u64;
        let mut begin = 0;
        for &(number, end) in &window.spaces {
            let mut rows = &window.rows[begin..end];
            begin = end;
            while let Some(first) = rows.first() {
                let at = first.page >> HUGE_SHIFT;
                let count = rows
                    .iter()
                    .take_while(|row| row.page >> HUGE_SHIFT == at)
                    .count();
                let (own, rest) = rows.split_at(count);
                rows = rest;
                let space = self.memory.spaces.entry(number).or_default();
                let mut chunk = space.chunk_mut(first.page);
                if own.iter().any(|row| !chunk.has(row.page)) {
                    self.arrivals(number, own);
                    let space = self.memory.spaces.entry(number).or_default();
                    chunk = space.chunk_mut(first.page);
                }
                if let Some(manager) = &mut self.manager {
                    manager.accessed(number, chunk.huge, own);
                }
                for row in own {
                    sum.add(chunk, row, walk_ps);
                    before += u64::from(row.eligible);
                    for _ in 0..self.sampler.picked(before) {
                        samples += 1;
                        if let Some(manager) = &mut self.manager {
                            manager.sample(Sample {
                                space: number,
                                page: row.page,
                                tier: usize::from(chunk.is_slow(row.page)),
                            });
                        }
                    }
                }
            }
        }
        let dearer: u64 = (0..2)
            .map(|kind| sum.slow[kind].saturating_mul(self.dearer_ps[kind]))
            .fold(0, u64::saturating_add);
        let base_ps = window
            .base_ps
            .saturating_add_signed(sum.walks_saved.saturating_neg());
        let sampled_ps = samples.saturating_mul(self.sample_ps);
        for ps in [base_ps, dearer, sampled_ps] {
            self.now_ps = self.now_ps.saturating_add(ps);
        }
        self.at.progress_ps = self.at.progress_ps.saturating_add(window.base_ps);
        let slow = sum.slow[0] + sum.slow[1];
        self.at.fills[SMEM] += slow;
        self.at.fills[FMEM] += sum.fills - slow;
        self.marks.push(self.at);
        self.ticks()
    }

    /// Pages that come with these rows of a chunk.
    fn arrivals(&mut self, number: u64, rows: &[Row]) {
        for row in rows {
            let space = self.memory.spaces.entry(number).or_default();
            if space.chunk_mut(row.page).has(row.page) {
                continue;
            }
            // Of rows that do not say, nothing was filled before: in FMEM while it has room.
            let first = self.memory.first_touch(row.first.unwrap_or_default());
            if let Some(space) = self.memory.spaces.get_mut(&number) {
                space.arrive(row.page, first);
            }
        }
    }

    fn ticks(&mut self) -> Result<(), Error> {
        let Some(manager) = &mut self.manager else {
            return Ok(());
        };
        let window_end_ps = self.now_ps;
        let mut late_turns = 0;
        while manager.due_ps() <= self.now_ps {
            late_turns += u32::from(manager.due_ps() > window_end_ps);
            if late_turns > MOST_LATE_TURNS {
                return Err(Error::Busy);
            }
            let cost_ns = manager.turn(&mut self.memory, self.now_ps)?;
            self.now_ps += cost_ns * 1000;
            let period = manager.period();
            if period != self.period {
                self.period = period;
                self.sampler.restart(period);
            }
            self.digest = digest_add(self.digest, self.now_ps);
        }
        Ok(())
    }

    /// The guest's clock.
    #[must_use]
    pub fn now_ps(&self) -> u64 {
        self.now_ps
    }

    /// What it would tell its host now.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let pages = |tier| (self.memory.spaces.values()).map(move |space| space.resident[tier]);
        let manager = self.manager.as_ref();
        Figures {
            resident_pages: [FMEM, SMEM].map(|tier| pages(tier).sum()),
            hot_pages: manager.and_then(|manager| manager.hot_pages(&self.memory)),
            tier_samples: manager.map_or([0; 2], |manager| manager.counts().tier_samples),
        }
    }

    /// The host gives or takes FMEM. What is taken is free pages first and then, as the balloon
    /// empties blocks whatever is in them, pages all around; the guest waits for their moves.
    pub fn resize(&mut self, from_pages: u64, to_pages: u64) {
        if to_pages >= from_pages {
            self.memory.grow(to_pages - from_pages);
            return;
        }
        let leaving = self.memory.shrink(from_pages - to_pages);
        let moved = self.memory.evacuate(leaving, &mut self.evacuated);
        self.evacuated_pages += moved;
        self.now_ps += moved * self.move_ps;
    }

    /// The end of the record.
    #[must_use]
    pub fn finish(self) -> Report {
        let share = |from: &Mark| {
            let fills = [FMEM, SMEM].map(|tier| self.at.fills[tier] - from.fills[tier]);
            let all = fills[FMEM] + fills[SMEM];
            (all > 0).then(|| fills[FMEM] as f64 / all as f64)
        };
        let quarter = (self.marks.iter())
            .find(|mark| mark.progress_ps >= self.at.progress_ps / 4 * 3)
            .unwrap_or(&self.at);
        let mut digest = digest_add(self.digest, self.now_ps);
        let mut placed = Vec::new();
        for (&number, space) in &self.memory.spaces {
            for run in areas(space.runs()) {
                let pages = space.count(&run);
                for value in [number, run.start, run.end, pages[0], pages[1]] {
                    digest = digest_add(digest, value);
                }
            }
        }
        let manager = self.manager.as_ref();
        let counts = manager.map(|manager| manager.counts()).unwrap_or_default();
        match manager.and_then(|manager| manager.ranges()) {
            Some(ranges) => {
                for range in ranges {
                    let Known {
                        space,
                        start,
                        end,
                        rate,
                    } = range;
                    let pages = self.memory.spaces.get(&space).map_or([0; 2], |space| {
                        space.count(&(start >> PAGE_SHIFT..end >> PAGE_SHIFT))
                    });
                    placed.push(Placed::new(space, start, end, pages, rate));
                }
            }
            None => {
                for (&number, space) in &self.memory.spaces {
                    for run in areas(space.runs()) {
                        let (start, end) = (run.start << PAGE_SHIFT, run.end << PAGE_SHIFT);
                        placed.push(Placed::new(number, start, end, space.count(&run), 0));
                    }
                }
            }
        }
        digest = digest_add(digest, counts.plans);
        Report {
            time_s: self.now_ps as f64 * 1e-12,
            none_s: None,
            ideal_s: None,
            ideal_share: None,
            fmem_share: share(&Mark::default()),
            fmem_share_last_quarter: share(quarter),
            samples: counts.samples,
            epochs: counts.epochs,
            ranges: counts.ranges,
            promoted_pages: counts.moved.promoted,
            demoted_pages: counts.moved.demoted,
            evacuated_pages: self.evacuated_pages,
            filled_pages: counts.moved.filled,
            stops: counts.stops,
            relocate_ms: counts.moved.cost_ns as f64 * 1e-6,
            placed,
            digest: format!("{digest:016x}"),
        }
    }
}

/// Neighbours as one.
fn areas(
    runs: impl Iterator<Item = std::ops::Range<u64>>,
) -> impl Iterator<Item = std::ops::Range<u64>> {
    let mut areas: Vec<std::ops::Range<u64>> = Vec::new();
    for run in runs {
        match areas.last_mut() {
            Some(last) if last.end == run.start => last.end = run.end,
            _ => areas.push(run),
        }
    }
    areas.into_iter()
}

impl Sum {
    #[inline]
    fn add(&mut self, chunk: &Chunk, row: &Row, walk_ps: i64) {
        let fills = u64::from(row.random) + u64::from(row.streamed);
        self.fills += fills;
        if chunk.is_slow(row.page) {
            self.slow[0] += u64::from(row.random);
            self.slow[1] += u64::from(row.streamed);
        }
        if chunk.huge != chunk.recorded_huge {
            let saved = walk_ps.saturating_mul(fills as i64);
            let saved = if chunk.huge {
                saved
            } else {
                saved.saturating_neg()
            };
            self.walks_saved = self.walks_saved.saturating_add(saved);
        }
    }
}
