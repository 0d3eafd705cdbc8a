// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Between the coordinator and a worker: whole messages of a bounded size, as JSON, with a
//! bounded number of descriptors. Nothing of the other side is believed before it is parsed.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType,
    recvmsg, sendmsg, shutdown, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest message.
pub const MAX_BYTES: usize = 64 << 10;
/// Most descriptors with one.
pub const MAX_FDS: usize = 16;

/// Why there is no next message.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The socket.
    #[error("{0}")]
    System(#[from] io::Error),
    /// Larger than allowed, or with more descriptors.
    #[error("a message of more than {MAX_BYTES} bytes or {MAX_FDS} descriptors")]
    Size,
    /// Not what it should be.
    #[error("a message that makes no sense: {0}")]
    Malformed(#[from] serde_json::Error),
    /// The other side does not read.
    #[error("it does not read what it is told")]
    Full,
}

impl From<Errno> for ChannelError {
    fn from(errno: Errno) -> Self {
        Self::System(errno.into())
    }
}

/// One end.
#[derive(Debug)]
pub struct Channel(OwnedFd);

impl Channel {
    /// Both ends.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self(ours), theirs))
    }

    /// The end that somebody made for us.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Sends, and waits until there is room.
    pub fn send(
        &self,
        message: &impl Serialize,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        self.send_with(message, fds, SendFlags::NOSIGNAL)
    }

    /// Sends, or fails: whoever must not wait for the other side.
    pub fn send_now(
        &self,
        message: &impl Serialize,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        self.send_with(message, fds, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    fn send_with(
        &self,
        message: &impl Serialize,
        fds: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> Result<(), ChannelError> {
        let bytes = serde_json::to_vec(message)?;
        if bytes.len() > MAX_BYTES || fds.len() > MAX_FDS {
            return Err(ChannelError::Size);
        }
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(ChannelError::Size);
        }
        loop {
            match sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut control, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(ChannelError::Full),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// The next message; none: the other end is closed.
    pub fn receive<T: DeserializeOwned>(&self) -> Result<Option<(T, Vec<OwnedFd>)>, ChannelError> {
        let mut bytes = vec![0; MAX_BYTES];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let got = loop {
            let mut slices = [IoSliceMut::new(&mut bytes)];
            match recvmsg(&self.0, &mut slices, &mut control, flags) {
                Err(Errno::INTR) => {}
                // It went away with something of ours unread.
                Err(Errno::CONNRESET) => return Ok(None),
                other => break other?,
            }
        };
        let fds: Vec<OwnedFd> = (control.drain())
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            })
            .flatten()
            .collect();
        if got.bytes == 0 {
            return Ok(None);
        }
        if got
            .flags
            .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
        {
            return Err(ChannelError::Size);
        }
        Ok(Some((serde_json::from_slice(&bytes[..got.bytes])?, fds)))
    }

    /// Both sides see its end.
    pub fn end(&self) {
        // Fails if it has ended, which is what is wanted.
        let _ = shutdown(self.0.as_fd(), Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Seek, Write};

    #[test]
    fn a_message_arrives_whole_with_its_descriptors() {
        let (ours, theirs) = Channel::pair().unwrap();
        let theirs = Channel::from_fd(theirs);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"seven").unwrap();
        ours.send(&vec![1, 2], &[file.as_fd()]).unwrap();
        ours.send(&"next", &[]).unwrap();
        let (numbers, fds) = theirs.receive::<Vec<u32>>().unwrap().unwrap();
        assert_eq!((numbers, fds.len()), (vec![1, 2], 1));
        let mut same = File::from(fds.into_iter().next().unwrap());
        assert_eq!(same.stream_position().unwrap(), 5);
        assert_eq!(theirs.receive::<String>().unwrap().unwrap().0, "next");
        drop(ours);
        assert!(theirs.receive::<String>().unwrap().is_none());
    }

    #[test]
    fn what_is_too_large_or_makes_no_sense_is_refused() {
        let (ours, theirs) = Channel::pair().unwrap();
        let theirs = Channel::from_fd(theirs);
        let long = "x".repeat(MAX_BYTES);
        assert!(matches!(ours.send(&long, &[]), Err(ChannelError::Size)));
        sendmsg(
            &ours.0,
            &[IoSlice::new(long.as_bytes()), IoSlice::new(b"y")],
            &mut SendAncillaryBuffer::default(),
            SendFlags::empty(),
        )
        .unwrap();
        let refused = theirs.receive::<String>();
        assert!(matches!(refused, Err(ChannelError::Size)), "{refused:?}");
        ours.send(&"a word", &[]).unwrap();
        let refused = theirs.receive::<u64>();
        assert!(
            matches!(refused, Err(ChannelError::Malformed(_))),
            "{refused:?}"
        );
        let deep = "[".repeat(MAX_BYTES);
        sendmsg(
            &ours.0,
            &[IoSlice::new(deep.as_bytes())],
            &mut SendAncillaryBuffer::default(),
            SendFlags::empty(),
        )
        .unwrap();
        assert!(theirs.receive::<serde_json::Value>().is_err());
    }

    #[test]
    fn nobody_waits_for_a_side_that_does_not_read() {
        let (ours, _theirs) = Channel::pair().unwrap();
        let filled = (0..100_000).find_map(|_| ours.send_now(&"order", &[]).err());
        assert!(matches!(filled, Some(ChannelError::Full)), "{filled:?}");
    }
}
