// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Locks on ranges of bytes, far behind the end of a file where that has contents.
//!
//! They belong to an open file description: forks share them, exec and death drop them,
//! and the kernel forgets none.

use std::os::fd::RawFd;

use crate::syscall;

/// `F_OFD_SETLK`.
const SET_LOCK: usize = 37;

/// Takes bytes for this description alone, without waiting. True if they are ours.
pub fn take(descriptor: RawFd, first: i64, bytes: i64) -> bool {
    set(descriptor, first, bytes, libc::F_WRLCK)
}

/// Lets bytes go.
pub fn give(descriptor: RawFd, first: i64, bytes: i64) {
    set(descriptor, first, bytes, libc::F_UNLCK);
}

fn set(descriptor: RawFd, first: i64, bytes: i64, kind: libc::c_int) -> bool {
    let request = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: first,
        l_len: bytes,
        l_pid: 0,
    };
    // SAFETY: the structure of this call.
    let result = unsafe {
        syscall::call(
            libc::SYS_fcntl,
            [
                descriptor as usize,
                SET_LOCK,
                &raw const request as usize,
                0,
                0,
                0,
            ],
        )
    };
    result == 0
}
