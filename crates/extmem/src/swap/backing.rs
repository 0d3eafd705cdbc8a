// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The file or block device under a store.
//!
//! In a directory it is an unnamed file, of all programs of a run together or of one
//! program and its forks, so that whatever ends them leaves nothing behind. A file or
//! device that the user names is overwritten from its second page on, and therefore
//! refused if it holds anything but zeros or what an earlier run left there.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use demeter_extmem_tree::{
    Handed, LEAST_BYTES, MOST_SLOTS, SwapFile, free_bytes, holds_data, largest_file_bytes, mark,
    open_direct,
};

use super::{SLOT_BYTES, SwapError};
use crate::descriptor;

/// Who else uses the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shared {
    /// Nobody but this program and its forks.
    Alone,
    /// All programs of a run, which have the same description of it.
    WithTree,
    /// Whoever was given its name.
    ByName,
}

/// An open place to swap to.
#[derive(Debug)]
pub struct Backing {
    file: File,
    /// Where slot 0 begins.
    pub start_bytes: u64,
    /// Slots that fit.
    pub slots: u64,
    /// The page cache is bypassed.
    pub direct: bool,
    /// Who else uses it.
    pub shared: Shared,
    /// Disk space is taken part by part.
    pub sparse: bool,
    /// "file", "block device" or "unnamed file".
    pub kind: &'static str,
    /// Its path, or that of its directory, for who reads of a failure.
    pub place: &'static str,
}

impl Backing {
    /// Opens `path` for `capacity_bytes`, or for what is there, or in a directory for
    /// a multiple of `dram_bytes`.
    pub fn open(
        path: &Path,
        capacity_bytes: Option<u64>,
        dram_bytes: u64,
    ) -> Result<Self, SwapError> {
        let about = std::fs::metadata(path).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT) => SwapError::Missing,
            errno => SwapError::Open {
                errno: errno.unwrap_or(libc::EIO),
            },
        })?;
        if about.is_dir() {
            return Self::unnamed(path, capacity_bytes, dram_bytes);
        }
        let block_device = about.file_type().is_block_device();
        if !block_device && !about.is_file() {
            return Err(SwapError::Kind);
        }
        if block_device {
            refuse_mounted(path)?;
        }
        let (file, direct) = open_direct(path, 0).map_err(|error| failed(&error))?;
        let total_bytes = size_bytes(path, about.size())?;
        let room_bytes = total_bytes.saturating_sub(SLOT_BYTES as u64);
        let limit_bytes = if block_device {
            u64::MAX
        } else {
            largest_file_bytes().saturating_sub(SLOT_BYTES as u64)
        };
        let used_bytes = capacity_bytes.unwrap_or(room_bytes).min(limit_bytes);
        let needed_bytes = used_bytes.max(LEAST_BYTES);
        if needed_bytes > limit_bytes {
            return Err(SwapError::Limited {
                limit_bytes,
                needed_bytes,
            });
        }
        if room_bytes < needed_bytes {
            return Err(SwapError::TooSmall {
                available_bytes: room_bytes,
                needed_bytes,
            });
        }
        if !block_device {
            // A sparse file would run out of space in the middle of a run.
            allocate(&file, SLOT_BYTES as u64 + needed_bytes)?;
        }
        claim(path)?;
        Ok(Self {
            file,
            start_bytes: SLOT_BYTES as u64,
            slots: slots(needed_bytes),
            direct,
            shared: Shared::ByName,
            sparse: false,
            kind: if block_device { "block device" } else { "file" },
            place: shown(path),
        })
    }

    fn unnamed(
        directory: &Path,
        capacity_bytes: Option<u64>,
        dram_bytes: u64,
    ) -> Result<Self, SwapError> {
        let made = SwapFile::create(directory, capacity_bytes, dram_bytes)?;
        Ok(Self {
            file: made.file,
            start_bytes: 0,
            slots: made.slots,
            direct: made.direct,
            shared: Shared::Alone,
            sparse: true,
            kind: "unnamed file",
            place: shown(directory),
        })
    }

    /// The file of the run in `directory`, if that was handed on and is still there.
    pub fn inherited(handed: &Handed, directory: &Path) -> Option<Self> {
        if !handed.is_there() || handed.detail == 0 || handed.detail > MOST_SLOTS {
            return None;
        }
        // Of a program that may only make smaller files, the first part is.
        let slots = handed.detail.min(slots(largest_file_bytes()));
        if slots < LEAST_BYTES / SLOT_BYTES as u64 {
            return None;
        }
        let descriptor = descriptor::inherit(handed.descriptor);
        // SAFETY: plain descriptors.
        let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
        Some(Self {
            // SAFETY: open, and never closed: the store lives as long as the process.
            file: unsafe { File::from_raw_fd(descriptor) },
            start_bytes: 0,
            slots,
            direct: flags & libc::O_DIRECT != 0,
            shared: Shared::WithTree,
            sparse: true,
            kind: "unnamed file",
            place: shown(directory),
        })
    }

    /// So many slots of nothing.
    #[cfg(test)]
    pub fn for_tests(slots: u64) -> Self {
        Self {
            file: File::open("/dev/null").unwrap(),
            start_bytes: 0,
            slots,
            direct: false,
            shared: Shared::Alone,
            sparse: false,
            kind: "nothing",
            place: "nowhere",
        }
    }

    /// Moves the descriptor out of the way of programs that close or reuse low ones.
    pub fn settle(self) -> Self {
        if self.shared == Shared::WithTree {
            return self;
        }
        let kept = descriptor::keep(self.file.into_raw_fd());
        Self {
            // SAFETY: open, and given to us.
            file: unsafe { File::from_raw_fd(kept) },
            ..self
        }
    }

    /// The descriptor.
    pub fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// Kept for as long as the process lives, as the store is.
fn shown(path: &Path) -> &'static str {
    String::leak(path.to_string_lossy().into_owned())
}

fn slots(bytes: u64) -> u64 {
    (bytes / SLOT_BYTES as u64).min(MOST_SLOTS)
}

fn failed(error: &std::io::Error) -> SwapError {
    match error.raw_os_error() {
        Some(libc::EBUSY) => SwapError::Busy,
        errno => SwapError::Open {
            errno: errno.unwrap_or(libc::EIO),
        },
    }
}

/// Takes the blocks now, so that the disk cannot fill up under the run.
fn allocate(file: &File, bytes: u64) -> Result<(), SwapError> {
    // SAFETY: the descriptor is open.
    if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes as libc::off_t) } == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::ENOSYS) => {
            let now_bytes = file.metadata().map_err(|error| failed(&error))?.len();
            file.set_len(bytes.max(now_bytes))
                .map_err(|error| failed(&error))
        }
        Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => Err(SwapError::Holes {
            available_bytes: free_bytes(file).map_err(|error| failed(&error))?,
            needed_bytes: bytes,
        }),
        _ => Err(failed(&error)),
    }
}

/// For a block device O_EXCL means: not while it is mounted, nor while another does the
/// same. So it is only asked for a moment, and again if somebody else was asking.
fn refuse_mounted(path: &Path) -> Result<(), SwapError> {
    const TRIES: u32 = 10;
    let mut outcome = Ok(());
    for _ in 0..TRIES {
        outcome = open_direct(path, libc::O_EXCL)
            .map(drop)
            .map_err(|error| failed(&error));
        if outcome != Err(SwapError::Busy) {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    outcome
}

/// Size of a file, or of a device, whose metadata says 0.
fn size_bytes(path: &Path, file_bytes: u64) -> Result<u64, SwapError> {
    use std::io::{Seek, SeekFrom};
    if file_bytes > 0 {
        return Ok(file_bytes);
    }
    File::open(path)
        .and_then(|mut file| file.seek(SeekFrom::End(0)))
        .map_err(|error| failed(&error))
}

/// Refuses what holds data; marks the rest as ours.
fn claim(path: &Path) -> Result<(), SwapError> {
    if holds_data(path).map_err(|error| failed(&error))? {
        return Err(SwapError::HoldsData);
    }
    mark(path).map_err(|error| failed(&error))
}
