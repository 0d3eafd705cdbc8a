// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles `core/`, the same sources that the kernel module includes.

fn main() {
    let core = "../../core";
    println!("cargo::rerun-if-changed={core}");
    println!("cargo::rerun-if-changed=src/layout.c");
    cc::Build::new()
        .std("c11")
        .include(format!("{core}/include"))
        .file(format!("{core}/core.c"))
        .file("src/layout.c")
        .warnings(true)
        .extra_warnings(true)
        .warnings_into_errors(true)
        .compile("demeter_core");
}
