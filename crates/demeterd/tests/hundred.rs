// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A hundred guests: what they cost the daemon, and whether it is fair to them. The daemon,
//! its sockets, rings, files and policies are real; the guests are a model, and so is their
//! time, a quarter of a second a decision. `DEMETER_GUESTS` sets their number. The test
//! prints a table: `cargo test --release -p demeterd --test hundred -- --ignored --nocapture`.
//! Twenty guests are looked at in every run, for fairness and not for what they cost.

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

/// `working-set` is the last: nobody gives back the SMEM that it takes.
const POLICIES: [&str; 4] = ["proportional", "guaranteed", "pressure", "working-set"];
/// How many live through the day with a liar.
const LIARS_GUESTS: usize = 10;

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
            .map(|name| Tenant::new(&daemon, name, &[0, 1]))
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
            let has_its_size = |tier: &serde_json::Value| {
                let wanted = &tier["wanted_size_bytes"];
                // SMEM is no policy's but that which sizes all memory.
                (*wanted == tier["size_bytes"] || (tier["tier"] == "smem" && wanted.is_null()))
                    && tier["busy"] == false
            };
            let is_there =
                |vm: &serde_json::Value| vm["tiers"].as_array().unwrap().iter().all(has_its_size);
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

/// What a policy does with the guests, each of which has half of its FMEM as its share.
#[derive(Debug)]
struct Fairness {
    /// Most by least, of identical guests.
    even: f64,
    /// What one that begins to work has of its share two seconds later.
    starter: f64,
    /// FMEM of a busy guest when every other one is idle.
    lent_pages: u64,
    /// Until all have at least 95 % of their share again.
    back_ms: u64,
}

impl Hall {
    fn fairness(&mut self, policy: &str) -> Fairness {
        self.policy(policy, INTERVAL_MS);
        let count = self.tenants.len();
        let last = count - 1;
        // All alike, but for one that does nothing yet.
        let late = |at: usize| if at == last { IDLE } else { BUSY };
        self.steps(SETTLE, late);
        let even = spread(&self.sizes()[..last]);
        self.steps(TWO_SECONDS, |_| BUSY);
        let starter = self.sizes()[last] as f64 / SHARE_PAGES as f64;
        // Every other guest is idle, and lends what it does not need.
        let half = |at: usize| if at.is_multiple_of(2) { BUSY } else { IDLE };
        self.steps(SETTLE, half);
        let lent_pages = self.sizes()[0];
        let mut back_ms = 0;
        while (self.sizes().iter().skip(1).step_by(2)).any(|&size| 20 * size < 19 * SHARE_PAGES) {
            self.step(|_| BUSY);
            back_ms += INTERVAL_MS;
            assert!(
                back_ms <= 2000,
                "{policy}: lent FMEM is not back: {:?}",
                self.sizes()
            );
        }
        let together: u64 = self.sizes().iter().sum();
        assert!(together <= SHARE_PAGES * count as u64, "{policy}");
        let fair = Fairness {
            even,
            starter,
            lent_pages,
            back_ms,
        };
        assert!(even <= 1.05, "{policy}: {fair:?}");
        assert!(starter >= 0.95, "{policy}: {fair:?}");
        assert_eq!(fair.lends(), policy != "proportional", "{policy}: {fair:?}");
        fair
    }
}

impl Fairness {
    fn lends(&self) -> bool {
        self.lent_pages > SHARE_PAGES
    }

    fn row(&self, policy: &str) -> String {
        let back = if self.lends() {
            self.back_ms.to_string()
        } else {
            "lends none".to_owned()
        };
        format!(
            "{policy:<13} {:>9.3} {:>14.3}   {back:<22}",
            self.even, self.starter
        )
    }
}

const HEAD: &str = "policy        identical   late starter   FMEM lent and back (ms)";

/// What a guest has beyond its share in a day in which it claims that all of its memory is
/// the hottest of all, a decision every `step_ms`.
fn gain_of_a_liar(policy: &str, count: usize, step_ms: u64) -> f64 {
    // They begin with their shares: whoever begins with more has spent its credit.
    let mut hall = Hall::new(count);
    hall.policy("proportional", INTERVAL_MS);
    hall.steps(SETTLE, |_| BUSY);
    hall.policy(policy, step_ms);
    hall.step(|_| BUSY);
    let liar = Load {
        hot_pages: NODE_PAGES,
        accesses: 1_000_000_000,
    };
    let steps = 86_400_000 / step_ms;
    let mut had = 0;
    for _ in 0..steps {
        hall.step(|at| if at == 0 { liar } else { BUSY });
        had += hall.sizes()[0];
    }
    had as f64 / steps as f64 / SHARE_PAGES as f64 - 1.0
}

#[test]
fn twenty_guests_are_treated_fairly() {
    allow_files();
    let mut hall = Hall::new(20);
    println!("{HEAD}");
    for policy in POLICIES {
        let fair = hall.fairness(policy);
        println!("{}", fair.row(policy));
    }
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
    println!("{HEAD}   a decision (ms)   CPU a guest and decision (us)");
    for policy in POLICIES {
        let fair = hall.fairness(policy);
        // What that costs, with statistics and this test's questions.
        let deciding = |hall: &Hall| {
            let name = "demeter_balloon_deciding_seconds_total";
            (hall.daemon.seconds(name), hall.decisions)
        };
        let (cpu_s, (deciding_s, decided)) = (hall.daemon.cpu_s(), deciding(&hall));
        hall.steps(20, |_| BUSY);
        let (after_s, decisions) = deciding(&hall);
        let decisions = (decisions - decided) as f64;
        let deciding_s = (after_s - deciding_s) / decisions;
        let cpu_s = (hall.daemon.cpu_s() - cpu_s) / decisions / count as f64;
        println!(
            "{} {:>15.2} {:>31.0}",
            fair.row(policy),
            1e3 * deciding_s,
            1e6 * cpu_s
        );
        assert!(deciding_s < 0.1, "{policy}: {deciding_s}");
    }
    let kib = hall.daemon.rss_kib();
    let each_kib = kib.saturating_sub(alone_kib) / count as u64;
    println!("memory {each_kib} KiB a guest ({kib} KiB, without guests {alone_kib})");
    assert!(each_kib < 1024, "{kib}");
    drop(hall);
    // Ten do for that, and a day of a hundred is long.
    for policy in &POLICIES[1..] {
        let gain = gain_of_a_liar(policy, count.min(LIARS_GUESTS), 60_000);
        println!("{policy}: a liar gains {:.2} % in a day", 100.0 * gain);
        assert!(gain <= 0.01, "{policy}: {gain}");
    }
    println!("whole test {:.1} s", began.elapsed().as_secs_f64());
}
