// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What each guest was given, when and why: one JSON line an entry, one file a
//! guest. The file is for people and for restarts, which take the last size
//! that was asked for from it. A guest can cause entries, so the file is
//! rotated at a size and one old file is kept.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
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
    /// What serves its device ended, and should not have.
    WorkerDied,
    /// We take its device out, to put it in anew at once.
    TakenOut,
    /// That is done.
    PutIn,
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
    /// Taken out, put in: where.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bus: Option<String>,
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
            bus: None,
            why: None,
            left_out: 0,
        }
    }

    /// What the next start needs to know, however much is noted later.
    fn is_for_restarts(&self) -> bool {
        matches!(self.what, What::Asked | What::TakenOut | What::PutIn)
    }
}

struct Inner {
    file: Option<File>,
    /// Why it is not written just now was told.
    is_given_up: bool,
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
                is_given_up: false,
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
        inner.is_given_up = false;
        if let Some(path) = &self.path {
            let _ = fs::rename(path, path.with_extension("removed"));
            let _ = fs::remove_file(rotated(path));
        }
    }

    /// One more line. That the disk is full must not stop the guests: it is told
    /// once, and with each further entry it is tried again.
    pub fn add(&self, entry: Entry) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        // First: a rotation writes down again what is remembered.
        remember(&mut inner.recent, entry.clone());
        match self.write(&mut inner, &entry) {
            Ok(()) if inner.is_given_up => {
                inner.is_given_up = false;
                tracing::info!("the ledger is written again");
            }
            Ok(()) => {}
            Err(error) => {
                if !std::mem::replace(&mut inner.is_given_up, true) {
                    tracing::error!(
                        "the ledger is not written: {error}; next: make room in the state directory, it is tried again"
                    );
                }
                inner.file = None;
            }
        }
    }

    fn write(&self, inner: &mut Inner, entry: &Entry) -> std::io::Result<()> {
        let Some(path) = &self.path else {
            return Ok(());
        };
        if inner.is_given_up {
            // What was not written meanwhile, as far as a start needs it.
            begin(inner, path)?;
            if entry.is_for_restarts() {
                return Ok(());
            }
        }
        let Some(file) = &mut inner.file else {
            return Ok(());
        };
        inner.bytes += append(file, entry)?;
        if inner.bytes > ROTATE_BYTES {
            fs::rename(path, rotated(path))?;
            // The last sizes must not be lost with a later rotation.
            begin(inner, path)?;
        }
        Ok(())
    }

    /// The newest entries, oldest first.
    pub fn recent(&self) -> Vec<Entry> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.recent.iter().cloned().collect()
    }

    /// Where the device was, if it was taken out and not put in again.
    pub fn taken_out(&self) -> Option<String> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let last = last_plugging(&inner.recent)?;
        (last.what == What::TakenOut).then(|| last.bus.clone())?
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

fn last_plugging(recent: &VecDeque<Entry>) -> Option<&Entry> {
    recent.iter().rev().find(|entry| is_plugging(entry))
}

fn is_plugging(entry: &Entry) -> bool {
    matches!(entry.what, What::TakenOut | What::PutIn)
}

fn remember(recent: &mut VecDeque<Entry>, entry: Entry) {
    if recent.len() == REMEMBERED {
        // Old sizes and what guests can cause at will make room for each other, and for what
        // went wrong; what the next start needs stays before all.
        let droppable = (0..recent.len())
            .find(|&at| is_passing(recent, at))
            .or_else(|| recent.iter().position(|old| !old.is_for_restarts()))
            .unwrap_or(0);
        recent.remove(droppable);
    }
    recent.push_back(entry);
}

/// Nobody misses it but for its time.
fn is_passing(recent: &VecDeque<Entry>, at: usize) -> bool {
    let old = &recent[at];
    if old.is_for_restarts() {
        return is_superseded(recent, at);
    }
    !matches!(old.what, What::WorkerDied | What::Disabled)
}

/// A later entry says the same of the same thing.
fn is_superseded(recent: &VecDeque<Entry>, at: usize) -> bool {
    let old = &recent[at];
    let says_same = |entry: &Entry| match old.what {
        What::Asked => entry.what == What::Asked && entry.tier == old.tier,
        _ => is_plugging(entry),
    };
    recent.range(at + 1..).any(says_same)
}

/// Opens the file and writes down what the next start needs to know.
fn begin(inner: &mut Inner, path: &Path) -> std::io::Result<()> {
    let mut file = append_to(path)?;
    let mut bytes = file.metadata()?.len();
    let plugging = last_plugging(&inner.recent).cloned();
    for entry in last_asked(&inner.recent).into_iter().chain(plugging) {
        bytes += append(&mut file, &entry)?;
    }
    inner.file = Some(file);
    inner.bytes = bytes;
    Ok(())
}

/// Writes a line; returns its bytes.
fn append(file: &mut File, entry: &Entry) -> std::io::Result<u64> {
    let mut line = serde_json::to_vec(entry)?;
    line.push(b'\n');
    file.write_all(&line)?;
    Ok(line.len() as u64)
}

fn rotated(path: &Path) -> PathBuf {
    path.with_extension("old.jsonl")
}

/// What is appended begins a line, also after one that a sudden end cut.
fn append_to(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    let mut file = options.create(true).read(true).append(true).open(path)?;
    if let Some(last) = file.metadata()?.len().checked_sub(1) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, last)?;
        if byte != *b"\n" {
            file.write_all(b"\n")?;
        }
    }
    Ok(file)
}

/// Whole lines only: one may have been cut by a sudden end, within a letter, too.
fn lines(path: &Path) -> impl Iterator<Item = Entry> {
    File::open(path)
        .map(BufReader::new)
        .into_iter()
        .flat_map(|file| file.split(b'\n'))
        .map_while(Result::ok)
        .filter_map(|line| serde_json::from_slice(&line).ok())
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

    fn taken_out(bus: &str) -> Entry {
        Entry {
            bus: Some(bus.into()),
            ..Entry::now(What::TakenOut)
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
        let mut file = append_to(&path).unwrap();
        file.write_all(b"{\"unix_ms\":12,\"why\":\"\xc3").unwrap();
        let again = open();
        let sizes = again.last_balloons();
        assert_eq!(sizes, [("smem".to_owned(), 2), ("fmem".to_owned(), 3)]);
        // The next one is no part of the line that was cut.
        again.add(asked("fmem", 4));
        drop(again);
        let sizes = open().last_balloons();
        assert_eq!(sizes, [("smem".to_owned(), 2), ("fmem".to_owned(), 4)]);
    }

    #[test]
    fn noise_neither_grows_the_memory_nor_hides_sizes() {
        let ledger = Ledger::open(None, "a").unwrap();
        ledger.add(asked("fmem", 7));
        ledger.add(taken_out("port7"));
        for _ in 0..10 * REMEMBERED {
            ledger.add(Entry::now(What::Driver));
        }
        assert_eq!(ledger.recent().len(), REMEMBERED);
        assert_eq!(ledger.last_balloons(), [("fmem".to_owned(), 7)]);
        assert_eq!(ledger.taken_out().as_deref(), Some("port7"));
    }

    #[test]
    fn sizes_of_one_tier_do_not_hide_those_of_the_other() {
        let directory = tempfile::tempdir().unwrap();
        let open = || Ledger::open(Some(directory.path()), "a").unwrap();
        let ledger = open();
        ledger.add(asked("smem", 7));
        ledger.add(taken_out("port7"));
        for size in 0..2 * REMEMBERED as u64 {
            ledger.add(asked("fmem", size));
        }
        let wanted = [
            ("smem".to_owned(), 7),
            ("fmem".to_owned(), 2 * REMEMBERED as u64 - 1),
        ];
        assert_eq!(ledger.last_balloons(), wanted);
        let again = open();
        assert_eq!(again.last_balloons(), wanted);
        assert_eq!(again.taken_out().as_deref(), Some("port7"));
    }

    #[test]
    fn the_file_is_rotated_and_keeps_the_sizes() {
        let directory = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(Some(directory.path()), "a").unwrap();
        ledger.add(asked("fmem", 7));
        ledger.add(taken_out("port7"));
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
        assert_eq!(again.taken_out().as_deref(), Some("port7"));
        again.add(Entry::now(What::PutIn));
        assert_eq!(again.taken_out(), None);
    }

    #[test]
    fn the_entry_that_makes_the_file_too_large_counts() {
        let put_in = Entry::now(What::PutIn);
        for (last, size, bus) in [
            (put_in, 7, None),
            (taken_out("port8"), 7, Some("port8")),
            (asked("fmem", 8), 8, Some("port7")),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let open = || Ledger::open(Some(directory.path()), "a").unwrap();
            let ledger = open();
            ledger.add(asked("fmem", 7));
            ledger.add(taken_out("port7"));
            ledger.inner.lock().unwrap().bytes = ROTATE_BYTES;
            ledger.add(last);
            drop(ledger);
            assert!(directory.path().join("a.old.jsonl").exists());
            let again = open();
            assert_eq!(again.last_balloons(), [("fmem".to_owned(), size)]);
            assert_eq!(again.taken_out().as_deref(), bus);
        }
    }

    /// `/dev/full` answers every write as a full disk does.
    #[test]
    fn a_full_disk_is_told_once_and_what_was_asked_meanwhile_is_written_later() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.jsonl");
        let ledger = Ledger::open(Some(directory.path()), "a").unwrap();
        ledger.add(asked("fmem", 7));
        ledger.add(taken_out("port7"));
        let kept = directory.path().join("kept");
        fs::rename(&path, &kept).unwrap();
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        ledger.inner.lock().unwrap().file = Some(append_to(&path).unwrap());
        for size in 8..20 {
            ledger.add(asked("fmem", size));
            assert!(ledger.inner.lock().unwrap().is_given_up);
        }
        ledger.add(Entry::now(What::PutIn));
        // There is room again.
        fs::rename(&kept, &path).unwrap();
        ledger.add(Entry::now(What::Driver));
        assert!(!ledger.inner.lock().unwrap().is_given_up);
        ledger.add(asked("smem", 3));
        drop(ledger);
        let again = Ledger::open(Some(directory.path()), "a").unwrap();
        let wanted = [("fmem".to_owned(), 19), ("smem".to_owned(), 3)];
        assert_eq!(again.last_balloons(), wanted);
        assert_eq!(again.taken_out(), None);
        let drivers = |entry: &Entry| entry.what == What::Driver;
        assert_eq!(again.recent().into_iter().filter(drivers).count(), 1);
    }

    #[test]
    fn many_sizes_do_not_hide_a_death() {
        let ledger = Ledger::open(None, "a").unwrap();
        ledger.add(Entry::now(What::WorkerDied));
        ledger.add(Entry::now(What::Disabled));
        for size in 0..2 * REMEMBERED as u64 {
            ledger.add(asked("fmem", size));
        }
        let shown = ledger.recent();
        assert_eq!(shown.len(), REMEMBERED);
        assert_eq!(shown[0].what, What::WorkerDied);
        assert_eq!(shown[1].what, What::Disabled);
        // Nor do other entries that a guest can cause.
        for _ in 0..10 * REMEMBERED {
            ledger.add(Entry::now(What::Driver));
        }
        let shown = ledger.recent();
        assert_eq!(shown[0].what, What::WorkerDied);
        assert_eq!(shown[1].what, What::Disabled);
        assert_eq!(shown.len(), REMEMBERED);
    }

    #[test]
    fn of_too_many_deaths_the_oldest_are_left_out() {
        let ledger = Ledger::open(None, "a").unwrap();
        ledger.add(asked("fmem", 7));
        ledger.add(taken_out("port7"));
        for at in 0..2 * REMEMBERED as u64 {
            ledger.add(Entry {
                unix_ms: at,
                ..Entry::now(What::WorkerDied)
            });
        }
        let shown = ledger.recent();
        assert_eq!(shown.len(), REMEMBERED);
        assert_eq!(shown.last().unwrap().unix_ms, 2 * REMEMBERED as u64 - 1);
        assert_eq!(ledger.last_balloons(), [("fmem".to_owned(), 7)]);
        assert_eq!(ledger.taken_out().as_deref(), Some("port7"));
    }
}
