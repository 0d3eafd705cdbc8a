// SPDX-License-Identifier: Apache-2.0 OR MIT
//! AMD's instruction-based sampling of ops.
//!
//! Every so many ops (or cycles) one is tagged, whatever it does, and an
//! interrupt tells of it: there is no buffer. Registers are those of AMD's
//! Architecture Programmer's Manual, volume 2, chapter "Hardware Performance
//! Monitoring", with Zen 4's filter for L3 misses. An instruction stands for
//! one op; which instruction is tagged is for the caller to find
//! ([`Ibs::tag_due`]). Sampling of fetches is not modelled: its registers only
//! hold values.

use super::{CYCLE_PS, Counts, Deadline, Observed, Passed, Port, ring};
use crate::{Preset, Served};

/// EAX of CPUID leaf 0x8000001B: what Zen 4 has up to bit 9, but for fused branches
/// (bit 8), and its filter for L3 misses.
pub const CAPABILITIES: u32 = 0xaff;

const FIRST: u32 = 0xc001_1030;
const REGISTERS: usize = 14;
/// Indices of the registers, from the first.
const OP_CONTROL: usize = 3;
const OP_RIP: usize = 4;
const OP_DATA: usize = 5;
const OP_DATA_2: usize = 6;
const OP_DATA_3: usize = 7;
const DC_LINEAR: usize = 8;
const DC_PHYSICAL: usize = 9;
const CONTROL: usize = 10;

/// Of the op control register.
const L3_MISS_ONLY: u64 = 1 << 16;
const ENABLE: u64 = 1 << 17;
const VALID: u64 = 1 << 18;
const COUNT_OPS: u64 = 1 << 19;
const CURRENT_SHIFT: u32 = 32;
const CURRENT_MASK: u64 = (1 << 27) - 1;

/// Bits of the current count that are random when a period begins.
const RANDOM: u64 = 127;

/// Of op data 3.
const LOAD: u64 = 1;
const STORE: u64 = 1 << 1;
const L1_TLB_MISS: u64 = 1 << 2;
const L2_TLB_MISS: u64 = 1 << 3;
const DC_MISS: u64 = 1 << 7;
const LINEAR_VALID: u64 = 1 << 17;
const PHYSICAL_VALID: u64 = 1 << 18;
const L2_MISS: u64 = 1 << 20;
/// From the miss to the data, walk not included; and the walk.
const LATENCY_SHIFT: u32 = 32;
const REFILL_SHIFT: u32 = 48;

/// Of op data 2: on another node. With one socket, both tiers are memory of the vCPU's own.
const SOURCE_REMOTE: u64 = 1 << 4;
/// What served a miss, in bits 0 to 2 and, from Zen 4 on, 6 and 7.
const SOURCE_L3: u64 = 1;
const SOURCE_DRAM: u64 = 3;
/// DIMMs of long latency: persistent memory.
const SOURCE_PMEM: u64 = 6;
const SOURCE_IO: u64 = 7;
/// Extension memory: CXL. The source 8, whose upper part is in bit 6.
const SOURCE_EXTENSION: u64 = 1 << 6;

/// Of the control register: the extended LVT entry to use, as firmware chose it.
const LVT_VALID: u64 = 1 << 8;
const LVT_ENTRY: u64 = 1;

/// The op that is being followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tag {
    /// None.
    No,
    /// The next instruction shall be it.
    Due,
    /// The instruction at `ip` is it, in ring `ring`.
    Following { ip: u64, ring: u8 },
}

/// The unit of one vCPU.
#[derive(Clone, Debug)]
pub struct Ibs {
    register: [u64; REGISTERS],
    /// What the machine's slow memory is.
    smem: Preset,
    /// Ops, or picoseconds, until one is tagged; 0 when none will be.
    left: u64,
    /// State of the generator of what the hardware adds to a count.
    random: u32,
    tag: Tag,
    /// What it did so far.
    pub counts: Counts,
}

impl Ibs {
    /// A unit after reset, in a machine whose slow memory is `smem`.
    #[must_use]
    pub fn new(smem: Preset) -> Self {
        let mut register = [0; REGISTERS];
        register[CONTROL] = LVT_VALID | LVT_ENTRY;
        Self {
            register,
            smem,
            left: 0,
            random: 0x9e37_79b9,
            tag: Tag::No,
            counts: Counts::default(),
        }
    }

    fn index(msr: u32) -> Option<usize> {
        let index = msr.checked_sub(FIRST)? as usize;
        (index < REGISTERS).then_some(index)
    }

    pub(super) fn read_msr(&self, msr: u32) -> Option<u64> {
        Self::index(msr).map(|index| self.register[index])
    }

    pub(super) fn write_msr(&mut self, msr: u32, value: u64) -> bool {
        let Some(index) = Self::index(msr) else {
            return false;
        };
        // Firmware's, and locked.
        if index == CONTROL {
            return true;
        }
        self.register[index] = value;
        if index == OP_CONTROL {
            self.start();
        }
        true
    }

    /// The low bits of the current count, which the hardware makes random.
    const fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        self.random as u64 & RANDOM
    }

    /// Begins a period as the control register says.
    fn start(&mut self) {
        let control = self.register[OP_CONTROL];
        self.tag = Tag::No;
        self.left = 0;
        if control & ENABLE != 0 && control & VALID == 0 {
            let maximum = (control & 0xffff) << 4 | (control >> 20 & 0x7f) << 20;
            let current = control >> CURRENT_SHIFT & CURRENT_MASK;
            // Or a loop whose length divides the period would be sampled at one place.
            let ahead = if maximum > RANDOM {
                self.next_random()
            } else {
                0
            };
            let count = maximum.saturating_sub(current | ahead).max(1);
            self.left = if control & COUNT_OPS != 0 {
                count
            } else {
                count * CYCLE_PS
            };
        }
    }

    pub(super) fn advance(&mut self, passed: &Passed) {
        if self.left == 0 {
            return;
        }
        let by = if self.register[OP_CONTROL] & COUNT_OPS != 0 {
            passed.insn
        } else {
            passed.ps
        };
        self.left = self.left.saturating_sub(by[0].saturating_add(by[1]));
        if self.left == 0 {
            self.tag = Tag::Due;
        }
    }

    pub(super) fn deadline(&self) -> Deadline {
        let mut deadline = Deadline::NEVER;
        if self.left != 0 {
            if self.register[OP_CONTROL] & COUNT_OPS != 0 {
                deadline.insn = self.left;
            } else {
                deadline.ps = self.left;
            }
        }
        deadline
    }

    #[inline]
    pub(super) const fn memory_rings(&self) -> u8 {
        match self.tag {
            Tag::Following { ring, .. } => ring,
            Tag::No | Tag::Due => 0,
        }
    }

    pub(super) const fn tag_due(&self) -> bool {
        matches!(self.tag, Tag::Due)
    }

    pub(super) fn tag(&mut self, ip: u64, user: bool) {
        self.counts.events += 1;
        self.tag = Tag::Following {
            ip,
            ring: ring(user),
        };
    }

    pub(super) fn access(&mut self, access: &Observed, port: &mut impl Port) -> bool {
        match self.tag {
            Tag::Following { ip, .. } if ip == access.ip => self.finish(ip, Some(access), port),
            _ => false,
        }
    }

    pub(super) fn settle_tag(&mut self, port: &mut impl Port) -> bool {
        match self.tag {
            Tag::Following { ip, .. } => self.finish(ip, None, port),
            Tag::No | Tag::Due => false,
        }
    }

    fn finish(&mut self, ip: u64, access: Option<&Observed>, port: &mut impl Port) -> bool {
        self.tag = Tag::No;
        let served = access.and_then(|access| access.served);
        let missed_l3 = matches!(served, Some(Served::Fmem | Served::Smem | Served::Other));
        if self.register[OP_CONTROL] & L3_MISS_ONLY != 0 && !missed_l3 {
            // Not told of; a new period begins.
            self.register[OP_CONTROL] &= !(CURRENT_MASK << CURRENT_SHIFT);
            self.start();
            return false;
        }
        self.register[OP_RIP] = ip;
        self.register[OP_DATA] = 0;
        self.register[OP_DATA_2] = match served {
            None | Some(Served::L2) => 0,
            Some(Served::Llc) => SOURCE_L3,
            Some(Served::Fmem) => SOURCE_DRAM,
            Some(Served::Smem) => match self.smem {
                Preset::Pmem => SOURCE_PMEM,
                Preset::Cxl => SOURCE_EXTENSION,
            },
            Some(Served::Other) => SOURCE_IO,
        };
        if access.is_some_and(|access| access.remote) {
            self.register[OP_DATA_2] |= SOURCE_REMOTE;
        }
        self.register[OP_DATA_3] = access.map_or(0, |access| {
            let mut data = LINEAR_VALID | if access.store { STORE } else { LOAD };
            if access.pa != 0 {
                data |= PHYSICAL_VALID;
            }
            if access.walked {
                data |= L1_TLB_MISS | L2_TLB_MISS;
            }
            if access.served.is_some() {
                let miss = access.latency_cycles - access.walk_cycles.min(access.latency_cycles);
                data |= DC_MISS | miss.min(0xffff) << LATENCY_SHIFT;
            }
            data |= access.walk_cycles.min(0xffff) << REFILL_SHIFT;
            if !matches!(access.served, None | Some(Served::L2)) {
                data |= L2_MISS;
            }
            data
        });
        self.register[DC_LINEAR] = access.map_or(0, |access| access.va);
        self.register[DC_PHYSICAL] = access.map_or(0, |access| access.pa);
        self.register[OP_CONTROL] |= VALID;
        self.counts.records += 1;
        for at in [
            OP_RIP,
            OP_DATA,
            OP_DATA_2,
            OP_DATA_3,
            DC_LINEAR,
            DC_PHYSICAL,
        ] {
            self.counts.digest.write_words(&[self.register[at]]);
        }
        let entry = (self.register[CONTROL] & 0xf) as u8;
        if port.extended_interrupt(entry) {
            self.counts.interrupts += 1;
        } else {
            self.counts.masked += 1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Machine;
    use super::*;

    const OP_CONTROL_MSR: u32 = FIRST + OP_CONTROL as u32;
    const OP_DATA_3_MSR: u32 = FIRST + OP_DATA_3 as u32;

    fn ops(count: u64) -> Passed {
        Passed {
            insn: [count, 0],
            ps: [count * 300, 0],
        }
    }

    fn access(ip: u64, served: Option<Served>) -> Observed {
        Observed {
            va: 0x7777_0040,
            pa: 0x1040,
            ip,
            user: true,
            latency_cycles: 177,
            served,
            ..Observed::default()
        }
    }

    #[test]
    fn every_so_many_ops_one_is_tagged_and_told_of() {
        let (mut unit, mut machine) = (Ibs::new(Preset::Pmem), Machine::default());
        assert!(unit.write_msr(OP_CONTROL_MSR, 0x10 | ENABLE | COUNT_OPS));
        let count = unit.deadline().insn;
        assert!((256 - RANDOM..=256).contains(&count), "{count}");
        unit.advance(&ops(count - 1));
        assert!(!unit.tag_due());
        unit.advance(&ops(1));
        assert!(unit.tag_due());
        unit.tag(0x1000, true);
        assert!(!unit.access(&access(0x0fff, Some(Served::Smem)), &mut machine));
        assert!(unit.access(&access(0x1000, Some(Served::Smem)), &mut machine));
        assert_eq!(machine.extended, 1);
        let read = |index: usize| unit.read_msr(FIRST + index as u32).unwrap();
        assert_eq!(read(OP_RIP), 0x1000);
        assert_eq!(read(DC_LINEAR), 0x7777_0040);
        assert_eq!(read(OP_DATA_2), SOURCE_PMEM);
        assert_eq!(
            read(OP_DATA_3),
            LOAD | LINEAR_VALID | PHYSICAL_VALID | DC_MISS | L2_MISS | 177 << 32
        );
        assert_ne!(read(OP_CONTROL) & VALID, 0);
        // Nothing more until the guest has taken it.
        unit.advance(&ops(100_000));
        assert!(!unit.tag_due());
    }

    /// Op data 2 as Linux takes it apart (`arch/x86/include/asm/amd/ibs.h`).
    #[test]
    fn the_source_is_what_the_memory_is() {
        for (smem, served, source) in [
            (Preset::Pmem, Served::Llc, 1),
            (Preset::Pmem, Served::Fmem, 3),
            (Preset::Pmem, Served::Smem, 6),
            (Preset::Cxl, Served::Fmem, 3),
            (Preset::Cxl, Served::Smem, 8),
            (Preset::Cxl, Served::Other, 7),
        ] {
            let (mut unit, mut machine) = (Ibs::new(smem), Machine::default());
            unit.write_msr(OP_CONTROL_MSR, 1 | ENABLE | COUNT_OPS);
            unit.advance(&ops(16));
            unit.tag(1, true);
            assert!(unit.access(&access(1, Some(served)), &mut machine));
            let data = unit.read_msr(FIRST + OP_DATA_2 as u32).unwrap();
            let (low, high, remote) = (data & 7, data >> 6 & 3, data >> 4 & 1);
            assert_eq!(
                (high << 3 | low, remote),
                (source, 0),
                "{smem:?} {served:?}"
            );
        }
    }

    #[test]
    fn an_op_without_an_access_is_told_of_too() {
        let (mut unit, mut machine) = (Ibs::new(Preset::Pmem), Machine::default());
        unit.write_msr(OP_CONTROL_MSR, 1 | ENABLE | COUNT_OPS);
        unit.advance(&ops(16));
        unit.tag(0x2000, true);
        assert!(unit.settle_tag(&mut machine));
        assert_eq!(unit.read_msr(OP_DATA_3_MSR), Some(0));
        assert_eq!((unit.counts.records, machine.extended), (1, 1));
    }

    #[test]
    fn the_digest_covers_all_that_is_told() {
        let digest = |latency| {
            let (mut unit, mut machine) = (Ibs::new(Preset::Pmem), Machine::default());
            unit.write_msr(OP_CONTROL_MSR, 1 | ENABLE | COUNT_OPS);
            unit.advance(&ops(16));
            unit.tag(1, true);
            let access = Observed {
                latency_cycles: latency,
                ..access(1, Some(Served::Smem))
            };
            assert!(unit.access(&access, &mut machine));
            unit.counts.digest
        };
        assert_eq!(digest(200), digest(200));
        assert_ne!(digest(200), digest(201));
    }

    #[test]
    fn cycles_can_be_counted_instead() {
        let mut unit = Ibs::new(Preset::Pmem);
        unit.write_msr(OP_CONTROL_MSR, 2 | ENABLE);
        assert_eq!(unit.deadline().ps, 32_000);
        unit.advance(&ops(106));
        assert!(!unit.tag_due());
        unit.advance(&ops(1));
        assert!(unit.tag_due());
    }

    #[test]
    fn the_filter_tells_of_l3_misses_only() {
        let (mut unit, mut machine) = (Ibs::new(Preset::Pmem), Machine::default());
        unit.write_msr(OP_CONTROL_MSR, 1 | ENABLE | COUNT_OPS | L3_MISS_ONLY);
        for (served, told) in [
            (None, false),
            (Some(Served::Llc), false),
            (Some(Served::Fmem), true),
        ] {
            unit.advance(&ops(16));
            unit.tag(1, true);
            assert_eq!(unit.access(&access(1, served), &mut machine), told);
        }
        assert_eq!(unit.counts.records, 1);
    }
}
