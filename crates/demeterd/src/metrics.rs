// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Prometheus metrics, made anew at every scrape from what the control
//! interface shows: there is one truth.

use std::sync::atomic::AtomicU64;

use demeter_balloon::view::{Churn, Stage, VmView};
use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

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

type Gauges<Label> = Family<Label, Gauge<u64, AtomicU64>>;
type Counters<Label> = Family<Label, Counter<u64, AtomicU64>>;

/// A tier's number.
type OfTier = fn(&VmView, usize) -> Option<u64>;

/// Name, help, unit, value.
const TIER_GAUGES: [(&str, &str, Unit, OfTier); 7] = [
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
    ("free", "free, as the guest says", Unit::Bytes, |vm, at| {
        Some(vm.statistics.as_ref()?.nodes.get(at)?.free_pages << 12)
    }),
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
const TIER_COUNTERS: [(&str, &str, OfTier); 4] = [
    ("reports", "reports taken", |vm, at| {
        Some(vm.tiers[at].traffic.reports)
    }),
    (
        "inflated_pages",
        "pages that went into the balloon",
        |vm, at| Some(vm.tiers[at].traffic.inflated_pages),
    ),
    ("deflated_pages", "pages that came out", |vm, at| {
        Some(vm.tiers[at].traffic.deflated_pages)
    }),
    ("punches", "holes punched", |vm, at| {
        Some(vm.tiers[at].traffic.punches)
    }),
];

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

/// The exposition of all machines, and of the policy's `decisions`.
pub fn text(vms: &[VmView], decisions: u64) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::with_prefix("demeter_balloon");
    for (name, help, unit, value) in TIER_GAUGES {
        let family = Gauges::<TierLabel>::default();
        each_tier(vms, value, |label, value| {
            family.get_or_create(&label).set(value);
        });
        registry.register_with_unit(name, help, unit, family);
    }
    for (name, help, value) in TIER_COUNTERS {
        let family = Counters::<TierLabel>::default();
        each_tier(vms, value, |label, value| {
            family.get_or_create(&label).inc_by(value);
        });
        registry.register(name, help, family);
    }
    let violations = Counters::<ViolationLabel>::default();
    let churn = CHURN.map(|_| Counters::<VmLabel>::default());
    let driven = Gauges::<VmLabel>::default();
    let disabled = Gauges::<VmLabel>::default();
    let age = Gauges::<VmLabel>::default();
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
        driven
            .get_or_create(&label)
            .set(u64::from(vm.stage == Stage::Driven));
        disabled
            .get_or_create(&label)
            .set(u64::from(vm.stage == Stage::Disabled));
        if let Some(age_ms) = vm.statistics_age_ms {
            age.get_or_create(&label).set(age_ms);
        }
    }
    registry.register("violations", "wrong messages of the guest", violations);
    for (family, (name, help, _)) in churn.into_iter().zip(CHURN) {
        registry.register(name, help, family);
    }
    registry.register("driven", "a driver is there", driven);
    registry.register("disabled", "switched off after violations", disabled);
    let policy = Counter::<u64, AtomicU64>::default();
    policy.inc_by(decisions);
    registry.register("decisions", "of the policy", policy);
    registry.register("statistics_age_ms", "since the guest's newest words", age);
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
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
