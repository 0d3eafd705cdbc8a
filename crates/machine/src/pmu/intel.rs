// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An Intel core's counters: architectural performance monitoring with PEBS.
//!
//! Registers and their meaning are those of Intel's Software Developer's Manual,
//! volume 3, chapters "Performance Monitoring" and "Debug Store Area". Every load
//! is looked at; hardware tags some at random, so a period there stands for more
//! loads.

mod event;
mod registers;

use super::pebs::{self, Record};
use super::{CYCLE_PS, Counts, Deadline, KERNEL, Kind, Observed, Passed, Port, USER, ring};
use crate::Preset;
use event::Event;
use registers::*;
pub use registers::{MISSING_EVENTS, Shape};

/// Most counters that a unit has: 8 general, then 4 fixed.
const GENERAL: usize = 8;
const COUNTERS: usize = GENERAL + 4;
/// Counters are 48 bits wide.
const WRAP: u64 = 1 << 48;
/// An overflow further away than this is looked for when somebody looks: counters
/// that only count are loaded with half of their range.
const FAR: u64 = 1 << 40;

/// The unit of one vCPU.
#[derive(Clone, Debug)]
pub struct Intel {
    shape: Shape,
    /// What the machine's slow memory is.
    smem: Preset,
    /// Registers that only hold a value, in the order of [`HELD`].
    held: [u64; HELD.len()],
    select: [u64; GENERAL],
    global_status: u64,
    counter: [u64; COUNTERS],
    /// What each counter counts now, and in which rings.
    event: [Event; COUNTERS],
    rings: [u8; COUNTERS],
    /// Rings in which any access counts, the counters that it may count on, and
    /// whether that can be one that the L1 serves.
    memory_rings: u8,
    memory_counters: u16,
    l1: bool,
    /// Of load latency.
    threshold_cycles: u64,
    /// Time of each ring that is not a whole cycle yet.
    rest_ps: [u64; 2],
    /// What it did so far.
    pub counts: Counts,
}

/// Bit of a counter in the global registers.
const fn bit(counter: usize) -> u32 {
    (if counter < GENERAL {
        counter
    } else {
        32 + counter - GENERAL
    }) as u32
}

impl Intel {
    /// A unit after reset, in a machine whose slow memory is `smem`.
    #[must_use]
    pub fn new(kind: Kind, smem: Preset) -> Self {
        Self {
            shape: Shape::of(kind),
            smem,
            held: [0; HELD.len()],
            select: [0; GENERAL],
            global_status: 0,
            counter: [0; COUNTERS],
            event: [Event::Nothing; COUNTERS],
            rings: [0; COUNTERS],
            memory_rings: 0,
            memory_counters: 0,
            l1: false,
            threshold_cycles: 0,
            rest_ps: [0; 2],
            counts: Counts::default(),
        }
    }

    /// The register `msr`, if it is one that only holds a value.
    fn held_mut(&mut self, msr: u32) -> Option<&mut u64> {
        if let Some(index) = self.select_of(msr) {
            return self.select.get_mut(index);
        }
        let index = self.held_of(msr)?;
        self.held.get_mut(index)
    }

    fn select_of(&self, msr: u32) -> Option<usize> {
        let index = msr.checked_sub(EVENT_SELECT_0)?;
        (index < self.shape.general).then_some(index as usize)
    }

    fn held_of(&self, msr: u32) -> Option<usize> {
        let there = msr != PEBS_DATA_CONFIG || self.shape.format == pebs::Format::Four;
        HELD.iter().position(|&held| held == msr && there)
    }

    /// The value of one of [`HELD`].
    fn value(&self, msr: u32) -> u64 {
        self.held_of(msr).map_or(0, |index| self.held[index])
    }

    /// The counter behind a register, and whether writes are of 32 bits, sign-extended.
    fn counter_of(&self, msr: u32) -> Option<(usize, bool)> {
        let within = |first: u32, count: u32| {
            let index = msr.checked_sub(first)?;
            (index < count).then_some(index as usize)
        };
        within(COUNTER_0, self.shape.general)
            .map(|index| (index, true))
            .or_else(|| within(FULL_WIDTH_0, self.shape.general).map(|index| (index, false)))
            .or_else(|| within(FIXED_0, self.shape.fixed).map(|index| (GENERAL + index, false)))
    }

    pub(super) fn read_msr(&self, msr: u32) -> Option<u64> {
        if let Some((counter, _)) = self.counter_of(msr) {
            return Some(self.counter[counter]);
        }
        match msr {
            // PEBS_TRAP, PEBS_ARCH_REG, format, full-width writes, PEBS baseline.
            PERF_CAPABILITIES => Some(match self.shape.format {
                pebs::Format::Three => 0x23c0,
                pebs::Format::Four => 0x64c0,
            }),
            GLOBAL_STATUS => Some(self.global_status),
            // Fast strings, performance monitoring, no BTS; PEBS is there (bit 12 is 0).
            MISC_ENABLE => Some(0x881),
            GLOBAL_RESET | GLOBAL_SET => Some(0),
            _ => self
                .select_of(msr)
                .map(|index| self.select[index])
                .or_else(|| self.held_of(msr).map(|index| self.held[index])),
        }
    }

    pub(super) fn write_msr(&mut self, msr: u32, value: u64) -> bool {
        if let Some((counter, narrow)) = self.counter_of(msr) {
            let value = if narrow {
                i64::from(value as u32 as i32) as u64
            } else {
                value
            };
            self.counter[counter] = value & (WRAP - 1);
        } else if let Some(register) = self.held_mut(msr) {
            *register = value;
        } else {
            match msr {
                GLOBAL_RESET => self.global_status &= !value,
                GLOBAL_SET => self.global_status |= value,
                // Cannot be written, or not in a way that matters.
                GLOBAL_STATUS | PERF_CAPABILITIES | MISC_ENABLE => {}
                _ => return false,
            }
        }
        self.configure();
        true
    }

    pub(super) fn read_counter(&self, index: u32) -> Option<u64> {
        let number = index & 0xffff;
        let msr = if index >> 30 & 1 == 1 {
            FIXED_0
        } else {
            FULL_WIDTH_0
        };
        self.counter_of(msr.checked_add(number)?)
            .map(|(counter, _)| self.counter[counter])
    }

    /// After a register changed: what counts now.
    fn configure(&mut self) {
        self.threshold_cycles = self.value(LOAD_LATENCY) & 0xffff;
        self.memory_rings = 0;
        self.memory_counters = 0;
        self.l1 = false;
        for counter in 0..COUNTERS {
            let running = self.value(GLOBAL_CONTROL) >> bit(counter) & 1 == 1;
            let (event, rings) = if !running {
                (Event::Nothing, 0)
            } else if counter < GENERAL {
                let select = self.select[counter];
                if select & SELECT_ENABLE == 0 {
                    (Event::Nothing, 0)
                } else {
                    // Bit 16 is user, bit 17 kernel.
                    (Event::of(select), (select >> 16 & 3) as u8)
                }
            } else {
                let control = self.value(FIXED_CONTROL) >> (4 * (counter - GENERAL));
                let rings = ((control & 1) << 1 | (control & 2) >> 1) as u8;
                // 0 instructions, 1 cycles, 2 reference cycles, 3 slots.
                match (rings, counter - GENERAL) {
                    (0, _) => (Event::Nothing, 0),
                    (_, 0) => (Event::Instructions, rings),
                    (_, 1 | 2) => (Event::Cycles, rings),
                    _ => (Event::Nothing, 0),
                }
            };
            self.event[counter] = event;
            self.rings[counter] = rings;
            if event.is_memory() {
                self.memory_rings |= rings;
                self.memory_counters |= 1 << counter;
                self.l1 |= event.needs_l1(self.threshold_cycles);
            }
        }
    }

    #[inline]
    pub(super) const fn memory_rings(&self) -> u8 {
        self.memory_rings
    }

    pub(super) const fn watches_l1(&self) -> bool {
        self.l1
    }

    pub(super) fn deadline(&self) -> Deadline {
        let mut deadline = Deadline::NEVER;
        for counter in 0..COUNTERS {
            let left = WRAP - self.counter[counter];
            if left >= FAR {
                continue;
            }
            match self.event[counter] {
                Event::Instructions => deadline.insn = deadline.insn.min(left),
                Event::Cycles => deadline.ps = deadline.ps.min(left * CYCLE_PS),
                _ => {}
            }
        }
        deadline
    }

    pub(super) fn advance(&mut self, passed: &Passed, ip: u64, port: &mut impl Port) {
        let mut cycles = [0; 2];
        for (side, cycles) in cycles.iter_mut().enumerate() {
            let ps = self.rest_ps[side] + passed.ps[side];
            *cycles = ps / CYCLE_PS;
            self.rest_ps[side] = ps % CYCLE_PS;
        }
        for counter in 0..COUNTERS {
            let event = self.event[counter];
            if !event.is_time() {
                continue;
            }
            let of = if event == Event::Cycles {
                cycles
            } else {
                passed.insn
            };
            let rings = self.rings[counter];
            let count = [(USER, of[0]), (KERNEL, of[1])]
                .into_iter()
                .filter(|(ring, _)| rings & ring != 0)
                .map(|(_, count)| count)
                .sum();
            let nothing = Observed {
                ip,
                ..Observed::default()
            };
            self.count(counter, count, &nothing, port);
        }
    }

    pub(super) fn access(&mut self, access: &Observed, port: &mut impl Port) -> bool {
        let threshold_cycles = self.threshold_cycles;
        let mut left = self.memory_counters;
        let mut recorded = false;
        while left != 0 {
            let counter = left.trailing_zeros() as usize;
            left &= left - 1;
            if self.rings[counter] & ring(access.user) == 0
                || !self.event[counter].counts(access, threshold_cycles, self.smem)
            {
                continue;
            }
            self.counts.events += 1;
            recorded |= self.count(counter, 1, access, port);
        }
        recorded
    }

    /// True if a record was written.
    fn count(
        &mut self,
        counter: usize,
        count: u64,
        access: &Observed,
        port: &mut impl Port,
    ) -> bool {
        let next = self.counter[counter].wrapping_add(count);
        self.counter[counter] = next & (WRAP - 1);
        next >= WRAP && self.overflow(counter, access, port)
    }

    fn overflow(&mut self, counter: usize, access: &Observed, port: &mut impl Port) -> bool {
        if self.value(PEBS_ENABLE) >> bit(counter) & 1 == 1 && self.value(DS_AREA) != 0 {
            return self.record(counter, access, port);
        }
        self.global_status |= 1 << bit(counter);
        let interrupts = if counter < GENERAL {
            self.select[counter] & SELECT_INTERRUPT != 0
        } else {
            self.value(FIXED_CONTROL) >> (4 * (counter - GENERAL) + 3) & 1 == 1
        };
        if interrupts {
            self.interrupt(port);
        }
        false
    }

    fn interrupt(&mut self, port: &mut impl Port) {
        if port.counter_interrupt() {
            self.counts.interrupts += 1;
        } else {
            self.counts.masked += 1;
        }
    }

    /// Writes a PEBS record and loads the counter again.
    fn record(&mut self, counter: usize, access: &Observed, port: &mut impl Port) -> bool {
        let l1_or_no_load = access.served.is_none();
        let latency_event = self.event[counter] == Event::LoadLatency;
        let record = Record {
            counter: bit(counter),
            tsc: port.tsc(),
            access: *access,
            source: if latency_event {
                pebs::load_source(access, self.smem)
            } else {
                // Of precise loads and stores other than by latency: hit the L1, walked.
                u64::from(l1_or_no_load) | u64::from(access.walked) << 4
            },
            latency: if latency_event {
                access.latency_cycles
            } else {
                0
            },
        };
        let ds_area = self.value(DS_AREA);
        let format = self.shape.format;
        let data_config = self.value(PEBS_DATA_CONFIG);
        let digest = &mut self.counts.digest;
        let written = match format.write(&record, data_config, ds_area, digest, port) {
            pebs::Written::Dropped => {
                self.counts.dropped += 1;
                false
            }
            pebs::Written::Yes { threshold_reached } => {
                self.counts.records += 1;
                if threshold_reached && self.global_status & STATUS_BUFFER == 0 {
                    self.global_status |= STATUS_BUFFER;
                    self.interrupt(port);
                }
                true
            }
        };
        let slot = if counter < GENERAL {
            pebs::DS_RESET + 8 * counter as u64
        } else {
            pebs::DS_RESET_FIXED + 8 * (counter - GENERAL) as u64
        };
        let mut reset = [0];
        if port.read(ds_area.wrapping_add(slot), &mut reset) {
            self.counter[counter] = reset[0] & (WRAP - 1);
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Machine;
    use super::*;
    use crate::Served;
    use proptest::prelude::*;

    const USER_SELECT: u64 = 1 << 16 | SELECT_ENABLE | SELECT_INTERRUPT;
    const DS: u64 = 0xffff_fe00_0000_1000;
    const BUFFER: u64 = 0xffff_fe00_0000_4000;

    fn load(latency_cycles: u64, served: Option<Served>) -> Observed {
        Observed {
            va: 0x7000_1234,
            pa: 0x4000,
            ip: 0x40_1000,
            user: true,
            latency_cycles,
            served,
            ..Observed::default()
        }
    }

    /// A unit that records every `period`th load of at least 64 cycles in a buffer of
    /// `room` records whose threshold is at `threshold` of them.
    fn sampling(
        kind: Kind,
        smem: Preset,
        period: u64,
        room: u64,
        threshold: u64,
    ) -> (Intel, Machine) {
        let mut unit = Intel::new(kind, smem);
        let mut machine = Machine::default();
        let bytes = match Shape::of(kind).format {
            pebs::Format::Three => 200,
            pebs::Format::Four => 64,
        };
        for (slot, value) in [
            (0x20, BUFFER),
            (0x28, BUFFER),
            (0x30, BUFFER + room * bytes),
            (0x38, BUFFER + threshold * bytes),
            (0x40, period.wrapping_neg()),
        ] {
            machine.set(DS + slot, value);
        }
        machine.map(BUFFER, room * bytes);
        for (msr, value) in [
            (DS_AREA, DS),
            (LOAD_LATENCY, 64),
            (PEBS_DATA_CONFIG, 1),
            (EVENT_SELECT_0, 0x01cd | USER_SELECT),
            (COUNTER_0, period.wrapping_neg()),
            (PEBS_ENABLE, 1),
            (GLOBAL_CONTROL, 1),
        ] {
            let known = unit.write_msr(msr, value);
            assert!(known || (msr == PEBS_DATA_CONFIG && kind == Kind::Skylake));
        }
        (unit, machine)
    }

    #[test]
    fn counts_what_the_event_says_in_the_rings_it_says() {
        let mut unit = Intel::new(Kind::Icelake, Preset::Cxl);
        let mut machine = Machine::default();
        for (index, event) in [0x81d0, 0x20d1, 0x82d0, 0x02d3].into_iter().enumerate() {
            assert!(unit.write_msr(EVENT_SELECT_0 + index as u32, event | USER_SELECT));
        }
        unit.write_msr(GLOBAL_CONTROL, 0xf);
        assert!(unit.watches_l1() && unit.memory_rings() == USER);
        for (access, times) in [
            (load(5, None), 7),
            (load(69, Some(Served::Fmem)), 3),
            (load(177, Some(Served::Smem)), 2),
            (
                Observed {
                    store: true,
                    ..load(5, None)
                },
                5,
            ),
            (
                Observed {
                    user: false,
                    ..load(177, Some(Served::Smem))
                },
                9,
            ),
        ] {
            for _ in 0..times {
                unit.access(&access, &mut machine);
            }
        }
        let counter = |index| unit.read_counter(index).unwrap();
        assert_eq!([0, 1, 2, 3].map(counter), [12, 5, 5, 2]);
        assert_eq!(unit.read_counter(8), None);
        assert_eq!(unit.read_counter(1 << 30 | 4), None);
    }

    #[test]
    fn loads_from_smem_count_as_what_it_is() {
        for (smem, counts) in [(Preset::Pmem, [3, 0, 2, 5]), (Preset::Cxl, [3, 2, 0, 5])] {
            let mut unit = Intel::new(Kind::Skylake, smem);
            let mut machine = Machine::default();
            for (index, event) in [0x01d3, 0x02d3, 0x80d1, 0x20d1].into_iter().enumerate() {
                unit.write_msr(EVENT_SELECT_0 + index as u32, event | USER_SELECT);
            }
            unit.write_msr(GLOBAL_CONTROL, 0xf);
            for served in [
                Served::Fmem,
                Served::Smem,
                Served::Fmem,
                Served::Smem,
                Served::Fmem,
            ] {
                unit.access(&load(180, Some(served)), &mut machine);
            }
            let counter = |index| unit.read_counter(index).unwrap();
            assert_eq!([0, 1, 2, 3].map(counter), counts, "{smem:?}");
        }
    }

    #[test]
    fn time_counts_by_ring_and_overflows_once() {
        let mut unit = Intel::new(Kind::Skylake, Preset::Pmem);
        let mut machine = Machine::default();
        unit.write_msr(EVENT_SELECT_0, 0x00c0 | USER_SELECT);
        unit.write_msr(COUNTER_0, 1000u64.wrapping_neg());
        unit.write_msr(FIXED_CONTROL, 0b11 << 4); // cycles, both rings
        unit.write_msr(GLOBAL_CONTROL, 1 | 1 << 33);
        assert_eq!(unit.deadline().insn, 1000);
        let passed = Passed {
            insn: [999, 5000],
            ps: [300_700, 1_500_500],
        };
        unit.advance(&passed, 0x1000, &mut machine);
        assert_eq!((machine.interrupts, unit.global_status), (0, 0));
        assert_eq!(unit.read_msr(FIXED_0 + 1), Some(1800));
        let one = Passed {
            insn: [1, 0],
            ps: [300, 500],
        };
        unit.advance(&one, 0x1000, &mut machine);
        assert_eq!((machine.interrupts, unit.global_status), (1, 1));
        // Picoseconds that made no cycle the first time do now.
        assert_eq!(unit.read_msr(FIXED_0 + 1), Some(1802));
        unit.write_msr(GLOBAL_RESET, 1);
        assert_eq!(unit.read_msr(GLOBAL_STATUS), Some(0));
    }

    #[test]
    fn the_digest_covers_whole_records() {
        for kind in [Kind::Icelake, Kind::Skylake] {
            let digest = |latency, walked, tsc| {
                let (mut unit, mut machine) = sampling(kind, Preset::Pmem, 1, 1, 100);
                machine.tsc = tsc;
                let record = Observed {
                    walked,
                    ..load(latency, Some(Served::Smem))
                };
                assert!(unit.access(&record, &mut machine));
                let full = unit.counts.digest;
                // What is dropped is in no record.
                assert!(!unit.access(&record, &mut machine));
                assert_eq!(unit.counts.digest, full);
                full
            };
            let one = digest(200, false, 1);
            assert_eq!(digest(200, false, 1), one);
            assert_ne!(digest(201, false, 1), one);
            assert_ne!(digest(200, true, 1), one);
            assert_ne!(digest(200, false, 2), one);
        }
    }

    #[test]
    fn records_carry_the_load() {
        const PLACES_4: [u64; 5] = [4, 5, 6, 1, 3];
        const PLACES_3: [u64; 5] = [19, 20, 21, 22, 24];
        for (kind, at, smem, source_of_smem) in [
            (Kind::Icelake, PLACES_4, Preset::Pmem, 0x8),
            (Kind::Icelake, PLACES_4, Preset::Cxl, 0xb),
            (Kind::Skylake, PLACES_3, Preset::Pmem, 0x8),
            (Kind::Skylake, PLACES_3, Preset::Cxl, 0xb),
        ] {
            let (mut unit, mut machine) = sampling(kind, smem, 3, 8, 100);
            machine.tsc = 4711;
            let slow = Observed {
                walked: true,
                ..load(200, Some(Served::Smem))
            };
            for _ in 0..2 {
                unit.access(&load(50, Some(Served::Llc)), &mut machine);
                unit.access(&load(69, Some(Served::Fmem)), &mut machine);
            }
            assert!(!machine.written(BUFFER), "{kind:?}");
            assert!(unit.access(&slow, &mut machine));
            let word = |index: u64| machine.get(BUFFER + 8 * index);
            let [va, source, latency, ip, tsc] = at.map(word);
            assert_eq!(
                (va, latency, ip, tsc),
                (0x7000_1234, 200, 0x40_1000, 4711),
                "{kind:?}"
            );
            assert_eq!(source, source_of_smem | 0x10, "{kind:?} {smem:?}"); // and walked
            assert_eq!(unit.read_msr(COUNTER_0), Some(WRAP - 3));
            assert_eq!(unit.counts.events, 3);
        }
    }

    #[test]
    fn the_threshold_interrupts_once_and_a_full_buffer_drops() {
        let (mut unit, mut machine) = sampling(Kind::Icelake, Preset::Pmem, 1, 5, 3);
        for _ in 0..8 {
            unit.access(&load(70, Some(Served::Fmem)), &mut machine);
        }
        assert_eq!((unit.counts.records, unit.counts.dropped), (5, 3));
        assert_eq!((machine.interrupts, unit.global_status), (1, STATUS_BUFFER));
        machine.masked = true;
        unit.write_msr(GLOBAL_RESET, STATUS_BUFFER);
        machine.set(DS + 0x28, BUFFER);
        for _ in 0..3 {
            unit.access(&load(70, Some(Served::Fmem)), &mut machine);
        }
        assert_eq!((unit.counts.interrupts, unit.counts.masked), (1, 1));
    }

    proptest! {
        /// Whatever the guest writes, nothing is written outside what it has mapped,
        /// nothing panics, and records and drops add up to overflows.
        #[test]
        fn nonsense_is_bounded(
            writes in prop::collection::vec((prop::sample::select(vec![
                DS_AREA, PEBS_ENABLE, PEBS_DATA_CONFIG, GLOBAL_CONTROL, EVENT_SELECT_0, COUNTER_0,
                LOAD_LATENCY, FIXED_CONTROL, FIXED_0, GLOBAL_RESET, GLOBAL_SET, FULL_WIDTH_0, 0x18d,
            ]), any::<u64>()), 0..60),
            words in prop::collection::vec((0u64..10, any::<u64>()), 0..20),
            skylake in any::<bool>(),
        ) {
            let kind = if skylake { Kind::Skylake } else { Kind::Icelake };
            let (mut unit, mut machine) = sampling(kind, Preset::Pmem, 2, 4, 2);
            for (slot, word) in words { machine.set(DS + 0x20 + 8 * slot, word); }
            for (msr, value) in writes {
                unit.write_msr(msr, value);
                unit.read_msr(msr);
                for _ in 0..3 { unit.access(&load(900, Some(Served::Smem)), &mut machine); }
                unit.advance(&Passed { insn: [7, 7], ps: [7000, u64::MAX / 2] }, 1, &mut machine);
                let deadline = unit.deadline();
                prop_assert!(deadline.insn > 0 && deadline.ps > 0);
            }
        }
    }
}
