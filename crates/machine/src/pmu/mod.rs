// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Modelled performance-monitoring units, as stock kernels drive them.
//!
//! A unit is what one vCPU has: registers that the guest reads and writes,
//! counters that count what the model saw, and records that go into the guest's
//! memory. It knows no page tables, and of QEMU a name: whoever runs the vCPU calls
//! [`Unit::advance`] and [`Unit::access`] and supplies memory and interrupts
//! through [`Port`].
//!
//! | [`Kind`] | the guest finds |
//! |---|---|
//! | `icelake` | Intel family 6 model 106: 8 + 4 counters, PEBS format 4 ([`intel`], [`pebs`]) |
//! | `skylake` | Intel family 6 model 85: 4 + 3 counters, PEBS format 3 |
//! | `zen4` | AMD family 25 model 17: instruction-based sampling of ops ([`ibs`]), no counters |
//! | `none` | the CPU of `icelake` without a unit, as most cloud guests have it |
//!
//! Units count while the model is on. Core cycles are those of the guest's TSC,
//! one a nanosecond, so that latencies in cycles are nanoseconds. What is left
//! out: LBR and XMM groups of records (their place is kept, they read 0), BTS,
//! top-down metrics, freezing counters at an interrupt, AMD's core counters.

pub mod ibs;
pub mod intel;
pub mod pebs;

use serde::{Deserialize, Serialize};

use crate::digest::Fnv;
use crate::{Preset, Served};
use ibs::Ibs;
use intel::Intel;

/// Length of a nanosecond in picoseconds: a core cycle of the unit.
const CYCLE_PS: u64 = 1000;
/// A load that the L1 serves, in cycles of a nanosecond. 5 cycles at 3.3 GHz, as on Intel
/// cores since Skylake, are 1.5 ns.
pub const L1_CYCLES: u64 = 2;

/// All that QEMU has but for what differs from host to host, or what the model does not
/// understand. String instructions without their fast forms: kernels then use plain moves,
/// which QEMU executes faster.
const CPU: &str = "max,la57=off,-rdrand,-rdseed,-monitor,-erms,-fsrm,-svm,-pku";

/// Which unit a guest has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// None.
    #[default]
    None,
    /// Intel Ice Lake server.
    Icelake,
    /// Intel Skylake server.
    Skylake,
    /// AMD Zen 4 server.
    Zen4,
}

/// There is no such unit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no model of the PMU '{0}'; next: use icelake, skylake, zen4 or none")]
pub struct UnknownKind(String);

impl std::str::FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(name: &str) -> Result<Self, UnknownKind> {
        match name {
            "none" => Ok(Self::None),
            "icelake" => Ok(Self::Icelake),
            "skylake" => Ok(Self::Skylake),
            "zen4" => Ok(Self::Zen4),
            _ => Err(UnknownKind(name.to_owned())),
        }
    }
}

impl Kind {
    /// QEMU's `-cpu`: one that the model understands and that is the same on every host,
    /// and that makes the guest's kernel look for this unit.
    #[must_use]
    pub fn qemu_cpu(self) -> String {
        format!("{CPU},{}", self.cpu_properties())
    }

    const fn cpu_properties(self) -> &'static str {
        match self {
            Self::None | Self::Icelake => "vendor=GenuineIntel,family=6,model=106,stepping=6",
            Self::Skylake => "vendor=GenuineIntel,family=6,model=85,stepping=4",
            // Leaf 0x8000001B has to be within the leaves that there are.
            Self::Zen4 => "vendor=AuthenticAMD,family=25,model=17,stepping=1,xlevel=0x8000001f",
        }
    }

    /// Changes what CPUID answers for `leaf`: EAX, EBX, ECX, EDX.
    pub fn cpuid(self, leaf: u32, registers: &mut [u32; 4]) {
        let [a, b, c, d] = registers;
        match (self, leaf) {
            (Self::Icelake | Self::Skylake, 1) => {
                *c |= 1 << 2 | 1 << 15; // DTES64, PDCM
                *d |= 1 << 21; // DS
            }
            (Self::Icelake | Self::Skylake, 0xa) => {
                let shape = intel::Shape::of(self);
                *a = shape.version | shape.general << 8 | 48 << 16 | 8 << 24;
                *b = intel::MISSING_EVENTS;
                *c = shape.fixed_mask();
                *d = shape.fixed | 48 << 5 | 1 << 15; // no AnyThread
            }
            (Self::Zen4, 0x8000_0001) => *c |= 1 << 10,
            (Self::Zen4, 0x8000_001b) => [*a, *b, *c, *d] = [ibs::CAPABILITIES, 0, 0, 0],
            _ => {}
        }
    }
}

/// One access to memory, as a unit sees it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Observed {
    /// Virtual address.
    pub va: u64,
    /// Physical address, 0 if unknown.
    pub pa: u64,
    /// Address of the instruction.
    pub ip: u64,
    /// A store; otherwise a load.
    pub store: bool,
    /// By user code.
    pub user: bool,
    /// From issue to data, in core cycles.
    pub latency_cycles: u64,
    /// The part of it that was a page walk.
    pub walk_cycles: u64,
    /// What served it; `None` for the L1.
    pub served: Option<Served>,
    /// It needed a page walk.
    pub walked: bool,
    /// It was served by another socket's memory.
    pub remote: bool,
}

/// What time and code passed on a vCPU, for user and kernel code: `[user, kernel]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Instructions.
    pub insn: [u64; 2],
    /// Time, in picoseconds.
    pub ps: [u64; 2],
}

/// The machine around a unit.
pub trait Port {
    /// Reads words of guest memory at a virtual address; false if not mapped.
    fn read(&mut self, va: u64, words: &mut [u64]) -> bool;
    /// Writes words of guest memory at a virtual address; false if not all was mapped.
    fn write(&mut self, va: u64, words: &[u64]) -> bool;
    /// The time stamp counter.
    fn tsc(&mut self) -> u64;
    /// Raises the performance-monitoring interrupt (the APIC's LVTPC) if it is not masked.
    fn counter_interrupt(&mut self) -> bool;
    /// Raises the interrupt of an extended LVT entry if it is not masked.
    fn extended_interrupt(&mut self, entry: u8) -> bool;
}

/// What a unit did so far; the guest does not see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accesses that counted as an event of a counter, or ops that were tagged.
    pub events: u64,
    /// Records written: PEBS records, IBS samples.
    pub records: u64,
    /// Of all that is in them.
    pub digest: Fnv,
    /// Records for which there was no room, or no memory.
    pub dropped: u64,
    /// Interrupts raised.
    pub interrupts: u64,
    /// Interrupts that the guest had masked.
    pub masked: u64,
}

/// How soon a unit wants to be told again how far the vCPU is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// In instructions; `u64::MAX` for never.
    pub insn: u64,
    /// In picoseconds; `u64::MAX` for never.
    pub ps: u64,
}

impl Deadline {
    /// No deadline.
    pub const NEVER: Self = Self {
        insn: u64::MAX,
        ps: u64::MAX,
    };
}

/// The unit of one vCPU.
#[derive(Clone, Debug)]
pub enum Unit {
    /// No unit.
    None,
    /// An Intel core's.
    Intel(Box<Intel>),
    /// An AMD core's.
    Ibs(Box<Ibs>),
}

impl Unit {
    /// A unit after reset, in a machine whose slow memory is `smem`: records name it so.
    #[must_use]
    pub fn new(kind: Kind, smem: Preset) -> Self {
        match kind {
            Kind::None => Self::None,
            Kind::Icelake | Kind::Skylake => Self::Intel(Box::new(Intel::new(kind, smem))),
            Kind::Zen4 => Self::Ibs(Box::new(Ibs::new(smem))),
        }
    }

    /// Reads a register; `None` if it is not the unit's. Time has been told with
    /// [`Unit::advance`] before.
    #[must_use]
    pub fn read_msr(&self, msr: u32) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Intel(unit) => unit.read_msr(msr),
            Self::Ibs(unit) => unit.read_msr(msr),
        }
    }

    /// Writes a register; false if it is not the unit's. Time has been told before.
    pub fn write_msr(&mut self, msr: u32, value: u64) -> bool {
        match self {
            Self::None => false,
            Self::Intel(unit) => unit.write_msr(msr, value),
            Self::Ibs(unit) => unit.write_msr(msr, value),
        }
    }

    /// RDPMC; `None` for a counter that is not there. Time has been told before.
    #[must_use]
    pub fn read_counter(&self, index: u32) -> Option<u64> {
        match self {
            Self::Intel(unit) => unit.read_counter(index),
            Self::None | Self::Ibs(_) => None,
        }
    }

    /// Tells what passed since the last call; `ip` is where the vCPU is.
    pub fn advance(&mut self, passed: &Passed, ip: u64, port: &mut impl Port) {
        match self {
            Self::None => {}
            Self::Intel(unit) => unit.advance(passed, ip, port),
            Self::Ibs(unit) => unit.advance(passed),
        }
    }

    /// When [`Unit::advance`] must be called at the latest.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        match self {
            Self::None => Deadline::NEVER,
            Self::Intel(unit) => unit.deadline(),
            Self::Ibs(unit) => unit.deadline(),
        }
    }

    /// Whether the unit looks at accesses of user (or kernel) code.
    #[inline]
    #[must_use]
    pub fn watches(&self, user: bool) -> bool {
        let rings = match self {
            Self::None => 0,
            Self::Intel(unit) => unit.memory_rings(),
            Self::Ibs(unit) => unit.memory_rings(),
        };
        rings & ring(user) != 0
    }

    /// Whether it looks at accesses that the L1 serves, too.
    #[must_use]
    pub fn watches_l1(&self) -> bool {
        match self {
            Self::None => false,
            Self::Intel(unit) => unit.watches_l1(),
            Self::Ibs(unit) => unit.memory_rings() != 0,
        }
    }

    /// Takes one access; true if a record was written.
    pub fn access(&mut self, access: &Observed, port: &mut impl Port) -> bool {
        match self {
            Self::None => false,
            Self::Intel(unit) => unit.access(access, port),
            Self::Ibs(unit) => unit.access(access, port),
        }
    }

    /// For a unit that tags instructions: the one that is executed now is tagged.
    pub fn tag(&mut self, ip: u64, user: bool) {
        if let Self::Ibs(unit) = self {
            unit.tag(ip, user);
        }
    }

    /// A tag is due: the next instruction should be given to [`Unit::tag`].
    #[must_use]
    pub fn tag_due(&self) -> bool {
        matches!(self, Self::Ibs(unit) if unit.tag_due())
    }

    /// An instruction is tagged that has not ended.
    #[must_use]
    pub fn tag_followed(&self) -> bool {
        matches!(self, Self::Ibs(unit) if unit.memory_rings() != 0)
    }

    /// The tagged instruction has ended; true if it made a record now, having accessed nothing.
    pub fn settle_tag(&mut self, port: &mut impl Port) -> bool {
        match self {
            Self::Ibs(unit) => unit.settle_tag(port),
            Self::None | Self::Intel(_) => false,
        }
    }

    /// What it did so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        match self {
            Self::None => Counts::default(),
            Self::Intel(unit) => unit.counts,
            Self::Ibs(unit) => unit.counts,
        }
    }
}

/// Bit of a set of rings.
#[inline]
const fn ring(user: bool) -> u8 {
    if user { USER } else { KERNEL }
}

const USER: u8 = 1;
const KERNEL: u8 = 2;

#[cfg(test)]
pub(crate) mod testing;
