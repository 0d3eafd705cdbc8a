// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Published managers on made-up records: what is hot comes to FMEM, parameters count, and the
//! same record gives the same digits.

mod made_up;

use std::path::Path;

use demeter_simulator::{
    Costs, Error, HememParams, Manager, MemtisParams, NimbleParams, Replayed, Report, Variant,
    replay,
};
use made_up::{SMALL, Shape, recorded};

/// Of a guest as small as this: samples and rounds enough for two seconds.
fn hemem() -> HememParams {
    HememParams {
        period: 997,
        least_mapping_bytes: 32 << 20,
        ..HememParams::default()
    }
}

fn memtis() -> MemtisParams {
    MemtisParams {
        adaptation_samples: 1000,
        cooling_samples: 100_000,
        kmigrated_ms: 50,
        ..MemtisParams::default()
    }
}

fn nimble() -> NimbleParams {
    NimbleParams {
        period_ms: 200,
        ..NimbleParams::default()
    }
}

fn play(path: &Path, choose: impl Fn(Costs) -> Vec<Manager>) -> Vec<Report> {
    replayed(path, 0, choose).unwrap().reports
}

fn replayed(
    path: &Path,
    seed: u64,
    choose: impl Fn(Costs) -> Vec<Manager>,
) -> Result<Replayed, Error> {
    replay(path, |header| {
        let managers = choose(Costs::testbed(&header.machine));
        Ok((managers.into_iter())
            .map(|manager| Variant {
                fmem_bytes: header.tier_bytes[0],
                machine: header.machine.clone(),
                manager,
                seed,
            })
            .collect())
    })
}

fn all(costs: Costs) -> Vec<Manager> {
    vec![
        Manager::Hemem(hemem(), costs),
        Manager::Memtis(memtis(), costs),
        Manager::Nimble(nimble(), costs),
    ]
}

/// Only what is hot is accessed, but for one huge page.
const QUIET: Shape = Shape {
    cold_step: 64,
    ..SMALL
};

#[test]
fn what_is_hot_comes_to_fmem_and_stays_within_it() {
    let (_place, path) = recorded(&QUIET);
    let reports = play(&path, all);
    for report in &reports {
        assert!(report.fmem_share_last_quarter > Some(0.9), "{report:?}");
        assert!(report.promoted_pages >= 4 * 512, "{report:?}");
        assert!(report.time_s < report.none_s.unwrap(), "{report:?}");
        assert!(report.ideal_s.unwrap() < report.time_s, "{report:?}");
        let fmem_pages: u64 = report.placed.iter().map(|placed| placed.fmem_pages).sum();
        assert!(fmem_pages <= QUIET.fmem_chunks * 512, "{report:?}");
    }
    assert_eq!(play(&path, all), reports, "the same digits again");
    let alone = play(&path, |costs| vec![all(costs)[1]]);
    assert_eq!(alone[0], reports[1], "alone as beside others");
}

#[test]
fn another_seed_draws_other_samples() {
    let (_place, path) = recorded(&QUIET);
    let draw = |seed| replayed(&path, seed, all).unwrap().reports;
    assert_eq!(draw(0), play(&path, all));
    let (one, other) = (draw(1), draw(2));
    assert_eq!(one, draw(1));
    for at in [0, 1] {
        assert_ne!(one[at].digest, other[at].digest, "{:?}", one[at]);
    }
    assert_eq!(one[2], other[2], "nimble samples nothing");
}

/// Its two threads sleep 16 ms each, and work for 20 ms.
#[test]
fn a_manager_that_takes_all_of_the_cpu_is_refused() {
    let (_place, path) = recorded(&QUIET);
    let busy = |wake_ns| {
        replayed(&path, 0, |costs| {
            vec![Manager::Hemem(hemem(), Costs { wake_ns, ..costs })]
        })
    };
    assert!(matches!(busy(20_000_000), Err(Error::Busy)));
    busy(10_000_000).unwrap();
}

#[test]
fn parameters_are_heeded() {
    let (_place, path) = recorded(&QUIET);
    let slow = play(&path, |costs| {
        let mut late = hemem();
        late.set("hot_reads", "4000000000").unwrap();
        late.set("cooling_samples", "4000000000").unwrap();
        let mut small = hemem();
        small.set("least_mapping_bytes", "1073741824").unwrap();
        let mut never = memtis();
        never.set("kmigrated_ms", "10000").unwrap();
        let mut out_and_in = nimble();
        out_and_in.set("exchange", "0").unwrap();
        vec![
            Manager::Hemem(late, costs),
            Manager::Hemem(small, costs),
            Manager::Memtis(never, costs),
            Manager::Nimble(out_and_in, costs),
        ]
    });
    for report in &slow[..3] {
        assert_eq!(report.promoted_pages, 0, "{report:?}");
        assert!(report.time_s > report.none_s.unwrap(), "{report:?}");
    }
    let exchanged = &play(&path, all)[2];
    assert_eq!(slow[3].promoted_pages, exchanged.promoted_pages);
    assert!(slow[3].relocate_ms > exchanged.relocate_ms);
}

#[test]
fn what_a_record_cannot_tell_is_refused() {
    for name in ["store_period", "hot_writes", "writes_first"] {
        let error = hemem().set(name, "1").unwrap_err().to_string();
        assert!(error.contains("stores"), "{error}");
    }
    for error in [
        memtis().set("poll_us", "0"),
        memtis().set("period", "5"),
        nimble().set("batch", "8"),
        hemem().set("period", "-1"),
    ] {
        error.unwrap_err();
    }
}
