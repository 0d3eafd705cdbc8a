// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a policy cannot be used.

use crate::policy::abi;

/// A policy that cannot be used; each is told before the program starts.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// No built-in policy of that name.
    #[error(
        "there is no built-in policy '{name}'; next: use default, clock, fifo, or a path with a slash"
    )]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// The loader refuses the file.
    #[error(
        "cannot load policy {path}: {cause}; next: check that it is a shared object for this machine"
    )]
    Load {
        /// The file.
        path: String,
        /// The loader's words.
        cause: String,
    },
    /// The file is no policy.
    #[error(
        "{path} has no demeter_extmem_policy(); next: build it against demeter_extmem_policy.h"
    )]
    NoEntry {
        /// The file.
        path: String,
    },
    /// It was made for another pager.
    #[error(
        "policy {path} is not made for version {} of the interface; next: rebuild it against this demeter_extmem_policy.h",
        abi::ABI
    )]
    Version {
        /// The file.
        path: String,
    },
    /// Its table lacks functions that must be there.
    #[error(
        "policy {path} lacks {function}(); next: see demeter_extmem_policy.h for what a policy must have"
    )]
    Incomplete {
        /// The file.
        path: String,
        /// The first that is missing.
        function: &'static str,
    },
    /// It does not understand its options.
    #[error("policy {path} does not accept the options '{options}'; next: see its documentation")]
    Options {
        /// The file or name.
        path: String,
        /// They.
        options: String,
    },
    /// It could not set itself up.
    #[error("policy {path} could not start; next: see its documentation")]
    Start {
        /// The file or name.
        path: String,
    },
    /// No memory for its tables.
    #[error(
        "no address space for the {bytes} bytes of tables that policy {path} wants; next: raise the limit (ulimit -v)"
    )]
    Memory {
        /// The file or name.
        path: String,
        /// What it wants.
        bytes: u64,
    },
}
