// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the standard comparison is to show, through each kind of sampling unit: in the
//! last quarter Demeter is about as fast as a program that placed its hot memory itself.
//! A fraction of `make demo`'s updates, as many as that takes. Boots guests:
//! `tests/suites/vm`.

use std::process::Command;

use serde_json::Value;

/// Updates per second of Demeter's last quarter, as a share of the oracle's.
fn share_of_the_oracle(pmu: &str, updates: &str) -> f64 {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("demo");
    let output = Command::new(env!("CARGO_BIN_EXE_demeter"))
        .args(["vm", "demo", "--tmm", "demeter,oracle", "--pmu", pmu])
        .args(["--updates", updates, "--json", "--out"])
        .arg(&out)
        .output()
        .expect("demeter starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let table: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [demeter, oracle] = ["demeter", "oracle"].map(|row| {
        let rate = table["rows"][row]["updates_per_s_last_quarter"].as_f64();
        rate.unwrap_or_else(|| panic!("{row}: {table}"))
    });
    println!("{pmu}: {:.4} of the oracle", demeter / oracle);
    demeter / oracle
}

#[test]
#[ignore = "boots guests: tests/suites/vm"]
fn demeter_is_as_fast_as_the_oracle_through_pebs() {
    let share = share_of_the_oracle("icelake", "20000000");
    assert!(share >= 0.99, "{share}");
}

#[test]
#[ignore = "boots guests: tests/suites/vm"]
fn demeter_is_nearly_as_fast_as_the_oracle_through_ibs() {
    let share = share_of_the_oracle("zen4", "20000000");
    assert!(share >= 0.97, "{share}");
}
