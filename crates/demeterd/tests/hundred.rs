// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A hundred guests: what they cost the daemon, and whether it is fair to them. The daemon,
//! its sockets, rings, files and policies are real; the guests are a model, and so is their
//! time, a quarter of a second a decision. `DEMETER_GUESTS` sets their number. The test
//! prints a table: `cargo test --release -p demeterd --test hundred -- --ignored --nocapture`.

#[path = "rings/model.rs"]
mod model;
#[path = "rings/tenant.rs"]
mod tenant;

use std::time::{Duration, Instant};

use model::{Daemon, LIMIT};
use tenant::{Load, NODE_PAGES, Tenant};

/// Pages of the pool for each guest: half of its FMEM.
const SHARE_PAGES: u64 = NODE_PAGES / 2;
const INTERVAL_MS: u64 = 250;
/// Decisions in two seconds of the guests' time.
const TWO_SECONDS: u64 = 2000 / INTERVAL_MS;
const KEYS: &str = ",vcpus=1,fmem-floor=512K";
/// Decisions until everybody's sizes are what they will be.
const SETTLE: u64 = 10;
const BUSY: Load = Load {
    hot_pages: 600,
    accesses: 25_000,
};
const IDLE: Load = Load {
    hot_pages: 20,
    accesses: 10,
};

/// Of the day with a liar.
const STEP_MS: u64 = 60_000;

struct Hall {
    daemon: Daemon,
    tenants: Vec<Tenant>,
    interval_ms: u64,
    now_ms: u64,
    decisions: u64,
}

impl Hall {
    fn new(count: usize) -> Self {
        let names: Vec<String> = (0..count).map(|at| format!("vm{at:03}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let daemon = Daemon::with_keys(&names, KEYS, &["--statistics-ms", "600000"]);
        let tenants = (names.iter())
            .map(|name| Tenant::new(&daemon, name, &[1]))
            .collect();
        Self {
            daemon,
            tenants,
            interval_ms: INTERVAL_MS,
            now_ms: 0,
            decisions: 0,
        }
    }

    fn policy(&mut self, name: &str, interval_ms: u64) {
        self.interval_ms = interval_ms;
        let pool_bytes = SHARE_PAGES * self.tenants.len() as u64 * 4096;
        let wish = format!(
            r#"{{"name": "{name}", "fmem_pool_bytes": {pool_bytes}, "interval_ms": {interval_ms},
                "clock": "guests"}}"#
        );
        self.daemon.call("PUT /v1/policy", &wish);
        self.decisions = self.decided();
    }

    fn decided(&self) -> u64 {
        self.daemon.counter("demeter_balloon_decisions_total")
    }

    /// An interval of everybody's work, a decision, and what follows from it.
    fn step(&mut self, load: impl Fn(usize) -> Load) {
        self.now_ms += self.interval_ms;
        for (at, tenant) in self.tenants.iter_mut().enumerate() {
            tenant.say(self.now_ms * 1_000_000, load(at));
        }
        self.tenants.iter_mut().for_each(Tenant::wait);
        let began = Instant::now();
        while self.decided() == self.decisions {
            assert!(began.elapsed() < LIMIT, "no decision");
            std::thread::sleep(Duration::from_millis(1));
        }
        self.decisions = self.decided();
        loop {
            self.tenants.iter_mut().for_each(Tenant::obey);
            let all = self.daemon.call("GET /v1/vms", "");
            let is_there = |vm: &serde_json::Value| {
                let tier = &vm["tiers"][0];
                tier["wanted_size_bytes"] == tier["size_bytes"] && tier["busy"] == false
            };
            if all.as_array().unwrap().iter().all(is_there) {
                return;
            }
            if began.elapsed() > LIMIT {
                let late = (all.as_array().unwrap().iter().zip(&self.tenants))
                    .find(|(vm, _)| !is_there(vm))
                    .map(|(vm, tenant)| format!("{vm}: {}", tenant.rings()));
                panic!("sizes are not reached: {late:?}");
            }
        }
    }

    fn sizes(&self) -> Vec<u64> {
        self.tenants.iter().map(Tenant::size_pages).collect()
    }

    fn steps(&mut self, count: u64, load: impl Fn(usize) -> Load) {
        for _ in 0..count {
            self.step(&load);
        }
    }
}

/// Largest by smallest.
fn spread(sizes: &[u64]) -> f64 {
    let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
    *most as f64 / *least as f64
}

/// The tests' own limit of open files: every guest has some twenty.
fn allow_files() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: limit lives until the end.
    let status = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    assert_eq!(status, 0);
    limit.rlim_cur = limit.rlim_max.min(65_536);
    // SAFETY: as above; the daemon inherits it.
    let status = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    assert_eq!(status, 0);
}

#[test]
#[ignore = "a bench: what it bounds depends on how busy this machine is"]
fn a_hundred_guests() {
    let count = std::env::var("DEMETER_GUESTS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(100);
    allow_files();
    let began = Instant::now();
    let mut hall = Hall::new(count);
    let alone_kib = {
        let daemon = Daemon::in_directory(model::directory(), Vec::new());
        daemon.rss_kib()
    };
    println!(
        "{count} guests, {INTERVAL_MS} ms of their time a decision; connected in {:.1} s",
        began.elapsed().as_secs_f64()
    );
    println!("policy        identical   late starter   FMEM lent and back (ms)");
    for policy in ["proportional", "guaranteed"] {
        hall.policy(policy, INTERVAL_MS);
        let last = count - 1;
        // All alike, but for one that does nothing yet.
        let late = |at: usize| if at == last { IDLE } else { BUSY };
        hall.steps(SETTLE, late);
        let sizes = hall.sizes();
        let even = spread(&sizes[..last]);
        hall.steps(TWO_SECONDS, |_| BUSY);
        let starter = hall.sizes()[last] as f64 / SHARE_PAGES as f64;
        // Every other guest is idle, and lends what it does not need.
        let half = |at: usize| if at.is_multiple_of(2) { BUSY } else { IDLE };
        hall.steps(SETTLE, half);
        let lent = hall.sizes();
        let mut back_ms = 0;
        while hall
            .sizes()
            .iter()
            .skip(1)
            .step_by(2)
            .any(|&size| 20 * size < 19 * SHARE_PAGES)
        {
            hall.step(|_| BUSY);
            back_ms += INTERVAL_MS;
            assert!(
                back_ms <= 2000,
                "{policy}: lent FMEM is not back: {:?}",
                hall.sizes()
            );
        }
        let lends = lent[0] > SHARE_PAGES;
        println!(
            "{policy:<13} {even:>9.3} {starter:>14.3}   {}",
            if lends {
                format!("{back_ms}")
            } else {
                "lends none".to_owned()
            }
        );
        assert!(even <= 1.05, "{policy}: identical guests have {sizes:?}");
        assert!(starter >= 0.95, "{policy}: {starter} of its share");
        assert_eq!(lends, policy != "proportional", "{policy}: {lent:?}");
        let together: u64 = hall.sizes().iter().sum();
        assert!(together <= SHARE_PAGES * count as u64);
    }
    // What all that costs.
    let (cpu_before, before) = (hall.daemon.cpu_s(), hall.now_ms);
    let (decided, deciding) = (
        hall.decisions,
        hall.daemon
            .seconds("demeter_balloon_deciding_seconds_total"),
    );
    hall.steps(20, |_| BUSY);
    let decisions = (hall.decisions - decided) as f64;
    let deciding_s = hall
        .daemon
        .seconds("demeter_balloon_deciding_seconds_total")
        - deciding;
    let cpu_s = hall.daemon.cpu_s() - cpu_before;
    let kib = hall.daemon.rss_kib();
    println!(
        "a decision {:.2} ms; CPU {:.0} us a guest and decision (with statistics and this test's \
         questions, {:.1} s modelled); memory {:.0} KiB a guest ({kib} KiB, without guests {alone_kib})",
        1e3 * deciding_s / decisions,
        1e6 * cpu_s / decisions / count as f64,
        (hall.now_ms - before) as f64 / 1000.0,
        kib.saturating_sub(alone_kib) as f64 / count as f64,
    );
    assert!(deciding_s / decisions < 0.1, "{deciding_s}");
    assert!(
        kib.saturating_sub(alone_kib) / (count as u64) < 1024,
        "{kib}"
    );
    // A day in which one claims that all of its memory is the hottest of all.
    let steps = 86_400_000 / STEP_MS;
    // Ten do for that, and a day of a hundred is long. They begin with their shares: whoever
    // begins with more has spent its credit.
    let mut hall = Hall::new(count.min(10));
    hall.policy("guaranteed", INTERVAL_MS);
    hall.steps(SETTLE, |_| BUSY);
    hall.policy("guaranteed", STEP_MS);
    hall.step(|_| BUSY);
    let liar = Load {
        hot_pages: NODE_PAGES,
        accesses: 1_000_000_000,
    };
    let mut had = 0;
    for _ in 0..steps {
        hall.step(|at| if at == 0 { liar } else { BUSY });
        had += hall.sizes()[0];
    }
    let gain = had as f64 / steps as f64 / SHARE_PAGES as f64 - 1.0;
    println!(
        "a liar gains {:.2} % in a day; whole test {:.1} s",
        100.0 * gain,
        began.elapsed().as_secs_f64()
    );
    assert!(gain <= 0.01, "{gain}");
}
