// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What demeterd needs, and how its guests are.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use demeter_balloon::view::VmView;

use super::machine::{self, kernel_release, program};
use super::{Check, Checks};
use crate::balloon::client::Client;
use crate::balloon::default_control;
use crate::testbed;
use crate::vm::free_space;

const KVM: &str = "/dev/kvm";
const QEMU: &str = "qemu-system-x86_64";
/// LANDLOCK_CREATE_RULESET_VERSION.
const LANDLOCK_VERSION: u32 = 1;
/// The device of QEMU that carries the double balloon.
const DEVICE: &str = "vhost-user-test-device-pci";

pub fn applies() -> bool {
    default_control().exists() || program("demeterd").is_some() || Path::new(KVM).exists()
}

pub fn checks() -> Checks {
    let mut checks = vec![
        Check::ok("kernel", format!("Linux {}", kernel_release())),
        kvm(),
        qemu(),
        shared_memory(),
    ];
    checks.push(confinement());
    checks.extend(machine::memory());
    checks.push(
        match program("demeterd").or_else(|| testbed::daemon().ok()) {
            Some(path) => Check::ok("demeterd", path.display().to_string()),
            None => Check::failed(
                "demeterd",
                "not installed",
                "install the package demeterd (`make deb`)",
            ),
        },
    );
    checks.extend(guests());
    checks
}

fn kvm() -> Check {
    match File::options().read(true).write(true).open(KVM) {
        Ok(_) => Check::ok("KVM", "usable"),
        Err(cause) => Check::limited(
            "KVM",
            format!("{KVM}: {cause}"),
            "enable virtualisation in the firmware, or nested virtualisation; for a user, the group kvm",
        ),
    }
}

/// Of the package; a monitor elsewhere is for its owner to look at.
fn qemu() -> Check {
    let next = "install QEMU 10.2 or later: `apt install -t trixie-backports qemu-system-x86` on Debian 13; \
                Debian 12 has none, run Debian 13's QEMU in a container (docs/balloon.md); \
                or use another monitor with a generic vhost-user device (docs/balloon-vmms.md)";
    let Some(path) = program(QEMU) else {
        return Check::limited("QEMU", format!("no {QEMU} in $PATH"), next);
    };
    let said = Command::new(&path).args(["-device", "help"]).output();
    match said {
        Ok(said) if String::from_utf8_lossy(&said.stdout).contains(DEVICE) => {
            Check::ok("QEMU", format!("{} has {DEVICE}", path.display()))
        }
        Ok(_) => Check::limited("QEMU", format!("{} has no {DEVICE}", path.display()), next),
        Err(cause) => Check::limited("QEMU", format!("{}: {cause}", path.display()), next),
    }
}

/// What keeps the workers of demeterd from the rest of the host.
fn confinement() -> Check {
    let has_seccomp =
        std::fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail").is_ok_and(|actions| {
            actions
                .split_whitespace()
                .any(|action| action == "kill_process")
        });
    // SAFETY: asks for a version: no rules are read from a null pointer of length zero.
    let landlock = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0_usize,
            LANDLOCK_VERSION,
        )
    };
    let said = format!(
        "seccomp: {}; landlock: {}",
        if has_seccomp { "yes" } else { "no" },
        if landlock > 0 {
            format!("version {landlock}")
        } else {
            "no".to_owned()
        }
    );
    if has_seccomp && landlock > 0 {
        return Check::ok("isolation", said);
    }
    Check::limited(
        "isolation",
        said,
        "for landlock, have it in the kernel's parameter lsm=; for seccomp, CONFIG_SECCOMP_FILTER",
    )
}

/// Guests' memory must be shared, so it lies in a tmpfs, in hugetlbfs or in memfds.
fn shared_memory() -> Check {
    const PLACE: &str = "/dev/shm";
    match free_space(Path::new(PLACE)) {
        Ok(free) => Check::ok(
            "shared memory",
            format!("{PLACE} has {} MiB free", free >> 20),
        ),
        Err(error) => Check::limited(
            "shared memory",
            error.to_string(),
            "give guests memory in another tmpfs, hugetlbfs, or memfds",
        ),
    }
}

/// The daemon that runs, and what it says of each guest.
fn guests() -> Checks {
    let name = "daemon";
    let control = default_control();
    if !control.exists() {
        return vec![Check::limited(
            name,
            format!("does not run: no {}", control.display()),
            "`systemctl start demeterd`",
        )];
    }
    let vms = Client::new(&control).and_then(|client| client.get::<Vec<VmView>>("/v1/vms"));
    let vms = match vms {
        Ok(vms) => vms,
        Err(error) => return vec![Check::of_error(name, &error)],
    };
    let mut checks = vec![Check::ok(name, format!("answers; {} guests", vms.len()))];
    checks.extend(vms.iter().filter_map(|vm| {
        vm.problem.as_ref().map(|problem| {
            Check::limited(
                &format!("guest {}", vm.name),
                problem,
                "see `demeter balloon get` and docs/balloon-operation.md",
            )
        })
    }));
    checks
}
