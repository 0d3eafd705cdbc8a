// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replays recorded accesses ([`demeter_recording`]) under another placement of pages.
//!
//! What a program accesses does not depend on where its pages are, but for time: so a
//! record of line fills by page and window of progress can be timed anew for any
//! placement. The manager that decides on it is `core/`'s classifier, ranking, planner
//! and pace, as in the kernel module, with the module's parameters; what the module does
//! around them is modelled here (`managers/epochs.rs`, `relocate.rs`). Published managers are
//! beside it, by their pure parts in `core/peers/`. `docs/simulator.md` says
//! what is left out.
//!
//! One pass over a record serves any number of [`Simulation`]s, in bounded memory: a
//! window, and two bits a page for each.

mod costs;
mod header;
mod host;
mod ideal;
mod ledger;
mod managers;
mod memory;
mod params;
mod player;
mod pool;
mod relocate;
mod replay;
mod report;
mod sampler;
mod side_by_side;
mod simulation;

pub use costs::Costs;
pub use header::Header;
pub use host::{Host, Stay, Tenant, host};
pub use ideal::Tally;
pub use managers::{HememParams, Manager, MemtisParams, NimbleParams};
pub use params::Params;
pub use player::Player;
pub use pool::{PoolStay, Pooled, pool};
pub use replay::{Replayed, Variant, replay};
pub use report::{Placed, Report};
pub use simulation::Simulation;

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The record.
    #[error(transparent)]
    Record(#[from] demeter_recording::ReadError),
    /// Its header is not one of ours.
    #[error("the header of the recording is not understood: {0}")]
    Header(serde_json::Error),
    /// A parameter of the manager that there is not, or that changes nothing here.
    #[error("parameter `{name}` {reason}")]
    Parameter {
        /// As given.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// A hypervisor that this record cannot be played under.
    #[error("the hypervisor {0}")]
    Hypervisor(String),
    /// The record has more pages than twice the guest's memory.
    #[error("the guest's pages come and go: more than twice its memory was seen")]
    Room,
    /// The manager's threads take longer than they sleep.
    #[error("the manager's threads take all of the CPU: the program never goes on")]
    Busy,
    /// Samples are of other loads than the manager's.
    #[error(
        "it counts loads of {recorded_ns} ns and more only; {row} samples those that miss the L3, \
         which are of {most_ns} ns and more"
    )]
    Threshold {
        /// Who manages.
        row: String,
        /// The record's threshold.
        recorded_ns: u64,
        /// The highest that all of them reach.
        most_ns: u64,
    },
    /// The core refused.
    #[error("core: {0}")]
    Core(#[from] demeter_core::Error),
}

/// Log2 of the bytes of a page.
const PAGE_SHIFT: u32 = 12;
/// Log2 of the pages of a huge one.
const HUGE_SHIFT: u32 = 9;
/// Pages of a huge one.
const HUGE_PAGES: u64 = 1 << HUGE_SHIFT;
