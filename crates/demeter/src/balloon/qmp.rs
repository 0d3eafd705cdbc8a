// SPDX-License-Identifier: Apache-2.0 OR MIT
//! QEMU's machine protocol, interrupted by Ctrl-C.

use std::path::Path;

pub use demeter_qmp::{Place, Plug, Qmp, QmpError};

use crate::error::Error;
use crate::interrupt;

/// Connects and ends the greeting.
pub fn connect(path: &Path) -> Result<Qmp, Error> {
    Ok(Qmp::connect(path, interrupt::raised)?)
}

impl From<QmpError> for Error {
    fn from(error: QmpError) -> Self {
        let (cause, next) = (error.to_string(), error.next());
        match error {
            QmpError::Interrupted => Self::Interrupted,
            QmpError::Connect { path, cause } => Self::file("connect to", path, cause),
            error if error.is_usage() => Self::Usage { cause, next },
            _ => Self::Daemon { cause, next },
        }
    }
}
