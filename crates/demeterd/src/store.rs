// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the control interface changed, for the next start: machines that it added,
//! and the policy that it chose. One file, written anew as a whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use demeter_balloon::view::PolicyView;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::spec::Description;

/// Of the file's form.
const VERSION: u32 = 1;

/// A policy that was chosen, and the one that was configured then.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Chosen {
    /// Decides.
    pub policy: PolicyView,
    /// As long as this is what is configured: who changes the configuration means
    /// it.
    pub instead_of: PolicyView,
}

/// The file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Changes {
    version: u32,
    /// Of the control interface.
    pub policy: Option<Chosen>,
    /// Machines that were added.
    pub vms: Vec<Description>,
}

impl Changes {
    /// Who decides where that was configured.
    pub fn policy(&self, configured: &PolicyView) -> PolicyView {
        match &self.policy {
            Some(chosen) if chosen.instead_of == *configured => chosen.policy.clone(),
            _ => configured.clone(),
        }
    }

    /// Nobody decides but who is configured, if that is another one than when somebody chose.
    /// True: it was so.
    pub fn forget_given_up(&mut self, configured: &PolicyView) -> bool {
        (self.policy)
            .take_if(|chosen| chosen.instead_of != *configured)
            .is_some()
    }
}

/// Its place.
#[derive(Debug, Clone)]
pub struct Store {
    path: PathBuf,
}

impl Store {
    /// In that directory.
    pub fn new(directory: &Path) -> Self {
        Self {
            path: directory.join("fleet.json"),
        }
    }

    /// Nothing if there is no file yet. One that cannot be read is not overwritten.
    pub fn read(&self) -> Result<Changes, Error> {
        let text = match read_whole(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Changes::default()),
            Err(cause) => return Err(Error::file("read", &self.path, cause)),
        };
        let wrong = |cause: String| Error::Usage {
            cause: format!("{}: {cause}", self.path.display()),
            next: "move it away; machines that were added must be added again".into(),
        };
        let changes: Changes =
            serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
        if changes.version != VERSION {
            return Err(wrong(format!("version {} of the file", changes.version)));
        }
        Ok(changes)
    }

    /// As [`write_whole`]. Nothing has changed if they are not wanted any more when they could
    /// take the place of what is there.
    pub fn write(&self, changes: &Changes, is_wanted: &dyn Fn() -> bool) -> io::Result<()> {
        let changes = Changes {
            version: VERSION,
            ..changes.clone()
        };
        write_whole_if(&self.path, &changes, is_wanted)
    }
}

/// What is there, of a plain file: a pipe's other end, or a device, might let the start wait for
/// ever.
pub fn read_whole(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = (OpenOptions::new().read(true))
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is not a plain file",
        ));
    }
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    Ok(text)
}

/// All or nothing, whenever the machine stops. What was begun and could not be ended takes no
/// room that others need.
pub fn write_whole(path: &Path, value: &impl Serialize) -> io::Result<()> {
    write_whole_if(path, value, &|| true)
}

fn write_whole_if(
    path: &Path,
    value: &impl Serialize,
    is_wanted: &dyn Fn() -> bool,
) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(value)?;
    text.push(b'\n');
    let fresh = path.with_extension("new");
    let written = replace(path, &fresh, &text, is_wanted, &settle);
    if written.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    written
}

fn replace(
    path: &Path,
    fresh: &Path,
    text: &[u8],
    is_wanted: &dyn Fn() -> bool,
    settle: &dyn Fn(&Path) -> io::Result<()>,
) -> io::Result<()> {
    // A pipe of that name is not waited for.
    let mut file = (OpenOptions::new().write(true).create(true).truncate(true))
        .custom_flags(libc::O_NONBLOCK)
        .open(fresh)?;
    file.write_all(text)?;
    file.sync_all()?;
    if !is_wanted() {
        return Err(io::ErrorKind::Interrupted.into());
    }
    fs::rename(fresh, path)?;
    // It is in its place, and the next start finds it: that is no refusal any more.
    if let Err(error) = path.parent().map_or(Ok(()), settle) {
        tracing::warn!(
            "{}: written, but whether it outlives a power failure is not known: {error}; next: look at the disk",
            path.display()
        );
    }
    Ok(())
}

/// Puts the names in a directory on the disk.
fn settle(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(name: &str) -> PolicyView {
        PolicyView {
            name: name.into(),
            fmem_pool_bytes: 1 << 30,
            interval_ms: 1000,
            clock: demeter_balloon::view::PolicyClock::Host,
        }
    }

    #[test]
    fn what_was_written_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path());
        assert_eq!(store.read().unwrap(), Changes::default());
        let mut changes = Changes {
            version: VERSION,
            policy: Some(Chosen {
                policy: policy("pressure"),
                instead_of: policy("external"),
            }),
            vms: vec![Description::parse("a,socket=/s,fmem=/f,weight=3").unwrap()],
        };
        store.write(&changes, &|| true).unwrap();
        assert_eq!(store.read().unwrap(), changes);
        changes.vms.clear();
        store.write(&changes, &|| true).unwrap();
        assert_eq!(store.read().unwrap(), changes);
    }

    #[test]
    fn a_new_configuration_wins_over_an_old_choice() {
        let changes = Changes {
            policy: Some(Chosen {
                policy: policy("pressure"),
                instead_of: policy("external"),
            }),
            ..Changes::default()
        };
        assert_eq!(changes.policy(&policy("external")).name, "pressure");
        assert_eq!(changes.policy(&policy("static")).name, "static");
    }

    #[test]
    fn pipes_are_no_files_and_are_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path());
        let make = |path: &Path| {
            let made = std::process::Command::new("mkfifo").arg(path).status();
            assert!(made.unwrap().success());
        };
        make(&store.path);
        assert!(store.read().is_err());
        fs::remove_file(&store.path).unwrap();
        make(&store.path.with_extension("new"));
        assert!(store.write(&Changes::default(), &|| true).is_err());
        // It was in the way of what is ours.
        store.write(&Changes::default(), &|| true).unwrap();
        assert!(store.read().is_ok());
    }

    #[test]
    fn what_is_not_wanted_any_more_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path());
        let mut changes = Changes {
            version: VERSION,
            ..Changes::default()
        };
        store.write(&changes, &|| true).unwrap();
        changes.vms = vec![Description::parse("a,socket=/s,fmem=/f").unwrap()];
        assert!(store.write(&changes, &|| false).is_err());
        assert!(store.read().unwrap().vms.is_empty());
        assert!(!store.path.with_extension("new").exists());
    }

    #[test]
    fn what_is_in_its_place_is_not_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fleet.json");
        let fresh = path.with_extension("new");
        let broken = |_: &Path| Err(io::Error::from_raw_os_error(libc::EIO));
        replace(&path, &fresh, b"whole", &|| true, &broken).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert!(!fresh.exists());
    }

    #[test]
    fn a_file_of_somebody_else_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path());
        for text in ["", "{}", "{\"version\": 9, \"policy\": null, \"vms\": []}"] {
            fs::write(&store.path, text).unwrap();
            assert!(store.read().is_err(), "{text}");
        }
    }
}
