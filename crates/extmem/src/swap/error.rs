// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a swap store can fail with. Formatting these allocates nothing.

use std::fmt;

use demeter_extmem_tree::{Errno, MOST_SLOTS, PlaceError, Size};

use super::{Direction, SLOT_BYTES};

/// Why a store cannot be opened, or a transfer did not happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SwapError {
    /// A place cannot be used.
    #[error("swap place {place}: {cause}")]
    Place {
        /// The path that was given.
        place: &'static str,
        /// What is wrong with it.
        cause: PlaceError,
    },
    /// No place is given.
    #[error(
        "no swap place is given; next: name a directory, a file, a block device or a memory node (node:1)"
    )]
    Nowhere,
    /// All places together have more slots than can be numbered.
    #[error(
        "the swap places have {} together where {} can be used; next: give less by --swap-size, or leave one out",
        Size(*together_bytes),
        Size(MOST_SLOTS * SLOT_BYTES as u64)
    )]
    TooMany {
        /// What they have.
        together_bytes: u64,
    },
    /// The memory passed in is too little: a fault of the caller.
    #[error("the swap store got too little memory for its tables; next: report this as a defect")]
    Memory,
    /// io_uring was asked for by name and the kernel refuses it.
    #[error(
        "io_uring is refused ({}); next: leave the engine on auto, or allow io_uring",
        Errno(*errno)
    )]
    Uring {
        /// Error number.
        errno: i32,
    },
    /// A transfer failed.
    #[error(
        "swap {direction} of slot {slot} at byte {byte_offset} of {place} failed ({}); next: {}",
        Errno(*errno),
        remedy(*errno)
    )]
    Transfer {
        /// What is swapped to; of an unnamed file the directory.
        place: &'static str,
        /// Read or write.
        direction: Direction,
        /// The slot.
        slot: u32,
        /// Where in the file or device.
        byte_offset: u64,
        /// Error number.
        errno: i32,
    },
    /// A transfer ended early.
    #[error(
        "swap {direction} of slot {slot} at byte {byte_offset} of {place} moved {moved_bytes} of {} bytes; next: check that nobody shortens the swap file",
        SLOT_BYTES
    )]
    Short {
        /// What is swapped to; of an unnamed file the directory.
        place: &'static str,
        /// Read or write.
        direction: Direction,
        /// The slot.
        slot: u32,
        /// Where in the file or device.
        byte_offset: u64,
        /// Bytes of this slot that did move.
        moved_bytes: u32,
    },
    /// A slot brought something else than was written to it.
    #[error(
        "what swap brought from slot {slot} at byte {byte_offset} of {place} is not what was written there; next: check the swap device, and that nobody else writes to it"
    )]
    Altered {
        /// What is swapped to; of an unnamed file the directory.
        place: &'static str,
        /// The slot.
        slot: u32,
        /// Where in the file or device.
        byte_offset: u64,
    },
}

/// What to do about a transfer that failed.
fn remedy(errno: i32) -> &'static str {
    match errno {
        libc::EFBIG => "raise that limit, or name a block device",
        libc::ENOSPC | libc::EDQUOT => "free some space there, or name another place",
        _ => "check the swap device, the data there is lost",
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}
