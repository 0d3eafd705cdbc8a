// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter balloon watch`.

use std::io::Write;

use clap::Args;
use demeter_balloon::view::VmView;

use super::client::{Client, ClientError};
use super::{Common, HEADER, rows};
use crate::error::Error;

/// Options.
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    common: Common,
    /// One guest; all without it
    vm: Option<String>,
    /// End after so many lines of the daemon
    #[arg(long, value_name = "N")]
    count: Option<u64>,
}

pub fn execute(arguments: &Arguments) -> Result<u8, Error> {
    let client = Client::new(&arguments.common.control)?;
    let mut out = std::io::stdout().lock();
    let mut left = arguments.count;
    if !arguments.common.json {
        let _ = writeln!(out, "{}", line(&HEADER.map(str::to_owned)));
    }
    client.lines("/v1/watch", |bytes| {
        let vm: VmView = serde_json::from_slice(bytes).map_err(ClientError::Line)?;
        if arguments.vm.as_ref().is_some_and(|name| *name != vm.name) {
            return Ok(true);
        }
        let written = if arguments.common.json {
            out.write_all(bytes).and_then(|()| out.write_all(b"\n"))
        } else {
            (rows(&vm).iter()).try_for_each(|row| writeln!(out, "{}", line(row)))
        };
        left = left.map(|left| left.saturating_sub(1));
        // Nobody reads any more: that is the usual end of a pipe.
        Ok(written.and_then(|()| out.flush()).is_ok() && left != Some(0))
    })?;
    Ok(0)
}

/// Lines come one by one, so columns have fixed widths.
fn line(cells: &[String]) -> String {
    let widths = [16, 6, 9, 9, 9, 9, 10, 0];
    let mut text = String::new();
    for (cell, width) in cells.iter().zip(widths) {
        text.push_str(&format!("{cell:<width$} "));
    }
    text.trim_end().to_owned()
}
