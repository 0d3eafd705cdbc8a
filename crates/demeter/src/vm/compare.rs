// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter vm compare`: COMMAND under several managers, one table.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::figures::{self, Job, Others, Row};
use super::session::Finished;
use super::settings::Options;
use super::tmm::Tmm;
use super::workplace::{RowsDir, to_json};
use super::{hypervisor, ideal};
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
        default_value = "none,nbt-default,nbt,damon,demeter,fast"
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
    /// Why a row is not there.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    failed: BTreeMap<&'static str, String>,
}

/// Carries the verb out.
pub fn execute(arguments: &Arguments) -> Result<u8, Error> {
    let mut managers: Vec<Tmm> = Vec::new();
    for &tmm in &arguments.tmm {
        if !managers.contains(&tmm) {
            managers.push(tmm);
        }
    }
    // What a placement is chosen by, and compared with.
    if managers.iter().any(|tmm| tmm.ideal_order().is_some()) && !managers.contains(&Tmm::None) {
        managers.insert(0, Tmm::None);
    }
    let results = run_managers(
        &arguments.options,
        &managers,
        &arguments.command,
        arguments.jobs,
        &arguments.out,
        None,
        Others::GoOn,
    )?;
    let (rows, finished, failed) = (results.rows, results.finished, results.failed);
    let comparison = Comparison {
        format: 1,
        command: &arguments.command,
        digest: digest(&finished),
        rows: by_name(&rows),
        failed: (failed.iter())
            .map(|(tmm, error)| (tmm.row(), error.to_string()))
            .collect(),
    };
    let text = to_json(&comparison)?;
    // Who finds it there need not do the comparison again.
    if failed.is_empty() {
        results.directory.finish("compare.json", &text)?;
    }
    let shown = if arguments.json {
        text
    } else {
        let hosts = hypervisor::render(
            (rows.iter()).filter_map(|(tmm, row)| Some((tmm.row(), row.hypervisor?))),
        );
        let hosts_gap = if hosts.is_empty() { "" } else { "\n" };
        let table = figures::render(&rows, &failed) + &figures::render_unequal(&finished);
        let table = format!("{table}{hosts_gap}{hosts}");
        let placements = ideal::render(&rows);
        let gap = if placements.is_empty() { "" } else { "\n" };
        format!("{table}{gap}{placements}").into_bytes()
    };
    let _ = std::io::stdout().write_all(&shown);
    told(failed, managers.len())
}

/// The exit status, or the error that tells each row that failed.
fn told(failed: Vec<(Tmm, Error)>, rows: usize) -> Result<u8, Error> {
    let mut failed: Vec<(String, Error)> = (failed.into_iter())
        .map(|(tmm, error)| (tmm.row().to_owned(), error))
        .collect();
    match (failed.pop(), rows) {
        (None, _) => Ok(0),
        (Some((_, error)), 1) => Err(error),
        (Some(last), _) => {
            failed.push(last);
            Err(Error::Rows { failed, rows })
        }
    }
}

/// A row for each manager, in the order asked for.
pub type Rows = Vec<(Tmm, Row)>;

/// What runs under several managers came to.
pub struct Results {
    /// A row for each that finished.
    pub rows: Rows,
    /// The runs themselves.
    pub finished: Vec<Finished>,
    /// The others.
    pub failed: Vec<(Tmm, Error)>,
    /// Where they are, not summed up yet.
    pub directory: RowsDir,
}

/// Runs COMMAND under each manager, `parallel` guests at a time, each into
/// `out/<row>`; the rows are in the order of `managers`.
pub fn run_managers(
    options: &Options,
    managers: &[Tmm],
    command: &[String],
    parallel: u64,
    out: &Path,
    total_work: Option<u64>,
    others: Others,
) -> Result<Results, Error> {
    // Those that wait for a recording come after it.
    let mut order: Vec<usize> = (0..managers.len()).collect();
    order.sort_by_key(|&at| managers[at].ideal_order().is_some());
    let parts = ideal::parts(managers);
    let jobs = order
        .iter()
        .map(|&at| {
            let tmm = managers[at];
            Ok(Job {
                name: tmm.row().to_owned(),
                seat: None,
                tmm,
                settings: options.settings(tmm, command)?,
                part: parts[at].clone(),
            })
        })
        .collect::<Result<Vec<Job>, Error>>()?;
    let testbed = Testbed::load()?;
    let directory = RowsDir::create(out)?;
    let ended = figures::run_all(&testbed, &jobs, parallel as usize, out, total_work, others)?;
    let mut ended: Vec<_> = order.into_iter().zip(ended).collect();
    ended.sort_by_key(|&(at, _)| at);
    let (mut finished, mut failed) = (Vec::new(), Vec::new());
    for (at, outcome) in ended {
        match outcome {
            Ok(one) => finished.push((managers[at], one)),
            Err(error) => failed.push((managers[at], error)),
        }
    }
    Ok(Results {
        rows: rows(&finished),
        finished: finished.into_iter().map(|(_, one)| one).collect(),
        failed,
        directory,
    })
}

/// The rows as results name them.
pub fn by_name(rows: &[(Tmm, Row)]) -> BTreeMap<&'static str, Row> {
    rows.iter()
        .map(|(tmm, row)| (tmm.row(), row.clone()))
        .collect()
}

/// The rows of finished runs, in order.
fn rows(finished: &[(Tmm, Finished)]) -> Rows {
    let none = (finished.iter())
        .find(|(tmm, _)| *tmm == Tmm::None)
        .map(|(_, finished)| &finished.summary);
    let mut rows: Rows = (finished.iter())
        .map(|(tmm, finished)| (*tmm, Row::new(&finished.summary, *tmm, none)))
        .collect();
    ideal::fill_shares(&mut rows);
    rows
}

/// One digest over all runs that finished.
pub fn digest(finished: &[Finished]) -> String {
    crate::digest::sha256_of(
        finished
            .iter()
            .flat_map(|finished| [finished.summary.tmm, &finished.summary.digest])
            .map(str::as_bytes),
    )
}
