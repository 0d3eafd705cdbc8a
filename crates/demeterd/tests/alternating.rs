// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two guests whose load alternates, under each policy. The daemon, its sockets,
//! rings, files and ledgers are real; the guests are a model, and so are the
//! numbers in the table: accesses a second to a hot set, of which FMEM serves
//! what fits into it. The policy goes by the guests' clocks, and every step waits for the
//! one before: how busy this machine is changes nothing. `DEMETER_ALTERNATING_S` sets
//! the guests' time, 300 s without it.

#[path = "rings/model.rs"]
mod model;
#[path = "rings/tenant.rs"]
mod tenant;

use std::time::{Duration, Instant};

use model::{Daemon, LIMIT};
use tenant::{Load, Tenant};

const POOL_PAGES: u64 = 1200;
const FLOOR_PAGES: u64 = 200;
/// Of the guest that works, and of the one that does not.
const HOT_PAGES: [u64; 2] = [900, 80];
const ACCESSES_PER_S: [u64; 2] = [100_000, 1_000];
const PHASE_S: u64 = 60;
/// Of the policy: once for what the guests say of a second.
const INTERVAL_MS: u64 = 1000;
const LATENCY_NS: [f64; 2] = [69.0, 177.0];

struct Outcome {
    latency_ns: [f64; 2],
    changes: u64,
    least_pages: u64,
    most_together: u64,
}

fn hour(policy: &str, seconds: u64) -> Outcome {
    let floor = format!(",fmem-floor={}K", FLOOR_PAGES * 4);
    let daemon = Daemon::with_keys(&["a", "b"], &floor, &[]);
    let mut tenants = ["a", "b"].map(|name| Tenant::new(&daemon, name, &[0, 1]));
    let pool_bytes = POOL_PAGES << 12;
    let wish = format!(
        r#"{{"name": "{policy}", "fmem_pool_bytes": {pool_bytes}, "interval_ms": {INTERVAL_MS},
            "clock": "guests"}}"#
    );
    daemon.call("PUT /v1/policy", &wish);
    let mut decisions = decisions_of(&daemon);
    let mut most_together = 0;
    for second in 0..seconds {
        for (at, tenant) in tenants.iter_mut().enumerate() {
            let works = second / PHASE_S % 2 == at as u64;
            let kind = usize::from(!works);
            let load = Load {
                hot_pages: HOT_PAGES[kind],
                accesses: ACCESSES_PER_S[kind],
            };
            tenant.work((second + 1) * 1_000_000_000, load);
        }
        until("the policy decides", || decisions_of(&daemon) > decisions);
        decisions = decisions_of(&daemon);
        until("the guests have their sizes", || {
            tenants.iter_mut().for_each(Tenant::obey);
            ["a", "b"].iter().all(|name| has_its_size(&daemon, name))
        });
        // The first seconds divide what both had whole.
        if second >= 5 {
            for tenant in &mut tenants {
                tenant.least_pages = tenant.least_pages.min(tenant.size_pages());
            }
            most_together = most_together.max(tenants.iter().map(Tenant::size_pages).sum());
        } else {
            for tenant in &mut tenants {
                tenant.accesses = [0; 2];
                tenant.changes = 0;
            }
        }
    }
    Outcome {
        latency_ns: [mean_latency_ns(&tenants[0]), mean_latency_ns(&tenants[1])],
        changes: tenants.iter().map(|tenant| tenant.changes).sum(),
        least_pages: tenants.iter().map(|t| t.least_pages).min().unwrap(),
        most_together,
    }
}

fn mean_latency_ns(tenant: &Tenant) -> f64 {
    let [fast, slow] = tenant.accesses.map(|count| count as f64);
    (fast * LATENCY_NS[0] + slow * LATENCY_NS[1]) / (fast + slow)
}

fn decisions_of(daemon: &Daemon) -> u64 {
    daemon.counter("demeter_balloon_decisions_total")
}

/// Has the guest all that it was asked for, as the daemon sees it?
fn has_its_size(daemon: &Daemon, name: &str) -> bool {
    let tier = &daemon.view(name)["tiers"][0];
    let wanted = &tier["wanted_size_bytes"];
    wanted.is_null() || *wanted == tier["size_bytes"]
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LIMIT, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn alternating_load() {
    let seconds = std::env::var("DEMETER_ALTERNATING_S")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(300);
    println!("{seconds} s of guests, modelled; load changes sides every {PHASE_S} s");
    println!("policy        latency a, b (ns)   sizes changed   least   most together (pages)");
    let mut outcomes = Vec::new();
    for policy in ["static", "proportional", "guaranteed", "pressure"] {
        let outcome = hour(policy, seconds);
        println!(
            "{policy:<12} {:>9.1} {:>9.1} {:>13} {:>9} {:>9}",
            outcome.latency_ns[0],
            outcome.latency_ns[1],
            outcome.changes,
            outcome.least_pages,
            outcome.most_together
        );
        assert!(
            outcome.least_pages >= FLOOR_PAGES,
            "{policy}: below the floor"
        );
        assert!(
            outcome.most_together <= POOL_PAGES,
            "{policy}: more than the pool"
        );
        outcomes.push(outcome);
    }
    let [fixed, _, guaranteed, pressure] = &outcomes[..] else {
        unreachable!("four policies");
    };
    // FMEM follows the load: both guests gain, and neither at the other's cost.
    for at in 0..2 {
        assert!(guaranteed.latency_ns[at] < 0.9 * fixed.latency_ns[at]);
        assert!(pressure.latency_ns[at] < 0.9 * fixed.latency_ns[at]);
    }
    // One move a change of sides and guest, and a few while rates settle.
    let phases = seconds / PHASE_S;
    for (name, outcome) in [("guaranteed", guaranteed), ("pressure", pressure)] {
        assert!(
            outcome.changes <= 6 * phases,
            "{name} swings: {}",
            outcome.changes
        );
    }
    assert_eq!(fixed.changes, 0);
}
