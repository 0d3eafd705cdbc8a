// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Published managers in guests, by `tests/suites/peers` (`--include-ignored`).

use std::process::Command;

use serde_json::Value;

/// GUPS whose hot half of FMEM was touched last, and so lies in SMEM; the summary.
fn gups(options: &[&str]) -> Value {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("run");
    let output = Command::new(env!("CARGO_BIN_EXE_demeter"))
        .args(["vm", "run", "--json", "--roi", "self", "--out"])
        .arg(&out)
        .args(["--fmem", "32M", "--smem", "64M", "--thp", "never"])
        .args(options)
        .args(["--", "/demeter/workloads", "gups", "--footprint", "64M"])
        .args(["--hot", "16M", "--hot-permille", "1000"])
        .args(["--updates", "6000000"])
        .output()
        .expect("demeter starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{text}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn stat(summary: &Value, name: &str) -> u64 {
    let text = &summary["manager_files"][format!("stats/{name}")];
    let text = text.as_str().unwrap_or_else(|| panic!("no {name}"));
    text.trim().parse().unwrap()
}

/// The hot set comes to FMEM, by as many faults as its pages, and what it displaces goes.
#[test]
#[ignore = "boots guests: tests/suites/peers"]
fn tpp_promotes_the_hot_set_at_its_hint_faults() {
    const HOT_PAGES: u64 = (16 << 20) / 4096;
    let summary = gups(&["--tmm", "tpp", "--peer-set", "tpp.stages=1"]);
    assert_eq!(summary["tmm"], "tpp");
    assert_eq!(summary["kernel_trouble"], serde_json::json!([]));

    let promoted = summary["promoted_pages"].as_u64().unwrap();
    assert!(promoted >= HOT_PAGES / 2, "{promoted} pages");
    assert!(summary["demoted_pages"].as_u64().unwrap() >= promoted / 2);
    let share = |phase: &str| summary[phase]["fmem_share"].as_f64().unwrap();
    assert!(share("last_quarter") > 0.6, "{summary}");
    assert!(share("last_quarter") > share("whole"), "{summary}");

    // Nothing is promoted but by a hint fault, and no fault is answered twice.
    let [faults, inactive, yes] =
        ["hint_faults", "hint_faults_inactive", "answered_yes"].map(|name| stat(&summary, name));
    assert!(
        yes >= promoted && faults >= yes,
        "{faults} {yes} {promoted}"
    );
    // What was inactive would have faulted 15 or 16 times more.
    let repeats = stat(&summary, "repeat_faults");
    assert!(
        inactive > 0 && (15 * inactive..=16 * inactive).contains(&repeats),
        "{inactive} {repeats}"
    );
    assert!(stat(&summary, "kswapd_wakes") > 0);
    let stage_ns = |name: &str| summary["stage_ns"][name].as_u64().unwrap();
    assert!(stage_ns("track") > 0 && stage_ns("classify") > 0 && stage_ns("migrate") > 0);
}

/// In the hypervisor: the hot set comes, too, by hint faults. What tells it from the guest's
/// own are whole flushes of the TLB by the thousand, most of them to see who was accessed.
#[test]
#[ignore = "boots guests: tests/suites/peers"]
fn tpp_in_the_hypervisor_promotes_and_flushes() {
    const HOT_PAGES: u64 = (16 << 20) / 4096;
    let [old, new] = ["tpp-h", "tpp-h-noflush"].map(|row| gups(&["--tmm", row]));
    for summary in [&old, &new] {
        assert_eq!(summary["kernel_trouble"], serde_json::json!([]));
        let free_bytes = summary["free_bytes"].as_object().unwrap();
        assert_eq!(free_bytes.len(), 1, "the guest has one node");
        let promoted = summary["promoted_pages"].as_u64().unwrap();
        assert!(promoted >= HOT_PAGES / 4, "{promoted} pages");
        let share = |phase: &str| summary[phase]["fmem_share"].as_f64().unwrap();
        assert!(share("last_quarter") > share("whole"), "{summary}");
        // Its worker is the host's: nothing of it is the guest kernel's.
        let hypervisor = &summary["whole"]["hypervisor"];
        let hint_faults = hypervisor["hint_faults"].as_u64().unwrap();
        assert!(hint_faults >= promoted, "{hint_faults} {promoted}");
        assert!(hypervisor["violations"].as_u64().unwrap() >= hint_faults);
    }
    let flushes = |summary: &Value, by: usize| {
        let asked = &summary["whole"]["hypervisor"]["flushes_asked"];
        asked[by].as_u64().unwrap()
    };
    let own = |summary: &Value| {
        let whole = &summary["whole"];
        whole["tlb_full"].as_u64().unwrap() + whole["tlb_single"].as_u64().unwrap()
    };
    assert!(flushes(&old, 1) > 1000, "{old}");
    // The order of the paper's Table 1: the same manager in the guest flushes less, and is faster.
    let guest = gups(&["--tmm", "tpp"]);
    assert!(guest["whole"].get("hypervisor").is_none());
    assert!(flushes(&old, 1) > 10 * own(&guest), "{guest}");
    let time_s = |summary: &Value| summary["whole"]["time_s"].as_f64().unwrap();
    assert!(time_s(&guest) < time_s(&new) && time_s(&new) < time_s(&old));
    assert_eq!(flushes(&new, 1), 0);
    for by in [0, 2] {
        assert!(flushes(&old, by) > 0 && flushes(&new, by) > 0);
    }
}

/// Without repeated faults a page has to be found by three scans first.
#[test]
#[ignore = "boots guests: tests/suites/peers"]
fn tpp_activates_first_what_is_not_active() {
    let summary = gups(&["--tmm", "tpp", "--peer-set", "tpp.repeat_faults=0"]);
    let [faults, inactive, yes] =
        ["hint_faults", "hint_faults_inactive", "answered_yes"].map(|name| stat(&summary, name));
    assert!(inactive > 0, "all were active");
    assert_eq!(faults, inactive + yes, "promoted while inactive");
    assert_eq!(stat(&summary, "repeat_faults"), 0);
}

/// What is sampled in SMEM comes to FMEM, and sampling keeps to its share of the CPU.
#[test]
#[ignore = "boots guests: tests/suites/peers"]
fn memtis_promotes_what_it_samples() {
    const HOT_PAGES: u64 = (16 << 20) / 4096;
    let quick = ["--peer-set", "memtis.quota_ms=100"];
    let tight = ["--peer-set", "memtis.quota_permille=10"];
    let summary = gups(&[&["--tmm", "memtis"], &quick[..], &tight[..]].concat());
    assert_eq!(summary["kernel_trouble"], serde_json::json!([]));

    let promoted = summary["promoted_pages"].as_u64().unwrap();
    assert!(
        (HOT_PAGES / 2..HOT_PAGES * 3 / 2).contains(&promoted),
        "{promoted} pages"
    );
    assert!(summary["demoted_pages"].as_u64().unwrap() >= promoted / 2);
    let share = summary["last_quarter"]["fmem_share"].as_f64().unwrap();
    assert!(share > 0.8, "{share}");
    assert!(stat(&summary, "samples") > 1000);
    assert_eq!(stat(&summary, "lost_samples"), 0);
    assert!(
        stat(&summary, "period") > 199,
        "a third of the quota, and still the shortest period"
    );
    let stage_ns = |name: &str| summary["stage_ns"][name].as_u64().unwrap();
    assert!(stage_ns("track") > 0 && stage_ns("classify") > 0 && stage_ns("migrate") > 0);
}
