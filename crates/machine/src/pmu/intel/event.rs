// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Events of Skylake and Ice Lake server that the model knows, by the numbers of Intel's
//! lists (perfmon), and which accesses count as one.
//!
//! Loads from SMEM are those of local persistent memory (`MEM_LOAD_RETIRED.LOCAL_PMM`) or
//! of remote DRAM (`MEM_LOAD_L3_MISS_RETIRED.REMOTE_DRAM`), as [`pebs::load_source`] says.
//!
//! [`pebs::load_source`]: crate::pmu::pebs::load_source

use crate::pmu::{L1_CYCLES, Observed};
use crate::{Preset, Served};

/// What a counter counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Event {
    /// Stopped, or an event that the model does not know: it stays where it is.
    #[default]
    Nothing,
    Instructions,
    Cycles,
    /// Loads of at least as many cycles as the threshold.
    LoadLatency,
    Loads,
    Stores,
    /// Loads or stores that needed a page walk.
    WalkedLoads,
    WalkedStores,
    /// Loads by what served them.
    L1Hits,
    L1Misses,
    L2Hits,
    L2Misses,
    L3Hits,
    L3Misses,
    LocalDram,
    RemoteDram,
    LocalPmem,
}

impl Event {
    /// From an event select's event and unit mask.
    pub const fn of(select: u64) -> Self {
        match select & 0xffff {
            0x00c0 => Self::Instructions,
            0x003c | 0x013c => Self::Cycles,
            0x01cd => Self::LoadLatency,
            0x81d0 => Self::Loads,
            0x82d0 => Self::Stores,
            0x11d0 => Self::WalkedLoads,
            0x12d0 => Self::WalkedStores,
            0x01d1 => Self::L1Hits,
            0x08d1 => Self::L1Misses,
            0x02d1 => Self::L2Hits,
            0x10d1 => Self::L2Misses,
            0x04d1 => Self::L3Hits,
            0x20d1 => Self::L3Misses,
            0x01d3 => Self::LocalDram,
            0x02d3 => Self::RemoteDram,
            0x80d1 => Self::LocalPmem,
            _ => Self::Nothing,
        }
    }

    pub const fn is_time(self) -> bool {
        matches!(self, Self::Instructions | Self::Cycles)
    }

    pub const fn is_memory(self) -> bool {
        !matches!(self, Self::Nothing | Self::Instructions | Self::Cycles)
    }

    /// Whether accesses that the L1 serves can count.
    pub const fn needs_l1(self, threshold_cycles: u64) -> bool {
        match self {
            Self::Loads | Self::Stores | Self::L1Hits => true,
            Self::LoadLatency => threshold_cycles <= L1_CYCLES,
            _ => false,
        }
    }

    /// Whether one access counts; `smem` says which events an access to SMEM is.
    pub fn counts(self, access: &Observed, threshold_cycles: u64, smem: Preset) -> bool {
        let load = !access.store;
        match self {
            Self::Nothing | Self::Instructions | Self::Cycles => false,
            Self::LoadLatency => load && access.latency_cycles >= threshold_cycles,
            Self::Loads => load,
            Self::Stores => access.store,
            Self::WalkedLoads => load && access.walked,
            Self::WalkedStores => access.store && access.walked,
            Self::L1Hits => load && access.served.is_none(),
            Self::L1Misses => load && access.served.is_some(),
            Self::L2Hits => load && access.served == Some(Served::L2),
            Self::L2Misses => load && !matches!(access.served, None | Some(Served::L2)),
            Self::L3Hits => load && access.served == Some(Served::Llc),
            Self::L3Misses => load && is_memory(access.served),
            Self::LocalDram => load && !access.remote && access.served == Some(Served::Fmem),
            Self::RemoteDram => load && is_remote_dram(access, smem),
            Self::LocalPmem => {
                load && !access.remote
                    && smem == Preset::Pmem
                    && access.served == Some(Served::Smem)
            }
        }
    }
}

fn is_remote_dram(access: &Observed, smem: Preset) -> bool {
    match access.served {
        Some(Served::Fmem) => access.remote,
        Some(Served::Smem) => smem == Preset::Cxl,
        _ => false,
    }
}

const fn is_memory(served: Option<Served>) -> bool {
    matches!(served, Some(Served::Fmem | Served::Smem | Served::Other))
}
