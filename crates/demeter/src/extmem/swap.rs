// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Can the swap path be used? The library looks closer; this says the plain cases
//! before a program is started.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, refuse};
use demeter_agent::size;

/// The absolute path, if it is a directory, file or block device that we may write.
pub fn check(path: &Path, size_bytes: Option<u64>) -> Result<PathBuf, Error> {
    let shown = path.display();
    let about = std::fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => refuse(
            format!("swap path {shown} does not exist"),
            "name a directory, a block device, or a file made with `fallocate -l SIZE`",
        ),
        _ => refuse(
            format!("cannot look at swap path {shown}: {error}"),
            "check the path and its permissions",
        ),
    })?;
    let kind = about.file_type();
    if !kind.is_dir() && !kind.is_file() && !kind.is_block_device() {
        return Err(refuse(
            format!("swap path {shown} is neither a directory, a file nor a block device"),
            "name one of these",
        ));
    }
    let writable = CString::new(path.as_os_str().as_bytes()).is_ok_and(|path| {
        // SAFETY: a terminated string.
        unsafe { libc::access(path.as_ptr(), libc::R_OK | libc::W_OK) == 0 }
    });
    if !writable {
        return Err(refuse(
            format!("swap path {shown} is not writable"),
            "check its permissions",
        ));
    }
    if kind.is_file()
        && let Some(wanted) = size_bytes
        && about.len() < wanted
    {
        return Err(refuse(
            format!(
                "swap file {shown} is too small: {} where --swap-size is {}",
                size::format(about.len()),
                size::format(wanted)
            ),
            "make it larger with `fallocate -l SIZE`, or leave --swap-size out",
        ));
    }
    if kind.is_dir()
        && let Some(wanted) = size_bytes
        && let Some(free) = free_bytes(path)
        && free < wanted
    {
        return Err(refuse(
            format!(
                "{shown} has {} MiB free where --swap-size is {} MiB",
                free >> 20,
                wanted >> 20
            ),
            "free some space, or name a larger place",
        ));
    }
    path.canonicalize()
        .map_err(|error| Error::file("find", path, error))
}

fn free_bytes(path: &Path) -> Option<u64> {
    let about = nix::sys::statvfs::statvfs(path).ok()?;
    Some(
        about
            .blocks_available()
            .saturating_mul(about.fragment_size()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(path: &Path, size_bytes: Option<u64>) -> String {
        check(path, size_bytes).unwrap_err().to_string()
    }

    #[test]
    fn each_bad_path_has_its_message() {
        let directory = tempfile::tempdir().unwrap();
        assert!(check(directory.path(), Some(4096)).is_ok());
        assert!(said(&directory.path().join("none"), None).contains("does not exist"));
        assert!(said(Path::new("/dev/null"), None).contains("neither a directory"));
        assert!(said(directory.path(), Some(1 << 60)).contains("MiB free"));
        let file = directory.path().join("file");
        std::fs::write(&file, "12345").unwrap();
        assert!(said(&file, Some(4096)).contains("too small"));
        assert!(said(&file.join("below"), None).contains("cannot look at"));
    }
}
