// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `demeter extmem` needs.

use super::machine::{kernel_release, meminfo_bytes, word};
use super::{Check, Checks};
use crate::{testbed, userfaultfd};
use demeter_extmem_tree::{Node, Size};

/// Linux's own default of `vm.max_map_count`; the pager splits mappings, so less is little.
const MAPPINGS: u64 = 65_530;

pub fn applies() -> bool {
    testbed::pager().is_ok()
}

pub fn checks() -> Checks {
    let mut checks = vec![
        match testbed::pager() {
            Ok(_) => Check::ok("pager", "its library is there"),
            Err(error) => Check::of_error("pager", &error),
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
