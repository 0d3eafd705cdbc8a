// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A worker: serves the device of one guest, and does nothing else. It is a process of its
//! own, confined before it hears of any guest, or a thread of the daemon for debugging.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{io, panic};

use demeter_balloon::view::Confinement;

use crate::channel::{Channel, ChannelError, MAX_FDS};
use crate::confine::confine;
use crate::guest::{Guest, Which};
use crate::lost;
use crate::message::{Begin, Order, Word};
use crate::serve;
use crate::tiers::{Files, Known};

/// So long the coordinator may look for files: somebody's program may serve them.
const WHICH_LIMIT: Duration = Duration::from_secs(10);

/// Why a worker ends.
#[derive(Debug, thiserror::Error)]
enum WorkerError {
    #[error("{0}")]
    Channel(#[from] ChannelError),
    #[error("its first message is not BEGIN with a socket")]
    Begin,
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    #[error("{0}")]
    Signals(#[from] crate::error::Error),
}

/// A process whose standard input leads to its coordinator.
pub fn process() -> ExitCode {
    // SAFETY: closes descriptors that this process has inherited and knows nothing of.
    unsafe { libc::close_range(3, u32::MAX, 0) };
    // SAFETY: the number of the standard input; nobody else in this process uses it.
    let link = Arc::new(Channel::from_fd(unsafe { OwnedFd::from_raw_fd(0) }));
    let last = link.clone();
    panic::set_hook(Box::new(move |panic| {
        let _ = last.send(&Word::Failed(panic.to_string()), &[]);
        // SAFETY: ends the process; what other threads do does not matter any more.
        unsafe { libc::_exit(101) };
    }));
    // SAFETY: asks for a number.
    let parent = unsafe { libc::getppid() };
    let worked = lost::install()
        .map_err(WorkerError::from)
        .and_then(|()| begin(&link, |begin| confine(begin.uid, parent)))
        .and_then(|(guest, listener, known)| work(&link, &guest, listener, &known, |_| {}));
    match worked {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = link.send(&Word::Failed(error.to_string()), &[]);
            ExitCode::FAILURE
        }
    }
}

/// The same in a thread of the coordinator, which has no confinement.
pub fn in_thread(link: OwnedFd) -> io::Result<JoinHandle<()>> {
    let link = Arc::new(Channel::from_fd(link));
    thread::Builder::new()
        .name("worker".to_owned())
        .spawn(move || {
            let worked =
                begin(&link, |_| Confinement::default()).and_then(|(guest, listener, known)| {
                    work(&link, &guest, listener, &known, serve::Server::stop)
                });
            if let Err(error) = worked {
                let _ = link.send(&Word::Failed(error.to_string()), &[]);
            }
        })
}

type Answers = Sender<Vec<Known>>;

/// Hears of the guest, is confined, and says so.
fn begin(
    link: &Arc<Channel>,
    confine: impl FnOnce(&Begin) -> Confinement,
) -> Result<(Arc<Guest>, UnixListener, Answers), WorkerError> {
    let (order, mut fds) = link.receive::<Order>()?.ok_or(WorkerError::Begin)?;
    let (Order::Begin(begin), Some(listener)) = (order, fds.pop()) else {
        return Err(WorkerError::Begin);
    };
    let confinement = confine(&begin);
    let (answers, answered) = channel();
    let guest = Guest::new(begin, which(link.clone(), answered));
    link.send(&Word::Ready(confinement), &[])?;
    Ok((Arc::new(guest), UnixListener::from(listener), answers))
}

fn which(link: Arc<Channel>, answered: Receiver<Vec<Known>>) -> Which {
    let answered = Mutex::new(answered);
    Box::new(move || {
        let answered = answered.lock().unwrap_or_else(PoisonError::into_inner);
        // Of a question that was given up.
        while answered.try_recv().is_ok() {}
        link.send(&Word::Which, &[]).ok()?;
        answered.recv_timeout(WHICH_LIMIT).ok()
    })
}

/// Serves until the coordinator goes away.
fn work(
    link: &Arc<Channel>,
    guest: &Arc<Guest>,
    listener: UnixListener,
    answers: &Answers,
    stop: impl FnOnce(serve::Server),
) -> Result<(), WorkerError> {
    let (telling, told) = (guest.clone(), link.clone());
    let teller = thread::Builder::new()
        .name("teller".to_owned())
        .spawn(move || tell_all(&telling, &told))
        .map_err(WorkerError::Thread)?;
    let server =
        serve::start(guest.clone(), listener, serve::SILENCE).map_err(WorkerError::Thread)?;
    let obeyed = obey(link, guest, answers);
    stop(server);
    guest.end();
    obeyed?;
    link.end();
    let _ = teller.join();
    Ok(())
}

fn obey(link: &Channel, guest: &Guest, answers: &Answers) -> Result<(), WorkerError> {
    while let Some((order, _)) = link.receive::<Order>()? {
        match order {
            Order::Begin(_) => return Err(WorkerError::Begin),
            Order::Target { node, wish } => guest.ask(node, wish),
            Order::Statistics => guest.ask_statistics(),
            Order::Look(number) => guest.look(number),
            Order::Known(known) => {
                // Nobody waits any more if that fails.
                let _ = answers.send(known);
            }
        }
    }
    Ok(())
}

/// Tells until the end. A worker that can tell no more serves no more: its successor can.
fn tell_all(guest: &Guest, link: &Channel) {
    if let Err(error) = tell(guest, link, hand_over) {
        // The coordinator may be gone, or does not read.
        let _ = link.send_now(&Word::Failed(error.to_string()), &[]);
        link.end();
    }
}

/// Tells the coordinator what happens. Files that cannot be handed over now (there may be too
/// many on their way) are tried again with the next news: nobody measures them until then.
fn tell(
    guest: &Guest,
    link: &Channel,
    hand_over: impl Fn(&Files, &Channel) -> Result<(), ChannelError>,
) -> Result<(), ChannelError> {
    let mut last = Instant::now();
    let mut is_noted = false;
    while let Some((news, files)) = guest.news(last) {
        last = Instant::now();
        link.send(&Word::News(Box::new(news)), &[])?;
        let Some(files) = files else {
            continue;
        };
        match hand_over(&files, link) {
            Ok(()) => is_noted = false,
            Err(error) => {
                guest.keep(files);
                if !std::mem::replace(&mut is_noted, true) {
                    guest.note(format!("its memory cannot be measured for now: {error}"));
                }
            }
        }
    }
    Ok(())
}

fn hand_over(files: &Files, link: &Channel) -> Result<(), ChannelError> {
    let all: Vec<(u16, &File)> = (files.tiers().iter().enumerate())
        .flat_map(|(node, files)| files.iter().map(move |file| (node as u16, &**file)))
        .collect();
    for (number, some) in all.chunks(MAX_FDS).enumerate() {
        let nodes = some.iter().map(|(node, _)| *node).collect();
        let fds: Vec<BorrowedFd<'_>> = some.iter().map(|(_, file)| file.as_fd()).collect();
        let first = number == 0;
        link.send(&Word::Files { nodes, first }, &fds)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    use crate::message::{Heard, MAX_HEARD, MAX_TEXT};
    use crate::pair::driven;

    #[test]
    fn a_worker_that_can_tell_no_more_ends() {
        let directory = tempfile::tempdir().unwrap();
        let guest = driven(directory.path(), "a").guest;
        let (link, theirs) = Channel::pair().unwrap();
        let theirs = Channel::from_fd(theirs);
        // As text it is more than a message holds.
        for _ in 0..MAX_HEARD {
            guest.note("\"".repeat(MAX_TEXT));
        }
        tell_all(&guest, &link);
        let said = theirs.receive::<Word>().unwrap().unwrap().0;
        assert!(matches!(said, Word::Failed(_)), "{said:?}");
        assert!(theirs.receive::<Word>().unwrap().is_none());
    }

    #[test]
    fn files_that_cannot_be_handed_over_are_tried_again() {
        let directory = tempfile::tempdir().unwrap();
        let guest = driven(directory.path(), "a").guest;
        guest.set_memory(&[]);
        let (link, theirs) = Channel::pair().unwrap();
        let theirs = Channel::from_fd(theirs);
        let tries = Cell::new(0);
        tell(&guest, &link, |_, _| {
            tries.set(tries.get() + 1);
            if tries.get() == 1 {
                return Err(io::Error::from_raw_os_error(libc::ETOOMANYREFS).into());
            }
            guest.end();
            Ok(())
        })
        .unwrap();
        assert_eq!(tries.get(), 2);
        link.end();
        let mut notes = 0;
        while let Some((Word::News(news), _)) = theirs.receive::<Word>().unwrap() {
            notes += (news.heard.iter())
                .filter(|heard| matches!(heard, Heard::Note(_)))
                .count();
        }
        assert_eq!(notes, 1);
    }
}
