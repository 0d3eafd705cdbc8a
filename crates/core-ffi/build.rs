// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles `core/` and its peers, the same sources that the kernel modules include.

fn main() {
    let core = "../../core";
    println!("cargo::rerun-if-changed={core}");
    println!("cargo::rerun-if-changed=src/layout.c");
    println!("cargo::rerun-if-changed=src/peers/layout.c");
    cc::Build::new()
        .std("c11")
        .include(format!("{core}/include"))
        .file(format!("{core}/core.c"))
        .files(["hemem", "memtis", "nimble"].map(|peer| format!("{core}/peers/{peer}.c")))
        .file("src/layout.c")
        .file("src/peers/layout.c")
        .warnings(true)
        .extra_warnings(true)
        .warnings_into_errors(true)
        .compile("demeter_core");
}
