// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a system call reads and writes through its arguments.

use libc::c_long;

/// How many bytes lie behind a pointer argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// As many as another argument says, times a size.
    Counted(usize, usize),
    /// A structure of bounded size (what is not known is one of these).
    Structure(usize),
    /// A string that ends with a zero byte.
    Text,
    /// An array of `iovec`, as many as another argument says, and what they point to.
    Vectors(usize),
    /// A `msghdr` and what it points to.
    Message,
    /// An array of `mmsghdr`, as many as another argument says.
    Messages(usize),
    /// An array of pointers to strings that ends with a null pointer.
    Texts,
}

/// A pointer argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// Which argument.
    pub argument: usize,
    /// The kernel writes there.
    pub written: bool,
    /// How much.
    pub extent: Extent,
}

const fn reads(argument: usize, extent: Extent) -> Pointer {
    Pointer {
        argument,
        written: false,
        extent,
    }
}

const fn writes(argument: usize, extent: Extent) -> Pointer {
    Pointer {
        argument,
        written: true,
        extent,
    }
}

/// Bytes assumed behind a pointer of a call that is not listed: more than any fixed
/// structure of the kernel's interface takes.
const UNKNOWN_BYTES: usize = 8192;

const UNKNOWN: [Pointer; 6] = [
    writes(0, Extent::Structure(UNKNOWN_BYTES)),
    writes(1, Extent::Structure(UNKNOWN_BYTES)),
    writes(2, Extent::Structure(UNKNOWN_BYTES)),
    writes(3, Extent::Structure(UNKNOWN_BYTES)),
    writes(4, Extent::Structure(UNKNOWN_BYTES)),
    writes(5, Extent::Structure(UNKNOWN_BYTES)),
];

/// The pointer arguments of a call.
pub fn pointers(number: c_long) -> &'static [Pointer] {
    use Extent::{Counted, Message, Messages, Structure, Text, Texts, Vectors};
    match number {
        libc::SYS_read | libc::SYS_pread64 => const { &[writes(1, Counted(2, 1))] },
        libc::SYS_write | libc::SYS_pwrite64 => const { &[reads(1, Counted(2, 1))] },
        libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 => {
            const { &[writes(1, Vectors(2))] }
        }
        libc::SYS_writev | libc::SYS_pwritev | libc::SYS_pwritev2 | libc::SYS_vmsplice => {
            const { &[reads(1, Vectors(2))] }
        }
        libc::SYS_process_vm_readv => const { &[writes(1, Vectors(2)), writes(3, Vectors(4))] },
        libc::SYS_process_vm_writev => const { &[reads(1, Vectors(2)), writes(3, Vectors(4))] },
        libc::SYS_recvfrom => {
            const {
                &[
                    writes(1, Counted(2, 1)),
                    writes(4, Structure(128)),
                    writes(5, Structure(4)),
                ]
            }
        }
        libc::SYS_sendto => const { &[reads(1, Counted(2, 1)), reads(4, Counted(5, 1))] },
        libc::SYS_sendmsg => const { &[reads(1, Message)] },
        libc::SYS_recvmsg => const { &[writes(1, Message)] },
        libc::SYS_sendmmsg => const { &[writes(1, Messages(2))] },
        libc::SYS_recvmmsg => const { &[writes(1, Messages(2)), writes(4, Structure(16))] },
        libc::SYS_connect | libc::SYS_bind => const { &[reads(1, Counted(2, 1))] },
        libc::SYS_setsockopt => const { &[reads(3, Counted(4, 1))] },
        libc::SYS_getrandom => const { &[writes(0, Counted(1, 1))] },
        libc::SYS_getcwd => const { &[writes(0, Counted(1, 1))] },
        libc::SYS_getdents64 | libc::SYS_getdents => const { &[writes(1, Counted(2, 1))] },
        libc::SYS_readlink => const { &[reads(0, Text), writes(1, Counted(2, 1))] },
        libc::SYS_readlinkat => const { &[reads(1, Text), writes(2, Counted(3, 1))] },
        libc::SYS_poll => const { &[writes(0, Counted(1, 8))] },
        libc::SYS_ppoll => {
            const {
                &[
                    writes(0, Counted(1, 8)),
                    writes(2, Structure(16)),
                    reads(3, Structure(8)),
                ]
            }
        }
        libc::SYS_select => {
            const {
                &[
                    writes(1, Structure(128)),
                    writes(2, Structure(128)),
                    writes(3, Structure(128)),
                    writes(4, Structure(16)),
                ]
            }
        }
        libc::SYS_pselect6 => {
            const {
                &[
                    writes(1, Structure(128)),
                    writes(2, Structure(128)),
                    writes(3, Structure(128)),
                    writes(4, Structure(16)),
                    reads(5, Structure(16)),
                ]
            }
        }
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => {
            const { &[writes(1, Counted(2, 12))] }
        }
        libc::SYS_epoll_ctl => const { &[reads(3, Structure(12))] },
        libc::SYS_futex => {
            const {
                &[
                    writes(0, Structure(4)),
                    reads(3, Structure(16)),
                    writes(4, Structure(4)),
                ]
            }
        }
        libc::SYS_open
        | libc::SYS_unlink
        | libc::SYS_chdir
        | libc::SYS_rmdir
        | libc::SYS_mkdir
        | libc::SYS_access
        | libc::SYS_chmod
        | libc::SYS_creat
        | libc::SYS_truncate => const { &[reads(0, Text)] },
        libc::SYS_openat
        | libc::SYS_unlinkat
        | libc::SYS_mkdirat
        | libc::SYS_faccessat
        | libc::SYS_fchmodat => const { &[reads(1, Text)] },
        libc::SYS_rename | libc::SYS_link | libc::SYS_symlink => {
            const { &[reads(0, Text), reads(1, Text)] }
        }
        libc::SYS_stat | libc::SYS_lstat => const { &[reads(0, Text), writes(1, Structure(144))] },
        libc::SYS_fstat => const { &[writes(1, Structure(144))] },
        libc::SYS_newfstatat => const { &[reads(1, Text), writes(2, Structure(144))] },
        libc::SYS_statx => const { &[reads(1, Text), writes(4, Structure(256))] },
        libc::SYS_clock_gettime | libc::SYS_clock_getres => const { &[writes(1, Structure(16))] },
        libc::SYS_nanosleep => const { &[reads(0, Structure(16)), writes(1, Structure(16))] },
        libc::SYS_clock_nanosleep => const { &[reads(2, Structure(16)), writes(3, Structure(16))] },
        libc::SYS_execve => const { &[reads(0, Text), reads(1, Texts), reads(2, Texts)] },
        libc::SYS_execveat => const { &[reads(1, Text), reads(2, Texts), reads(3, Texts)] },
        _ => &UNKNOWN,
    }
}

/// Calls that move a counted number of bytes and may move fewer: large ones go in pieces.
pub fn may_be_short(number: c_long) -> Option<(usize, usize)> {
    match number {
        libc::SYS_read
        | libc::SYS_write
        | libc::SYS_pread64
        | libc::SYS_pwrite64
        | libc::SYS_recvfrom
        | libc::SYS_sendto
        | libc::SYS_getdents64
        | libc::SYS_getdents => Some((1, 2)),
        libc::SYS_getrandom => Some((0, 1)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_come_from_other_arguments() {
        for number in 0..470 {
            for pointer in pointers(number) {
                assert!(pointer.argument < 6);
                if let Extent::Counted(from, size) = pointer.extent {
                    assert!(from < 6 && from != pointer.argument && size > 0);
                }
            }
        }
    }
}
