// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mounts what the initrd left out. Nothing here is fatal: what is missing
//! shows up where it is used, with a better message than a mount error.

use std::fs;
use std::path::Path;

use demeter_agent::protocol::{COMMAND_CGROUP, DATA_DIR};
use nix::mount::{MsFlags, mount};

use crate::error::Error;

/// What the agent itself needs before it can speak.
pub fn essential() {
    for (kind, target) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        mount_missing(kind, target, None);
    }
}

/// What COMMAND and the managers need.
pub fn rest() {
    for (kind, target, options) in [
        ("tmpfs", "/run", Some("mode=0755")),
        ("tmpfs", "/tmp", None),
        ("devpts", "/dev/pts", None),
        ("tmpfs", "/dev/shm", None),
        ("debugfs", "/sys/kernel/debug", None),
        ("tracefs", "/sys/kernel/tracing", None),
        ("cgroup2", "/sys/fs/cgroup", None),
    ] {
        mount_missing(kind, target, options);
    }
    for (target, name) in [
        ("/proc/self/fd", "/dev/fd"),
        ("/proc/self/fd/0", "/dev/stdin"),
        ("/proc/self/fd/1", "/dev/stdout"),
        ("/proc/self/fd/2", "/dev/stderr"),
    ] {
        let _ = std::os::unix::fs::symlink(target, name);
    }
    let _ = fs::create_dir_all("/run/demeter");
    let _ = nix::unistd::sethostname("demeter");
    bring_up_loopback();
}

/// Input data: the second persistent memory device, mapped rather than copied.
pub fn data() -> Result<(), Error> {
    let failed = |cause: std::io::Error| Error::file(DATA_DIR, cause);
    fs::create_dir_all(DATA_DIR).map_err(failed)?;
    mount(
        Some("/dev/pmem1"),
        DATA_DIR,
        Some("erofs"),
        MsFlags::MS_RDONLY,
        Some("dax=always"),
    )
    .map_err(|errno| failed(errno.into()))
}

/// The cgroup that COMMAND will live in, with the memory controller where the
/// kernel offers it.
pub fn command_cgroup() {
    let _ = fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+memory");
    let _ = fs::create_dir_all(COMMAND_CGROUP);
}

fn mount_missing(kind: &str, target: &str, options: Option<&str>) {
    if is_mounted(target) {
        return;
    }
    let _ = fs::create_dir_all(target);
    let _ = mount(Some(kind), target, Some(kind), MsFlags::MS_NOSUID, options);
}

fn is_mounted(target: &str) -> bool {
    match fs::read_to_string("/proc/self/mounts") {
        Ok(mounts) => mounts
            .lines()
            .any(|line| line.split(' ').nth(1) == Some(target)),
        // No /proc yet: only /proc itself can be told.
        Err(_) => Path::new(target).join("self").exists(),
    }
}

/// Servers and their clients in one guest talk over 127.0.0.1.
fn bring_up_loopback() {
    // SAFETY: plain socket and ioctl calls on a zeroed ifreq that names "lo";
    // the descriptor is closed again.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if socket < 0 {
            return;
        }
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        if libc::ioctl(socket, libc::SIOCGIFFLAGS, &mut request) == 0 {
            request.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short;
            libc::ioctl(socket, libc::SIOCSIFFLAGS, &request);
        }
        libc::close(socket);
    }
}
