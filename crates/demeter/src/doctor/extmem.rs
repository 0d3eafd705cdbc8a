// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `demeter extmem` needs.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::{AccessFlags, Pid, access};

use super::machine::{kernel_release, meminfo_bytes, program, word};
use super::{Check, Checks};
use crate::{testbed, userfaultfd};
use demeter_extmem_tree::{Node, Size};

/// From here on a process may free its pages in many places by one call.
const FREES_TOGETHER: (u32, u32) = (6, 15);
/// More memory than the least DRAM, read and written.
const TRIAL: [&str; 5] = ["dd", "if=/dev/urandom", "of=/dev/null", "bs=40M", "count=1"];
/// A trial takes a fraction of a second.
const TRIAL_LIMIT: Duration = Duration::from_secs(30);
/// Linux's own default of `vm.max_map_count`; the pager splits mappings, so less is little.
const MAPPINGS: u64 = 65_530;

pub fn applies() -> bool {
    testbed::pager().is_ok()
}

pub fn checks() -> Checks {
    let pager = testbed::pager();
    let mut checks = vec![
        match &pager {
            Ok(_) => Check::ok("pager", "its library is there"),
            Err(error) => Check::of_error("pager", error),
        },
        match userfaultfd::check() {
            Ok(()) => Check::ok(
                "userfaultfd",
                format!(
                    "Linux {}: faults and first writes are told",
                    kernel_release()
                ),
            ),
            Err(error) => Check::of_error("userfaultfd", &error),
        },
    ];
    if pager.is_ok() {
        checks.push(trial());
    }
    checks.push(evictions(
        &kernel_release(),
        &std::fs::read_to_string("/proc/swaps").unwrap_or_default(),
    ));
    checks.push(
        match word("/proc/sys/kernel/randomize_va_space").as_deref() {
            Some("0") => Check::limited(
                "addresses",
                "kernel.randomize_va_space is 0: what a managed program starts is refused",
                "set it to 2, or run only programs that start no others",
            ),
            _ => Check::ok("addresses", "are random"),
        },
    );
    checks.push(match word("/proc/sys/vm/overcommit_memory").as_deref() {
        Some("2") => Check::limited(
            "address space",
            "vm.overcommit_memory is 2: what is reserved counts as used",
            "set it to 0 or 1, or programs may have only as much memory as the kernel promises",
        ),
        _ => Check::ok("address space", "may be reserved freely"),
    });
    checks.push(
        match word("/proc/sys/vm/max_map_count").and_then(|word| word.parse::<u64>().ok()) {
            Some(count) if count < MAPPINGS => Check::limited(
                "mappings",
                format!("vm.max_map_count is {count}"),
                "raise it to 65530 or more: programs with many mappings fail otherwise",
            ),
            Some(count) => Check::ok("mappings", format!("{count} for a program")),
            None => Check::ok("mappings", "not limited by vm.max_map_count"),
        },
    );
    checks.push(Check::ok(
        "memory",
        format!("{} MiB available", meminfo_bytes("MemAvailable") >> 20),
    ));
    checks.push(Check::ok("memory nodes", nodes()));
    checks
}

/// A program with more memory than DRAM: what a container or a limit forbids is seen here.
fn trial() -> Check {
    const NAME: &str = "a program";
    let untried = |finding: &str, next: &str| Check::limited(NAME, finding, next);
    if program(TRIAL[0]).is_none() {
        return untried("not tried: there is no dd", "install coreutils");
    }
    let Some(swap) = swap_folder() else {
        return untried(
            "not tried: no folder for temporary files can be written to",
            "name one by TMPDIR",
        );
    };
    let child = std::env::current_exe().and_then(|demeter| {
        Command::new(demeter)
            .args(["extmem", "run", "--quiet", "--dram", "16M"])
            .args(["--swap-size", "64M", "--swap"])
            .arg(swap)
            .arg("--")
            .args(TRIAL)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
    });
    let failed = |finding: String| {
        Check::failed(
            NAME,
            finding,
            "run it by hand: demeter extmem run --dram 16M --swap /tmp -- true",
        )
    };
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return failed(format!("cannot be started: {error}")),
    };
    let began = Instant::now();
    while matches!(child.try_wait(), Ok(None)) {
        if began.elapsed() >= TRIAL_LIMIT {
            // With what it started, or that would go on without it.
            let group = Pid::from_raw(child.id() as i32);
            let _ = killpg(group, Signal::SIGKILL);
            let _ = child.wait();
            return failed(format!("was not done after {} s", TRIAL_LIMIT.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    match child.wait_with_output() {
        Ok(output) if output.status.success() => {
            Check::ok(NAME, "ran with 40 MiB of memory in 16 MiB of DRAM")
        }
        Ok(output) => verdict(&String::from_utf8_lossy(&output.stderr)).map_or_else(
            || failed(format!("failed under the pager: {}", output.status)),
            |(finding, next)| Check::failed(NAME, finding, next),
        ),
        Err(error) => failed(format!("is lost: {error}")),
    }
}

/// A folder that can be written to.
fn swap_folder() -> Option<PathBuf> {
    let folders = [std::env::temp_dir(), "/var/tmp".into(), "/tmp".into()];
    (folders.into_iter())
        .find(|folder| folder.is_dir() && access(folder, AccessFlags::W_OK).is_ok())
}

/// What went wrong and what to do, of what a run said.
fn verdict(said: &str) -> Option<(&str, &str)> {
    let mut lines = said.lines().filter(|line| line.starts_with("demeter"));
    lines.find_map(|line| line.split_once("error: ")?.1.split_once("; next: "))
}

/// How pages that were written leave; `swaps` is what Linux swaps to.
fn evictions(release: &str, swaps: &str) -> Check {
    const NAME: &str = "evictions";
    if testbed::version_of(release).is_some_and(|version| version < FREES_TOGETHER) {
        return Check::limited(
            NAME,
            format!("Linux {release}: each page that was written leaves by itself"),
            "run Linux 6.15 or later, which is faster",
        );
    }
    if swaps.lines().any(|line| line.starts_with("/dev/zram")) {
        return Check::limited(
            NAME,
            "Linux swaps to zram: each page that was written leaves by itself",
            "turn it off (swapoff), or compare with Linux alone: zram may be enough",
        );
    }
    Check::ok(NAME, "pages that were written leave together")
}

/// Which can be swapped to.
fn nodes() -> String {
    let usable: Vec<_> = (Node::all().into_iter())
        .filter(|node| node.check().is_ok())
        .filter_map(|node| Some(format!("{node} ({} free)", Size(node.room_bytes().ok()?))))
        .collect();
    match usable.is_empty() {
        true => "none to swap to beside the program's own".to_owned(),
        false => format!("--swap may name {}", usable.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    #[test]
    fn a_run_says_what_went_wrong() {
        let said = "noise\ndemeter extmem: error: no room; next: make some; or less\n";
        assert_eq!(verdict(said), Some(("no room", "make some; or less")));
        assert_eq!(verdict("error: of others; next: nothing"), None);
        assert_eq!(verdict(""), None);
    }

    #[test]
    fn where_pages_leave_one_by_one_it_is_said() {
        let state = |release, swaps| evictions(release, swaps).state;
        assert_eq!(state("6.15.0-rc1", ""), State::Ok);
        assert_eq!(state("7.0-rc1", "/dev/sda2 partition 1 0 -2\n"), State::Ok);
        assert_eq!(state("6.8.0-45-generic", ""), State::Limited);
        assert_eq!(
            state("6.18.1", "Filename\n/dev/zram0 partition 1 0 -2\n"),
            State::Limited
        );
        assert_eq!(state("of their own", ""), State::Ok);
    }
}
