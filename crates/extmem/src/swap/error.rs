// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a swap store can fail with. Formatting these allocates nothing.

use std::fmt;

use demeter_extmem_tree::CreateError;

use super::{Direction, SLOT_BYTES};

/// Why a store cannot be opened, or a transfer did not happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SwapError {
    /// Nothing is at the path.
    #[error(
        "the swap path does not exist; next: name a directory, a block device, or a file made with `fallocate -l SIZE`"
    )]
    Missing,
    /// The path cannot be used.
    #[error(
        "cannot open the swap path ({}); next: check its permissions, or name another",
        Errno(*errno)
    )]
    Open {
        /// Error number.
        errno: i32,
    },
    /// The device is mounted or otherwise taken.
    #[error("the swap device is in use; next: unmount it, or name another")]
    Busy,
    /// It is neither directory, file nor block device.
    #[error(
        "the swap path is neither a directory, a file nor a block device; next: name one of these"
    )]
    Kind,
    /// It holds something that would be lost.
    #[error(
        "the swap file or device holds data that swapping would destroy; next: empty it (`wipefs -a`, or a new file from `fallocate`), or name a directory"
    )]
    HoldsData,
    /// It is smaller than what makes sense or was asked for.
    #[error(
        "swap has room for {available_bytes} bytes where {needed_bytes} are needed; next: free some space, or name a larger place"
    )]
    TooSmall {
        /// Room there is.
        available_bytes: u64,
        /// Room asked for.
        needed_bytes: u64,
    },
    /// The process may not make files as large as swap must be.
    #[error(
        "files may have at most {limit_bytes} bytes where swap needs {needed_bytes}; next: raise the limit on the size of files (ulimit -f), or name a block device"
    )]
    Limited {
        /// The limit.
        limit_bytes: u64,
        /// What swap needs.
        needed_bytes: u64,
    },
    /// Parts of a file that was made without its space cannot have it.
    #[error(
        "the swap file is sparse, and its disk has {available_bytes} bytes left for the {needed_bytes} that it is to hold; next: make it with `fallocate -l SIZE`, or free some space"
    )]
    Holes {
        /// Left on the disk.
        available_bytes: u64,
        /// What the file is to hold.
        needed_bytes: u64,
    },
    /// The file cannot be opened once more.
    #[error(
        "cannot open the swap file once more, to lock parts of it; next: mount /proc, and name a file that the program's user may write, or a directory"
    )]
    Locks,
    /// The memory passed in is too little: a fault of the caller.
    #[error("the swap store got too little memory for its tables; next: report this as a defect")]
    Memory,
    /// io_uring was asked for by name and the kernel refuses it.
    #[error(
        "io_uring is refused ({}); next: leave the engine on auto, or allow io_uring",
        Errno(*errno)
    )]
    Uring {
        /// Error number.
        errno: i32,
    },
    /// A transfer failed.
    #[error(
        "swap {direction} of slot {slot} at byte {byte_offset} of {place} failed ({}); next: {}",
        Errno(*errno),
        remedy(*errno)
    )]
    Transfer {
        /// What is swapped to; of an unnamed file the directory.
        place: &'static str,
        /// Read or write.
        direction: Direction,
        /// The slot.
        slot: u32,
        /// Where in the file or device.
        byte_offset: u64,
        /// Error number.
        errno: i32,
    },
    /// A transfer ended early.
    #[error(
        "swap {direction} of slot {slot} at byte {byte_offset} of {place} moved {moved_bytes} of {} bytes; next: check that nobody shortens the swap file",
        SLOT_BYTES
    )]
    Short {
        /// What is swapped to; of an unnamed file the directory.
        place: &'static str,
        /// Read or write.
        direction: Direction,
        /// The slot.
        slot: u32,
        /// Where in the file or device.
        byte_offset: u64,
        /// Bytes of this slot that did move.
        moved_bytes: u32,
    },
    /// A slot brought something else than was written to it.
    #[error(
        "what swap brought from slot {slot} at byte {byte_offset} of {place} is not what was written there; next: check the swap device, and that nobody else writes to it"
    )]
    Altered {
        /// What is swapped to; of an unnamed file the directory.
        place: &'static str,
        /// The slot.
        slot: u32,
        /// Where in the file or device.
        byte_offset: u64,
    },
}

impl From<CreateError> for SwapError {
    fn from(error: CreateError) -> Self {
        match error {
            CreateError::System { errno } => Self::Open { errno },
            CreateError::TooSmall {
                available_bytes,
                needed_bytes,
            } => Self::TooSmall {
                available_bytes,
                needed_bytes,
            },
            CreateError::Limited {
                limit_bytes,
                needed_bytes,
            } => Self::Limited {
                limit_bytes,
                needed_bytes,
            },
        }
    }
}

/// What to do about a transfer that failed.
fn remedy(errno: i32) -> &'static str {
    match errno {
        libc::EFBIG => "raise that limit, or name a block device",
        libc::ENOSPC | libc::EDQUOT => "free some space there, or name another place",
        _ => "check the swap device, the data there is lost",
    }
}

/// The system's error numbers in words, without its allocating `strerror`.
struct Errno(i32);

impl fmt::Display for Errno {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self.0 {
            libc::EIO => "input/output error",
            libc::ENOSPC => "no space left on device",
            libc::EFBIG => "above the limit on the size of files (ulimit -f)",
            libc::EDQUOT => "disk quota exceeded",
            libc::EACCES => "permission denied",
            libc::EPERM => "operation not permitted",
            libc::EROFS => "read-only file system",
            libc::EINVAL => "invalid argument",
            libc::ENOSYS => "not implemented",
            libc::ENOMEM => "out of memory",
            libc::EMFILE | libc::ENFILE => "too many open files",
            libc::EBADF => "bad file descriptor: somebody closed it",
            libc::EFAULT => "bad address",
            libc::ENODEV | libc::ENXIO => "no such device",
            libc::EBUSY => "busy",
            _ => return write!(formatter, "error {}", self.0),
        };
        formatter.write_str(words)
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}
