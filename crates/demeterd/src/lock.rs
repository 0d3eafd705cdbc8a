// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One daemon for a directory of state. Two would write one file of machines and the same
//! ledgers, each what the other does not know.
//!
//! The directory itself is locked: a file in it can be removed, replaced or somebody else's, and
//! takes room to make. The process number in it is for people, and a daemon does without.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Of the file with the process number; it stays when the daemon has ended.
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
        /// What it wrote there of itself, as far as it could.
        process: Option<u32>,
    },
    /// The system refused.
    #[error("cannot lock {}: {cause}", path.display())]
    System {
        /// The directory.
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
            Self::System { cause, .. } => match cause.kind() {
                io::ErrorKind::PermissionDenied => "let the daemon's user read that directory",
                io::ErrorKind::NotADirectory => "give a directory as --state-dir",
                io::ErrorKind::NotFound => "make that directory again",
                _ => {
                    "give a --state-dir on a file system that knows locks of directories (not NFS)"
                }
            },
        }
    }
}

/// The directory is ours while this lives.
#[derive(Debug)]
pub struct Lock {
    /// Closing it, in whatever way, ends the lock.
    directory: File,
}

impl Lock {
    /// Takes the directory.
    pub fn take(path: &Path) -> Result<Self, LockError> {
        let failed = |cause| LockError::System {
            path: path.to_path_buf(),
            cause,
        };
        let directory = (File::options().read(true))
            .custom_flags(libc::O_DIRECTORY)
            .open(path)
            .map_err(failed)?;
        let deadline = Instant::now() + ENDING_LIMIT;
        loop {
            match directory.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    std::thread::sleep(LOOK);
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(LockError::InUse {
                        directory: path.to_path_buf(),
                        process: process(path),
                    });
                }
                Err(TryLockError::Error(cause)) => return Err(failed(cause)),
            }
        }
        Ok(Self { directory })
    }

    /// For people. Full disks and odd files must not keep a daemon from serving its machines.
    pub fn note_process(path: &Path) {
        if let Err(error) = write_process(path) {
            tracing::warn!("cannot write {}: {error}", path.join(NAME).display());
        }
    }

    /// Whoever has this open has the lock.
    pub fn descriptor(&self) -> RawFd {
        self.directory.as_raw_fd()
    }

    /// Until the process has ended: threads may write there until then.
    pub fn keep(self) {
        std::mem::forget(self.directory);
    }
}

/// A plain file in the directory: not what a link names, nor a pipe that nobody reads.
fn file(directory: &Path, options: &mut std::fs::OpenOptions) -> io::Result<File> {
    let file = options
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(directory.join(NAME))?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::ErrorKind::InvalidInput.into())
    }
}

fn process(directory: &Path) -> Option<u32> {
    let mut text = String::new();
    // Whoever has the lock may be about to write it.
    (file(directory, File::options().read(true)).ok()?)
        .take(32)
        .read_to_string(&mut text)
        .ok()?;
    text.trim().parse().ok()
}

fn write_process(directory: &Path) -> io::Result<()> {
    let mut file = file(
        directory,
        File::options().write(true).create(true).truncate(false),
    )?;
    file.set_len(0)?;
    writeln!(file, "{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_daemon_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let first = Lock::take(directory.path()).unwrap();
        Lock::note_process(directory.path());
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
    fn the_lock_is_there_without_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(NAME);
        let _first = Lock::take(directory.path()).unwrap();
        Lock::note_process(directory.path());
        let is_in_use = || {
            let error = Lock::take(directory.path()).unwrap_err();
            matches!(error, LockError::InUse { process: None, .. })
        };
        std::fs::remove_file(&path).unwrap();
        assert!(is_in_use());
        // Another file in its place.
        std::fs::write(&path, "").unwrap();
        assert!(is_in_use());
    }

    #[test]
    fn what_is_in_the_place_of_the_file_keeps_nobody_out_and_is_not_touched() {
        let directory = tempfile::tempdir().unwrap();
        let other = directory.path().join("other");
        std::fs::write(&other, "precious").unwrap();
        let path = directory.path().join(NAME);
        std::os::unix::fs::symlink(&other, &path).unwrap();
        drop(Lock::take(directory.path()).unwrap());
        Lock::note_process(directory.path());
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "precious");
        std::fs::remove_file(&path).unwrap();
        // As one that is somebody else's: it cannot be opened for writing, by root neither.
        std::fs::create_dir(&path).unwrap();
        let _lock = Lock::take(directory.path()).unwrap();
        Lock::note_process(directory.path());
    }

    #[test]
    fn a_lock_that_is_kept_lives_as_long_as_the_process() {
        let directory = tempfile::tempdir().unwrap();
        Lock::take(directory.path()).unwrap().keep();
        let error = Lock::take(directory.path()).unwrap_err();
        assert!(matches!(error, LockError::InUse { .. }), "{error}");
    }

    #[test]
    fn what_cannot_be_locked_is_named_with_what_helps() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "").unwrap();
        let error = Lock::take(&path).unwrap_err();
        assert!(error.to_string().contains("/file"), "{error}");
        assert_eq!(error.next(), "give a directory as --state-dir");
        let error = Lock::take(&directory.path().join("none")).unwrap_err();
        assert_eq!(error.next(), "make that directory again");
    }
}
