// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the programs of one `demeter extmem run` share.
//!
//! The runner opens it, every program of the tree inherits it by descriptor: a path would
//! be out of reach for those that change their user, their root or their namespaces.

mod cgroup;
mod claim;
mod handed;
mod ledger;
mod lock;
mod named;
mod node;
mod place;
mod place_error;
mod printable;
mod promises;
mod settings;
mod swap_file;
mod trial;

pub use handed::Handed;
pub use ledger::{Account, Clerk, FLOOR_PAGES, Ledger};
pub use named::NamedPlace;
pub use node::{MemoryOfNode, Node};
pub use place::{LEAST_BYTES, MOST_SLOTS, SLOT_BYTES, largest_file_bytes};
pub use place_error::{Errno, PlaceError, Size};
pub use printable::{Printable, escaped};
pub use promises::Promises;
pub use settings::{SWAP_VARIABLES, SwapVariables};
pub use swap_file::{MOST_PARTS, PARTS, SwapFile, part_words, parts};
pub use trial::{time_copies, time_reads};

/// Descriptors that programs leave alone: so many below the soft limit.
pub const DESCRIPTORS: i32 = 64;

/// The first of those descriptors under a soft limit on their number.
pub fn lowest_descriptor(soft_limit: u64) -> i32 {
    // The table grows with the highest number: keep it small under a huge limit.
    (soft_limit.min(4096) as i32 - DESCRIPTORS).max(3)
}
