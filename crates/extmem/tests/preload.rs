// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Real programs under the real library, with far less DRAM than they use: the same
//! answers as without it. Each program checks every byte it wrote.

mod bench;

use std::path::PathBuf;
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
fn processes_on_stacks_of_their_own() {
    in_every_mode("clone", &[]);
}

/// The pager's threads have no variables of other libraries, and it wants a clock that goes on.
#[test]
fn a_clock_of_another_library_is_left_to_the_program() {
    let bench = Bench::new();
    let library = bench.compile("clock_library", &["-shared", "-fPIC"]);
    let program = bench.compile("fork", &[]);
    let ours = bench::library();
    for libraries in [[&ours, &library], [&library, &ours]] {
        let [first, second] = libraries.map(|path| path.display());
        let output = bench
            .paged(&program)
            .env("LD_PRELOAD", format!("{first}:{second}"))
            .output()
            .unwrap();
        assert!(
            output.status.success() && output.stdout == b"ok\n",
            "{}",
            text(&output)
        );
    }
}

#[test]
fn words_written_while_pages_leave() {
    in_every_mode("withdraw", &[]);
    in_every_mode("withdraw", &["walk"]);
}

#[test]
fn the_first_thread_may_end_before_others() {
    in_every_mode("leader", &[]);
}

#[test]
fn pipes_are_large_only_while_pages_leave() {
    in_every_mode("pipes", &[]);
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
fn threads_protect_the_same_memory() {
    // Of the 1 GiB of swap.
    in_every_mode("protect", &["960"]);
}

#[test]
fn system_calls_on_evicted_memory() {
    in_every_mode("transfers", &[]);
}

#[test]
fn what_paged_memory_does_not_know_is_refused() {
    in_every_mode("refused", &["paged"]);
}

/// Signals that are blocked behind the pager's back end a program, and only that.
#[test]
fn signals_blocked_by_assembly_end_the_program() {
    use std::os::unix::process::ExitStatusExt;
    in_every_mode("masks", &["none"]);
    let bench = Bench::new();
    let program = bench.compile("masks", &[]);
    let output = bench
        .paged(&program)
        .env("DEMETER_EXTMEM_MODE", "inline")
        .output()
        .unwrap();
    let signal = output.status.signal();
    assert!(
        matches!(signal, Some(libc::SIGBUS | libc::SIGSYS)),
        "{signal:?} {}",
        text(&output)
    );
    bench.assert_left_with(&["masks"]);
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
fn an_alternate_stack_that_was_only_read_takes_frames() {
    in_every_mode("altstack", &[]);
}

#[test]
fn stacks_in_managed_memory() {
    in_every_mode("stacks", &[]);
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
fn a_hole_that_the_kernel_has_no_mapping_for_is_refused() {
    in_every_mode("many", &[]);
}

#[test]
fn words_of_threads_that_meet_in_a_page() {
    in_every_mode("shared", &[]);
}

#[test]
fn buffers_of_threads_that_wait_leave_dram_to_others() {
    in_every_mode("waiting", &[]);
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
    in_every_mode("spawn", &["paged"]);
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

/// The C library of what is started would lie where the filter knows it.
#[test]
fn what_is_started_with_fixed_addresses_runs() {
    let bench = Bench::new();
    let plain = Command::new("setarch")
        .args(["-R", "true"])
        .output()
        .unwrap();
    assert!(plain.status.success(), "{}", text(&plain));
    let script = "/bin/true && sh -c true && setarch -R sort /dev/null && \
                  env -i /usr/bin/setarch -R /usr/bin/sort /dev/null && echo ok";
    for starts in [
        &[][..],
        &["setarch", "-R"],
        &["setarch", "-R", "setarch", "-R"],
    ] {
        let mut words = [starts, &["/bin/sh", "-c", script]].concat().into_iter();
        let first = words.next().unwrap();
        let output = bench.paged(first.as_ref()).args(words).output().unwrap();
        assert!(
            output.status.success() && output.stdout == b"ok\n",
            "{starts:?}: {}",
            text(&output)
        );
    }
    // From outside.
    let library = library_of(&bench);
    let output = bench
        .paged("setarch".as_ref())
        .env_remove("LD_PRELOAD")
        .args(["-R", "env"])
        .arg(format!("LD_PRELOAD={}", library.display()))
        .args(["/bin/sh", "-c", script])
        .output()
        .unwrap();
    assert!(
        output.status.success() && output.stdout == b"ok\n",
        "from outside: {}",
        text(&output)
    );
}

fn library_of(bench: &Bench) -> PathBuf {
    (bench.paged("true".as_ref()).get_envs())
        .find_map(|(name, value)| (name == "LD_PRELOAD").then(|| value.unwrap().into()))
        .unwrap()
}

#[test]
fn who_starts_itself_anew_for_fixed_addresses_has_them() {
    in_every_mode("fixed", &[]);
}

#[test]
#[ignore = "has a system without random addresses, as root: tests/suites/extmem"]
fn nothing_is_started_where_no_addresses_are_random() {
    let bench = Bench::new();
    let off = bench.folder().join("off");
    std::fs::write(&off, "0\n").unwrap();
    let setting = "/proc/sys/kernel/randomize_va_space";
    let static_program = bench.compile("mapping", &["-static"]);
    let script = format!(
        "mount --bind {} {setting} && LD_PRELOAD=\"$LIBRARY\" exec /bin/sh -c '{} && nosuchprogram; /bin/true; echo status $?'",
        off.display(),
        static_program.display()
    );
    let library = library_of(&bench);
    let output = bench
        .paged("unshare".as_ref())
        .env_remove("LD_PRELOAD")
        .env("LIBRARY", library)
        .args(["--mount", "/bin/sh", "-c", &script])
        .output()
        .unwrap();
    let said = text(&output);
    assert!(
        output.stdout == b"ok\nstatus 126\n"
            && said.matches("sysctl kernel.randomize_va_space").count() == 1,
        "{said}"
    );
}
