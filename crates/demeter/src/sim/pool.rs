// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests of `demeter sim` above one hypervisor that places the pages of all of them.

use demeter_machine::HypervisorCounters;
use demeter_simulator::{Pooled, pool};
use serde::Serialize;

use super::host::{Shared, gain, mean_gain};
use super::{Arguments, machine_of, show};
use crate::error::Error;
use crate::table;
use crate::vm::{HostPhase, Peer};

#[derive(Serialize)]
struct Told<'a> {
    format: u32,
    tmm: &'a str,
    fmem_pool_bytes: u64,
    time_s: f64,
    gain: Option<f64>,
    promoted_pages: u64,
    demoted_pages: u64,
    hypervisor: HostPhase,
    guests: Vec<Guest<'a>>,
}

#[derive(Serialize)]
struct Guest<'a> {
    start_s: f64,
    end_s: f64,
    time_s: f64,
    none_s: Option<f64>,
    ideal_s: Option<f64>,
    gain: Option<f64>,
    fmem_bytes: f64,
    fmem_share: Option<f64>,
    fmem_share_last_quarter: Option<f64>,
    waited_s: f64,
    digest: &'a str,
}

/// Plays guests above `peer`.
pub fn execute(arguments: &Arguments, peer: Peer) -> Result<u8, Error> {
    if arguments.sweep.is_some() || arguments.hosting.policy.is_some() {
        return Err(Error::Usage {
            cause: format!("{} places the pages of all guests by itself", peer.row()),
            next: "leave --sweep and --policy out".into(),
        });
    }
    if arguments.seed > 0 {
        return Err(Error::Usage {
            cause: format!("{} samples no loads: nothing is drawn", peer.row()),
            next: "leave --seed out".into(),
        });
    }
    let shared = Shared::new(arguments)?;
    let knobs = peer.knobs(&arguments.peer_set)?;
    let config = peer.hypervisor(&knobs, shared.pool_bytes)?;
    let config = config.ok_or_else(|| Error::Usage {
        cause: format!("{} is a module of a guest's kernel", peer.row()),
        next: "run it live: demeter vm run --tmm".into(),
    })?;
    let pooled = pool(&shared.tenants, &config, |header| {
        machine_of(arguments, header)
    })
    .map_err(|(at, cause)| shared.wrong(at, cause))?;
    let told = told(&pooled, peer, shared.pool_bytes);
    show(arguments, &told, render)
}

fn told(pooled: &Pooled, peer: Peer, fmem_pool_bytes: u64) -> Told<'_> {
    let stays = &pooled.stays;
    Told {
        format: 1,
        tmm: peer.row(),
        fmem_pool_bytes,
        time_s: stays
            .iter()
            .fold(0.0, |last: f64, stay| last.max(stay.from_to_s[1])),
        gain: mean_gain(stays.iter().map(|stay| &stay.report)),
        promoted_pages: pooled.counters.promoted_pages,
        demoted_pages: pooled.counters.demoted_pages,
        hypervisor: HostPhase::new(&HypervisorCounters::default(), &pooled.counters),
        guests: (stays.iter())
            .map(|stay| Guest {
                start_s: stay.from_to_s[0],
                end_s: stay.from_to_s[1],
                time_s: stay.report.time_s,
                none_s: stay.report.none_s,
                ideal_s: stay.report.ideal_s,
                gain: gain(&stay.report),
                fmem_bytes: stay.fmem_bytes,
                fmem_share: stay.report.fmem_share,
                fmem_share_last_quarter: stay.report.fmem_share_last_quarter,
                waited_s: stay.waited_s,
                digest: &stay.report.digest,
            })
            .collect(),
    }
}

fn render(told: &Told<'_>) -> String {
    const MIB: f64 = (1 << 20) as f64;
    let header = [
        "guest", "start s", "end s", "time s", "none s", "gain", "FMEM MiB", "FMEM %", "last¼ %",
        "waited s", "digest",
    ];
    let rows: Vec<Vec<String>> = (told.guests.iter().enumerate())
        .map(|(at, guest)| {
            vec![
                at.to_string(),
                table::number(Some(guest.start_s), 3),
                table::number(Some(guest.end_s), 3),
                table::number(Some(guest.time_s), 3),
                table::number(guest.none_s, 3),
                table::number(guest.gain, 3),
                table::number(Some(guest.fmem_bytes / MIB), 1),
                table::percent(guest.fmem_share, 1),
                table::percent(guest.fmem_share_last_quarter, 1),
                table::number(Some(guest.waited_s), 3),
                guest.digest.to_owned(),
            ]
        })
        .collect();
    let of = &told.hypervisor;
    format!(
        "{} guests above {}, one pool of {:.0} MiB of FMEM; times modelled\n\n{}\n\
         host: all over after {:.3} s; gain {} on the mean; {} pages promoted, {} demoted; \
         {} whole TLB flushes, {} violations; the guests waited {:.3} s and paid {:.3} of {:.3} s \
         of the host's threads\n",
        told.guests.len(),
        told.tmm,
        told.fmem_pool_bytes as f64 / MIB,
        table::render(&header, &rows),
        told.time_s,
        table::number(told.gain, 3),
        told.promoted_pages,
        told.demoted_pages,
        of.flushes_asked.iter().sum::<u64>(),
        of.violations,
        of.waited_s,
        of.stolen_s,
        of.host_s,
    )
}
