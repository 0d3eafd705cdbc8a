// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Prometheus metrics, made anew at every scrape from what the control
//! interface shows: there is one truth.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use demeter_balloon::NodeStatistics;
use demeter_balloon::view::{Churn, Stage, VmView};
use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry, Unit};

use crate::refusals::Interface;

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct VmLabel {
    vm: String,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TierLabel {
    vm: String,
    tier: String,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ViolationLabel {
    vm: String,
    reason: String,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RefusalLabel {
    interface: &'static str,
    status: u16,
}

type Gauges<Label> = Family<Label, Gauge<u64, AtomicU64>>;
type Counters<Label> = Family<Label, Counter<u64, AtomicU64>>;

/// A tier's number.
type OfTier = fn(&VmView, usize) -> Option<u64>;

/// Name, help, unit, value.
const TIER_GAUGES: [(&str, &str, Unit, OfTier); 8] = [
    ("total", "memory of the tier", Unit::Bytes, |vm, at| {
        Some(vm.tiers[at].total_bytes)
    }),
    ("size", "left to the guest", Unit::Bytes, |vm, at| {
        Some(vm.tiers[at].size_bytes)
    }),
    (
        "wanted_size",
        "wanted to be left to the guest",
        Unit::Bytes,
        |vm, at| vm.tiers[at].wanted_size_bytes,
    ),
    ("balloon", "held by the balloon", Unit::Bytes, |vm, at| {
        Some(vm.tiers[at].balloon_bytes)
    }),
    ("backing", "allocated on the host", Unit::Bytes, |vm, at| {
        vm.tiers[at].backing_bytes
    }),
    (
        "kept",
        "of the balloon, allocated on the host again: the guest has touched it",
        Unit::Bytes,
        |vm, at| vm.tiers[at].kept_bytes,
    ),
    (
        "free",
        "free above what its kernel keeps free, as the guest says",
        Unit::Bytes,
        |vm, at| Some(vm.statistics.as_ref()?.nodes.get(at)?.free_pages << 12),
    ),
    (
        "hot",
        "ranked for FMEM, as the guest says",
        Unit::Bytes,
        |vm, at| {
            let statistics = vm.statistics.as_ref().filter(|s| s.has_tmm)?;
            Some(statistics.nodes.get(at)?.hot_pages << 12)
        },
    ),
];

/// Name, help, value.
const TIER_COUNTERS: [(&str, &str, Option<Unit>, OfTier); 7] = [
    ("reports", "reports taken", None, |vm, at| {
        Some(vm.tiers[at].traffic.reports)
    }),
    ("punches", "holes punched", None, |vm, at| {
        Some(vm.tiers[at].traffic.punches)
    }),
    (
        "inflated",
        "went into the balloon",
        Some(Unit::Bytes),
        |vm, at| Some(vm.tiers[at].traffic.inflated_pages << 12),
    ),
    (
        "deflated",
        "came out of the balloon",
        Some(Unit::Bytes),
        |vm, at| Some(vm.tiers[at].traffic.deflated_pages << 12),
    ),
    (
        "promoted",
        "moved in from a slower tier, as the guest says",
        Some(Unit::Bytes),
        |vm, at| Some(node(vm, at)?.promoted_pages.saturating_mul(4096)),
    ),
    (
        "demoted",
        "moved in from a faster tier, as the guest says",
        Some(Unit::Bytes),
        |vm, at| Some(node(vm, at)?.demoted_pages.saturating_mul(4096)),
    ),
    (
        "samples",
        "accesses that were sampled, as the guest says",
        None,
        |vm, at| {
            let said = vm.statistics.as_ref().filter(|said| said.has_tmm)?;
            [said.fmem_samples, said.smem_samples].get(at).copied()
        },
    ),
];

fn node(vm: &VmView, at: usize) -> Option<&NodeStatistics> {
    vm.statistics.as_ref()?.nodes.get(at)
}

/// A machine's number.
type OfVm = fn(&VmView) -> Option<f64>;

/// Name, help, unit, value.
const VM_COUNTERS: [(&str, &str, Option<Unit>, OfVm); 6] = [
    (
        "stalled_some",
        "a task waited for memory, as the guest says",
        Some(Unit::Seconds),
        |vm| {
            let said = vm.statistics.as_ref().filter(|said| said.has_psi)?;
            Some(said.psi_some_us as f64 / 1e6)
        },
    ),
    (
        "stalled_full",
        "all tasks waited for memory, as the guest says",
        Some(Unit::Seconds),
        |vm| {
            let said = vm.statistics.as_ref().filter(|said| said.has_psi)?;
            Some(said.psi_full_us as f64 / 1e6)
        },
    ),
    (
        "refaults",
        "pages read again soon, as the guest says",
        None,
        |vm| Some(vm.statistics.as_ref()?.refaults as f64),
    ),
    (
        "oom_kills",
        "seconds in which it was out of memory with nothing to give back, as the guest says",
        None,
        |vm| Some(vm.statistics.as_ref()?.oom_kills as f64),
    ),
    (
        "oom_deflated",
        "taken back to save the guest, as it says",
        Some(Unit::Bytes),
        |vm| Some(vm.statistics.as_ref()?.oom_deflated_pages as f64 * 4096.0),
    ),
    (
        "worker_deaths",
        "of what serves the guest's device",
        None,
        |vm| Some(vm.worker.deaths as f64),
    ),
];

/// Name, help, unit, value.
const VM_GAUGES: [(&str, &str, Option<Unit>, OfVm); 11] = [
    ("driven", "a driver is there", None, |vm| {
        Some(f64::from(vm.stage == Stage::Driven))
    }),
    ("disabled", "switched off after violations", None, |vm| {
        Some(f64::from(vm.stage == Stage::Disabled))
    }),
    (
        "troubled",
        "something is wrong with it or with how it is served: its view says what (problem)",
        None,
        |vm| Some(f64::from(vm.problem.is_some())),
    ),
    (
        "confined",
        "its device is served by a confined process",
        None,
        |vm| Some(f64::from(is_confined(vm))),
    ),
    (
        "statistics_age",
        "since the guest's newest words",
        Some(Unit::Seconds),
        |vm| Some(vm.statistics_age_ms? as f64 / 1000.0),
    ),
    (
        "memory_wanted",
        "of all tiers, where the policy sizes that",
        Some(Unit::Bytes),
        |vm| Some(vm.sizing?.memory_bytes as f64),
    ),
    (
        "fmem_short",
        "FMEM that the guest has a use for and is not given",
        Some(Unit::Bytes),
        |vm| {
            let sizing = vm.sizing?;
            Some(sizing.fmem_useful_bytes.saturating_sub(sizing.fmem_bytes) as f64)
        },
    ),
    (
        "credit",
        "time at twice its share of FMEM that is left",
        Some(Unit::Seconds),
        |vm| Some(vm.account?.credit_ms as f64 / 1000.0),
    ),
    (
        "credit_spent",
        "its credit was gone and has not come back far enough",
        None,
        |vm| Some(f64::from(vm.account?.spent)),
    ),
    (
        "fmem_share",
        "its part of FMEM by its weight",
        Some(Unit::Bytes),
        |vm| Some(vm.account?.share_bytes? as f64),
    ),
    (
        "fmem_charged",
        "FMEM that it pays for: above its share it borrows, below it lends",
        Some(Unit::Bytes),
        |vm| Some(vm.account?.charged_bytes? as f64),
    ),
];

/// It is a process that a system call out of turn ends.
fn is_confined(vm: &VmView) -> bool {
    (vm.worker.confinement.as_ref()).is_some_and(|confinement| confinement.seccomp)
}

/// A number of churn.
type OfChurn = fn(&Churn) -> u64;

/// Name, help, value.
const CHURN: [(&str, &str, OfChurn); 3] = [
    ("held_back", "times that messages had to wait", |churn| {
        churn.held_back
    }),
    ("untold", "lines left out of the log", |churn| churn.untold),
    ("unwritten", "entries left out of the ledger", |churn| {
        churn.unwritten
    }),
];

/// What the policy has done so far, and what is of no machine.
pub struct Decided {
    /// Its name.
    pub policy: &'static str,
    /// FMEM that it divides.
    pub pool_bytes: u64,
    /// How often.
    pub decisions: u64,
    /// How long that took.
    pub deciding: Duration,
    /// How long the disk under the state directory has not answered.
    pub disk_silent: Duration,
    /// Entries of ledgers that are to be written and are not.
    pub unwritten_entries: u64,
    /// Calls that were refused, by interface and status.
    pub refused_calls: BTreeMap<(Interface, u16), u64>,
    /// Of the page, those with a token that is none.
    pub wrong_tokens: u64,
}

/// The exposition of all machines, and of what the policy has `decided`.
pub fn text(vms: &[VmView], decided: Decided) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::with_prefix("demeter_balloon");
    for (name, help, unit, value) in TIER_GAUGES {
        let family = Gauges::<TierLabel>::default();
        each_tier(vms, value, |label, value| {
            family.get_or_create(&label).set(shown(value));
        });
        registry.register_with_unit(name, help, unit, family);
    }
    for (name, help, unit, value) in TIER_COUNTERS {
        let family = Counters::<TierLabel>::default();
        each_tier(vms, value, |label, value| {
            family.get_or_create(&label).inc_by(value);
        });
        register(&mut registry, name, help, unit, family);
    }
    for (name, help, unit, value) in VM_COUNTERS {
        let family = Family::<VmLabel, Counter<f64, AtomicU64>>::default();
        each_vm(vms, value, |label, value| {
            family.get_or_create(&label).inc_by(value);
        });
        register(&mut registry, name, help, unit, family);
    }
    for (name, help, unit, value) in VM_GAUGES {
        let family = Family::<VmLabel, Gauge<f64, AtomicU64>>::default();
        each_vm(vms, value, |label, value| {
            family.get_or_create(&label).set(value);
        });
        register(&mut registry, name, help, unit, family);
    }
    let violations = Counters::<ViolationLabel>::default();
    let churn = CHURN.map(|_| Counters::<VmLabel>::default());
    for vm in vms {
        for (reason, count) in &vm.violations {
            let label = ViolationLabel {
                vm: vm.name.clone(),
                reason: reason.clone(),
            };
            violations.get_or_create(&label).inc_by(*count);
        }
        let label = VmLabel {
            vm: vm.name.clone(),
        };
        for (family, (_, _, value)) in churn.iter().zip(CHURN) {
            family.get_or_create(&label).inc_by(value(&vm.churn));
        }
    }
    registry.register("violations", "wrong messages of the guest", violations);
    for (family, (name, help, _)) in churn.into_iter().zip(CHURN) {
        registry.register(name, help, family);
    }
    register_refusals(&mut registry, &decided);
    let policy = Counter::<u64, AtomicU64>::default();
    policy.inc_by(decided.decisions);
    registry.register("decisions", "of the policy", policy);
    let deciding = Counter::<f64, AtomicU64>::default();
    deciding.inc_by(decided.deciding.as_secs_f64());
    let help = "time that decisions took, with their requests";
    registry.register_with_unit("deciding", help, Unit::Seconds, deciding);
    let disk = Gauge::<f64, AtomicU64>::default();
    disk.set(decided.disk_silent.as_secs_f64());
    let help = "the disk under the state directory has not answered for so long";
    registry.register_with_unit("state_unanswered", help, Unit::Seconds, disk);
    let unwritten = Gauge::<u64, AtomicU64>::default();
    unwritten.set(shown(decided.unwritten_entries));
    let help = "entries of ledgers that wait for the disk under the state directory";
    registry.register("state_unwritten_entries", help, unwritten);
    let pool = Gauge::<u64, AtomicU64>::default();
    pool.set(shown(decided.pool_bytes));
    let help = "FMEM that the policy divides";
    registry.register_with_unit("fmem_pool", help, Unit::Bytes, pool);
    let policy = Info::new(vec![("policy", decided.policy)]);
    registry.register("policy", "who decides", policy);
    let build = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("build", "of the daemon", build);
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

/// What others sent wrongly.
fn register_refusals(registry: &mut Registry, decided: &Decided) {
    let refused = Counters::<RefusalLabel>::default();
    for (&(interface, status), &count) in &decided.refused_calls {
        let interface = interface.name();
        let label = RefusalLabel { interface, status };
        refused.get_or_create(&label).inc_by(count);
    }
    let help = "answers to calls with a status of 400 or more";
    registry.register("refused_calls", help, refused);
    let wrong = Counter::<u64, AtomicU64>::default();
    wrong.inc_by(decided.wrong_tokens);
    let help = "calls of the page with a token that is not its own";
    registry.register("wrong_tokens", help, wrong);
}

/// The most that a gauge of whole numbers can show: a larger one would cost all metrics.
fn shown(value: u64) -> u64 {
    value.min(i64::MAX as u64)
}

fn register(
    registry: &mut Registry,
    name: &str,
    help: &str,
    unit: Option<Unit>,
    metric: impl Metric,
) {
    match unit {
        Some(unit) => registry.register_with_unit(name, help, unit, metric),
        None => registry.register(name, help, metric),
    }
}

fn each_vm(vms: &[VmView], value: OfVm, mut tell: impl FnMut(VmLabel, f64)) {
    for vm in vms {
        if let Some(value) = value(vm) {
            let label = VmLabel {
                vm: vm.name.clone(),
            };
            tell(label, value);
        }
    }
}

fn each_tier(vms: &[VmView], value: OfTier, mut tell: impl FnMut(TierLabel, u64)) {
    for vm in vms {
        for (at, tier) in vm.tiers.iter().enumerate() {
            if let Some(value) = value(vm, at) {
                let label = TierLabel {
                    vm: vm.name.clone(),
                    tier: tier.tier.clone(),
                };
                tell(label, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    use demeter_balloon::statistics::Trigger;
    use demeter_balloon::view::{AccountView, Sizing, TierView, Why, WorkerView};
    use demeter_balloon::{Statistics, device::Traffic};

    fn tier(name: &str, node: u16) -> TierView {
        TierView {
            tier: name.into(),
            node,
            total_bytes: 8192,
            balloon_bytes: 4096,
            size_bytes: 4096,
            wanted_size_bytes: Some(4096),
            backing_bytes: Some(4096),
            kept_bytes: Some(0),
            busy: false,
            last: None,
            ticket: 1,
            ended_ticket: 1,
            traffic: Traffic {
                inflated_pages: 3,
                ..Traffic::default()
            },
        }
    }

    fn guest() -> VmView {
        let statistics = Statistics {
            sequence: 0,
            guest_time_ns: 1,
            event: Trigger::Periodic,
            has_tmm: true,
            has_psi: true,
            fmem_samples: 7,
            smem_samples: 8,
            hot_wanted_pages: 1,
            psi_some_us: 1_500_000,
            psi_full_us: 0,
            oom_kills: 0,
            oom_deflated_pages: 2,
            refaults: 9,
            nodes: vec![NodeStatistics::default(); 2],
        };
        VmView {
            name: "web".into(),
            stage: Stage::Driven,
            problem: None,
            tiers: vec![tier("fmem", 0), tier("smem", 1)],
            violations: [("ring".to_owned(), 1)].into(),
            statistics: Some(statistics),
            statistics_age_ms: Some(250),
            churn: Churn::default(),
            sizing: Some(Sizing {
                memory_bytes: 8192,
                why: Why::Settled,
                fmem_useful_bytes: 8192,
                fmem_bytes: 4096,
                fmem_short: None,
            }),
            account: Some(AccountView {
                credit_ms: 1500,
                spent: true,
                share_bytes: Some(4096),
                charged_bytes: Some(8192),
            }),
            worker: WorkerView {
                deaths: 3,
                ..WorkerView::default()
            },
        }
    }

    fn exposition() -> String {
        text(&[guest()], decided()).unwrap()
    }

    fn decided() -> Decided {
        Decided {
            policy: "working-set",
            pool_bytes: 1 << 30,
            decisions: 2,
            deciding: Duration::from_millis(5),
            disk_silent: Duration::ZERO,
            unwritten_entries: 4,
            refused_calls: [((Interface::Control, 409), 5)].into(),
            wrong_tokens: 6,
        }
    }

    /// Whoever gives the policy all that a number can say must not blind the operator.
    #[test]
    fn no_number_is_too_large() {
        let mut guest = guest();
        guest.tiers[0].total_bytes = u64::MAX;
        let mut decided = decided();
        decided.pool_bytes = u64::MAX;
        let text = text(&[guest], decided).unwrap();
        let line = format!("demeter_balloon_fmem_pool_bytes {}", i64::MAX);
        assert!(text.lines().any(|other| other == line), "{text}");
    }

    #[test]
    fn every_sample_is_described_and_in_base_units() {
        let text = exposition();
        let words = |kind: &str| -> BTreeSet<String> {
            (text.lines())
                .filter_map(|line| line.strip_prefix(kind)?.split(' ').next())
                .map(str::to_owned)
                .collect()
        };
        let (help, types) = (words("# HELP "), words("# TYPE "));
        assert_eq!(help, types);
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap();
            let family =
                (name.strip_suffix("_total").or(name.strip_suffix("_info"))).unwrap_or(name);
            assert!(types.contains(family), "{line}");
            for unit in ["_ms", "_us", "_ns", "_pages", "_kib", "_kb"] {
                assert!(!family.contains(unit), "{line}");
            }
        }
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn numbers_are_what_they_say() {
        let text = exposition();
        let prefix = "demeter_balloon_";
        for (name, value) in [
            ("inflated_bytes_total{vm=\"web\",tier=\"fmem\"}", "12288"),
            ("stalled_some_seconds_total{vm=\"web\"}", "1.5"),
            ("samples_total{vm=\"web\",tier=\"smem\"}", "8"),
            ("statistics_age_seconds{vm=\"web\"}", "0.25"),
            ("fmem_short_bytes{vm=\"web\"}", "4096.0"),
            ("credit_seconds{vm=\"web\"}", "1.5"),
            ("credit_spent{vm=\"web\"}", "1.0"),
            ("fmem_share_bytes{vm=\"web\"}", "4096.0"),
            ("fmem_charged_bytes{vm=\"web\"}", "8192.0"),
            ("worker_deaths_total{vm=\"web\"}", "3.0"),
            ("deciding_seconds_total", "0.005"),
            ("fmem_pool_bytes", "1073741824"),
            ("state_unwritten_entries", "4"),
            (
                "refused_calls_total{interface=\"control\",status=\"409\"}",
                "5",
            ),
            ("wrong_tokens_total", "6"),
            ("policy_info{policy=\"working-set\"}", "1"),
        ] {
            let line = format!("{prefix}{name} {value}");
            assert!(text.lines().any(|other| other == line), "{line} in\n{text}");
        }
    }

    /// Rules and dashboard ask for what is there.
    #[test]
    fn rules_and_dashboard_name_metrics_that_exist() {
        let text = exposition();
        let there: BTreeSet<&str> = (text.lines())
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split(['{', ' ']).next())
            .collect();
        for file in [
            include_str!("../../../packaging/monitoring/alerts.yml"),
            include_str!("../../../packaging/monitoring/grafana-dashboard.json"),
        ] {
            let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
            let mut found = 0;
            for part in file.split("demeter_balloon_").skip(1) {
                let end = part.find(|c| !is_name(c)).unwrap_or(part.len());
                let name = format!("demeter_balloon_{}", &part[..end]);
                assert!(there.contains(name.as_str()), "{name}");
                found += 1;
            }
            assert!(found > 7);
        }
    }
}
