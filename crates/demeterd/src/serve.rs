// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The life of a machine's socket: one monitor after the other.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use vhost::vhost_user::Listener;
use vhost_user_backend::VhostUserDaemon;
use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;

use crate::backend::Backend;
use crate::error::Error;
use crate::spec::Socket;
use crate::vm::Vm;

/// A monitor that fails at once is not let in faster than this.
const PAUSE: Duration = Duration::from_millis(100);

/// Listens; the thread serves until the process ends.
pub fn start(vm: Arc<Vm>) -> Result<(), Error> {
    let listener = match &vm.spec.socket {
        Socket::Path(path) => {
            let listener = Listener::new(path, true).map_err(|error| {
                Error::file("listen on", path, std::io::Error::other(error.to_string()))
            })?;
            // Who can connect decides over the guest's memory.
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
                .map_err(|cause| Error::file("set the mode of", path, cause))?;
            listener
        }
        Socket::Descriptor(fd) => inherited(*fd)?,
    };
    thread::Builder::new()
        .name(format!("vm {}", vm.spec.name))
        .spawn(move || run(&vm, listener))
        .map_err(|cause| Error::System {
            action: "start a thread",
            cause,
        })?;
    Ok(())
}

/// `--fd`: a listening socket that our parent made.
fn inherited(fd: i32) -> Result<Listener, Error> {
    let mut listens: libc::c_int = 0;
    let mut length = size_of_val(&listens) as libc::socklen_t;
    // SAFETY: both pointers are to locals of the sizes that are said.
    let status = unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_ACCEPTCONN,
            (&raw mut listens).cast(),
            &raw mut length,
        )
    };
    if status != 0 || listens == 0 {
        return Err(Error::Usage {
            cause: format!("descriptor {fd} is not a socket that listens"),
            next: "give a listening Unix socket with --fd, or a path with --socket-path".into(),
        });
    }
    // SAFETY: it is a socket, and the argument says that it is ours from now on.
    Ok(unsafe { Listener::from_raw_fd(fd) })
}

fn run(vm: &Arc<Vm>, mut listener: Listener) {
    loop {
        if let Err(cause) = serve_one(vm, &mut listener) {
            tracing::error!(vm = vm.spec.name, "{cause}");
        }
        thread::sleep(PAUSE);
    }
}

/// One monitor, from its connection to its end.
fn serve_one(vm: &Arc<Vm>, listener: &mut Listener) -> Result<(), String> {
    let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
    let backend = Backend::new(vm.clone(), memory.clone()).map_err(|error| error.to_string())?;
    let backend = Arc::new(backend);
    let name = format!("vhost {}", vm.spec.name);
    let mut daemon =
        VhostUserDaemon::new(name, backend.clone(), memory).map_err(|error| error.to_string())?;
    let handlers = daemon.get_epoll_handlers();
    let worked = (|| {
        for handler in &handlers {
            handler
                .register_listener(
                    backend.wake().as_raw_fd(),
                    EventSet::IN,
                    backend.wake_event(),
                )
                .map_err(|error| error.to_string())?;
        }
        daemon.start(listener).map_err(|error| error.to_string())?;
        vm.connected(backend.wake());
        match daemon.wait() {
            // A monitor that goes away in the middle of a message is gone too.
            Ok(()) => {}
            Err(error) => tracing::info!(vm = vm.spec.name, "connection ended: {error}"),
        }
        Ok(())
    })();
    for handler in &handlers {
        handler.send_exit_event();
    }
    drop(daemon);
    drop(handlers);
    // Only when the worker is gone can nobody speak for the old guest any more.
    close_after_workers(backend);
    vm.disconnected();
    worked
}

/// The event loop never closes the descriptor that ends it. It is ours to close
/// as soon as nobody polls it, which is when the backend has no other owner.
fn close_after_workers(backend: Arc<Backend>) {
    for _ in 0..100 {
        if Arc::strong_count(&backend) == 1 {
            if let Some(fd) = backend.take_exit_fd() {
                // SAFETY: made by exit_event(), given up by the event loop, and
                // taken out here once.
                drop(unsafe { OwnedFd::from_raw_fd(fd) });
            }
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    // Leaking one descriptor is better than closing one that is in use.
    tracing::warn!("a worker did not end in a second");
}
