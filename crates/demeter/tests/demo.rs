// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the standard comparison is to show, through each kind of sampling unit: in the
//! last quarter Demeter is about as fast as a program that placed its hot memory itself.
//! A fraction of `make demo`'s updates, as many as that takes. Boots guests:
//! `tests/suites/vm`.

use std::process::Command;

use serde_json::Value;

/// What a row took, and did in its last quarter.
#[derive(Debug)]
struct Row {
    time_s: f64,
    last_quarter: f64,
}

/// The demo with these rows.
fn demo<const N: usize>(pmu: &str, updates: &str, rows: [&str; N]) -> [Row; N] {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("demo");
    let output = Command::new(env!("CARGO_BIN_EXE_demeter"))
        .args(["vm", "demo", "--tmm", &rows.join(","), "--pmu", pmu])
        .args(["--updates", updates, "--json", "--out"])
        .arg(&out)
        .output()
        .expect("demeter starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let table: Value = serde_json::from_slice(&output.stdout).unwrap();
    rows.map(|row| {
        let number = |field| {
            let number = table["rows"][row][field].as_f64();
            number.unwrap_or_else(|| panic!("{row}: {table}"))
        };
        let row = Row {
            time_s: number("time_s"),
            last_quarter: number("updates_per_s_last_quarter"),
        };
        println!("{pmu}: {row:?}");
        row
    })
}

/// Demeter's last quarter as a share of the oracle's.
fn share(demeter: &Row, oracle: &Row) -> f64 {
    demeter.last_quarter / oracle.last_quarter
}

#[test]
#[ignore = "boots guests: tests/suites/vm"]
fn demeter_is_as_fast_as_the_oracle_through_pebs_and_far_ahead_of_linux() {
    let rows = ["demeter", "nbt", "oracle"];
    let [demeter, nbt, oracle] = demo("icelake", "12000000", rows);
    assert!(share(&demeter, &oracle) >= 0.99, "{demeter:?} {oracle:?}");
    assert!(nbt.time_s > 1.2 * demeter.time_s, "{nbt:?}");
}

#[test]
#[ignore = "boots guests: tests/suites/vm"]
fn demeter_is_nearly_as_fast_as_the_oracle_through_ibs() {
    let [demeter, oracle] = demo("zen4", "12000000", ["demeter", "oracle"]);
    assert!(share(&demeter, &oracle) >= 0.97, "{demeter:?} {oracle:?}");
}

#[test]
#[ignore = "boots guests: tests/suites/vm"]
fn demeter_is_nearly_as_fast_as_the_oracle_without_a_pmu() {
    let [demeter, oracle] = demo("none", "20000000", ["demeter", "oracle"]);
    assert!(share(&demeter, &oracle) >= 0.95, "{demeter:?} {oracle:?}");
}

/// By `make test-whole`.
mod every_rival {
    use super::*;

    /// The lead that is asked of it with a PMU. Linux needs none, and is as it is there.
    #[test]
    #[ignore = "boots guests: tests/suites/vm"]
    fn demeter_is_far_ahead_of_linux_without_a_pmu() {
        let [demeter, nbt] = demo("none", "30000000", ["demeter", "nbt"]);
        assert!(nbt.time_s > 1.2 * demeter.time_s, "{nbt:?} {demeter:?}");
    }
}
