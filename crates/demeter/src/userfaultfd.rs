// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Does this kernel let a process page its own memory?

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::error::{Error, refuse};

/// `UFFD_API`.
const API: u64 = 0xaa;
/// `UFFDIO_API`: `_IOWR(0xaa, 0x3f, struct uffdio_api)`.
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
/// `UFFD_USER_MODE_ONLY`: what a process without privileges may have.
const USER_MODE_ONLY: libc::c_int = 1;
/// First writes to clean pages are seen, faults raise a signal in the thread, and pages are moved
/// out of sight. The last came with Linux 6.8.
const NEEDED: [(u64, &str); 3] = [
    (1 << 0, "write protection"),
    (1 << 7, "SIGBUS"),
    (1 << 16, "UFFDIO_MOVE"),
];

#[repr(C)]
struct UffdioApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// Refuses kernels without the features.
pub fn check() -> Result<(), Error> {
    // SAFETY: a new descriptor.
    let descriptor = unsafe {
        libc::syscall(
            libc::SYS_userfaultfd,
            libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY,
        )
    };
    if descriptor < 0 {
        let error = std::io::Error::last_os_error();
        return Err(match error.raw_os_error() {
            Some(libc::ENOSYS) => refuse(
                "this kernel has no userfaultfd",
                "run a kernel with CONFIG_USERFAULTFD (6.8 or later)",
            ),
            Some(libc::EPERM) => refuse(
                "userfaultfd is refused (a container's seccomp filter?)",
                "allow the system call userfaultfd",
            ),
            _ => refuse(
                format!("userfaultfd does not work: {error}"),
                "see `demeter extmem doctor`",
            ),
        });
    }
    // SAFETY: just opened, and ours.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor as i32) };
    let mut api = UffdioApi {
        api: API,
        features: 0,
        ioctls: 0,
    };
    // SAFETY: the structure of this call.
    if unsafe { libc::ioctl(descriptor.as_raw_fd(), UFFDIO_API, &raw mut api) } != 0 {
        return Err(refuse(
            format!(
                "userfaultfd does not answer: {}",
                std::io::Error::last_os_error()
            ),
            "run a kernel of 6.8 or later",
        ));
    }
    judge(api.features)
}

fn judge(features: u64) -> Result<(), Error> {
    match NEEDED.iter().find(|(bit, _)| features & bit == 0) {
        Some((_, name)) => Err(refuse(
            format!("this kernel's userfaultfd has no {name}"),
            "run a kernel of 6.8 or later",
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_kernel_before_6_8_is_refused() {
        let all = super::NEEDED.iter().fold(0, |all, (bit, _)| all | bit);
        assert!(super::judge(all | 1 << 40).is_ok());
        for (bit, name) in super::NEEDED {
            let error = super::judge(all & !bit).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
            assert!(error.next().contains("6.8"), "{}", error.next());
        }
    }

    #[test]
    fn the_probe_answers() {
        // Either way it must say so in a line and not fall over.
        if let Err(error) = super::check() {
            assert!(!error.to_string().contains('\n'));
        }
    }
}
