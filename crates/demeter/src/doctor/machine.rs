// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What hosts and guests have in common: a kernel, and memory in tiers.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Check, Checks};

/// Nodes and tiers as Linux sees them.
pub fn memory() -> Checks {
    let nodes = nodes();
    let tiers = numbered(
        Path::new("/sys/devices/virtual/memory_tiering"),
        "memory_tier",
    );
    vec![
        if nodes >= 2 {
            Check::ok("NUMA nodes", format!("{nodes}"))
        } else {
            Check::limited(
                "NUMA nodes",
                format!("{nodes}: there is no slow tier here"),
                "use the testbed, or a machine with CXL or persistent memory",
            )
        },
        match tiers {
            0 | 1 => Check::limited(
                "memory tiers",
                format!("{tiers}: Linux sees all memory as one tier"),
                "only matters with slow memory: check its HMAT, or name nodes (docs/abi, tiers)",
            ),
            count => Check::ok("memory tiers", format!("{count}")),
        },
    ]
}

/// How many nodes of memory there are.
pub fn nodes() -> usize {
    numbered(Path::new("/sys/devices/system/node"), "node")
}

/// Does a hypervisor run this kernel?
pub fn is_virtual() -> bool {
    fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains("hypervisor"))
}

/// The first word of a file; none where it cannot be read or is empty.
pub fn word(path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.split_whitespace().next().map(str::to_owned)
}

/// A program of `$PATH`, or of where daemons are.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/libexec/demeter"].map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|path| path.is_file())
}

/// As `uname -r` says.
pub fn kernel_release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease")
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

/// How many entries are `prefix` and a number.
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

/// A line of /proc/meminfo.
pub fn meminfo_bytes(field: &str) -> u64 {
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
