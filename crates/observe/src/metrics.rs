// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Prometheus metrics of a guest, made anew of each [`State`]: there is one truth.
//! Base units (bytes, seconds), prefix `demeter_guest_`.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use crate::state::{State, Target};

/// What the text is, for the one who asks by HTTP.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const PAGE_BYTES: u64 = 4096;
const SECONDS_PER_NS: f64 = 1e-9;
const SECONDS_PER_PS: f64 = 1e-12;

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TierLabel {
    tier: String,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabel {
    reason: String,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StageLabel {
    stage: String,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct EndLabel {
    end: String,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StandingLabel {
    standing: String,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KindLabel {
    kind: String,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct GroupLabel {
    group: String,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct GroupTierLabel {
    group: String,
    tier: String,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TargetLabel {
    pid: u32,
    space: u32,
    command: String,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TargetTierLabel {
    pid: u32,
    space: u32,
    command: String,
    tier: String,
}

type Gauges<Label> = Family<Label, Gauge<u64, AtomicU64>>;
type Counters<Label> = Family<Label, Counter<u64, AtomicU64>>;
type FloatCounters<Label> = Family<Label, Counter<f64, AtomicU64>>;
type FloatGauge = Gauge<f64, AtomicU64>;

/// Name, help, file below `stats/`.
const COUNTERS: [(&str, &str, &str); 7] = [
    ("epochs", "Epochs ended", "epochs"),
    ("samples", "Samples that reached a range", "samples"),
    ("lost_samples", "Samples lost", "lost_samples"),
    (
        "stray_samples",
        "Samples of what is not managed",
        "stray_samples",
    ),
    ("splits", "Ranges split", "splits"),
    ("merges", "Pairs of ranges merged", "merges"),
    (
        "sampler_restarts",
        "Counters started again",
        "sampler/restarts",
    ),
];

/// The same, in 4 KiB pages.
const PAGE_COUNTERS: [(&str, &str, &str); 3] = [
    ("promoted", "Moved to the fast tier", "promoted_pages"),
    ("demoted", "Moved to the slow tier", "demoted_pages"),
    (
        "filled",
        "Of those promoted: into free memory",
        "filled_pages",
    ),
];

const GAUGES: [(&str, &str, &str); 4] = [
    ("targets", "Managed address spaces", "targets"),
    ("ranges", "Their ranges", "ranges"),
    (
        "sampler_dead_cpus",
        "CPUs online that do not sample",
        "sampler/dead_cpus",
    ),
    (
        "numa_balancing",
        "Mode of the kernel's own balancing",
        "numa_balancing",
    ),
];

/// The exposition.
pub fn text(state: &State) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::with_prefix("demeter_guest");
    module(&mut registry, state);
    tiers(&mut registry, state);
    totals(&mut registry, state);
    gains(&mut registry, state);
    by_target(&mut registry, state);
    by_group(&mut registry, state);
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

fn count(state: &State, path: &str) -> u64 {
    u64::try_from(state.stat(path)).unwrap_or(0)
}

fn gauge(value: u64) -> Gauge<u64, AtomicU64> {
    let gauge = Gauge::default();
    gauge.set(value);
    gauge
}

fn seconds(value: f64) -> FloatGauge {
    let gauge = FloatGauge::default();
    gauge.set(value);
    gauge
}

fn counter(value: u64) -> Counter<u64, AtomicU64> {
    let counter = Counter::default();
    counter.inc_by(value);
    counter
}

fn module(registry: &mut Registry, state: &State) {
    let sampler = Info::new(vec![
        ("sampler", state.sampler.clone()),
        ("delivery", state.sampler_delivery.clone()),
    ]);
    registry.register("sampler", "Where samples come from", sampler);
    registry.register(
        "enabled",
        "Whether memory is managed",
        gauge(u64::from(state.enabled)),
    );
    for (name, help, path) in GAUGES {
        registry.register(name, help, gauge(count(state, path)));
    }
    for (name, help, path, unit) in [
        (
            "latency_gap",
            "Latency of the slow tier less that of the fast one",
            "latency_gap_ps",
            SECONDS_PER_PS,
        ),
        (
            "swap_cost",
            "CPU time of exchanging a pair of 4 KiB pages",
            "swap_cost_ns",
            SECONDS_PER_NS,
        ),
        (
            "move_cost",
            "CPU time of moving a 4 KiB page into free memory",
            "move_cost_ns",
            SECONDS_PER_NS,
        ),
    ] {
        let value = state.stat(path) as f64 * unit;
        registry.register_with_unit(name, help, Unit::Seconds, seconds(value));
    }
}

fn tiers(registry: &mut Registry, state: &State) {
    let (total, free, managed) = (
        Gauges::<TierLabel>::default(),
        Gauges::<TierLabel>::default(),
        Gauges::<TierLabel>::default(),
    );
    let samples = Counters::<TierLabel>::default();
    for tier in &state.tiers {
        let label = TierLabel {
            tier: tier.name.clone(),
        };
        if let Some(bytes) = tier.total_bytes {
            total.get_or_create(&label).set(bytes);
        }
        if let Some(bytes) = tier.free_bytes {
            free.get_or_create(&label).set(bytes);
        }
        managed.get_or_create(&label).set(tier.managed_bytes);
        let seen = count(state, &format!("{}_samples", tier.name));
        samples.get_or_create(&label).inc_by(seen);
    }
    registry.register_with_unit("tier_size", "Memory of the tier", Unit::Bytes, total);
    registry.register_with_unit("tier_free", "Free memory of the tier", Unit::Bytes, free);
    registry.register_with_unit(
        "tier_managed",
        "Resident memory of what is managed",
        Unit::Bytes,
        managed,
    );
    registry.register(
        "tier_samples",
        "Samples that hit the tier, where the sampler knows",
        samples,
    );
}

fn totals(registry: &mut Registry, state: &State) {
    for (name, help, path) in COUNTERS {
        registry.register(name, help, counter(count(state, path)));
    }
    for (name, help, path) in PAGE_COUNTERS {
        let bytes = counter(count(state, path).saturating_mul(PAGE_BYTES));
        registry.register_with_unit(name, help, Unit::Bytes, bytes);
    }
    let refused = Counters::<ReasonLabel>::default();
    for (reason, pages) in state.stats_in("refused") {
        let label = ReasonLabel {
            reason: reason.to_owned(),
        };
        let pages = u64::try_from(pages).unwrap_or(0);
        (refused.get_or_create(&label)).inc_by(pages.saturating_mul(PAGE_BYTES));
    }
    registry.register_with_unit("refused", "Not moved, by reason", Unit::Bytes, refused);
    let stages = FloatCounters::<StageLabel>::default();
    for (stage, ns) in state.stats_in("time_ns") {
        let label = StageLabel {
            stage: stage.to_owned(),
        };
        (stages.get_or_create(&label)).inc_by(ns.max(0) as f64 * SECONDS_PER_NS);
    }
    registry.register_with_unit("stage", "CPU time by stage", Unit::Seconds, stages);
    let records = Counters::<KindLabel>::default();
    for (name, value) in state.stats_in("sampler") {
        let Some(kind) = name.strip_suffix("_records") else {
            continue;
        };
        let label = KindLabel {
            kind: kind.to_owned(),
        };
        (records.get_or_create(&label)).inc_by(u64::try_from(value).unwrap_or(0));
    }
    registry.register("sampler_records", "Records of the hardware", records);
    let plans = Counters::<EndLabel>::default();
    for (end, number) in state.stats_in("plans") {
        let label = EndLabel {
            end: end.to_owned(),
        };
        (plans.get_or_create(&label)).inc_by(u64::try_from(number).unwrap_or(0));
    }
    registry.register("plans", "Plans by where they ended", plans);
}

fn gains(registry: &mut Registry, state: &State) {
    let decisions = Gauges::<StandingLabel>::default();
    for (name, number) in state.stats_in("gain") {
        let Some(standing) = name.strip_suffix("_decisions") else {
            continue;
        };
        let label = StandingLabel {
            standing: standing.to_owned(),
        };
        (decisions.get_or_create(&label)).set(u64::try_from(number).unwrap_or(0));
    }
    registry.register("decisions", "Decisions by where they stand", decisions);
    // Realised ones may fall, so none of them is a counter.
    for (name, help, path) in [
        (
            "predicted_gain",
            "Latency that moves save, by the planner's word",
            "gain/predicted_ns",
        ),
        (
            "realised_gain",
            "Latency that they saved so far, by the samples",
            "gain/realised_ns",
        ),
        (
            "settled_predicted_gain",
            "Predicted, of decisions whose time is over",
            "gain/settled_predicted_ns",
        ),
        (
            "settled_realised_gain",
            "Realised, of decisions whose time is over",
            "gain/settled_realised_ns",
        ),
    ] {
        let value = state.stat(path) as f64 * SECONDS_PER_NS;
        registry.register_with_unit(name, help, Unit::Seconds, seconds(value));
    }
}

fn by_target(registry: &mut Registry, state: &State) {
    let memory = Gauges::<TargetTierLabel>::default();
    let promoted = Counters::<TargetLabel>::default();
    let demoted = Counters::<TargetLabel>::default();
    let predicted = Family::<TargetLabel, FloatGauge>::default();
    let realised = Family::<TargetLabel, FloatGauge>::default();
    for target in &state.targets {
        for (tier, bytes) in [("fmem", target.fmem_bytes), ("smem", target.smem_bytes)] {
            let TargetLabel {
                pid,
                space,
                command,
            } = label_of(target);
            let label = TargetTierLabel {
                pid,
                space,
                command,
                tier: tier.to_owned(),
            };
            memory.get_or_create(&label).set(bytes);
        }
        let Some(account) = &target.account else {
            continue;
        };
        let label = label_of(target);
        (promoted.get_or_create(&label)).inc_by(account.promoted_pages * PAGE_BYTES);
        (demoted.get_or_create(&label)).inc_by(account.demoted_pages * PAGE_BYTES);
        (predicted.get_or_create(&label)).set(account.predicted_ns as f64 * SECONDS_PER_NS);
        (realised.get_or_create(&label)).set(account.realised_ns as f64 * SECONDS_PER_NS);
    }
    registry.register_with_unit(
        "target_memory",
        "Resident memory of a managed address space",
        Unit::Bytes,
        memory,
    );
    registry.register_with_unit(
        "target_promoted",
        "Of a managed address space, moved to the fast tier",
        Unit::Bytes,
        promoted,
    );
    registry.register_with_unit(
        "target_demoted",
        "Of a managed address space, moved to the slow tier",
        Unit::Bytes,
        demoted,
    );
    registry.register_with_unit(
        "target_predicted_gain",
        "Predicted, of what was moved for an address space",
        Unit::Seconds,
        predicted,
    );
    registry.register_with_unit(
        "target_realised_gain",
        "Realised so far, of what was moved for an address space",
        Unit::Seconds,
        realised,
    );
}

fn by_group(registry: &mut Registry, state: &State) {
    let memory = Gauges::<GroupTierLabel>::default();
    let (floor, cap, due, worth, processes) = (
        Gauges::<GroupLabel>::default(),
        Gauges::<GroupLabel>::default(),
        Gauges::<GroupLabel>::default(),
        Gauges::<GroupLabel>::default(),
        Gauges::<GroupLabel>::default(),
    );
    for group in &state.groups {
        for (tier, bytes) in [("fmem", group.fmem_bytes), ("smem", group.smem_bytes)] {
            let label = GroupTierLabel {
                group: group.name.clone(),
                tier: tier.to_owned(),
            };
            memory.get_or_create(&label).set(bytes);
        }
        let label = GroupLabel {
            group: group.name.clone(),
        };
        floor.get_or_create(&label).set(group.floor_bytes);
        // Without a cap there is no number.
        if let Some(bytes) = group.cap_bytes {
            cap.get_or_create(&label).set(bytes);
        }
        due.get_or_create(&label).set(group.due_bytes);
        worth.get_or_create(&label).set(group.worth_bytes);
        processes.get_or_create(&label).set(group.processes);
    }
    for (name, help, family) in [
        ("group_floor", "Guaranteed to a group", floor),
        ("group_cap", "Most that a group may have", cap),
        ("group_due", "Of the floor, what a group is due", due),
        (
            "group_worth",
            "Of a group, worth holding in the fast tier",
            worth,
        ),
    ] {
        registry.register_with_unit(name, help, Unit::Bytes, family);
    }
    registry.register_with_unit(
        "group_memory",
        "Resident memory of a group",
        Unit::Bytes,
        memory,
    );
    registry.register(
        "group_processes",
        "Managed address spaces of a group",
        processes,
    );
}

fn label_of(target: &Target) -> TargetLabel {
    TargetLabel {
        pid: target.pid,
        space: target.space,
        command: target.command.clone().unwrap_or_default(),
    }
}
