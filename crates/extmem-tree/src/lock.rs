// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Locks on bytes of a file, which the kernel drops when all who hold them are gone.

use std::fs::File;
use std::os::fd::AsRawFd;

/// Locks or unlocks bytes for this description of the file, without waiting.
pub fn bytes(file: &File, first: i64, count: i64, kind: libc::c_int) -> bool {
    let request = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: first,
        l_len: count,
        l_pid: 0,
    };
    // SAFETY: the structure of this call, an open descriptor.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const request) == 0 }
}
