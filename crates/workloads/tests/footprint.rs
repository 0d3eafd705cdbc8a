// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs workloads as processes of their own: memory that is present in the
//! region of interest is the footprint that was asked for, give or take five
//! percent, and the same arguments have the same outcome.

use std::process::Command;

/// Code, stacks and the like, which no footprint counts.
const PROGRAM_BYTES: u64 = 5 << 20;

/// Runs a workload; returns its outcome.
fn outcome(line: &str) -> serde_json::Value {
    let output = Command::new(env!("CARGO_BIN_EXE_demeter-workloads"))
        .args(line.split_whitespace())
        .output()
        .expect("the workload starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {errors}");
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(text.lines().count(), 1, "{line}: one line of JSON");
    serde_json::from_str(&text).expect("JSON")
}

fn holds_what_was_asked_for(line: &str, sizes: [u64; 2]) {
    for megabytes in sizes {
        let line = format!("{line} --footprint {megabytes}M");
        let outcome = outcome(&line);
        let footprint_bytes = megabytes << 20;
        let resident_bytes = outcome["resident_bytes"].as_u64().expect("a number");
        let allowed = footprint_bytes / 20;
        let own = resident_bytes.saturating_sub(PROGRAM_BYTES);
        assert!(
            resident_bytes + allowed >= footprint_bytes && own <= footprint_bytes + allowed,
            "{line}: {resident_bytes} bytes are present"
        );
        assert_eq!(outcome["verified"], true, "{line}");
    }
}

fn is_the_same_again(line: &str) {
    let line = format!("{line} --footprint 4M");
    let (one, again) = (outcome(&line), outcome(&line));
    for key in ["checksum", "verified"] {
        assert!(!one[key].is_null(), "{line}: {key}");
        assert_eq!(one[key], again[key], "{line}: {key}");
    }
    let other = outcome(&format!("{line} --seed 77"));
    assert_ne!(one["checksum"], other["checksum"], "{line}");
}

/// Little work: sizes are decided before.
const LINES: [&str; 8] = [
    "btree --lookups 10000",
    "graph500 --searches 2",
    "pagerank --iterations 1",
    "pagerank --iterations 1 --directed --degree 30",
    "silo --transactions 10000",
    "silo --transactions 10000 --mix d",
    "xsbench --lookups 5000",
    "xsbench --lookups 5000 --size large",
];

#[test]
fn footprints_are_what_was_asked_for() {
    for line in LINES {
        holds_what_was_asked_for(line, [16, 40]);
    }
}

#[test]
fn the_same_arguments_have_the_same_outcome() {
    for line in LINES {
        is_the_same_again(line);
    }
}

#[test]
fn nonsense_is_refused_with_advice() {
    for line in [
        "btree --footprint 1K",
        "graph500 --footprint 100",
        "pagerank --footprint 100",
        "silo --footprint 1K",
        "xsbench --footprint 1K",
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_demeter-workloads"))
            .args(line.split_whitespace())
            .output()
            .expect("the workload starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {errors}");
        assert!(errors.contains("; next: "), "{line}: {errors}");
    }
}
