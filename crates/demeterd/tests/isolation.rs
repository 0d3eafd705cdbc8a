// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Each guest's device is served by a process of its own, which is confined and may die at any
//! moment: its guest loses no page, and nobody else notices.

#[path = "rings/model.rs"]
mod model;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use demeter_balloon::wire::{
    HELLO_RESYNC, INFLATED_RESYNC, OP_DEFLATE, OP_DONE, OP_HELLO, OP_INFLATED, Range, Report,
    Request,
};
use model::{Daemon, Guest, LIMIT};

const FMEM: usize = 0;
/// Pages of FMEM with rings in them.
const RINGS: u64 = 64;
const KILLS: u64 = 100;
/// More of them, of workers that are younger than [`YOUNG`].
const EARLY_KILLS: u64 = 30;
/// A worker that dies younger is followed by another one after longer and longer pauses; by
/// itself the daemon has ten seconds there.
const YOUNG: Duration = Duration::from_millis(200);

fn kill(pid: u32) {
    signal(pid, libc::SIGKILL);
}

fn signal(pid: u32, number: libc::c_int) {
    // SAFETY: to a process that the daemon of this test has started.
    let status = unsafe { libc::kill(pid as libc::pid_t, number) };
    assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
}

fn until<T>(what: &str, mut get: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(got) = get() {
            return got;
        }
        assert!(began.elapsed() < LIMIT, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn is_root() -> bool {
    // SAFETY: asks for a number.
    unsafe { libc::geteuid() == 0 }
}

/// The kernel has it, and was started with it. Its version is asked for, since the list under
/// /sys/kernel/security is not there for everybody.
fn has_landlock() -> bool {
    const VERSION: libc::c_uint = 1;
    let none = std::ptr::null::<libc::c_void>();
    // SAFETY: a question; nothing is read from a null pointer of length zero.
    unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0_usize, VERSION) > 0 }
}

#[test]
fn a_worker_has_no_privileges() {
    let daemon = Daemon::start(&["a", "b"], &[]);
    let confined = |name: &str| {
        until("it is confined", || {
            let worker = daemon.view(name)["worker"].clone();
            (!worker["confinement"].is_null()).then_some(worker)
        })
    };
    let (a, b) = (confined("a"), confined("b"));
    assert_ne!(a["pid"], b["pid"]);
    for worker in [&a, &b] {
        let confinement = &worker["confinement"];
        assert_eq!(confinement["seccomp"], true, "{confinement}");
        if has_landlock() {
            assert_eq!(confinement["landlock"], true, "{confinement}");
        }
        if is_root() {
            assert!(confinement["uid"].as_u64() > Some(0), "{confinement}");
            // Left out when it is empty. A kernel without landlock cannot be blamed on us.
            let missing = confinement["missing"].as_array().into_iter().flatten();
            let missing: Vec<&str> = (missing.filter_map(serde_json::Value::as_str))
                .filter(|what| has_landlock() || !what.starts_with("landlock: "))
                .collect();
            assert_eq!(missing, [""; 0]);
        }
        let path = format!("/proc/{}/status", worker["pid"]);
        let status = std::fs::read_to_string(path).unwrap();
        let of = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            line.unwrap_or_default().trim().to_owned()
        };
        assert_eq!(of("NoNewPrivs:"), "1");
        assert_eq!(of("Seccomp:"), "2");
        if let Some(uid) = confinement["uid"].as_u64() {
            let uid = uid.to_string();
            assert_eq!(of("Uid:"), [uid.as_str(); 4].join("\t"));
            assert_eq!(of("Gid:"), [uid.as_str(); 4].join("\t"));
            assert_eq!(of("Groups:"), "");
            assert_eq!(of("CapEff:"), "0000000000000000");
        }
    }
    let (ours, theirs) = (&a["confinement"]["uid"], &b["confinement"]["uid"]);
    assert!(ours.is_null() || ours != theirs, "{ours}");
}

#[test]
fn a_death_is_counted_and_costs_its_own_guest_only() {
    let daemon = Daemon::start(&["a", "b"], &[]);
    let mut a = Guest::connect(&daemon, "a");
    let mut b = Guest::connect(&daemon, "b");
    a.greet();
    b.greet();
    let old = daemon.worker("a").unwrap();
    kill(old);
    until("it is missed", || a.is_cut().then_some(()));
    b.greet();
    let mut a = a.reconnect(&daemon);
    a.greet();
    let view = daemon.view("a");
    assert_eq!(view["worker"]["deaths"], 1);
    let why = view["worker"]["last_death"].as_str().unwrap_or_default();
    assert!(why.contains("signal 9"), "{why}");
    assert_ne!(view["worker"]["pid"], old);
    assert_eq!(daemon.view("b")["worker"]["deaths"], 0);
    let ledger = daemon.call("GET /v1/vms/a/ledger", "");
    let died = |entry: &serde_json::Value| entry["what"] == "worker_died";
    assert!(ledger.as_array().unwrap().iter().any(died), "{ledger}");
    b.greet();
}

#[test]
fn workers_end_with_their_coordinator() {
    let mut daemon = Daemon::start(&["a"], &[]);
    let mut guest = Guest::connect(&daemon, "a");
    guest.greet();
    let pid = until("it is confined", || {
        let is_confined = !daemon.view("a")["worker"]["confinement"].is_null();
        is_confined.then(|| daemon.worker("a")).flatten()
    });
    // Also one that does not run: what comes next has to listen in its place.
    signal(pid, libc::SIGSTOP);
    daemon.kill();
    until("it ends", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let is_gone = stat.is_empty() || stat.contains(") Z ");
        is_gone.then_some(())
    });
    until("it is missed", || guest.is_cut().then_some(()));
    daemon.restart();
    guest.reconnect(&daemon).greet();
}

#[test]
fn threads_do_the_same_for_debugging() {
    let daemon = Daemon::start(&["a"], &["--isolation", "none"]);
    let mut guest = Guest::connect(&daemon, "a");
    guest.greet();
    assert_eq!(daemon.worker("a"), None);
    daemon.ask("a", "fmem", (guest.pages(FMEM) - 10) << 12);
    let request = Request::from_bytes(&guest.next_request()).unwrap();
    assert_eq!(request.target_pages, 10);
}

/// A driver as far as FMEM goes. What it has not been told to be its own again stays in the
/// balloon; what it gives away, it has forgotten.
struct Driver {
    guest: Guest,
    balloon: BTreeSet<u64>,
    seed: u64,
}

fn random(seed: &mut u64, below: u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed % below
}

impl Driver {
    /// Its balloon is empty, and all that is its own is in use.
    fn new(daemon: &Daemon) -> Self {
        let mut driver = Self {
            balloon: BTreeSet::new(),
            guest: Guest::connect(daemon, "a"),
            seed: 0x9e37_79b9_7f4a_7c15,
        };
        for page in RINGS..driver.guest.pages(FMEM) {
            driver.guest.mark(FMEM, page);
        }
        driver.greet();
        driver
    }

    fn random(&mut self, below: u64) -> u64 {
        random(&mut self.seed, below)
    }

    fn ranges(pages: &[u64]) -> Vec<Range> {
        let range = |page: &u64| Range {
            gpa: page << 12,
            nr_pages: 1,
        };
        pages.iter().map(range).collect()
    }

    fn greet(&mut self) {
        assert_eq!(self.try_greet(), Some(()));
    }

    /// Greets, and names the pages that it has kept; none: cut off.
    fn try_greet(&mut self) -> Option<()> {
        let kept: Vec<u64> = self.balloon.iter().copied().collect();
        let hello = Report {
            op: OP_HELLO,
            flags: if kept.is_empty() { 0 } else { HELLO_RESYNC },
            current_pages: kept.len() as u64,
            ..Report::default()
        };
        assert_eq!(self.guest.try_report(FMEM, hello, &[])?, 0);
        let smem = Report {
            op: OP_HELLO,
            node: 1,
            ..Report::default()
        };
        assert_eq!(self.guest.try_report(1, smem, &[])?, 0);
        for some in kept.chunks(256) {
            let report = Report {
                op: OP_INFLATED,
                flags: INFLATED_RESYNC,
                current_pages: kept.len() as u64,
                ..Report::default()
            };
            let status = self.guest.try_report(FMEM, report, &Self::ranges(some))?;
            assert_eq!(status, 0);
        }
        Some(())
    }

    /// Asks the daemon for another size if none is wanted, and does what it is asked for; how many
    /// requests it has done.
    fn go_on(&mut self, daemon: &Daemon, wanted: &mut Option<u64>) -> u64 {
        let pages = self.guest.pages(FMEM);
        if wanted.is_none() {
            let balloon = self.random(pages - 2 * RINGS);
            let body = format!("{{\"size_bytes\": {}}}", (pages - balloon) << 12);
            // Its worker may be gone by now.
            let asked = daemon.status("PUT /v1/vms/a/tiers/fmem", &body).0 == 200;
            *wanted = asked.then_some(balloon);
        }
        let Some(bytes) = self.guest.poll_request() else {
            // Whoever is waited for needs a processor.
            std::thread::sleep(Duration::from_millis(1));
            return 0;
        };
        let request = Request::from_bytes(&bytes).unwrap();
        *wanted = wanted.filter(|wanted| *wanted != request.target_pages);
        self.execute(request).map_or(0, |()| 1)
    }

    /// What is in its balloon is counted, and none of it is still the host's.
    fn agrees(&self, daemon: &Daemon) {
        let balloon_pages = self.balloon.len() as u64;
        let held = daemon.view("a")["tiers"][0]["balloon_bytes"].as_u64();
        assert_eq!(held, Some(balloon_pages << 12));
        let allocated = self.guest.allocated_pages(FMEM);
        let most = self.guest.pages(FMEM) - balloon_pages;
        assert!(allocated <= most, "{allocated}");
    }

    /// All of it comes back, as it was.
    fn end(mut self, daemon: &Daemon) {
        assert_eq!(daemon.violations("a"), 0);
        let body = format!("{{\"size_bytes\": {}}}", self.guest.pages(FMEM) << 12);
        let (status, answer) = daemon.status("PUT /v1/vms/a/tiers/fmem", &body);
        assert_eq!(status, 200, "{answer}");
        until("all is back", || {
            if let Some(bytes) = self.guest.poll_request() {
                self.execute(Request::from_bytes(&bytes).unwrap());
            }
            self.balloon.is_empty().then_some(())
        });
        self.check();
    }

    /// Executes a request in small steps; none: cut off.
    fn execute(&mut self, request: Request) -> Option<()> {
        let pages = self.guest.pages(FMEM);
        while self.balloon.len() as u64 != request.target_pages {
            let missing = (self.balloon.len() as u64).abs_diff(request.target_pages);
            let count = (1 + self.random(32)).min(missing) as usize;
            let inflates = request.target_pages > self.balloon.len() as u64;
            let some: Vec<u64> = if inflates {
                let free = (RINGS..pages).filter(|page| !self.balloon.contains(page));
                free.take(count).collect()
            } else {
                self.balloon.iter().copied().take(count).collect()
            };
            if inflates {
                self.balloon.extend(&some);
            }
            let report = Report {
                id: request.id,
                op: if inflates { OP_INFLATED } else { OP_DEFLATE },
                ..Report::default()
            };
            let status = self.guest.try_report(FMEM, report, &Self::ranges(&some))?;
            assert_eq!(status, 0, "{report:?}");
            if !inflates {
                for page in some {
                    self.balloon.remove(&page);
                    self.guest.mark(FMEM, page);
                }
            }
        }
        let done = Report {
            id: request.id,
            op: OP_DONE,
            current_pages: request.target_pages,
            ..Report::default()
        };
        self.guest.try_report(FMEM, done, &[]).map(|_| ())
    }

    fn check(&self) {
        for page in RINGS..self.guest.pages(FMEM) {
            assert!(
                self.balloon.contains(&page) || self.guest.is_marked(FMEM, page),
                "page {page} is lost"
            );
        }
    }
}

#[test]
fn a_hundred_kills_lose_no_page() {
    let young_ms = YOUNG.as_millis().to_string();
    let daemon = Daemon::start(&["a"], &["--worker-young-ms", &young_ms]);
    let mut driver = Driver::new(&daemon);
    let mut moved = 0;
    for _ in 0..KILLS {
        let pid = until("there is a worker", || daemon.worker("a"));
        let wait = YOUNG + Duration::from_micros(driver.random(100_000));
        let killer = std::thread::spawn(move || {
            std::thread::sleep(wait);
            kill(pid);
        });
        let mut wanted = None;
        while !driver.guest.is_cut() {
            moved += driver.go_on(&daemon, &mut wanted);
        }
        killer.join().unwrap();
        driver.check();
        driver.guest = driver.guest.reconnect(&daemon);
        driver.greet();
        driver.agrees(&daemon);
    }
    assert!(moved > KILLS / 2, "little was going on: {moved}");
    assert_eq!(daemon.view("a")["worker"]["deaths"], KILLS);
    driver.end(&daemon);
}

/// A worker may end before it has said a word, while it gives its privileges up, while a monitor
/// hands it memory, and while a driver names what it has kept.
#[test]
fn kills_of_workers_that_have_just_begun_lose_no_page() {
    // Whoever dies young is followed after longer and longer pauses, unless nobody is young.
    let daemon = Daemon::start(&["a"], &["--worker-young-ms", "0"]);
    let mut driver = Driver::new(&daemon);
    let (mut cuts, mut moved, mut wanted) = (0, 0, None);
    std::thread::scope(|scope| {
        let killer = scope.spawn(|| {
            let mut seed = 0x2545_f491_4f6c_dd1d;
            let mut killed = Vec::new();
            for number in 0..EARLY_KILLS {
                let pid = until("there is another worker", || {
                    let mut started = daemon.started().into_iter();
                    started.find(|pid| !killed.contains(pid))
                });
                // Half of them before much of it has begun.
                let most = if number % 2 == 0 { YOUNG } else { YOUNG / 20 };
                let wait = random(&mut seed, most.as_micros() as u64);
                std::thread::sleep(Duration::from_micros(wait));
                kill(pid);
                killed.push(pid);
            }
        });
        let began = std::time::Instant::now();
        // Where each died before it could do a thing the last one shows that something was going on.
        while !killer.is_finished() || (moved == 0 && began.elapsed() < LIMIT) {
            if driver.guest.is_cut() {
                driver.check();
                if driver.guest.try_reconnect(&daemon).is_err() {
                    cuts += 1;
                    continue;
                }
                if driver.try_greet().is_none() {
                    assert!(driver.guest.is_cut(), "no answer to HELLO");
                    cuts += 1;
                    continue;
                }
                wanted = None;
            }
            moved += driver.go_on(&daemon, &mut wanted);
        }
        killer.join().unwrap();
    });
    until("the last one is missed", || {
        (daemon.view("a")["worker"]["deaths"] == EARLY_KILLS).then_some(())
    });
    until("it is served", || {
        let is_there = !driver.guest.is_cut() || driver.guest.try_reconnect(&daemon).is_ok();
        (is_there && driver.try_greet().is_some()).then_some(())
    });
    println!("{cuts} beginnings were cut, {moved} requests done");
    assert!(moved > 0, "nothing was going on");
    driver.agrees(&daemon);
    driver.end(&daemon);
}
