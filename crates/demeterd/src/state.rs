// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state directory, and the threads that write there. A disk that does not answer (a file
//! system that is frozen for a snapshot, a device or a server that is gone) lets whoever writes
//! sleep where no signal reaches it: those are these threads, and nobody who serves guests.
//!
//! Each has descriptors of its own, and of the process's only what it needs: when all other
//! threads have ended, so have the process's sockets, while the lock of the directory is held
//! until nobody can write any more. What such a thread opens it closes; no other thread may.
//! Signals of the process are not theirs: a handler would find none of its descriptors.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::lock::Lock;
use crate::silent::Silent;

/// So long the disk may take for one thing before it is said not to answer.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// Between looks at that.
const LOOK: Duration = Duration::from_secs(1);
/// So long it must have answered before that is told: a slow one does now and then.
const CALM: Duration = Duration::from_secs(60);

/// What is written; what it failed with is its own matter.
type Job = Box<dyn FnOnce() + Send>;

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

    /// Does what is handed over, in its order, until nobody hands anything over any more.
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

/// One thread that writes, and what waits for it.
pub struct Writer {
    line: Arc<Line>,
}

impl Writer {
    /// False: it has the process's own descriptors.
    fn start(name: &str, lock: RawFd) -> Result<(Self, bool), Error> {
        let line = Arc::new(Line::default());
        let theirs = line.clone();
        let (said, is_apart) = std::sync::mpsc::channel();
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let apart = hear_no_signals().and_then(|()| be_apart(lock));
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
        Ok((Self { line }, is_apart.recv() == Ok(true)))
    }

    /// Has that done when all before it is.
    pub fn push(&self, job: impl FnOnce() + Send + 'static) -> Place {
        let mut queue = self.line.queue();
        queue.jobs.push_back(Box::new(job));
        queue.pushed += 1;
        self.line.changed.notify_all();
        Place(queue.pushed)
    }

    /// All that was handed over until now.
    pub fn last(&self) -> Place {
        Place(self.line.queue().pushed)
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
    /// answer. `body` asks before the step that cannot be taken back: by then nobody may wait
    /// for it any more, and it is not to be taken.
    pub fn call<T: Send + 'static>(
        &self,
        limit: Duration,
        body: impl FnOnce(&dyn Fn() -> bool) -> T + Send + 'static,
    ) -> Result<T, Silent> {
        if self.silent_for() > ANSWER_LIMIT {
            return Err(Silent { may_be_done: false });
        }
        let call = Arc::new(Mutex::new(Call::Waits));
        let theirs = call.clone();
        let place = self.push(move || {
            if matches!(*held(&theirs), Call::Withdrawn) {
                return;
            }
            let answer = body(&|| {
                let mut call = held(&theirs);
                let is_wanted = matches!(*call, Call::Waits);
                if is_wanted {
                    *call = Call::Taken;
                }
                is_wanted
            });
            *held(&theirs) = Call::Done(answer);
        });
        let _ = self.wait(place, limit);
        match std::mem::replace(&mut *held(&call), Call::Withdrawn) {
            Call::Done(answer) => Ok(answer),
            Call::Waits | Call::Withdrawn => Err(Silent { may_be_done: false }),
            Call::Taken => Err(Silent { may_be_done: true }),
        }
    }

    /// How long the disk has not answered.
    pub fn silent_for(&self) -> Duration {
        let began = self.line.queue().began;
        began.map_or(Duration::ZERO, |began| began.elapsed())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.line.queue().is_over = true;
        self.line.changed.notify_all();
    }
}

fn held<T>(call: &Mutex<Call<T>>) -> MutexGuard<'_, Call<T>> {
    call.lock().unwrap_or_else(PoisonError::into_inner)
}

enum Call<T> {
    Waits,
    /// The step is taken that cannot be taken back.
    Taken,
    /// Nobody waits for it any more.
    Withdrawn,
    Done(T),
}

/// See the module.
pub struct State {
    directory: PathBuf,
    /// Of files that are written as a whole, each of which waits for the disk.
    pub files: Writer,
    /// Of ledgers, which do not: what is in them outlasts the daemon, if not the host.
    pub ledgers: Writer,
    /// Of what is read: a disk may let itself be read and not be written.
    pub reads: Writer,
    /// The last ledger that was, or is to be, retired.
    retired: Mutex<Option<Place>>,
    /// The threads' own ones outlive it.
    _lock: Option<Lock>,
}

impl State {
    /// The directory, which is made if there is none, is ours from now on and until the last
    /// thing is written.
    pub fn open(directory: &Path) -> Result<Self, Error> {
        // To try to make one that is there waits for a disk that does not answer.
        if !directory.is_dir() {
            std::fs::create_dir_all(directory)
                .map_err(|cause| Error::file("create", directory, cause))?;
        }
        let lock = Lock::take(directory)?;
        let (files, files_apart) = Writer::start("state", lock.descriptor())?;
        let (ledgers, ledgers_apart) = Writer::start("ledgers", lock.descriptor())?;
        let (reads, reads_apart) = Writer::start("reads", lock.descriptor())?;
        // From here on the lock is open more than once, or until the process has ended.
        let _lock = if files_apart && ledgers_apart && reads_apart {
            Some(lock)
        } else {
            lock.keep();
            None
        };
        let noted = directory.to_owned();
        files.push(move || Lock::note_process(&noted));
        Ok(Self {
            directory: directory.to_owned(),
            files,
            ledgers,
            reads,
            retired: Mutex::default(),
            _lock,
        })
    }

    /// Its path.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Has a ledger put aside.
    pub fn retire(&self, job: impl FnOnce() + Send + 'static) {
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        *retired = Some(self.ledgers.push(job));
    }

    /// Until no ledger is to be put aside any more.
    pub fn wait_for_retired(&self, limit: Duration) -> Result<(), Silent> {
        let last = *self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = last.map_or(Ok(()), |place| self.ledgers.wait(place, limit));
        waited.map_err(|_| Silent { may_be_done: false })
    }

    /// How long the disk has not answered.
    pub fn silent_for(&self) -> Duration {
        [&self.files, &self.ledgers, &self.reads]
            .map(Writer::silent_for)
            .into_iter()
            .fold(Duration::ZERO, Duration::max)
    }

    /// Tells for ever when it does not answer, and when it has for a while.
    pub async fn watch(self: Arc<Self>) {
        // When it was silent first and last.
        let mut silent: Option<(Instant, Instant)> = None;
        loop {
            tokio::time::sleep(LOOK).await;
            let (now, silent_for) = (Instant::now(), self.silent_for());
            match &mut silent {
                None if silent_for > ANSWER_LIMIT => {
                    silent = Some((now - silent_for, now));
                    tracing::error!(
                        "the disk under the state directory does not answer: ledgers, accounts \
                         and changes of the fleet are not written, guests are served; next: \
                         look after {} and its disk",
                        self.directory.display()
                    );
                }
                Some((_, last)) if silent_for > ANSWER_LIMIT => *last = now,
                Some((since, last)) if last.elapsed() > CALM => {
                    tracing::info!(
                        "the disk under the state directory answers again, after {} s",
                        last.duration_since(*since).as_secs()
                    );
                    silent = None;
                }
                _ => {}
            }
        }
    }
}

/// Whoever sends a signal means the threads that wait for signals. What a thread does to itself
/// (a defect) still ends the process.
fn hear_no_signals() -> io::Result<()> {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: filled before it is read; the set lives until the end.
    let status = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        for own in [
            libc::SIGBUS,
            libc::SIGSEGV,
            libc::SIGFPE,
            libc::SIGILL,
            libc::SIGABRT,
        ] {
            libc::sigdelset(all.as_mut_ptr(), own);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), std::ptr::null_mut())
    };
    match status {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
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
        state.files.push(move || {
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
            state
                .files
                .push(move || std::fs::write(path, text).unwrap());
        }
        let found = state
            .files
            .call(LONG, move |_| std::fs::read_to_string(path).unwrap());
        assert_eq!(found.as_deref(), Ok("three"));
        state.files.push(|| panic!("a defect"));
        assert_eq!(state.files.call(LONG, |_| 7), Ok(7), "the others go on");
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
        let write_it = write(&path);
        let withdrawn = state.files.call(SHORT, move |_| write_it());
        assert_eq!(withdrawn, Err(Silent { may_be_done: false }));
        let last = state.files.push(write(&path.with_extension("pushed")));
        assert!(state.files.wait(last, SHORT).is_err());
        assert!(state.silent_for() >= 2 * SHORT);
        drop(thaws);
        state.files.wait(last, LONG).unwrap();
        assert!(!path.exists());
        assert!(path.with_extension("pushed").exists());
        assert_eq!(state.silent_for(), Duration::ZERO);
    }

    #[test]
    fn what_is_withdrawn_in_time_is_not_done_and_what_is_not_may_be() {
        let directory = tempfile::tempdir().unwrap();
        let state = State::open(directory.path()).unwrap();
        let limit = Duration::from_millis(200);
        for asks_first in [true, false] {
            let (thaws, frozen) = channel::<()>();
            let (said, was_wanted) = channel();
            let begun = state.files.call(limit, move |is_wanted| {
                let wait = || {
                    let _ = frozen.recv();
                };
                if !asks_first {
                    wait();
                }
                said.send(is_wanted()).unwrap();
                if asks_first {
                    wait();
                }
            });
            let may_be_done = asks_first;
            assert_eq!(begun, Err(Silent { may_be_done }));
            drop(thaws);
            assert_eq!(was_wanted.recv().unwrap(), asks_first);
            state.files.wait(state.files.last(), LONG).unwrap();
        }
    }

    #[test]
    fn signals_are_for_others() {
        let directory = tempfile::tempdir().unwrap();
        let state = State::open(directory.path()).unwrap();
        for writer in [&state.files, &state.ledgers, &state.reads] {
            let status = writer.call(LONG, |_| {
                std::fs::read_to_string("/proc/thread-self/status").unwrap()
            });
            let status = status.unwrap();
            let blocked = status
                .lines()
                .find_map(|line| line.strip_prefix("SigBlk:\t"));
            let blocked = u64::from_str_radix(blocked.unwrap(), 16).unwrap();
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGCHLD] {
                assert!(blocked >> (signal - 1) & 1 == 1, "{signal}: {status}");
            }
            assert!(blocked >> (libc::SIGBUS - 1) & 1 == 0);
        }
    }

    #[test]
    fn sockets_are_not_the_threads_and_the_lock_is_until_it_has_written() {
        let directory = tempfile::tempdir().unwrap();
        let other = std::fs::File::open("/dev/null").unwrap();
        let state = State::open(directory.path()).unwrap();
        let own = state.files.call(LONG, |_| {
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
