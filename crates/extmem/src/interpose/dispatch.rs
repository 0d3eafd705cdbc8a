// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The SIGSYS handler: one trapped call in, its result out.
//!
//! It works with the program's own signal mask and on the program's own stack, so that a
//! call that waits can be interrupted exactly as without the pager: its frame is moved there from
//! the alternate one, with all signals blocked until then. Where the program's stack is managed
//! memory it stays on the alternate one (`signal_stacks.rs`).

use libc::c_long;

use crate::interpose::{descriptors, ending, exec, memory, process, signals, transfer};
use crate::pager::{Pager, in_arena, pager, restore_signals};
use crate::signal::{KEPT_SIGSYS, pass_on};
use crate::signal_actions::{NEVER_BLOCKED, move_handlers};
use crate::signal_frame::Frame;

/// `si_code` of a seccomp trap.
const SYS_SECCOMP: i32 = 1;

/// The handler: goes on where the call may wait.
pub extern "C" fn on_trap(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: a handler's arguments; nothing here wants to be dropped. Behind the call of a
    // return is nothing but a handler that returns. Below the end that is named
    // the kernel would have pushed the frame, were there no alternate stack; where there is no
    // room for it, the program hears of it (SIGSEGV is not blocked).
    unsafe {
        let mut frame = Frame::new(signal, info, context);
        if trapped(info) == Some(libc::SYS_rt_sigreturn) && frame.is_of_return() {
            frame.end_handler(NEVER_BLOCKED);
        }
        if let Some(pager) = pager()
            && let Some(end) = frame.end_for_call(pager)
        {
            frame.copy_below(end).go_on(do_call);
        }
    }
    do_call(signal, info, context);
}

/// The number of the call that the filter trapped; None if something else sent the signal.
///
/// # Safety
/// The argument must be a SIGSYS handler's.
unsafe fn trapped(info: *const libc::siginfo_t) -> Option<c_long> {
    // SAFETY: the kernel gives valid pointers. `si_syscall` follows the call's address.
    unsafe {
        ((*info).si_code == SYS_SECCOMP)
            .then(|| c_long::from(*info.cast::<u8>().add(24).cast::<i32>()))
    }
}

#[inline(never)]
extern "C" fn do_call(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: a handler's arguments.
    let (Some(pager), Some(number)) = (pager(), unsafe { trapped(info) }) else {
        pass_on(signal, info, context, &KEPT_SIGSYS);
        return;
    };
    // SAFETY: a handler's arguments, as of `on_trap`.
    let mut frame = unsafe { Frame::new(signal, info, context) };
    restore_signals(frame.mask());
    let context = frame.context();
    move_handlers(pager, context);
    pager.give_signal_stack(context);
    let registers = &context.uc_mcontext.gregs;
    let argument = |register: i32| registers[register as usize] as usize;
    let arguments = [
        argument(libc::REG_RDI),
        argument(libc::REG_RSI),
        argument(libc::REG_RDX),
        argument(libc::REG_R10),
        argument(libc::REG_R8),
        argument(libc::REG_R9),
    ];
    // SAFETY: this thread's errno: a call's result is in its register, errno is set later.
    let errno = unsafe { *libc::__errno_location() };
    let result = dispatch(pager, number, arguments, &mut frame);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    frame.context().uc_mcontext.gregs[libc::REG_RAX as usize] = result as i64;
}

fn dispatch(
    pager: &'static Pager,
    number: c_long,
    arguments: [usize; 6],
    frame: &mut Frame,
) -> isize {
    let context = frame.context();
    match number {
        libc::SYS_mmap => memory::mmap(pager, arguments),
        libc::SYS_munmap => memory::munmap(pager, arguments),
        libc::SYS_mprotect => memory::mprotect(pager, arguments),
        libc::SYS_madvise => memory::madvise(pager, arguments),
        libc::SYS_mremap => memory::mremap(pager, arguments),
        libc::SYS_brk => memory::brk(pager, arguments[0]),
        libc::SYS_mlock | libc::SYS_mlock2 | libc::SYS_munlock => {
            memory::lock(pager, number, arguments)
        }
        // All of memory does not fit in DRAM: that is why we are here.
        libc::SYS_mlockall => -(libc::ENOMEM as isize),
        libc::SYS_pkey_mprotect if in_arena(arguments[0]) => {
            // None, or the one that all memory has: there are no others (`filter.rs`).
            if matches!(arguments[3] as i32, -1 | 0) {
                memory::mprotect(pager, arguments)
            } else {
                -(libc::EINVAL as isize)
            }
        }
        libc::SYS_remap_file_pages => -(libc::EINVAL as isize),
        // In the place of managed memory (SHM_REMAP).
        libc::SYS_shmat if in_arena(arguments[1]) => -(libc::EINVAL as isize),
        libc::SYS_rt_sigprocmask => {
            // The kernel's mask is the first 64 bits of the C library's.
            let mask = (&raw mut context.uc_sigmask).cast::<u64>();
            // SAFETY: inside the context, aligned.
            signals::procmask(unsafe { &mut *mask }, arguments)
        }
        libc::SYS_rt_sigaction => signals::action(pager, arguments),
        libc::SYS_ppoll
        | libc::SYS_pselect6
        | libc::SYS_epoll_pwait
        | libc::SYS_epoll_pwait2
        | libc::SYS_rt_sigsuspend => signals::wait_with_mask(pager, number, arguments),
        libc::SYS_sigaltstack => signals::altstack(pager, context, arguments),
        libc::SYS_fork => process::fork(pager, number, arguments),
        libc::SYS_exit => ending::thread_ends(pager, arguments),
        libc::SYS_clone => {
            if arguments[0] & libc::CLONE_VM as usize != 0 {
                return process::clone_sharing(pager, arguments, *frame);
            }
            let stack = arguments[1];
            let result = process::clone(pager, arguments, context.uc_stack.ss_size > 0);
            if result == 0 && stack != 0 {
                // The child returns through its copy of this handler's frames, and only then
                // comes to the stack that it was given.
                context.uc_mcontext.gregs[libc::REG_RSP as usize] = stack as i64;
            }
            result
        }
        libc::SYS_execve | libc::SYS_execveat => exec::perform(pager, number, arguments),
        libc::SYS_close | libc::SYS_dup2 | libc::SYS_dup3 => descriptors::touch(number, arguments),
        libc::SYS_close_range => descriptors::close_range(arguments),
        _ => transfer::perform(pager, number, arguments),
    }
}
