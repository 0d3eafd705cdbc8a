// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pager's file descriptors, out of the program's way.
//!
//! Programs close what they did not open (`closefrom`, `close_range`, loops), and
//! count on low numbers. So the pager's descriptors go to the top of the table, one
//! contiguous block, and the block refuses to be closed.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use crate::syscall;

/// Descriptors the pager may hold.
const BLOCK: RawFd = 64;

static LOWEST: AtomicI32 = AtomicI32::new(0);
/// Which numbers of the block are in use.
static KEPT: AtomicU64 = AtomicU64::new(0);

/// First descriptor of the block: below the soft limit when this was first called.
pub fn lowest() -> RawFd {
    let known = LOWEST.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: fills one rlimit.
    let got = unsafe {
        syscall::call(
            libc::SYS_prlimit64,
            [
                0,
                libc::RLIMIT_NOFILE as usize,
                0,
                &raw mut limit as usize,
                0,
                0,
            ],
        )
    };
    // The table grows with the highest number: keep it small under a huge limit.
    let soft = if got < 0 {
        1024
    } else {
        limit.rlim_cur.min(4096) as RawFd
    };
    let lowest = (soft - BLOCK).max(3);
    LOWEST.store(lowest, Ordering::Relaxed);
    lowest
}

/// The numbers the program may not close.
pub fn block() -> std::ops::Range<RawFd> {
    lowest()..lowest() + BLOCK
}

/// Moves a descriptor into the block, close-on-exec. When the block is full it
/// stays where it is.
pub fn keep(fd: RawFd) -> RawFd {
    // SAFETY: plain descriptors.
    let moved = unsafe {
        syscall::call(
            libc::SYS_fcntl,
            [
                fd as usize,
                libc::F_DUPFD_CLOEXEC as usize,
                lowest() as usize,
                0,
                0,
                0,
            ],
        )
    };
    if moved < 0 {
        return fd;
    }
    // SAFETY: the old number, which nobody else has.
    unsafe { syscall::call(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
    let moved = moved as RawFd;
    if block().contains(&moved) {
        KEPT.fetch_or(1 << (moved - lowest()), Ordering::Relaxed);
    }
    moved
}

/// Protects a descriptor that is in the block already.
pub fn adopt(fd: RawFd) {
    if block().contains(&fd) {
        KEPT.fetch_or(1 << (fd - lowest()), Ordering::Relaxed);
    }
}

/// Whether the program must leave this number alone.
pub fn is_kept(fd: RawFd) -> bool {
    block().contains(&fd) && KEPT.load(Ordering::Relaxed) & 1 << (fd - lowest()) != 0
}

/// Puts `fd` in the place of a kept descriptor, whose number stays the same.
pub fn replace(kept: RawFd, fd: RawFd) -> RawFd {
    // SAFETY: plain descriptors.
    unsafe {
        syscall::call(
            libc::SYS_dup3,
            [
                fd as usize,
                kept as usize,
                libc::O_CLOEXEC as usize,
                0,
                0,
                0,
            ],
        );
        if fd != kept {
            syscall::call(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_to_the_top() {
        // SAFETY: opens a file; the result is closed below.
        let fd = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY) };
        let kept = keep(fd);
        assert!(block().contains(&kept) && is_kept(kept));
        // SAFETY: ours.
        unsafe { libc::close(kept) };
    }
}
