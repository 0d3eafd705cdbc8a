// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Time, for the statistics.

use std::sync::atomic::{AtomicPtr, Ordering};

use crate::syscall;

type Clock = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> libc::c_int;

/// The C library's own; null where it was not found.
static CLOCK: AtomicPtr<libc::c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Looks for the C library's clock. A library that is loaded beside ours may have one of the
/// same name, which tells another time, or has variables of a thread where the pager's have none.
pub fn find() {
    // SAFETY: names that end; the library stays loaded as long as anything is.
    let found = unsafe {
        let library = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        match library.is_null() {
            true => library,
            false => libc::dlsym(library, c"clock_gettime".as_ptr()),
        }
    };
    CLOCK.store(found, Ordering::Relaxed);
}

/// Monotonic time, as a rule without entering the kernel.
pub fn now_ns() -> u64 {
    let found = CLOCK.load(Ordering::Relaxed);
    read(|time| {
        // SAFETY: fills one timespec; what was found is a function of this type.
        unsafe {
            if found.is_null() {
                libc::clock_gettime(libc::CLOCK_MONOTONIC, time);
            } else {
                std::mem::transmute::<*mut libc::c_void, Clock>(found)(libc::CLOCK_MONOTONIC, time);
            }
        }
    })
}

/// CPU time of this thread.
pub fn thread_cpu_ns() -> u64 {
    read(|time| {
        let clock = libc::CLOCK_THREAD_CPUTIME_ID as usize;
        // SAFETY: fills one timespec.
        unsafe { syscall::call(libc::SYS_clock_gettime, [clock, time as usize, 0, 0, 0, 0]) };
    })
}

fn read(fill: impl FnOnce(*mut libc::timespec)) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    fill(&raw mut time);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
