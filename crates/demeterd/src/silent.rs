// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a disk that does not answer in time is to whoever waits for it.

use std::io;

/// The disk did not answer in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub struct Silent {
    /// What was asked for may be done yet, when the disk answers.
    pub may_be_done: bool,
}

impl std::fmt::Display for Silent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the disk under the state directory does not answer")?;
        if self.may_be_done {
            f.write_str(", and a restart may find it done all the same")?;
        }
        Ok(())
    }
}

impl Silent {
    /// That error is one.
    pub fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|error| error.is::<Self>())
    }
}

impl From<Silent> for io::Error {
    fn from(silent: Silent) -> Self {
        Self::new(io::ErrorKind::TimedOut, silent)
    }
}
