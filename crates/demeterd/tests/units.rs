// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The services of packaging/systemd may do what they need, and no more.

use std::path::PathBuf;
use std::process::Command;

fn units() -> [PathBuf; 2] {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
    ["demeterd.service", "demeterd@.service"].map(|name| directory.join(name))
}

#[test]
fn a_service_has_no_privileges() {
    for unit in units() {
        let text = std::fs::read_to_string(&unit).unwrap();
        let has = |line: &str| text.lines().any(|other| other == line);
        for line in [
            "DynamicUser=yes",
            "CapabilityBoundingSet=",
            "SystemCallFilter=@system-service",
            "RestrictAddressFamilies=AF_UNIX",
            "OOMPolicy=continue",
        ] {
            assert!(has(line), "{}: {line}", unit.display());
        }
        assert!(!text.contains("CAP_DAC_OVERRIDE") && !text.contains("ReadWritePaths"));
    }
}

/// systemd's own measure: at most 2.0 of 10.
#[test]
fn systemd_finds_the_exposure_low() {
    for unit in units() {
        let analysed = Command::new("systemd-analyze")
            .args(["security", "--offline=true", "--threshold=20", "--no-pager"])
            .arg(&unit)
            .output();
        match analysed {
            Ok(output) => {
                let words = String::from_utf8_lossy(&output.stdout);
                let last = words.lines().last().unwrap_or_default();
                assert!(output.status.success(), "{}: {last}", unit.display());
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                eprintln!("not checked: there is no systemd-analyze here");
            }
            Err(error) => panic!("{error}"),
        }
    }
}
