// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memtis' module (`guest/peers/memtis/`): ksampled reads samples into counts, chooses
//! thresholds and keeps to its quota; kmigrated of FMEM demotes, halves and splits; that of
//! SMEM promotes.

mod counts;
mod migrated;

use std::collections::BTreeMap;

use demeter_core::peers::memtis::{Splitting, load_period, step};
use demeter_core::{FMEM, SMEM};

use super::room::Room;
use super::thread::Thread;
use super::{Counts, Managing, Sample};
use crate::memory::Memory;
use crate::params::params;
use crate::{Error, HUGE_SHIFT};
use counts::Hotness;

params! {
    /// Parameters of Memtis' module that a simulation heeds.
    MemtisParams;
    /// Between two looks of ksampled, in microseconds.
    poll_us = 2000, 1u64, 1_000_000;
    /// CPU time that ksampled may take.
    quota_permille = 30, 1u64, 1000;
    /// Between two looks at that.
    quota_ms = 15_000, 1u64, 1_000_000;
    /// Samples between two choices of thresholds.
    adaptation_samples = 100_000, 1u64, u64::from(u32::MAX);
    /// Samples between two halvings.
    cooling_samples = 2_000_000, 1u64, u64::from(u32::MAX);
    /// Between two rounds of kmigrated.
    kmigrated_ms = 500, 1u64, 10_000;
    /// Pages to be demoted beyond, when programs already get SMEM.
    direct_pages = 12_800, 0u64, u64::from(u32::MAX);
    /// Whether huge pages are split.
    split = 1, 0u64, 1;
    /// How many a round.
    split_batch = 50, 1u64, 10_000;
    /// By how much SMEM is slower than FMEM.
    gap_permille = 1570, 1u64, 100_000;
}

impl MemtisParams {
    /// Sets one by name.
    ///
    /// # Errors
    /// There is none of that name here, or the value is none for it.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), Error> {
        self.set_number(name, value)
    }
}

/// See the module.
pub struct Memtis {
    params: MemtisParams,
    room: Room,
    hotness: Hotness,
    splitting: Splitting,
    /// Huge pages that are still to be split, and halvings that are due.
    splits: u64,
    coolings: u64,
    pending: Vec<Sample>,
    /// Of the ladder of periods.
    step: u32,
    /// Samples when thresholds were chosen, and when counts were halved.
    adapted: u64,
    cooled: u64,
    /// When the period was looked at, and ksampled's time since.
    paced_ns: u64,
    used_ns: u64,
    /// Address spaces that were sampled, which alone are managed: up to where FMEM was looked at
    /// for something to demote.
    hands: BTreeMap<u64, u64>,
    /// Did the last look at all of FMEM find something?
    found_cold: bool,
    /// Pages that wait in SMEM for room.
    waiting: u64,
    ksampled: Thread,
    /// By tier.
    kmigrated: [Thread; 2],
    counts: Counts,
}

impl Memtis {
    /// Knows of nothing yet.
    pub fn new(params: &MemtisParams, room: Room) -> Self {
        let kmigrated = Thread::new(params.kmigrated_ms * 1_000_000);
        Self {
            params: *params,
            room,
            hotness: Hotness::new(params.gap_permille),
            splitting: Splitting::default(),
            splits: 0,
            coolings: 0,
            pending: Vec::new(),
            step: 0,
            adapted: 0,
            cooled: 0,
            paced_ns: 0,
            used_ns: 0,
            hands: BTreeMap::new(),
            found_cold: true,
            waiting: 0,
            ksampled: Thread::new(params.poll_us * 1000),
            kmigrated: [kmigrated; 2],
            counts: Counts::default(),
        }
    }

    /// A round of ksampled (`sampled.c`); what it took.
    fn read_samples(&mut self, memory: &mut Memory, now_ps: u64) -> u64 {
        self.room.look(memory);
        let mut cost_ns = self.room.costs.wake_ns;
        for sample in std::mem::take(&mut self.pending) {
            let Some(space) = memory.spaces.get_mut(&sample.space) else {
                continue;
            };
            self.hands.entry(sample.space).or_insert(0);
            let chunk = space.chunk_mut(sample.page);
            let tier = usize::from(chunk.is_slow(sample.page));
            cost_ns += if chunk.huge {
                self.room.costs.count_ns
            } else {
                self.room.costs.count_base_ns
            };
            self.hotness
                .count(sample.space, sample.page, chunk.huge, tier);
            self.counts.samples += 1;
            self.counts.tier_samples[sample.tier] += 1;
        }
        self.room.own_pages = self.hotness.own_pages();
        self.adapt(memory);
        self.used_ns += cost_ns;
        self.keep_pace(now_ps / 1000);
        cost_ns
    }

    /// What FMEM has for programs; the thresholds leave a part of it free themselves.
    fn fmem_pages(&self, memory: &Memory) -> u64 {
        let all = self.all_pages(memory);
        let reserve = self.reserve_pages(all, migrated::PROMOTION_PERCENT);
        (all - reserve.min(all)) * 100 / migrated::HISTOGRAM_PERCENT
    }

    fn choose_thresholds(&mut self, memory: &Memory) {
        let fmem_pages = self.fmem_pages(memory);
        self.hotness.choose(fmem_pages);
    }

    fn adapt(&mut self, memory: &Memory) {
        let samples = self.counts.samples;
        if samples - self.cooled >= self.params.cooling_samples {
            self.cooled = samples;
            self.coolings += 1;
        }
        if samples - self.adapted < self.params.adaptation_samples {
            return;
        }
        self.adapted = samples;
        self.choose_thresholds(memory);
        self.look_at_splitting(memory);
    }

    fn look_at_splitting(&mut self, memory: &Memory) {
        let fmem_pages = self.fmem_pages(memory);
        let period = &mut self.hotness.period;
        period.resident_pages = (self.hands.keys())
            .filter_map(|number| memory.spaces.get(number))
            .map(|space| space.resident[FMEM] + space.resident[SMEM])
            .sum();
        period.fmem_pages = fmem_pages;
        if !period.is_due() {
            return;
        }
        if self.params.split != 0 {
            self.splits = self.splitting.decide(period);
        }
        period.samples = 0;
        period.hits = 0;
        period.base_hits = 0;
        period.huge_samples = 0;
    }

    fn keep_pace(&mut self, now_ns: u64) {
        let passed_ns = now_ns - self.paced_ns;
        if passed_ns < self.params.quota_ms * 1_000_000 {
            return;
        }
        let used_permille = self.used_ns * 1000 / passed_ns;
        self.paced_ns = now_ns;
        self.used_ns = 0;
        self.step = step(self.step, used_permille, self.params.quota_permille);
    }
}

impl Managing for Memtis {
    fn period(&self) -> u64 {
        load_period(self.step).into()
    }

    fn due_ps(&self) -> u64 {
        let [fast, slow] = self.kmigrated.map(|thread| thread.due_ps);
        self.ksampled.due_ps.min(fast).min(slow)
    }

    fn sample(&mut self, sample: Sample) {
        self.pending.push(sample);
    }

    fn turn(&mut self, memory: &mut Memory, now_ps: u64) -> Result<u64, Error> {
        let due_ps = self.due_ps();
        if self.ksampled.due_ps == due_ps {
            let cost_ns = self.read_samples(memory, now_ps);
            self.ksampled.worked(cost_ns);
            return Ok(cost_ns);
        }
        let tier = usize::from(self.kmigrated[FMEM].due_ps != due_ps);
        let cost_ns = self.migrate(memory, tier);
        self.kmigrated[tier].worked(cost_ns);
        Ok(cost_ns)
    }

    fn counts(&self) -> Counts {
        self.counts
    }
}

/// The number of 2 MiB that a page lies in.
fn granule(page: u64) -> u64 {
    page >> HUGE_SHIFT
}
