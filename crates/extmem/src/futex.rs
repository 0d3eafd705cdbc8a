// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sleeping: on a word of this process until somebody wakes it, or for a while; and
//! giving the processor away.
//!
//! Sleepers may wake for no reason; callers look again.

use std::sync::atomic::AtomicU32;

use crate::syscall;

/// Wakes everybody.
pub const ALL: u32 = i32::MAX as u32;

/// Sleeps while the word is `seen`, for `most_ns` at most (below a second).
pub fn wait(word: &AtomicU32, seen: u32, most_ns: Option<u32>) {
    // SAFETY: a word that lives through the call.
    unsafe { wait_at(word.as_ptr(), seen, most_ns) };
}

/// Wakes up to `most` sleepers.
pub fn wake(word: &AtomicU32, most: u32) {
    // SAFETY: a word that lives through the call.
    unsafe { wake_at(word.as_ptr(), most) };
}

/// As [`wait`], on a word that is part of something larger.
///
/// # Safety
/// `word` must be aligned and mapped for as long as the call sleeps.
pub unsafe fn wait_at(word: *const u32, seen: u32, most_ns: Option<u32>) {
    let timeout = most_ns.map(time);
    let timeout = timeout.as_ref().map_or(0, |time| &raw const *time as usize);
    // SAFETY: the caller vouches for the word; the timeout outlives the call.
    unsafe { call(word, libc::FUTEX_WAIT, seen, timeout) };
}

/// As [`wake`], on a word that is part of something larger.
///
/// # Safety
/// `word` must be aligned and mapped.
pub unsafe fn wake_at(word: *const u32, most: u32) {
    // SAFETY: the caller vouches for the word.
    unsafe { call(word, libc::FUTEX_WAKE, most, 0) };
}

/// Sleeps for `ns` (below a second), less if a signal comes.
pub fn pause(ns: u32) {
    let time = time(ns);
    // SAFETY: one timespec.
    unsafe {
        syscall::call(
            libc::SYS_nanosleep,
            [&raw const time as usize, 0, 0, 0, 0, 0],
        )
    };
}

/// Gives the processor away.
pub fn yield_now() {
    // SAFETY: no arguments.
    unsafe { syscall::call(libc::SYS_sched_yield, [0; 6]) };
}

fn time(ns: u32) -> libc::timespec {
    libc::timespec {
        tv_sec: 0,
        tv_nsec: ns.into(),
    }
}

/// # Safety
/// The word, and the timeout if there is one, must be valid for the call.
unsafe fn call(word: *const u32, operation: libc::c_int, value: u32, timeout: usize) {
    let operation = (operation | libc::FUTEX_PRIVATE_FLAG) as usize;
    // SAFETY: the caller vouches for both.
    unsafe {
        syscall::call(
            libc::SYS_futex,
            [word as usize, operation, value as usize, timeout, 0, 0],
        )
    };
}
