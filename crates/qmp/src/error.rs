// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can go wrong between QEMU and us.

use std::io;
use std::path::PathBuf;

/// [`std::fmt::Display`] is the cause, [`QmpError::next`] what to do.
#[derive(Debug, thiserror::Error)]
pub enum QmpError {
    /// Nobody listens there.
    #[error("cannot connect to {}: {cause}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The system's words.
        cause: io::Error,
    },
    /// It says nothing.
    #[error("QEMU does not answer: {0}")]
    Silent(io::Error),
    /// It takes nothing.
    #[error("QEMU does not listen: {0}")]
    Deaf(io::Error),
    /// It went away.
    #[error("QEMU closed the QMP socket")]
    Closed,
    /// A line without end.
    #[error("QEMU's answer has no end")]
    Endless,
    /// Something else speaks there.
    #[error("this is not QMP: {0}")]
    NotQmp(#[from] serde_json::Error),
    /// A command that must succeed did not.
    #[error("QEMU refused {command}: {words}")]
    Refused {
        /// The command.
        command: String,
        /// Its words.
        words: String,
    },
    /// An event does not come.
    #[error("QEMU does not finish")]
    Unfinished,
    /// Our caller wants to end.
    #[error("interrupted")]
    Interrupted,
    /// The device is another one.
    #[error("{id} is a {kind}, not a balloon")]
    NotABalloon {
        /// The device.
        id: String,
        /// What it is.
        kind: String,
    },
    /// It is out, and where it was is not known.
    #[error("{id} is not in the machine and {what} is not given")]
    Missing {
        /// The device.
        id: String,
        /// As an option.
        what: &'static str,
    },
    /// It cannot be taken out.
    #[error("QEMU does not take {id} out: {words}")]
    Stuck {
        /// The device.
        id: String,
        /// QEMU's words.
        words: String,
    },
    /// The character device stays.
    #[error("QEMU does not give {chardev} free: {words}")]
    Kept {
        /// It.
        chardev: String,
        /// QEMU's words.
        words: String,
    },
    /// The daemon is not there.
    #[error("QEMU cannot connect to {socket}: {words}")]
    NoDaemon {
        /// The daemon's socket.
        socket: String,
        /// QEMU's words.
        words: String,
    },
}

impl QmpError {
    /// What the operator should do.
    #[must_use]
    pub fn next(&self) -> String {
        match self {
            Self::NotABalloon { .. } => "name the balloon's device with --id".into(),
            Self::Missing { what, .. } => {
                format!("say {what} as it was when the guest was started")
            }
            Self::Stuck { .. } => "put the device behind a PCIe root port (docs/balloon.md)".into(),
            Self::Kept { .. } => "check that no other device uses it".into(),
            Self::NoDaemon { .. } => {
                "start demeterd, then replug again with --socket and --bus".into()
            }
            _ => "check the QMP socket and QEMU's log".into(),
        }
    }

    /// The call is at fault, not QEMU.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::NotABalloon { .. } | Self::Missing { .. })
    }
}
