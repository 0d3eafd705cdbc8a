// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter vm compare`: COMMAND under several managers, one table.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use serde::Serialize;

use super::figures::{self, Job, Row};
use super::session::{self, Finished};
use super::settings::Options;
use super::tmm::Tmm;
use super::workplace::refuse_foreign;
use crate::error::Error;
use crate::testbed::Testbed;

/// Arguments of `vm compare`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Memory managers, separated by commas
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "none,tpp,tpp-tuned,demeter,fast"
    )]
    tmm: Vec<Tmm>,
    /// Guests at a time
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=64))]
    jobs: u64,
    #[command(flatten)]
    options: Options,
    /// Results directory
    #[arg(long, default_value = "out/compare", value_name = "DIR")]
    out: PathBuf,
    /// Print the table as JSON
    #[arg(long)]
    json: bool,
    /// Program of the guest and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Serialize)]
struct Comparison<'a> {
    format: u32,
    command: &'a [String],
    digest: String,
    rows: BTreeMap<&'static str, Row>,
}

/// Carries the verb out.
pub fn execute(arguments: &Arguments) -> Result<u8, Error> {
    let mut managers: Vec<Tmm> = Vec::new();
    for &tmm in &arguments.tmm {
        if !managers.contains(&tmm) {
            managers.push(tmm);
        }
    }
    let jobs = managers
        .iter()
        .map(|&tmm| {
            Ok(Job {
                tmm,
                settings: arguments.options.settings(tmm, &arguments.command)?,
            })
        })
        .collect::<Result<Vec<Job>, Error>>()?;
    let testbed = Testbed::load()?;
    refuse_foreign(&arguments.out)?;
    let finished = figures::run_all(
        &testbed,
        &jobs,
        arguments.jobs as usize,
        &arguments.out,
        None,
    )?;
    let rows = rows(&managers, &finished);
    let comparison = Comparison {
        format: 1,
        command: &arguments.command,
        digest: digest(&finished),
        rows: rows
            .iter()
            .map(|(tmm, row)| (tmm.row(), row.clone()))
            .collect(),
    };
    let text = session::to_json(&comparison)?;
    write_atomically(&arguments.out.join("compare.json"), &text)?;
    let shown = if arguments.json {
        text
    } else {
        figures::render(&rows).into_bytes()
    };
    let _ = std::io::stdout().write_all(&shown);
    Ok(0)
}

/// The rows of finished runs, in order.
pub fn rows(managers: &[Tmm], finished: &[Finished]) -> Vec<(Tmm, Row)> {
    let none = managers
        .iter()
        .position(|&tmm| tmm == Tmm::None)
        .and_then(|index| finished.get(index))
        .map(|finished| &finished.summary);
    managers
        .iter()
        .zip(finished)
        .map(|(&tmm, finished)| (tmm, Row::new(&finished.summary, tmm, none)))
        .collect()
}

/// One digest over all runs.
pub fn digest(finished: &[Finished]) -> String {
    crate::digest::sha256_of(
        finished
            .iter()
            .flat_map(|finished| [finished.summary.tmm, &finished.summary.digest])
            .map(str::as_bytes),
    )
}

/// Writes a file under another name first.
pub fn write_atomically(path: &std::path::Path, content: &[u8]) -> Result<(), Error> {
    let mut building = path.as_os_str().to_owned();
    building.push(format!(".tmp-{}", std::process::id()));
    let building = PathBuf::from(building);
    std::fs::write(&building, content)
        .and_then(|()| std::fs::rename(&building, path))
        .map_err(|cause| {
            let _ = std::fs::remove_file(&building);
            Error::file("write", path, cause)
        })
}
