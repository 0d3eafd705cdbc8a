// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who writes ledgers and accounts: a process of its own. A disk that does not answer lets its
//! writers sleep where no signal reaches them, SIGKILL neither, and a process of which one thread
//! sleeps so never ends. The coordinator tells the scribe what to write, and never waits for it
//! where a guest, or its own end, would.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::channel::{Channel, ChannelError};

/// Whoever must know that the disk has it waits so long. A disk that does not answer must not
/// keep an orderly stop, either.
const LIMIT: Duration = Duration::from_secs(5);
/// Answers that are remembered.
const REMEMBERED: u64 = 64;

/// To the scribe, in order.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Order {
    /// Write there. The lock of the directory comes with it: it is the daemon's until the last
    /// one has ended.
    Begin {
        /// Where.
        directory: PathBuf,
    },
    /// A line of a ledger; none: it is in the file that comes with it.
    Entry {
        /// Whose.
        vm: String,
        /// What.
        entry: Option<serde_json::Value>,
    },
    /// A guest is gone for good.
    Retire {
        /// Which.
        vm: String,
    },
    /// All accounts, in the file that comes with it.
    Accounts {
        /// The daemon ends.
        is_last: bool,
    },
    /// Say when all of before is done.
    Sync,
}

/// Why the scribe knows nothing of it.
#[derive(Debug, thiserror::Error)]
pub enum ScribeError {
    /// It has more to do than it does.
    #[error("the disk does not answer")]
    Disk,
    /// There is none, or it is not heard.
    #[error("cannot tell the process that writes: {0}")]
    Channel(#[from] ChannelError),
    /// It cannot be started, or handed something.
    #[error("cannot start the process that writes: {0}")]
    System(#[from] io::Error),
}

impl From<ScribeError> for io::Error {
    fn from(error: ScribeError) -> Self {
        match error {
            ScribeError::System(error) => error,
            error => Self::other(error),
        }
    }
}

/// What one process has answered.
#[derive(Debug, Default)]
struct Answers {
    /// How often, how the newest went, by number, and whether it has ended.
    heard: Mutex<(u64, BTreeMap<u64, bool>, bool)>,
    changed: Condvar,
}

impl Answers {
    fn hear(&self, mut answers: ChildStdout) {
        let mut byte = [0];
        while matches!(answers.read(&mut byte), Ok(1)) {
            let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
            heard.0 += 1;
            let number = heard.0;
            heard.1.insert(number, byte == *b"1");
            heard.1.remove(&number.saturating_sub(REMEMBERED));
            drop(heard);
            self.changed.notify_all();
        }
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).2 = true;
        self.changed.notify_all();
    }

    /// How that went; none: it has not been answered, or never will be.
    fn wait(&self, number: u64, limit: Duration) -> Option<bool> {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let is_open = |heard: &mut (u64, _, bool)| heard.0 < number && !heard.2;
        let woken = (self.changed).wait_timeout_while(heard, limit, is_open);
        let (heard, _) = woken.unwrap_or_else(PoisonError::into_inner);
        heard.1.get(&number).copied()
    }

    fn has_ended(&self, limit: Duration) -> bool {
        self.wait(u64::MAX, limit);
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).2
    }
}

/// One process.
#[derive(Debug)]
struct Life {
    link: Channel,
    child: Child,
    /// Orders that it answers.
    asked: u64,
    answers: Arc<Answers>,
}

impl Drop for Life {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // It ends when the disk lets it; nobody waits for that.
        let _ = self.child.try_wait();
    }
}

/// The coordinator's end.
#[derive(Debug)]
pub struct Scribe {
    directory: PathBuf,
    lock: BorrowedFd<'static>,
    life: Mutex<Option<Life>>,
    /// Processes so far.
    lives: AtomicU64,
}

impl Scribe {
    /// Writes in that directory, whose lock is held through `lock`.
    pub fn start(directory: &Path, lock: &'static File) -> Result<Self, ScribeError> {
        let scribe = Self {
            directory: directory.to_path_buf(),
            lock: lock.as_fd(),
            life: Mutex::default(),
            lives: AtomicU64::new(0),
        };
        scribe.tell(&Order::Sync, None)?;
        Ok(scribe)
    }

    /// Processes so far: what an earlier one was told it may not have written.
    pub fn lives(&self) -> u64 {
        self.lives.load(Ordering::Relaxed)
    }

    fn life(&self) -> MutexGuard<'_, Option<Life>> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the answer, if it is answered. One that has ended is followed by another.
    fn tell(&self, order: &Order, with: Option<&[u8]>) -> Result<u64, ScribeError> {
        let file = with.map(in_memory).transpose()?;
        let fds: Vec<BorrowedFd<'_>> = file.iter().map(AsFd::as_fd).collect();
        let mut slot = self.life();
        if (slot.as_ref()).is_none_or(|life| life.answers.has_ended(Duration::ZERO)) {
            *slot = Some(self.begin()?);
            self.lives.fetch_add(1, Ordering::Relaxed);
        }
        let Some(life) = slot.as_mut() else {
            return Err(ScribeError::Disk);
        };
        match life.link.send_now(order, &fds) {
            Ok(()) => {}
            Err(ChannelError::Full) => return Err(ScribeError::Disk),
            Err(error @ (ChannelError::Size | ChannelError::Malformed(_))) => {
                return Err(error.into());
            }
            Err(error) => {
                *slot = None;
                return Err(error.into());
            }
        }
        life.asked += u64::from(!matches!(order, Order::Entry { .. }));
        Ok(life.asked)
    }

    fn begin(&self) -> Result<Life, ScribeError> {
        let (link, theirs) = Channel::pair()?;
        let mut child = Command::new("/proc/self/exe")
            .arg("--scribe")
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::piped())
            .spawn()?;
        let answers = Arc::new(Answers::default());
        if let Some(stdout) = child.stdout.take() {
            let heard = answers.clone();
            thread::Builder::new()
                .name("scribe".to_owned())
                .spawn(move || heard.hear(stdout))?;
        }
        let life = Life {
            link,
            child,
            asked: 0,
            answers,
        };
        let directory = self.directory.clone();
        (life.link).send_now(&Order::Begin { directory }, &[self.lock])?;
        Ok(life)
    }

    /// A line of a ledger.
    pub fn entry(&self, vm: &str, entry: &impl Serialize) -> Result<(), ScribeError> {
        let order = |entry| Order::Entry {
            vm: vm.to_owned(),
            entry,
        };
        let value = serde_json::to_value(entry).map_err(ChannelError::from)?;
        match self.tell(&order(Some(value)), None) {
            Err(ScribeError::Channel(ChannelError::Size)) => {
                let text = serde_json::to_vec(entry).map_err(ChannelError::from)?;
                self.tell(&order(None), Some(&text))
            }
            told => told,
        }?;
        Ok(())
    }

    /// A guest is gone for good, and so is its ledger.
    pub fn retire(&self, vm: &str) -> Result<(), ScribeError> {
        let number = self.tell(&Order::Retire { vm: vm.to_owned() }, None)?;
        self.wait(number)
    }

    /// All that was told before is written.
    pub fn sync(&self) -> Result<(), ScribeError> {
        let number = self.tell(&Order::Sync, None)?;
        self.wait(number)
    }

    fn wait(&self, number: u64) -> Result<(), ScribeError> {
        let answers = self.life().as_ref().map(|life| life.answers.clone());
        answers
            .and_then(|answers| answers.wait(number, LIMIT))
            .map(|_| ())
            .ok_or(ScribeError::Disk)
    }

    /// All accounts. The number by which [`Self::has_written`] knows them.
    pub fn accounts(&self, text: &[u8], is_last: bool) -> Result<u64, ScribeError> {
        self.tell(&Order::Accounts { is_last }, Some(text))
    }

    /// They are on the disk.
    pub fn has_written(&self, number: u64) -> bool {
        let life = self.life();
        let answer = life.as_ref().map(|life| life.answers.clone());
        drop(life);
        answer.and_then(|answers| answers.wait(number, Duration::ZERO)) == Some(true)
    }

    /// It has done all that it was told, or is not there.
    pub fn is_idle(&self) -> bool {
        let life = self.life();
        life.as_ref().is_none_or(|life| {
            life.asked == 0
                || life.answers.has_ended(Duration::ZERO)
                || life.answers.wait(life.asked, Duration::ZERO).is_some()
        })
    }

    /// Nobody tells it anything any more: has it written all that it was told? If not, it never
    /// will, beside what it is at.
    pub fn finish(&self) -> bool {
        let Some(life) = self.life().take() else {
            return true;
        };
        life.link.end();
        life.answers.has_ended(LIMIT)
    }
}

/// A message is too short for it.
fn in_memory(text: &[u8]) -> io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create("scribe", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = File::from(fd);
    file.write_all(text)?;
    Ok(file.into())
}
