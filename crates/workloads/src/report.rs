// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Outcomes as lines of JSON.

use std::io::Write;

use serde::Serialize;

use crate::Error;

/// Prints one object on a line of its own, at once.
pub fn line(out: &mut impl Write, row: &impl Serialize) -> Result<(), Error> {
    serde_json::to_writer(&mut *out, row).map_err(std::io::Error::from)?;
    writeln!(out)?;
    out.flush()?;
    Ok(())
}
