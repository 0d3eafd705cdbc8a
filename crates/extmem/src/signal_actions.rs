// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the program has set for its signals.
//!
//! A handler that asks for no alternate stack runs where its thread is. Once a program has been
//! seen on a stack in managed memory, where the kernel may find no page for the handler's frame,
//! all of them ask for one: the thread's own, or the pager's (`signal_stacks.rs`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::syscall;

/// Signals of the C library's own, which goes through the frames of what was interrupted.
const OF_THE_LIBRARY: [i32; 2] = [32, 33];
const MOST: i32 = 64;

/// The program has been on a stack in managed memory.
static SEEN: AtomicBool = AtomicBool::new(false);
/// Signals (bit of the number less one) whose handlers did not ask for what they have.
static ADDED: AtomicU64 = AtomicU64::new(0);

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

/// Sets an action of the program's; what it had set before.
pub fn replace(signal: i32, wanted: Option<&Action>, is_this_process: bool) -> Result<Action, i32> {
    let added = ADDED.load(Ordering::SeqCst) & bit(signal) != 0;
    let adds = |wanted: &Action| {
        let is_another = OF_THE_LIBRARY.contains(&signal);
        SEEN.load(Ordering::SeqCst) && wanted.is_handled() && !wanted.is_on_stack() && !is_another
    };
    let mut given = wanted.copied();
    // What is set in a child by vfork concerns the image that it is about to start.
    if let Some(given) = given.as_mut().filter(|_| is_this_process) {
        let is_added = adds(given);
        if is_added {
            given.flags |= libc::SA_ONSTACK as u64;
            ADDED.fetch_or(bit(signal), Ordering::SeqCst);
        } else {
            ADDED.fetch_and(!bit(signal), Ordering::SeqCst);
        }
    }
    let mut before = set_action(signal, given.as_ref())?;
    if added {
        before.flags &= !(libc::SA_ONSTACK as u64);
    }
    Ok(before)
}

/// Whether that is so.
pub fn left_managed_stacks() -> bool {
    SEEN.load(Ordering::Relaxed)
}

/// This process is on a stack in managed memory: its handlers run elsewhere from here on.
pub fn leave_managed_stacks() {
    if SEEN.swap(true, Ordering::SeqCst) {
        return;
    }
    for signal in 1..=MOST {
        // The pager's have it already.
        let Ok(before) = set_action(signal, None) else {
            continue;
        };
        if before.is_handled() && !before.is_on_stack() {
            let _ = replace(signal, Some(&before), true);
        }
    }
}

fn bit(signal: i32) -> u64 {
    1u64.checked_shl((signal - 1) as u32).unwrap_or(0)
}
