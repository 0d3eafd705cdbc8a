// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter vm record` and `demeter sim`: a simulated manager does what the live one
//! does. What boots guests is ignored but for `tests/suites/vm`.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn demeter(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_demeter"))
        .args(arguments)
        .output()
        .expect("demeter starts")
}

fn json(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn assert_one_error(output: &Output, status: i32, told: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains(told) && text.contains("; next: "), "{text}");
}

#[test]
fn what_is_no_record_is_refused_in_one_line() {
    assert_one_error(&demeter(&["sim", "/no/such/record"]), 1, "No such file");
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("accesses.bin");
    std::fs::write(&file, "{}").unwrap();
    for record in [&file, &place.path().to_owned()] {
        let output = demeter(&["sim", record.to_str().unwrap()]);
        assert_one_error(&output, 1, "no recording of accesses");
    }
    let sockets = ["vm", "record", "out", "--sockets", "2", "--", "true"];
    assert_one_error(&demeter(&sockets), 2, "one socket");
    for value in ["x", "65536"] {
        let set = format!("latency_threshold_ns={value}");
        let threshold = ["vm", "record", "out", "--set", &set, "--", "true"];
        assert_one_error(&demeter(&threshold), 2, "no number of nanoseconds");
    }
}

#[test]
fn hosts_that_cannot_be_are_refused_before_a_record_is_read() {
    for (words, told) in [
        ("--policy external", "no policy `external`"),
        ("--policy nobody", "choose from: static, proportional"),
        ("--guests 2 --sweep fmem=1M,2M", "one guest by itself"),
        ("--guests 2 --tmm ideal", "does not change"),
        ("--tmm tpp-h --policy static", "by itself"),
        ("--tmm hemem --guests 2", "one guest by itself"),
        ("--tmm memtis --policy static", "one guest by itself"),
        ("--tmm nimble --set epoch_ms=5", "--peer-set nimble"),
        (
            "--tmm memtis --peer-set memtis.nonsense=1",
            "no knob 'nonsense'",
        ),
    ] {
        let words = ["sim", "/no/such/record"]
            .into_iter()
            .chain(words.split(' '));
        assert_one_error(&demeter(&words.collect::<Vec<_>>()), 2, told);
    }
    assert_one_error(
        &demeter(&["sim", "/no/such/record", "--guests", "2"]),
        1,
        "No such file",
    );
}

fn number(of: &Value, field: &str) -> f64 {
    let value = of.pointer(field).and_then(Value::as_f64);
    value.unwrap_or_else(|| panic!("{field}: {of}"))
}

fn assert_close(what: &str, simulated: f64, live: f64) {
    assert_within(0.05, what, simulated, live);
}

fn assert_within(share: f64, what: &str, simulated: f64, live: f64) {
    println!("{what}: simulated {simulated:.4}, live {live:.4}");
    assert!(
        (simulated - live).abs() <= share * live.abs(),
        "{what}: {simulated} in the simulator, {live} in the guest"
    );
}

/// A short GUPS, recorded under first touch and run live: the same is gained, to within a
/// twentieth, and what is hot ends in FMEM to the same share. (When within an epoch a run
/// begins is chance: it is long enough for an epoch of learning to be a seventieth of the gain.)
/// A record that is cut short is told.
#[test]
#[ignore = "boots guests: tests/suites/vm"]
fn simulator_and_guest_agree() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let (record, live) = (path("record"), path("live"));
    let options = "--json --roi self --kernel 7.x --fmem 64M --smem 288M --";
    let gups = "/demeter/workloads gups --footprint 280M --hot 20M --updates 24000000 --pages huge";
    let guest: Vec<&str> = options.split(' ').chain(gups.split(' ')).collect();
    let recorded = json(&demeter(
        &[&["vm", "record", record.as_str()][..], &guest].concat(),
    ));
    let options = ["vm", "run", "--tmm", "demeter", "--out", live.as_str()];
    let live = json(&demeter(&[&options[..], &guest].concat()));
    let simulated = json(&demeter(&["sim", &record, "--json"]));
    let row = simulated.pointer("/rows/0").unwrap();

    // What was recorded, played as it was, takes what it took.
    let (none_s, recorded_s) = (number(row, "/none_s"), number(&recorded, "/time_s"));
    assert!(
        (none_s / recorded_s - 1.0).abs() < 0.001,
        "{none_s} {recorded_s}"
    );
    let live_s = number(&live, "/whole/time_s");
    assert_close("gain", none_s - number(row, "/time_s"), recorded_s - live_s);
    assert_close(
        "last quarter's fills from FMEM",
        number(row, "/fmem_share_last_quarter"),
        number(&live, "/last_quarter/fmem_share"),
    );
    let again = demeter(&["sim", &record, "--json"]);
    assert_eq!(json(&again), simulated);

    let file = Path::new(&record).join("accesses.bin");
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    assert_one_error(&demeter(&["sim", &record]), 1, "cut short");
}

/// The same above a hypervisor that places the guest's pages: time, moves and flushes are within a
/// twentieth, and what is served by FMEM in the end is within a tenth.
#[test]
#[ignore = "boots guests: tests/suites/vm"]
fn simulated_and_live_hypervisor_agree() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let (record, live) = (path("record"), path("live"));
    let options = "--json --roi self --kernel 7.x --fmem 64M --smem 288M";
    let gups =
        "-- /demeter/workloads gups --footprint 280M --hot 20M --updates 24000000 --pages huge";
    let words = |head: &[&str], more: &str| {
        let rest = [options, more, gups].map(|words| words.split_whitespace());
        demeter(
            &head
                .iter()
                .copied()
                .chain(rest.into_iter().flatten())
                .collect::<Vec<_>>(),
        )
    };
    json(&words(&["vm", "record", &record], "--machine ept_2m=0"));
    let live = json(&words(&["vm", "run", "--tmm", "tpp-h", "--out", &live], ""));
    let simulated = json(&demeter(&["sim", &record, "--tmm", "tpp-h", "--json"]));
    for (what, here, there) in [
        ("time", "/guests/0/time_s", "/whole/time_s"),
        ("promoted", "/promoted_pages", "/promoted_pages"),
        ("demoted", "/demoted_pages", "/demoted_pages"),
        (
            "flushes",
            "/hypervisor/flushes_done",
            "/whole/hypervisor/flushes_done",
        ),
        (
            "violations",
            "/hypervisor/violations",
            "/whole/hypervisor/violations",
        ),
        (
            "host's time",
            "/hypervisor/host_s",
            "/whole/hypervisor/host_s",
        ),
    ] {
        assert_close(what, number(&simulated, here), number(&live, there));
    }
    let shares = [
        number(&simulated, "/guests/0/fmem_share_last_quarter"),
        number(&live, "/last_quarter/fmem_share"),
    ];
    assert!((shares[0] / shares[1] - 1.0).abs() <= 0.1, "{shares:?}");
}

/// A module of a guest's kernel, live and played, with small pages: with huge ones a few free pages
/// decide when there is room for one, and that is chance (docs/results/simulator.md). What it gains is
/// the same to within a share, or it loses a little, by how much the layout of memory decides from
/// build to build.
fn module_agrees(tmm: &str, gain_within: Option<f64>) {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let options = "--json --roi self --kernel 6.12 --fmem 64M --smem 288M";
    let gups =
        "-- /demeter/workloads gups --footprint 280M --hot 20M --updates 24000000 --pages small";
    let words = |head: &[&str]| {
        let rest = [options, gups].map(|words| words.split_whitespace());
        let rest = rest.into_iter().flatten();
        json(&demeter(
            &head.iter().copied().chain(rest).collect::<Vec<_>>(),
        ))
    };
    let record = path("record");
    let recorded_s = number(&words(&["vm", "record", &record]), "/time_s");
    let live = words(&["vm", "run", "--tmm", tmm, "--out", &path(tmm)]);
    let sim = ["sim", &record, "--tmm", tmm, "--json"];
    let simulated = json(&demeter(&sim));
    let row = simulated.pointer("/rows/0").unwrap();
    let (none_s, time_s) = (number(row, "/none_s"), number(row, "/time_s"));
    let live_s = number(&live, "/whole/time_s");
    if let Some(within) = gain_within {
        let (simulated, live) = (none_s - time_s, recorded_s - live_s);
        assert_within(within, &format!("{tmm}: gain"), simulated, live);
    } else {
        assert!(
            time_s > none_s && live_s > recorded_s,
            "{tmm} {time_s} {live_s}"
        );
        assert_within(0.03, &format!("{tmm}: time"), time_s, live_s);
    }
    assert_close(
        &format!("{tmm}: last quarter's fills from FMEM"),
        number(row, "/fmem_share_last_quarter"),
        number(&live, "/last_quarter/fmem_share"),
    );
    assert_eq!(json(&demeter(&sim)), simulated);
}

#[test]
#[ignore = "boots guests: tests/suites/vm"]
fn a_published_manager_agrees() {
    module_agrees("memtis", Some(0.08));
}

/// The others: by `make test-whole`.
mod every_rival {
    use super::*;

    /// What it gains was 1.7, 4.6 and 6.0 % off in three builds of this guest: in a live run a draw
    /// decides, too.
    #[test]
    #[ignore = "boots guests: tests/suites/vm"]
    fn hemem_agrees() {
        module_agrees("hemem", Some(0.08));
    }

    #[test]
    #[ignore = "boots guests: tests/suites/vm"]
    fn nimble_agrees() {
        module_agrees("nimble", None);
    }
}
