// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a thread that reads one page should sleep until it comes or look for it.
//!
//! To sleep and be woken costs a fifth of a fast device's read, more in a virtual machine
//! whose idle CPU goes back to the host. But a thread that keeps looking takes CPU from
//! whoever needs it: threads that have their pages, or the host's side of a virtual disk.
//! So only a thread that is the only one to read may look, and it does not yield: where
//! somebody else wants the CPU, Linux (6.18) lets a thread that yields wait for much
//! longer than one that sleeps.

use crate::turns::Turns;

/// Reads of a turn.
const TURN_READS: u32 = 128;
/// A thread looks no longer for a page than this; slower devices are for sleepers.
pub const LONGEST_NS: u64 = 200_000;

/// Sleeping and looking in turns.
pub const fn polling() -> Turns {
    Turns::new(TURN_READS, false, 1000)
}
