// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which arguments of system calls may be pointers.
//!
//! A call uses some of six registers; what is left in the others is whatever was computed
//! there before, six letters of a path for instance, and may look like an address in the
//! arena. In a program that has a pager such a call is only looked at in vain. But the
//! filter outlives an exec, and until the next image has its pager, a trap is the end of it.
//! So it is known of each call how far pointers go. An address that the kernel takes for a number
//! (`mmap`, `ioctl`) is one of them.

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
        arguments: 0,
        calls: &[
            libc::SYS_close,
            libc::SYS_lseek,
            libc::SYS_rt_sigreturn,
            libc::SYS_sched_yield,
            libc::SYS_shmget,
            libc::SYS_dup,
            libc::SYS_dup2,
            libc::SYS_pause,
            libc::SYS_alarm,
            libc::SYS_getpid,
            libc::SYS_socket,
            libc::SYS_shutdown,
            libc::SYS_listen,
            libc::SYS_fork,
            libc::SYS_vfork,
            libc::SYS_exit,
            libc::SYS_kill,
            libc::SYS_semget,
            libc::SYS_msgget,
            libc::SYS_flock,
            libc::SYS_fsync,
            libc::SYS_fdatasync,
            libc::SYS_ftruncate,
            libc::SYS_fchdir,
            libc::SYS_fchmod,
            libc::SYS_fchown,
            libc::SYS_umask,
            libc::SYS_getuid,
            libc::SYS_getgid,
            libc::SYS_setuid,
            libc::SYS_setgid,
            libc::SYS_geteuid,
            libc::SYS_getegid,
            libc::SYS_setpgid,
            libc::SYS_getppid,
            libc::SYS_getpgrp,
            libc::SYS_setsid,
            libc::SYS_setreuid,
            libc::SYS_setregid,
            libc::SYS_setresuid,
            libc::SYS_setresgid,
            libc::SYS_getpgid,
            libc::SYS_setfsuid,
            libc::SYS_setfsgid,
            libc::SYS_getsid,
            libc::SYS_personality,
            libc::SYS_getpriority,
            libc::SYS_setpriority,
            libc::SYS_sched_getscheduler,
            libc::SYS_sched_get_priority_max,
            libc::SYS_sched_get_priority_min,
            libc::SYS_mlockall,
            libc::SYS_munlockall,
            libc::SYS_vhangup,
            libc::SYS_sync,
            libc::SYS_iopl,
            libc::SYS_ioperm,
            libc::SYS_gettid,
            libc::SYS_readahead,
            libc::SYS_tkill,
            libc::SYS_io_destroy,
            libc::SYS_epoll_create,
            libc::SYS_restart_syscall,
            libc::SYS_fadvise64,
            libc::SYS_timer_getoverrun,
            libc::SYS_timer_delete,
            libc::SYS_exit_group,
            libc::SYS_tgkill,
            libc::SYS_ioprio_set,
            libc::SYS_ioprio_get,
            libc::SYS_inotify_init,
            libc::SYS_inotify_rm_watch,
            libc::SYS_unshare,
            libc::SYS_tee,
            libc::SYS_sync_file_range,
            libc::SYS_timerfd_create,
            libc::SYS_eventfd,
            libc::SYS_fallocate,
            libc::SYS_eventfd2,
            libc::SYS_epoll_create1,
            libc::SYS_dup3,
            libc::SYS_inotify_init1,
            libc::SYS_fanotify_init,
            libc::SYS_syncfs,
            libc::SYS_setns,
            libc::SYS_userfaultfd,
            libc::SYS_membarrier,
            libc::SYS_pkey_alloc,
            libc::SYS_pkey_free,
            libc::SYS_fsmount,
            libc::SYS_pidfd_open,
            libc::SYS_close_range,
            libc::SYS_pidfd_getfd,
            libc::SYS_landlock_restrict_self,
            libc::SYS_memfd_secret,
            libc::SYS_process_mrelease,
            471, // rseq_slice_yield
            472, // fchroot
        ],
    },
    Known {
        arguments: 1,
        calls: &[
            libc::SYS_open,
            libc::SYS_poll,
            libc::SYS_mmap,
            libc::SYS_mprotect,
            libc::SYS_munmap,
            libc::SYS_brk,
            libc::SYS_access,
            libc::SYS_pipe,
            libc::SYS_msync,
            libc::SYS_madvise,
            libc::SYS_uname,
            libc::SYS_shmdt,
            libc::SYS_truncate,
            libc::SYS_getcwd,
            libc::SYS_chdir,
            libc::SYS_mkdir,
            libc::SYS_rmdir,
            libc::SYS_creat,
            libc::SYS_unlink,
            libc::SYS_chmod,
            libc::SYS_chown,
            libc::SYS_lchown,
            libc::SYS_sysinfo,
            libc::SYS_times,
            libc::SYS_rt_sigpending,
            libc::SYS_rt_sigsuspend,
            libc::SYS_mknod,
            libc::SYS_uselib,
            libc::SYS_mlock,
            libc::SYS_munlock,
            libc::SYS_adjtimex,
            libc::SYS_chroot,
            libc::SYS_acct,
            libc::SYS_umount2,
            libc::SYS_swapon,
            libc::SYS_swapoff,
            libc::SYS_sethostname,
            libc::SYS_setdomainname,
            libc::SYS_delete_module,
            libc::SYS_time,
            libc::SYS_set_thread_area,
            libc::SYS_get_thread_area,
            libc::SYS_remap_file_pages,
            libc::SYS_set_tid_address,
            libc::SYS_mq_unlink,
            libc::SYS_set_robust_list,
            libc::SYS_pipe2,
            libc::SYS_perf_event_open,
            libc::SYS_getrandom,
            libc::SYS_memfd_create,
            libc::SYS_mlock2,
            libc::SYS_pkey_mprotect,
            libc::SYS_rseq,
            libc::SYS_fsopen,
            libc::SYS_clone3,
            libc::SYS_landlock_create_ruleset,
            libc::SYS_set_mempolicy_home_node,
            453, // map_shadow_stack
            454, // futex_wake
            456, // futex_requeue
            libc::SYS_mseal,
        ],
    },
    Known {
        arguments: 2,
        calls: &[
            libc::SYS_read,
            libc::SYS_write,
            libc::SYS_stat,
            libc::SYS_fstat,
            libc::SYS_lstat,
            libc::SYS_pread64,
            libc::SYS_pwrite64,
            libc::SYS_readv,
            libc::SYS_writev,
            libc::SYS_shmat,
            libc::SYS_nanosleep,
            libc::SYS_getitimer,
            libc::SYS_connect,
            libc::SYS_sendmsg,
            libc::SYS_recvmsg,
            libc::SYS_bind,
            libc::SYS_semop,
            libc::SYS_msgsnd,
            libc::SYS_msgrcv,
            libc::SYS_getdents,
            libc::SYS_rename,
            libc::SYS_link,
            libc::SYS_symlink,
            libc::SYS_readlink,
            libc::SYS_gettimeofday,
            libc::SYS_getrlimit,
            libc::SYS_getrusage,
            libc::SYS_syslog,
            libc::SYS_getgroups,
            libc::SYS_setgroups,
            libc::SYS_capget,
            libc::SYS_capset,
            libc::SYS_sigaltstack,
            libc::SYS_utime,
            libc::SYS_ustat,
            libc::SYS_statfs,
            libc::SYS_fstatfs,
            libc::SYS_sched_setparam,
            libc::SYS_sched_getparam,
            libc::SYS_sched_rr_get_interval,
            libc::SYS_modify_ldt,
            libc::SYS_pivot_root,
            libc::SYS_arch_prctl,
            libc::SYS_setrlimit,
            libc::SYS_settimeofday,
            libc::SYS_listxattr,
            libc::SYS_llistxattr,
            libc::SYS_flistxattr,
            libc::SYS_removexattr,
            libc::SYS_lremovexattr,
            libc::SYS_fremovexattr,
            libc::SYS_io_setup,
            libc::SYS_getdents64,
            libc::SYS_timer_gettime,
            libc::SYS_clock_settime,
            libc::SYS_clock_gettime,
            libc::SYS_clock_getres,
            libc::SYS_epoll_wait,
            libc::SYS_utimes,
            libc::SYS_set_mempolicy,
            libc::SYS_mq_notify,
            libc::SYS_inotify_add_watch,
            libc::SYS_openat,
            libc::SYS_mkdirat,
            libc::SYS_mknodat,
            libc::SYS_fchownat,
            libc::SYS_unlinkat,
            libc::SYS_fchmodat,
            libc::SYS_faccessat,
            libc::SYS_vmsplice,
            libc::SYS_signalfd,
            libc::SYS_timerfd_gettime,
            libc::SYS_signalfd4,
            libc::SYS_preadv,
            libc::SYS_pwritev,
            libc::SYS_open_by_handle_at,
            libc::SYS_clock_adjtime,
            libc::SYS_sendmmsg,
            libc::SYS_finit_module,
            libc::SYS_sched_setattr,
            libc::SYS_sched_getattr,
            libc::SYS_preadv2,
            libc::SYS_pwritev2,
            libc::SYS_io_uring_setup,
            libc::SYS_open_tree,
            libc::SYS_fspick,
            libc::SYS_faccessat2,
            libc::SYS_process_madvise,
            libc::SYS_bpf,
            libc::SYS_fchmodat2,
            457, // statmount
            458, // listmount
            460, // lsm_set_self_attr
            461, // lsm_list_modules
            470, // listns
        ],
    },
    Known {
        arguments: 3,
        calls: &[
            libc::SYS_rt_sigaction,
            libc::SYS_rt_sigprocmask,
            libc::SYS_ioctl,
            libc::SYS_mincore,
            libc::SYS_shmctl,
            libc::SYS_setitimer,
            libc::SYS_sendfile,
            libc::SYS_accept,
            libc::SYS_getsockname,
            libc::SYS_getpeername,
            libc::SYS_execve,
            libc::SYS_msgctl,
            libc::SYS_fcntl,
            libc::SYS_getresuid,
            libc::SYS_getresgid,
            libc::SYS_rt_sigtimedwait,
            libc::SYS_rt_sigqueueinfo,
            libc::SYS_sysfs,
            libc::SYS_sched_setscheduler,
            libc::SYS_init_module,
            libc::SYS_setxattr,
            libc::SYS_lsetxattr,
            libc::SYS_fsetxattr,
            libc::SYS_getxattr,
            libc::SYS_lgetxattr,
            libc::SYS_fgetxattr,
            libc::SYS_sched_setaffinity,
            libc::SYS_sched_getaffinity,
            libc::SYS_io_submit,
            libc::SYS_io_cancel,
            libc::SYS_timer_create,
            libc::SYS_mq_getsetattr,
            libc::SYS_kexec_load,
            libc::SYS_add_key,
            libc::SYS_request_key,
            libc::SYS_futimesat,
            libc::SYS_newfstatat,
            libc::SYS_symlinkat,
            libc::SYS_readlinkat,
            libc::SYS_get_robust_list,
            libc::SYS_utimensat,
            libc::SYS_accept4,
            libc::SYS_getcpu,
            libc::SYS_seccomp,
            libc::SYS_pidfd_send_signal,
            libc::SYS_io_uring_register,
            libc::SYS_openat2,
            libc::SYS_landlock_add_rule,
            451, // cachestat
            459, // lsm_get_self_attr
            468, // file_getattr
            469, // file_setattr
        ],
    },
    Known {
        arguments: 4,
        calls: &[
            libc::SYS_socketpair,
            libc::SYS_setsockopt,
            libc::SYS_wait4,
            libc::SYS_semctl,
            libc::SYS_ptrace,
            libc::SYS_reboot,
            libc::SYS_quotactl,
            libc::SYS_semtimedop,
            libc::SYS_timer_settime,
            libc::SYS_clock_nanosleep,
            libc::SYS_epoll_ctl,
            libc::SYS_mbind,
            libc::SYS_get_mempolicy,
            libc::SYS_mq_open,
            libc::SYS_migrate_pages,
            libc::SYS_renameat,
            libc::SYS_linkat,
            libc::SYS_ppoll,
            libc::SYS_splice,
            libc::SYS_timerfd_settime,
            libc::SYS_rt_tgsigqueueinfo,
            libc::SYS_prlimit64,
            libc::SYS_name_to_handle_at,
            libc::SYS_process_vm_readv,
            libc::SYS_process_vm_writev,
            libc::SYS_renameat2,
            libc::SYS_kexec_file_load,
            libc::SYS_execveat,
            libc::SYS_copy_file_range,
            libc::SYS_move_mount,
            libc::SYS_fsconfig,
            libc::SYS_mount_setattr,
            libc::SYS_quotactl_fd,
            libc::SYS_futex_waitv,
            465, // listxattrat
            466, // removexattrat
            467, // open_tree_attr
        ],
    },
    Known {
        arguments: 5,
        calls: &[
            libc::SYS_select,
            libc::SYS_mremap,
            libc::SYS_sendto,
            libc::SYS_getsockopt,
            libc::SYS_clone,
            libc::SYS_prctl,
            libc::SYS_mount,
            libc::SYS_futex,
            libc::SYS_io_getevents,
            libc::SYS_mq_timedsend,
            libc::SYS_mq_timedreceive,
            libc::SYS_waitid,
            libc::SYS_fanotify_mark,
            libc::SYS_keyctl,
            libc::SYS_move_pages,
            libc::SYS_epoll_pwait,
            libc::SYS_recvmmsg,
            libc::SYS_kcmp,
            libc::SYS_statx,
            libc::SYS_io_uring_enter,
            libc::SYS_epoll_pwait2,
            455, // futex_wait
            463, // setxattrat
            464, // getxattrat
        ],
    },
    Known {
        arguments: 6,
        calls: &[
            libc::SYS_recvfrom,
            libc::SYS_pselect6,
            333, // io_pgetevents
        ],
    },
];

/// Numbers that are looked up.
pub const NUMBERS: usize = 480;

/// How many of the first arguments of each call may be pointers.
pub fn arguments() -> [u32; NUMBERS] {
    let mut arguments = [6; NUMBERS];
    for known in KNOWN {
        for &call in known.calls {
            if let Some(one) = usize::try_from(call)
                .ok()
                .and_then(|call| arguments.get_mut(call))
            {
                *one = known.arguments;
            }
        }
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interpose::arguments::{Extent, pointers};

    /// Number, name and arguments of a call, by what the kernel declares.
    fn declared() -> impl Iterator<Item = (usize, &'static str, &'static str)> {
        let lines = include_str!("signatures.txt").lines();
        lines.filter(|line| !line.starts_with('#')).map(|line| {
            let mut words = line.split(' ');
            let number = words.next().unwrap().parse().unwrap();
            (number, words.next().unwrap(), words.next().unwrap_or(""))
        })
    }

    #[test]
    fn pointers_reach_as_far_as_the_kernel_declares() {
        let known = arguments();
        let mut count = 0;
        for (number, name, letters) in declared() {
            assert!(letters.len() <= 6 && letters.chars().all(|one| "pn".contains(one)));
            let reach = letters.rfind('p').map_or(0, |last| last + 1);
            assert_eq!(known[number] as usize, reach, "{name} ({letters})");
            count += 1;
        }
        assert!(count > 350, "{count}");
        // The others count in full, and nothing is named twice.
        let named: Vec<_> = KNOWN.iter().flat_map(|known| known.calls).collect();
        for &&number in &named {
            assert!(
                declared().any(|call| call.0 == number as usize),
                "{number} is not declared"
            );
            assert_eq!(named.iter().filter(|&&&one| one == number).count(), 1);
        }
    }

    /// What is brought in for a call that points into the arena is among what is looked at.
    #[test]
    fn what_is_known_of_pointers_agrees() {
        for (number, &reach) in arguments().iter().enumerate() {
            for pointer in pointers(number as libc::c_long) {
                // What is not known of is tried in all arguments.
                if pointer.extent != Extent::Structure(8192) {
                    assert!((pointer.argument as u32) < reach, "{number}");
                }
            }
        }
    }
}
