// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Time, for the statistics.

use crate::syscall;

/// Monotonic time, as a rule without entering the kernel.
pub fn now_ns() -> u64 {
    read(|time| {
        // SAFETY: fills one timespec.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, time) };
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
