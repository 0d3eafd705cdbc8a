// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What ends the daemon before it serves anybody. Later failures belong to one
//! virtual machine or to one call of the interface, and are told there.

use std::io;
use std::path::{Path, PathBuf};

/// A failure: [`std::fmt::Display`] is the cause, [`Error::next`] what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Wrong arguments or configuration.
    #[error("{cause}")]
    Usage {
        /// What is wrong.
        cause: String,
        /// What to do.
        next: String,
    },
    /// A file or socket operation failed.
    #[error("cannot {action} {}: {cause}", path.display())]
    File {
        /// Verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's words.
        cause: io::Error,
    },
    /// The system gave no thread, event or runtime.
    #[error("cannot {action}: {cause}")]
    System {
        /// Verb.
        action: &'static str,
        /// The system's words.
        cause: io::Error,
    },
}

impl Error {
    /// Wrong usage, with the usual next step.
    pub fn usage(cause: impl Into<String>) -> Self {
        Self::Usage {
            cause: cause.into(),
            next: "see `demeterd --help`".into(),
        }
    }

    /// A failed file operation.
    pub fn file(action: &'static str, path: impl AsRef<Path>, cause: io::Error) -> Self {
        Self::File {
            action,
            path: path.as_ref().to_path_buf(),
            cause,
        }
    }

    /// What the operator should do.
    pub fn next(&self) -> &str {
        match self {
            Self::Usage { next, .. } => next,
            Self::File { .. } => "check the path and its permissions",
            Self::System { .. } => "check the limits of this process",
        }
    }

    /// Exit status of the process.
    pub fn status(&self) -> u8 {
        match self {
            Self::Usage { .. } => 2,
            _ => 1,
        }
    }
}
