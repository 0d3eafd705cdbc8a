// SPDX-License-Identifier: Apache-2.0 OR MIT
//! System calls of the pager itself, all through one door.
//!
//! The pager runs inside signal handlers of code it does not know, so its own
//! calls leave `errno` alone and do not pass through symbols that a program (or
//! the pager) interposes. A system-call filter that traps the program's calls
//! lets one instruction address through; [`set_entry`] makes that address the door.

use std::sync::atomic::{AtomicPtr, Ordering};

/// Enters the kernel: number, then six arguments; a negative result is `-errno`.
pub type Entry = unsafe extern "C" fn(isize, usize, usize, usize, usize, usize, usize) -> isize;

static ENTRY: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Makes all later calls go through `entry`.
///
/// # Safety
/// `entry` must be a working system call stub for the life of the process.
pub unsafe fn set_entry(entry: Entry) {
    ENTRY.store(entry as *mut (), Ordering::Release);
}

/// One system call. The result is what the kernel returned: negative is `-errno`.
///
/// # Safety
/// As dangerous as the call made: pointers must be valid for it.
pub unsafe fn call(number: libc::c_long, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let entry = ENTRY.load(Ordering::Acquire);
    if entry.is_null() {
        // SAFETY: the caller vouches for the arguments.
        return unsafe { direct(number as isize, a, b, c, d, e, f) };
    }
    // SAFETY: only `set_entry` stores here, and it stores an `Entry`.
    let entry: Entry = unsafe { std::mem::transmute::<*mut (), Entry>(entry) };
    // SAFETY: the caller vouches for the arguments, `set_entry`'s caller for the stub.
    unsafe { entry(number as isize, a, b, c, d, e, f) }
}

/// The number of this thread.
pub fn this_thread() -> u32 {
    // SAFETY: no arguments.
    unsafe { call(libc::SYS_gettid, [0; 6]) as u32 }
}

/// Reads memory of this process by way of the kernel, which refuses what may not be read; bytes,
/// or `-errno`. It is named by this thread's number: the first one may have ended, and no other
/// process has it, whatever forks and name spaces there are.
///
/// # Safety
/// The memory in `into` must be writable.
pub unsafe fn read_own(from: &[libc::iovec], into: &[libc::iovec]) -> isize {
    // SAFETY: the caller vouches for where it goes.
    unsafe {
        call(
            libc::SYS_process_vm_readv,
            [
                this_thread() as usize,
                into.as_ptr() as usize,
                into.len(),
                from.as_ptr() as usize,
                from.len(),
                0,
            ],
        )
    }
}

#[cfg(target_arch = "x86_64")]
unsafe fn direct(
    number: isize,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    let result: isize;
    // SAFETY: the kernel's calling convention; it preserves all but rcx, r11
    // and what the call writes to.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn direct(
    number: isize,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    // SAFETY: the caller vouches for the arguments.
    let result = unsafe { libc::syscall(number as libc::c_long, a, b, c, d, e, f) };
    if result < 0 {
        // SAFETY: always valid in a thread.
        -(unsafe { *libc::__errno_location() } as isize)
    } else {
        result as isize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_come_back_negative_and_errno_stays() {
        // SAFETY: errno of this thread; a close of a descriptor that is not open.
        unsafe {
            *libc::__errno_location() = 77;
            assert_eq!(
                call(libc::SYS_close, [usize::MAX, 0, 0, 0, 0, 0]),
                -(libc::EBADF as isize)
            );
            assert_eq!(*libc::__errno_location(), 77);
        }
    }
}
