// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The per-run archive: run description, agent, workloads, module, copied
//! files. Appended to the testbed's base archive it makes the initrd.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use demeter_agent::protocol::{CopyIn, FORMAT, GUEST_DIR, Roi, Run};

use super::manager;
use super::settings::Settings;
use super::sizing::Balloon;
use super::writes::module_path;
use crate::cpio::Archive;
use crate::digest;
use crate::error::Error;
use crate::testbed::Built;

/// Charged by the guest's test of its own clock.
const CLOCK_TEST_NS: u64 = 50_000_000;

/// The archive and where its parts came from.
pub struct PerRun {
    /// The archive's bytes.
    pub archive: Vec<u8>,
    /// SHA-256 of each host file in it, by its name in the guest.
    pub hashes: BTreeMap<String, String>,
    /// What the agent will do.
    pub run: Run,
}

/// Makes the archive.
pub fn per_run(
    settings: &Settings,
    built: &Built,
    module: Option<&Path>,
    driver: Option<&Path>,
) -> Result<PerRun, Error> {
    let mut archive = Archive::new();
    let mut hashes = BTreeMap::new();
    let mut add = |archive: &mut Archive, guest: &str, host: &Path, executable: bool| {
        let content = fs::read(host).map_err(|cause| Error::file("read", host, cause))?;
        hashes.insert(guest.to_owned(), digest::sha256(&content));
        archive.file(guest.trim_start_matches('/'), &content, executable);
        Ok::<(), Error>(())
    };
    add(
        &mut archive,
        &format!("{GUEST_DIR}/agent"),
        &built.agent,
        true,
    )?;
    add(
        &mut archive,
        &format!("{GUEST_DIR}/workloads"),
        &built.workloads,
        true,
    )?;
    archive.link("demeter/bin/demeter-workloads", "../workloads");
    if let (Some(module), Some(name)) = (module, settings.tmm.module()) {
        add(&mut archive, &module_path(name), module, false)?;
    }
    if let (Some(driver), Some(balloon)) = (driver, &settings.balloon) {
        add(&mut archive, &balloon.module_path(), driver, false)?;
    }
    let mut copies = Vec::new();
    for (index, (host, guest)) in settings.copies.iter().enumerate() {
        let name = index.to_string();
        let executable = fs::metadata(host)
            .map_err(|cause| Error::file("read", host, cause))?
            .permissions()
            .mode()
            & 0o111
            != 0;
        add(
            &mut archive,
            &format!("{GUEST_DIR}/copy/{name}"),
            host,
            executable,
        )?;
        copies.push(CopyIn {
            name,
            to: guest.clone(),
        });
    }
    let run = Run {
        format: FORMAT,
        command: settings.command.clone(),
        env: settings.env.clone(),
        roi: settings.roi,
        tiers: settings.guest_tiers(),
        manager: manager::manager(settings),
        clock_test_ns: match settings.roi {
            Roi::Nothing => 0,
            Roi::Command | Roi::Own => CLOCK_TEST_NS,
        },
        copies,
        data: settings.data.is_some(),
        resize: settings.balloon.as_ref().map(Balloon::resize),
    };
    let text = serde_json::to_string_pretty(&run).map_err(|error| Error::Malformed {
        path: "run.json".into(),
        cause: error.to_string(),
    })?;
    archive.file("demeter/run.json", text.as_bytes(), false);
    Ok(PerRun {
        archive: archive.finish(),
        hashes,
        run,
    })
}

/// Writes base archive and per-run archive one after the other.
pub fn write_initrd(base: &Path, per_run: &[u8], to: &PathBuf) -> Result<(), Error> {
    let mut bytes = fs::read(base).map_err(|cause| Error::file("read", base, cause))?;
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes.extend_from_slice(per_run);
    fs::write(to, bytes).map_err(|cause| Error::file("write", to, cause))
}
