// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Real programs under the real library, with far less DRAM than they use: the same
//! answers as without it. Each program checks every byte it wrote.

mod bench;

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bench::{Bench, text};

/// Runs a program alone (or the test itself is wrong), then in both modes.
fn in_every_mode(name: &str, arguments: &[&str]) {
    let bench = Bench::new();
    let program = bench.compile(name, &[]);
    let plain = Command::new(&program)
        .current_dir(bench.folder())
        .output()
        .unwrap();
    assert!(
        plain.status.success(),
        "without the pager: {}",
        text(&plain)
    );
    for mode in ["inline", "handler"] {
        let output = bench
            .paged(&program)
            .current_dir(bench.folder())
            .args(arguments)
            .env("DEMETER_EXTMEM_MODE", mode)
            .output()
            .unwrap();
        assert!(
            output.status.success() && output.stdout == b"ok\n",
            "{mode}: {}",
            text(&output)
        );
    }
    bench.assert_left_with(&[name]);
}

#[test]
fn forks() {
    in_every_mode("fork", &[]);
}

#[test]
fn mappings() {
    in_every_mode("mapping", &["bounded"]);
}

#[test]
fn places_are_kept_from_other_threads() {
    in_every_mode("places", &[]);
}

#[test]
fn exact_places_have_one_owner() {
    // Of the 1 GiB of swap.
    in_every_mode("exact", &["960"]);
}

#[test]
fn system_calls_on_evicted_memory() {
    in_every_mode("transfers", &[]);
}

#[test]
fn reservations_cost_nothing() {
    in_every_mode("reserve", &["paged"]);
}

#[test]
fn vectors_larger_than_dram() {
    in_every_mode("vectors", &[]);
}

#[test]
fn signals() {
    in_every_mode("signals", &[]);
}

#[test]
fn threads() {
    in_every_mode("threads", &[]);
}

#[test]
fn mappings_move_beside_walks() {
    in_every_mode("neighbours", &["6"]);
}

#[test]
fn neighbours_of_pages_that_leave_are_written() {
    in_every_mode("blocks", &["5"]);
}

/// Compaction migrates pages while the pager moves them. All of the machine's memory
/// is compacted a hundred times a second: not beside tests that somebody waits for.
#[test]
#[ignore = "compacts the machine's memory, as root: tests/suites/extmem"]
fn pages_move_while_the_kernel_moves_them_too() {
    const COMPACT: &str = "/proc/sys/vm/compact_memory";
    std::fs::write(COMPACT, "1").expect("root may write compact_memory");
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                std::fs::write(COMPACT, "1").unwrap();
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        // Ended by a failure, too: the scope waits for the thread above.
        let outcome = std::panic::catch_unwind(|| in_every_mode("threads", &["20000"]));
        ended.store(true, Ordering::Relaxed);
        outcome.unwrap();
    });
}

#[test]
fn other_programs() {
    in_every_mode("spawn", &[]);
}

/// A program that cannot be preloaded is run by a managed one: it gets the filter through
/// the exec, and must not notice.
#[test]
fn a_static_child_is_left_alone() {
    let bench = Bench::new();
    let program = bench.compile("mapping", &["-static"]);
    let output = bench
        .paged("/bin/sh".as_ref())
        .arg("-c")
        .arg(format!("{}; echo status $?", program.display()))
        .output()
        .unwrap();
    assert!(
        output.status.success() && output.stdout == b"ok\nstatus 0\n",
        "{}",
        text(&output)
    );
}
