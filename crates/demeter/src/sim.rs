// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter sim`: a record of accesses under other managers, parameters and machines.

use std::io::Write;
use std::path::PathBuf;

use clap::ValueEnum;
use demeter_agent::size;
use demeter_simulator::{Costs, Header, Manager, Params, Replayed, Report, Variant, replay};
use serde::Serialize;

use crate::error::Error;
use crate::table;
use crate::vm::{ACCESSES, DEMETER_SCALED, parse_pair};

/// Arguments of `sim`.
#[derive(clap::Args)]
pub struct Arguments {
    /// What `demeter vm record` has made: the directory, or the file in it
    #[arg(value_name = "RECORD")]
    record: PathBuf,
    /// Memory manager
    #[arg(long, value_enum, default_value_t = Tmm::Demeter)]
    tmm: Tmm,
    /// Fast memory that COMMAND can use [default: as recorded]
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    fmem: Option<u64>,
    /// Latency of slow memory, in nanoseconds [default: as recorded]
    #[arg(long, value_name = "NS", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    smem_latency: Option<u64>,
    /// Set a parameter of demeter.ko (see docs/abi), for example epoch_ms=100
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = parse_pair)]
    set: Vec<(String, String)>,
    /// One row for each value: of a parameter of demeter.ko, of fmem or of smem-latency
    #[arg(long, value_name = "NAME=V1,V2,...", value_parser = parse_pair)]
    sweep: Option<(String, String)>,
    /// Print all figures as JSON, with where the pages are in the end
    #[arg(long)]
    json: bool,
}

/// Who manages.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Tmm {
    /// First touch
    None,
    /// demeter.ko's decisions
    Demeter,
    /// The clairvoyant static placement
    Ideal,
}

#[derive(Serialize)]
struct Told<'a> {
    format: u32,
    command: &'a [String],
    recorded_s: f64,
    windows: u64,
    fills: u64,
    pages: u64,
    rows: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    #[serde(flatten)]
    report: &'a Report,
}

/// Carries the verb out.
pub fn execute(arguments: &Arguments) -> Result<u8, Error> {
    let path = if arguments.record.is_dir() {
        arguments.record.join(ACCESSES)
    } else {
        arguments.record.clone()
    };
    let (parameter, values) = sweep(arguments)?;
    let choose = |header: &Header| {
        (values.iter())
            .map(|value| variant(arguments, header, parameter.zip(*value)))
            .collect()
    };
    let mut replayed = replay(&path, choose).map_err(|cause| Error::Record {
        path: path.clone(),
        cause,
    })?;
    if arguments.tmm == Tmm::Ideal {
        replayed.reports.iter_mut().for_each(be_ideal);
    }
    let name = |value: &Option<&str>| match (parameter, value) {
        (Some(parameter), Some(value)) => format!("{parameter}={value}"),
        _ => (arguments.tmm.to_possible_value())
            .map_or_else(String::new, |value| value.get_name().to_owned()),
    };
    let names: Vec<String> = values.iter().map(name).collect();
    let shown = if arguments.json {
        told_json(&replayed, &names)?
    } else {
        render(&replayed, &names).into_bytes()
    };
    let _ = std::io::stdout().write_all(&shown);
    Ok(0)
}

/// What is swept, and its values; one row without any where nothing is.
fn sweep(arguments: &Arguments) -> Result<(Option<&str>, Vec<Option<&str>>), Error> {
    let Some((parameter, values)) = &arguments.sweep else {
        return Ok((None, vec![None]));
    };
    let values: Vec<_> = values.split(',').map(Some).collect();
    if values.len() > 256 {
        return Err(Error::Usage {
            cause: format!("--sweep has {} values", values.len()),
            next: "give at most 256 at a time".into(),
        });
    }
    Ok((Some(parameter), values))
}

fn variant(
    arguments: &Arguments,
    header: &Header,
    swept: Option<(&str, &str)>,
) -> Result<Variant, demeter_simulator::Error> {
    let mut params = Params::default();
    for (name, value) in DEMETER_SCALED {
        params.set(name, value)?;
    }
    for (name, value) in &arguments.set {
        params.set(name, value)?;
    }
    let mut fmem_bytes = arguments.fmem.unwrap_or(header.tier_bytes[0]);
    let mut machine = header.machine.clone();
    if let Some(ns) = arguments.smem_latency {
        machine.smem_latency_ps = ns * 1000;
    }
    let invalid = |name: &str, reason: String| demeter_simulator::Error::Parameter {
        name: name.to_owned(),
        reason,
    };
    match swept {
        None => {}
        Some((name @ "fmem", value)) => {
            fmem_bytes = size::parse(value).map_err(|error| invalid(name, error.to_string()))?;
        }
        Some((name @ "smem-latency", value)) => {
            machine.smem_latency_ps = (value.parse::<u64>().ok())
                .filter(|ns| (1..=1_000_000).contains(ns))
                .map(|ns| ns * 1000)
                .ok_or_else(|| invalid(name, format!("takes nanoseconds, not `{value}`")))?;
        }
        Some((name, value)) => params.set(name, value)?,
    }
    let manager = match arguments.tmm {
        Tmm::Demeter => Manager::Demeter(params, Costs::testbed(&machine)),
        Tmm::None | Tmm::Ideal => Manager::None,
    };
    Ok(Variant {
        fmem_bytes,
        machine,
        manager,
    })
}

/// The placement is known by what it gains; it moves nothing, and keeps no books.
fn be_ideal(report: &mut Report) {
    report.time_s = report.ideal_s.unwrap_or(report.time_s);
    report.ideal_share = report.ideal_share.map(|_| 1.0);
    report.fmem_share = None;
    report.fmem_share_last_quarter = None;
    report.placed.clear();
}

fn told_json(replayed: &Replayed, names: &[String]) -> Result<Vec<u8>, Error> {
    crate::vm::to_json(&Told {
        format: 1,
        command: &replayed.header.command,
        recorded_s: replayed.recorded_s,
        windows: replayed.windows,
        fills: replayed.fills,
        pages: replayed.pages,
        rows: (names.iter().zip(&replayed.reports))
            .map(|(name, report)| Row { name, report })
            .collect(),
    })
}

fn render(replayed: &Replayed, names: &[String]) -> String {
    let header = [
        "row", "time s", "none s", "ideal s", "ideal %", "FMEM %", "last¼ %", "samples", "epochs",
        "ranges", "promoted", "demoted", "digest",
    ];
    let rows: Vec<Vec<String>> = (names.iter().zip(&replayed.reports))
        .map(|(name, report)| {
            vec![
                name.clone(),
                table::number(Some(report.time_s), 3),
                table::number(report.none_s, 3),
                table::number(report.ideal_s, 3),
                table::percent(report.ideal_share, 1),
                table::percent(report.fmem_share, 1),
                table::percent(report.fmem_share_last_quarter, 1),
                report.samples.to_string(),
                report.epochs.to_string(),
                report.ranges.to_string(),
                report.promoted_pages.to_string(),
                report.demoted_pages.to_string(),
                report.digest.clone(),
            ]
        })
        .collect();
    format!(
        "{}: {:.3} s recorded, {} line fills of {} pages; times modelled\n\n{}",
        replayed.header.command.join(" "),
        replayed.recorded_s,
        replayed.fills,
        replayed.pages,
        table::render(&header, &rows)
    )
}
