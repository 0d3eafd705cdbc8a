// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the program has set for its signals, and where its handlers run.
//!
//! The kernel has the pager's alternate stacks only (`signal_stacks.rs`). A handler that asks for
//! one begins there and goes on where the program means it to: on the stack that its thread has
//! told of, or else where the thread is. So do all others once the program has been seen on a
//! stack in managed memory, where the kernel may find no page for the handler's frame.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::lock::Lock;
use crate::pager::{Pager, in_arena, pager, restore_signals};
use crate::signal_frame::{Frame, Handler};
use crate::signal_stacks::has;
use crate::syscall;

const MOST: usize = 64;

/// The bits of SIGBUS and SIGSYS in a signal set: they must never be blocked.
pub const NEVER_BLOCKED: u64 = 1 << (libc::SIGBUS - 1) | 1 << (libc::SIGSYS - 1);

/// Blocked until a frame lies where it is to be: what came in between would run where it is not
/// meant to. But a stack that is too small for the frame is the program's to hear of.
pub const UNTIL_MOVED: u64 = !(NEVER_BLOCKED | 1 << (libc::SIGSEGV - 1));

/// The program has been on a stack in managed memory.
static SEEN: AtomicBool = AtomicBool::new(false);
/// Whose turn it is to change what is set. Taken inside the gate.
static CHANGES: Lock<()> = Lock::new(());
/// What is set for signals whose handlers begin in [`begin_elsewhere`].
static MOVED: [Kept; MOST] = [const { Kept::new() }; MOST];

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

    /// Whether its handler asks for an alternate stack.
    pub fn is_on_stack(&self) -> bool {
        self.flags & libc::SA_ONSTACK as u64 != 0
    }

    /// What is blocked while its handler runs, beside what was.
    pub fn blocked_meanwhile(&self, signal: i32) -> u64 {
        match self.flags & libc::SA_NODEFER as u64 {
            0 => self.mask | 1 << (signal - 1),
            _ => self.mask,
        }
    }

    fn begins_elsewhere(&self) -> bool {
        self.handler == begin_elsewhere as *const () as usize
    }
}

/// The program's action for a signal that has a handler of the pager's.
#[derive(Debug)]
pub struct Kept {
    handler: AtomicUsize,
    flags: AtomicU64,
    restorer: AtomicUsize,
    mask: AtomicU64,
}

impl Kept {
    /// The default one.
    pub const fn new() -> Self {
        Self {
            handler: AtomicUsize::new(0),
            flags: AtomicU64::new(0),
            restorer: AtomicUsize::new(0),
            mask: AtomicU64::new(0),
        }
    }

    /// What the program set.
    pub fn get(&self) -> Action {
        Action {
            handler: self.handler.load(Ordering::Acquire),
            flags: self.flags.load(Ordering::Relaxed),
            restorer: self.restorer.load(Ordering::Relaxed),
            mask: self.mask.load(Ordering::Relaxed),
        }
    }

    /// What the program sets.
    pub fn set(&self, action: Action) {
        self.flags.store(action.flags, Ordering::Relaxed);
        self.restorer.store(action.restorer, Ordering::Relaxed);
        self.mask.store(action.mask, Ordering::Relaxed);
        self.handler.store(action.handler, Ordering::Release);
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
    let kept = usize::try_from(signal - 1)
        .ok()
        .and_then(|at| MOVED.get(at));
    let told = |before: Action, kept: Action| match before.begins_elsewhere() {
        true => kept,
        false => before,
    };
    let known = || kept.map(Kept::get).unwrap_or_default();
    // What is set in a child by vfork concerns the image that it is about to start.
    if !pager.is_this_process() {
        return set_action(signal, wanted).map(|before| told(before, known()));
    }
    let _operation = pager.enter();
    let _turn = CHANGES.lock();
    let known = known();
    let given = match (wanted, kept) {
        (Some(wanted), Some(kept)) => Some(moved(wanted, kept)),
        _ => None,
    };
    set_action(signal, given.as_ref()).map(|before| told(before, known))
}

/// Handlers that were set before the pager was there. All signals are blocked.
pub fn adopt() {
    let _turn = CHANGES.lock();
    move_all();
}

/// With a thread on a stack in managed memory, all handlers begin elsewhere from here on.
pub fn move_handlers(pager: &Pager, context: &libc::ucontext_t) {
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
    if !SEEN.swap(true, Ordering::SeqCst) {
        move_all();
    }
}

fn move_all() {
    for (signal, kept) in (1..).zip(&MOVED) {
        if NEVER_BLOCKED & 1 << (signal - 1) != 0 {
            continue;
        }
        if let Ok(before) = set_action(signal, None)
            && !before.begins_elsewhere()
        {
            let given = moved(&before, kept);
            if given.begins_elsewhere() {
                let _ = set_action(signal, Some(&given));
            }
        }
    }
}

/// The action that the kernel is given for one of the program's.
fn moved(wanted: &Action, kept: &Kept) -> Action {
    if !wanted.is_handled() || !(wanted.is_on_stack() || SEEN.load(Ordering::SeqCst)) {
        return *wanted;
    }
    kept.set(*wanted);
    Action {
        handler: begin_elsewhere as *const () as usize,
        flags: wanted.flags | libc::SA_ONSTACK as u64,
        mask: UNTIL_MOVED,
        ..*wanted
    }
}

extern "C" fn begin_elsewhere(
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::ucontext_t,
) {
    let is_on_stack = MOVED[signal as usize - 1].get().is_on_stack();
    // SAFETY: a handler's arguments; nothing here wants to be dropped.
    unsafe {
        let mut frame = Frame::new(signal, info, context);
        if let Some(pager) = pager()
            && let Some(end) = frame.end_for_handler(pager, is_on_stack)
        {
            frame = frame.copy_below(end);
        }
        frame.go_on(call_handler);
    }
}

/// Where the handler is to run, with nothing beside its frame.
extern "C" fn call_handler(
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::ucontext_t,
) {
    let action = MOVED[signal as usize - 1].get();
    // SAFETY: a handler's arguments; the program's own handler, which has the frame as from the
    // kernel; nothing here wants to be dropped.
    unsafe {
        let mut frame = Frame::new(signal, info, context);
        let blocked = frame.mask() | action.blocked_meanwhile(signal);
        restore_signals(blocked & !NEVER_BLOCKED);
        frame.go_on(std::mem::transmute::<usize, Handler>(action.handler));
    }
}
