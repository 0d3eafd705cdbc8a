// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter vm run --vms` under a hypervisor that places pages: FMEM is one pool for all guests.
//!
//! Each guest is a process with a table of its own; they meet at equal distances of their modelled
//! clocks ([`demeter_machine::hypervisor::pool`]), so that runs are equal.

use std::path::Path;

use demeter_machine::HypervisorConfig;
use demeter_machine::config::StepConfig;
use demeter_machine::hypervisor::pool::MEETING_NS;
use demeter_machine::series::RowKind;
use serde::Serialize;

use super::balloon::Sizes;
use super::figures::{self, Job, Others, Row};
use super::fleet::{Fleet, Guest, INDEX_ENV, guests_table, tell};
use super::hypervisor;
use super::session::Finished;
use super::summary;
use super::workplace::{RamDir, RowsDir};
use crate::error::Error;
use crate::testbed::Testbed;

const MIB: u64 = 1 << 20;
const PAGE_BYTES: u64 = 4096;
const SERIES: &str = "series.jsonl";

#[derive(Serialize)]
struct Summary<'a> {
    tmm: &'a str,
    fmem_pool_bytes: u64,
    guests: Vec<Guest<'a>>,
}

/// Carries it out; `config` is that of each guest by itself.
pub fn execute(
    fleet: &Fleet<'_>,
    config: &HypervisorConfig,
    out: &Path,
    json: bool,
) -> Result<u8, Error> {
    let row = fleet.tmm.row();
    if fleet.options.policy.is_some() || fleet.options.policy_interval.is_some() {
        return Err(Error::Usage {
            cause: format!("{row} places the pages of all guests by itself"),
            next: "leave --policy and --policy-interval out".into(),
        });
    }
    let settings = fleet.guest.settings(fleet.tmm, fleet.command)?;
    let pool_bytes = (fleet.options.fmem_pool).unwrap_or(fleet.guest.fmem * fleet.vms);
    let config = HypervisorConfig {
        fmem_bytes: pool_bytes,
        ..config.clone()
    };
    config.validate().map_err(|error| Error::Usage {
        cause: format!("FMEM of all guests together: {error}"),
        next: "choose another --fmem-pool, or --fmem for each guest".into(),
    })?;
    let testbed = Testbed::load()?;
    let directory = RowsDir::create(out)?;
    let ram = RamDir::create(settings.node_bytes.iter().sum::<u64>() * fleet.vms)?;
    let meetings = ram.file("meetings", fleet.vms * 8)?;
    let jobs: Vec<Job> = (0..fleet.vms)
        .map(|index| {
            let mut settings = settings.clone();
            settings.env.insert(INDEX_ENV.into(), index.to_string());
            settings.hypervisor = Some(config.of_guest(index, fleet.vms));
            settings.pool = Some(StepConfig {
                path: meetings.clone(),
                index: index as usize,
                guests: fleet.vms as usize,
                window_ns: MEETING_NS,
            });
            Job {
                name: format!("vm{index}"),
                seat: None,
                tmm: fleet.tmm,
                settings,
                part: None,
            }
        })
        .collect();
    let finished = figures::run_all(&testbed, &jobs, jobs.len(), out, None, Others::Stop)?
        .into_iter()
        .collect::<Result<Vec<Finished>, Error>>()?;
    let guests = (jobs.iter().zip(&finished))
        .map(|(job, finished)| {
            Ok(Guest {
                name: &job.name,
                row: Row::new(&finished.summary, job.tmm, None),
                fmem: fmem(&finished.directory)?,
            })
        })
        .collect::<Result<Vec<_>, Error>>()?;
    let summary = Summary {
        tmm: row,
        fmem_pool_bytes: config.pool_bytes(),
        guests,
    };
    tell(&summary, directory, json, render)
}

/// What a guest had of the pool while it was measured.
fn fmem(results: &Path) -> Result<Option<Sizes>, Error> {
    let path = results.join(SERIES);
    let bytes = std::fs::read(&path).map_err(|cause| Error::file("read", &path, cause))?;
    let rows = summary::parse(&bytes).map_err(|error| Error::Malformed {
        path,
        cause: error.to_string(),
    })?;
    let sizes = || {
        let measured = rows.iter().filter(|row| row.kind != RowKind::On);
        measured.map(|row| row.counters.hypervisor.fmem_pages * PAGE_BYTES)
    };
    Ok(match (sizes().min(), sizes().max(), sizes().next_back()) {
        (Some(least_bytes), Some(most_bytes), Some(last_bytes)) => Some(Sizes {
            least_bytes,
            most_bytes,
            last_bytes,
        }),
        _ => None,
    })
}

fn render(summary: &Summary<'_>) -> String {
    let hosts =
        (summary.guests.iter()).filter_map(|guest| Some((guest.name, guest.row.hypervisor?)));
    format!(
        "{}, one pool of {} MiB of FMEM; times modelled\n\n{}\n{}",
        summary.tmm,
        summary.fmem_pool_bytes / MIB,
        guests_table(&summary.guests),
        hypervisor::render(hosts)
    )
}
