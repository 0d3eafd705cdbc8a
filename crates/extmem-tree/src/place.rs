// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a place for swap is opened, what room its file system has, and how it is counted.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Bytes of a slot: one page.
pub const SLOT_BYTES: u64 = 4096;
/// Less swap than this in one place is a mistake.
pub const LEAST_BYTES: u64 = 1 << 20;
/// Slot numbers have 31 bits.
pub const MOST_SLOTS: u64 = 1 << 31;

/// Opens past the page cache where the file system can, else through it; whether it could.
///
/// # Errors
/// Those of the system.
pub fn open_direct(path: &Path, flags: libc::c_int) -> io::Result<(File, bool)> {
    let open = |direct| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .mode(0o600)
            .custom_flags(flags | direct | libc::O_CLOEXEC)
            .open(path)
    };
    match open(libc::O_DIRECT) {
        Ok(file) => Ok((file, true)),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            open(0).map(|file| (file, false))
        }
        Err(error) => Err(error),
    }
}

/// What the file system of a file has left.
///
/// # Errors
/// Those of the system.
pub fn free_bytes(file: &File) -> io::Result<u64> {
    // SAFETY: zero is a statvfs.
    let mut about: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open and `about` writable.
    if unsafe { libc::fstatvfs(file.as_raw_fd(), &raw mut about) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(about.f_bavail.saturating_mul(about.f_frsize))
}

/// How large a file this process may make (`ulimit -f`).
pub fn largest_file_bytes() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: fills one rlimit, or leaves it.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    limit.rlim_cur
}
