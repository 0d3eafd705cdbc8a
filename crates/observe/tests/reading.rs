// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A module's directory made by hand, byte by byte as `uapi/` lays it out: what is
//! read of it, and what is said where it is not as it should be. The real module is
//! read in `tests/suites/observe`.

use std::fs;
use std::path::{Path, PathBuf};

use demeter_observe::ledger::{Kind, Ledger, Origin, Source, Standing};
use demeter_observe::{Error, Module, State, heat, ledger, metrics};
use proptest::prelude::*;

/// Numbers one after the other.
#[derive(Default, Clone)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn u32s(mut self, numbers: &[u32]) -> Self {
        for number in numbers {
            self.0.extend(number.to_ne_bytes());
        }
        self
    }

    fn u64s(mut self, numbers: &[u64]) -> Self {
        for number in numbers {
            self.0.extend(number.to_ne_bytes());
        }
        self
    }

    fn zeros(mut self, bytes: usize) -> Self {
        self.0.resize(self.0.len() + bytes, 0);
        self
    }
}

const PID: u32 = 42;

/// Two ranges; `more` bytes at the end of header and records, as a later version has.
fn ranges(version: u32, more: u32) -> Vec<u8> {
    let pad = more as usize;
    let mut bytes = Bytes::default()
        .u64s(&[heat::MAGIC])
        .u32s(&[version, 72 + more, 56 + more, 2])
        .u64s(&[7, 5_000_000_000])
        .u32s(&[8, 0, 1, 0])
        .u64s(&[1 << 0, 1 << 1])
        .zeros(pad);
    for (start, rate, fmem, smem) in [(1 << 30, 512, 512, 0), (1 << 31, 128, 0, 1024)] {
        bytes = bytes
            .u32s(&[3, PID])
            .u64s(&[start, start + (4 << 20), rate, fmem, smem])
            .u32s(&[9, 1])
            .zeros(pad);
    }
    bytes.0
}

/// One account and that of those gone; one decision.
fn books(more: u32) -> Vec<u8> {
    let pad = more as usize;
    let mut bytes = Bytes::default()
        .u64s(&[ledger::MAGIC])
        .u32s(&[
            ledger::VERSION,
            128 + more,
            16,
            320 + more,
            152 + more,
            3,
            2,
            1,
        ])
        .u64s(&[6_000_000_000, 8, 2, 1, 0, 0, 1])
        .u64s(&[3000, (-500_i64) as u64, 0, 0])
        .zeros(pad);
    for name in ["ok", "unmapped", "file"] {
        bytes.0.extend(name.as_bytes());
        bytes = bytes.zeros(16 - name.len());
    }
    for (space, pid, origin, pages, gain) in [(0, 0, 3, 10, 1000_i64), (3, PID, 1, 20, -1500)] {
        bytes = bytes
            .u32s(&[space, pid, origin, 0])
            .u64s(&[1, pages, pages / 2, 5, 1500, gain as u64])
            .u64s(&[0, 0, pages * 2])
            .zeros(8 * 29 + pad);
    }
    bytes = bytes
        .u64s(&[1, 5_500_000_000, 6])
        .u32s(&[1, 0, 3, PID])
        .u64s(&[1 << 31, (1 << 31) + (4 << 20)])
        .u32s(&[3, PID])
        .u64s(&[1 << 30, (1 << 30) + (4 << 20)])
        .u64s(&[100, 90, 20])
        .u32s(&[2, 3])
        .u64s(&[18, 1000, 250, 1500, (-1500_i64) as u64])
        .zeros(pad);
    bytes.0
}

/// A directory as the module makes it, with totals that fit [`books`].
struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self {
            directory: tempfile::tempdir().unwrap(),
        };
        for (name, content) in [
            ("demeter/enabled", "0\n"),
            ("demeter/sampler", "pebs\n"),
            ("demeter/sampler_delivery", "trace\n"),
            ("demeter/params/epoch_ms", "500\n"),
            ("demeter/params/auto_min_bytes", "18446744073709551615\n"),
            ("demeter/stats/epochs", "8\n"),
            ("demeter/stats/samples", "1000\n"),
            ("demeter/stats/fmem_samples", "600\n"),
            ("demeter/stats/smem_samples", "400\n"),
            ("demeter/stats/latency_gap_ps", "108000\n"),
            ("demeter/stats/promoted_pages", "30\n"),
            ("demeter/stats/demoted_pages", "15\n"),
            ("demeter/stats/filled_pages", "10\n"),
            ("demeter/stats/refused/file", "60\n"),
            ("demeter/stats/refused/pinned", "0\n"),
            ("demeter/stats/time_ns/scan", "2500000000\n"),
            ("demeter/stats/gain/decisions", "2\n"),
            ("demeter/stats/gain/open_decisions", "1\n"),
            ("demeter/stats/gain/predicted_ns", "3000\n"),
            ("demeter/stats/gain/realised_ns", "-500\n"),
            ("demeter/stats/plans/no_gain", "8\n"),
            ("demeter/stats/some_later_word", "whatever\n"),
            ("demeter/groups/web/cgroup", "/web.slice\n"),
            ("demeter/groups/web/state", "present\n"),
            ("demeter/groups/web/floor_bytes", "1048576\n"),
            ("demeter/groups/web/cap_bytes", "max\n"),
            ("demeter/groups/web/fmem_bytes", "2097152\n"),
            ("demeter/groups/web/smem_bytes", "4194304\n"),
            ("demeter/groups/web/worth_bytes", "3145728\n"),
            ("demeter/groups/web/due_bytes", "1048576\n"),
            ("demeter/groups/web/processes", "1\n"),
            (
                "node/node0/meminfo",
                "Node 0 MemTotal:  2048 kB\nNode 0 MemFree: 4 kB\n",
            ),
            ("proc/42/comm", "gups \"x\"\\\n"),
        ] {
            place.write(name, content.as_bytes());
        }
        place.write("demeter/ranges", &ranges(heat::VERSION, 0));
        place.write("demeter/ledger", &books(0));
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, content: &[u8]) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn read(&self) -> Result<State, Error> {
        let module =
            |directory: &Path| Module::at(directory, &self.path("node"), &self.path("proc")).read();
        module(&self.path("demeter"))
    }
}

#[test]
fn tiers_of_several_nodes_are_summed() {
    let place = Place::new();
    let mut bytes = ranges(heat::VERSION, 0);
    // Nodes 0 and 2, and 1 and 63.
    bytes[56..64].copy_from_slice(&0b101_u64.to_ne_bytes());
    bytes[64..72].copy_from_slice(&(1 << 63 | 2_u64).to_ne_bytes());
    place.write("demeter/ranges", &bytes);
    let meminfo = b"Node 2 MemTotal: 1024 kB\nNode 2 MemFree: 8 kB\n";
    place.write("node/node2/meminfo", meminfo);
    place.write("demeter/nodes/node2/resident_pages", b"3\n");
    let state = place.read().unwrap();
    let fmem = &state.tiers[0];
    let nodes: Vec<u32> = fmem.nodes.iter().map(|node| node.node).collect();
    assert_eq!((fmem.node, &nodes[..]), (0, &[0, 2][..]));
    assert_eq!(fmem.total_bytes, Some(3072 << 10));
    assert_eq!(fmem.free_bytes, Some(12 << 10));
    assert_eq!(fmem.nodes[1].managed_bytes, Some(3 << 12));
    assert_eq!(fmem.nodes[0].managed_bytes, None);
    // What one of them does not say is not known of the tier.
    assert_eq!(state.heat.smem_nodes, [1, 63]);
    assert_eq!(state.tiers[1].total_bytes, None);
    // Before they are chosen there are none.
    bytes[56..72].fill(0);
    place.write("demeter/ranges", &bytes);
    assert!(place.read().unwrap().tiers[0].nodes.is_empty());
    // A module that tells no lists has a node a tier.
    bytes.drain(56..72);
    bytes[12..16].copy_from_slice(&56_u32.to_ne_bytes());
    place.write("demeter/ranges", &bytes);
    assert_eq!(place.read().unwrap().heat.smem_nodes, [1]);
}

#[test]
fn everything_is_read() {
    let place = Place::new();
    let state = place.read().unwrap();
    assert!(!state.enabled);
    assert_eq!(
        (&*state.sampler, &*state.sampler_delivery),
        ("pebs", "trace")
    );
    assert_eq!(state.params["epoch_ms"], 500);
    assert_eq!(state.params["auto_min_bytes"], i64::MAX);
    assert_eq!(state.stat("refused/file"), 60);
    assert_eq!(state.stat("no_such_file"), 0);
    assert!(!state.stats.contains_key("some_later_word"));
    assert_eq!(state.tiers[0].total_bytes, Some(2 << 20));
    assert_eq!(state.tiers[0].free_bytes, Some(4096));
    assert_eq!(state.tiers[0].managed_bytes, 2 << 20);
    assert_eq!(state.tiers[1].total_bytes, None);
    let [target] = &state.targets[..] else {
        panic!("{:?}", state.targets);
    };
    assert_eq!((target.space, target.pid, target.ranges), (3, PID, 2));
    assert_eq!(target.command.as_deref(), Some("gups \"x\"\\"));
    assert_eq!((target.fmem_bytes, target.smem_bytes), (2 << 20, 4 << 20));
    assert!((target.samples - 2.5).abs() < 1e-9);

    let ledger = state.ledger.as_ref().unwrap();
    assert_eq!((ledger.decisions_taken, ledger.realised_ns), (2, -500));
    assert_eq!(ledger.gone.as_ref().unwrap().promoted_pages, 10);
    let [account] = &ledger.accounts[..] else {
        panic!("{:?}", ledger.accounts);
    };
    assert_eq!(
        (account.origin, account.realised_ns),
        (Origin::Cgroup, -1500)
    );
    assert_eq!(account.refused_pages.len(), 1);
    assert_eq!(account.refused_pages["file"], 40);
    let [decision] = &ledger.decisions[..] else {
        panic!("{:?}", ledger.decisions);
    };
    assert_eq!(
        (decision.kind, decision.standing),
        (Kind::Swap, Standing::Open)
    );
    assert_eq!(decision.source, Some(Source::Touch));
    assert_eq!((decision.hot.start, decision.hot.pid), (1 << 31, PID));
    assert_eq!(decision.cold.as_ref().unwrap().start, 1 << 30);
    assert_eq!((decision.planned_pages, decision.moved_pages), (100, 90));
    assert_eq!(decision.reason.as_deref(), Some("file"));
    assert_eq!((decision.refused_pages, decision.reason_pages), (20, 18));
    assert_eq!((decision.lasts_ns, decision.age_ns), (1000, 250));
    assert_eq!((decision.predicted_ns, decision.realised_ns), (1500, -1500));

    let [group] = &state.groups[..] else {
        panic!("{:?}", state.groups);
    };
    assert_eq!((&*group.name, &*group.cgroup), ("web", "/web.slice"));
    assert_eq!((group.floor_bytes, group.cap_bytes), (1 << 20, None));
    assert_eq!((group.fmem_bytes, group.processes), (2 << 20, 1));

    // What a socket carries is what was read.
    let json = serde_json::to_string(&state).unwrap();
    assert_eq!(serde_json::from_str::<State>(&json).unwrap(), state);
}

/// The field was reserved and 0 before; numbers of later versions are no error.
#[test]
fn a_source_that_is_not_told_or_not_known() {
    let bytes = books(0);
    let at = bytes.len() - 44;
    for (number, source) in [
        (0, None),
        (1, Some(Source::Pebs)),
        (2, Some(Source::Ibs)),
        (4, Some(Source::None)),
        (99, Some(Source::Other)),
    ] {
        let mut bytes = bytes.clone();
        bytes[at..at + 4].copy_from_slice(&u32::to_ne_bytes(number));
        assert_eq!(Ledger::parse(&bytes).unwrap().decisions[0].source, source);
    }
    let mut json = serde_json::to_value(&Ledger::parse(&bytes).unwrap().decisions[0]).unwrap();
    assert_eq!(json["source"], "touch");
    json.as_object_mut().unwrap().remove("source");
    let decision: ledger::Decision = serde_json::from_value(json).unwrap();
    assert_eq!(decision.source, None);
}

#[test]
fn later_versions_may_append() {
    let place = Place::new();
    let first = place.read().unwrap();
    place.write("demeter/ranges", &ranges(heat::VERSION, 24));
    place.write("demeter/ledger", &books(40));
    assert_eq!(place.read().unwrap(), first);
}

#[test]
fn books_are_held_against_the_totals() {
    let place = Place::new();
    assert_eq!(place.read().unwrap().imbalance(), Vec::<String>::new());
    for (path, wrong) in [
        ("promoted_pages", "31\n"),
        ("refused/file", "59\n"),
        ("refused/pinned", "1\n"),
        ("gain/realised_ns", "-501\n"),
    ] {
        let file = format!("demeter/stats/{path}");
        let right = fs::read(place.path(&file)).unwrap();
        place.write(&file, wrong.as_bytes());
        let imbalance = place.read().unwrap().imbalance();
        assert_eq!(imbalance.len(), 1, "{imbalance:?}");
        assert!(imbalance[0].starts_with(path), "{imbalance:?}");
        place.write(&file, &right);
    }
}

#[test]
fn what_is_wrong_is_said() {
    let place = Place::new();
    place.write("demeter/ranges", &ranges(heat::VERSION + 1, 0));
    let error = place.read().unwrap_err();
    assert!(error.to_string().contains("version is 2"), "{error}");
    assert!(error.next().contains("same version"));
    place.write("demeter/ranges", b"not a dump at all, but long enough");
    assert!(matches!(place.read(), Err(Error::Foreign { .. })));
    // Cut short, as by another reader that comes and goes: given up in the end.
    place.write("demeter/ranges", &ranges(heat::VERSION, 0)[..100]);
    let error = place.read().unwrap_err();
    assert!(
        error.to_string().contains("ends after 100 bytes"),
        "{error}"
    );
    place.write("demeter/ranges", &ranges(heat::VERSION, 0));

    // So is a group that tells no number; a module without groups is shown.
    place.write("demeter/groups/web/cap_bytes", b"many\n");
    let error = place.read().unwrap_err();
    assert!(error.to_string().contains("no number"), "{error}");
    fs::remove_dir_all(place.path("demeter/groups")).unwrap();
    assert!(place.read().unwrap().groups.is_empty());

    // A module without a ledger is shown as far as it goes.
    fs::remove_file(place.path("demeter/ledger")).unwrap();
    let state = place.read().unwrap();
    assert!(state.ledger.is_none() && state.imbalance().is_empty());
    assert!(state.targets[0].account.is_none());
    metrics::text(&state).unwrap();

    fs::remove_file(place.path("demeter/sampler")).unwrap();
    assert!(matches!(place.read(), Err(Error::File { .. })));
    fs::remove_dir_all(place.path("demeter")).unwrap();
    let error = place.read().unwrap_err();
    assert!(error.to_string().contains("is not loaded"), "{error}");
    assert!(error.next().contains("modprobe"));
}

fn value(scrape: &prometheus_parse::Scrape, name: &str, labels: &[(&str, &str)]) -> f64 {
    let found: Vec<f64> = (scrape.samples.iter())
        .filter(|sample| {
            let has = |(label, value): &(&str, &str)| sample.labels.get(label) == Some(*value);
            sample.metric == name && labels.iter().all(has)
        })
        .map(|sample| match sample.value {
            prometheus_parse::Value::Counter(value)
            | prometheus_parse::Value::Gauge(value)
            | prometheus_parse::Value::Untyped(value) => value,
            ref other => panic!("{name}: {other:?}"),
        })
        .collect();
    assert_eq!(found.len(), 1, "{name} {labels:?}: {found:?}");
    found[0]
}

fn parse(text: &str) -> prometheus_parse::Scrape {
    let lines = text.lines().map(|line| Ok(line.to_owned()));
    prometheus_parse::Scrape::parse(lines).unwrap()
}

#[test]
fn metrics_are_what_a_parser_takes_for_them() {
    let state = Place::new().read().unwrap();
    let text = metrics::text(&state).unwrap();
    assert!(text.ends_with("# EOF\n"));
    let scrape = parse(&text);
    assert!((scrape.samples.iter()).all(|sample| sample.metric.starts_with("demeter_guest_")));
    for (name, labels, wanted) in [
        ("demeter_guest_enabled", &[][..], 0.0),
        ("demeter_guest_samples_total", &[], 1000.0),
        (
            "demeter_guest_tier_samples_total",
            &[("tier", "smem")],
            400.0,
        ),
        (
            "demeter_guest_tier_size_bytes",
            &[("tier", "fmem")],
            2097152.0,
        ),
        ("demeter_guest_promoted_bytes_total", &[], 30.0 * 4096.0),
        (
            "demeter_guest_refused_bytes_total",
            &[("reason", "file")],
            60.0 * 4096.0,
        ),
        (
            "demeter_guest_stage_seconds_total",
            &[("stage", "scan")],
            2.5,
        ),
        ("demeter_guest_latency_gap_seconds", &[], 108e-9),
        ("demeter_guest_realised_gain_seconds", &[], -5e-7),
        ("demeter_guest_decisions", &[("standing", "open")], 1.0),
        ("demeter_guest_plans_total", &[("end", "no_gain")], 8.0),
        (
            "demeter_guest_target_memory_bytes",
            &[("pid", "42"), ("tier", "smem")],
            4194304.0,
        ),
        (
            "demeter_guest_group_memory_bytes",
            &[("group", "web"), ("tier", "fmem")],
            2097152.0,
        ),
        (
            "demeter_guest_group_floor_bytes",
            &[("group", "web")],
            1048576.0,
        ),
        (
            "demeter_guest_target_realised_gain_seconds",
            &[("space", "3")],
            -1.5e-6,
        ),
    ] {
        let seen = value(&scrape, name, labels);
        assert!(
            (seen - wanted).abs() <= wanted.abs() * 1e-9,
            "{name} is {seen}"
        );
    }
}

/// What a real module's metrics look like to a parser; `tests/suites/observe` names
/// the file.
#[test]
#[ignore = "reads what a guest printed: tests/suites/observe"]
fn metrics_of_a_guest() {
    let path = std::env::var("DEMETER_METRICS").expect("DEMETER_METRICS names the file");
    let scrape = parse(&fs::read_to_string(path).unwrap());
    assert!(value(&scrape, "demeter_guest_samples_total", &[]) > 0.0);
    assert!(value(&scrape, "demeter_guest_promoted_bytes_total", &[]) > 0.0);
    assert!(
        value(
            &scrape,
            "demeter_guest_tier_managed_bytes",
            &[("tier", "fmem")]
        ) > 0.0
    );
    assert!(scrape.samples.len() > 60, "{}", scrape.samples.len());
}

proptest! {
    /// Any bytes, and any change of good ones: no panic, and no room taken for
    /// records that are not there.
    #[test]
    fn any_bytes_at_all(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = heat::Heat::parse(&bytes);
        let _ = Ledger::parse(&bytes);
    }

    #[test]
    fn any_change(at in 0_usize..1000, to in any::<u64>()) {
        for (mut bytes, is_heat) in [(ranges(heat::VERSION, 0), true), (books(0), false)] {
            let at = at % (bytes.len() - 8);
            bytes[at..at + 8].copy_from_slice(&to.to_ne_bytes());
            if is_heat {
                let _ = heat::Heat::parse(&bytes);
            } else {
                let _ = Ledger::parse(&bytes);
            }
        }
    }
}
