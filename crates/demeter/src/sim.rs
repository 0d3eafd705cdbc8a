// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter sim`: a record of accesses under other managers, parameters and machines.

mod host;
mod peers;
mod pool;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use demeter_agent::size;
use demeter_machine::MachineConfig;
use demeter_simulator::{Costs, Header, Manager, Params, Replayed, Report, Variant, replay};
use serde::Serialize;

use crate::error::Error;
use crate::table;
use crate::vm::{ACCESSES, DEMETER_SCALED, Peer, Slow, parse_pair};

/// Guests of a host draw by `seed << GUEST_BITS` and their numbers.
const GUEST_BITS: u32 = 10;
const _: () = assert!(host::MOST_GUESTS <= 1 << GUEST_BITS);
/// The simulator's seeds have 32 bits.
const MOST_SEED: u64 = 999_999;

/// Arguments of `sim`.
#[derive(clap::Args)]
pub struct Arguments {
    /// What `demeter vm record` has made: the directory, or the file in it; several share a host
    #[arg(value_name = "RECORD", required = true)]
    record: Vec<PathBuf>,
    #[command(flatten)]
    hosting: host::Options,
    /// Memory manager
    #[arg(long, value_enum, default_value_t = Tmm::Demeter)]
    tmm: Tmm,
    /// Fast memory that COMMAND can use [default: as recorded]
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    fmem: Option<u64>,
    /// Kind of slow memory, its latency and bandwidth [default: as recorded]
    #[arg(long, value_enum)]
    slow: Option<Slow>,
    /// Latency of slow memory, in nanoseconds [default: as recorded]
    #[arg(long, value_name = "NS", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    smem_latency: Option<u64>,
    /// Set a parameter of demeter.ko (see docs/abi), for example epoch_ms=100
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = parse_pair)]
    set: Vec<(String, String)>,
    /// Set a number of a published manager, as of `vm run`, for example hemem.period=10007
    #[arg(long = "peer-set", value_name = "ROW.NAME=VALUE", value_parser = parse_pair)]
    peer_set: Vec<(String, String)>,
    /// One row for each value: of a parameter of the manager, of fmem or of smem-latency
    #[arg(long, value_name = "NAME=V1,V2,...", value_parser = parse_pair)]
    sweep: Option<(String, String)>,
    /// Draw other samples: other seeds show how far a row depends on chance
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=MOST_SEED))]
    seed: u64,
    /// Print all figures as JSON, with where the pages are in the end
    #[arg(long)]
    json: bool,
}

/// Who manages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tmm {
    None,
    Demeter,
    Ideal,
    /// A published manager: a hypervisor that places the pages of all guests, or a module.
    Peer(Peer),
}

static TMMS: LazyLock<Vec<Tmm>> = LazyLock::new(|| {
    let peers = Peer::all().filter(|&peer| peer.module().is_none() || peers::are_played(peer));
    let own = [Tmm::None, Tmm::Demeter, Tmm::Ideal];
    own.into_iter().chain(peers.map(Tmm::Peer)).collect()
});

impl ValueEnum for Tmm {
    fn value_variants<'a>() -> &'a [Self] {
        &TMMS
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, about) = match self {
            Self::None => ("none", "First touch"),
            Self::Demeter => ("demeter", "demeter.ko's decisions"),
            Self::Ideal => ("ideal", "The clairvoyant static placement"),
            Self::Peer(peer) => (peer.row(), peer.about()),
        };
        Some(PossibleValue::new(name).help(about))
    }
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
    if let Tmm::Peer(peer) = arguments.tmm {
        if peer.module().is_none() {
            return pool::execute(arguments, peer);
        }
        peers::check(arguments, peer)?;
    }
    if arguments.hosting.are_given(arguments.record.len()) {
        return host::execute(arguments);
    }
    let path = file_of(&arguments.record[0]);
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

/// The record in a directory, or itself.
fn file_of(record: &Path) -> PathBuf {
    if record.is_dir() {
        record.join(ACCESSES)
    } else {
        record.to_owned()
    }
}

/// Prints what came of it, for programs or for people.
fn show<T: Serialize>(
    arguments: &Arguments,
    told: &T,
    render: impl FnOnce(&T) -> String,
) -> Result<u8, Error> {
    let shown = if arguments.json {
        crate::vm::to_json(told)?
    } else {
        render(told).into_bytes()
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

/// The recorded machine, less what is to differ.
fn machine_of(arguments: &Arguments, header: &Header) -> MachineConfig {
    let mut machine = header.machine.clone();
    if let Some(slow) = arguments.slow {
        slow.put_into(&mut machine);
    }
    if let Some(ns) = arguments.smem_latency {
        machine.smem_latency_ps = ns * 1000;
    }
    machine
}

fn variant(
    arguments: &Arguments,
    header: &Header,
    swept: Option<(&str, &str)>,
) -> Result<Variant, demeter_simulator::Error> {
    let mut params = Params::default();
    let mut own = None;
    for (name, value) in DEMETER_SCALED {
        params.set(name, value)?;
    }
    for (name, value) in &arguments.set {
        params.set(name, value)?;
    }
    let mut fmem_bytes = arguments.fmem.unwrap_or(header.tier_bytes[0]);
    let mut machine = machine_of(arguments, header);
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
        Some(pair) if matches!(arguments.tmm, Tmm::Peer(_)) => own = Some(pair),
        Some((name, value)) => params.set(name, value)?,
    }
    let costs = Costs::testbed(&machine);
    let manager = match arguments.tmm {
        Tmm::Demeter => Manager::Demeter(params, costs),
        Tmm::Peer(peer) => {
            peers::check_record(peer, header)?;
            peers::manager(peer, &arguments.peer_set, own, costs)?
        }
        Tmm::None | Tmm::Ideal => Manager::None,
    };
    Ok(Variant {
        fmem_bytes,
        machine,
        manager,
        seed: arguments.seed << GUEST_BITS,
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
        "ranges", "promoted", "demoted", "stops", "digest",
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
                report.stops.to_string(),
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
