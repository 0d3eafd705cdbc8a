// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What demeter.ko finds on this machine, be it a guest or not.

use std::fs;
use std::path::Path;

use super::machine::{self, is_virtual, kernel_release, nodes, word};
use super::{Check, Checks};

/// Where the module's files are while it is loaded.
const LOADED: &str = "/sys/module/demeter";
/// Device id of the double balloon on the virtio bus.
const BALLOON: &str = "0x000d";

pub fn applies() -> bool {
    nodes() >= 2 || Path::new(LOADED).exists() || installed("demeter").is_some()
}

pub fn checks() -> Checks {
    let mut checks = vec![
        module(),
        signatures(Path::new("/sys")),
        sampling(),
        tracing(),
    ];
    checks.extend(machine::memory());
    checks.extend([balancing(), huge_pages(), cgroups(), balloon()]);
    checks
}

/// A module of the kernel that runs, as DKMS or `modules_install` leave it.
fn installed(name: &str) -> Option<String> {
    let root = format!("/lib/modules/{}", kernel_release());
    let places = ["updates/dkms", "updates", "extra"];
    let endings = ["ko", "ko.xz", "ko.zst", "ko.gz"];
    places
        .iter()
        .flat_map(|place| endings.map(|ending| format!("{root}/{place}/{name}.{ending}")))
        .find(|path| Path::new(path).exists())
}

fn module() -> Check {
    let name = "demeter.ko";
    let release = kernel_release();
    if Path::new(LOADED).exists() {
        let version = word("/sys/module/demeter/version").unwrap_or_else(|| "unknown".into());
        return Check::ok(name, format!("loaded, version {version}"));
    }
    if let Some(path) = installed("demeter") {
        return Check::ok(name, format!("installed, not loaded: {path}"));
    }
    if !Path::new("/proc/modules").exists() {
        return Check::failed(
            name,
            format!("Linux {release} loads no modules"),
            "boot a kernel with CONFIG_MODULES",
        );
    }
    if Path::new(&format!("/lib/modules/{release}/build")).exists() {
        return Check::limited(
            name,
            format!("not installed for Linux {release}, whose headers are there"),
            "install the package demeter-dkms (`make deb`)",
        );
    }
    Check::limited(
        name,
        format!("not installed, and no headers of Linux {release}"),
        "install the kernel's headers, then the package demeter-dkms (`make deb`)",
    )
}

/// Who may load a module that nobody signed?
fn signatures(sys: &Path) -> Check {
    let name = "signatures";
    let next = "enrol the key that DKMS signs with (docs/packages.md)";
    let lockdown = fs::read_to_string(sys.join("kernel/security/lockdown")).unwrap_or_default();
    if lockdown.contains("[integrity]") || lockdown.contains("[confidentiality]") {
        return Check::limited(
            name,
            format!("the kernel is locked down ({})", lockdown.trim()),
            next,
        );
    }
    match word(sys.join("module/module/parameters/sig_enforce")).as_deref() {
        Some("Y") => Check::limited(name, "modules without one are refused", next),
        _ => Check::ok(name, "not enforced"),
    }
}

/// Load-latency sampling: PEBS on Intel, IBS on AMD.
fn sampling() -> Check {
    let name = "sampling";
    let pmu = Path::new("/sys/bus/event_source/devices");
    let core_pmu = ["cpu", "cpu_core"]
        .iter()
        .find(|device| pmu.join(device).exists());
    let Some(core_pmu) = core_pmu else {
        let cause = if is_virtual() {
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

/// With ftrace `pebs` takes records in batches.
fn tracing() -> Check {
    let name = "ftrace";
    match word("/proc/sys/kernel/ftrace_enabled").as_deref() {
        Some("1") => Check::ok(name, "samples are taken in batches"),
        Some(_) => Check::limited(
            name,
            "switched off",
            "`sysctl kernel.ftrace_enabled=1`, or each sample costs an interrupt",
        ),
        None => Check::limited(
            name,
            "this kernel has none",
            "boot a kernel with CONFIG_FUNCTION_TRACER, or each sample costs an interrupt",
        ),
    }
}

/// Two managers of the same pages undo each other's work.
fn balancing() -> Check {
    let name = "NUMA balancing";
    match word("/proc/sys/kernel/numa_balancing").as_deref() {
        None | Some("0") => Check::ok(name, "off"),
        Some(mode) => Check::limited(
            name,
            format!("on (mode {mode}): it moves the same pages"),
            "`sysctl kernel.numa_balancing=0`, or leave Demeter off",
        ),
    }
}

fn huge_pages() -> Check {
    let name = "huge pages";
    let text =
        fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let chosen = text.split(['[', ']']).nth(1).unwrap_or("none").to_owned();
    match chosen.as_str() {
        "always" | "madvise" => Check::ok(name, chosen),
        _ => Check::limited(
            name,
            format!("{chosen}: moved 4 KiB at a time"),
            "`echo madvise >/sys/kernel/mm/transparent_hugepage/enabled`, if the program asks for them",
        ),
    }
}

fn cgroups() -> Check {
    let name = "cgroups";
    if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        return Check::ok(name, "v2: groups may have floors and caps");
    }
    Check::limited(
        name,
        "no cgroup v2: programs can be managed one by one only",
        "mount cgroup2 at /sys/fs/cgroup for groups (docs/groups.md)",
    )
}

/// Where a host resizes this guest.
fn balloon() -> Check {
    let name = "double balloon";
    let devices = fs::read_dir("/sys/bus/virtio/devices");
    let device = devices.ok().and_then(|entries| {
        entries.flatten().map(|entry| entry.path()).find(|path| {
            fs::read_to_string(path.join("device")).is_ok_and(|id| id.trim() == BALLOON)
        })
    });
    match device {
        None => Check::ok(name, "no such device: no host resizes the tiers"),
        Some(path) if path.join("driver").exists() => Check::ok(name, "driven"),
        Some(path) => Check::limited(
            name,
            format!("{} has no driver", path.display()),
            "install the package demeter-balloon-dkms, or `modprobe demeter_balloon`",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    /// The check on a machine whose files say this; none where there is no file.
    fn signatures_of(lockdown: Option<&str>, sig_enforce: Option<&str>) -> Check {
        let sys = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("kernel/security/lockdown", lockdown),
            ("module/module/parameters/sig_enforce", sig_enforce),
        ] {
            let path = sys.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            if let Some(text) = text {
                fs::write(path, text).unwrap();
            }
        }
        signatures(sys.path())
    }

    #[test]
    fn a_kernel_that_is_locked_down_says_how_far() {
        for (file, cause) in [
            (
                "none [integrity] confidentiality\n",
                "(none [integrity] confidentiality)",
            ),
            (
                "none integrity [confidentiality]\n",
                "(none integrity [confidentiality])",
            ),
        ] {
            // Lockdown asks for signatures whatever the parameter says.
            let check = signatures_of(Some(file), Some("N\n"));
            assert_eq!(check.state, State::Limited, "{file}");
            assert_eq!(check.finding, format!("the kernel is locked down {cause}"));
            assert!(check.next.unwrap().contains("enrol the key"), "{file}");
        }
    }

    #[test]
    fn unsigned_modules_are_refused_without_lockdown_too() {
        for lockdown in [None, Some("[none] integrity confidentiality\n")] {
            let check = signatures_of(lockdown, Some("Y\n"));
            assert_eq!(check.state, State::Limited);
            assert_eq!(check.finding, "modules without one are refused");
            assert!(check.next.unwrap().contains("enrol the key"));
        }
    }

    #[test]
    fn nothing_enforces_signatures() {
        for (lockdown, sig_enforce) in [
            (None, None),
            (None, Some("N\n")),
            (Some("[none] integrity confidentiality\n"), Some("N\n")),
        ] {
            let check = signatures_of(lockdown, sig_enforce);
            assert_eq!((check.state, &*check.finding), (State::Ok, "not enforced"));
        }
    }
}
