// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What ends the daemon before it serves anybody. Later failures belong to one
//! virtual machine or to one call of the interface, and are told there.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::lock::LockError;
use crate::policy::PolicyError;
use crate::silent::Silent;
use crate::sockets::SocketError;
use crate::spec::SpecError;
use crate::token::TokenError;

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
    /// Another daemon has the state.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A socket cannot be listened on.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Metrics cannot be served.
    #[error("cannot listen on {address} for metrics: {cause}")]
    Metrics {
        /// Where.
        address: SocketAddr,
        /// The system's words.
        cause: io::Error,
    },
    /// The page cannot be served.
    #[error("cannot listen on {address} for the page: {cause}")]
    Web {
        /// Where.
        address: SocketAddr,
        /// The system's words.
        cause: io::Error,
    },
    /// Nobody could be admitted to the page.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// A machine is not described well.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A policy cannot decide.
    #[error(transparent)]
    Policy(#[from] PolicyError),
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

    /// The disk under the state directory does not answer.
    pub fn is_silence(&self) -> bool {
        matches!(self, Self::File { cause, .. } if Silent::is(cause))
    }

    /// What the operator should do.
    pub fn next(&self) -> String {
        match self {
            Self::Usage { next, .. } => next.clone(),
            Self::Spec(_) => "see the configuration file in docs/balloon-operation.md".into(),
            Self::Policy(error) => error.next(),
            Self::File { .. } if self.is_silence() => {
                "look after the state directory and its disk".into()
            }
            Self::File { .. } => "check the path and its permissions".into(),
            Self::Lock(error) => error.next().into(),
            Self::Socket(error) => error.next().into(),
            Self::Metrics { cause, .. } => {
                next_address(cause, "[metrics]", "demeterd-metrics.conf")
            }
            Self::Web { cause, .. } => next_address(cause, "[web]", "demeterd-web.conf"),
            Self::Token(error) => error.next(),
            Self::System { .. } => "check the limits of this process".into(),
        }
    }

    /// Exit status of the process.
    pub fn status(&self) -> u8 {
        match self {
            Self::Usage { .. } | Self::Spec(_) | Self::Policy(_) => 2,
            _ => 1,
        }
    }
}

fn next_address(cause: &io::Error, section: &str, unit: &str) -> String {
    match cause.kind() {
        io::ErrorKind::AddrInUse => format!("choose another port for {section} listen"),
        io::ErrorKind::AddrNotAvailable => "choose an address of this host".into(),
        _ => format!("let the service use the network: packaging/monitoring/{unit}"),
    }
}
