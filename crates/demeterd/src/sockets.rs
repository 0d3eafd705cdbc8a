// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Unix sockets that we listen on, and who may connect.

use std::ffi::CString;
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io, ptr};

use listenfd::ListenFd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// A file or directory of that name.
    #[error("{} exists and is not a socket", .0.display())]
    NoSocket(PathBuf),
    /// It is in use.
    #[error("another daemon listens on {}", .0.display())]
    InUse(PathBuf),
    /// The system refused.
    #[error("cannot {action} {}: {cause}", path.display())]
    System {
        /// Verb.
        action: &'static str,
        /// The socket.
        path: PathBuf,
        /// The system's words.
        cause: io::Error,
    },
    /// `--fd` of something else, or a socket unit of another kind.
    #[error("descriptor {0} is not a Unix socket that listens")]
    NotListening(RawFd),
    /// `LISTEN_FDS` and its like.
    #[error("cannot tell what the service manager has passed: {0}")]
    Passed(io::Error),
    /// No such group.
    #[error("no group '{0}' on this host")]
    Group(String),
    /// Not an octal mode.
    #[error("'{0}' is not a mode of a socket")]
    Mode(String),
}

impl SocketError {
    /// What the operator should do.
    pub fn next(&self) -> &'static str {
        match self {
            Self::NoSocket(_) => "choose another path, or remove what is there",
            Self::InUse(_) => "stop it, or choose another path",
            Self::System { action, cause, .. } => system_next(action, cause.kind()),
            Self::NotListening(_) => "give a listening Unix socket, or a path with --socket-path",
            Self::Passed(_) => {
                "unset LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES, or set all of them"
            }
            Self::Group(_) => "choose one from `getent group`, or give its number",
            Self::Mode(_) => "write it in octal, for example 0660",
        }
    }
}

/// What to do about the system's refusal.
fn system_next(action: &str, cause: io::ErrorKind) -> &'static str {
    match (action, cause) {
        (SET_GROUP, io::ErrorKind::PermissionDenied) => {
            "let the daemon's user be in that group (SupplementaryGroups= of the service)"
        }
        (LOOK_AT, io::ErrorKind::PermissionDenied) => {
            "another user's daemon may listen there: stop that one, or choose another path"
        }
        (_, io::ErrorKind::PermissionDenied) => {
            "let the daemon's user write to its directory, or choose another path"
        }
        (_, io::ErrorKind::NotFound) => "make its directory, or choose another path",
        _ => "check the path and its permissions",
    }
}

/// Of [`SocketError::System`].
const SET_GROUP: &str = "set the group of";
const LOOK_AT: &str = "look at";

/// So long a daemon that was ended may still be seen.
const ENDING_LIMIT: Duration = Duration::from_secs(1);

/// Who may connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Mode of the file.
    pub mode: u32,
    /// Group of the file; none: ours.
    pub group: Option<u32>,
}

impl Access {
    /// The owner, and nobody else.
    pub const OWNER: Self = Self {
        mode: 0o600,
        group: None,
    };

    /// From `0660` and `kvm`, or the group's number.
    pub fn parse(mode: Option<&str>, group: Option<&str>) -> Result<Self, SocketError> {
        let mode = match mode {
            // Without a mode a group would be of no use.
            None if group.is_some() => 0o660,
            None => Self::OWNER.mode,
            Some(text) => u32::from_str_radix(text, 8)
                .ok()
                .filter(|mode| mode & !0o777 == 0 && mode & 0o600 == 0o600)
                .ok_or_else(|| SocketError::Mode(text.to_owned()))?,
        };
        let group = group.map(group_id).transpose()?;
        Ok(Self { mode, group })
    }
}

fn group_id(name: &str) -> Result<u32, SocketError> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let unknown = || SocketError::Group(name.to_owned());
    let text = CString::new(name).map_err(|_| unknown())?;
    let mut entry = std::mem::MaybeUninit::<libc::group>::uninit();
    let mut buffer = vec![0; 64 << 10];
    let mut found = ptr::null_mut();
    // SAFETY: name is terminated, buffer is as long as is said, and entry and found
    // live until the end.
    let status = unsafe {
        libc::getgrnam_r(
            text.as_ptr(),
            entry.as_mut_ptr(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            &raw mut found,
        )
    };
    if status != 0 || found.is_null() {
        return Err(unknown());
    }
    // SAFETY: found is not null, so entry was filled.
    Ok(unsafe { (*found).gr_gid })
}

/// Makes the socket. What an earlier daemon left there is replaced; anything that
/// is not a socket, or that somebody listens on, is not.
pub fn listen(path: &Path, access: Access) -> Result<UnixListener, SocketError> {
    let failed = |action| {
        move |cause| SocketError::System {
            action,
            path: path.to_path_buf(),
            cause,
        }
    };
    if let Ok(metadata) = path.symlink_metadata() {
        if !metadata.file_type().is_socket() {
            return Err(SocketError::NoSocket(path.to_path_buf()));
        }
        let is_full = |error: io::Error| error.kind() == io::ErrorKind::WouldBlock;
        match connect(path) {
            // Nobody listens any more.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Ok(stream) if ends(&stream) && connect(path).is_err_and(|error| !is_full(error)) => {}
            Ok(_) => return Err(SocketError::InUse(path.to_path_buf())),
            // So many wait for somebody who takes nobody, and is there.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(SocketError::InUse(path.to_path_buf()));
            }
            Err(error) => return Err(failed(LOOK_AT)(error)),
        }
        // It may have been removed by whoever ended meanwhile.
        match fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed.map_err(failed("replace"))?,
        }
    }
    // Nobody can connect before the mode is set: see the umask in main.
    let listener = UnixListener::bind(path).map_err(failed("listen on"))?;
    let given = match access.group {
        Some(_) => chown(path, None, access.group).map_err(failed(SET_GROUP)),
        None => Ok(()),
    };
    let set = given.and_then(|()| {
        fs::set_permissions(path, fs::Permissions::from_mode(access.mode))
            .map_err(failed("set the mode of"))
    });
    if set.is_err() {
        // Nobody listens there.
        let _ = fs::remove_file(path);
    }
    set.map(|()| listener)
}

/// Connects at once or not at all: who waits for a place in the queue of a listener that takes
/// nobody waits for ever.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// Does whoever took that connection end? Workers of a daemon that was killed do so at once.
fn ends(stream: &UnixStream) -> bool {
    let deadline = Instant::now() + ENDING_LIMIT;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(stream, PollFlags::empty())];
        let limit = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match poll(&mut fds, Some(&limit)) {
            Err(rustix::io::Errno::INTR) => {}
            polled => return polled == Ok(1),
        }
    }
}

/// Does nobody get through that one any more? Whoever held it may have shut it down, for all
/// who hold it.
pub fn is_shut(listener: &UnixListener) -> bool {
    let mut fds = [PollFd::new(listener, PollFlags::RDHUP)];
    let now = Timespec::default();
    let ends = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    loop {
        match poll(&mut fds, Some(&now)) {
            Err(rustix::io::Errno::INTR) => {}
            polled => return polled.is_ok() && fds[0].revents().intersects(ends),
        }
    }
}

/// Does somebody wait for being taken by that one?
pub fn is_wanted(listener: &UnixListener) -> bool {
    let mut fds = [PollFd::new(listener, PollFlags::IN)];
    let polled = poll(&mut fds, Some(&Timespec::default()));
    polled.is_ok() && fds[0].revents().contains(PollFlags::IN)
}

/// A listening socket that the service manager passed under that name (`FileDescriptorName=`).
pub fn passed(name: &str) -> Result<Option<UnixListener>, SocketError> {
    let mut all = sd_notify::listen_fds_with_names().map_err(SocketError::Passed)?;
    let found = all.find(|(_, other)| other == name);
    found.map(|(fd, _)| inherited(fd)).transpose()
}

/// A listening socket that our parent made: one that systemd or a like program
/// passed, or any other descriptor that a manager of machines gives.
pub fn inherited(fd: RawFd) -> Result<UnixListener, SocketError> {
    let wrong = || SocketError::NotListening(fd);
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
        return Err(wrong());
    }
    if let Some(index) = usize::try_from(fd).ok().and_then(|fd| fd.checked_sub(3)) {
        match ListenFd::from_env().take_unix_listener(index) {
            Ok(Some(listener)) => return Ok(listener),
            // Not passed that way.
            Ok(None) => {}
            Err(_) => return Err(wrong()),
        }
    }
    // SAFETY: it is a socket that listens, and vhost-user's convention for --fd is
    // that it is ours from now on.
    Ok(unsafe { UnixListener::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn only_what_nobody_uses_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        fs::write(&path, "precious").unwrap();
        let error = listen(&path, Access::OWNER).unwrap_err();
        assert!(matches!(error, SocketError::NoSocket(_)), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        fs::remove_file(&path).unwrap();
        let first = listen(&path, Access::OWNER).unwrap();
        let error = listen(&path, Access::OWNER).unwrap_err();
        assert!(matches!(error, SocketError::InUse(_)), "{error}");
        drop(first);
        listen(&path, Access::OWNER).unwrap();
    }

    #[test]
    fn nobody_waits_for_a_listener_that_takes_nobody() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let hung = listen(&path, Access::OWNER).unwrap();
        // SAFETY: a descriptor that is open.
        assert_eq!(unsafe { libc::listen(hung.as_raw_fd(), 0) }, 0);
        assert!(!is_wanted(&hung));
        let _first = UnixStream::connect(&path).unwrap();
        assert!(is_wanted(&hung));
        let (said, says) = std::sync::mpsc::channel();
        std::thread::spawn(move || said.send(listen(&path, Access::OWNER)).unwrap());
        let listened = says.recv_timeout(Duration::from_secs(20));
        let error = listened.expect("it waits for ever").unwrap_err();
        assert!(matches!(error, SocketError::InUse(_)), "{error}");
    }

    #[test]
    fn a_listener_that_was_shut_down_is_known() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = listen(&path, Access::OWNER).unwrap();
        let other = listener.try_clone().unwrap();
        let _monitor = UnixStream::connect(&path).unwrap();
        assert!(!is_shut(&listener));
        // SAFETY: a descriptor that is open.
        unsafe { libc::shutdown(other.as_raw_fd(), libc::SHUT_RD) };
        assert!(is_shut(&listener));
        let listener = listen(&path, Access::OWNER).unwrap();
        assert!(!is_shut(&listener) && UnixStream::connect(&path).is_ok());
    }

    #[test]
    fn what_is_forbidden_has_its_own_way_out() {
        let next = |action, cause: io::ErrorKind| {
            let (path, cause) = ("/run/s".into(), cause.into());
            SocketError::System {
                action,
                path,
                cause,
            }
            .next()
        };
        let forbidden = io::ErrorKind::PermissionDenied;
        assert!(next(SET_GROUP, forbidden).contains("in that group"));
        assert!(next(LOOK_AT, forbidden).contains("another user's daemon"));
        assert!(next("listen on", forbidden).contains("write to its directory"));
        assert!(next("listen on", io::ErrorKind::NotFound).contains("make its directory"));
    }

    #[test]
    fn mode_and_group_are_as_was_said() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let own = directory.path().metadata().unwrap().gid();
        let access = Access::parse(Some("0660"), Some(&own.to_string())).unwrap();
        let _listener = listen(&path, access).unwrap();
        let metadata = path.metadata().unwrap();
        assert_eq!((metadata.mode() & 0o777, metadata.gid()), (0o660, own));
        assert_eq!(Access::parse(None, None).unwrap(), Access::OWNER);
        assert_eq!(Access::parse(None, Some("0")).unwrap().mode, 0o660);
        assert_eq!(Access::parse(None, Some("root")).unwrap().group, Some(0));
        assert!(Access::parse(Some("0888"), None).is_err());
        assert!(Access::parse(Some("4660"), None).is_err());
        assert!(Access::parse(Some("0060"), None).is_err());
        assert!(Access::parse(None, Some("no such group")).is_err());
    }
}
