// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why the module cannot be read, each with its next step.

use std::path::{Path, PathBuf};

/// A failure: [`std::fmt::Display`] is the cause, [`Error::next`] what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such directory.
    #[error("demeter.ko is not loaded: there is no {}", path.display())]
    NotLoaded {
        /// Its directory in sysfs.
        path: PathBuf,
    },
    /// It went away between two files.
    #[error("demeter.ko was unloaded while {} was read", path.display())]
    Unloaded {
        /// The file.
        path: PathBuf,
    },
    /// Not allowed.
    #[error("{} may only be read by root", path.display())]
    NotAllowed {
        /// The file.
        path: PathBuf,
    },
    /// Any other failure of the system.
    #[error("cannot read {}: {cause}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's words.
        cause: std::io::Error,
    },
    /// A file of another kind, or of a version that is not understood.
    #[error("{} is not understood: {cause}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: String,
    },
    /// An older module.
    #[error("this demeter.ko keeps no {what}")]
    Lacks {
        /// What is missing.
        what: &'static str,
    },
}

impl Error {
    /// What the user should do.
    pub fn next(&self) -> String {
        match self {
            Self::NotLoaded { .. } => {
                "load it (`modprobe demeter`), or run this in the guest that it manages".into()
            }
            Self::Unloaded { .. } => "load it again, and run again".into(),
            Self::NotAllowed { .. } => "run as root".into(),
            Self::File { .. } => "check the path and its permissions".into(),
            Self::Foreign { .. } | Self::Lacks { .. } => {
                "use module and command of the same version".into()
            }
        }
    }

    /// Tells what a failed read of `path` below `root` means.
    pub(crate) fn of_read(root: &Path, path: &Path, cause: std::io::Error) -> Self {
        use std::io::ErrorKind;
        let path = path.to_path_buf();
        match cause.kind() {
            ErrorKind::PermissionDenied => Self::NotAllowed { path },
            // ENODEV: open when its directory was removed.
            _ if cause.raw_os_error() == Some(19) => Self::Unloaded { path },
            ErrorKind::NotFound if !root.exists() => Self::Unloaded { path },
            _ => Self::File { path, cause },
        }
    }
}
