// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two guests whose load alternates, under each policy. The daemon, its sockets,
//! rings, files and ledgers are real; the guests are a model, and so are the
//! numbers in the table: accesses a second to a hot set, of which FMEM serves
//! what fits into it. The policy goes by the guests' clocks, and every step waits for the
//! one before: how busy this machine is changes nothing. `DEMETER_ALTERNATING_S` sets
//! the guests' time, 300 s without it.

#[path = "rings/model.rs"]
mod model;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use demeter_balloon::wire::{
    NODE_STATISTICS_BYTES, OP_DEFLATE, OP_DONE, OP_HELLO, OP_INFLATED, Range, Report, Request,
    STATISTICS_BYTES,
};
use model::{Daemon, Guest, LIMIT};

/// Both guests' nodes have 1024 pages; the rings lie in the first 64.
const NODE_PAGES: u64 = 1024;
const POOL_PAGES: u64 = 1200;
const FLOOR_PAGES: u64 = 200;
/// Of the guest that works, and of the one that does not.
const HOT_PAGES: [u64; 2] = [900, 80];
const ACCESSES_PER_S: [u64; 2] = [100_000, 1_000];
const PHASE_S: u64 = 60;
/// Of the policy: once for what the guests say of a second.
const INTERVAL_MS: u64 = 1000;
const LATENCY_NS: [f64; 2] = [69.0, 177.0];

struct Tenant {
    guest: Guest,
    balloon: BTreeSet<u64>,
    samples: [u64; 2],
    accesses: [u64; 2],
    changes: u64,
    least_pages: u64,
}

impl Tenant {
    fn new(daemon: &Daemon, name: &str) -> Self {
        let mut guest = Guest::connect(daemon, name);
        // All of its memory is in use: nobody believes in hot pages that the host
        // has not allocated.
        for node in 0..2 {
            guest.fill(node);
        }
        for node in 0..2 {
            let hello = Report {
                op: OP_HELLO,
                node,
                ..Report::default()
            };
            assert_eq!(guest.report(usize::from(node), hello, &[]), Some(0));
        }
        Self {
            guest,
            balloon: BTreeSet::new(),
            samples: [0; 2],
            accesses: [0; 2],
            changes: 0,
            least_pages: u64::MAX,
        }
    }

    fn size_pages(&self) -> u64 {
        NODE_PAGES - self.balloon.len() as u64
    }

    /// Executes what the daemon asks for.
    fn obey(&mut self) {
        while let Some(bytes) = self.guest.poll_request() {
            let request = Request::from_bytes(&bytes).unwrap();
            if request.node != 0 {
                continue;
            }
            let now = self.balloon.len() as u64;
            let target = request.target_pages;
            let (op, pages): (u16, Vec<u64>) = if target > now {
                let free = (64..NODE_PAGES).filter(|page| !self.balloon.contains(page));
                (OP_INFLATED, free.take((target - now) as usize).collect())
            } else {
                let held = self.balloon.iter().rev().copied();
                (OP_DEFLATE, held.take((now - target) as usize).collect())
            };
            let ranges: Vec<Range> = pages
                .iter()
                .map(|page| Range {
                    gpa: page << 12,
                    nr_pages: 1,
                })
                .collect();
            let mut report = Report {
                id: request.id,
                op,
                current_pages: target,
                ..Report::default()
            };
            if !ranges.is_empty() {
                assert_eq!(self.guest.report(0, report, &ranges), Some(0));
                for page in pages {
                    let changed = if op == OP_INFLATED {
                        self.balloon.insert(page)
                    } else {
                        self.guest.touch(0, page);
                        self.balloon.remove(&page)
                    };
                    assert!(changed);
                }
                self.changes += 1;
            }
            report.op = OP_DONE;
            assert_eq!(self.guest.report(0, report, &[]), Some(0));
        }
    }

    /// A second of work, and what the guest says of it.
    fn work(&mut self, second: u64, kind: usize) {
        let hot = HOT_PAGES[kind];
        let served = self.size_pages().min(hot);
        let fast = ACCESSES_PER_S[kind] * served / hot;
        let slow = ACCESSES_PER_S[kind] - fast;
        self.samples[0] += fast;
        self.samples[1] += slow;
        self.accesses[0] += fast;
        self.accesses[1] += slow;
        let mut bytes = vec![0; STATISTICS_BYTES + 2 * NODE_STATISTICS_BYTES];
        let mut put = |at: usize, value: u64| {
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        };
        put(0, second);
        put(8, (second + 1) * 1_000_000_000);
        put(16, 2 << 16 | 1 << 32);
        put(24, self.samples[0]);
        put(32, self.samples[1]);
        put(40, hot);
        put(STATISTICS_BYTES, NODE_PAGES);
        put(STATISTICS_BYTES + 8, self.size_pages() - served);
        put(STATISTICS_BYTES + 16, self.balloon.len() as u64);
        put(STATISTICS_BYTES + 24, served);
        self.guest.statistics(&bytes);
    }

    fn mean_latency_ns(&self) -> f64 {
        let [fast, slow] = self.accesses.map(|count| count as f64);
        (fast * LATENCY_NS[0] + slow * LATENCY_NS[1]) / (fast + slow)
    }
}

struct Outcome {
    latency_ns: [f64; 2],
    changes: u64,
    least_pages: u64,
    most_together: u64,
}

fn hour(policy: &str, seconds: u64) -> Outcome {
    let floor = format!(",fmem-floor={}K", FLOOR_PAGES * 4);
    let daemon = Daemon::with_keys(&["a", "b"], &floor, &[]);
    let mut tenants = [Tenant::new(&daemon, "a"), Tenant::new(&daemon, "b")];
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
            tenant.work(second, usize::from(!works));
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
        latency_ns: [tenants[0].mean_latency_ns(), tenants[1].mean_latency_ns()],
        changes: tenants.iter().map(|tenant| tenant.changes).sum(),
        least_pages: tenants.iter().map(|t| t.least_pages).min().unwrap(),
        most_together,
    }
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
