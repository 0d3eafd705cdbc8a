// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Locks on single bytes far behind the end of the swap file.
//!
//! They belong to an open file description: forks share them, exec and death drop them,
//! and the kernel forgets none.

use std::os::fd::RawFd;

use crate::syscall;

/// Bytes that stand for members of a family of forks.
pub const MEMBERS: i64 = 1 << 62;
/// Bytes that stand for parts of the file.
pub const PARTS: i64 = 1 << 61;
/// `F_OFD_SETLK`.
const SET_LOCK: usize = 37;

/// Takes a byte for this description alone, without waiting. True if it is ours.
pub fn take(descriptor: RawFd, byte: i64) -> bool {
    set(descriptor, byte, libc::F_WRLCK)
}

/// Lets a byte go.
pub fn give(descriptor: RawFd, byte: i64) {
    set(descriptor, byte, libc::F_UNLCK);
}

fn set(descriptor: RawFd, byte: i64, kind: libc::c_int) -> bool {
    let request = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte,
        l_len: 1,
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
