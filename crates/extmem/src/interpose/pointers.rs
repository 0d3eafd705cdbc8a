// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which arguments of system calls may be pointers.
//!
//! A call uses some of six registers; what is left in the others is whatever was computed
//! there before, six letters of a path for instance, and may look like an address in the
//! arena. In a program that has a pager such a call is only looked at in vain. But the
//! filter outlives an exec, and until the next image has its pager, a trap is the end of it.
//! So of calls that the start of a program makes, and of common ones, it is known how far
//! pointers go.

use libc::c_long;

/// Calls whose pointers are all among so many of their first arguments.
pub struct Known {
    /// How many.
    pub arguments: u32,
    /// Their numbers.
    pub calls: &'static [c_long],
}

/// Of all others every argument counts.
pub const KNOWN: &[Known] = &[
    Known {
        arguments: 2,
        calls: &[
            libc::SYS_read,
            libc::SYS_write,
            libc::SYS_pread64,
            libc::SYS_pwrite64,
            libc::SYS_openat,
            libc::SYS_fstat,
            libc::SYS_stat,
            libc::SYS_lstat,
            libc::SYS_readlink,
            libc::SYS_arch_prctl,
            libc::SYS_clock_gettime,
            libc::SYS_clock_getres,
            libc::SYS_gettimeofday,
            libc::SYS_nanosleep,
            libc::SYS_getrlimit,
            libc::SYS_setrlimit,
            libc::SYS_getrusage,
            libc::SYS_getdents64,
            libc::SYS_faccessat,
            libc::SYS_faccessat2,
            libc::SYS_unlinkat,
            libc::SYS_mkdirat,
            libc::SYS_connect,
            libc::SYS_bind,
            libc::SYS_rename,
            libc::SYS_link,
            libc::SYS_symlink,
        ],
    },
    Known {
        arguments: 1,
        calls: &[
            libc::SYS_access,
            libc::SYS_open,
            libc::SYS_creat,
            libc::SYS_mprotect,
            libc::SYS_munmap,
            libc::SYS_madvise,
            libc::SYS_brk,
            libc::SYS_set_tid_address,
            libc::SYS_set_robust_list,
            libc::SYS_rseq,
            libc::SYS_getrandom,
            libc::SYS_uname,
            libc::SYS_sysinfo,
            libc::SYS_getcwd,
            libc::SYS_chdir,
            libc::SYS_mkdir,
            libc::SYS_rmdir,
            libc::SYS_unlink,
            libc::SYS_chmod,
            libc::SYS_chown,
            libc::SYS_pipe,
            libc::SYS_pipe2,
            libc::SYS_poll,
            libc::SYS_times,
        ],
    },
    Known {
        arguments: 0,
        calls: &[
            libc::SYS_close,
            libc::SYS_dup,
            libc::SYS_dup2,
            libc::SYS_dup3,
            libc::SYS_kill,
            libc::SYS_tgkill,
            libc::SYS_umask,
            libc::SYS_socket,
            libc::SYS_listen,
            libc::SYS_fchdir,
            libc::SYS_fchmod,
            libc::SYS_flock,
            libc::SYS_ftruncate,
            libc::SYS_alarm,
            libc::SYS_setuid,
            libc::SYS_setgid,
            libc::SYS_getpgrp,
            libc::SYS_setsid,
        ],
    },
    Known {
        arguments: 3,
        calls: &[
            libc::SYS_newfstatat,
            libc::SYS_readlinkat,
            libc::SYS_ioctl,
            libc::SYS_fcntl,
            libc::SYS_rt_sigaction,
            libc::SYS_rt_sigprocmask,
            libc::SYS_sched_getaffinity,
            libc::SYS_getsockname,
            libc::SYS_execve,
        ],
    },
    Known {
        arguments: 4,
        calls: &[
            libc::SYS_prlimit64,
            libc::SYS_wait4,
            libc::SYS_clock_nanosleep,
        ],
    },
    Known {
        arguments: 5,
        calls: &[libc::SYS_statx, libc::SYS_prctl],
    },
];
