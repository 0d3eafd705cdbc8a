// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a program is told what to swap to: by its environment.

/// Variables of one file, device or directory.
#[derive(Debug, Clone, Copy)]
pub struct SwapVariables {
    /// Its path.
    pub path: &'static str,
    /// How much of it.
    pub size: &'static str,
    /// The file that was made there for all programs of a run, see [`crate::Handed`].
    pub handed: &'static str,
}

macro_rules! variables {
    ($($suffix:literal),*) => {
        [$(SwapVariables {
            path: concat!("DEMETER_EXTMEM_SWAP", $suffix),
            size: concat!("DEMETER_EXTMEM_SWAP_SIZE", $suffix),
            handed: concat!("DEMETER_EXTMEM_SWAP_FD", $suffix),
        }),*]
    };
}

/// Of all that a run may have, in the order in which they are filled. The first that has no
/// path is the end.
pub const SWAP_VARIABLES: [SwapVariables; 8] =
    variables!["", "_2", "_3", "_4", "_5", "_6", "_7", "_8"];
