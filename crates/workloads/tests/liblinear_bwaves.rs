// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program as it is run: memory is as asked for, results are verified and
//! do not change.

use std::process::Command;

fn run(arguments: &str) -> serde_json::Value {
    let output = Command::new(env!("CARGO_BIN_EXE_demeter-workloads"))
        .args(arguments.split(' '))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn resident_memory_is_within_five_percent() {
    /// The program itself, its stack and what the last huge page of an array holds over.
    const PROGRAM_BYTES: f64 = (5 << 20) as f64;
    for line in [
        "bwaves --steps 1",
        "liblinear --iterations 1",
        "liblinear --iterations 1 --rows drop",
    ] {
        for mebibytes in [96, 160] {
            let outcome = run(&format!("{line} --footprint {mebibytes}M"));
            let asked = f64::from(mebibytes << 20);
            for (field, more) in [("resident_bytes", PROGRAM_BYTES), ("footprint_bytes", 0.0)] {
                let bytes = outcome[field].as_f64().unwrap();
                let within = asked * 0.95..asked * 1.05 + more;
                assert!(within.contains(&bytes), "{line} {field} {bytes}");
            }
            assert_eq!(outcome["verified"], true, "{line}");
        }
    }
}

#[test]
fn advice_on_pages_does_not_change_the_result() {
    for line in ["bwaves --footprint 16M", "liblinear --footprint 16M"] {
        let checksum = |pages: &str| run(&format!("{line} --pages {pages}"))["checksum"].clone();
        let system = checksum("system");
        assert!(system.as_str().is_some_and(|digits| digits.len() == 16));
        assert_eq!(checksum("huge"), system);
        assert_eq!(checksum("small"), system);
    }
}
