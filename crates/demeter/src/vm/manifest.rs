// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `manifest.json`: everything that went into a run.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use demeter_agent::protocol::Run;
use serde::Serialize;

use super::cost;
use super::guest::PerRun;
use super::settings::Settings;
use crate::digest;
use crate::error::Error;
use crate::testbed::{Built, Kernel, Testbed};

/// Where the parts of a manifest come from.
pub struct Sources<'a> {
    /// The testbed.
    pub testbed: &'a Testbed,
    /// The guest's kernel.
    pub kernel: &'a Kernel,
    /// Settings of the run.
    pub settings: &'a Settings,
    /// The per-run archive.
    pub per_run: &'a PerRun,
    /// Binaries of the host side.
    pub built: &'a Built,
    /// QEMU's arguments.
    pub arguments: &'a [OsString],
    /// How long the run took on the host.
    pub host_s: f64,
    /// What of the host went where.
    pub cost: cost::Cost,
}

/// `manifest.json`.
#[derive(Serialize)]
pub struct Manifest {
    format: u32,
    demeter_version: &'static str,
    git_state: String,
    qemu_version: String,
    qemu_arguments: Vec<String>,
    plugin_sha256: String,
    kernel_release: String,
    guest_packages: BTreeMap<String, String>,
    /// SHA-256 of the files put into the guest, by their name there.
    guest_files_sha256: BTreeMap<String, String>,
    settings: Settings,
    /// The same input gives the same figures to the last bit. Not with a
    /// balloon: when its device answers depends on the host.
    bit_deterministic: bool,
    /// What the agent was told to do.
    agent: Run,
    /// Seconds since 1970 at the end of the run.
    finished_unix_s: u64,
    host_s: f64,
    host: cost::Cost,
}

/// Collects a manifest.
pub fn manifest(sources: &Sources<'_>) -> Result<Manifest, Error> {
    let plugin = std::fs::read(&sources.built.plugin)
        .map_err(|cause| Error::file("read", &sources.built.plugin, cause))?;
    Ok(Manifest {
        format: 1,
        demeter_version: env!("CARGO_PKG_VERSION"),
        git_state: (std::env::current_exe().ok())
            .and_then(|exe| git_state(exe.parent()?))
            .unwrap_or_else(|| "unknown".to_owned()),
        qemu_version: sources.testbed.qemu.version.clone(),
        qemu_arguments: sources
            .arguments
            .iter()
            .map(|argument| argument.to_string_lossy().into_owned())
            .collect(),
        plugin_sha256: digest::sha256(&plugin),
        kernel_release: sources.kernel.release.clone(),
        guest_packages: sources.testbed.guest_root_packages.clone(),
        guest_files_sha256: sources.per_run.hashes.clone(),
        settings: sources.settings.clone(),
        bit_deterministic: sources.settings.balloon.is_none(),
        agent: sources.per_run.run.clone(),
        finished_unix_s: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs()),
        host_s: sources.host_s,
        host: sources.cost.clone(),
    })
}

/// The state of the source tree that a directory lies in, if git knows one. Asked at run time:
/// compiled in, each commit would make another program, whose guests are others to the evaluation.
fn git_state(directory: &Path) -> Option<String> {
    let output = Command::new("git")
        .arg("-C")
        .arg(directory)
        .args(["describe", "--always", "--dirty", "--abbrev=12"])
        // Guests side by side ask at once: none may hold the index' lock for that.
        .env("GIT_OPTIONAL_LOCKS", "0")
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_asked_when_it_runs() {
        let place = tempfile::tempdir().unwrap();
        let git = |arguments: &[&str]| {
            let done = Command::new("git")
                .current_dir(&place)
                .args(["-c", "user.name=x", "-c", "user.email=x"])
                .args(arguments)
                .output()
                .unwrap();
            assert!(done.status.success(), "{done:?}");
        };
        let below = place.path().join("target/release");
        std::fs::create_dir_all(&below).unwrap();
        assert_eq!(git_state(&below), None);
        std::fs::write(place.path().join("a.c"), "1").unwrap();
        git(&["init", "-q"]);
        git(&["add", "a.c"]);
        git(&["commit", "-q", "-m", "x"]);
        let clean = git_state(&below).unwrap();
        assert_eq!(clean.len(), 12, "{clean}");
        std::fs::write(place.path().join("a.c"), "12").unwrap();
        assert_eq!(git_state(&below).unwrap(), format!("{clean}-dirty"));
    }
}
