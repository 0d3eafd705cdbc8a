// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a part of a swap file cannot be had.

/// Why a part that nobody else has cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Obstacle {
    /// The disk has no space for it.
    Disk = 1,
    /// It lies above the limit on the size of files.
    Limit = 2,
    /// The memory node that it would lie on has no room for it.
    Node = 3,
}
