// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The module's pipeline, once a tick: samples into ranges, ends of epochs, ranking,
//! plan, moves (`guest/tmm/worker.c`, `pacing.c`, `publish.c`, `routes.c`).

use std::collections::BTreeMap;

use demeter_core::{
    Areas, FMEM, Pace, PaceEpoch, PaceTick, Plan, PlanEnd, PlanParams, Planner, Ranges,
    RangesParams, Ranking, SMEM, Step,
};

use super::{Counts, Known, Managing, Sample};
use crate::ledger::{Epoch, Ledger};
use crate::memory::Memory;
use crate::relocate::{Cursors, Moved, Mover};
use crate::{Costs, Error, PAGE_SHIFT, Params};

/// As the module begins: `DEMETER_FIRST_SWAP_COST_NS` and `..._MOVE_...` of `tmm.h`.
const FIRST_SWAP_COST_NS: u64 = 3000;
const FIRST_MOVE_COST_NS: u64 = 2000;
/// The gap between the tiers while nothing is measured, in picoseconds (`latency_gap.c`).
const LATENCY_GAP_PS: u64 = 108_000;
/// Samples of each tier from which on it is (`latency_gap.c`).
const GAP_SAMPLES: u64 = 128;
/// Room for ranges of an address space, and for a plan (`targets.c`, `worker.c`).
const MOST_RANGES: u32 = 16384;
const FIRST_ENTRIES: u64 = 512;
const ENTRIES_PER_STEP: u64 = 8;
const LEAST_STEPS: u64 = 512;
const MOST_STEPS: u64 = 1024;
/// Gaps that divide areas, in granules (`areas.c`).
const GAP_GRANULES: u64 = 32;
/// Part of a fast node that is left free, as a shift (`routes.c`).
const HEADROOM_SHIFT: u32 = 6;
/// Epochs in which an unused cost is forgotten (`execute.c`).
const FORGET_EPOCHS: u64 = 64;
/// Log2 of the most ticks of an epoch.
const MOST_PACE: u32 = 3;
const PS_PER_MS: u64 = 1_000_000_000;

struct Target {
    ranges: Ranges,
    chunks: usize,
    /// Of the running epoch.
    samples: u64,
}

/// demeter.ko of a guest.
pub struct Epochs {
    params: Params,
    costs: Costs,
    collapse: bool,
    /// SMEM latency less FMEM latency of the machine.
    gap_ps: u64,
    headroom_pages: u64,
    targets: BTreeMap<u64, Target>,
    pending: Vec<Sample>,
    pace: Pace,
    planner: Planner,
    cursors: Cursors,
    ledger: Ledger,
    entries: u64,
    swap_cost_ns: u64,
    move_cost_ns: u64,
    splits: u64,
    /// Of the next tick, on the guest's clock.
    due_ps: u64,
    counts: Counts,
}

/// What a guest's manager is told once.
pub struct Ground {
    /// Parameters.
    pub params: Params,
    /// Costs.
    pub costs: Costs,
    /// The kernel makes huge pages.
    pub huge_pages: bool,
    /// SMEM latency less FMEM latency.
    pub gap_ps: u64,
    /// Pages of the fast node.
    pub node_pages: u64,
}

impl Epochs {
    /// Begins at full pace.
    pub fn new(ground: &Ground) -> Self {
        Self {
            params: ground.params,
            costs: ground.costs,
            collapse: ground.huge_pages,
            gap_ps: ground.gap_ps,
            headroom_pages: ground.node_pages >> HEADROOM_SHIFT,
            targets: BTreeMap::new(),
            pending: Vec::new(),
            pace: Pace::new(MOST_PACE),
            planner: Planner::new(PlanParams::default(), LEAST_STEPS as u32),
            cursors: Cursors::default(),
            ledger: Ledger::default(),
            entries: FIRST_ENTRIES,
            swap_cost_ns: FIRST_SWAP_COST_NS,
            move_cost_ns: FIRST_MOVE_COST_NS,
            splits: 0,
            due_ps: ground.params.epoch_ms * PS_PER_MS,
            counts: Counts::default(),
        }
    }

    fn tick_ns(&self) -> u64 {
        self.params.epoch_ms * 1_000_000
    }

    fn ranges_params(&self) -> RangesParams {
        RangesParams {
            split_samples: self.params.split_samples as u32,
            significance: self.params.significance as u32,
            vcpus: 1,
            merge_epochs: self.params.merge_epochs as u32,
            granule_bytes: self.params.granule_bytes,
        }
    }

    /// Follows address spaces as they come and grow.
    fn refresh(&mut self, memory: &Memory) -> Result<(), Error> {
        let granule = self.params.granule_bytes;
        let params = self.ranges_params();
        for (&number, space) in &memory.spaces {
            let target = match self.targets.entry(number) {
                std::collections::btree_map::Entry::Occupied(target) => target.into_mut(),
                std::collections::btree_map::Entry::Vacant(place) => place.insert(Target {
                    ranges: Ranges::new(MOST_RANGES, &params)?,
                    chunks: 0,
                    samples: 0,
                }),
            };
            if target.chunks == space.chunks() {
                continue;
            }
            let mut areas = Areas::new(granule, granule * GAP_GRANULES)?;
            for run in space.runs() {
                areas.add(run.start << PAGE_SHIFT, run.end << PAGE_SHIFT)?;
            }
            target.ranges.set_areas(areas.as_slice())?;
            target.chunks = space.chunks();
        }
        Ok(())
    }

    /// A tick of the worker at `now_ns`; what it cost.
    fn tick(&mut self, memory: &mut Memory, now_ns: u64) -> Result<u64, Error> {
        self.refresh(memory)?;
        let mut tick = PaceTick {
            resident_pages: (memory.spaces.values())
                .map(|space| space.resident[FMEM] + space.resident[SMEM])
                .sum(),
            ..PaceTick::default()
        };
        for sample in self.pending.drain(..) {
            let Some(target) = self.targets.get_mut(&sample.space) else {
                continue;
            };
            if target.ranges.sample(sample.page << PAGE_SHIFT) {
                target.samples += 1;
                tick.samples[sample.tier] += 1;
                self.counts.tier_samples[sample.tier] += 1;
                self.counts.samples += 1;
            }
        }
        if !self.pace.tick(&tick) {
            return Ok(0);
        }
        self.epoch(memory, now_ns)
    }

    fn epoch(&mut self, memory: &mut Memory, now_ns: u64) -> Result<u64, Error> {
        let mut ranking = Ranking::default();
        let mut splits = 0;
        let over = Epoch {
            now_ns,
            passed_ns: u64::from(self.pace.ticks().max(1)) * self.tick_ns(),
            horizon_ns: self.horizon_ns(),
            period: self.period(),
            gap_ps: self.latency_gap_ps(),
        };
        for (&number, target) in &mut self.targets {
            target.ranges.end_epoch();
            splits += target.ranges.counters().splits;
            let Ok(space) = u32::try_from(number) else {
                continue;
            };
            let samples = std::mem::take(&mut target.samples);
            let stops = self.ledger.realise(space, &target.ranges, samples, &over);
            self.counts.stops += u64::from(stops);
            let before = ranking.entries.len();
            ranking.gather(&target.ranges, space);
            let Some(space) = memory.spaces.get(&number) else {
                continue;
            };
            for entry in &mut ranking.entries[before..] {
                entry.pages = space.count(&(entry.start >> PAGE_SHIFT..entry.end >> PAGE_SHIFT));
            }
        }
        self.counts.ranges = ranking.entries.len() as u64;
        self.cursors.retain(|&(space, start, end), _| {
            (self.targets.get(&space))
                .and_then(|target| target.ranges.find(start))
                .is_some_and(|range| (range.start, range.end) == (start, end))
        });
        ranking.sort();
        self.ledger.hide(&mut ranking, now_ns);
        let plan = self.plan(&ranking, memory, now_ns)?;
        let moved = self.execute(&plan, &ranking, memory, now_ns);
        self.counts.moved.add(&moved);
        self.counts.epochs += 1;
        self.pace.end_epoch(&PaceEpoch {
            moved_pages: moved.promoted + moved.demoted,
            splits: splits - self.splits,
            ranges: self.counts.ranges,
            waiting: matches!(plan.end, PlanEnd::NoTokens | PlanEnd::Full),
        });
        for target in self.targets.values_mut() {
            target.ranges.set_thin(self.pace.thin());
        }
        self.splits = splits;
        Ok(moved.cost_ns + self.costs.epoch_ns)
    }

    fn horizon_ns(&self) -> u64 {
        self.params.horizon_ms * 1_000_000
    }

    fn latency_gap_ps(&self) -> u64 {
        if self.params.latency_gap_ns > 0 {
            self.params.latency_gap_ns * 1000
        } else if (self.counts)
            .tier_samples
            .iter()
            .all(|&samples| samples >= GAP_SAMPLES)
        {
            // As the module has it when it has measured nothing but noise.
            self.gap_ps.max(1)
        } else {
            LATENCY_GAP_PS
        }
    }

    fn plan(&mut self, ranking: &Ranking, memory: &Memory, now_ns: u64) -> Result<Plan, Error> {
        while self.entries < self.counts.ranges {
            self.entries *= 2;
        }
        let steps = (self.entries / ENTRIES_PER_STEP).clamp(LEAST_STEPS, MOST_STEPS);
        self.planner.set_max_steps(steps as u32);
        self.planner.params = PlanParams {
            sample_period: self.period(),
            epoch_ns: self.tick_ns() << self.pace.shift(),
            latency_gap_ps: self.latency_gap_ps(),
            remote_ps: 0,
            horizon_ns: self.horizon_ns(),
            swap_cost_ns: self.swap_cost_ns,
            move_cost_ns: self.move_cost_ns,
            hysteresis_permille: self.params.hysteresis_permille as u32,
            significance: self.params.significance as u32,
            rate_pages_per_s: self.params.rate_pages_per_s,
            burst_pages: self.params.rate_pages_per_s,
        };
        let free = memory.free_pages().saturating_sub(self.headroom_pages);
        let plan = (self.planner).make(ranking, free, now_ns, self.counts.plans)?;
        self.counts.plans = plan.digest;
        Ok(plan)
    }

    fn execute(
        &mut self,
        plan: &Plan,
        ranking: &Ranking,
        memory: &mut Memory,
        now_ns: u64,
    ) -> Moved {
        let mut booked = Vec::with_capacity(plan.steps.len());
        let mut sum = Moved::default();
        let mut mover = Mover {
            memory,
            cursors: &mut self.cursors,
            costs: &self.costs,
            collapse: self.collapse,
        };
        if plan.steps.is_empty() {
            forget(&mut self.swap_cost_ns, FIRST_SWAP_COST_NS);
            forget(&mut self.move_cost_ns, FIRST_MOVE_COST_NS);
        }
        let entry = |at: u32| &ranking.entries[at as usize];
        for step in &plan.steps {
            let moved = match *step {
                Step::Swap { hot, cold, pages } => {
                    let moved = mover.swap(entry(hot), entry(cold), pages);
                    learn(&mut self.swap_cost_ns, moved.cost_ns, moved.promoted);
                    booked.push((moved.promoted, self.swap_cost_ns));
                    moved
                }
                Step::Fill { hot, pages } => {
                    let moved = mover.fill(entry(hot), pages);
                    learn(&mut self.move_cost_ns, moved.cost_ns, moved.promoted);
                    booked.push((moved.promoted, self.move_cost_ns));
                    moved
                }
                Step::Demote { cold, pages } => {
                    let moved = mover.demote(entry(cold), pages);
                    booked.push((moved.demoted, 0));
                    moved
                }
            };
            sum.add(&moved);
        }
        // After the judge, who stops those taken before.
        self.ledger.book(plan, ranking, &booked, now_ns + 1);
        sum
    }
}

impl Managing for Epochs {
    /// At the present pace.
    fn period(&self) -> u64 {
        self.pace.period(self.params.sample_period)
    }

    fn due_ps(&self) -> u64 {
        self.due_ps
    }

    fn sample(&mut self, sample: Sample) {
        self.pending.push(sample);
    }

    fn turn(&mut self, memory: &mut Memory, now_ps: u64) -> Result<u64, Error> {
        let cost_ns = self.tick(memory, now_ps / 1000)?;
        let now_ps = now_ps + cost_ns * 1000;
        let tick_ps = self.params.epoch_ms * PS_PER_MS;
        self.due_ps += tick_ps;
        if self.due_ps <= now_ps {
            self.due_ps = now_ps + tick_ps;
        }
        Ok(cost_ns)
    }

    fn counts(&self) -> Counts {
        self.counts
    }

    /// Resident pages of hot ranges: those at least as dense as all together
    /// (`guest/tmm/provider.c`).
    fn hot_pages(&self, memory: &Memory) -> Option<u64> {
        let (mut all_rate, mut all_pages) = (0u64, 0u64);
        let mut counts = Vec::new();
        for Known {
            space,
            start,
            end,
            rate,
        } in self.ranges()?
        {
            let pages = memory.spaces.get(&space).map_or(0, |space| {
                let pages = space.count(&(start >> PAGE_SHIFT..end >> PAGE_SHIFT));
                pages[FMEM] + pages[SMEM]
            });
            if pages > 0 {
                all_rate += rate;
                all_pages += pages;
                counts.push((rate, pages));
            }
        }
        let hot = |&&(rate, pages): &&(u64, u64)| {
            let share = u128::from(rate) * u128::from(all_pages);
            share.checked_div(u128::from(all_rate)) >= Some(u128::from(pages))
        };
        Some(counts.iter().filter(hot).map(|(_, pages)| pages).sum())
    }

    fn ranges(&self) -> Option<Vec<Known>> {
        let ranges = self.targets.iter().flat_map(|(&space, target)| {
            (target.ranges.as_slice().iter()).map(move |range| Known {
                space,
                start: range.start,
                end: range.end,
                rate: range.rate,
            })
        });
        Some(ranges.collect())
    }
}

fn learn(average_ns: &mut u64, spent_ns: u64, pages: u64) {
    if let Some(each_ns) = spent_ns.checked_div(pages) {
        *average_ns = ((*average_ns * 7 + each_ns) / 8).max(1);
    }
}

fn forget(average_ns: &mut u64, guess_ns: u64) {
    *average_ns -= average_ns.saturating_sub(guess_ns).div_ceil(FORGET_EPOCHS);
}
