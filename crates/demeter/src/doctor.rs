// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter doctor`: what works here, what does not, and why.

use std::fs;
use std::io::Write;
use std::path::Path;

use serde::Serialize;

use crate::error::Error;
use crate::testbed::{self, Built, Testbed};
use crate::vm::{Tmm, free_space, manager_supported, peer_managers};

/// Arguments of `doctor`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Print the checks as JSON
    #[arg(long)]
    json: bool,
}

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// Works.
    Ok,
    /// Does not work; only some uses need it.
    Limited,
    /// Does not work; `demeter vm` needs it.
    Failed,
}

#[derive(Debug, Serialize)]
struct Check {
    name: String,
    state: State,
    finding: String,
    /// What to do, where something can be done.
    next: Option<String>,
}

impl Check {
    fn ok(name: &str, finding: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            state: State::Ok,
            finding: finding.into(),
            next: None,
        }
    }

    fn limited(name: &str, finding: impl Into<String>, next: &str) -> Self {
        Self {
            name: name.into(),
            state: State::Limited,
            finding: finding.into(),
            next: Some(next.into()),
        }
    }

    fn failed(name: &str, finding: impl Into<String>, next: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            state: State::Failed,
            finding: finding.into(),
            next: Some(next.into()),
        }
    }
}

/// Runs the checks and prints them.
pub fn execute(arguments: &Arguments) -> Result<u8, Error> {
    let mut checks = testbed_checks();
    checks.extend(room_checks());
    checks.extend(hardware_checks());
    let failed = checks
        .iter()
        .filter(|check| check.state == State::Failed)
        .count();
    let text = if arguments.json {
        serde_json::to_string_pretty(&checks).map_err(|error| Error::Malformed {
            path: "doctor".into(),
            cause: error.to_string(),
        })? + "\n"
    } else {
        render(&checks)
    };
    let _ = std::io::stdout().write_all(text.as_bytes());
    if failed > 0 {
        return Err(Error::Doctor { failed });
    }
    Ok(0)
}

fn render(checks: &[Check]) -> String {
    let width = checks
        .iter()
        .map(|check| check.name.chars().count())
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    for check in checks {
        let state = match check.state {
            State::Ok => "ok     ",
            State::Limited => "limited",
            State::Failed => "FAILED ",
        };
        text.push_str(&format!(
            "{state}  {:<width$}  {}\n",
            check.name, check.finding
        ));
        if let Some(next) = &check.next {
            text.push_str(&format!("{:9}{:width$}  next: {next}\n", "", ""));
        }
    }
    text
}

/// What `demeter vm` needs.
fn testbed_checks() -> Vec<Check> {
    let mut checks = Vec::new();
    let cpu_is_x86 = cfg!(target_arch = "x86_64");
    checks.push(if cpu_is_x86 {
        Check::ok("host", format!("x86-64, Linux {}", kernel_release()))
    } else {
        Check::failed(
            "host",
            "not x86-64: the machine plugin's hooks are for x86-64",
            "use an x86-64 host",
        )
    });
    match Testbed::load() {
        Err(error) => checks.push(Check::failed("testbed", error.to_string(), error.next())),
        Ok(testbed) => {
            let qemu = &testbed.qemu;
            checks.push(if qemu.plugin_api == 7 {
                Check::ok(
                    "QEMU",
                    format!("{}, plugin API {}", qemu.version, qemu.plugin_api),
                )
            } else {
                Check::failed(
                    "QEMU",
                    format!(
                        "{} has plugin API {}, 7 is needed",
                        qemu.version, qemu.plugin_api
                    ),
                    "run `testbed/setup.sh`",
                )
            });
            checks.push(Check::ok(
                "guest root",
                format!("{} packages", testbed.guest_root_packages.len()),
            ));
            for kernel in &testbed.kernels {
                let name = format!("guest {}", kernel.name);
                checks.push(match testbed::module(&kernel.release, "demeter.ko") {
                    Ok(_) => Check::ok(&name, format!("{}, demeter.ko built", kernel.release)),
                    Err(error) => Check::limited(
                        &name,
                        format!(
                            "{}: no demeter.ko, --tmm demeter will not work",
                            kernel.release
                        ),
                        &error.next(),
                    ),
                });
                for (name_of_manager, tmm) in [
                    ("nbt", Tmm::Nbt),
                    ("damon", Tmm::Damon),
                    ("damon-auto", Tmm::DamonAuto),
                ]
                .into_iter()
                .chain(peer_managers().map(|tmm| (tmm.row(), tmm)))
                {
                    if let Err(error) = manager_supported(tmm, kernel) {
                        let finding = format!("{error}: --tmm {name_of_manager} will not work");
                        checks.push(Check::limited(&name, finding, &error.next()));
                    }
                }
            }
        }
    }
    checks.push(match Built::find() {
        Ok(_) => Check::ok("binaries", "agent, workloads and machine plugin are built"),
        Err(error) => Check::failed("binaries", error.to_string(), error.next()),
    });
    checks
}

/// Memory and disk for the default guest.
fn room_checks() -> Vec<Check> {
    const RAM_BYTES: u64 = 1100 << 20;
    const DISK_BYTES: u64 = 512 << 20;
    let ram_dir = std::env::var("DEMETER_RAM_DIR").unwrap_or_else(|_| "/dev/shm".into());
    let room = |name: &str, path: &str, needed: u64, next: &str| match free_space(Path::new(path)) {
        Err(error) => Check::failed(name, error.to_string(), error.next()),
        Ok(free) if free < needed => Check::failed(
            name,
            format!(
                "{path} has {} MiB free, a default guest needs {} MiB",
                free >> 20,
                needed >> 20
            ),
            next,
        ),
        Ok(free) => Check::ok(name, format!("{path} has {} MiB free", free >> 20)),
    };
    let available = meminfo_bytes("MemAvailable");
    let memory = if available < RAM_BYTES {
        Check::failed(
            "memory",
            format!(
                "{} MiB available, a default guest needs {} MiB",
                available >> 20,
                RAM_BYTES >> 20
            ),
            "use smaller --fmem and --smem, or free memory",
        )
    } else {
        Check::ok("memory", format!("{} MiB available", available >> 20))
    };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    vec![
        memory,
        room(
            "guest memory",
            &ram_dir,
            RAM_BYTES,
            "set DEMETER_RAM_DIR to a tmpfs with more room",
        ),
        room("results", ".", DISK_BYTES, "free disk space or use --out"),
        Check::ok("CPUs", format!("{cpus}; each guest uses one")),
    ]
}

/// What the guest module would find on this machine itself.
fn hardware_checks() -> Vec<Check> {
    let mut checks = Vec::new();
    checks.push(if Path::new("/dev/kvm").exists() {
        Check::ok(
            "KVM",
            "present; not used: the testbed models time, which needs TCG",
        )
    } else {
        Check::limited(
            "KVM",
            "/dev/kvm is missing; the testbed does not need it, real guests do",
            "enable virtualisation in the firmware or nested virtualisation",
        )
    });
    checks.push(sampling_check());
    let nodes = numbered(Path::new("/sys/devices/system/node"), "node");
    checks.push(if nodes >= 2 {
        Check::ok("NUMA nodes", format!("{nodes}"))
    } else {
        Check::limited(
            "NUMA nodes",
            format!("{nodes}: this host has no slow tier of its own"),
            "use the testbed, or a host with CXL or persistent memory",
        )
    });
    let tiers = numbered(
        Path::new("/sys/devices/virtual/memory_tiering"),
        "memory_tier",
    );
    checks.push(match tiers {
        0 | 1 => Check::limited(
            "memory tiers",
            format!("{tiers}: Linux sees all memory as one tier"),
            "only matters on a host with slow memory: check its HMAT",
        ),
        count => Check::ok("memory tiers", format!("{count}")),
    });
    checks.push(module_check());
    checks
}

/// Load-latency sampling: PEBS on Intel, IBS on AMD.
fn sampling_check() -> Check {
    let name = "sampling";
    let pmu = Path::new("/sys/bus/event_source/devices");
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let virtual_machine = cpuinfo.contains("hypervisor");
    let core_pmu = ["cpu", "cpu_core"]
        .iter()
        .find(|device| pmu.join(device).exists());
    let Some(core_pmu) = core_pmu else {
        let cause = if virtual_machine {
            "no core PMU: the hypervisor does not offer one"
        } else {
            "no core PMU"
        };
        return Check::limited(
            name,
            cause,
            "demeter.ko takes its sampler touch (page faults) here; PEBS or IBS would cost less",
        );
    };
    if pmu.join(core_pmu).join("events/mem-loads").exists() {
        return Check::ok(name, "load-latency event (PEBS) present");
    }
    if pmu.join("ibs_op").exists() {
        return Check::ok(name, "AMD IBS present");
    }
    Check::limited(
        name,
        "the core PMU has no load-latency event",
        "demeter.ko takes its sampler touch (page faults) here, or pass PEBS through to this VM",
    )
}

fn module_check() -> Check {
    let name = "modules";
    let release = kernel_release();
    let headers = format!("/lib/modules/{release}/build");
    if !Path::new("/proc/modules").exists() {
        return Check::limited(
            name,
            format!("Linux {release} loads no modules"),
            "only matters for demeter.ko on this machine itself",
        );
    }
    if Path::new(&headers).exists() {
        Check::ok(name, format!("headers of {release} present"))
    } else {
        Check::limited(
            name,
            format!("no headers of {release}: demeter.ko cannot be built for this machine itself"),
            "install the kernel's headers; the testbed has its own",
        )
    }
}

fn kernel_release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease")
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

fn numbered(directory: &Path, prefix: &str) -> usize {
    fs::read_dir(directory).map_or(0, |entries| {
        entries
            .flatten()
            .filter(|entry| {
                entry.file_name().to_str().is_some_and(|name| {
                    name.strip_prefix(prefix)
                        .is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit()))
                })
            })
            .count()
    })
}

fn meminfo_bytes(field: &str) -> u64 {
    fs::read_to_string("/proc/meminfo")
        .unwrap_or_default()
        .lines()
        .find_map(|line| {
            let value = line.strip_prefix(field)?.strip_prefix(':')?;
            value.split_whitespace().next()?.parse::<u64>().ok()
        })
        .unwrap_or(0)
        * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_names_the_next_step() {
        let text = render(&[
            Check::ok("a", "fine"),
            Check::failed("bb", "broken", "mend it"),
        ]);
        assert!(text.contains("FAILED   bb  broken\n"), "{text}");
        assert!(text.contains("next: mend it"));
    }
}
