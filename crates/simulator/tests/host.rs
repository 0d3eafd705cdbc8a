// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests that share a host's FMEM: each is what it is by itself, equals are served alike, and
//! what one does not need another has.

mod made_up;

use std::path::{Path, PathBuf};

use demeter_policy::by_name;
use demeter_simulator::{Error, Host, Report, Stay, Tenant, host, replay};
use made_up::{SMALL, Shape, demeter, recorded};

const FMEM_BYTES: u64 = SMALL.fmem_chunks << 21;

fn policy(name: &str, pool_bytes: u64) -> Host {
    Host {
        policy: by_name(name).unwrap().unwrap(),
        pool_bytes,
        floor_bytes: 0,
        ceiling_bytes: None,
        interval_ns: 100_000_000,
    }
}

fn tenant(record: &Path, start_ms: u64) -> Tenant {
    Tenant {
        record: record.to_owned(),
        start_ns: start_ms * 1_000_000,
    }
}

fn play(tenants: &[Tenant], on: &Host) -> Vec<Stay> {
    host(tenants, on, |header| {
        Ok(demeter(header, header.tier_bytes[0]))
    })
    .unwrap()
}

fn alone(record: &Path, fmem_bytes: u64) -> Report {
    let played = replay(record, |header| Ok(vec![demeter(header, fmem_bytes)])).unwrap();
    played.reports[0].clone()
}

fn quick(shape: Shape) -> (tempfile::TempDir, PathBuf) {
    recorded(&Shape {
        windows: 40,
        cold_step: 8,
        ..shape
    })
}

#[test]
fn a_guest_on_a_host_gives_the_digits_that_it_gives_alone() {
    let (_place, path) = recorded(&SMALL);
    let by_itself = alone(&path, FMEM_BYTES);
    for name in ["static", "proportional"] {
        let stays = play(&[tenant(&path, 0)], &policy(name, FMEM_BYTES));
        assert_eq!(stays[0].report, by_itself, "{name}");
        assert_eq!(stays[0].resizes, 0);
    }
    // Beside others, and when it comes later, too: what is static is nobody else's.
    let tenants = [tenant(&path, 0), tenant(&path, 130), tenant(&path, 130)];
    let stays = play(&tenants, &policy("static", 3 * FMEM_BYTES));
    assert_eq!(stays[0].report, by_itself);
    assert!((stays[1].from_to_s[0] - 0.13).abs() < 1e-9);
    // They sample other loads of the same program.
    assert_ne!(stays[1].report.digest, stays[2].report.digest);
}

#[test]
fn a_hundred_equal_guests_are_served_alike() {
    let (_place, path) = quick(SMALL);
    let tenants: Vec<Tenant> = (0..100).map(|_| tenant(&path, 0)).collect();
    for name in ["proportional", "guaranteed", "pressure", "working-set"] {
        let stays = play(&tenants, &policy(name, 100 * FMEM_BYTES));
        let times = stays.iter().map(|stay| stay.report.time_s);
        let (least, most) = times.fold((f64::MAX, 0.0_f64), |(least, most), time| {
            (least.min(time), most.max(time))
        });
        assert!(most <= 1.05 * least, "{name}: {least} to {most} s");
        let mean = stays.iter().map(|stay| stay.fmem_bytes).sum::<f64>() / 100.0;
        assert!(mean <= FMEM_BYTES as f64 * 1.001, "{name}: {mean}");
        // Nobody is started with nothing.
        let first = stays.iter().map(|stay| stay.fmem_bounds_bytes[1]);
        assert_eq!(first.min(), Some(FMEM_BYTES), "{name}");
        assert!(
            stays
                .iter()
                .all(|stay| Some(stay.report.time_s) < stay.report.none_s)
        );
    }
}

/// Two guests, one of which has a large hot set and one a small one: the policy that knows hot
/// sets takes from one what the other needs, and together they gain by it.
#[test]
fn fmem_goes_where_it_is_of_use() {
    let longer = Shape {
        windows: 200,
        cold_step: 8,
        ..SMALL
    };
    let (_small_place, small) = recorded(&Shape {
        hot: 60..62,
        ..longer
    });
    let (_large_place, large) = recorded(&Shape {
        hot: 40..54,
        ..longer
    });
    let tenants = [tenant(&small, 0), tenant(&large, 0)];
    let stays = |name| play(&tenants, &policy(name, 2 * FMEM_BYTES));
    let equal = stays("static");
    let shared = stays("guaranteed");
    assert!(
        shared[1].fmem_bounds_bytes[1] > FMEM_BYTES * 5 / 4,
        "{:?}",
        shared[1]
    );
    assert!(shared[0].report.evacuated_pages > 0);
    let time = |stays: &[Stay]| stays.iter().map(|stay| stay.report.time_s).sum::<f64>();
    assert!(
        time(&shared) < time(&equal),
        "{} {}",
        time(&shared),
        time(&equal)
    );
    assert!(shared[0].report.time_s < 1.05 * equal[0].report.time_s);
    // The same input gives the same digits, on however many processors.
    assert_eq!(stays("guaranteed"), shared);
}

/// Credit is lent by time: guests that arrive between two decisions do not make the others pay
/// for an interval each, which would leave the latest alone with what it says.
#[test]
fn arrivals_do_not_spend_the_credit_of_those_who_are_there() {
    let busy = Shape {
        windows: 100,
        cold_step: 8,
        hot: 40..54,
        ..SMALL
    };
    let (_busy_place, first) = recorded(&busy);
    let (_idle_place, late) = recorded(&Shape {
        hot: busy.hot.clone(),
        hot_fills: 5,
        ..busy
    });
    let mut tenants = vec![tenant(&first, 0)];
    tenants.extend((1..8).map(|at| tenant(&late, 150 * at)));
    let seldom = Host {
        interval_ns: 300_000_000_000,
        ..policy("guaranteed", 8 * FMEM_BYTES)
    };
    let stays = play(&tenants, &seldom);
    // All decisions were made for arrivals, while it was there; what it needs is more than a share.
    assert!(stays[0].from_to_s[1] > stays[7].from_to_s[0]);
    let hot_bytes = (busy.hot.end - busy.hot.start) << 21;
    assert!(
        stays[0].fmem_bounds_bytes[0] >= hot_bytes * 9 / 10,
        "{:?}, of {hot_bytes} bytes hot",
        stays[0].fmem_bounds_bytes
    );
}

#[test]
fn who_has_left_makes_room() {
    let (_place, path) = quick(SMALL);
    let long = Shape {
        windows: 200,
        cold_step: 8,
        ..SMALL
    };
    let (_long_place, long) = recorded(&long);
    let tenants = [tenant(&path, 0), tenant(&long, 0)];
    let stays = play(&tenants, &policy("proportional", 2 * FMEM_BYTES));
    assert!(stays[0].from_to_s[1] < stays[1].from_to_s[1]);
    assert_eq!(stays[1].fmem_bounds_bytes, [FMEM_BYTES, 2 * FMEM_BYTES]);
}

#[test]
fn a_record_that_is_cut_short_is_told_with_its_place() {
    let (place, path) = quick(SMALL);
    let whole = std::fs::read(&path).unwrap();
    let cut = place.path().join("cut");
    std::fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let tenants = [tenant(&path, 0), tenant(&cut, 0)];
    let on = policy("static", 2 * FMEM_BYTES);
    let choose = |header: &_| Ok(demeter(header, FMEM_BYTES));
    let (at, error) = host(&tenants, &on, choose).unwrap_err();
    assert_eq!(at, 1);
    assert!(matches!(error, Error::Record(_)), "{error}");
}
