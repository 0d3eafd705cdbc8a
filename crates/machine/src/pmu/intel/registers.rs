// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Numbers and bits of the registers of an Intel core's unit, and which of them a core has.

use crate::pmu::{Kind, pebs};

pub const MISC_ENABLE: u32 = 0x1a0;
pub const OFFCORE_0: u32 = 0x1a6;
pub const OFFCORE_1: u32 = 0x1a7;
pub const PERF_METRICS: u32 = 0x329;
pub const PERF_CAPABILITIES: u32 = 0x345;
pub const FIXED_CONTROL: u32 = 0x38d;
pub const GLOBAL_STATUS: u32 = 0x38e;
pub const GLOBAL_CONTROL: u32 = 0x38f;
pub const GLOBAL_RESET: u32 = 0x390;
pub const GLOBAL_SET: u32 = 0x391;
pub const PEBS_ENABLE: u32 = 0x3f1;
pub const PEBS_DATA_CONFIG: u32 = 0x3f2;
pub const LOAD_LATENCY: u32 = 0x3f6;
pub const FRONTEND: u32 = 0x3f7;
pub const DS_AREA: u32 = 0x600;
pub const EVENT_SELECT_0: u32 = 0x186;
pub const COUNTER_0: u32 = 0xc1;
pub const FULL_WIDTH_0: u32 = 0x4c1;
pub const FIXED_0: u32 = 0x309;

/// Registers that only hold a value; some say what the unit does.
pub const HELD: [u32; 10] = [
    OFFCORE_0,
    OFFCORE_1,
    PERF_METRICS,
    FIXED_CONTROL,
    GLOBAL_CONTROL,
    PEBS_ENABLE,
    PEBS_DATA_CONFIG,
    LOAD_LATENCY,
    FRONTEND,
    DS_AREA,
];

/// Of an event select.
pub const SELECT_INTERRUPT: u64 = 1 << 20;
pub const SELECT_ENABLE: u64 = 1 << 22;
/// Of the global status: PEBS records have reached their threshold.
pub const STATUS_BUFFER: u64 = 1 << 62;

/// EBX of CPUID leaf 0xA: architectural events that are missing, last-level cache
/// references and misses, branches and mispredictions, top-down slots.
pub const MISSING_EVENTS: u32 = 0b1111_1000;

/// What distinguishes the units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Version of architectural performance monitoring.
    pub version: u32,
    /// General counters.
    pub general: u32,
    /// Fixed counters.
    pub fixed: u32,
    /// Format of PEBS records.
    pub format: pebs::Format,
}

impl Shape {
    /// The shape of a unit; that of `icelake` for what is not Intel's.
    #[must_use]
    pub const fn of(kind: Kind) -> Self {
        match kind {
            Kind::Skylake => Self {
                version: 4,
                general: 4,
                fixed: 3,
                format: pebs::Format::Three,
            },
            Kind::None | Kind::Icelake | Kind::Zen4 => Self {
                version: 5,
                general: 8,
                fixed: 4,
                format: pebs::Format::Four,
            },
        }
    }

    /// Fixed counters as a mask; 0 where CPUID has no such mask.
    #[must_use]
    pub const fn fixed_mask(&self) -> u32 {
        match self.format {
            pebs::Format::Three => 0,
            pebs::Format::Four => (1 << self.fixed) - 1,
        }
    }
}
