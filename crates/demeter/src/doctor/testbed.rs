// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `demeter vm` needs.

use std::path::Path;

use super::machine::{kernel_release, meminfo_bytes};
use super::{Check, Checks};
use crate::testbed::{self, Built, Testbed};
use crate::vm::{Tmm, free_space, manager_supported};

/// Set up, or about to be: what was built is there.
pub fn applies() -> bool {
    testbed::cache_dir().is_ok_and(|cache| cache.join("testbed.json").exists())
        || Built::find().is_ok()
}

pub fn checks() -> Checks {
    let mut checks = parts();
    checks.extend(room());
    checks
}

/// What `demeter vm` needs.
fn parts() -> Checks {
    let mut checks = Checks::new();
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
                let managers = [Tmm::Nbt, Tmm::Damon, Tmm::DamonAuto].into_iter();
                let absent: Vec<&str> = managers
                    .chain(Tmm::published())
                    .filter(|&tmm| manager_supported(tmm, kernel).is_err())
                    .map(Tmm::row)
                    .collect();
                if !absent.is_empty() {
                    checks.push(Check::limited(
                        &name,
                        format!("has no {}", absent.join(", ")),
                        "`demeter vm run --tmm NAME` says why, and which --kernel has it",
                    ));
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
fn room() -> Checks {
    const RAM_BYTES: u64 = 1100 << 20;
    const DISK_BYTES: u64 = 512 << 20;
    let ram_dir = std::env::var("DEMETER_RAM_DIR").unwrap_or_else(|_| "/dev/shm".into());
    let place = |name: &str, path: &str, needed: u64, next: &str| match free_space(Path::new(path))
    {
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
        place(
            "guest memory",
            &ram_dir,
            RAM_BYTES,
            "set DEMETER_RAM_DIR to a tmpfs with more room",
        ),
        place("results", ".", DISK_BYTES, "free disk space or use --out"),
        Check::ok("CPUs", format!("{cpus}; each guest uses one")),
    ]
}
