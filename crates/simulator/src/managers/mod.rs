// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who decides where pages are: demeter.ko, or the module of a published manager. Each has a
//! file here that does what its module does around the decisions of `core/`.

mod epochs;
mod hemem;
mod memtis;
mod nimble;
mod room;
mod thread;

use demeter_recording::Row;

use crate::memory::Memory;
use crate::relocate::Moved;
use crate::{Costs, Error, Header, PAGE_SHIFT, Params};
use epochs::{Epochs, Ground};
pub use hemem::HememParams;
pub use memtis::MemtisParams;
pub use nimble::NimbleParams;
use room::Room;

/// Who manages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manager {
    /// Nobody: first touch.
    None,
    /// demeter.ko, with these parameters and costs.
    Demeter(Params, Costs),
    /// HeMem's module.
    Hemem(HememParams, Costs),
    /// Memtis' module.
    Memtis(MemtisParams, Costs),
    /// Nimble's module.
    Nimble(NimbleParams, Costs),
}

impl Manager {
    /// What a sample costs at once.
    pub fn sample_ns(&self) -> u64 {
        match self {
            Self::None | Self::Nimble(..) => 0,
            Self::Demeter(_, costs) => costs.sample_ns,
            Self::Hemem(_, costs) | Self::Memtis(_, costs) => costs.record_ns + costs.perf_ns,
        }
    }
}

/// One sampled load.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Address space.
    pub space: u64,
    /// Page.
    pub page: u64,
    /// Tier that served it.
    pub tier: usize,
}

/// Counts since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Samples that were of use.
    pub samples: u64,
    /// The same by tier.
    pub tier_samples: [u64; 2],
    /// Epochs, or rounds, ended.
    pub epochs: u64,
    /// Ranges now.
    pub ranges: u64,
    /// Pages moved.
    pub moved: Moved,
    /// Times that moving was stopped, as it did not pay.
    pub stops: u64,
    /// Digest of all plans.
    pub plans: u64,
}

/// A range that a manager tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Address space.
    pub space: u64,
    /// First byte.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// Decayed samples, with 8 fractional bits.
    pub rate: u64,
}

/// A manager at work.
pub trait Managing: Send {
    /// Loads that one sample stands for now; the most there can be, where none are taken.
    fn period(&self) -> u64;

    /// When it next has something to do, on the guest's clock.
    fn due_ps(&self) -> u64;

    /// A sample has been taken.
    fn sample(&mut self, sample: Sample);

    /// Rows of aligned 2 MiB, whether one page or not, that a window has.
    fn accessed(&mut self, _space: u64, _huge: bool, _rows: &[Row]) {}

    /// Does what was due; what it cost, in nanoseconds. What is due next is later.
    fn turn(&mut self, memory: &mut Memory, now_ps: u64) -> Result<u64, Error>;

    /// What it has come to.
    fn counts(&self) -> Counts;

    /// Resident pages that are hot, of those who would tell a host.
    fn hot_pages(&self, _memory: &Memory) -> Option<u64> {
        None
    }

    /// Ranges of all address spaces by address, of those who have any.
    fn ranges(&self) -> Option<Vec<Known>> {
        None
    }
}

/// A manager that has seen nothing yet of a guest with so much FMEM, whose SMEM is slower by
/// `gap_ps`.
pub fn begin(
    header: &Header,
    fmem_bytes: u64,
    gap_ps: u64,
    manager: Manager,
) -> Option<Box<dyn Managing>> {
    let [fast_bytes, slow_bytes] = header.node_bytes;
    let fast_bytes = (fast_bytes + fmem_bytes).saturating_sub(header.tier_bytes[0]);
    let node_pages = [fast_bytes, slow_bytes].map(|bytes| bytes >> PAGE_SHIFT);
    let room = |costs| Room::new(node_pages, costs);
    Some(match manager {
        Manager::None => return None,
        Manager::Demeter(params, costs) => Box::new(Epochs::new(&Ground {
            params,
            costs,
            huge_pages: header.huge_pages,
            gap_ps,
            node_pages: node_pages[0],
        })),
        Manager::Hemem(params, costs) => {
            Box::new(hemem::Hemem::new(&params, header.huge_pages, room(costs)))
        }
        Manager::Memtis(params, costs) => Box::new(memtis::Memtis::new(&params, room(costs))),
        Manager::Nimble(params, costs) => Box::new(nimble::Nimble::new(&params, room(costs))),
    })
}
