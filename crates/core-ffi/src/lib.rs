// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Demeter's core in Rust: the C sources of `core/`, compiled in and wrapped.
//!
//! The same samples with the same parameters lead to the same decisions here,
//! in the kernel module and in the C tests; `tests/golden.rs` holds them to it.

mod areas;
mod channel;
mod gain;
mod groups;
mod judge;
mod pace;
pub mod peers;
mod plan;
mod ranges;
mod rank;
mod sys;

pub use areas::Areas;
pub use channel::{Consumer, Producer, channel};
pub use gain::Placement;
pub use judge::Judge;
pub use pace::Pace;
pub use plan::{Plan, PlanEnd, Planner, Promise, Step};
pub use ranges::{Counters, Ranges};
pub use rank::Ranking;
pub use sys::{
    Area, EpochChange, Group, PaceEpoch, PaceTick, PlanParams, Range, RangesParams, RankEntry,
    Sample,
};

/// Areas that an address space may have.
pub const MAX_AREAS: usize = sys::MAX_AREAS;
/// Index of fast memory in arrays by tier.
pub const FMEM: usize = 0;
/// Index of slow memory in arrays by tier.
pub const SMEM: usize = 1;

/// Why the core refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Parameters or bounds without sense.
    #[error("invalid argument")]
    Invalid,
    /// No range left for a new area.
    #[error("no range left")]
    Full,
    /// Memory for the arrays is not to be had.
    #[error("out of memory")]
    OutOfMemory,
}

const ENOSPC: i32 = 28;

impl Error {
    fn from_c(code: i32) -> Result<(), Self> {
        match -code {
            0 => Ok(()),
            ENOSPC => Err(Self::Full),
            _ => Err(Self::Invalid),
        }
    }

    /// The negative errno that C returns for it.
    pub fn code(self) -> i32 {
        match self {
            Self::Invalid => -22,
            Self::Full => -ENOSPC,
            Self::OutOfMemory => -12,
        }
    }
}

/// A vector of uninitialised elements for C to fill.
fn room<T>(length: usize) -> Result<Vec<std::mem::MaybeUninit<T>>, Error> {
    let mut memory = Vec::new();
    memory
        .try_reserve_exact(length)
        .map_err(|_| Error::OutOfMemory)?;
    // SAFETY: so many are reserved, and uninitialised is a valid MaybeUninit.
    unsafe { memory.set_len(length) };
    Ok(memory)
}

/// Continues a digest as the C `demeter_digest_add()` does; 0 starts one.
pub fn digest_add(digest: u64, value: u64) -> u64 {
    let start = if digest == 0 {
        0xcbf2_9ce4_8422_2325
    } else {
        digest
    };
    value.to_le_bytes().iter().fold(start, |digest, byte| {
        (digest ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
