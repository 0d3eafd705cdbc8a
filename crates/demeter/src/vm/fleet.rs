// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter vm run --vms`: several guests of one command share the host's FMEM,
//! which a policy of one daemon divides while they run.
//!
//! All begin with --fmem and --smem; the policy begins when all are measured. What
//! a guest loses of FMEM it gains of SMEM. Guests run side by side on the host, each
//! with a modelled clock of its own; these are kept in step, and the policy decides
//! by them. What is left to the host's clock is how long a guest waits for the
//! daemon's answers, so that runs are alike and not equal.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use clap::builder::PossibleValuesParser;
use demeter_agent::size;
use demeter_balloon::view::{PolicyClock, PolicyView};
use demeter_machine::config::StepConfig;
use serde::Serialize;

use super::balloon::{Daemon, Seat, Sizes, Together};
use super::figures::{self, Job, Others, Row};
use super::session::Finished;
use super::settings::{self, Settings};
use super::sizing::Method;
use super::tmm::Tmm;
use super::workplace::{RamDir, RowsDir, to_json};
use crate::error::Error;
use crate::table;
use crate::testbed::Testbed;

/// Tells COMMAND which guest it is in, from 0 on.
pub const INDEX_ENV: &str = "DEMETER_VM";
/// Who divides FMEM unless somebody is named, and how often.
const POLICY: &str = "guaranteed";
const POLICY_INTERVAL_MS: u64 = 100;
/// Modelled time that a guest may be ahead of another: far below any epoch, far
/// above what waiting for each other costs the host.
const STEP_WINDOW_NS: u64 = 2_000_000;
/// A guest keeps this part of --fmem whatever the policy says.
const FLOOR: u64 = 4;
const MIB: u64 = 1 << 20;

/// Options of several guests.
#[derive(clap::Args, Debug, Clone)]
#[group(id = "fleet")]
pub struct Options {
    /// Run COMMAND in so many guests at once, which share FMEM; DEMETER_VM tells it which it is in
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=16))]
    pub vms: Option<u64>,
    /// Who divides FMEM among the guests; none where a hypervisor places pages [default: guaranteed]
    #[arg(
        long,
        requires = "vms",
        value_parser = PossibleValuesParser::new(["static", "proportional", "guaranteed", "pressure", "working-set"])
    )]
    pub policy: Option<String>,
    /// FMEM that is divided [default: --fmem for each guest]
    #[arg(long, requires = "vms", value_name = "SIZE", value_parser = size::parse)]
    pub fmem_pool: Option<u64>,
    /// Modelled time between the policy's decisions; statistics come every 100 ms [default: 100]
    #[arg(
        long,
        requires = "vms",
        value_name = "MS",
        value_parser = clap::value_parser!(u64).range(10..=3_600_000)
    )]
    pub policy_interval: Option<u64>,
}

/// What is run.
pub struct Fleet<'a> {
    /// How many guests.
    pub vms: u64,
    /// How they share.
    pub options: &'a Options,
    /// What each is made of.
    pub guest: &'a settings::Options,
    /// Their manager.
    pub tmm: Tmm,
    /// Program and arguments.
    pub command: &'a [String],
}

/// A guest in `summary.json`.
#[derive(Serialize)]
pub struct Guest<'a> {
    /// Of its results, too.
    pub name: &'a str,
    /// Its figures.
    pub row: Row,
    /// What COMMAND could have of FMEM, or had where a hypervisor places pages; the kernel's share
    /// left out.
    pub fmem: Option<Sizes>,
}

#[derive(Serialize)]
struct Summary<'a> {
    policy: &'a str,
    fmem_pool_bytes: u64,
    /// In modelled time.
    policy_interval_ms: u64,
    /// Below this no guest gets, COMMAND's part.
    fmem_floor_bytes: u64,
    /// What the kernel has of FMEM beside COMMAND's part.
    kernel_bytes: u64,
    guests: Vec<Guest<'a>>,
}

/// Carries it out.
pub fn execute(fleet: &Fleet<'_>, out: &Path, json: bool) -> Result<u8, Error> {
    let mut options = fleet.guest.clone();
    match options.balloon {
        Method::None => options.balloon = Method::Demeter,
        Method::Demeter => {}
        Method::Virtio | Method::VirtioMem => {
            return Err(Error::Usage {
                cause: "--vms divides FMEM with Demeter's balloon only".into(),
                next: "leave --balloon out".into(),
            });
        }
    }
    if fleet.tmm.ideal_order().is_some() {
        return Err(Error::Usage {
            cause: "a clairvoyant placement is for a single guest".into(),
            next: "leave out --vms, or choose another --tmm".into(),
        });
    }
    let settings = options.settings(fleet.tmm, fleet.command)?;
    let pool_bytes = (fleet.options.fmem_pool).unwrap_or(options.fmem * fleet.vms);
    let least_bytes = options.fmem * fleet.vms;
    if pool_bytes < least_bytes {
        return Err(Error::Usage {
            cause: "--fmem-pool is less than --fmem for each guest".into(),
            next: format!("give at least {}", size::format(least_bytes)),
        });
    }
    let testbed = Testbed::load()?;
    let directory = RowsDir::create(out)?;
    let ram = RamDir::create(settings.node_bytes.iter().sum::<u64>() * fleet.vms)?;
    let kernel_bytes = kernel_bytes(&settings);
    let policy_name = fleet.options.policy.as_deref().unwrap_or(POLICY);
    let policy_interval_ms = (fleet.options.policy_interval).unwrap_or(POLICY_INTERVAL_MS);
    let policy = PolicyView {
        name: policy_name.to_owned(),
        fmem_pool_bytes: pool_bytes + fleet.vms * kernel_bytes,
        interval_ms: policy_interval_ms,
        clock: PolicyClock::Guests,
    };
    let clocks = ram.file("clocks", fleet.vms * 8)?;
    let step = |index: u64| StepConfig {
        path: clocks.clone(),
        index: index as usize,
        guests: fleet.vms as usize,
        window_ns: STEP_WINDOW_NS,
    };
    let together = Arc::new(Together {
        waiting: AtomicU64::new(fleet.vms),
        policy,
    });
    let jobs = (0..fleet.vms)
        .map(|index| job(index, step(index), &settings, fleet.tmm, &ram, &together))
        .collect::<Result<Vec<Job>, Error>>()?;
    let seats: Vec<Arc<Seat>> = jobs.iter().filter_map(|job| job.seat.clone()).collect();
    let daemon = Daemon::start(&seats, &out.join("balloon.log"))?;
    let finished = figures::run_all(&testbed, &jobs, jobs.len(), out, None, Others::Stop)?
        .into_iter()
        .collect::<Result<Vec<Finished>, Error>>()?;
    drop(daemon);
    let guests = jobs
        .iter()
        .zip(&finished)
        .map(|(job, finished)| guest(job, finished, kernel_bytes))
        .collect();
    let summary = Summary {
        policy: policy_name,
        fmem_pool_bytes: pool_bytes,
        policy_interval_ms,
        fmem_floor_bytes: settings.tier_bytes[0] / FLOOR,
        kernel_bytes,
        guests,
    };
    tell(&summary, directory, json, render)
}

/// Keeps what came of several guests, and shows it.
pub fn tell<S: Serialize>(
    summary: &S,
    directory: RowsDir,
    json: bool,
    render: impl FnOnce(&S) -> String,
) -> Result<u8, Error> {
    let text = to_json(summary)?;
    directory.finish("summary.json", &text)?;
    let shown = if json {
        text
    } else {
        render(summary).into_bytes()
    };
    let _ = std::io::stdout().write_all(&shown);
    Ok(0)
}

/// FMEM that is there for the kernel, beyond --fmem.
fn kernel_bytes(settings: &Settings) -> u64 {
    let taken = (settings.balloon.as_ref()).map_or(0, |balloon| balloon.taken_bytes[0]);
    settings.node_bytes[0] - taken - settings.tier_bytes[0]
}

fn job(
    index: u64,
    step: StepConfig,
    settings: &Settings,
    tmm: Tmm,
    ram: &RamDir,
    together: &Arc<Together>,
) -> Result<Job, Error> {
    let name = format!("vm{index}");
    let mut settings = settings.clone();
    settings.env.insert(INDEX_ENV.into(), index.to_string());
    let taken: u64 = (settings.balloon.iter())
        .flat_map(|balloon| balloon.taken_bytes)
        .sum();
    let memory = settings.node_bytes.iter().sum::<u64>() - taken;
    let floor = kernel_bytes(&settings) + settings.tier_bytes[0] / FLOOR;
    let node = |node: usize| ram.memory(&format!("{name}-node{node}"), settings.node_bytes[node]);
    let seat = Seat {
        socket: ram.join(&name),
        nodes: [node(0)?, node(1)?],
        keys: format!(",memory={memory},fmem-floor={floor}"),
        control: ram.join("control"),
        together: Some(together.clone()),
        told: AtomicBool::new(false),
        step: Some(step),
        name: name.clone(),
    };
    Ok(Job {
        name,
        seat: Some(Arc::new(seat)),
        tmm,
        settings,
        part: None,
    })
}

fn guest<'a>(job: &'a Job, finished: &Finished, kernel_bytes: u64) -> Guest<'a> {
    let fmem = finished.fmem.map(|sizes| Sizes {
        least_bytes: sizes.least_bytes.saturating_sub(kernel_bytes),
        most_bytes: sizes.most_bytes.saturating_sub(kernel_bytes),
        last_bytes: sizes.last_bytes.saturating_sub(kernel_bytes),
    });
    Guest {
        name: &job.name,
        row: Row::new(&finished.summary, job.tmm, None),
        fmem,
    }
}

fn render(summary: &Summary<'_>) -> String {
    format!(
        "policy {}, {} MiB of FMEM; times modelled\n\n{}",
        summary.policy,
        summary.fmem_pool_bytes / MIB,
        guests_table(&summary.guests)
    )
}

/// A line for each guest.
pub fn guests_table(guests: &[Guest<'_>]) -> String {
    let cells: Vec<Vec<String>> = (guests.iter())
        .map(|guest| {
            let millions = |rate: Option<f64>| table::number(rate.map(|rate| rate * 1e-6), 3);
            let mib = |of: fn(&Sizes) -> u64| {
                (guest.fmem.as_ref()).map_or("-".into(), |sizes| (of(sizes) / MIB).to_string())
            };
            vec![
                guest.name.to_owned(),
                format!("{:.3}", guest.row.time_s),
                table::number(guest.row.spare_time_s, 3),
                millions(guest.row.updates_per_s),
                millions(guest.row.updates_per_s_last_quarter),
                table::percent(guest.row.fmem_share, 1),
                mib(|sizes| sizes.least_bytes),
                mib(|sizes| sizes.most_bytes),
                mib(|sizes| sizes.last_bytes),
            ]
        })
        .collect();
    let header = [
        "guest",
        "time s",
        "spare s",
        "M/s",
        "M/s last¼",
        "FMEM %",
        "FMEM MiB least",
        "most",
        "at the end",
    ];
    table::render(&header, &cells)
}
