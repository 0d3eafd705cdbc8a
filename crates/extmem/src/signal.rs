// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SIGBUS: a fault resolved by the thread that made it.
//!
//! The kernel delivers it on whatever stack the thread is on, or on its alternate
//! stack; the work is done on a stack of the pager's own. The program's own SIGBUS and
//! SIGSYS actions are kept here and called for what is not ours.

use std::ffi::c_void;

use crate::context::call_on_stack;
use crate::fault::{Access, Resolution};
use crate::page::{PageIndex, State};
use crate::pager::{Operation, Pager, pager};
use crate::region::PAGE_BYTES;
use crate::signal_actions::{Action, Kept, NEVER_BLOCKED, UNTIL_MOVED, move_handlers, set_action};
use crate::signal_frame::{Frame, Handler};
use crate::syscall;

const SA_RESTORER: u64 = 0x0400_0000;
/// Set in the error code of a page fault: it was a write.
const FAULT_WRITE: i64 = 2;

/// The program's SIGBUS action.
pub static KEPT_SIGBUS: Kept = Kept::new();
/// The program's SIGSYS action.
pub static KEPT_SIGSYS: Kept = Kept::new();

std::arch::global_asm!(
    ".globl demeter_extmem_restorer",
    ".hidden demeter_extmem_restorer",
    ".type demeter_extmem_restorer,@function",
    "demeter_extmem_restorer:",
    // mov rax, 15; syscall: the bytes by which unwinders know the C library's.
    ".byte 0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05",
    "ud2",
    ".size demeter_extmem_restorer, . - demeter_extmem_restorer",
);

unsafe extern "C" {
    fn demeter_extmem_restorer();
}

/// Takes a signal for the pager; what the program had set is kept.
pub fn take(signal: i32, handler: Handler, flags: i32, mask: u64, kept: &Kept) -> Result<(), i32> {
    let action = Action {
        handler: handler as usize,
        flags: flags as u64 | libc::SA_SIGINFO as u64 | SA_RESTORER,
        restorer: demeter_extmem_restorer as *const () as usize,
        mask,
    };
    kept.set(set_action(signal, Some(&action))?);
    Ok(())
}

struct Fault {
    pager: &'static Pager,
    page: PageIndex,
    access: Access,
    operation: *mut Operation<'static>,
    resolution: Resolution,
}

/// The SIGBUS handler. All signals are blocked in it.
pub extern "C" fn on_bus(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: the kernel gives valid pointers; si_addr is set for SIGBUS.
    let (address, code, error) = unsafe {
        (
            (*info).si_addr() as usize,
            (*info).si_code,
            (*context).uc_mcontext.gregs[libc::REG_ERR as usize],
        )
    };
    let page = pager().and_then(|pager| Some((pager, pager.table.page_of(address)?)));
    if code > 0
        && let Some((pager, page)) = page
    {
        let resolution = resolve_here(pager, page, error & FAULT_WRITE != 0);
        let is_file = pager.table.load(page).state() == State::Foreign;
        if resolution == Resolution::Done || !is_file {
            // Done, or just being unmapped by another thread: the access is made again,
            // and what comes of it is the kernel's answer.
            // SAFETY: the interrupted context.
            let context = unsafe { &mut *context };
            move_handlers(pager, context);
            pager.give_signal_stack(context);
            return;
        }
    }
    // SAFETY: a handler's arguments. The program's handler runs where it would have, and this
    // one has nothing to drop.
    unsafe {
        let mut frame = Frame::new(signal, info, context);
        // Where it goes on may be managed memory.
        crate::pager::restore_signals(UNTIL_MOVED);
        if let Some(pager) = pager()
            && let Some(end) = frame.end_for_handler(pager, KEPT_SIGBUS.get().is_on_stack())
        {
            frame.copy_below(end).go_on(pass_bus_on);
        }
    }
    pass_bus_on(signal, info, context);
}

extern "C" fn pass_bus_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    pass_on(signal, info, context, &KEPT_SIGBUS);
}

fn resolve_here(pager: &'static Pager, page: PageIndex, write: bool) -> Resolution {
    // SAFETY: this thread's errno; the pager leaves it alone, libraries it uses may not.
    let errno = unsafe { *libc::__errno_location() };
    let mut operation = pager.enter_masked();
    let mut fault = Fault {
        pager,
        page,
        access: Access {
            write,
            pin: false,
            thread: thread_key(),
        },
        operation: &raw mut operation,
        resolution: Resolution::NotManaged,
    };
    // SAFETY: the operation's stack is borrowed by us alone.
    unsafe {
        call_on_stack(
            operation.context.stack_top(),
            resolve_fault,
            (&raw mut fault).cast::<c_void>(),
        );
    }
    drop(operation);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    fault.resolution
}

extern "C" fn resolve_fault(argument: *mut c_void) {
    // SAFETY: the caller's Fault, which outlives the call; nobody else uses it.
    let fault = unsafe { &mut *argument.cast::<Fault>() };
    // SAFETY: as above.
    let operation = unsafe { &mut *fault.operation };
    fault.resolution = fault
        .pager
        .resolve(fault.page, fault.access, &mut operation.context);
}

/// A number that tells threads apart, for the price of one load.
pub fn thread_key() -> u32 {
    let pointer: usize;
    // SAFETY: the thread pointer block starts with its own address on x86-64.
    unsafe {
        std::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags));
    }
    // Blocks lie at the same offset in stacks of equal size: spread them.
    (pointer.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as u32
}

/// Calls the program's own handler, or does what the default is.
pub fn pass_on(
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::ucontext_t,
    kept: &Kept,
) {
    let action = kept.get();
    match action.handler {
        libc::SIG_IGN
            // SAFETY: the kernel's siginfo.
            if unsafe { (*info).si_code } <= 0 => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // The default action: let it happen again without us.
            let _ = set_action(signal, Some(&Action::default()));
            // SAFETY: the kernel's siginfo; sends the signal to this thread.
            unsafe {
                if (*info).si_code <= 0 {
                    let process = syscall::call(libc::SYS_getpid, [0; 6]) as usize;
                    let thread = syscall::this_thread() as usize;
                    syscall::call(libc::SYS_tgkill, [process, thread, signal as usize, 0, 0, 0]);
                }
            }
        }
        handler => {
            if action.flags & libc::SA_RESETHAND as u64 != 0 {
                kept.set(Action::default());
            }
            // SAFETY: the kernel's context. The handler runs with the mask it asked for.
            let interrupted = unsafe { *(&raw const (*context).uc_sigmask).cast::<u64>() };
            let blocked = action.blocked_meanwhile(signal);
            crate::pager::restore_signals((interrupted | blocked) & !NEVER_BLOCKED);
            // SAFETY: the program's own handler, called as the kernel would.
            unsafe {
                if action.flags & libc::SA_SIGINFO as u64 != 0 {
                    let handler: Handler = std::mem::transmute::<usize, Handler>(handler);
                    handler(signal, info, context);
                } else {
                    let handler: extern "C" fn(i32) =
                        std::mem::transmute::<usize, extern "C" fn(i32)>(handler);
                    handler(signal);
                }
            }
        }
    }
}

/// Whether a handler of ours is what the kernel has for a signal.
pub fn is_ours(action: &Action) -> bool {
    action.restorer == demeter_extmem_restorer as *const () as usize
}

const _: () = assert!(PAGE_BYTES == 4096 && size_of::<Action>() == 32);
