// SPDX-License-Identifier: GPL-2.0-or-later
//! The modelled PMU against stock kernels: what the model wrote, what perf
//! delivered to a user's ring and what demeter.ko took are the same records.
//!
//! Needs the test bed and the modules (`make modules`):
//! `cargo test --release -p demeter-tcg-plugin --test pmu -- --ignored`.

mod harness;

use std::collections::HashMap;
use std::fs;

use demeter_machine::Preset;
use demeter_machine::pmu::Kind;
use demeter_machine::series::RowKind;
use harness::{Guest, near};

const QUIET: &str = "shift=0,sleep=off";

/// Marks of the guest around what demeter.ko samples, and around two threads that perf samples.
const OF_MODULE: [u64; 2] = [1001, 1002];
const OF_PERF: [u64; 2] = [1003, 1004];

/// What the model counted between two marks of the guest: records written, those it had
/// no room for, interrupts.
fn written(guest: &Guest, marks: [u64; 2]) -> [u64; 3] {
    let rows = guest.series();
    let counted = |mark: u64| {
        let row = rows
            .iter()
            .rfind(|row| row.kind == RowKind::Mark && row.value == mark)
            .unwrap_or_else(|| panic!("no mark {mark}\n{}", guest.console()));
        let counters = row.counters;
        [
            counters.samples,
            counters.samples_lost,
            counters.pmu_interrupts,
        ]
    };
    let [begun, ended] = marks.map(counted);
    [0, 1, 2].map(|at| ended[at] - begun[at])
}

fn boot(name: &str, pmu: Kind, kernel: &'static str, tests: &str) -> Guest {
    boot_on(name, pmu, Preset::Pmem, kernel, tests)
}

fn boot_on(name: &str, pmu: Kind, preset: Preset, kernel: &'static str, tests: &str) -> Guest {
    let mut guest = Guest::new(name, 1);
    guest.pmu = pmu;
    guest.preset = preset;
    guest.kernel = kernel;
    booted(guest, tests)
}

fn booted(guest: Guest, tests: &str) -> Guest {
    let guest = guest.with_module();
    let output = guest.boot(tests, QUIET, None);
    assert!(output.status.success(), "{output:?}\n{}", guest.console());
    guest
}

/// Records of a user's ring: each that was written came out, or is a counted loss.
fn check_perf(guest: &Guest, results: &HashMap<String, HashMap<String, u64>>) {
    let ring = &results["samples"];
    assert!(ring["records"] > 0, "{}", guest.console());
    assert_eq!(ring["records"] + ring["lost"], ring["written"], "{ring:?}");
    assert_eq!((ring["lost"], ring["dropped"]), (0, 0), "{ring:?}");
    match guest.pmu {
        // Ops of any kind, the kernel's too: what came from memory says which.
        Kind::Zen4 => {
            assert_eq!(ring["interrupts"], ring["written"], "{ring:?}");
            assert!(ring["inside"] > 50, "{ring:?}");
        }
        _ => {
            assert_eq!((ring["weak"], ring["throttled"]), (0, 0), "{ring:?}");
            near(
                "records",
                ring["inside"] as f64,
                1e6 * 31.0 / 32.0 / 511.0,
                0.03,
            );
            assert!(ring["interrupts"] < 10, "{ring:?}");
        }
    }
    // The source that each record names is where the page is, and of the kind that memory is.
    assert_eq!(ring["match"], ring["fmem"] + ring["smem"], "{ring:?}");
    assert!(ring["fmem"] > 20 && ring["smem"] > 20, "{ring:?}");
    let named = match (guest.pmu, guest.preset) {
        (_, Preset::Pmem) => "pmem",
        (Kind::Zen4, Preset::Cxl) => "cxl",
        // No Intel core that is modelled has CXL: another socket stands in for it.
        (_, Preset::Cxl) => "remote",
    };
    assert_eq!(ring[named], ring["smem"], "{ring:?}");
}

/// The same of demeter.ko: traced, handled or counted as lost. Interrupts taken.
fn check_account(guest: &Guest, results: &HashMap<String, HashMap<String, u64>>) -> u64 {
    let module = results
        .get("module")
        .unwrap_or_else(|| panic!("demeter.ko did not start:\n{}", guest.console()));
    let [written, dropped, interrupts] = written(guest, OF_MODULE);
    assert_eq!(
        module["traced"] + module["handled"] + module["lost_records"],
        written,
        "{module:?}"
    );
    assert_eq!(
        (module["lost_records"], dropped, module["throttled"]),
        (0, 0, 0),
        "{module:?}"
    );
    // What was taken is what the pipeline got, for the program under test or for others.
    assert_eq!(
        module["samples"] + module["stray"] + module["unused"] + module["lost_samples"],
        module["traced"] + module["handled"],
        "{module:?}"
    );
    assert!(module["samples"] > 50, "{module:?}");
    assert!(
        module["fmem"] > 10 && module["smem"] > 10,
        "samples name no tier: {module:?}"
    );
    interrupts
}

fn check_module(guest: &Guest, results: &HashMap<String, HashMap<String, u64>>) {
    let interrupts = check_account(guest, results);
    let module = &results["module"];
    if guest.pmu != Kind::Zen4 {
        // Nearly none needed an interrupt.
        assert!(interrupts < 10, "{interrupts}");
        assert!(module["handled"] <= interrupts, "{module:?}");
    }
}

fn check(name: &str, pmu: Kind, kernel: &'static str) -> Guest {
    check_on(name, pmu, Preset::Pmem, kernel)
}

fn check_on(name: &str, pmu: Kind, preset: Preset, kernel: &'static str) -> Guest {
    let guest = boot_on(name, pmu, preset, kernel, "pD");
    let results = guest.results();
    check_perf(&guest, &results);
    check_module(&guest, &results);
    guest
}

macro_rules! kernels {
    ($($test:ident: $pmu:ident, $preset:ident, $kernel:literal;)*) => {
        $(#[test]
        #[ignore = "boots a guest; needs the test bed and the modules"]
        fn $test() {
            check_on(stringify!($test), Kind::$pmu, Preset::$preset, $kernel);
        })*
    };
}

// Each unit and each memory, and the newest of both makers on each kernel (Ice Lake on 6.12 by the
// test of two boots); every pairing of the three is `every_pairing`.
kernels! {
    icelake_6_1: Icelake, Pmem, "6.1";
    icelake_7: Icelake, Cxl, "7.x";
    skylake_6_12: Skylake, Pmem, "6.12";
    zen4_6_1: Zen4, Cxl, "6.1";
    zen4_6_12: Zen4, Pmem, "6.12";
    zen4_7: Zen4, Pmem, "7.x";
}

/// Two boots, the same bytes; and every record accounted for.
fn twice(pmu: Kind, name: &str) {
    let [first, second] = ["a", "b"].map(|run| check(&format!("{name}-{run}"), pmu, "6.12"));
    assert_eq!(first.console(), second.console());
    let read = |guest: &Guest, file: &str| fs::read(guest.path(file)).unwrap();
    for file in ["series.jsonl", "summary.json"] {
        assert!(read(&first, file) == read(&second, file), "{file} differs");
    }
}

#[test]
#[ignore = "boots two guests; needs the test bed and the modules"]
fn icelake_6_12_twice() {
    twice(Kind::Icelake, "icelake");
}

/// Two threads at once, each on a vCPU of its own: each gets its records, from perf and
/// from demeter.ko.
fn pair(name: &str, pmu: Kind, kernel: &'static str) {
    let mut guest = Guest::new(name, 2);
    guest.pmu = pmu;
    guest.kernel = kernel;
    let guest = booted(guest, "P");
    let results = guest.results();
    let rings = ["pair0", "pair1"].map(|name| &results[name]);
    for ring in rings {
        assert_eq!((ring["lost"], ring["throttled"]), (0, 0), "{ring:?}");
        assert!(ring["inside"] > 50, "{ring:?}");
        assert_eq!(ring["match"], ring["fmem"] + ring["smem"], "{ring:?}");
        // Each thread has memory of its own: in its ring are its records, not the other's.
        if pmu != Kind::Zen4 {
            assert!(ring["records"] - ring["inside"] < 10, "{ring:?}");
        }
    }
    // So no ring has more than its vCPU's PMU wrote, and the sums are equal only where both are.
    let [perf_wrote, perf_dropped, _] = written(&guest, OF_PERF);
    assert_eq!(rings[0]["records"] + rings[1]["records"], perf_wrote);
    assert_eq!(perf_dropped, 0);

    // The same of demeter.ko. What each vCPU wrote beside perf's share, it wrote for the module.
    check_module(&guest, &results);
    let summary = guest.summary();
    assert_eq!(summary.vcpus.len(), 2);
    let mut module_wrote = 0;
    for (vcpu, ring) in summary.vcpus.iter().zip(rings) {
        assert_eq!(vcpu.samples_lost, 0, "{vcpu:?}");
        let of_vcpu = (vcpu.samples.checked_sub(ring["records"]))
            .unwrap_or_else(|| panic!("more than was written: {vcpu:?} {ring:?}"));
        println!(
            "{name}: {} by perf, {of_vcpu} by demeter.ko",
            ring["records"]
        );
        assert!(of_vcpu > 200, "{vcpu:?} {ring:?}");
        module_wrote += of_vcpu;
    }
    assert_eq!(module_wrote, written(&guest, OF_MODULE)[0]);
}

macro_rules! pairs {
    ($($test:ident: $pmu:ident, $kernel:literal;)*) => {
        $(#[test]
        #[ignore = "boots a guest; needs the test bed and the modules"]
        fn $test() {
            pair(stringify!($test), Kind::$pmu, $kernel);
        })*
    };
}

pairs! {
    icelake_two_vcpus: Icelake, "6.12";
    zen4_two_vcpus: Zen4, "6.12";
}

/// With tracing refused, demeter.ko takes an interrupt for each record, and loses none
/// that it does not count.
#[test]
#[ignore = "boots a guest; needs the test bed and the modules"]
fn without_tracing_every_record_costs_an_interrupt() {
    let guest = boot("untraced", Kind::Icelake, "6.12", "U");
    let results = guest.results();
    let module = &results["untraced"];
    let [written, _, interrupts] = written(&guest, OF_MODULE);
    assert_eq!(module["traced"], 0, "{module:?}");
    assert_eq!(
        module["handled"] + module["lost_records"],
        written,
        "{module:?}"
    );
    assert!(interrupts >= module["handled"], "{module:?}");
    assert!(module["samples"] > 50, "{module:?}");
}

/// A program's own perf event and demeter.ko on the same CPU: both get their records.
#[test]
#[ignore = "boots a guest; needs the test bed and the modules"]
fn another_user_of_perf_is_not_disturbed() {
    let guest = boot("shared", Kind::Icelake, "6.12", "B");
    let results = guest.results();
    let (module, ring) = (&results["module"], &results["beside"]);
    let taken = module["traced"] + module["handled"] + module["lost_records"];
    assert_eq!(
        ring["records"] + ring["lost"] + taken,
        written(&guest, OF_MODULE)[0],
        "{module:?} {ring:?}"
    );
    assert!(
        ring["inside"] > 500 && module["samples"] > 50,
        "{module:?} {ring:?}"
    );
}

/// A task that has a perf event, but none of the PMU's: perf does not empty the PMU's
/// buffer when it leaves the CPU, and its records must not become the next task's.
fn own_event(name: &str, kernel: &'static str) {
    let mut guest = Guest::new(name, 1);
    guest.kernel = kernel;
    // As where the PMU is passed through: dear registers would have records come one by one.
    guest.pmu_msr_ns = Some(30);
    let guest = booted(guest, "E");
    let results = guest.results();
    let turns = results
        .get("turns")
        .unwrap_or_else(|| panic!("demeter.ko did not start:\n{}", guest.console()));
    assert!(turns["samples"] > 1500, "{turns:?}");
    assert!(turns["stray"] < 20, "{turns:?}");
}

#[test]
#[ignore = "boots a guest; needs the test bed and the modules"]
fn samples_stay_with_a_task_that_has_another_event_6_12() {
    own_event("turns", "6.12");
}

/// Each record takes an interrupt while a program switches much and is sampled little, and
/// none once it computes: whichever is cheaper. No record is lost between the two.
fn form(name: &str, kernel: &'static str) {
    let guest = boot(name, Kind::Icelake, kernel, "F");
    let results = guest.results();
    check_account(&guest, &results);
    let (switches, computes) = (&results["switches"], &results["computes"]);
    assert_eq!(switches["interrupt_cpus"], 1, "{switches:?}");
    assert!(switches["handled"] > 20, "{switches:?}");
    // Some five registers at 700 ns, twice; and an interrupt with as many.
    assert!(
        (4000..20_000).contains(&switches["switch_cost_ns"])
            && (4000..20_000).contains(&switches["record_cost_ns"]),
        "{switches:?}"
    );
    assert_eq!(computes["interrupt_cpus"], 0, "{computes:?}");
    assert_eq!(computes["changes"], 2, "{computes:?}");
    println!("{name}: {switches:?} {computes:?}");
    let module = &results["module"];
    assert!(module["traced"] > 100, "{module:?}");
}

#[test]
#[ignore = "boots a guest; needs the test bed and the modules"]
fn records_come_in_the_cheaper_form_6_12() {
    form("form", "6.12");
}

/// No PMU: perf finds none, and demeter.ko says so.
#[test]
#[ignore = "boots a guest; needs the test bed and the modules"]
fn without_a_pmu_there_is_none() {
    let guest = boot("none", Kind::None, "6.12", "N");
    let results = guest.results();
    assert!(results["refused"]["errno"] > 0);
    assert!(
        guest.console().contains("sampler pebs refused"),
        "{}",
        guest.console()
    );
}

/// What is left of the pairings, of boots of two and of pairs of vCPUs: by `make test-whole`.
mod every_pairing {
    use super::*;

    kernels! {
        icelake_pmem_7: Icelake, Pmem, "7.x";
        icelake_cxl_6_1: Icelake, Cxl, "6.1";
        icelake_cxl_6_12: Icelake, Cxl, "6.12";
        skylake_cxl_6_1: Skylake, Cxl, "6.1";
        skylake_cxl_7: Skylake, Cxl, "7.x";
        skylake_pmem_6_1: Skylake, Pmem, "6.1";
        skylake_cxl_6_12: Skylake, Cxl, "6.12";
        skylake_pmem_7: Skylake, Pmem, "7.x";
        zen4_pmem_6_1: Zen4, Pmem, "6.1";
        zen4_cxl_6_12: Zen4, Cxl, "6.12";
        zen4_cxl_7: Zen4, Cxl, "7.x";
    }

    pairs! {
        skylake_two_vcpus: Skylake, "6.12";
    }

    #[test]
    #[ignore = "boots two guests; needs the test bed and the modules"]
    fn zen4_6_12_twice() {
        twice(Kind::Zen4, "zen4");
    }

    #[test]
    #[ignore = "boots two guests; needs the test bed and the modules"]
    fn skylake_6_12_twice() {
        twice(Kind::Skylake, "skylake");
    }

    #[test]
    #[ignore = "boots a guest; needs the test bed and the modules"]
    fn samples_stay_with_a_task_that_has_another_event_7() {
        own_event("turns-7", "7.x");
    }
}
