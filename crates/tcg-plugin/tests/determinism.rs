// SPDX-License-Identifier: GPL-2.0-or-later
//! Boots the test guest under the plugin and checks what only a boot can show:
//! the clock, the figures of known access patterns, sampled addresses, errors,
//! and that two runs give the same bytes.
//!
//! Needs the test bed (`testbed/setup.sh`) and a C compiler:
//! `cargo test --release -p demeter-tcg-plugin -- --ignored`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::{env, fs, thread};

use demeter_machine::bar::BAR_BYTES;
use demeter_machine::pmu::Kind;
use demeter_machine::series::{Counters, RowKind, SeriesRow, Summary};
use serde_json::{Value, json};

// Two of these exceed the 512 MiB below which Linux turns huge pages off.
const NODE_BYTES: u64 = 320 << 20;
const TIMEOUT: &str = "600";
const CPU: &str = "max,la57=off,-rdrand,-rdseed,-monitor,-erms,-fsrm,-svm";

struct Guest {
    dir: PathBuf,
    vcpus: u32,
    pmu: Kind,
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn testbed() -> Value {
    let cache = env::var_os("DEMETER_CACHE")
        .map(PathBuf::from)
        .unwrap_or_else(|| {
            let base = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
            base.unwrap_or_else(|| PathBuf::from(env::var_os("HOME").expect("HOME")).join(".cache"))
                .join("demeter")
        });
    let path = cache.join("testbed.json");
    let text = fs::read(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; run testbed/setup.sh", path.display()));
    serde_json::from_slice(&text).unwrap()
}

/// The plugin of the profile this test was built in.
fn plugin() -> PathBuf {
    let deps = env::current_exe().unwrap().parent().unwrap().to_owned();
    [
        deps.join("libdemeter_tcg_plugin.so"),
        deps.with_file_name("libdemeter_tcg_plugin.so"),
    ]
    .into_iter()
    .find(|path| path.exists())
    .expect("libdemeter_tcg_plugin.so is not built")
}

/// One "newc" member.
fn cpio(archive: &mut Vec<u8>, name: &str, mode: u32, device: (u32, u32), data: &[u8]) {
    let header = format!(
        "070701{:08x}{mode:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}",
        0,
        0,
        0,
        1,
        0,
        data.len(),
        0,
        0,
        device.0,
        device.1,
        name.len() + 1,
        0,
    );
    let pad = |archive: &mut Vec<u8>| archive.resize(archive.len().next_multiple_of(4), 0);
    archive.extend(header.bytes());
    archive.extend(name.bytes());
    archive.push(0);
    pad(archive);
    archive.extend(data);
    pad(archive);
}

fn initrd(dir: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guest/init.c");
    let init = dir.join("init");
    let status = Command::new("cc")
        .args(["-O2", "-static", "-pthread", "-o"])
        .arg(&init)
        .arg(source)
        .status()
        .expect("cc");
    assert!(status.success(), "the test guest does not compile");
    let mut archive = Vec::new();
    cpio(&mut archive, "dev", 0o040_755, (0, 0), &[]);
    cpio(&mut archive, "dev/console", 0o020_600, (5, 1), &[]);
    cpio(
        &mut archive,
        "init",
        0o100_755,
        (0, 0),
        &fs::read(init).unwrap(),
    );
    cpio(&mut archive, "TRAILER!!!", 0, (0, 0), &[]);
    let path = dir.join("initrd.cpio");
    fs::write(&path, archive).unwrap();
    path
}

impl Guest {
    fn new(name: &str, vcpus: u32) -> Self {
        let root = if Path::new("/dev/shm").is_dir() {
            PathBuf::from("/dev/shm")
        } else {
            env::temp_dir()
        };
        let dir = root.join(format!("demeter-plugin-test-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Self {
            dir,
            vcpus,
            pmu: Kind::Icelake,
        }
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// Boots and runs `tests`; `extra` replaces parts of the command line.
    fn boot(&self, tests: &str, icount: &str, plugin_argument: Option<&str>) -> Output {
        let testbed = testbed();
        let config = json!({
            "bar": self.path("bar"),
            "nodes": [{"path": self.path("n0"), "size_bytes": NODE_BYTES},
                      {"path": self.path("n1"), "size_bytes": NODE_BYTES}],
            "series": self.path("series.jsonl"),
            "summary": self.path("summary.json"),
            "series_interval_ns": 10_000_000,
            "machine": {"preset": "pmem"},
            "pmu": self.pmu,
        });
        fs::write(self.path("config.json"), config.to_string()).unwrap();
        let argument = plugin_argument.map_or_else(
            || format!("config={}", self.path("config.json")),
            str::to_owned,
        );
        let file = |id: &str, bytes: u64, name: &str| {
            format!(
                "memory-backend-file,id={id},size={bytes},share=on,mem-path={}",
                self.path(name)
            )
        };
        let strings = |value: &Value| -> Vec<String> {
            value
                .as_array()
                .unwrap()
                .iter()
                .map(|word| word.as_str().unwrap().to_owned())
                .collect()
        };
        let mut command = Command::new("timeout");
        command.arg(TIMEOUT).args(strings(&testbed["qemu"]["argv"]));
        for (name, value) in testbed["qemu"]["env"].as_object().unwrap() {
            command.env(name, value.as_str().unwrap());
        }
        command
            .args(["-machine", "q35,usb=off", "-accel", "tcg,thread=single", "-icount", icount])
            .args(["-cpu", &format!("{CPU},{}", self.pmu.cpu_properties()), "-seed", "42"])
            .args(["-smp", &self.vcpus.to_string()])
            .args(["-rtc", "base=2026-01-01,clock=vm", "-m", "640M", "-nodefaults", "-display", "none", "-no-reboot"])
            .args(["-object", &file("m0", NODE_BYTES, "n0")])
            .args(["-numa", &format!("node,nodeid=0,cpus=0-{},memdev=m0", self.vcpus - 1)])
            .args(["-object", &file("m1", NODE_BYTES, "n1"), "-numa", "node,nodeid=1,memdev=m1"])
            .args(["-object", &file("bar", BAR_BYTES as u64, "bar"), "-device", "ivshmem-plain,memdev=bar"])
            .args(["-plugin", &format!("{},{argument}", plugin().display())])
            .args(["-serial", &format!("file:{}", self.path("console")), "-initrd"])
            .arg(initrd(&self.dir))
            .args(["-kernel", testbed["kernels"][0]["vmlinuz"].as_str().unwrap(), "-append"])
            .arg(format!(
                "console=ttyS0 quiet panic=-1 nokaslr norandmaps mitigations=off nopti nopcid no5lvl idle=halt nmi_watchdog=0 \
                 tsc=reliable clocksource=tsc random.trust_cpu=off numa_balancing=disable T={tests}"
            ));
        let output = command.output().expect("timeout(1)");
        let _ = fs::remove_file(self.path("n0"));
        let _ = fs::remove_file(self.path("n1"));
        output
    }

    fn console(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.path("console")).unwrap_or_default())
            .replace('\r', "")
    }

    /// The guest's "RESULT name key=value …" lines.
    fn results(&self) -> HashMap<String, HashMap<String, u64>> {
        let console = self.console();
        assert!(
            console.contains("DONE"),
            "the guest did not finish:\n{console}"
        );
        console
            .lines()
            .filter_map(|line| line.strip_prefix("RESULT "))
            .map(|line| {
                let mut words = line.split_whitespace();
                let name = words.next().unwrap().to_owned();
                let values = words
                    .filter_map(|word| word.split_once('='))
                    .map(|(key, value)| (key.to_owned(), value.parse().unwrap()));
                (name, values.collect())
            })
            .collect()
    }

    fn summary(&self) -> Summary {
        serde_json::from_slice(&fs::read(self.path("summary.json")).unwrap()).unwrap()
    }

    fn series(&self) -> Vec<SeriesRow> {
        let text = fs::read_to_string(self.path("series.jsonl")).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

fn near(what: &str, found: f64, expected: f64, tolerance: f64) {
    println!("{what}: {found:.4e}, expected {expected:.4e}");
    assert!(
        (found - expected).abs() <= tolerance * expected,
        "{what}: {found} is not within {tolerance} of {expected}"
    );
}

/// Keeps the host busy while `run` runs.
fn under_load<T>(run: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                std::hint::spin_loop();
            }
        });
        let result = run();
        stop.store(true, Relaxed);
        result
    })
}

/// The part of the series between two switches, by the mark inside.
fn region(rows: &[SeriesRow], mark: u8) -> (&SeriesRow, &SeriesRow) {
    let at = rows
        .iter()
        .position(|row| row.kind == RowKind::Mark && row.value == u64::from(mark))
        .unwrap();
    let end = rows[at..]
        .iter()
        .find(|row| row.kind == RowKind::Progress)
        .unwrap();
    (&rows[at], end)
}

fn check_figures(guest: &Guest) {
    let results = guest.results();
    let rows = guest.series();

    // The guest sees what is charged, switched on or off.
    for name in ["clock0", "clock1"] {
        near(
            name,
            results[name]["seen_ns"] as f64,
            results[name]["charged_ns"] as f64,
            0.001,
        );
    }
    near("sleep", results["sleep"]["seen_ns"] as f64, 5e8, 0.002);

    // Inside a region the guest's clock is instructions and charges, nothing else.
    for (name, mark) in [("g", b'g'), ("a", b'a')] {
        let (start, end) = region(&rows, mark);
        let insn_ns = (end.counters.insn - start.counters.insn) as f64 * 0.3;
        let charged_ns = (end.counters.charged_ps - start.counters.charged_ps) as f64 / 1000.0;
        let clock_ns = (end.t_ns - start.t_ns) as f64;
        near(
            &format!("{name}: model"),
            insn_ns + charged_ns,
            clock_ns,
            0.001,
        );
        near(
            &format!("{name}: guest"),
            results[name]["spent_ns"] as f64,
            clock_ns,
            0.001,
        );
    }
    // Uninstrumented code runs at the same modelled speed.
    near(
        "off",
        results["off"]["spent_ns"] as f64,
        results["a"]["spent_ns"] as f64,
        0.003,
    );

    // Random updates of 64 MiB on both nodes: 2 MiB of LLC serve 1/32.
    let (start, end) = region(&rows, b'g');
    let loads = |row: &SeriesRow| {
        (
            row.counters.fmem_loads_user as f64,
            row.counters.smem_loads_user as f64,
        )
    };
    let (fmem, smem) = (loads(end).0 - loads(start).0, loads(end).1 - loads(start).1);
    near("FMEM loads", fmem, 5e5 * 31.0 / 32.0, 0.02);
    near("SMEM loads", smem, 5e5 * 31.0 / 32.0, 0.02);
    // STLB: 1536 of 16384 pages.
    near(
        "walks",
        (end.counters.walk_4k - start.counters.walk_4k) as f64,
        1e6 * (1.0 - 1536.0 / 16384.0),
        0.02,
    );

    // The two placements differ by the latency gap.
    let gap_ns = results["smem"]["spent_ns"] as f64 - results["fmem"]["spent_ns"] as f64;
    near(
        "latency gap",
        gap_ns / 1e6,
        (176.6 - 68.7) * 31.0 / 32.0,
        0.02,
    );
    // Huge pages need next to no walks: what is left is the miss.
    let per_update_ns = results["thp"]["spent_ns"] as f64 / 1e6;
    assert!(
        (68.7..80.0).contains(&per_update_ns),
        "{per_update_ns} ns an update with huge pages in FMEM"
    );

    // Records carry the physical address of their page, before and after it moved.
    near(
        "records",
        results["samples"]["inside"] as f64,
        1e6 * 31.0 / 32.0 / 511.0,
        0.03,
    );
    for name in ["samples", "moving0", "moving1", "moving2", "moving3"] {
        let result = &results[name];
        assert!(result["inside"] > 500, "{name}: {result:?}");
        assert_eq!(result["match"], result["inside"], "{name}: {result:?}");
        assert_eq!(result["lost"], 0, "{name}");
    }

    // The series and the summary agree, and time never goes back.
    assert!(rows.is_sorted_by_key(|row| row.t_ns));
    assert!(rows.iter().filter(|row| row.kind == RowKind::Tick).count() > 20);
    let summary = guest.summary();
    assert_eq!(summary.rows, rows.len() as u64);
    assert_eq!(
        summary.counters.samples,
        rows.last().unwrap().counters.samples
    );
    assert_eq!(summary.selftest_charged_ns, 200_000_000);
}

/// Boots twice, the second time on a busy host, and compares every byte.
fn two_identical_boots(name: &str, vcpus: u32, tests: &str) -> Guest {
    let first = Guest::new(&format!("{name}-quiet"), vcpus);
    let output = first.boot(tests, "shift=0,sleep=off", None);
    assert!(output.status.success(), "{output:?}\n{}", first.console());

    let second = Guest::new(&format!("{name}-loaded"), vcpus);
    let output = under_load(|| second.boot(tests, "shift=0,sleep=off", None));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(first.console(), second.console());
    let read = |guest: &Guest, name| fs::read_to_string(guest.path(name)).unwrap();
    assert!(
        read(&first, "series.jsonl") == read(&second, "series.jsonl"),
        "the series differ"
    );
    assert_eq!(read(&first, "summary.json"), read(&second, "summary.json"));
    first
}

/// Accessed bits follow the modelled TLB, not QEMU's.
fn check_accessed_bits(guest: &Guest) {
    let results = guest.results();
    let rows = guest.series();
    for (name, mark, page_kib) in [("bits4k", b'4', 4), ("bits2m", b'2', 2048)] {
        let result = &results[name];
        println!("{name}: {result:?}");
        assert_eq!(result["cleared"], 0, "{name}");
        // Those that the kernel had driven out meanwhile, and no others.
        let (start, end) = region(&rows, mark);
        let walks = |row: &SeriesRow| row.counters.walk_4k + row.counters.walk_2m;
        let walked_kib = (walks(end) - walks(start)) * page_kib;
        assert!(
            result["kept"] <= walked_kib,
            "{name}: {walked_kib} KiB walked"
        );
        assert!(result["kept"] * 8 <= result["kib"], "{name}: {result:?}");
        assert_eq!(result["evicted"], result["kib"], "{name}");
    }
}

/// Events are counted one by one and cost what is configured.
fn check_events(guest: &Guest) {
    let results = guest.results();
    let rows = guest.series();
    let machine = guest.summary().machine;
    let of = |mark, field: fn(&Counters) -> u64| {
        let (start, end) = region(&rows, mark);
        field(&end.counters) - field(&start.counters)
    };
    assert_eq!(of(b'f', |c| c.exceptions), results["events"]["faults"]);
    // The kernel waits a few times itself.
    assert!((1_000_000..1_000_100).contains(&of(b'u', |c| c.pauses)));
    near(
        "pause",
        results["events"]["pause_ns"] as f64,
        // With the loop's three instructions.
        1e6 * (machine.pause_ns as f64 + 0.9),
        0.01,
    );
    // Linux's tick: 250 a second.
    near(
        "interrupts",
        of(b'i', |c| c.interrupts) as f64,
        results["events"]["work_ns"] as f64 / 4e6,
        0.05,
    );
    for mark in *b"fui" {
        assert_eq!(
            of(mark, |c| c.event_ps),
            1000 * (of(mark, |c| c.exceptions) * machine.exception_ns
                + of(mark, |c| c.interrupts) * machine.interrupt_ns
                + of(mark, |c| c.pauses) * machine.pause_ns
                + of(mark, |c| c.tlb_single) * machine.invlpg_ns
                + of(mark, |c| c.cr3_writes) * machine.cr3_write_ns)
        );
        assert_eq!(of(mark, |c| c.tlb_full), 0);
    }
}

#[test]
#[ignore = "boots two guests; needs the test bed"]
fn figures_are_right_and_two_boots_are_identical() {
    let guest = two_identical_boots("one", 1, "cnagkqtpmbx");
    check_figures(&guest);
    check_accessed_bits(&guest);
    check_events(&guest);
}

#[test]
#[ignore = "boots two guests; needs the test bed"]
fn two_vcpus_have_their_own_tlbs_and_rings_and_a_fixed_order() {
    let guest = two_identical_boots("two", 2, "cs");
    let results = guest.results();
    // Each vCPU samples into its own ring, and sees pages where the other one
    // has moved them: its TLB was shot down, not the mover's.
    for round in 1..=4 {
        for vcpu in 0..2 {
            let name = format!("two{round}-{vcpu}");
            let result = &results[&name];
            assert!(result["inside"] > 500, "{name}: {result:?}");
            assert_eq!(result["match"], result["inside"], "{name}: {result:?}");
            assert_eq!(result["lost"], 0, "{name}");
        }
    }
    near(
        "clock1",
        results["clock1"]["seen_ns"] as f64,
        results["clock1"]["charged_ns"] as f64,
        0.001,
    );
    let summary = guest.summary();
    let [first, second] = summary.vcpus[..] else {
        panic!("{} vCPUs", summary.vcpus.len());
    };
    for vcpu in [first, second] {
        assert!(vcpu.insn > 10_000_000 && vcpu.charged_ps > 0, "{vcpu:?}");
        assert!(vcpu.tlb_single + vcpu.tlb_full >= 4, "{vcpu:?}");
    }
    let all = summary.counters;
    assert_eq!(all.insn, first.insn + second.insn);
    assert_eq!(all.charged_ps, first.charged_ps + second.charged_ps);
    assert_eq!(all.tlb_single, first.tlb_single + second.tlb_single);
    assert_eq!(all.tlb_full, first.tlb_full + second.tlb_full);
    assert_eq!(all.samples, first.samples + second.samples);
    let reports = guest.series();
    let reports = reports.iter().filter(|row| row.kind == RowKind::Progress);
    assert_eq!(
        reports.map(|row| row.value).collect::<Vec<_>>(),
        [1, 2, 3, 4]
    );
}

#[test]
#[ignore = "starts QEMU; needs the test bed"]
fn bad_input_ends_in_one_line() {
    let guest = Guest::new("errors", 1);
    let broken = guest.path("broken.json");
    fs::write(&broken, r#"{"bar":"x"}"#).unwrap();
    for (icount, argument, expected) in [
        (
            "shift=0,sleep=off",
            Some("config=/nonexistent"),
            "/nonexistent",
        ),
        (
            "shift=0,sleep=off",
            Some(format!("config={broken}").as_str()),
            "missing field",
        ),
        ("shift=0,sleep=off", Some("colour=red"), "unknown argument"),
        ("shift=3,sleep=off", None, "-icount shift=0"),
    ] {
        let output = guest.boot("", icount, argument);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(
            stderr.starts_with("demeter-plugin: error: ") && stderr.contains("; next: "),
            "{stderr}"
        );
        assert!(stderr.contains(expected), "{stderr}");
    }
    let many = Guest::new("many", 129);
    let output = many.boot("", "shift=0,sleep=off", None);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("has 129 vCPUs, the model supports 128"),
        "{stderr}"
    );
}
