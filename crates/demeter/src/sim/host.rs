// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several guests of `demeter sim` on one host.

use std::path::PathBuf;

use demeter_agent::size;
use demeter_policy::{EXTERNAL, by_name};
use demeter_simulator::{Header, Host, Player, Report, Stay, Tenant, host};
use serde::Serialize;

use super::{Arguments, Tmm, file_of, show, variant};
use crate::error::Error;
use crate::table;

/// Most guests: each keeps a file open.
pub const MOST_GUESTS: u64 = 1000;

/// How guests share a host.
#[derive(clap::Args)]
#[group(id = "hosting")]
pub struct Options {
    /// Guests on one host; they take the records in turn [default: one for each record]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MOST_GUESTS))]
    guests: Option<u64>,
    /// Each guest comes so much later than the one before
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=3_600_000))]
    stagger: u64,
    /// Policy of demeterd that divides FMEM between guests [default: static]
    #[arg(long, value_name = "NAME")]
    pub policy: Option<String>,
    /// FMEM that is divided [default: what each guest was recorded with, or --fmem, together]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    fmem_pool: Option<u64>,
    /// Least FMEM of a guest
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = size::parse)]
    fmem_floor: u64,
    /// Most FMEM of a guest [default: all of its memory]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    fmem_ceiling: Option<u64>,
    /// Modelled time between the policy's decisions
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(10..=3_600_000))]
    policy_interval: u64,
}

impl Options {
    /// Whether guests share a host.
    pub fn are_given(&self, records: usize) -> bool {
        records > 1 || self.guests.is_some() || self.policy.is_some() || self.fmem_pool.is_some()
    }
}

#[derive(Serialize)]
struct Told<'a> {
    format: u32,
    policy: &'a str,
    fmem_pool_bytes: u64,
    host: Sum,
    guests: Vec<Guest<'a>>,
}

/// Of all guests together.
#[derive(Serialize)]
struct Sum {
    /// Until the last has ended.
    time_s: f64,
    /// Geometric mean over guests of first touch's time, in an equal part of the pool, by theirs.
    gain: Option<f64>,
    /// FMEM that guests had, on the mean while they were there, by the pool.
    fmem_share_of_pool: f64,
    promoted_pages: u64,
    demoted_pages: u64,
    evacuated_pages: u64,
    resizes: u64,
    /// Slowest by quickest of the guests of one record, the worst of all records.
    spread: f64,
}

#[derive(Serialize)]
struct Guest<'a> {
    name: String,
    record: &'a PathBuf,
    start_s: f64,
    end_s: f64,
    fmem_bytes: f64,
    fmem_least_bytes: u64,
    fmem_most_bytes: u64,
    resizes: u64,
    gain: Option<f64>,
    #[serde(flatten)]
    report: &'a Report,
}

/// Who comes to a host, and to how much FMEM.
pub struct Shared {
    /// The guests.
    pub tenants: Vec<Tenant>,
    /// FMEM of all of them.
    pub pool_bytes: u64,
}

impl Shared {
    /// As asked for.
    pub fn new(arguments: &Arguments) -> Result<Self, Error> {
        let options = &arguments.hosting;
        let files: Vec<PathBuf> = arguments
            .record
            .iter()
            .map(|record| file_of(record))
            .collect();
        let guests = options.guests.unwrap_or(files.len() as u64);
        let tenants: Vec<Tenant> = (0..guests)
            .zip(files.iter().cycle())
            .map(|(number, record)| Tenant {
                record: record.clone(),
                start_ns: number * options.stagger * 1_000_000,
            })
            .collect();
        let mut recorded_bytes = 0_u64;
        for (number, file) in files.iter().enumerate() {
            let player = Player::open(file).map_err(|cause| Error::Record {
                path: file.clone(),
                cause,
            })?;
            let own = tenants.iter().skip(number).step_by(files.len()).count() as u64;
            recorded_bytes = (own
                .checked_mul(arguments.fmem.unwrap_or(player.header.tier_bytes[0])))
            .and_then(|bytes| bytes.checked_add(recorded_bytes))
            .ok_or_else(|| Error::Usage {
                cause: "FMEM of all guests together is more than can be counted".into(),
                next: "give each less with --fmem, or all of them --fmem-pool".into(),
            })?;
        }
        Ok(Self {
            tenants,
            pool_bytes: options.fmem_pool.unwrap_or(recorded_bytes),
        })
    }

    /// An error of a guest's record.
    pub fn wrong(&self, at: usize, cause: demeter_simulator::Error) -> Error {
        Error::Record {
            path: self.tenants[at].record.clone(),
            cause,
        }
    }
}

/// Plays guests on a host.
pub fn execute(arguments: &Arguments) -> Result<u8, Error> {
    let options = &arguments.hosting;
    let usage = |cause: &str, next: &str| Error::Usage {
        cause: cause.into(),
        next: next.into(),
    };
    if arguments.sweep.is_some() {
        return Err(usage(
            "--sweep is of one guest by itself",
            "sweep one record, or leave --sweep out",
        ));
    }
    if arguments.tmm == Tmm::Ideal {
        return Err(usage(
            "the clairvoyant placement is of FMEM that does not change",
            "use --tmm demeter or none; the column `ideal s` has it for equal parts",
        ));
    }
    let name = options.policy.as_deref().unwrap_or("static");
    let policy = by_name(name).flatten().ok_or_else(|| {
        let names = demeter_policy::NAMES
            .iter()
            .filter(|name| **name != EXTERNAL);
        usage(
            &format!("no policy `{name}` that decides by itself"),
            &format!(
                "choose from: {}",
                names.copied().collect::<Vec<_>>().join(", ")
            ),
        )
    })?;
    let shared = Shared::new(arguments)?;
    let on = Host {
        policy,
        pool_bytes: shared.pool_bytes,
        floor_bytes: options.fmem_floor,
        ceiling_bytes: options.fmem_ceiling,
        interval_ns: options.policy_interval * 1_000_000,
    };
    let choose = |header: &Header| variant(arguments, header, None);
    let tenants = &shared.tenants;
    let stays = host(tenants, &on, choose).map_err(|(at, cause)| shared.wrong(at, cause))?;
    let told = Told {
        format: 1,
        policy: name,
        fmem_pool_bytes: on.pool_bytes,
        host: sum(tenants, &stays, on.pool_bytes),
        guests: (tenants.iter().zip(&stays).enumerate())
            .map(|(at, (tenant, stay))| guest(at, tenant, stay))
            .collect(),
    };
    show(arguments, &told, render)
}

/// First touch's time by its.
pub fn gain(report: &Report) -> Option<f64> {
    let none_s = report.none_s.filter(|_| report.time_s > 0.0)?;
    Some(none_s / report.time_s)
}

/// The geometric mean.
pub fn mean_gain<'a>(reports: impl Iterator<Item = &'a Report>) -> Option<f64> {
    let gains: Option<Vec<f64>> = reports.map(gain).collect();
    let gains = gains.filter(|gains| !gains.is_empty())?;
    let sum: f64 = gains.iter().map(|gain| gain.ln()).sum();
    Some((sum / gains.len() as f64).exp())
}

fn guest<'a>(at: usize, tenant: &'a Tenant, stay: &'a Stay) -> Guest<'a> {
    let [start_s, end_s] = stay.from_to_s;
    let [fmem_least_bytes, fmem_most_bytes] = stay.fmem_bounds_bytes;
    Guest {
        name: at.to_string(),
        record: &tenant.record,
        start_s,
        end_s,
        fmem_bytes: stay.fmem_bytes,
        fmem_least_bytes,
        fmem_most_bytes,
        resizes: stay.resizes,
        gain: gain(&stay.report),
        report: &stay.report,
    }
}

fn sum(tenants: &[Tenant], stays: &[Stay], pool_bytes: u64) -> Sum {
    let time_s = stays
        .iter()
        .fold(0.0, |last: f64, stay| last.max(stay.from_to_s[1]));
    let count = |of: fn(&Report) -> u64| stays.iter().map(|stay| of(&stay.report)).sum();
    let held = |stay: &Stay| stay.fmem_bytes * (stay.from_to_s[1] - stay.from_to_s[0]);
    let spread = |record: &PathBuf| {
        let own = tenants
            .iter()
            .zip(stays)
            .filter(|(tenant, _)| tenant.record == *record);
        let times: Vec<f64> = own.map(|(_, stay)| stay.report.time_s).collect();
        let most = times.iter().copied().fold(0.0, f64::max);
        let least = times.iter().copied().fold(f64::MAX, f64::min);
        if least > 0.0 { most / least } else { 1.0 }
    };
    Sum {
        time_s,
        gain: mean_gain(stays.iter().map(|stay| &stay.report)),
        fmem_share_of_pool: stays.iter().map(held).sum::<f64>()
            / (time_s * pool_bytes.max(1) as f64).max(f64::MIN_POSITIVE),
        promoted_pages: count(|report| report.promoted_pages),
        demoted_pages: count(|report| report.demoted_pages),
        evacuated_pages: count(|report| report.evacuated_pages),
        resizes: stays.iter().map(|stay| stay.resizes).sum(),
        spread: tenants
            .iter()
            .map(|tenant| spread(&tenant.record))
            .fold(1.0, f64::max),
    }
}

fn render(told: &Told<'_>) -> String {
    const MIB: f64 = (1 << 20) as f64;
    let header = [
        "guest",
        "start s",
        "end s",
        "time s",
        "none s",
        "gain",
        "FMEM MiB",
        "least",
        "most",
        "FMEM %",
        "last¼ %",
        "promoted",
        "demoted",
        "evacuated",
        "digest",
    ];
    let rows: Vec<Vec<String>> = (told.guests.iter())
        .map(|guest| {
            let report = guest.report;
            let mib = |bytes: f64| table::number(Some(bytes / MIB), 1);
            vec![
                guest.name.clone(),
                table::number(Some(guest.start_s), 3),
                table::number(Some(guest.end_s), 3),
                table::number(Some(report.time_s), 3),
                table::number(report.none_s, 3),
                table::number(guest.gain, 3),
                mib(guest.fmem_bytes),
                mib(guest.fmem_least_bytes as f64),
                mib(guest.fmem_most_bytes as f64),
                table::percent(report.fmem_share, 1),
                table::percent(report.fmem_share_last_quarter, 1),
                report.promoted_pages.to_string(),
                report.demoted_pages.to_string(),
                report.evacuated_pages.to_string(),
                report.digest.clone(),
            ]
        })
        .collect();
    let host = &told.host;
    format!(
        "{} guests share {:.0} MiB of FMEM, {}; times modelled\n\n{}\n\
         host: all over after {:.3} s; gain {} on the mean; slowest by quickest of one record {:.3}; \
         {:.1} % of the pool had on the mean; {} pages promoted, {} demoted, {} evacuated; {} resizes\n",
        told.guests.len(),
        told.fmem_pool_bytes as f64 / MIB,
        told.policy,
        table::render(&header, &rows),
        host.time_s,
        table::number(host.gain, 3),
        host.spread,
        host.fmem_share_of_pool * 100.0,
        host.promoted_pages,
        host.demoted_pages,
        host.evacuated_pages,
        host.resizes,
    )
}
