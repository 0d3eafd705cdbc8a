// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A process ends with the last of its own threads: those of the pager must not keep it.
//!
//! Most end by `exit_group`. What clone() of the C library made on a stack of its own ends as a
//! thread does when its function returns, and so may the first thread of any program.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use crate::pager::Pager;
use crate::{descriptor, syscall};

/// This process may end with a thread; forks of it return from the same function.
static BY_THREADS: AtomicBool = AtomicBool::new(false);
/// The first thread has ended. It counts as one of the process's threads until the last ends.
static FIRST_ENDED: AtomicU32 = AtomicU32::new(0);
/// What a thread ended with last: what the process ends with (since Linux 6.0).
static STATUS: AtomicI32 = AtomicI32::new(0);

/// From here on it is looked at whether a thread that ends is the last.
pub fn by_threads() {
    BY_THREADS.store(true, Ordering::SeqCst);
}

/// The thread that made the fork is the first one here.
pub fn after_fork_in_child() {
    FIRST_ENDED.store(0, Ordering::SeqCst);
}

/// A thread of the C library's ends: with it the process, if it is the last.
pub fn thread_ends(pager: &Pager, arguments: [usize; 6]) -> isize {
    // SAFETY: no arguments.
    let [thread, process] = [libc::SYS_gettid, libc::SYS_getpid]
        .map(|call| unsafe { syscall::call(call, [0; 6]) as i32 });
    // Not what shares the memory of another process.
    if process == pager.process.load(Ordering::Relaxed) {
        let status = arguments[0] as i32;
        let is_first = thread == process;
        if is_first {
            BY_THREADS.store(true, Ordering::SeqCst);
        }
        if BY_THREADS.load(Ordering::SeqCst) {
            if others(pager, 1) == Some(0) {
                end(status);
            }
            STATUS.store(status, Ordering::SeqCst);
            if is_first {
                FIRST_ENDED.store(1, Ordering::SeqCst);
            }
        }
    }
    // SAFETY: the program's own call.
    unsafe { syscall::call(libc::SYS_exit, arguments) }
}

/// Two threads may have ended at a time, each of them not the last.
pub fn end_if_alone(pager: &Pager) {
    if FIRST_ENDED.load(Ordering::SeqCst) == 1 && others(pager, 0) == Some(0) {
        end(STATUS.load(Ordering::SeqCst));
    }
}

fn end(status: i32) -> ! {
    loop {
        // SAFETY: ends the process.
        unsafe { syscall::call(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0, 0]) };
    }
}

/// Threads of the program beside so many that are known, and the first one once that has ended.
/// None where /proc does not say it.
fn others(pager: &Pager, known: u32) -> Option<u32> {
    let ended = FIRST_ENDED.load(Ordering::SeqCst);
    let own = pager.own_threads.load(Ordering::SeqCst);
    threads()?.checked_sub(own + known + ended)
}

/// Threads of this process, the pager's among them.
fn threads() -> Option<u32> {
    let mut room = [0u8; 4096];
    count_of(descriptor::read_in_proc(b"self/status\0", &mut room))
}

/// The number behind `Threads:` at the beginning of a line.
fn count_of(text: &[u8]) -> Option<u32> {
    const NAME: &[u8] = b"\nThreads:\t";
    let at = text.windows(NAME.len()).position(|word| word == NAME)?;
    let digits = text[at + NAME.len()..].split(|byte| !byte.is_ascii_digit());
    std::str::from_utf8(digits.into_iter().next()?)
        .ok()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_counted_by_their_line() {
        assert_eq!(
            count_of(b"Name:\tThreads:\t7\nThreads:\t12\nSigQ:\t0"),
            Some(12)
        );
        assert_eq!(count_of(b"Name:\tx\n"), None);
        assert_eq!(count_of(b"\nThreads:\t\n"), None);
        assert!(threads().is_some_and(|count| count >= 1));
    }
}
