// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Signal calls: SIGBUS and SIGSYS stay deliverable, whatever the program blocks.
//!
//! A synchronous signal that is blocked kills. So the two never enter a mask: not by
//! sigprocmask, not by a handler's mask, not while waiting. Because the calls are caught
//! at the kernel's door, this holds for the C library's own masks too (posix_spawn,
//! abort, thread creation).

use libc::c_long;

use crate::pager::{Pager, block_signals, in_arena, restore_signals};
use crate::signal::{KEPT_SIGBUS, KEPT_SIGSYS, NEVER_BLOCKED, is_ours};
use crate::signal_actions::{Action, replace};
use crate::signal_stacks::{DISABLED, has};
use crate::syscall;

const fn fails(errno: i32) -> isize {
    -(errno as isize)
}

/// Reads a value of the program's; None for null.
///
/// # Safety
/// A bad pointer faults as it would in the C library (SIGSEGV in the program).
unsafe fn get<T: Copy>(address: usize) -> Option<T> {
    // SAFETY: the caller's word.
    (address != 0).then(|| unsafe { (address as *const T).read_unaligned() })
}

/// # Safety
/// As for `get`.
unsafe fn put<T>(address: usize, value: T) {
    if address != 0 {
        // SAFETY: the caller's word.
        unsafe { (address as *mut T).write_unaligned(value) };
    }
}

/// rt_sigprocmask. The mask that counts is the one in the interrupted context: the
/// kernel restores it when the SIGSYS handler returns.
pub fn procmask(mask: &mut u64, arguments: [usize; 6]) -> isize {
    let [how, set, old, size, ..] = arguments;
    if size != 8 {
        return fails(libc::EINVAL);
    }
    let before = *mask;
    // SAFETY: the program's pointer.
    if let Some(set) = unsafe { get::<u64>(set) } {
        let next = match how as i32 {
            libc::SIG_BLOCK => before | set,
            libc::SIG_UNBLOCK => before & !set,
            libc::SIG_SETMASK => set,
            _ => return fails(libc::EINVAL),
        };
        let unblockable = 1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1);
        *mask = next & !(NEVER_BLOCKED | unblockable);
    }
    // SAFETY: the program's pointer.
    unsafe { put(old, before) };
    0
}

/// rt_sigaction.
pub fn action(pager: &Pager, arguments: [usize; 6]) -> isize {
    let [signal, new, old, size, ..] = arguments;
    if size != 8 {
        return fails(libc::EINVAL);
    }
    // SAFETY: the program's pointer.
    let wanted = unsafe { get::<Action>(new) };
    let kept = match signal as i32 {
        libc::SIGBUS => Some(&KEPT_SIGBUS),
        libc::SIGSYS => Some(&KEPT_SIGSYS),
        _ => None,
    };
    if let Some(kept) = kept {
        let before = kept.get();
        if let Some(wanted) = wanted {
            // A vfork child shares this memory but not its signal actions: what it sets
            // concerns the image it is about to start, not us.
            if pager.is_this_process() {
                kept.set(wanted);
            }
        }
        // SAFETY: the program's pointer.
        unsafe { put(old, before) };
        return 0;
    }
    let stripped = wanted.map(|wanted| Action {
        mask: wanted.mask & !NEVER_BLOCKED,
        ..wanted
    });
    match replace(pager, signal as i32, stripped.as_ref()) {
        Ok(before) => {
            debug_assert!(!is_ours(&before));
            // SAFETY: the program's pointer.
            unsafe { put(old, before) };
            0
        }
        Err(errno) => fails(errno),
    }
}

/// Calls that wait with another mask: the mask is copied without our two signals.
pub fn wait_with_mask(pager: &Pager, number: c_long, arguments: [usize; 6]) -> isize {
    let mut arguments = arguments;
    let mut pair = [0usize; 2];
    let set: u64;
    if number == libc::SYS_pselect6 {
        // A pointer to a pair: mask and its size.
        // SAFETY: the program's pointer.
        if let Some(given) = unsafe { get::<[usize; 2]>(arguments[5]) } {
            // SAFETY: the program's pointer.
            if let Some(mask) = unsafe { get::<u64>(given[0]) } {
                set = mask & !NEVER_BLOCKED;
                pair = [&raw const set as usize, given[1]];
                arguments[5] = pair.as_ptr() as usize;
            }
        }
    } else {
        let at = match number {
            libc::SYS_ppoll => 3,
            libc::SYS_rt_sigsuspend => 0,
            _ => 4,
        };
        // SAFETY: the program's pointer.
        if let Some(mask) = unsafe { get::<u64>(arguments[at]) } {
            set = mask & !NEVER_BLOCKED;
            arguments[at] = &raw const set as usize;
        }
    }
    let result = crate::interpose::transfer::perform(pager, number, arguments);
    std::hint::black_box(&pair);
    result
}

/// sigaltstack. The kernel pushes a frame there at any time, so it must be in DRAM.
/// That of the interrupted context is put in force on return.
pub fn altstack(pager: &Pager, context: &mut libc::ucontext_t, arguments: [usize; 6]) -> isize {
    let [new, old, ..] = arguments;
    let pointer = context.uc_mcontext.gregs[libc::REG_RSP as usize] as usize;
    let current = &mut context.uc_stack;
    // SAFETY: the program's pointer.
    let wanted = unsafe { get::<libc::stack_t>(new) };
    let mut before = *current;
    // SAFETY: fills one structure. (The context's flags do not say "disabled".)
    unsafe {
        syscall::call(
            libc::SYS_sigaltstack,
            [0, &raw mut before as usize, 0, 0, 0, 0],
        );
    }
    // One of the pager's is not the program's to know, which has none; but where it is on it.
    let own = before;
    if pager.signal_stacks.is_one(&own) {
        before = match has(&own, pointer) {
            true => libc::stack_t {
                ss_flags: libc::SS_ONSTACK,
                ..own
            },
            false => DISABLED,
        };
    }
    if let Some(wanted) = wanted {
        // No signal comes between the kernel's word and ours.
        let signals = block_signals();
        let result = replace_altstack(pager, &own, &wanted);
        restore_signals(signals);
        if result < 0 {
            return result;
        }
        let is_none = wanted.ss_flags & libc::SS_DISABLE != 0;
        let pagers = is_none.then(|| pager.own_signal_stack()).flatten();
        *current = pagers.unwrap_or(wanted);
    }
    // SAFETY: the program's pointer.
    unsafe { put(old, before) };
    0
}

/// The kernel is asked first: what it refuses is not locked. On a stack of the pager's, where it
/// refuses all, what it would say is said here. Signals are blocked.
fn replace_altstack(pager: &Pager, before: &libc::stack_t, wanted: &libc::stack_t) -> isize {
    let managed = |stack: &libc::stack_t| {
        stack.ss_flags & libc::SS_DISABLE == 0 && in_arena(stack.ss_sp as usize)
    };
    let set = |stack: &libc::stack_t| {
        let stack = &raw const *stack as usize;
        // SAFETY: a copy of the program's structure.
        unsafe { syscall::call(libc::SYS_sigaltstack, [stack, 0, 0, 0, 0, 0]) }
    };
    let here = 0u8;
    let is_on_it = pager.signal_stacks.is_one(before) && has(before, (&raw const here) as usize);
    let result = if is_on_it { judge(wanted) } else { set(wanted) };
    if result < 0 {
        return result;
    }
    if managed(wanted) && !pager.lock_stack(wanted.ss_sp as usize, wanted.ss_size) {
        if !is_on_it {
            set(before);
        }
        return fails(libc::ENOMEM);
    }
    let is_same =
        managed(wanted) && (before.ss_sp, before.ss_size) == (wanted.ss_sp, wanted.ss_size);
    if managed(before) && !is_same {
        pager.unlock_stack(before.ss_sp as usize, before.ss_size);
    }
    0
}

/// What the kernel says to a stack, of a thread that is on none.
fn judge(wanted: &libc::stack_t) -> isize {
    const AUTODISARM: i32 = 1 << 31;
    match wanted.ss_flags & !AUTODISARM {
        libc::SS_DISABLE => 0,
        0 | libc::SS_ONSTACK if wanted.ss_size >= libc::MINSIGSTKSZ => 0,
        0 | libc::SS_ONSTACK => fails(libc::ENOMEM),
        _ => fails(libc::EINVAL),
    }
}
