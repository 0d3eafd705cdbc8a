// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a file or device that the user names may be overwritten.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// First bytes of a file or device that was used for swap.
const SIGNATURE: &[u8; 32] = b"demeter extmem swap, version 1\n\0";
/// What is looked at before it is overwritten: every known file system, volume and
/// partition table has left a mark by then.
const INSPECTED_BYTES: usize = 128 << 10;

/// Whether it holds anything but zeros, or what an earlier run left there.
///
/// # Errors
/// Those of the system; it is shorter than what is looked at.
pub fn holds_data(path: &Path) -> io::Result<bool> {
    let mut head = vec![0u8; INSPECTED_BYTES];
    open(path)?.read_exact_at(&mut head, 0)?;
    Ok(!head.starts_with(SIGNATURE) && head.iter().any(|&byte| byte != 0))
}

/// Marks it as used for swap.
///
/// # Errors
/// Those of the system.
pub fn mark(path: &Path) -> io::Result<()> {
    let file = open(path)?;
    file.write_all_at(SIGNATURE, 0)?;
    file.sync_data()
}

/// A descriptor of its own: this one needs no alignment.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_CLOEXEC)
        .open(path)
}
