// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can go wrong between QEMU and us.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// QEMU's own word on a command that it does not execute.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{words}")]
pub struct Refusal {
    /// `DeviceNotFound`, mostly `GenericError`.
    pub class: String,
    /// For people.
    pub words: String,
}

impl Refusal {
    /// There is nothing of that name.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.class == "DeviceNotFound" || self.words.contains("not found")
    }
}

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
    /// It says something, and not what was asked for.
    #[error("QEMU does not answer within {} ms", .0.as_millis())]
    Slow(Duration),
    /// Events without end.
    #[error("QEMU sends events without end")]
    Flood,
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
    #[error("QEMU refused {command}: {refusal}")]
    Refused {
        /// The command.
        command: String,
        /// Why.
        refusal: Refusal,
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
    #[error("QEMU does not take {id} out: {refusal}")]
    Stuck {
        /// The device.
        id: String,
        /// Why.
        refusal: Refusal,
    },
    /// The character device stays.
    #[error("QEMU does not give {chardev} free: {refusal}")]
    Kept {
        /// It.
        chardev: String,
        /// Why.
        refusal: Refusal,
    },
    /// The daemon is not there.
    #[error("QEMU cannot connect to {socket}: {refusal}")]
    NoDaemon {
        /// The daemon's socket.
        socket: String,
        /// Why.
        refusal: Refusal,
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
            Self::Stuck { .. } => {
                "put the device behind a PCIe root port (docs/balloon-vmms.md)".into()
            }
            Self::Kept { .. } => "check that no other device uses it".into(),
            Self::Connect { path, cause } if cause.kind() == io::ErrorKind::PermissionDenied => {
                format!(
                    "act as a user who may use it: `ls -l {}` tells who",
                    path.display()
                )
            }
            Self::NoDaemon { refusal, .. } if refusal.words.contains("Permission denied") => {
                "let QEMU's user connect: demeterd's --socket-group and --socket-mode".into()
            }
            Self::NoDaemon { .. } => {
                "start demeterd, then replug again with --socket and --bus".into()
            }
            Self::Flood => "see which events in QEMU's log; try again when they are fewer".into(),
            _ => "check the QMP socket and QEMU's log".into(),
        }
    }

    /// The call is at fault, not QEMU.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::NotABalloon { .. } | Self::Missing { .. })
    }
}
