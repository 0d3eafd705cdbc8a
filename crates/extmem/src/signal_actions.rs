// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the program has set for its signals.
//!
//! A handler that asks for no alternate stack runs where its thread is. Once a program has been
//! seen on a stack in managed memory, where the kernel may find no page for the handler's frame,
//! all of them begin on an alternate one, and go on where their thread is if that is not there.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::lock::Lock;
use crate::pager::{Pager, in_arena, pager};
use crate::signal_frame::{Frame, Handler};
use crate::signal_stacks::has;
use crate::syscall;

/// By which the C library ends a thread, going through the frames of what was interrupted.
const CANCEL: i32 = 32;
const MOST: usize = 64;

/// The program has been on a stack in managed memory.
static SEEN: AtomicBool = AtomicBool::new(false);
/// Whose turn it is to change what is set. Taken inside the gate.
static CHANGES: Lock<()> = Lock::new(());
/// The handlers of signals that begin in [`begin_elsewhere`].
static HANDLERS: [AtomicUsize; MOST] = [const { AtomicUsize::new(0) }; MOST];

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Action {
    /// Handler, or SIG_DFL, SIG_IGN.
    pub handler: usize,
    /// SA_*.
    pub flags: u64,
    /// Returns from the handler.
    pub restorer: usize,
    /// Blocked meanwhile.
    pub mask: u64,
}

impl Action {
    fn is_handled(&self) -> bool {
        !matches!(self.handler, libc::SIG_DFL | libc::SIG_IGN)
    }

    fn is_on_stack(&self) -> bool {
        self.flags & libc::SA_ONSTACK as u64 != 0
    }

    fn begins_elsewhere(&self) -> bool {
        self.handler == begin_elsewhere as *const () as usize
    }
}

/// Sets an action with the bare call; the action before.
pub fn set_action(signal: i32, action: Option<&Action>) -> Result<Action, i32> {
    let mut before = Action::default();
    // SAFETY: the kernel's structure both ways.
    let result = unsafe {
        syscall::call(
            libc::SYS_rt_sigaction,
            [
                signal as usize,
                action.map_or(0, |action| std::ptr::from_ref(action) as usize),
                &raw mut before as usize,
                8,
                0,
                0,
            ],
        )
    };
    if result < 0 {
        Err(-result as i32)
    } else {
        Ok(before)
    }
}

/// Sets an action of the program's, or asks for it; what it had set before.
pub fn replace(pager: &Pager, signal: i32, wanted: Option<&Action>) -> Result<Action, i32> {
    let is_this_process = pager.is_this_process();
    let _operation = pager.enter();
    let _turn = CHANGES.lock();
    let handler = usize::try_from(signal - 1)
        .ok()
        .and_then(|at| HANDLERS.get(at));
    let handler_before = handler.map_or(0, |handler| handler.load(Ordering::SeqCst));
    // What is set in a child by vfork concerns the image that it is about to start.
    let given = match (wanted, handler) {
        (Some(wanted), Some(handler)) if is_this_process && SEEN.load(Ordering::SeqCst) => {
            Some(moved(signal, wanted, handler))
        }
        _ => wanted.copied(),
    };
    let mut before = set_action(signal, given.as_ref())?;
    if before.begins_elsewhere() {
        before.handler = handler_before;
        before.flags &= !(libc::SA_ONSTACK as u64);
    }
    Ok(before)
}

/// With a thread on a stack in managed memory, handlers begin elsewhere from here on.
pub fn leave_managed_stacks(pager: &Pager, context: &libc::ucontext_t) {
    let pointer = context.uc_mcontext.gregs[libc::REG_RSP as usize] as usize;
    if !in_arena(pointer)
        || has(&context.uc_stack, pointer)
        || SEEN.load(Ordering::Relaxed)
        || !pager.is_this_process()
    {
        return;
    }
    let _operation = pager.enter();
    let _turn = CHANGES.lock();
    if SEEN.swap(true, Ordering::SeqCst) {
        return;
    }
    for (signal, handler) in (1..).zip(&HANDLERS) {
        if let Ok(before) = set_action(signal, None) {
            let given = moved(signal, &before, handler);
            if given.begins_elsewhere() {
                let _ = set_action(signal, Some(&given));
            }
        }
    }
}

/// The action by which a handler begins elsewhere, if it should and does not by itself.
fn moved(signal: i32, wanted: &Action, handler: &AtomicUsize) -> Action {
    if !wanted.is_handled() || wanted.is_on_stack() || signal == CANCEL {
        return *wanted;
    }
    handler.store(wanted.handler, Ordering::SeqCst);
    Action {
        handler: begin_elsewhere as *const () as usize,
        flags: wanted.flags | libc::SA_ONSTACK as u64,
        ..*wanted
    }
}

extern "C" fn begin_elsewhere(
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::ucontext_t,
) {
    let handler = HANDLERS[signal as usize - 1].load(Ordering::SeqCst);
    // SAFETY: a handler's arguments; the program's own handler, which has the frame as from the
    // kernel; nothing here wants to be dropped.
    unsafe {
        let handler = std::mem::transmute::<usize, Handler>(handler);
        let mut frame = Frame::new(signal, info, context);
        if let Some(pager) = pager()
            && let Some(end) = frame.better_end(pager)
        {
            frame = frame.copy_below(end);
        }
        frame.go_on(handler);
    }
}
