// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The life of a machine's socket: one monitor after the other.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use vhost::vhost_user::{Error as VhostUserError, Listener};
use vhost_user_backend::{ShutdownHandle, VhostUserDaemon, VhostUserHandlerError};
use vm_memory::{GuestAddressSpace, GuestMemoryAtomic, GuestMemoryBackend, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;

use crate::backend::Backend;
use crate::guest::Guest;
use crate::sockets;

/// A monitor that fails at once is not let in faster than this.
const PAUSE: Duration = Duration::from_millis(100);
/// So long a monitor may say nothing while another one waits. It has much to do between its
/// connection and its first question (QEMU allocates the guest's memory in between, for minutes
/// if that is large), but then nobody else wants to be served, as a rule: one who came and went
/// meanwhile, such as another daemon that looked whether somebody listens, still seems to wait.
pub const SILENCE: Duration = Duration::from_secs(60);
/// How often it is looked for somebody who waits, after that.
const LOOK: Duration = Duration::from_millis(500);

/// Why a monitor could not be served.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error("no descriptors for another connection: {0}")]
    Descriptors(#[from] io::Error),
    /// Its errors are none in the sense of the standard library.
    #[error("{0}")]
    Daemon(vhost_user_backend::Error),
}

/// Ends a server from another thread.
#[derive(Default)]
struct Ending {
    asked: AtomicBool,
    connection: Mutex<Option<ShutdownHandle>>,
}

impl Ending {
    fn is_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }

    /// What is to be shut down now, if something is.
    fn connection(&self, handle: Option<ShutdownHandle>) {
        let mut connection = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *connection = handle;
        if let (true, Some(connection)) = (self.is_asked(), &*connection) {
            connection.shutdown();
        }
    }

    fn ask(&self) {
        self.asked.store(true, Ordering::SeqCst);
        let connection = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(connection) = &*connection {
            connection.shutdown();
        }
    }
}

/// A machine's thread and socket.
pub struct Server {
    listener: UnixListener,
    ending: Arc<Ending>,
    thread: JoinHandle<()>,
}

/// Serves one monitor after the other until [`Server::stop`]; `patience`: see [`SILENCE`].
pub fn start(guest: Arc<Guest>, listener: UnixListener, patience: Duration) -> io::Result<Server> {
    let (ours, watched) = (listener.try_clone()?, listener.try_clone()?);
    let ending = Arc::new(Ending::default());
    let (name, seen) = (format!("vm {}", guest.name()), ending.clone());
    let run = move || run(&guest, Listener::from(listener), &watched, &seen, patience);
    let thread = thread::Builder::new().name(name).spawn(run)?;
    Ok(Server {
        listener: ours,
        ending,
        thread,
    })
}

impl Server {
    /// Lets the monitor go and gives the socket up. The guest keeps what it has.
    pub fn stop(self) {
        self.ending.ask();
        // SAFETY: the descriptor is ours. Whoever waits in accept() is woken.
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
        let _ = self.thread.join();
    }
}

fn run(
    guest: &Arc<Guest>,
    mut listener: Listener,
    watched: &UnixListener,
    ending: &Ending,
    patience: Duration,
) {
    while !ending.is_asked() {
        if let Err(cause) = serve_one(guest, &mut listener, watched, ending, patience)
            && !ending.is_asked()
        {
            guest.note(format!("cannot serve a monitor: {cause}"));
        }
        if !ending.is_asked() {
            thread::sleep(PAUSE);
        }
    }
}

/// One monitor, from its connection to its end. `watched` is the same listener.
fn serve_one(
    guest: &Arc<Guest>,
    listener: &mut Listener,
    watched: &UnixListener,
    ending: &Ending,
    patience: Duration,
) -> Result<(), ServeError> {
    let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
    let backend = Arc::new(Backend::new(guest.clone(), memory.clone())?);
    let name = format!("vhost {}", guest.name());
    let mut daemon =
        VhostUserDaemon::new(name, backend.clone(), memory.clone()).map_err(ServeError::Daemon)?;
    let handlers = daemon.get_epoll_handlers();
    let mut for_a_ring = false;
    let worked = (|| {
        let wake = (backend.wake().as_raw_fd(), backend.wake_event());
        for handler in &handlers {
            for (fd, event) in [wake, backend.timer_event()] {
                handler.register_listener(fd, EventSet::IN, event)?;
            }
        }
        let silence = backend.silence();
        daemon.start(listener).map_err(ServeError::Daemon)?;
        guest.connected(backend.wake());
        let connection = daemon.shutdown_handle();
        ending.connection(connection.clone());
        let ended = thread::scope(|scope| {
            if let Some(connection) = connection {
                let watch =
                    move || hang_up_on_silence(guest, watched, &silence, &connection, patience);
                // Who cannot be watched is served even so.
                let _ = thread::Builder::new()
                    .name("silence".to_owned())
                    .spawn_scoped(scope, watch);
            }
            let ended = daemon.wait();
            backend.end_silence();
            ended
        });
        ending.connection(None);
        match ended {
            // A monitor that goes away in the middle of a message is gone too.
            Ok(()) => {}
            Err(error) => {
                guest.note(format!("connection ended: {error}"));
                // Of one who never had memory to hand over no guest has set up anything.
                let has_memory = memory.memory().num_regions() > 0;
                for_a_ring = has_memory && is_of_a_ring(&error);
            }
        }
        Ok(())
    })();
    for handler in &handlers {
        handler.send_exit_event();
    }
    drop(daemon);
    drop(handlers);
    // Only when the worker is gone can nobody speak for the old guest any more.
    if !close_after_threads(backend) {
        guest.note("a thread did not end in a second".to_owned());
    }
    guest.disconnected();
    if for_a_ring {
        guest.ring_refused();
    }
    worked
}

/// The guest has set up a ring that cannot be: its monitor passes on what it says, and what the
/// vhost-user side does not take ends the connection.
fn is_of_a_ring(error: &vhost_user_backend::Error) -> bool {
    let vhost_user_backend::Error::HandleRequest(error) = error else {
        return false;
    };
    match error {
        // Misaligned; too long; what it has used cannot be read.
        VhostUserError::InvalidMessage
        | VhostUserError::InvalidParam
        | VhostUserError::BackendInternalError => true,
        // Not in guest memory.
        VhostUserError::ReqHandlerError(cause) => {
            (cause.get_ref()).is_some_and(|cause| cause.is::<VhostUserHandlerError>())
        }
        _ => false,
    }
}

/// Whoever connects and says nothing would keep the machine's monitor out for ever.
fn hang_up_on_silence(
    guest: &Guest,
    listener: &UnixListener,
    silence: &Receiver<()>,
    connection: &ShutdownHandle,
    patience: Duration,
) {
    let mut wait = patience;
    while silence.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
        if sockets::is_wanted(listener) {
            guest.note(format!(
                "hung up on a monitor that said nothing for {patience:?}: another one waits"
            ));
            return connection.shutdown();
        }
        wait = LOOK;
    }
}

/// The event loop never closes the descriptor that ends it. It is ours to close
/// as soon as nobody polls it, which is when the backend has no other owner.
fn close_after_threads(backend: Arc<Backend>) -> bool {
    for _ in 0..100 {
        if Arc::strong_count(&backend) == 1 {
            if let Some(fd) = backend.take_exit_fd() {
                // SAFETY: made by exit_event(), given up by the event loop, and
                // taken out here once.
                drop(unsafe { OwnedFd::from_raw_fd(fd) });
            }
            return true;
        }
        thread::sleep(Duration::from_millis(10));
    }
    // Leaking one descriptor is better than closing one that is in use.
    false
}

#[cfg(test)]
mod tests;
