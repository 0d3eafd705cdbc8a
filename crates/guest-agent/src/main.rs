// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter-agent`: process 1 of a guest of the testbed. Reads
//! `/demeter/run.json`, makes the two tiers exactly as large as asked for,
//! sets up the memory manager under test, runs COMMAND, reports, powers off.

mod ballast;
mod btf;
mod clock;
mod command;
mod error;
mod manager;
mod mounts;
mod report;
mod resize;
mod tasks;

use std::path::Path;

use demeter_agent::protocol::{FORMAT, GUEST_DIR, Record, Run, Tier, When};

use crate::error::Error;
use crate::report::Reporter;

fn main() {
    let is_init = std::process::id() == 1;
    if !is_init {
        eprintln!(
            "demeter-agent: error: runs only as process 1 of a testbed guest; \
             next: use `demeter vm run`"
        );
        std::process::exit(2);
    }
    std::panic::set_hook(Box::new(|info| {
        eprintln!("demeter-agent: {info}");
        power_off();
    }));
    mounts::essential();
    let mut reporter = Reporter::open();
    if let Err(error) = run(&mut reporter) {
        eprintln!("demeter-agent: error: {error}; next: {}", error.next());
        reporter.send(&Record::Failure {
            cause: error.to_string(),
            next: error.next(),
        });
    }
    reporter.finish();
    power_off();
}

fn run(reporter: &mut Reporter) -> Result<(), Error> {
    reporter.send(&Record::Hello {
        format: FORMAT,
        release: report::kernel_release(),
    });
    let run = read_run()?;
    mounts::rest();
    if run.clock_test_ns > 0 {
        let (asked_ns, seen_ns) = clock::self_test(run.clock_test_ns)?;
        reporter.send(&Record::Clock { asked_ns, seen_ns });
    }
    // Figures by task are a help; a run does without them.
    if let Err(error) = tasks::announce() {
        eprintln!("demeter-agent: tasks cannot be told apart: {error}");
    }
    let log = report::KernelLog::from_here();
    command::place_copies(&run.copies)?;
    if run.data {
        mounts::data()?;
    }
    mounts::command_cgroup();
    // Before the manager: memory that comes or goes makes Linux raise watermarks.
    let blocks = run.resize.as_ref().map(resize::load).transpose()?;
    let carry_out = |by_node, reporter: &mut Reporter| match (&run.resize, blocks) {
        (Some(resize), Some(blocks)) if resize.by_node == by_node => {
            resize::carry_out(resize, blocks, reporter)
        }
        _ => Ok(()),
    };
    carry_out(true, reporter)?;
    if let Err(error) = manager::set_up(&run.manager, reporter) {
        return Err(error.explained_by(&log.trouble()));
    }
    let _ballast = ballast::take(&tiers_of(&run), reporter)?;
    carry_out(false, reporter)?;

    report::snapshot(When::Before, reporter);
    reporter.send(&Record::Start);
    let outcome = command::run(&run);
    reporter.send(&outcome);
    report::snapshot(When::After, reporter);
    manager::write_all(&run.manager, &run.manager.after, reporter)?;
    if let Some(dir) = &run.manager.report_dir {
        reporter.send(&Record::Manager {
            files: report::readable_files(Path::new(dir)),
        });
    }
    reporter.send(&Record::KernelTrouble {
        lines: log.trouble(),
    });
    reporter.send(&Record::End);
    Ok(())
}

/// Tiers as the ballast leaves them. A device that does not tell nodes apart takes
/// from tiers that have their sizes and as much again: nothing could mend after it.
fn tiers_of(run: &Run) -> Vec<Tier> {
    let taken_later = |at: usize| match &run.resize {
        Some(resize) if !resize.by_node => resize.taken_bytes.get(at).copied().unwrap_or(0),
        _ => 0,
    };
    (run.tiers.iter().enumerate())
        .map(|(at, tier)| Tier {
            free_bytes: tier.free_bytes + taken_later(at),
            ..tier.clone()
        })
        .collect()
}

fn read_run() -> Result<Run, Error> {
    let path = format!("{GUEST_DIR}/run.json");
    let text = std::fs::read_to_string(&path).map_err(|cause| Error::file(&path, cause))?;
    let run: Run = serde_json::from_str(&text).map_err(|cause| Error::Description {
        cause: cause.to_string(),
    })?;
    if run.format != FORMAT || run.command.is_empty() {
        return Err(Error::Description {
            cause: format!(
                "format {} where {FORMAT} is known, or no command",
                run.format
            ),
        });
    }
    Ok(run)
}

/// Ends the machine; never returns to a kernel that would panic without us.
fn power_off() -> ! {
    nix::unistd::sync();
    loop {
        let _ = nix::sys::reboot::reboot(nix::sys::reboot::RebootMode::RB_POWER_OFF);
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
}
