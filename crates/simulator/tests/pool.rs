// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests above one hypervisor: what is hot comes to FMEM whoever's it is, equals are served
//! alike, and what a record cannot tell is refused.

mod made_up;

use std::path::Path;

use demeter_machine::hypervisor::Manager;
use demeter_machine::{HypervisorConfig, MachineConfig};
use demeter_simulator::{Error, Header, Pooled, Tenant, pool};
use made_up::{SMALL, Shape, recorded};

const FMEM_BYTES: u64 = SMALL.fmem_chunks << 21;

fn config(manager: Manager, fmem_bytes: u64) -> HypervisorConfig {
    HypervisorConfig {
        manager,
        fmem_bytes,
        // A round of all memory every 100 ms.
        scan_size_mb: 256,
        ..HypervisorConfig::default()
    }
}

/// As recorded, on a host of small pages.
fn machine(header: &Header) -> MachineConfig {
    MachineConfig {
        ept_2m: 0,
        ..header.machine.clone()
    }
}

fn tenant(record: &Path) -> Tenant {
    Tenant {
        record: record.to_owned(),
        start_ns: 0,
    }
}

fn play(tenants: &[Tenant], config: &HypervisorConfig) -> Pooled {
    pool(tenants, config, machine).unwrap()
}

#[test]
fn what_is_hot_comes_to_fmem() {
    let (_place, path) = recorded(&SMALL);
    for manager in [Manager::Tpp, Manager::Abit] {
        let config = config(manager, FMEM_BYTES);
        let pooled = play(&[tenant(&path)], &config);
        let stay = &pooled.stays[0];
        let report = &stay.report;
        assert!(
            report.fmem_share_last_quarter > Some(0.8),
            "{manager:?} {stay:?}"
        );
        assert!(pooled.counters.promoted_pages > 0 && stay.waited_s > 0.0);
        assert!(stay.fmem_bytes <= FMEM_BYTES as f64);
        assert!(report.ideal_s.unwrap() < report.time_s - stay.waited_s);
        assert_eq!(play(&[tenant(&path)], &config), pooled);
    }
}

/// Ten equal guests, which a pool serves about alike, then one among them that uses little of its memory.
#[test]
fn one_pool_serves_equals_alike_and_gives_to_who_uses_it() {
    let shape = Shape {
        windows: 60,
        ..SMALL
    };
    let (_place, path) = recorded(&shape);
    let config = config(Manager::Abit, 10 * FMEM_BYTES);
    let mut tenants = vec![tenant(&path); 10];
    let stays = play(&tenants, &config).stays;
    let times = || stays.iter().map(|stay| stay.report.time_s);
    let (least, most) = (
        times().fold(f64::MAX, f64::min),
        times().fold(0.0, f64::max),
    );
    // Who came first had more of FMEM to begin with.
    assert!(most <= 1.1 * least, "{least} to {most} s");
    let held = stays
        .iter()
        .map(|stay| stay.fmem_bytes * stay.report.time_s);
    assert!(held.sum::<f64>() <= 1.01 * most * 10.0 * FMEM_BYTES as f64);

    let (_idle_place, idle) = recorded(&Shape {
        hot: 60..61,
        hot_fills: 1,
        cold_step: 64,
        ..shape
    });
    tenants[3] = tenant(&idle);
    let mixed = play(&tenants, &config).stays;
    assert!(mixed[3].fmem_bytes < mixed[4].fmem_bytes, "{:?}", mixed[3]);
    assert!(mixed[4].fmem_bytes > stays[4].fmem_bytes);
}

#[test]
fn what_a_record_does_not_tell_is_refused() {
    let (_place, path) = recorded(&SMALL);
    let refused = |config: &HypervisorConfig, tell: fn(&Header) -> MachineConfig| {
        let (at, error) = pool(&[tenant(&path)], config, tell).unwrap_err();
        assert_eq!(at, 0);
        assert!(matches!(error, Error::Hypervisor(_)), "{error}");
        error.to_string()
    };
    let dirty = HypervisorConfig {
        dirty_bit: 1,
        ..config(Manager::Abit, FMEM_BYTES)
    };
    assert!(refused(&dirty, machine).contains("stores"));
    let tables = config(Manager::Vtmm, FMEM_BYTES);
    assert!(refused(&tables, machine).contains("page tables"));
    // Recorded on a host of huge pages.
    let tpp = config(Manager::Tpp, FMEM_BYTES);
    assert!(refused(&tpp, |header| header.machine.clone()).contains("ept_2m"));
}
