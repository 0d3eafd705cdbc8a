// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `demeter doctor` where the command was installed, and nothing of the source tree is around.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

/// A file that is being written cannot be run, and a fork in another thread holds it open.
static COPYING: Mutex<()> = Mutex::new(());

/// The command as a package leaves it: alone in its directory, without a cache.
struct Installed {
    directory: tempfile::TempDir,
}

impl Installed {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let bin = directory.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        let _alone = COPYING.lock().unwrap_or_else(PoisonError::into_inner);
        std::fs::copy(env!("CARGO_BIN_EXE_demeter"), bin.join("demeter")).unwrap();
        Self { directory }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn doctor(&self, words: &[&str]) -> Output {
        let _alone = COPYING.lock().unwrap_or_else(PoisonError::into_inner);
        Command::new(self.path().join("bin/demeter"))
            .args(words)
            .current_dir(self.path())
            .env_remove("DEMETER_LIBEXEC")
            .env_remove("XDG_CACHE_HOME")
            .env("DEMETER_CACHE", self.path().join("cache"))
            .output()
            .unwrap()
    }
}

fn subjects(output: &Output) -> Vec<(String, Vec<String>)> {
    let reports: Value = serde_json::from_slice(&output.stdout).unwrap();
    let reports = reports.as_array().unwrap();
    let states = |report: &Value| {
        let checks = report["checks"].as_array().unwrap();
        assert!(!checks.is_empty(), "{report}");
        for check in checks {
            assert_eq!(check["state"] == "ok", check["next"].is_null(), "{check}");
        }
        checks
            .iter()
            .map(|check| check["state"].as_str().unwrap().to_owned())
            .collect()
    };
    reports
        .iter()
        .map(|report| {
            (
                report["subject"].as_str().unwrap().to_owned(),
                states(report),
            )
        })
        .collect()
}

#[test]
fn what_is_not_there_is_not_asked_for() {
    let installed = Installed::new();
    let output = installed.doctor(&["doctor", "--json"]);
    let told = subjects(&output);
    for absent in ["testbed", "extmem"] {
        assert!(told.iter().all(|(name, _)| name != absent), "{told:?}");
    }
    let failed = told.iter().any(|(_, of)| of.iter().any(|s| s == "failed"));
    assert_eq!(output.status.code(), Some(i32::from(failed)));
}

#[test]
fn each_subject_can_be_asked_for() {
    let installed = Installed::new();
    for name in ["host", "guest", "testbed", "extmem"] {
        let output = installed.doctor(&["doctor", name, "--json"]);
        let told = subjects(&output);
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].0, name);
        let failed = told[0].1.iter().any(|state| state == "failed");
        assert_eq!(output.status.code(), Some(i32::from(failed)), "{name}");
        // Neither was set up nor built.
        assert!(failed || ["host", "guest"].contains(&name), "{name}");
    }
    let wrong = installed.doctor(&["doctor", "nobody"]);
    assert_eq!(wrong.status.code(), Some(2));
}

#[test]
fn the_pager_has_a_doctor_of_its_own() {
    let installed = Installed::new();
    let both = [&["doctor", "extmem"][..], &["extmem", "doctor"]].map(|w| installed.doctor(w));
    // What is available changes from one moment to the next.
    let [text, other] = both.map(|output| {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines = text.lines().filter(|line| !line.contains("MiB available"));
        lines.map(|line| line.to_owned() + "\n").collect::<String>()
    });
    assert_eq!(text, other);
    assert!(text.contains("FAILED   pager"), "{text}");
    assert!(text.contains("next: "), "{text}");
    assert!(!text.contains("   a program"), "{text}");
    // A program is tried with its library: this one is none.
    std::fs::write(installed.path().join("bin/libdemeter_extmem.so"), b"").unwrap();
    let output = installed.doctor(&["doctor", "extmem"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("ok       pager"), "{text}");
    assert!(text.contains("FAILED   a program"), "{text}");
    assert_eq!(output.status.code(), Some(1));
}
