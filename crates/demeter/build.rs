// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Records the state of the source tree for manifests.

use std::process::Command;

fn main() {
    let state = Command::new("git")
        .args(["describe", "--always", "--dirty", "--abbrev=12"])
        .output()
        .ok()
        .filter(|output| output.status.success())
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        .unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=DEMETER_GIT_STATE={state}");
    println!("cargo::rerun-if-changed=../../.git/HEAD");
    println!("cargo::rerun-if-changed=../../.git/refs/heads");
    println!("cargo::rerun-if-changed=src");
}
