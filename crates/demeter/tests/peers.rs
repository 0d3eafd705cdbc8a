// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Published managers in guests, by `tests/suites/peers` (`--include-ignored`).

use std::process::Command;

use serde_json::Value;

/// GUPS whose hot half of FMEM was touched last, and so lies in SMEM; the summary.
fn gups(options: &[&str]) -> Value {
    gups_of("6000000", options)
}

fn gups_of(updates: &str, options: &[&str]) -> Value {
    let guest = ["--fmem", "32M", "--smem", "64M", "--thp", "never"];
    gups_with(
        &[&guest, options].concat(),
        &["--footprint", "64M", "--hot", "16M", "--updates", updates],
    )
}

/// GUPS that uses its hot part only; the summary.
fn gups_with(options: &[&str], array: &[&str]) -> Value {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("run");
    let output = Command::new(env!("CARGO_BIN_EXE_demeter"))
        .args(["vm", "run", "--json", "--roi", "self", "--out"])
        .arg(&out)
        .args(options)
        .args(["--", "/demeter/workloads", "gups"])
        .args(array)
        .args(["--hot-permille", "1000"])
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

/// The other hypervisors find the hot set, too: by bits of their table, or by the guest's page
/// tables, whose accessed bits they take from its memory. Each pays for what it does.
#[test]
#[ignore = "boots guests: tests/suites/peers"]
fn hypervisors_bring_what_is_hot() {
    const HOT_PAGES: u64 = (16 << 20) / 4096;
    const UPDATES: &str = "3000000";
    let host = |summary: &Value, name: &str| summary["whole"]["hypervisor"][name].clone();
    let second = |value: Value| value[1].as_u64().unwrap();
    for row in ["raminate", "heteroos", "vtmm"] {
        let summary = gups_of(UPDATES, &["--tmm", row]);
        assert_eq!(summary["kernel_trouble"], serde_json::json!([]), "{row}");
        let free_bytes = summary["free_bytes"].as_object().unwrap();
        assert_eq!(free_bytes.len(), 1, "{row}: the guest has one node");
        let promoted = summary["promoted_pages"].as_u64().unwrap();
        assert!(
            (HOT_PAGES..HOT_PAGES * 5 / 4).contains(&promoted),
            "{row}: {promoted} pages"
        );
        assert!(summary["demoted_pages"].as_u64().unwrap() >= promoted / 2);
        let share = summary["last_quarter"]["fmem_share"].as_f64().unwrap();
        assert!(share > 0.9, "{row}: {share}");
        // Nobody of the guest waits for a page; threads of the host move them.
        assert_eq!(host(&summary, "violations"), 0, "{row}");
        assert!(host(&summary, "host_s").as_f64().unwrap() > 0.0, "{row}");
        let flushes = host(&summary, "flushes_asked");
        let [scans, moves] = [0, 2].map(|by| flushes[by].as_u64().unwrap());
        assert!(scans > 0, "{row}");
        // One for each pair, two, or two for each batch of 512.
        let (least, most) = match row {
            "raminate" => (promoted, promoted),
            "heteroos" => (promoted, 2 * promoted),
            _ => (2, promoted / 100),
        };
        assert!(
            (least..=most).contains(&moves),
            "{row}: {moves} of {promoted}"
        );
        // The walker's marks, and no others unless tables are protected.
        let exits = second(host(&summary, "tracking_exits"));
        assert_eq!(exits > HOT_PAGES, row == "heteroos", "{row}: {exits}");
        if row == "raminate" {
            let watched = ["--tmm", row, "--peer-set", "raminate.interval_moves=0"];
            let watched = gups_of(UPDATES, &watched);
            assert_eq!(watched["promoted_pages"], 0);
            // Published: about 70 % fewer writes to slow memory.
            let [before, after] =
                [&watched, &summary].map(|of| second(host(of, "store_lines")) as f64);
            assert!(after < 0.3 * before, "{after} of {before}");
        }
    }
}

/// Pages of 2 MiB move whole, and the guest waits for half a million nanoseconds of copying.
#[test]
#[ignore = "boots guests: tests/suites/peers"]
fn a_host_of_huge_pages_moves_them_whole() {
    let summary = gups_of(
        "3000000",
        &[
            "--tmm",
            "tpp-h-2m",
            "--peer-set",
            "tpp-h-2m.scan_period_max_ms=100",
        ],
    );
    assert_eq!(summary["kernel_trouble"], serde_json::json!([]));
    for moved in ["promoted_pages", "demoted_pages"] {
        let pages = summary[moved].as_u64().unwrap();
        assert!(pages > 0 && pages.is_multiple_of(512), "{moved}: {pages}");
    }
    // An entry of the TLB is no larger than the guest's page, of 4 KiB here.
    let hypervisor = &summary["whole"]["hypervisor"];
    assert!(hypervisor["hint_faults"].as_u64().unwrap() > 0);
    let promoted = summary["promoted_pages"].as_u64().unwrap();
    let copied_s = (promoted / 512) as f64 * 500e-6;
    assert!(hypervisor["waited_s"].as_f64().unwrap() > copied_s);
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

/// Pages of 2 MiB with four samples come to FMEM in the place of cold ones, and stay.
#[test]
#[ignore = "boots guests: tests/suites/peers"]
fn hemem_promotes_whole_pages_of_2_mib() {
    const HOT_PAGES: u64 = (16 << 20) / 4096;
    let summary = gups(&["--tmm", "hemem"]);
    assert_eq!(summary["kernel_trouble"], serde_json::json!([]));

    let promoted = summary["promoted_pages"].as_u64().unwrap();
    assert!(
        (HOT_PAGES..=HOT_PAGES + 1024).contains(&promoted),
        "{promoted} pages"
    );
    let demoted = summary["demoted_pages"].as_u64().unwrap();
    assert!(demoted + 512 >= promoted, "{demoted} pages");
    let share = summary["last_quarter"]["fmem_share"].as_f64().unwrap();
    assert!(share > 0.95, "{share}");
    assert_eq!(stat(&summary, "lost_samples"), 0);
    // Far fewer samples than pages of 4 KiB, and counts were halved by them.
    assert!(stat(&summary, "samples") < HOT_PAGES && stat(&summary, "coolings") > 0);
    let time_ns = (summary["whole"]["time_s"].as_f64().unwrap() * 1e9) as u64;
    assert!(stat(&summary, "burnt_ns") > time_ns, "two cores spin");
    assert!(stat(&summary, "unreachable_ns") > 0);
}

/// What was accessed between two looks comes to FMEM, huge pages by exchange.
#[test]
#[ignore = "boots guests: tests/suites/peers"]
fn nimble_exchanges_active_huge_pages_for_inactive_ones() {
    const HOT_PAGES: u64 = (24 << 20) / 4096;
    let huge = |exchange: &str| {
        let pages = ["--fmem", "64M", "--smem", "160M", "--thp", "always"];
        let row = ["--tmm", "nimble", "--peer-set", exchange];
        let hot = [
            "--footprint",
            "96M",
            "--hot",
            "24M",
            "--pages",
            "huge",
            "--bind-hot",
            "1",
            "--updates",
            "6000000",
        ];
        gups_with(&[&pages[..], &row].concat(), &hot)
    };
    let summary = huge("nimble.exchange=1");
    assert_eq!(summary["kernel_trouble"], serde_json::json!([]));
    let promoted = summary["promoted_pages"].as_u64().unwrap();
    assert!(promoted >= HOT_PAGES / 2, "{promoted} pages");
    // Both pages of a pair count.
    let exchanged = stat(&summary, "exchanged_huge_pages");
    assert!(
        exchanged >= 2 && exchanged.is_multiple_of(2),
        "{exchanged} huge pages"
    );
    assert!(exchanged / 2 * 512 <= promoted, "{exchanged} {promoted}");
    let stage_ns = |name: &str| summary["stage_ns"][name].as_u64().unwrap();
    assert!(stage_ns("track") > 0 && stage_ns("migrate") > 0);
    assert!(stat(&summary, "copy_ns") > 0);
    assert!(stat(&summary, "activated_pages") > 0);

    let moves = huge("nimble.exchange=0");
    assert_eq!(stat(&moves, "exchanged_huge_pages"), 0);
    assert_eq!(stat(&moves, "copy_ns"), 0);
}

/// Two guests above one hypervisor: FMEM goes to the one whose hot set is larger than its equal
/// part, and the runs are equal, digit by digit.
#[test]
#[ignore = "boots guests: tests/suites/peers"]
fn guests_of_one_hypervisor_share_fmem() {
    let place = tempfile::tempdir().unwrap();
    let script = place.path().join("gups.sh");
    let text = "if [ \"$DEMETER_VM\" = 0 ]; then hot=24M; updates=6000000; \
                else hot=1M; updates=24000000; fi\n\
                exec /demeter/workloads gups --footprint 48M --hot $hot --hot-permille 1000 \
                --updates $updates\n";
    std::fs::write(&script, text).unwrap();
    let copy = format!("{}:/tmp/gups.sh", script.display());
    let run = |name: &str, row: &str, command: &[&str]| {
        let out = place.path().join(name);
        let output = Command::new(env!("CARGO_BIN_EXE_demeter"))
            .args([
                "vm", "run", "--json", "--roi", "self", "--vms", "2", "--tmm", row,
            ])
            .args([
                "--fmem", "16M", "--smem", "48M", "--thp", "never", "--copy", &copy, "--out",
            ])
            .arg(&out)
            .arg("--")
            .args(command)
            .output()
            .expect("demeter starts");
        (output, out)
    };
    let play = |name: &str, row: &str| {
        let (output, out) = run(name, row, &["sh", "/tmp/gups.sh"]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{text}");
        let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
        let digests = ["vm0", "vm1"].map(|guest| {
            let text = std::fs::read(out.join(guest).join("summary.json")).unwrap();
            let summary: Value = serde_json::from_slice(&text).unwrap();
            assert_eq!(summary["kernel_trouble"], serde_json::json!([]));
            summary["digest"].as_str().unwrap().to_owned()
        });
        (summary, digests)
    };
    for row in ["tpp-h", "heteroos"] {
        let (summary, digests) = play(row, row);
        assert_eq!(summary["fmem_pool_bytes"], 32 << 20);
        let mib =
            |guest: usize, of: &str| summary["guests"][guest]["fmem"][of].as_u64().unwrap() >> 20;
        assert!(mib(0, "most_bytes") >= 20, "{summary}");
        assert!(mib(1, "last_bytes") < 16, "{summary}");
        if row == "heteroos" {
            assert_eq!(play("again", row).1, digests);
        }
    }
    // One that ends before it was measured, and one that fails: nobody waits for them.
    let early = "if [ \"$DEMETER_VM\" = 1 ]; then exit 3; fi; exec sh /tmp/gups.sh";
    let (output, _) = run("early", "tpp-h", &["sh", "-c", early]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert_eq!(
        text.lines().filter(|line| line.contains("error")).count(),
        1,
        "{text}"
    );
    // A region of interest for each guest, not two.
    let twice = "sh /tmp/gups.sh && exec sh /tmp/gups.sh";
    let (output, _) = run("twice", "tpp-h", &["sh", "-c", twice]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("switched on again"), "{text}");
}
