// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What each guest was given, when and why: one JSON line an entry, one file a
//! guest. The file is for people and for restarts, which take the last size
//! that was asked for from it. A guest can cause entries, so the file is
//! rotated at a size and one old file is kept. Nobody who adds an entry waits for the disk.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use demeter_balloon::wire::Outcome;
use serde::{Deserialize, Serialize};

use crate::state::{ANSWER_LIMIT, Place, State};

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
    /// Asked: the size that the guest shall have; taken back: how much.
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

/// Between attempts to write what a full disk did not take.
const RETRY: Duration = Duration::from_secs(10);
/// So long a disk may take before somebody goes on without what he wanted written first.
const FIRST_LIMIT: Duration = Duration::from_secs(2);

#[derive(Default)]
struct Inner {
    recent: VecDeque<Entry>,
    /// The newest, which are not written yet.
    waiting: VecDeque<Entry>,
    /// When they will be.
    queued: Option<Place>,
    is_writing: bool,
    /// Nothing was there when it was opened.
    is_new: bool,
    /// More waited than are remembered.
    left_out: usize,
    /// Why it is not written just now was told.
    is_given_up: bool,
    /// Entries that the disk did not take since.
    refused: usize,
    /// When it was last tried again without a further entry.
    tried: Option<Instant>,
    is_retired: bool,
}

/// What the thread that writes has of it.
struct Lines {
    path: PathBuf,
    inner: Mutex<Inner>,
}

/// The ledger of one guest.
pub struct Ledger {
    state: Option<Arc<State>>,
    lines: Arc<Lines>,
}

impl Ledger {
    /// In memory only if there is no directory. A disk that does not answer keeps nobody from
    /// serving who can read what was there: not so where a ledger is to be put aside there
    /// first.
    pub fn open(state: Option<Arc<State>>, vm: &str) -> std::io::Result<Self> {
        let name = format!("{vm}.jsonl");
        let path = (state.as_ref()).map_or_else(PathBuf::new, |state| state.directory().join(name));
        let (mut recent, mut is_given_up) = (VecDeque::new(), false);
        if let Some(state) = &state {
            state.wait_for_retired(ANSWER_LIMIT)?;
            let found = path.clone();
            recent = state.reads.call(ANSWER_LIMIT, move |_| {
                let mut recent = VecDeque::new();
                let old = taken_over(&found).unwrap_or_else(|| rotated(&found));
                for line in lines(&old).chain(lines(&found)) {
                    remember(&mut recent, line);
                }
                recent
            })?;
            let found = path.clone();
            // Who cannot write there is told so at the start.
            let make = move |_: &dyn Fn() -> bool| {
                if let Some(old) = taken_over(&found) {
                    // Else the next start finds it again.
                    let _ = fs::rename(old, rotated(&found));
                }
                Tail::open(&found).map(drop)
            };
            match state.ledgers.call(ANSWER_LIMIT, make) {
                // The guest is served even so, as it is when the disk fills later.
                Ok(Err(error)) if is_of_a_full_disk(&error) => {
                    tell_unwritten(&path, &error);
                    is_given_up = true;
                }
                Ok(made) => made?,
                Err(_) => {}
            }
        }
        let inner = Inner {
            is_new: recent.is_empty(),
            recent,
            is_given_up,
            ..Inner::default()
        };
        Ok(Self {
            state,
            lines: Arc::new(Lines {
                path,
                inner: Mutex::new(inner),
            }),
        })
    }

    /// The guest is gone for good: the next one of its name starts without its sizes. Its
    /// entries stay, as `NAME.removed`, until the next removal.
    pub fn retire(&self) {
        self.close();
        self.put_aside(|path| {
            let _ = fs::rename(path, path.with_extension("removed"));
            let _ = fs::remove_file(rotated(path));
        });
    }

    /// It was begun in vain: nothing of it stays. What was there before does.
    pub fn abandon(&self) {
        let is_new = self.close();
        if is_new {
            self.put_aside(|path| {
                let _ = fs::remove_file(path);
            });
        }
    }

    /// Nothing more is written of it. Whether nothing was there when it was opened.
    fn close(&self) -> bool {
        let mut inner = self.lines.inner();
        inner.is_retired = true;
        inner.waiting.clear();
        inner.left_out = 0;
        inner.refused = 0;
        inner.is_new
    }

    fn put_aside(&self, body: impl FnOnce(&Path) + Send + 'static) {
        if let Some(state) = &self.state {
            let lines = self.lines.clone();
            state.retire(move || body(&lines.path));
        }
    }

    /// One more line. That the disk is full must not stop the guests: it is told
    /// once, and with each further entry, and with time, it is tried again. Nor must a disk that does not answer:
    /// of what waits for it at most as many as are remembered are written, and the last sizes.
    pub fn add(&self, entry: Entry) {
        self.add_at(entry);
    }

    /// When it is written, if it is to be.
    fn add_at(&self, entry: Entry) -> Option<Place> {
        let mut inner = self.lines.inner();
        remember(&mut inner.recent, entry.clone());
        let state = self.state.as_ref().filter(|_| !inner.is_retired)?;
        if inner.waiting.len() == REMEMBERED {
            inner.waiting.pop_front();
            inner.left_out += 1;
        }
        inner.waiting.push_back(entry);
        let lines = &self.lines;
        let place = (inner.queued).unwrap_or_else(|| {
            let lines = lines.clone();
            state.ledgers.push(move || lines.write_down())
        });
        inner.queued = Some(place);
        Some(place)
    }

    /// The same of what is to be written before something is done. Not for ever: that is done
    /// even so. False: it is not written, as the disk is full or does not answer.
    pub fn add_first(&self, entry: Entry) -> bool {
        match (&self.state, self.add_at(entry)) {
            (Some(state), Some(place)) => {
                let waited = state.ledgers.wait(place, FIRST_LIMIT);
                waited.is_ok() && !self.lines.inner().is_given_up
            }
            _ => true,
        }
    }

    /// Something is not written: it waits for the disk, or that is full.
    pub fn is_behind(&self) -> bool {
        let inner = self.lines.inner();
        !inner.waiting.is_empty() || inner.is_writing || inner.is_given_up
    }

    /// Entries that are to be written and are not.
    pub fn unwritten(&self) -> usize {
        let inner = self.lines.inner();
        inner.waiting.len() + inner.left_out + inner.refused
    }

    /// Has what a full disk did not take written again, when it is time. The last size must not
    /// wait for a further one, which may never come.
    pub fn retry(&self, now: Instant) {
        let inner = self.lines.inner();
        if (inner.tried).is_none_or(|tried| now.duration_since(tried) >= RETRY) {
            self.try_again(inner, now);
        }
    }

    /// The same at once: there will be no other time.
    pub fn retry_at_last(&self) {
        self.try_again(self.lines.inner(), Instant::now());
    }

    fn try_again(&self, mut inner: MutexGuard<'_, Inner>, now: Instant) {
        let is_wanted = inner.is_given_up && !inner.is_retired && inner.queued.is_none();
        if let Some(state) = self.state.as_ref().filter(|_| is_wanted) {
            inner.tried = Some(now);
            let lines = self.lines.clone();
            inner.queued = Some(state.ledgers.push(move || lines.write_down()));
        }
    }

    /// The newest entries, oldest first.
    pub fn recent(&self) -> Vec<Entry> {
        self.lines.inner().recent.iter().cloned().collect()
    }

    /// Where the device was, if it was taken out and not put in again.
    pub fn taken_out(&self) -> Option<String> {
        let inner = self.lines.inner();
        let last = last_plugging(&inner.recent)?;
        (last.what == What::TakenOut).then(|| last.bus.clone())?
    }

    /// How long ago a device was put in, by us or by who has connected then; the wall clock may
    /// have been set since. None: never, as far as is remembered.
    pub fn since_put_in(&self) -> Option<Duration> {
        let inner = self.lines.inner();
        let is_put_in = |entry: &&Entry| matches!(entry.what, What::PutIn | What::Connected);
        let last = inner.recent.iter().rev().find(is_put_in)?;
        let now_ms = Entry::now(What::PutIn).unix_ms;
        Some(Duration::from_millis(now_ms.abs_diff(last.unix_ms)))
    }

    /// Its guest is gone for good.
    pub fn is_retired(&self) -> bool {
        self.lines.inner().is_retired
    }

    /// The last balloon that was asked for on each tier, by name.
    pub fn last_balloons(&self) -> Vec<(String, u64)> {
        let inner = self.lines.inner();
        last_asked(&inner.recent)
            .into_iter()
            .filter_map(|entry| Some((entry.tier?, entry.balloon_bytes?)))
            .collect()
    }
}

impl Lines {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what waits, and what the next start needs of what could not be written before.
    fn write_down(&self) {
        let mut inner = self.inner();
        inner.queued = None;
        // Who is gone for good has no file any more, and gets none.
        if inner.is_retired || (inner.waiting.is_empty() && !inner.is_given_up) {
            return;
        }
        inner.is_writing = true;
        let waiting = std::mem::take(&mut inner.waiting);
        let left_out = std::mem::take(&mut inner.left_out);
        let is_anew = inner.is_given_up || left_out > 0;
        let recent = inner.recent.clone();
        drop(inner);
        let written = self.append_all(&recent, &waiting, is_anew);
        let mut inner = self.inner();
        inner.is_writing = false;
        let was_given_up = std::mem::replace(&mut inner.is_given_up, written.is_err());
        inner.refused = match written {
            Err(_) if !inner.is_retired => inner.refused + waiting.len() + left_out,
            _ => 0,
        };
        match written {
            Ok(()) if was_given_up => tracing::info!("{} is written again", self.path.display()),
            Err(error) if !was_given_up => tell_unwritten(&self.path, &error),
            _ => {}
        }
        if left_out > 0 {
            let path = self.path.display();
            tracing::warn!("{left_out} entries are left out of {path}: the disk was too slow");
        }
    }

    fn append_all(
        &self,
        recent: &VecDeque<Entry>,
        waiting: &VecDeque<Entry>,
        is_anew: bool,
    ) -> std::io::Result<()> {
        let mut tail = Tail::open(&self.path)?;
        if is_anew {
            tail.sum_up(recent)?;
        }
        for entry in waiting {
            // Those are in the sum, which is newer.
            if is_anew && entry.is_for_restarts() {
                continue;
            }
            tail.append(entry)?;
            if tail.bytes > ROTATE_BYTES {
                fs::rename(&self.path, rotated(&self.path))?;
                // The last sizes must not be lost with a later rotation.
                tail = Tail::open(&self.path)?;
                tail.sum_up(recent)?;
            }
        }
        Ok(())
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

/// Where lines are appended.
struct Tail {
    file: File,
    bytes: u64,
    /// A sudden end or a full disk has cut the last line. What is appended ends it; to do so here
    /// would need room where there may be none.
    is_cut: bool,
}

impl Tail {
    /// Of the file of that name, which is made if it is not there.
    fn open(path: &Path) -> std::io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.create(true).read(true).append(true).open(path)?;
        let bytes = file.metadata()?.len();
        let mut byte = *b"\n";
        if let Some(last) = bytes.checked_sub(1) {
            file.read_exact_at(&mut byte, last)?;
        }
        Ok(Self {
            file,
            bytes,
            is_cut: byte != *b"\n",
        })
    }

    /// Writes a line.
    fn append(&mut self, entry: &Entry) -> std::io::Result<()> {
        let mut line = Vec::new();
        if self.is_cut {
            line.push(b'\n');
        }
        serde_json::to_writer(&mut line, entry)?;
        line.push(b'\n');
        self.file.write_all(&line)?;
        self.is_cut = false;
        self.bytes += line.len() as u64;
        Ok(())
    }

    /// Writes down what the next start needs to know.
    fn sum_up(&mut self, recent: &VecDeque<Entry>) -> std::io::Result<()> {
        let plugging = last_plugging(recent).cloned();
        (last_asked(recent).iter().chain(&plugging)).try_for_each(|entry| self.append(entry))
    }
}

/// Nothing is wrong with its path, nor with our rights.
fn is_of_a_full_disk(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

fn tell_unwritten(path: &Path, error: &std::io::Error) {
    let path = path.display();
    tracing::error!(
        "{path} is not written: {error}; next: make room in the state directory, it is tried again"
    );
}

/// No machine's own file ends so, nor what is kept of one that was removed: names may have dots,
/// so `NAME.old.jsonl` would be the ledger of a machine `NAME.old`.
fn rotated(path: &Path) -> PathBuf {
    path.with_extension("jsonl.1")
}

/// The old file as versions before named it, where it is this machine's and not the ledger of a
/// machine `NAME.old`. That one's is rotated as soon as it is larger, so that a larger one was
/// rotated, or is of a daemon that ended between the two. So it must also have the first line
/// of the new file, which repeats what was last asked for when it was begun. Where that is not
/// so (a size that was asked for at that very moment) it stays where it is: older entries are
/// not shown then, while all sizes are in the new file.
fn taken_over(path: &Path) -> Option<PathBuf> {
    let before = path.with_extension("old.jsonl");
    let is_larger = fs::metadata(&before).is_ok_and(|file| file.len() > ROTATE_BYTES);
    if !is_larger || rotated(path).exists() {
        return None;
    }
    let first = lines(path).next()?;
    let is_ours = lines(&before).any(|entry| entry == first);
    is_ours.then_some(before)
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
mod tests;
