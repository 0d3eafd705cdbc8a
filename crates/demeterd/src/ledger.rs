// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What each guest was given, when and why: one JSON line an entry, one file a
//! guest. The file is for people and for restarts, which take the last size
//! that was asked for from it. A guest can cause entries, so the file is
//! rotated at a size and one old file is kept.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use demeter_balloon::wire::Outcome;
use serde::{Deserialize, Serialize};

/// A file larger than this becomes the old file.
const ROTATE_BYTES: u64 = 8 << 20;
/// Entries that the control interface shows.
const REMEMBERED: usize = 256;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A size was asked for.
    Asked,
    /// The guest ended a request.
    Ended,
    /// The guest took pages back on its own account.
    TakenBack,
    /// A driver appeared.
    Driver,
    /// A monitor connected.
    Connected,
    /// It went away.
    Disconnected,
    /// The guest did wrong too often.
    Disabled,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Wall clock.
    pub unix_ms: u64,
    /// What.
    pub what: What,
    /// Which tier.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tier: Option<String>,
    /// Asked: the size that the guest shall have.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub size_bytes: Option<u64>,
    /// Asked: the balloon that makes it so.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub balloon_bytes: Option<u64>,
    /// Ended: how.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub outcome: Option<Outcome>,
    /// Who or what caused it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub why: Option<String>,
    /// Entries before this one that the guest caused too fast.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub left_out: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Entry {
    /// Now, with nothing but what.
    pub fn now(what: What) -> Self {
        let unix_ms = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_millis() as u64);
        Self {
            unix_ms,
            what,
            tier: None,
            size_bytes: None,
            balloon_bytes: None,
            outcome: None,
            why: None,
            left_out: 0,
        }
    }
}

struct Inner {
    file: Option<File>,
    bytes: u64,
    recent: VecDeque<Entry>,
}

/// The ledger of one guest.
pub struct Ledger {
    path: Option<PathBuf>,
    inner: Mutex<Inner>,
}

impl Ledger {
    /// In memory only if there is no directory.
    pub fn open(directory: Option<&Path>, vm: &str) -> std::io::Result<Self> {
        let path = directory.map(|directory| directory.join(format!("{vm}.jsonl")));
        let mut recent = VecDeque::new();
        if let Some(path) = &path {
            for line in lines(&rotated(path)).chain(lines(path)) {
                remember(&mut recent, line);
            }
        }
        let file = path.as_deref().map(append_to).transpose()?;
        let bytes = match &file {
            Some(file) => file.metadata()?.len(),
            None => 0,
        };
        Ok(Self {
            path,
            inner: Mutex::new(Inner {
                file,
                bytes,
                recent,
            }),
        })
    }

    /// The guest is gone for good: the next one of its name starts without its sizes. Its
    /// entries stay, as `NAME.removed`, until the next removal.
    pub fn retire(&self) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.file = None;
        if let Some(path) = &self.path {
            let _ = fs::rename(path, path.with_extension("removed"));
            let _ = fs::remove_file(rotated(path));
        }
    }

    /// One more line. That the disk is full must not stop the guests: it is told
    /// once and the file is given up.
    pub fn add(&self, entry: Entry) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = self.write(&mut inner, &entry) {
            tracing::error!("the ledger is not written any more: {error}");
            inner.file = None;
        }
        remember(&mut inner.recent, entry);
    }

    fn write(&self, inner: &mut Inner, entry: &Entry) -> std::io::Result<()> {
        let (Some(file), Some(path)) = (&mut inner.file, &self.path) else {
            return Ok(());
        };
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        file.write_all(&line)?;
        inner.bytes += line.len() as u64;
        if inner.bytes > ROTATE_BYTES {
            fs::rename(path, rotated(path))?;
            // The last sizes must not be lost with a later rotation.
            let mut fresh = append_to(path)?;
            let mut bytes = 0;
            for entry in last_asked(&inner.recent) {
                let mut line = serde_json::to_vec(&entry)?;
                line.push(b'\n');
                fresh.write_all(&line)?;
                bytes += line.len() as u64;
            }
            inner.file = Some(fresh);
            inner.bytes = bytes;
        }
        Ok(())
    }

    /// The newest entries, oldest first.
    pub fn recent(&self) -> Vec<Entry> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.recent.iter().cloned().collect()
    }

    /// The last balloon that was asked for on each tier, by name.
    pub fn last_balloons(&self) -> Vec<(String, u64)> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        last_asked(&inner.recent)
            .into_iter()
            .filter_map(|entry| Some((entry.tier?, entry.balloon_bytes?)))
            .collect()
    }
}

fn last_asked(recent: &VecDeque<Entry>) -> Vec<Entry> {
    let mut last: Vec<Entry> = Vec::new();
    for entry in recent.iter().filter(|entry| entry.what == What::Asked) {
        last.retain(|other| other.tier != entry.tier);
        last.push(entry.clone());
    }
    last
}

fn remember(recent: &mut VecDeque<Entry>, entry: Entry) {
    if recent.len() == REMEMBERED {
        // Sizes outlive the noise that a guest can make.
        let droppable = recent
            .iter()
            .position(|old| old.what != What::Asked)
            .unwrap_or(0);
        recent.remove(droppable);
    }
    recent.push_back(entry);
}

fn rotated(path: &Path) -> PathBuf {
    path.with_extension("old.jsonl")
}

fn append_to(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// Whole lines only: the last one may have been cut by a sudden end.
fn lines(path: &Path) -> impl Iterator<Item = Entry> {
    File::open(path)
        .map(BufReader::new)
        .into_iter()
        .flat_map(BufRead::lines)
        .map_while(Result::ok)
        .filter_map(|line| serde_json::from_str(&line).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(tier: &str, balloon_bytes: u64) -> Entry {
        Entry {
            tier: Some(tier.into()),
            balloon_bytes: Some(balloon_bytes),
            ..Entry::now(What::Asked)
        }
    }

    #[test]
    fn the_last_sizes_survive_a_sudden_end() {
        let directory = tempfile::tempdir().unwrap();
        let open = || Ledger::open(Some(directory.path()), "a").unwrap();
        let ledger = open();
        ledger.add(asked("fmem", 1));
        ledger.add(asked("smem", 2));
        ledger.add(asked("fmem", 3));
        drop(ledger);
        let path = directory.path().join("a.jsonl");
        append_to(&path)
            .unwrap()
            .write_all(b"{\"unix_ms\":12,")
            .unwrap();
        let sizes = open().last_balloons();
        assert_eq!(sizes, [("smem".to_owned(), 2), ("fmem".to_owned(), 3)]);
    }

    #[test]
    fn noise_neither_grows_the_memory_nor_hides_sizes() {
        let ledger = Ledger::open(None, "a").unwrap();
        ledger.add(asked("fmem", 7));
        for _ in 0..10 * REMEMBERED {
            ledger.add(Entry::now(What::Driver));
        }
        assert_eq!(ledger.recent().len(), REMEMBERED);
        assert_eq!(ledger.last_balloons(), [("fmem".to_owned(), 7)]);
    }

    #[test]
    fn the_file_is_rotated_and_keeps_the_sizes() {
        let directory = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(Some(directory.path()), "a").unwrap();
        ledger.add(asked("fmem", 7));
        let long = Entry {
            why: Some("x".repeat(1 << 16)),
            ..Entry::now(What::Driver)
        };
        for _ in 0..300 {
            ledger.add(long.clone());
        }
        let total: u64 = fs::read_dir(directory.path())
            .unwrap()
            .map(|file| file.unwrap().metadata().unwrap().len())
            .sum();
        assert!(total < 2 * ROTATE_BYTES + (1 << 18), "{total}");
        drop(ledger);
        let again = Ledger::open(Some(directory.path()), "a").unwrap();
        assert_eq!(again.last_balloons(), [("fmem".to_owned(), 7)]);
    }
}
