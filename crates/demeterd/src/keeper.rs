// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keeps a worker for a machine: starts it, hears it, and starts another one when it dies.
//! The socket is made here and handed over, so that it outlives workers.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::channel::Channel;
use crate::error::Error;
use crate::message::{Order, Word};
use crate::sockets::{self, Access};
use crate::spec::{self, Socket};
use crate::vm::{Vm, WordError};
use crate::{replug, worker};

/// A worker that lived for so long is followed by another one at once.
pub const YOUNG: Duration = Duration::from_secs(10);
/// Before the next one, and at most after several that died young.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(10);
/// So long after its end of the channel a worker's status is waited for.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// So long a worker may take to end before it is left behind.
const STOPPING_LIMIT: Duration = Duration::from_secs(5);
/// Users of workers, where the daemon may choose: of those that distributions leave alone.
const FIRST_UID: u32 = 1_900_000_000;
const UIDS: u32 = 1 << 16;

/// What serves the device of a guest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// A confined process for each guest.
    #[default]
    Process,
    /// Threads of the daemon, for debugging.
    None,
}

/// The file of a keeper's socket.
#[derive(Default)]
struct SocketFile {
    /// None: what is there, if anything, is somebody else's.
    ours: Option<OwnFile>,
    /// For good: it is not made anew.
    is_removed: bool,
}

/// The file of a socket that we made: goes with this, but not what somebody puts in its place.
struct OwnFile {
    path: PathBuf,
    /// Device and inode, which no other file gets while the socket is open.
    identity: (u64, u64),
}

impl OwnFile {
    /// What has just been made there.
    fn at(path: PathBuf) -> Option<Self> {
        let identity = identity_of(&path)?;
        Some(Self { path, identity })
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        if identity_of(&self.path) == Some(self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity_of(path: &Path) -> Option<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

#[derive(Default)]
struct Stopping {
    /// Held while it is made anew or removed.
    file: Mutex<SocketFile>,
    state: Mutex<(bool, Option<Arc<Channel>>)>,
    changed: Condvar,
}

impl Stopping {
    /// On a socket with that file.
    fn of(ours: Option<OwnFile>) -> Self {
        let is_removed = false;
        Self {
            file: Mutex::new(SocketFile { ours, is_removed }),
            ..Self::default()
        }
    }

    fn file(&self) -> MutexGuard<'_, SocketFile> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to be ended when somebody stops us; false: somebody has.
    fn link(&self, link: Option<Arc<Channel>>) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.1 = link;
        !state.0
    }

    fn ask(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 = true;
        if let Some(link) = &state.1 {
            link.end();
        }
        self.changed.notify_all();
    }

    fn is_asked(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    fn wait(&self, limit: Duration) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = (self.changed).wait_timeout_while(state, limit, |state| !state.0);
    }
}

/// A machine's socket and worker.
pub struct Keeper {
    stopping: Arc<Stopping>,
    thread: JoinHandle<()>,
}

/// How workers are kept.
#[derive(Debug, Clone, Copy)]
pub struct Keeping {
    /// What they are.
    pub isolation: Isolation,
    /// See [`YOUNG`].
    pub young: Duration,
}

/// A machine's socket before somebody serves on it. Its file goes with it.
pub struct Listener {
    socket: UnixListener,
    file: Option<OwnFile>,
}

/// Makes its socket, or takes the one that it was given.
pub fn listen(spec: &spec::Vm, access: Access) -> Result<Listener, Error> {
    let (socket, file) = match &spec.socket {
        Socket::Path(path) => (sockets::listen(path, access)?, OwnFile::at(path.clone())),
        Socket::Descriptor(fd) => (sockets::inherited(*fd)?, None),
    };
    Ok(Listener { socket, file })
}

/// Keeps a worker that serves one monitor after the other until [`Keeper::stop`].
pub fn start(
    vm: Arc<Vm>,
    listener: Listener,
    access: Access,
    keeping: Keeping,
) -> Result<Keeper, Error> {
    let Listener { socket, file } = listener;
    let stopping = Arc::new(Stopping::of(file));
    let seen = stopping.clone();
    let thread = thread::Builder::new()
        .name(format!("keeper {}", vm.spec.name))
        .spawn(move || keep(&vm, socket, access, keeping, &seen))
        .map_err(|cause| Error::System {
            action: "start a thread",
            cause,
        })?;
    Ok(Keeper { stopping, thread })
}

impl Keeper {
    /// Removes the socket's file, while whoever would put another one there sees that it is in
    /// use, or waits for our caller: afterwards the file may be somebody else's. Nor is it made
    /// anew for another worker then.
    pub fn remove_file(&self) {
        let mut file = self.stopping.file();
        file.is_removed = true;
        file.ours = None;
    }

    /// Lets the monitor go and gives the socket up. The guest keeps what it has.
    pub fn stop(self) {
        self.remove_file();
        self.stopping.ask();
        // A file of guest memory that is served by somebody's program (FUSE) may never answer.
        let end = Instant::now() + STOPPING_LIMIT;
        while !self.thread.is_finished() {
            if Instant::now() > end {
                let name = self.thread.thread().name().unwrap_or("a machine");
                tracing::error!(
                    "{name} does not end: a file of its memory does not answer; next: look at \
                     that file's server"
                );
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
        let _ = self.thread.join();
    }
}

/// One worker after the other.
fn keep(
    vm: &Arc<Vm>,
    mut listener: UnixListener,
    access: Access,
    keeping: Keeping,
    stopping: &Stopping,
) {
    let mut pause = FIRST_PAUSE;
    while !stopping.is_asked() {
        let born = Instant::now();
        let (why, problem) = match live_on(vm, &mut listener, access, keeping, stopping) {
            Ok(Some(why)) => (why, None),
            // Whoever has removed the file is about to stop us.
            Ok(None) => {
                stopping.wait(LAST_PAUSE);
                continue;
            }
            Err(error) => {
                let problem = format!("cannot start a worker: {error}");
                (problem.clone(), Some(problem))
            }
        };
        stopping.link(None);
        if stopping.is_asked() {
            return vm.worker_gone(None);
        }
        vm.worker_gone(Some(&why));
        if let Some(problem) = problem {
            vm.set_problem(&problem);
        }
        pause = if born.elapsed() >= keeping.young {
            FIRST_PAUSE
        } else {
            (pause * 2).min(LAST_PAUSE)
        };
        stopping.wait(pause);
        // The monitor's device is cut off, and will be as long as nobody plugs it in anew.
        if !stopping.is_asked() {
            replug::after_death(vm.clone());
        }
    }
}

/// The life of one worker, on a socket that works whatever the last one did to it. None: that
/// socket's file was removed for good.
fn live_on(
    vm: &Arc<Vm>,
    listener: &mut UnixListener,
    access: Access,
    keeping: Keeping,
    stopping: &Stopping,
) -> Result<Option<String>, Error> {
    let system = |action| move |cause| Error::System { action, cause };
    (listener.set_nonblocking(false)).map_err(system("mend a socket"))?;
    if sockets::is_shut(listener) {
        *listener = match &vm.spec.socket {
            Socket::Path(path) => {
                let mut file = stopping.file();
                if file.is_removed {
                    return Ok(None);
                }
                let made = sockets::listen(path, access)?;
                file.ours = OwnFile::at(path.clone());
                made
            }
            Socket::Descriptor(fd) => return Err(sockets::SocketError::NotListening(*fd).into()),
        };
    }
    live(vm, listener, keeping.isolation, stopping)
        .map(Some)
        .map_err(system("start a process"))
}

/// A worker that is there.
enum Life {
    Process(Child),
    Thread(JoinHandle<()>),
}

impl Life {
    fn pid(&self) -> Option<u32> {
        match self {
            Self::Process(child) => Some(child.id()),
            Self::Thread(_) => None,
        }
    }

    /// Its end, after so long; how it was, if that says something.
    fn end(self, patience: Duration) -> Option<String> {
        match self {
            Self::Process(mut child) => {
                let limit = Instant::now() + patience;
                let mut before = child.try_wait().ok().flatten();
                while before.is_none() && Instant::now() < limit {
                    thread::sleep(Duration::from_millis(1));
                    before = child.try_wait().ok().flatten();
                }
                // Of a process that is gone there is nothing to end.
                let _ = child.kill();
                let after = child.wait().ok();
                let status =
                    before.or(after.filter(|status| status.signal() != Some(libc::SIGKILL)));
                status.and_then(in_words)
            }
            Self::Thread(thread) => {
                let _ = thread.join();
                None
            }
        }
    }
}

fn in_words(status: ExitStatus) -> Option<String> {
    match (status.signal(), status.code()) {
        (Some(libc::SIGSYS), _) => {
            Some("it was ended for a system call that it has no use for".to_owned())
        }
        (Some(signal), _) => Some(format!("it was ended by signal {signal}")),
        (None, Some(0)) => None,
        (None, code) => Some(format!("it ended with status {}", code.unwrap_or(-1))),
    }
}

/// The life of one worker. Why it ended.
fn live(
    vm: &Arc<Vm>,
    listener: &UnixListener,
    isolation: Isolation,
    stopping: &Stopping,
) -> io::Result<String> {
    let (link, theirs) = Channel::pair()?;
    let link = Arc::new(link);
    let (life, uid) = match isolation {
        Isolation::Process => (Life::Process(spawn(theirs)?), uid()),
        Isolation::None => (Life::Thread(worker::in_thread(theirs)?), None),
    };
    if stopping.link(Some(link.clone())) {
        let told = vm.begin(link.clone(), life.pid(), uid, |begin| {
            link.send_now(&Order::Begin(begin), &[listener.as_fd()])
        });
        let said = told.map_err(WordError::from).and_then(|()| hear(vm, &link));
        link.end();
        // One that has closed its end is about to tell by its status why.
        let patience = match said {
            Ok(()) if !stopping.is_asked() => LAST_WORDS,
            _ => Duration::ZERO,
        };
        let ended = life.end(patience);
        return Ok(match (said, ended) {
            (Err(error @ (WordError::Failed(_) | WordError::News(_) | WordError::Mute)), _) => {
                error.to_string()
            }
            (_, Some(ended)) => ended,
            (Err(error), None) => error.to_string(),
            (Ok(()), None) => "it ended by itself".to_owned(),
        });
    }
    link.end();
    life.end(Duration::ZERO);
    Ok(String::new())
}

/// Until it ends or says what it should not.
fn hear(vm: &Vm, link: &Channel) -> Result<(), WordError> {
    while let Some((word, fds)) = link.receive::<Word>()? {
        vm.hear(word, fds)?;
    }
    vm.heard_all()
}

/// This program again, which knows nothing but its end of the channel.
fn spawn(link: OwnedFd) -> io::Result<Child> {
    Command::new("/proc/self/exe")
        .arg("--worker")
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(link))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

/// For the next worker, if we may choose.
fn uid() -> Option<u32> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // SAFETY: asks for a number.
    let is_root = unsafe { libc::geteuid() } == 0;
    is_root.then(|| {
        // Two daemons begin at different ones.
        let offset = std::process::id().wrapping_mul(257);
        FIRST_UID + offset.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % UIDS
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::os::fd::AsRawFd;

    use crate::pair::Pair;

    #[test]
    fn whoever_comes_while_a_machine_ends_keeps_its_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let _first = sockets::listen(&path, Access::OWNER).unwrap();
        let stopping = Arc::new(Stopping::of(OwnFile::at(path.clone())));
        let keeper = Keeper {
            stopping: stopping.clone(),
            thread: thread::spawn(|| ()),
        };
        // Nobody can be asked to end as long as this is held.
        let held = stopping.state.lock().unwrap();
        let stopper = thread::spawn(move || keeper.stop());
        let began = Instant::now();
        while path.exists() {
            let is_late = began.elapsed() > Duration::from_secs(20);
            assert!(!is_late, "the file goes after its listener");
            thread::sleep(Duration::from_millis(1));
        }
        let _second = sockets::listen(&path, Access::OWNER).unwrap();
        drop(held);
        stopper.join().unwrap();
        assert!(path.exists());
    }

    const KEEPING: Keeping = Keeping {
        isolation: Isolation::None,
        young: YOUNG,
    };

    /// A machine whose worker has died, and has left its socket as none should.
    struct Left {
        directory: tempfile::TempDir,
        listener: UnixListener,
        stopping: Arc<Stopping>,
        keeper: Keeper,
        vm: Arc<Vm>,
    }

    impl Left {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("socket");
            let line = format!("a,socket={},fmem=/f", path.display());
            let description = spec::Description::parse(&line).unwrap();
            let spec = description.finish(&BTreeMap::new()).unwrap();
            let listener = sockets::listen(&path, Access::OWNER).unwrap();
            // SAFETY: a descriptor that is open.
            unsafe { libc::shutdown(listener.as_raw_fd(), libc::SHUT_RD) };
            let stopping = Arc::new(Stopping::of(OwnFile::at(path)));
            let keeper = Keeper {
                stopping: stopping.clone(),
                thread: thread::spawn(|| ()),
            };
            Self {
                directory,
                listener,
                stopping,
                keeper,
                vm: Pair::bare(spec, demeter_balloon::Parameters::default()).vm,
            }
        }

        fn path(&self) -> PathBuf {
            self.directory.path().join("socket")
        }

        fn live_on(&mut self) -> Result<Option<String>, Error> {
            let (vm, listener) = (&self.vm, &mut self.listener);
            live_on(vm, listener, Access::OWNER, KEEPING, &self.stopping)
        }
    }

    #[test]
    fn a_socket_that_was_removed_is_not_made_anew_for_another_worker() {
        let left = Left::new();
        let path = left.path();
        let (mut listener, stopping, keeper) = (left.listener, left.stopping, left.keeper);
        // Who removes the machine waits where its file is just being made.
        let making = stopping.file();
        let remover = thread::spawn(move || keeper.remove_file());
        thread::sleep(Duration::from_millis(50));
        assert!(path.exists() && !remover.is_finished());
        drop(making);
        remover.join().unwrap();
        assert!(!path.exists());
        // The keeper has not heard of the end yet.
        let (seen, vm) = (stopping.clone(), left.vm);
        let life = thread::spawn(move || {
            live_on(&vm, &mut listener, Access::OWNER, KEEPING, &seen).map_err(drop)
        });
        let began = Instant::now();
        while !life.is_finished() {
            assert!(!path.exists(), "it is there again");
            assert!(began.elapsed() < Duration::from_secs(20), "it is served");
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(life.join().unwrap(), Ok(None));
        assert!(!path.exists());
    }

    #[test]
    fn what_somebody_else_has_put_in_the_place_of_a_socket_stays() {
        // Found in the way, or not looked at before the machine is removed.
        for tried in [true, false] {
            stays_in_its_place(tried);
        }
    }

    fn stays_in_its_place(tried: bool) {
        let mut left = Left::new();
        let path = left.path();
        let _theirs = sockets::listen(&path, Access::OWNER).unwrap();
        if tried {
            assert!(left.live_on().is_err());
        }
        left.keeper.remove_file();
        assert!(path.exists());
        // Nor is that machine served any more.
        assert_eq!(left.live_on().map_err(drop), Ok(None));
        assert!(path.exists());
    }

    #[test]
    fn a_socket_is_made_anew_when_what_was_in_its_way_is_gone() {
        let mut left = Left::new();
        let path = left.path();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "theirs").unwrap();
        assert!(left.live_on().is_err());
        std::fs::remove_file(&path).unwrap();
        let Left {
            mut listener,
            stopping,
            keeper,
            vm,
            directory: _directory,
        } = left;
        let life = thread::spawn(move || {
            live_on(&vm, &mut listener, Access::OWNER, KEEPING, &stopping).map_err(drop)
        });
        let began = Instant::now();
        while !path.exists() {
            assert!(!life.is_finished(), "it is not served");
            assert!(began.elapsed() < Duration::from_secs(20), "it is not there");
            thread::sleep(Duration::from_millis(1));
        }
        // It is ours again, and goes with its keeper.
        keeper.stop();
        assert!(!path.exists());
        assert!(life.join().unwrap().is_ok_and(|why| why.is_some()));
    }
}
