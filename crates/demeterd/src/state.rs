// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state directory, and the thread that writes there. A disk that does not answer (a file
//! system that is frozen for a snapshot, a device or a server that is gone) lets whoever writes
//! sleep where no signal reaches it: that is this thread, and nobody who serves guests.
//!
//! The thread has descriptors of its own, and of the process's only what it needs: when all
//! other threads have ended, so have the process's sockets, while the lock of the directory is
//! held until nobody can write any more. What it opens it closes; no other thread may.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::lock::Lock;

/// So long the disk may take for one thing before it is said not to answer.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// Between looks at that.
const LOOK: Duration = Duration::from_secs(1);

/// What is written; what it failed with is its own matter.
type Job = Box<dyn FnOnce() + Send>;

/// The disk did not answer in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the disk under the state directory does not answer")]
pub struct Silent {
    /// What was asked for may be done yet, when the disk answers.
    pub may_be_done: bool,
}

impl Silent {
    /// That error is one.
    pub fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|error| error.is::<Self>())
    }
}

impl From<Silent> for io::Error {
    fn from(silent: Silent) -> Self {
        Self::new(io::ErrorKind::TimedOut, silent)
    }
}

/// How many were handed over, up to and with this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(u64);

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    pushed: u64,
    done: u64,
    /// Since when the one that is not done is written.
    began: Option<Instant>,
    is_over: bool,
}

#[derive(Default)]
struct Line {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Line {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what is handed over, in its order, until nobody hands anything over any more.
    fn write(&self) {
        let mut queue = self.queue();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                queue.began = Some(Instant::now());
                drop(queue);
                // The rest is written whatever one does.
                let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
                if ended.is_err() {
                    tracing::error!("what was written to the state directory failed; report it");
                }
                queue = self.queue();
                queue.began = None;
                queue.done += 1;
                self.changed.notify_all();
            } else if queue.is_over {
                return;
            } else {
                queue = (self.changed.wait(queue)).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

/// See the module.
pub struct State {
    directory: PathBuf,
    line: Arc<Line>,
    /// The thread's own one outlives it.
    _lock: Option<Lock>,
}

impl State {
    /// The directory, which is made if there is none, is ours from now on and until the last
    /// thing is written.
    pub fn open(directory: &Path) -> Result<Self, Error> {
        std::fs::create_dir_all(directory)
            .map_err(|cause| Error::file("create", directory, cause))?;
        let lock = Lock::take(directory)?;
        let line = Arc::new(Line::default());
        let (theirs, held) = (line.clone(), lock.descriptor());
        let (said, is_apart) = std::sync::mpsc::channel();
        thread::Builder::new()
            .name("state".to_owned())
            .spawn(move || {
                let apart = be_apart(held);
                if let Err(error) = &apart {
                    tracing::warn!(
                        "no file or socket is closed before the disk has answered: {error}"
                    );
                }
                let _ = said.send(apart.is_ok());
                theirs.write();
            })
            .map_err(|cause| Error::System {
                action: "start a thread",
                cause,
            })?;
        // From here on the lock is open twice, or until the process has ended.
        let _lock = match is_apart.recv() {
            Ok(true) => Some(lock),
            _ => {
                lock.keep();
                None
            }
        };
        let state = Self {
            directory: directory.to_owned(),
            line,
            _lock,
        };
        let noted = directory.to_owned();
        state.push(move || Lock::note_process(&noted));
        Ok(state)
    }

    /// Its path.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Has that done when all before it is.
    pub fn push(&self, job: impl FnOnce() + Send + 'static) -> Place {
        let mut queue = self.line.queue();
        queue.jobs.push_back(Box::new(job));
        queue.pushed += 1;
        self.line.changed.notify_all();
        Place(queue.pushed)
    }

    /// Waits until that and all before it is done, which may be in vain.
    pub fn wait(&self, place: Place, limit: Duration) -> Result<(), Silent> {
        let queue = self.line.queue();
        let (queue, _) = (self.line.changed)
            .wait_timeout_while(queue, limit, |queue| queue.done < place.0)
            .unwrap_or_else(PoisonError::into_inner);
        if queue.done < place.0 {
            return Err(Silent { may_be_done: true });
        }
        Ok(())
    }

    /// Has that done, and waits for what it says. Nobody waits for a disk that is known not to
    /// answer, and what has not begun by the end of the limit is not done.
    pub fn call<T: Send + 'static>(
        &self,
        limit: Duration,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Silent> {
        if self.silent_for() > ANSWER_LIMIT {
            return Err(Silent { may_be_done: false });
        }
        let call = Arc::new(Mutex::new(Call::Waits));
        let theirs = call.clone();
        let of = |call: &Mutex<Call<T>>, next| {
            let mut call = call.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *call, next)
        };
        let place = self.push(move || {
            if !matches!(of(&theirs, Call::Begun), Call::Withdrawn) {
                let answer = body();
                of(&theirs, Call::Done(answer));
            }
        });
        let waited = self.wait(place, limit);
        match (of(&call, Call::Withdrawn), waited) {
            (Call::Done(answer), _) => Ok(answer),
            (Call::Waits, _) => Err(Silent { may_be_done: false }),
            (Call::Begun | Call::Withdrawn, _) => Err(Silent { may_be_done: true }),
        }
    }

    /// How long the disk has not answered.
    pub fn silent_for(&self) -> Duration {
        let began = self.line.queue().began;
        began.map_or(Duration::ZERO, |began| began.elapsed())
    }

    /// Tells for ever when it does not answer, and when it does again.
    pub async fn watch(self: Arc<Self>) {
        let mut silent_since = None;
        loop {
            tokio::time::sleep(LOOK).await;
            let silent_for = self.silent_for();
            match silent_since {
                None if silent_for > ANSWER_LIMIT => {
                    silent_since = Some(Instant::now() - silent_for);
                    tracing::error!(
                        "the disk under the state directory does not answer: ledgers, accounts \
                         and changes of the fleet are not written, guests are served; next: \
                         look after {} and its disk",
                        self.directory.display()
                    );
                }
                Some(since) if silent_for < ANSWER_LIMIT => {
                    silent_since = None;
                    tracing::info!(
                        "the disk under the state directory answers again, after {} s",
                        since.elapsed().as_secs()
                    );
                }
                _ => {}
            }
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.line.queue().is_over = true;
        self.line.changed.notify_all();
    }
}

enum Call<T> {
    Waits,
    Begun,
    /// Nobody waits for it any more.
    Withdrawn,
    Done(T),
}

/// The calling thread has descriptors of its own from now on: the standard ones, and that one.
fn be_apart(kept: RawFd) -> io::Result<()> {
    let close = |first: RawFd, last: libc::c_uint| {
        let flags = libc::CLOSE_RANGE_UNSHARE as libc::c_int;
        // SAFETY: with that flag numbers of this thread alone are closed, or none if it fails.
        // Nothing that owns one of them is used by this thread.
        match unsafe { libc::close_range(first as libc::c_uint, last, flags) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    let first = libc::STDERR_FILENO + 1;
    close(kept.max(first - 1) + 1, libc::c_uint::MAX)?;
    if kept > first {
        close(first, kept as libc::c_uint - 1)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(60);

    /// Does not answer until that is dropped.
    fn freeze(state: &State) -> Sender<()> {
        let (thaws, frozen) = channel::<()>();
        let (began, begun) = channel();
        state.push(move || {
            began.send(()).unwrap();
            let _ = frozen.recv();
        });
        begun.recv().unwrap();
        thaws
    }

    #[test]
    fn things_are_done_in_their_order_and_say_what_they_found() {
        let directory = tempfile::tempdir().unwrap();
        let state = State::open(directory.path()).unwrap();
        let path = directory.path().join("file");
        for text in ["one", "two", "three"] {
            let path = path.clone();
            state.push(move || std::fs::write(path, text).unwrap());
        }
        let found = state.call(LONG, move || std::fs::read_to_string(path).unwrap());
        assert_eq!(found.as_deref(), Ok("three"));
        state.push(|| panic!("a defect"));
        assert_eq!(state.call(LONG, || 7), Ok(7), "the others go on");
        let noted = std::fs::read_to_string(directory.path().join("lock")).unwrap();
        assert_eq!(noted.trim(), std::process::id().to_string());
    }

    #[test]
    fn nobody_waits_longer_than_he_wants_and_what_was_withdrawn_is_not_done() {
        let directory = tempfile::tempdir().unwrap();
        let state = State::open(directory.path()).unwrap();
        let thaws = freeze(&state);
        let path = directory.path().join("file");
        let write = |path: &Path| {
            let path = path.to_owned();
            move || std::fs::write(path, "").unwrap()
        };
        let withdrawn = state.call(SHORT, write(&path));
        assert_eq!(withdrawn, Err(Silent { may_be_done: false }));
        let last = state.push(write(&path.with_extension("pushed")));
        assert!(state.wait(last, SHORT).is_err());
        assert!(state.silent_for() >= 2 * SHORT);
        drop(thaws);
        state.wait(last, LONG).unwrap();
        assert!(!path.exists());
        assert!(path.with_extension("pushed").exists());
        assert_eq!(state.silent_for(), Duration::ZERO);
    }

    #[test]
    fn what_has_begun_may_be_done_yet() {
        let directory = tempfile::tempdir().unwrap();
        let state = State::open(directory.path()).unwrap();
        let (thaws, frozen) = channel::<()>();
        let begun = state.call(Duration::from_millis(200), move || {
            let _ = frozen.recv();
        });
        assert_eq!(begun, Err(Silent { may_be_done: true }));
        drop(thaws);
    }

    #[test]
    fn sockets_are_not_the_threads_and_the_lock_is_until_it_has_written() {
        let directory = tempfile::tempdir().unwrap();
        let other = std::fs::File::open("/dev/null").unwrap();
        let state = State::open(directory.path()).unwrap();
        let own = state.call(LONG, || {
            let own = std::fs::read_dir("/proc/thread-self/fd").unwrap();
            own.map(|entry| entry.unwrap().path())
                .filter_map(|path| std::fs::read_link(path).ok())
                .collect::<Vec<_>>()
        });
        let own = own.unwrap();
        // The standard ones, the lock, and what it looks with.
        assert!(own.len() <= 5, "{own:?}");
        assert!(own.contains(&directory.path().to_owned()), "{own:?}");
        assert!(other.metadata().is_ok(), "it is open elsewhere");
        let thaws = freeze(&state);
        drop(state);
        assert!(Lock::take(directory.path()).is_err());
        drop(thaws);
        Lock::take(directory.path()).unwrap();
    }
}
