// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles `core/`, the same sources that the kernel module includes.

const SOURCES: [&str; 15] = [
    "areas.c",
    "ranges.c",
    "ranges_room.c",
    "ranges_digest.c",
    "resident.c",
    "rank.c",
    "plan.c",
    "groups.c",
    "channel.c",
    "finer.c",
    "gain.c",
    "judge.c",
    "pace.c",
    "delivery.c",
    "touch.c",
];

fn main() {
    let core = "../../core";
    println!("cargo::rerun-if-changed={core}");
    println!("cargo::rerun-if-changed=src/layout.c");
    cc::Build::new()
        .std("c11")
        .include(format!("{core}/include"))
        .files(SOURCES.map(|file| format!("{core}/{file}")))
        .file("src/layout.c")
        .warnings(true)
        .extra_warnings(true)
        .warnings_into_errors(true)
        .compile("demeter_core");
}
