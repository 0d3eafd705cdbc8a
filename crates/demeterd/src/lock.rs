// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One daemon for a directory of state. Two would write one file of machines and the same
//! ledgers, each what the other does not know.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Of the file that is locked; it stays when the daemon has ended.
const NAME: &str = "lock";
/// So long a lock of a daemon that was killed may still be held, by a worker that it was
/// just starting.
const ENDING_LIMIT: Duration = Duration::from_secs(1);
/// How often is tried meanwhile.
const LOOK: Duration = Duration::from_millis(20);

/// Why the directory cannot be ours.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another daemon has it.
    #[error("another daemon{} keeps its state in {}", told(*.process), directory.display())]
    InUse {
        /// The directory.
        directory: PathBuf,
        /// What it wrote there of itself.
        process: Option<u32>,
    },
    /// The system refused.
    #[error("cannot lock {}: {cause}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// The system's words.
        cause: io::Error,
    },
}

fn told(process: Option<u32>) -> String {
    process.map_or_else(String::new, |process| format!(" (process {process})"))
}

impl LockError {
    /// What the operator should do.
    pub fn next(&self) -> &'static str {
        match self {
            Self::InUse { .. } => "stop it, or give this one another --state-dir",
            Self::System { .. } => {
                "let the daemon's user write to that directory, on a file system that knows locks"
            }
        }
    }
}

/// The directory is ours while this lives.
#[derive(Debug)]
pub struct Lock {
    /// Closing it, in whatever way, ends the lock.
    _file: File,
}

impl Lock {
    /// Takes the directory.
    pub fn take(directory: &Path) -> Result<Self, LockError> {
        let path = directory.join(NAME);
        let failed = |cause| LockError::System {
            path: path.clone(),
            cause,
        };
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(&path).map_err(failed)?;
        let deadline = Instant::now() + ENDING_LIMIT;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    std::thread::sleep(LOOK);
                }
                Err(TryLockError::WouldBlock) => {
                    let mut text = String::new();
                    // Only for people: whoever has it may be about to write it.
                    let _ = file.read_to_string(&mut text);
                    return Err(LockError::InUse {
                        directory: directory.to_path_buf(),
                        process: text.trim().parse().ok(),
                    });
                }
                Err(TryLockError::Error(cause)) => return Err(failed(cause)),
            }
        }
        // Full disks must not keep a daemon from serving its machines.
        let _ = (file.set_len(0)).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_daemon_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let first = Lock::take(directory.path()).unwrap();
        let error = Lock::take(directory.path()).unwrap_err();
        let own = Some(std::process::id());
        assert!(
            matches!(&error, LockError::InUse { process, .. } if *process == own),
            "{error}"
        );
        assert!(error.next().contains("--state-dir"));
        let elsewhere = tempfile::tempdir().unwrap();
        Lock::take(elsewhere.path()).unwrap();
        drop(first);
        Lock::take(directory.path()).unwrap();
    }

    #[test]
    fn a_lock_that_ends_soon_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let first = Lock::take(directory.path()).unwrap();
        let ends = std::thread::spawn(move || {
            std::thread::sleep(ENDING_LIMIT / 4);
            drop(first);
        });
        Lock::take(directory.path()).unwrap();
        ends.join().unwrap();
    }

    #[test]
    fn what_cannot_be_locked_is_named() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join(NAME)).unwrap();
        let error = Lock::take(directory.path()).unwrap_err();
        assert!(matches!(error, LockError::System { .. }), "{error}");
    }
}
