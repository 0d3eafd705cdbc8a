// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a place cannot be swapped to, "cause; next: what to do". Whoever tells it says which
//! place. Formatting these allocates nothing.

use std::fmt;
use std::io;

use crate::place::{MOST_SLOTS, SLOT_BYTES};

/// What is wrong with a place for swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// Nothing is at the path.
    #[error(
        "it does not exist; next: name a directory, a block device, a file made with `fallocate -l SIZE`, or a memory node (node:1)"
    )]
    Missing,
    /// The path cannot be used.
    #[error(
        "it cannot be used ({}); next: check its permissions, or name another",
        Errno(*errno)
    )]
    Open {
        /// Error number.
        errno: i32,
    },
    /// The device is mounted or otherwise taken.
    #[error("the device is in use; next: unmount it, or name another")]
    Busy,
    /// It is neither directory, file nor block device.
    #[error("it is neither a directory, a file nor a block device; next: name one of these")]
    Kind,
    /// It begins as a memory node and goes on as none.
    #[error(
        "it names no memory node; next: give one number, as in node:1, or a path, as in ./node:x, for a file of such a name"
    )]
    NodeName,
    /// The kernel tells of no nodes.
    #[error(
        "this kernel tells of no memory nodes; next: mount /sys, use a kernel with CONFIG_NUMA, or name a directory"
    )]
    NoNodes,
    /// There is no such node, or it is not online.
    #[error(
        "there is no such node here, or it is offline; next: name one of those in /sys/devices/system/node/has_memory"
    )]
    NoNode,
    /// The node has CPUs or devices only.
    #[error(
        "that node has no memory; next: name one of those in /sys/devices/system/node/has_memory, or bring its memory online (`daxctl online-memory`)"
    )]
    NodeWithoutMemory,
    /// The cpuset leaves the node out.
    #[error(
        "this process may not use memory of that node; next: add it to the cpuset (cpuset.mems), or name another place"
    )]
    NodeForbidden,
    /// The program's memory is there anyway.
    #[error(
        "the program's own memory lies on that node, so nothing would be saved; next: name another node, or keep the program off its CPUs (`numactl --cpunodebind`, `taskset`)"
    )]
    OwnNode,
    /// The kernel, or who confines this process, lets nobody say where memory lies.
    #[error(
        "memory of a node cannot be asked for (mbind: {}); next: allow mbind and move_pages (containers do with CAP_SYS_NICE), or name a directory",
        Errno(*errno)
    )]
    NodeRefused {
        /// Error number.
        errno: i32,
    },
    /// Swap in memory counts in the cgroup, which has less left.
    #[error(
        "it counts as memory of this cgroup, which has {} left beside the program's DRAM where {} are needed; next: raise its memory.max, or give less by --swap-size",
        Size(*available_bytes),
        Size(*needed_bytes)
    )]
    Cgroup {
        /// What is left.
        available_bytes: u64,
        /// Room asked for.
        needed_bytes: u64,
    },
    /// It holds something that would be lost.
    #[error(
        "it holds data that swapping would destroy; next: empty it (`wipefs -a`, or a new file from `fallocate`), or name a directory"
    )]
    HoldsData,
    /// A file or device is smaller than what makes sense or was asked for.
    #[error(
        "it has {} KiB where swap needs {} KiB with its header; next: make it larger (`fallocate -l {1}KiB`), or name a larger place",
        *total_bytes >> 10,
        needed_bytes.div_ceil(1 << 10)
    )]
    Short {
        /// What it has.
        total_bytes: u64,
        /// Room asked for, with the header.
        needed_bytes: u64,
    },
    /// The disk under a directory has less left than what makes sense or was asked for.
    #[error(
        "it has room for {}{} where {} are needed; next: free some space, or name a larger place",
        Size(*available_bytes),
        Promised(*promised_bytes),
        Size(*needed_bytes)
    )]
    TooSmall {
        /// Room there is.
        available_bytes: u64,
        /// What others on the same disk have been promised beside that.
        promised_bytes: u64,
        /// Room asked for.
        needed_bytes: u64,
    },
    /// More is asked for than slots can be numbered.
    #[error(
        "{} are asked for where swap may have {} at most; next: give less by --swap-size",
        Size(*needed_bytes),
        Size(MOST_SLOTS * SLOT_BYTES)
    )]
    TooLarge {
        /// Room asked for.
        needed_bytes: u64,
    },
    /// The process may not make files as large as swap must be.
    #[error(
        "files may have at most {} where swap needs {}; next: raise the limit on the size of files (ulimit -f), or name a block device",
        Size(*limit_bytes),
        Size(*needed_bytes)
    )]
    Limited {
        /// The limit.
        limit_bytes: u64,
        /// What swap needs.
        needed_bytes: u64,
    },
    /// Parts of a file that was made without its space cannot have it.
    #[error(
        "it is sparse, and its disk has {}{} left for the {} that it lacks; next: make it with `fallocate -l SIZE`, or free some space",
        Size(*available_bytes),
        Promised(*promised_bytes),
        Size(*needed_bytes)
    )]
    Holes {
        /// Left on the disk.
        available_bytes: u64,
        /// What others on the same disk have been promised beside that.
        promised_bytes: u64,
        /// What the file lacks.
        needed_bytes: u64,
    },
    /// The file cannot be opened once more.
    #[error(
        "it cannot be opened once more, to lock parts of it; next: mount /proc, and name a file that the program's user may write, or a directory"
    )]
    Locks,
}

impl From<io::Error> for PlaceError {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EBUSY) => Self::Busy,
            errno => Self::Open {
                errno: errno.unwrap_or(libc::EIO),
            },
        }
    }
}

/// The system's error numbers in words, without its allocating `strerror`.
#[derive(Debug, Clone, Copy)]
pub struct Errno(pub i32);

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
            libc::ENOENT => "no such file or directory",
            libc::ENODEV | libc::ENXIO => "no such device",
            libc::EBUSY => "busy",
            _ => return write!(formatter, "error {}", self.0),
        };
        formatter.write_str(words)
    }
}

/// Bytes, for people: two digits at least.
#[derive(Debug, Clone, Copy)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        for (bits, unit) in UNITS {
            let exact = self.0.trailing_zeros() >= bits;
            if self.0 >> bits >= if exact { 1 } else { 10 } {
                return write!(formatter, "{} {unit}", self.0 >> bits);
            }
        }
        write!(formatter, "{} bytes", self.0)
    }
}

/// Said only of a disk that others were promised something of.
struct Promised(u64);

impl fmt::Display for Promised {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            bytes => write!(
                formatter,
                " (and {} that other places on its disk were promised)",
                Size(bytes)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_two_digits_or_are_exact() {
        for (bytes, shown) in [
            (0, "0 bytes"),
            (4095, "4095 bytes"),
            (4096, "4 KiB"),
            (100_000, "97 KiB"),
            (5_000_000, "4882 KiB"),
            (8 << 40, "8 TiB"),
            (u64::MAX, "16777215 TiB"),
        ] {
            assert_eq!(Size(bytes).to_string(), shown);
        }
    }

    #[test]
    fn what_others_were_promised_is_said_where_there_is_some() {
        let told = |promised_bytes| {
            PlaceError::TooSmall {
                available_bytes: 1 << 20,
                promised_bytes,
                needed_bytes: 1 << 30,
            }
            .to_string()
        };
        assert!(told(0).starts_with("it has room for 1 MiB where 1 GiB are needed; next: "));
        assert!(told(2 << 20).starts_with("it has room for 1 MiB (and 2 MiB that other places"));
    }
}
