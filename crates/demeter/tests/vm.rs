// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Boots real guests: only with DEMETER_VM_TESTS=1 and a testbed that is set
//! up (`make test` sees to both).

use std::path::Path;
use std::process::{Command, Output};

fn wanted() -> bool {
    std::env::var("DEMETER_VM_TESTS").is_ok_and(|value| value == "1")
}

fn demeter(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_demeter"))
        .args(arguments)
        .output()
        .expect("demeter starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// One line `demeter: error: …; next: …` and nothing else.
fn assert_one_error(output: &Output, status: i32) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(status), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.starts_with("demeter: error: "), "{text}");
    assert!(text.contains("; next: "), "{text}");
}

fn nothing_half_written(place: &Path) {
    for entry in std::fs::read_dir(place).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        assert!(!name.contains(".tmp-"), "{name} is left");
    }
}

#[test]
fn wrong_usage_is_refused_in_one_line() {
    assert_one_error(
        &demeter(&["vm", "run", "--tmm", "nonsense", "--", "true"]),
        2,
    );
    assert_one_error(&demeter(&["vm", "run"]), 2);
    assert_one_error(&demeter(&["vm", "run", "--fmem", "1M", "--", "true"]), 2);
}

#[test]
fn missing_testbed_is_one_line() {
    let place = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_demeter"))
        .args(["vm", "run", "--", "true"])
        .env("DEMETER_CACHE", place.path())
        .current_dir(place.path())
        .output()
        .unwrap();
    assert_one_error(&output, 1);
    assert!(stderr(&output).contains("testbed/setup.sh"));
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn output_and_status_are_passed_on() {
    if !wanted() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("r");
    let output = demeter(&[
        "vm",
        "run",
        "--out",
        out.to_str().unwrap(),
        "--",
        "sh",
        "-c",
        "echo out; echo err >&2; (sleep 0.01 &); exit 7",
    ]);
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "out\nerr\n");
    for name in [
        "manifest.json",
        "series.jsonl",
        "summary.json",
        "console.log",
        "command.log",
    ] {
        assert!(out.join(name).is_file(), "{name}");
    }
    nothing_half_written(place.path());
}

#[test]
fn unknown_command_is_127() {
    if !wanted() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("r");
    let output = demeter(&[
        "vm",
        "run",
        "--out",
        out.to_str().unwrap(),
        "--",
        "no-such-program",
    ]);
    assert_one_error(&output, 127);
    nothing_half_written(place.path());
}

#[test]
fn panicking_guest_is_told_and_its_console_kept() {
    if !wanted() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("r");
    let output = demeter(&[
        "vm",
        "run",
        "--out",
        out.to_str().unwrap(),
        "--",
        "sh",
        "-c",
        "echo c >/proc/sysrq-trigger",
    ]);
    assert_one_error(&output, 1);
    assert!(stderr(&output).contains("panicked"), "{}", stderr(&output));
    assert!(!out.exists());
    assert!(place.path().join("r.failed/console.log").is_file());
    nothing_half_written(place.path());
}

#[test]
fn hanging_guest_is_bounded() {
    if !wanted() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("r");
    let output = demeter(&[
        "vm",
        "run",
        "--timeout",
        "3",
        "--out",
        out.to_str().unwrap(),
        "--",
        "true",
    ]);
    assert_one_error(&output, 1);
    assert!(stderr(&output).contains("within 3 s"));
    assert!(place.path().join("r.failed/console.log").is_file());
}

#[test]
fn equal_input_gives_equal_digests() {
    if !wanted() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let digest = |name: &str| {
        let out = place.path().join(name);
        let output = demeter(&[
            "vm",
            "run",
            "--roi",
            "self",
            "--tmm",
            "demeter",
            "--out",
            out.to_str().unwrap(),
            "--",
            "/demeter/workloads",
            "gups",
            "--updates",
            "2000000",
        ]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let text = std::fs::read_to_string(out.join("summary.json")).unwrap();
        let summary: serde_json::Value = serde_json::from_str(&text).unwrap();
        summary["digest"].as_str().unwrap().to_owned()
    };
    assert_eq!(digest("a"), digest("b"));
}
