// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter vm record`: a guest's line fills by page and time, for `demeter sim`.

use std::io::Write;
use std::path::PathBuf;

use demeter_machine::accesses::AccessesConfig;
use demeter_simulator::Header;
use serde::Serialize;

use super::figures;
use super::session::{self, Show};
use super::settings::{Options, Settings, Thp};
use super::tmm::Tmm;
use super::watch::ACCESSES;
use super::workplace::to_json;
use crate::error::Error;
use crate::progress::Board;
use crate::testbed::Testbed;

/// Loads that demeter.ko has sampled take so long at least (`guest/tmm/main.c`), unless
/// `--set` says otherwise: it is the one parameter that a record is made with.
pub const THRESHOLD_NS: u64 = 64;
const THRESHOLD: &str = "latency_threshold_ns";
/// As demeter.ko takes it (`guest/tmm/sysfs.c`).
const MOST_THRESHOLD_NS: u64 = 65_535;

/// Arguments of `vm record`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Results directory; the record is `accesses.bin` in it
    #[arg(value_name = "OUT")]
    out: PathBuf,
    #[command(flatten)]
    options: Options,
    /// Progress that is told apart, in milliseconds as if all fills came from FMEM
    #[arg(long, default_value_t = 10, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=1000))]
    window: u64,
    /// Print what was recorded as JSON
    #[arg(long)]
    json: bool,
    /// Program of the guest and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Serialize)]
struct Told {
    format: u32,
    record: PathBuf,
    bytes: u64,
    time_s: f64,
}

/// Carries the verb out.
pub fn execute(arguments: &Arguments) -> Result<u8, Error> {
    let options = &arguments.options;
    if options.sockets > 1 {
        return Err(Error::Usage {
            cause: "accesses are recorded of one socket, whose two nodes are the tiers".into(),
            next: "leave --sockets at 1".into(),
        });
    }
    let mut settings = options.settings(Tmm::None, &arguments.command)?;
    let window_ns = arguments.window * 1_000_000;
    let threshold_ns = threshold_ns(&options.set)?;
    settings.watch.accesses = Some(AccessesConfig {
        window_ns,
        threshold_ns,
        header: header(&settings, window_ns, threshold_ns)?,
    });
    let testbed = Testbed::load()?;
    let board = Board::new();
    let line = board.line("record");
    let show = Show {
        stream_output: !arguments.json,
        line: &line,
        total_work: None,
    };
    let finished = session::run(&testbed, &settings, &arguments.out, None, &show)
        .and_then(|finished| figures::must_succeed(Tmm::None, &settings, finished))?;
    drop(line);
    let record = finished.directory.join(ACCESSES);
    let bytes = std::fs::metadata(&record)
        .map_err(|cause| Error::file("read", &record, cause))?
        .len();
    let told = Told {
        format: 1,
        record,
        bytes,
        time_s: finished.summary.whole.time_s,
    };
    if arguments.json {
        let _ = std::io::stdout().write_all(&to_json(&told)?);
    } else {
        eprintln!(
            "demeter: recorded {:.3} s, modelled, in {} KiB: {}",
            told.time_s,
            told.bytes >> 10,
            told.record.display()
        );
    }
    Ok(0)
}

/// The threshold in force; the last one that is set counts, as elsewhere.
fn threshold_ns(set: &[(String, String)]) -> Result<u64, Error> {
    let Some((_, value)) = set.iter().rfind(|(name, _)| name == THRESHOLD) else {
        return Ok(THRESHOLD_NS);
    };
    (value.parse().ok())
        .filter(|ns| *ns <= MOST_THRESHOLD_NS)
        .ok_or_else(|| Error::Usage {
            cause: format!("--set {THRESHOLD}: `{value}` is no number of nanoseconds"),
            next: format!("give 0 to {MOST_THRESHOLD_NS}"),
        })
}

fn header(settings: &Settings, window_ns: u64, threshold_ns: u64) -> Result<String, Error> {
    let header = Header {
        command: settings.command.clone(),
        tier_bytes: settings.tier_bytes,
        node_bytes: settings.node_bytes,
        huge_pages: settings.thp == Thp::Always,
        window_ns,
        threshold_ns,
        machine: settings.machine.clone(),
    };
    serde_json::to_string(&header).map_err(|error| Error::Malformed {
        path: ACCESSES.into(),
        cause: error.to_string(),
    })
}
