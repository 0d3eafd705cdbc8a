// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon as a process, and a model of a guest that speaks to it over real
//! vhost-user sockets, real rings and real files: what a driver would never do,
//! down to the ring's own words.

mod model;

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use demeter_balloon::wire::{
    ACK_BYTES, INFLATED_RESYNC, OP_DEFLATE, OP_DONE, OP_HELLO, OP_INFLATED, QUEUE_REPORT,
    QUEUE_REQUEST, QUEUE_STATISTICS, Range, Report, Request,
};
use model::{Daemon, Descriptor, Guest, INDIRECT, LIMIT, NEXT, WRITE};

const FMEM: usize = 0;

fn range(page: u64, nr_pages: u64) -> Range {
    Range {
        gpa: page << 12,
        nr_pages,
    }
}

/// Greets on both queues.
fn driver(guest: &mut Guest) {
    for node in 0..2 {
        assert_eq!(guest.report(usize::from(node), hello(node), &[]), Some(0));
    }
}

fn hello(node: u16) -> Report {
    Report {
        op: OP_HELLO,
        node,
        ..Report::default()
    }
}

fn op(op: u16) -> Report {
    Report {
        op,
        ..Report::default()
    }
}

/// Takes the next request; the daemon was asked for one.
fn request(guest: &mut Guest) -> Request {
    Request::from_bytes(&guest.next_request()).unwrap()
}

#[test]
fn a_size_is_asked_for_taken_and_given_back() {
    let daemon = Daemon::start(&["a"], &[]);
    let mut guest = Guest::connect(&daemon, "a");
    driver(&mut guest);
    let pages = guest.pages(FMEM);
    daemon.ask("a", "fmem", (pages - 100) << 12);
    let asked = request(&mut guest);
    assert_eq!((asked.node, asked.target_pages), (0, 100));
    guest.fill(FMEM);
    let full = guest.allocated_pages(FMEM);
    let inflated = Report {
        id: asked.id,
        current_pages: 100,
        ..op(OP_INFLATED)
    };
    assert_eq!(guest.report(FMEM, inflated, &[range(200, 100)]), Some(0));
    assert_eq!(full - guest.allocated_pages(FMEM), 100);
    let done = Report {
        id: asked.id,
        current_pages: 100,
        ..op(OP_DONE)
    };
    assert_eq!(guest.report(FMEM, done, &[]), Some(0));
    let view = daemon.view("a");
    assert_eq!(view["tiers"][0]["balloon_bytes"], 100 << 12);
    assert_eq!(view["tiers"][0]["last"]["outcome"], "reached");
    assert_eq!(
        guest.report(FMEM, op(OP_DEFLATE), &[range(200, 100)]),
        Some(0)
    );
    assert_eq!(daemon.view("a")["tiers"][0]["balloon_bytes"], 0);
}

/// A guest that reboots stops its rings, and uses their memory for something else: a wish
/// that comes meanwhile waits for the next driver.
#[test]
fn the_memory_of_a_stopped_ring_is_left_alone() {
    let daemon = Daemon::start(&["a"], &[]);
    let mut guest = Guest::connect(&daemon, "a");
    driver(&mut guest);
    guest.stop_requests();
    daemon.ask("a", "fmem", (guest.pages(FMEM) - 100) << 12);
    // The thread that was woken for the wish answers this after it.
    driver(&mut guest);
    assert!(guest.requests_are_untouched());
    guest.start_requests();
    assert_eq!(request(&mut guest).target_pages, 100);
}

/// A driver that is unplugged frees what its last reports lay in: an answer that came after that
/// was written into the guest's kernel's own memory.
#[test]
fn no_report_is_answered_once_its_ring_is_stopped() {
    let daemon = Daemon::start(&["a"], &[]);
    let mut guest = Guest::connect(&daemon, "a");
    driver(&mut guest);
    daemon.ask("a", "fmem", (guest.pages(FMEM) - 100) << 12);
    request(&mut guest);
    for round in 0..100 {
        let inflated = |page: u64| op(OP_INFLATED).message(&[range(300 + page, 1)]);
        let reports: Vec<Vec<u8>> = (0..32).map(inflated).collect();
        guest.restart_queue(FMEM);
        guest.burst(FMEM, &reports);
        guest.stop_queue(FMEM);
        std::thread::sleep(Duration::from_millis(3));
        assert!(guest.queue_is_untouched(FMEM), "round {round}");
        guest.start_reports(FMEM);
        assert_eq!(guest.report(FMEM, hello(0), &[]), Some(0));
        request(&mut guest);
    }
    assert_eq!(daemon.violations("a"), 0);
}

/// What it was asked for before its HELLO is forgotten with it, and would be refused. [DEV-7]
#[test]
fn a_driver_that_comes_after_a_reset_is_asked_for_nothing_before_it_greets() {
    let daemon = Daemon::start(&["a"], &[]);
    let mut guest = Guest::connect(&daemon, "a");
    driver(&mut guest);
    daemon.ask("a", "smem", (guest.pages(1) - 7) << 12);
    assert_eq!(request(&mut guest).target_pages, 7);
    let inflated = Report {
        node: 1,
        ..op(OP_INFLATED)
    };
    let first = guest.first_page(1);
    assert_eq!(guest.report(1, inflated, &[range(first, 7)]), Some(0));
    guest.reset();
    daemon.ask("a", "fmem", (guest.pages(FMEM) - 100) << 12);
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(300) {
        assert_eq!(guest.requests_given(), 0, "asked before HELLO");
        std::thread::sleep(Duration::from_millis(5));
    }
    let view = daemon.view("a");
    assert_eq!(view["stage"], "connected");
    assert_eq!(view["tiers"][1]["balloon_bytes"], 7 << 12, "of what it was");
    driver(&mut guest);
    assert_eq!(daemon.view("a")["stage"], "driven");
    // FMEM greets first.
    let targets = [request(&mut guest), request(&mut guest)].map(|asked| asked.target_pages);
    assert_eq!(targets, [100, 7]);
    assert_eq!(daemon.violations("a"), 0);
}

#[test]
fn configuration_is_answered_at_any_offset_and_size() {
    let daemon = Daemon::start(&["a"], &[]);
    let mut guest = Guest::connect(&daemon, "a");
    let whole = guest.config(0, 64);
    assert_eq!(&whole[..4], b"DMBL");
    assert_eq!(guest.config(3, 5), whole[3..8]);
    assert_eq!(guest.config(60, 4), [0; 4]);
}

#[test]
fn wrong_reports_are_refused_by_reason_and_change_nothing() {
    let daemon = Daemon::start(&["a"], &[]);
    let mut guest = Guest::connect(&daemon, "a");
    driver(&mut guest);
    daemon.ask("a", "fmem", (guest.pages(FMEM) - 10) << 12);
    request(&mut guest);
    guest.fill(FMEM);
    let full = guest.allocated_pages(FMEM);
    let smem = guest.first_page(1);
    let inflated = op(OP_INFLATED);
    let wrong: [(u32, Report, Vec<Range>); 11] = [
        (3, inflated, vec![range(1 << 40, 1)]),
        (3, inflated, vec![range(300, u64::MAX)]),
        (3, inflated, vec![range(300, 0)]),
        (
            3,
            inflated,
            vec![Range {
                gpa: 300 << 12 | 8,
                nr_pages: 1,
            }],
        ),
        (4, inflated, vec![range(smem, 1)]),
        (5, inflated, vec![range(300, 2), range(301, 1)]),
        (6, inflated, vec![range(300, 11)]),
        (5, op(OP_DEFLATE), vec![range(300, 1)]),
        (
            2,
            Report {
                node: 1,
                ..inflated
            },
            vec![range(300, 1)],
        ),
        (1, op(77), vec![range(300, 1)]),
        (
            5,
            Report {
                flags: INFLATED_RESYNC,
                ..inflated
            },
            vec![range(300, 1)],
        ),
    ];
    for (status, report, ranges) in &wrong {
        let answer = guest.report(FMEM, *report, ranges);
        assert_eq!(answer, Some(*status), "{report:?} {ranges:?}");
    }
    assert_eq!(guest.allocated_pages(FMEM), full);
    let view = daemon.view("a");
    assert_eq!(view["tiers"][0]["balloon_bytes"], 0);
    let violations = view["violations"].as_object().unwrap();
    let total: u64 = violations.values().filter_map(|count| count.as_u64()).sum();
    assert_eq!(total, wrong.len() as u64);
    assert_eq!(violations.len(), wrong.len(), "{violations:?}");
    // It is listened to as before.
    assert_eq!(guest.report(FMEM, inflated, &[range(300, 10)]), Some(0));
}

#[test]
fn broken_chains_are_counted_and_come_back() {
    let daemon = Daemon::start(&["a"], &[]);
    let mut guest = Guest::connect(&daemon, "a");
    driver(&mut guest);
    let buffer = guest.buffer(FMEM);
    let far = 1 << 45;
    let plain = |addr, len, flags, next| Descriptor {
        addr,
        len,
        flags,
        next,
    };
    let chains: Vec<(&str, Vec<Descriptor>)> = vec![
        ("self loop", vec![plain(buffer, 16, NEXT, 0)]),
        (
            "loop of two, 4 GiB each",
            vec![
                plain(buffer, u32::MAX, NEXT, 1),
                plain(buffer, u32::MAX, NEXT, 0),
            ],
        ),
        ("outside memory", vec![plain(far, 64, 0, 0)]),
        ("address wraps", vec![plain(u64::MAX - 8, 64, 0, 0)]),
        ("next outside the ring", vec![plain(buffer, 32, NEXT, 9999)]),
        ("no room for an answer", vec![plain(buffer, 32, 0, 0)]),
        (
            "answer too short",
            vec![plain(buffer, 32, NEXT, 1), plain(buffer + 64, 4, WRITE, 0)],
        ),
        (
            "written before read",
            vec![plain(buffer, 32, WRITE | NEXT, 1), plain(buffer, 32, 0, 0)],
        ),
        ("empty", vec![plain(buffer, 0, 0, 0)]),
        (
            "indirect table outside memory",
            vec![plain(far, 16 * 64, INDIRECT, 0)],
        ),
        (
            "indirect table of odd length",
            vec![plain(buffer, 17, INDIRECT, 0)],
        ),
        ("nested indirect", guest.nested_indirect(FMEM)),
        ("indirect loop of 65535", guest.indirect_loop(FMEM)),
    ];
    for (number, (what, chain)) in chains.iter().enumerate() {
        guest.offer_chain(FMEM, chain);
        assert!(guest.wait_used(FMEM).is_some(), "{what} does not come back");
        let total: u64 = daemon.violations("a");
        assert_eq!(total, number as u64 + 1, "{what}");
    }
    // The queue works as before.
    assert_eq!(guest.report(FMEM, hello(0), &[]), Some(0));
    assert!(daemon.rss_kib() < 32 << 10, "{} KiB", daemon.rss_kib());
}

#[test]
fn a_broken_ring_stops_its_queue_and_nobody_else() {
    let daemon = Daemon::start(&["a", "b"], &[]);
    let mut hostile = Guest::connect(&daemon, "a");
    let mut honest = Guest::connect(&daemon, "b");
    driver(&mut hostile);
    driver(&mut honest);
    hostile.jump_available(FMEM, 1000);
    let began = Instant::now();
    while daemon.violations("a") == 0 {
        assert!(began.elapsed() < LIMIT, "the ring is taken for whole");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(daemon.violations("a"), 1);
    assert_eq!(daemon.view("a")["violations"]["ring"], 1);
    // Its other queue goes on, and so does the other guest.
    assert_eq!(hostile.report(1, hello(1), &[]), Some(0));
    daemon.ask("b", "fmem", (honest.pages(FMEM) - 10) << 12);
    assert_eq!(request(&mut honest).target_pages, 10);
    assert_eq!(
        honest.report(FMEM, op(OP_INFLATED), &[range(300, 10)]),
        Some(0)
    );
    assert_eq!(daemon.violations("b"), 0);
    // A ring that starts anew is another ring.
    hostile.restart_queue(FMEM);
    assert_eq!(hostile.report(FMEM, hello(0), &[]), Some(0));
}

/// Until that many violations of that reason were counted.
fn wait_violations(daemon: &Daemon, reason: &str, count: u64) {
    let began = Instant::now();
    while daemon.view("a")["violations"][reason].as_u64() < Some(count) {
        let view = daemon.view("a");
        assert!(began.elapsed() < LIMIT, "not counted: {view}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The word that names the next buffer lies outside guest memory: there it is for ever, and can
/// never be taken.
#[test]
fn a_ring_that_is_cut_off_costs_its_queue_and_no_processor() {
    let daemon = Daemon::start(&["a"], &[]);
    for queue in [QUEUE_REPORT + FMEM, QUEUE_STATISTICS, QUEUE_REQUEST] {
        let mut hostile = Guest::connect(&daemon, "a");
        driver(&mut hostile);
        hostile.cut_available(queue);
        if queue == QUEUE_REQUEST {
            // Without a request nobody looks there; each of them takes one of three buffers.
            for pages in 1..=4 {
                daemon.ask("a", "fmem", (hostile.pages(FMEM) - pages) << 12);
                assert_eq!(hostile.report(1, hello(1), &[]), Some(0));
            }
        }
        wait_violations(&daemon, "ring", 1);
        // The other one goes on, and nobody is busy with this one.
        assert_eq!(hostile.report(1, hello(1), &[]), Some(0));
        let before_s = daemon.cpu_s();
        std::thread::sleep(Duration::from_millis(500));
        let used_s = daemon.cpu_s() - before_s;
        assert!(used_s < 0.3, "queue {queue}: {used_s} s in half a second");
        assert_eq!(daemon.view("a")["violations"]["ring"], 1, "queue {queue}");
        // Whoever is gone is let go.
        let mut again = hostile.reconnect(&daemon);
        driver(&mut again);
    }
}

/// Its monitor is hung up on, and does not come back by itself.
#[test]
fn a_ring_that_cannot_be_is_told_as_its_machines_problem() {
    let daemon = Daemon::start(&["a"], &[]);
    let troubled = || daemon.counter("demeter_balloon_troubled{vm=\"a\"}");
    // Misaligned; longer than any; nowhere in guest memory.
    let wrong = [(64, 8), (512, 0), (64, 1 << 29)];
    for (count, (size, offset)) in wrong.into_iter().enumerate() {
        let mut hostile = Guest::connect(&daemon, "a");
        driver(&mut hostile);
        assert_eq!(troubled(), 0);
        hostile.start_wrong(FMEM, size, offset);
        wait_violations(&daemon, "ring", count as u64 + 1);
        assert!(hostile.is_cut(), "it is served");
        let view = daemon.view("a");
        assert_eq!(view["stage"], "waiting");
        let problem = view["problem"].to_string();
        assert!(
            problem.contains("ring") && problem.contains("replug"),
            "{problem}"
        );
        assert_eq!(troubled(), 1);
        // A connection that ends as it should, without memory, mends nothing.
        drop(UnixStream::connect(daemon.path("a.sock")).unwrap());
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(troubled(), 1);
        let mut again = hostile.reconnect(&daemon);
        driver(&mut again);
        let view = daemon.view("a");
        assert_eq!(view["stage"], "driven");
        assert!(view["problem"].is_null(), "{view}");
    }
}

#[test]
fn after_too_many_violations_the_device_is_deaf_until_it_is_plugged_in_anew() {
    let daemon = Daemon::start(&["a", "b"], &["--violation-limit", "5"]);
    let mut hostile = Guest::connect(&daemon, "a");
    let mut honest = Guest::connect(&daemon, "b");
    driver(&mut hostile);
    driver(&mut honest);
    for _ in 0..5 {
        assert_eq!(hostile.report(FMEM, op(77), &[range(0, 1)]), Some(1));
    }
    for _ in 0..2000 {
        assert_eq!(hostile.report(FMEM, op(77), &[range(0, 1)]), Some(8));
    }
    assert_eq!(daemon.view("a")["stage"], "disabled");
    assert_eq!(daemon.violations("a"), 5);
    assert_eq!(hostile.report(FMEM, hello(0), &[]), Some(8));
    assert_eq!(honest.report(FMEM, hello(0), &[]), Some(0));
    assert_eq!(daemon.view("b")["stage"], "driven");
    drop(hostile);
    let mut again = Guest::connect(&daemon, "a");
    driver(&mut again);
    assert_eq!(daemon.view("a")["stage"], "driven");
}

#[test]
fn a_restarted_daemon_asks_for_the_last_size() {
    let mut daemon = Daemon::start(&["a"], &[]);
    let mut guest = Guest::connect(&daemon, "a");
    driver(&mut guest);
    daemon.ask("a", "fmem", (guest.pages(FMEM) - 64) << 12);
    assert_eq!(request(&mut guest).target_pages, 64);
    daemon.kill();
    daemon.restart();
    let mut guest = guest.reconnect(&daemon);
    driver(&mut guest);
    assert_eq!(request(&mut guest).target_pages, 64);
}

#[test]
fn connections_leave_nothing_behind() {
    let daemon = Daemon::start(&["a"], &[]);
    // However long a worker takes to end: files that stay are still there then.
    let settles_at = |most: usize| {
        let began = Instant::now();
        while daemon.open_files() > most {
            let open = daemon.open_files();
            assert!(began.elapsed() < LIMIT, "{open} files, {most} before");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let before = daemon.open_files();
    drop(Guest::connect(&daemon, "a"));
    settles_at(before);
    for _ in 0..10 {
        let mut guest = Guest::connect(&daemon, "a");
        driver(&mut guest);
        drop(guest);
    }
    settles_at(before);
}

#[test]
fn an_answer_is_as_long_as_the_structure() {
    let daemon = Daemon::start(&["a"], &[]);
    let mut guest = Guest::connect(&daemon, "a");
    let length = guest.report_length(FMEM, hello(0));
    assert_eq!(length, ACK_BYTES as u32);
}

fn count_of(view: &serde_json::Value, what: &str) -> u64 {
    view["churn"][what].as_u64().unwrap_or(0)
}

#[test]
fn who_greets_in_circles_is_held_back_and_does_not_fill_the_ledger() {
    let daemon = Daemon::start(&["a", "b"], &[]);
    let mut busy = Guest::connect(&daemon, "a");
    let mut honest = Guest::connect(&daemon, "b");
    driver(&mut busy);
    driver(&mut honest);
    daemon.ask("a", "fmem", (busy.pages(FMEM) - 10) << 12);
    let began = Instant::now();
    busy.flood(FMEM, hello(0), 450);
    let seconds = began.elapsed().as_secs_f64();
    let view = daemon.view("a");
    assert_eq!(view["violations"], serde_json::json!({}));
    assert!(count_of(&view, "held_back") > 0, "{}", view["churn"]);
    assert!(count_of(&view, "untold") > 0 && count_of(&view, "unwritten") > 0);
    let ledger = std::fs::read_to_string(daemon.path("state/a.jsonl")).unwrap();
    let written = ledger.lines().filter(|l| l.contains("driver")).count() as f64;
    assert!(written <= 256.0 + 2.0 * seconds + 3.0, "{written} entries");
    // What was asked for is still known, and nobody else is held back.
    let asked = ledger.lines().any(|line| line.contains("asked"));
    assert!(asked);
    assert_eq!(count_of(&daemon.view("b"), "held_back"), 0);
}

#[test]
fn answers_into_memory_that_was_never_touched_are_bounded() {
    let daemon = Daemon::start(&["a"], &[]);
    let mut guest = Guest::connect(&daemon, "a");
    driver(&mut guest);
    let allocated = |guest: &Guest| guest.allocated_pages(0) + guest.allocated_pages(1);
    let before = allocated(&guest);
    // Every page of both nodes but those with rings; of what is not asked.
    let pages = (64..1024).chain((64..1024).map(|page| guest.first_page(1) + page));
    let pages: Vec<u64> = pages.take(1200).collect();
    let mut answered: u64 = 0;
    for page in pages {
        answered += u64::from(guest.report_for(FMEM, op(OP_DONE), page << 12) > 0);
        if answered >= 1000 && daemon.view("a")["stage"] == "disabled" {
            break;
        }
    }
    let more = allocated(&guest) - before;
    assert!(more <= 1024 + 8, "{more} pages were allocated");
    assert!(
        answered >= 1000,
        "a driver has some such buffers: {answered}"
    );
    let view = daemon.view("a");
    assert!(
        view["violations"]["untouched"].as_u64() >= Some(1),
        "{view}"
    );
    assert_eq!(view["stage"], "disabled");
}

#[test]
fn indirect_tables_in_memory_that_was_never_touched_are_bounded() {
    let daemon = Daemon::start(&["a"], &["--violation-limit", "100000"]);
    let mut guest = Guest::connect(&daemon, "a");
    driver(&mut guest);
    let allocated = |guest: &Guest| guest.allocated_pages(0) + guest.allocated_pages(1);
    let before = allocated(&guest);
    // A table across the end of each page: to walk it allocates two pages.
    let second = guest.first_page(1);
    for page in (64..1023).chain(second + 64..second + 1023) {
        guest.offer_chain(
            FMEM,
            &[Descriptor {
                addr: ((page + 1) << 12) - 8,
                len: 16,
                flags: INDIRECT,
                next: 0,
            }],
        );
        assert_eq!(guest.wait_used(FMEM), Some(0));
    }
    let more = allocated(&guest) - before;
    assert!(more <= 1024 + 8, "{more} pages were allocated");
    assert!(daemon.view("a")["violations"]["untouched"].as_u64() > Some(1));
}

#[test]
fn memory_that_goes_away_costs_its_own_machine_only() {
    let daemon = Daemon::start(&["a", "b"], &[]);
    let mut broken = Guest::connect(&daemon, "a");
    let mut honest = Guest::connect(&daemon, "b");
    driver(&mut broken);
    driver(&mut honest);
    broken.truncate(FMEM, 0);
    broken.ring(FMEM);
    let began = Instant::now();
    while daemon.view("a")["stage"] != "disabled" {
        assert!(began.elapsed() < LIMIT, "nobody notices");
        std::thread::sleep(Duration::from_millis(10));
    }
    let problem = daemon.view("a")["problem"].to_string();
    assert!(problem.contains("gone"), "{problem}");
    assert_eq!(honest.report(FMEM, hello(0), &[]), Some(0));
    // With whole memory it is served again.
    broken.truncate(FMEM, broken.pages(FMEM) << 12);
    let mut again = broken.reconnect(&daemon);
    driver(&mut again);
    assert_eq!(daemon.view("a")["stage"], "driven");
}
