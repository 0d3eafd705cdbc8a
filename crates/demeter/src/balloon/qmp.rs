// SPDX-License-Identifier: Apache-2.0 OR MIT
//! QEMU's machine protocol, interrupted by Ctrl-C.

use std::path::Path;

pub use demeter_qmp::{Place, Plug, Qmp, QmpError};

use crate::error::{Advice, Error};
use crate::interrupt;

/// Connects and ends the greeting.
pub fn connect(path: &Path) -> Result<Qmp, Error> {
    Ok(Qmp::connect(path, interrupt::raised)?)
}

/// A virtual machine monitor says no.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct MonitorError(QmpError);

impl Advice for MonitorError {
    fn next(&self) -> String {
        self.0.next()
    }
}

impl From<QmpError> for Error {
    fn from(error: QmpError) -> Self {
        match error {
            QmpError::Interrupted => Self::Interrupted,
            QmpError::Connect { path, cause } => Self::file("connect to", path, cause),
            error if error.is_usage() => Self::Usage {
                cause: error.to_string(),
                next: error.next(),
            },
            error => MonitorError(error).into(),
        }
    }
}
