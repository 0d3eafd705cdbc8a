// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Threads of the pager that no C library knows of.
//!
//! They may start in the middle of a fault, with the program's allocator locked, and
//! again in the child of a fork before the C library has put itself in order. So they
//! are made by the bare system call, with a stack and a blank thread-local block of
//! their own (for `errno` of the few library calls they make), all signals blocked.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::region::{PAGE_BYTES, Region};
use crate::syscall;

const STACK_BYTES: usize = 128 * 1024;
/// Room below the thread pointer: where static thread-local storage lies.
const TLS_BELOW_BYTES: usize = 64 * 1024;
const TLS_ABOVE_BYTES: usize = 4096;

/// Memory of one thread, used again when the thread is started again after a fork.
#[derive(Debug)]
pub struct Seat {
    base: usize,
    is_charged: AtomicBool,
}

impl Seat {
    /// Bytes of address space a thread takes.
    pub const fn footprint_bytes() -> usize {
        PAGE_BYTES + STACK_BYTES + TLS_BELOW_BYTES + TLS_ABOVE_BYTES
    }

    /// Pages a thread is expected to touch.
    const CHARGED_PAGES: i64 = 6;

    /// Pages that are to be charged when a thread starts: once, for in the child of a fork it
    /// has the same memory again.
    pub fn charge_pages(&self) -> i64 {
        if self.is_charged.swap(true, Ordering::Relaxed) {
            0
        } else {
            Self::CHARGED_PAGES
        }
    }

    /// A seat in a region.
    pub fn new(region: &mut Region) -> Option<Self> {
        // SAFETY: zero is a u8.
        let memory = unsafe { region.carve::<u8>(Self::footprint_bytes()) }?;
        let base = memory.as_mut_ptr() as usize;
        // SAFETY: the seat's own first page becomes the stack's guard.
        unsafe {
            syscall::call(
                libc::SYS_mprotect,
                [base, PAGE_BYTES, libc::PROT_NONE as usize, 0, 0, 0],
            );
        }
        Some(Self {
            base,
            is_charged: AtomicBool::new(false),
        })
    }

    /// Starts `function(argument)` on the seat. It must never return, and signals
    /// must be blocked in the caller (the thread inherits the mask).
    ///
    /// # Safety
    /// No thread may sit here already, and `argument` must suit `function`.
    pub unsafe fn start(
        &self,
        function: extern "C" fn(usize) -> !,
        argument: usize,
    ) -> Result<(), i32> {
        let stack_top = self.base + PAGE_BYTES + STACK_BYTES;
        let thread_pointer = stack_top + TLS_BELOW_BYTES;
        let flags = (libc::CLONE_VM
            | libc::CLONE_FS
            | libc::CLONE_FILES
            | libc::CLONE_SIGHAND
            | libc::CLONE_THREAD
            | libc::CLONE_SYSVSEM
            | libc::CLONE_SETTLS) as usize;
        let result: isize;
        // SAFETY: the seat's memory is ours and idle. The thread pointer block starts with
        // its own address, as the ABI has it, twice (the C library's self pointer). The new
        // thread takes function and argument from its stack and never comes back here.
        unsafe {
            let block = thread_pointer as *mut usize;
            block.write(thread_pointer);
            block.add(2).write(thread_pointer);
            let stack = (stack_top - 16) as *mut usize;
            stack.write(function as usize);
            stack.add(1).write(argument);
            std::arch::asm!(
                "syscall",
                "test rax, rax",
                "jnz 2f",
                "xor ebp, ebp",
                "pop rax",
                "pop rdi",
                "call rax",
                "ud2",
                "2:",
                inlateout("rax") libc::SYS_clone as isize => result,
                in("rdi") flags,
                in("rsi") stack_top - 16,
                in("rdx") 0usize,
                in("r10") 0usize,
                in("r8") thread_pointer,
                lateout("rcx") _,
                lateout("r11") _,
                options(nostack),
            );
        }
        if result < 0 {
            Err(-result as i32)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    static SEEN: AtomicU32 = AtomicU32::new(0);

    extern "C" fn thread(argument: usize) -> ! {
        SEEN.store(argument as u32, Ordering::SeqCst);
        loop {
            // SAFETY: ends this thread alone.
            unsafe { syscall::call(libc::SYS_exit, [0; 6]) };
        }
    }

    #[test]
    fn a_bare_thread_runs() {
        let mut region = Region::map_anonymous(Seat::footprint_bytes()).unwrap();
        let seat = Seat::new(&mut region).unwrap();
        assert_eq!([seat.charge_pages(), seat.charge_pages()], [6, 0]);
        // SAFETY: a fresh seat.
        unsafe { seat.start(thread, 4242) }.unwrap();
        for _ in 0..1000 {
            if SEEN.load(Ordering::SeqCst) == 4242 {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        panic!("the thread did not run");
    }
}
