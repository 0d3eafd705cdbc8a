// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a worker gives up before it hears of a guest: its user, the file system, system calls
//! that it has no use for, and memory and descriptors without end. What the kernel or the
//! service manager does not let it give up is told, and the rest is given up even so.

use std::collections::BTreeMap;
use std::io;

use demeter_balloon::view::Confinement;
use landlock::{ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetStatus, Scope};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

/// Heap and stacks. The ledger of a guest takes a bit for each page in its balloons: this is
/// enough for eight tebibytes. Guest memory itself is shared and does not count.
const MEMORY_BYTES: u64 = 512 << 20;
/// Regions of guest memory, twice (while a table changes), and what rings need.
const DESCRIPTORS: u64 = 1536;
/// It has some five; those of a connection may outlast it for a while.
const THREADS: u64 = 64;

/// What was meant to be given up and is not.
#[derive(Debug, thiserror::Error)]
enum ConfineError {
    #[error("no user of its own: {0}")]
    User(io::Error),
    #[error("limit {0}: {1}")]
    Limit(&'static str, io::Error),
    #[error("first to go when memory is short: {0}")]
    Memory(io::Error),
    #[error("an end with its coordinator: {0}")]
    Parent(io::Error),
    #[error("new privileges: {0}")]
    Privileges(io::Error),
    #[error("landlock: {0}")]
    Landlock(String),
    #[error("seccomp: {0}")]
    Seccomp(String),
}

/// Gives all up that can be. For a process that has one thread, and that `parent` started.
pub fn confine(uid: Option<u32>, parent: libc::pid_t) -> Confinement {
    let mut missing = Vec::new();
    let mut tried = |done: Result<(), ConfineError>| {
        let is_done = done.is_ok();
        missing.extend(done.err().map(|error| error.to_string()));
        is_done
    };
    tried(first_to_go());
    tried(limits());
    let uid = uid.filter(|&uid| tried(user(uid)));
    if uid.is_some() {
        // Of a user that others have, too, theirs would count.
        tried(limit("threads", libc::RLIMIT_NPROC, THREADS));
    }
    // A change of the user takes it back; the list of system calls lets nothing do so.
    tried(ends_with(parent));
    tried(no_new_privileges());
    let landlock = tried(file_system());
    let seccomp = tried(system_calls());
    Confinement {
        uid,
        seccomp,
        landlock,
        missing,
    }
}

/// For calls that answer with a negative number.
fn system(status: libc::c_int) -> io::Result<()> {
    if status < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// When memory is short, one guest loses its worker, and not all of them the coordinator.
fn first_to_go() -> Result<(), ConfineError> {
    std::fs::write("/proc/self/oom_score_adj", "1000").map_err(ConfineError::Memory)
}

/// Also one that is stopped: its coordinator's successor has to listen in its place.
fn ends_with(parent: libc::pid_t) -> Result<(), ConfineError> {
    // SAFETY: numbers only.
    let status = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) };
    system(status).map_err(ConfineError::Parent)?;
    // SAFETY: asks for a number.
    if unsafe { libc::getppid() } != parent {
        // SAFETY: ends the process: the coordinator has ended before.
        unsafe { libc::_exit(1) };
    }
    Ok(())
}

fn limits() -> Result<(), ConfineError> {
    limit("data", libc::RLIMIT_DATA, MEMORY_BYTES)?;
    limit("descriptors", libc::RLIMIT_NOFILE, DESCRIPTORS)?;
    // Guest memory must not end in a core file.
    limit("core", libc::RLIMIT_CORE, 0)
}

fn limit(
    name: &'static str,
    resource: libc::__rlimit_resource_t,
    most: u64,
) -> Result<(), ConfineError> {
    let failed = |cause| ConfineError::Limit(name, cause);
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: limit lives until the end.
    system(unsafe { libc::getrlimit(resource, &raw mut limit) }).map_err(failed)?;
    limit.rlim_max = limit.rlim_max.min(most);
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: as above.
    system(unsafe { libc::setrlimit(resource, &raw const limit) }).map_err(failed)
}

/// A user and a group that nobody else has. Capabilities go with the old user.
fn user(uid: u32) -> Result<(), ConfineError> {
    // SAFETY: numbers only; no groups are read from a null pointer of length zero.
    let groups = system(unsafe { libc::setgroups(0, std::ptr::null()) });
    groups.map_err(ConfineError::User)?;
    // SAFETY: numbers only.
    system(unsafe { libc::setresgid(uid, uid, uid) }).map_err(ConfineError::User)?;
    // SAFETY: numbers only.
    system(unsafe { libc::setresuid(uid, uid, uid) }).map_err(ConfineError::User)
}

/// No program that it starts gets more than it has, and nobody reads its memory.
fn no_new_privileges() -> Result<(), ConfineError> {
    for (option, value) in [(libc::PR_SET_NO_NEW_PRIVS, 1), (libc::PR_SET_DUMPABLE, 0)] {
        // SAFETY: numbers only.
        let status = unsafe { libc::prctl(option, value as libc::c_ulong, 0, 0, 0) };
        system(status).map_err(ConfineError::Privileges)?;
    }
    Ok(())
}

/// Nothing but what it holds open.
fn file_system() -> Result<(), ConfineError> {
    let words = |error: landlock::RulesetError| ConfineError::Landlock(error.to_string());
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(ABI::V5))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(ABI::V5)))
        .and_then(|rules| rules.scope(Scope::from_all(ABI::V6)))
        .and_then(|rules| rules.create())
        .and_then(|rules| rules.restrict_self())
        .map_err(words)?;
    match status.ruleset {
        RulesetStatus::NotEnforced => Err(ConfineError::Landlock(
            "this kernel has none, or it is not among its security modules (lsm=)".into(),
        )),
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
    }
}

fn system_calls() -> Result<(), ConfineError> {
    let words = |error: &dyn std::fmt::Display| ConfineError::Seccomp(error.to_string());
    for filter in filters().map_err(|error| words(&error))? {
        apply_filter(&filter).map_err(|error| words(&error))?;
    }
    Ok(())
}

/// System calls without conditions.
const ALLOWED: &[libc::c_long] = &[
    // Messages, rings and events.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_accept4,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_close,
    libc::SYS_ppoll,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    libc::SYS_pipe2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    // Guest memory.
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_statx,
    // Memory and threads of its own.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Those that only older machines have.
#[cfg(target_arch = "x86_64")]
const ALLOWED_HERE: &[libc::c_long] = &[libc::SYS_poll, libc::SYS_epoll_wait];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_HERE: &[libc::c_long] = &[];

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// All that is not allowed ends the process. The second filter lets libc make threads by
/// the call whose flags can be looked at.
fn filters() -> Result<[BpfProgram; 2], seccompiler::BackendError> {
    let mut rules: Rules = (ALLOWED.iter().chain(ALLOWED_HERE))
        .map(|&call| (call, Vec::new()))
        .collect();
    let flag = |argument, mask: libc::c_int, value: libc::c_int| {
        let operation = SeccompCmpOp::MaskedEq(mask as u64);
        let length = SeccompCmpArgLen::Dword;
        SeccompCondition::new(argument, length, operation, value as u64)
    };
    let is = |argument, value: u64| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
    };
    // No memory becomes a program, and none is shared that is no file's: nothing bounds that.
    let plain = || flag(2, libc::PROT_EXEC, 0);
    let of_a_file = flag(3, libc::MAP_ANONYMOUS, 0)?;
    let private = flag(3, libc::MAP_TYPE, libc::MAP_PRIVATE)?;
    // The C library's getrandom() keeps its state in such memory (glibc 2.41 on Linux 6.11 or
    // later): private memory that the kernel may drop, which RLIMIT_DATA bounds.
    let droppable = flag(3, libc::MAP_TYPE, libc::MAP_DROPPABLE)?;
    let maps = [
        SeccompRule::new(vec![plain()?, of_a_file])?,
        SeccompRule::new(vec![plain()?, private])?,
        SeccompRule::new(vec![plain()?, droppable])?,
    ];
    rules.insert(libc::SYS_mmap, maps.into());
    rules.insert(libc::SYS_mprotect, vec![SeccompRule::new(vec![plain()?])?]);
    let threads = libc::CLONE_THREAD | libc::CLONE_VM;
    let rule = SeccompRule::new(vec![flag(0, threads, threads)?])?;
    rules.insert(libc::SYS_clone, vec![rule]);
    rules.insert(libc::SYS_clone3, Vec::new());
    let mut some = |call, argument, values: &[libc::c_int]| {
        let rule = |&value| SeccompRule::new(vec![is(argument, value as u64)?]);
        let list = values.iter().map(rule).collect::<Result<Vec<_>, _>>()?;
        rules.insert(call, list);
        Ok::<(), seccompiler::BackendError>(())
    };
    // Names of threads; and what allocators call areas of memory.
    some(libc::SYS_prctl, 0, &[libc::PR_SET_NAME, libc::PR_SET_VMA])?;
    // Holes, and nothing else: a file that grows is memory of the host.
    let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    some(libc::SYS_fallocate, 1, &[hole])?;
    let fcntls = [
        libc::F_DUPFD_CLOEXEC,
        libc::F_GETFD,
        libc::F_SETFD,
        libc::F_GETFL,
        libc::F_SETFL,
    ];
    some(libc::SYS_fcntl, 1, &fcntls)?;
    some(libc::SYS_ioctl, 1, &[libc::FIONBIO as libc::c_int])?;
    // Of a file that is open already.
    some(libc::SYS_newfstatat, 3, &[libc::AT_EMPTY_PATH])?;
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let first = SeccompFilter::new(
        rules,
        SeccompAction::KillProcess,
        SeccompAction::Allow,
        arch,
    )?;
    let second = SeccompFilter::new(
        Rules::from([(libc::SYS_clone3, Vec::new())]),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::ENOSYS as u32),
        arch,
    )?;
    Ok([BpfProgram::try_from(second)?, BpfProgram::try_from(first)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, ExitStatus};
    use std::ptr;

    const WHAT: &str = "DEMETERD_TEST_CONFINED";
    /// How one process reaches another one of its user, becomes somebody else, or shares what
    /// has no file. Under a service that may not change its user all workers have the same one,
    /// and this is what keeps them apart, from each other and from the coordinator.
    const TO_NEIGHBOURS: &[(&str, libc::c_long)] = &[
        ("kill", libc::SYS_kill),
        ("tgkill", libc::SYS_tgkill),
        ("rt_sigqueueinfo", libc::SYS_rt_sigqueueinfo),
        ("pidfd_open", libc::SYS_pidfd_open),
        ("pidfd_getfd", libc::SYS_pidfd_getfd),
        ("pidfd_send_signal", libc::SYS_pidfd_send_signal),
        ("ptrace", libc::SYS_ptrace),
        ("process_vm_readv", libc::SYS_process_vm_readv),
        ("process_vm_writev", libc::SYS_process_vm_writev),
        ("process_madvise", libc::SYS_process_madvise),
        ("kcmp", libc::SYS_kcmp),
        ("prlimit64", libc::SYS_prlimit64),
        ("setpriority", libc::SYS_setpriority),
        ("sched_setaffinity", libc::SYS_sched_setaffinity),
        ("ioprio_set", libc::SYS_ioprio_set),
        ("migrate_pages", libc::SYS_migrate_pages),
        ("move_pages", libc::SYS_move_pages),
        ("openat", libc::SYS_openat),
        ("openat2", libc::SYS_openat2),
        ("open_by_handle_at", libc::SYS_open_by_handle_at),
        ("connect", libc::SYS_connect),
        ("bind", libc::SYS_bind),
        ("shmget", libc::SYS_shmget),
        ("semget", libc::SYS_semget),
        ("msgget", libc::SYS_msgget),
        ("mq_open", libc::SYS_mq_open),
        ("add_key", libc::SYS_add_key),
        ("keyctl", libc::SYS_keyctl),
        ("memfd_create", libc::SYS_memfd_create),
        ("userfaultfd", libc::SYS_userfaultfd),
        ("perf_event_open", libc::SYS_perf_event_open),
        ("bpf", libc::SYS_bpf),
        ("io_uring_setup", libc::SYS_io_uring_setup),
        ("unshare", libc::SYS_unshare),
        ("setns", libc::SYS_setns),
        ("setresuid", libc::SYS_setresuid),
        ("execve", libc::SYS_execve),
    ];

    /// Runs [`inside`] in a process of its own.
    fn confined(what: &str) -> ExitStatus {
        let this = std::env::current_exe().unwrap();
        Command::new(this)
            .args(["--ignored", "--exact", "confine::tests::inside"])
            .env(WHAT, what)
            .output()
            .unwrap()
            .status
    }

    #[test]
    #[ignore = "the other tests run it in processes of their own"]
    fn inside() {
        let what = std::env::var(WHAT).unwrap();
        let sock = UdpSocket::bind("127.0.0.1:0").unwrap();
        if what == "file by landlock" {
            match file_system() {
                Ok(()) => assert!(File::open("/proc/self/status").is_err()),
                Err(error) => eprintln!("not checked: {error}"),
            }
            return;
        }
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        // SAFETY: asks for a number.
        let confinement = confine(None, unsafe { libc::getppid() });
        assert!(confinement.seccomp, "{:?}", confinement.missing);
        match what.as_str() {
            "nothing" => {
                let bytes = std::thread::spawn(|| vec![1_u8; 8 << 20].len());
                assert_eq!(bytes.join().unwrap(), 8 << 20);
                let most = std::panic::catch_unwind(|| {
                    let mut many: Vec<u8> = Vec::new();
                    many.try_reserve_exact(MEMORY_BYTES as usize)
                });
                assert!(most.unwrap().is_err(), "memory without end");
                let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                // SAFETY: a descriptor that is open, and numbers.
                let punched = unsafe { libc::fallocate(file.as_raw_fd(), hole, 0, 4096) };
                assert_eq!(punched, 0);
                let protection = libc::PROT_READ | libc::PROT_WRITE;
                let (flags, fd) = (libc::MAP_SHARED | libc::MAP_NORESERVE, file.as_raw_fd());
                // SAFETY: new memory that nobody uses.
                let at = unsafe { libc::mmap(ptr::null_mut(), 4096, protection, flags, fd, 0) };
                assert_ne!(at, libc::MAP_FAILED);
                // Older kernels do not have it; asking must not end us.
                let flags = libc::MAP_DROPPABLE | libc::MAP_ANONYMOUS;
                // SAFETY: new memory that nobody uses.
                unsafe { libc::mmap(ptr::null_mut(), 4096, protection, flags, -1, 0) };
            }
            "file" => drop(File::open("/proc/self/status")),
            "socket" => drop(UdpSocket::bind("127.0.0.1:0")),
            "program" => drop(Command::new("/bin/true").status()),
            // SAFETY: a number; the process ends at it.
            "signal" => drop(unsafe { libc::kill(libc::getppid(), 0) }),
            "code" => {
                let protection = libc::PROT_READ | libc::PROT_EXEC;
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                // SAFETY: new memory that nobody uses.
                unsafe { libc::mmap(ptr::null_mut(), 4096, protection, flags, -1, 0) };
            }
            // SAFETY: a descriptor that is open, and numbers.
            "growing" => drop(unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, 1 << 20) }),
            "shared" => {
                let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
                // SAFETY: new memory that nobody uses.
                unsafe { libc::mmap(ptr::null_mut(), 4096, libc::PROT_READ, flags, -1, 0) };
            }
            other => {
                let call = TO_NEIGHBOURS.iter().find(|(name, _)| *name == other);
                // SAFETY: numbers, none of which any of these calls takes for a place of memory
                // that it may write to; the process ends at it.
                unsafe { libc::syscall(call.unwrap().1, 0, 0, 0, 0, 0, 0) };
            }
        }
        std::mem::forget(sock);
        // SAFETY: ends the process; the harness has threads that are not confined.
        unsafe { libc::_exit(0) };
    }

    #[test]
    fn what_a_worker_has_no_use_for_ends_it() {
        assert!(confined("nothing").success());
        assert!(confined("file by landlock").success());
        for what in [
            "file", "socket", "program", "signal", "code", "growing", "shared",
        ] {
            let status = confined(what);
            assert_eq!(status.signal(), Some(libc::SIGSYS), "{what}: {status}");
        }
    }

    #[test]
    fn what_leads_to_another_process_of_its_user_ends_a_worker() {
        for (name, _) in TO_NEIGHBOURS {
            let status = confined(name);
            assert_eq!(status.signal(), Some(libc::SIGSYS), "{name}: {status}");
        }
    }
}
