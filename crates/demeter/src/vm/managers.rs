// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter vm managers`: what may be given to `--tmm`, for people and for programs.

use std::io::Write as _;

use clap::ValueEnum as _;
use serde::Serialize;

use super::tmm::Tmm;
use super::workplace::to_json;
use crate::error::Error;
use crate::table;

/// Arguments of `vm managers`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A row of tables and results.
#[derive(Serialize)]
struct Manager {
    row: &'static str,
    about: &'static str,
    /// File name of the guest's module that it is, if it is one.
    module: Option<&'static str>,
    /// Somebody else's: its knobs are set by `--peer-set`.
    published: bool,
}

impl From<Tmm> for Manager {
    fn from(tmm: Tmm) -> Self {
        Self {
            row: tmm.row(),
            about: tmm.about(),
            module: tmm.module(),
            published: matches!(tmm, Tmm::Peer(_)),
        }
    }
}

/// Prints all of them, in the order of `--help`.
pub fn execute(arguments: &Arguments) -> Result<u8, Error> {
    let all: Vec<Manager> = (Tmm::value_variants().iter())
        .map(|&tmm| Manager::from(tmm))
        .collect();
    let text = if arguments.json {
        to_json(&all)?
    } else {
        // Columns but the first are set to the right, which no sentence is.
        let rows: Vec<_> = (all.iter())
            .map(|one| vec![format!("{:<16}{}", one.row, one.about)])
            .collect();
        table::render(&[&format!("{:<16}{}", "row", "is")], &rows).into_bytes()
    };
    let _ = std::io::stdout().write_all(&text);
    Ok(0)
}
