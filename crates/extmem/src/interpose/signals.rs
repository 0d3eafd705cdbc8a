// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Signal calls: SIGBUS and SIGSYS stay deliverable, whatever the program blocks.
//!
//! A synchronous signal that is blocked kills. So the two never enter a mask: not by
//! sigprocmask, not by a handler's mask, not while waiting. Because the calls are caught
//! at the kernel's door, this holds for the C library's own masks too (posix_spawn,
//! abort, thread creation).

use libc::c_long;

use crate::interpose::transfer::read_user;
use crate::pager::{Pager, block_signals, in_arena, restore_signals};
use crate::signal::{KEPT_SIGBUS, KEPT_SIGSYS, is_ours};
use crate::signal_actions::{Action, NEVER_BLOCKED, replace};
use crate::signal_stacks::{AUTODISARM, has, in_force};
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
    if !matches!(
        how as i32,
        libc::SIG_BLOCK | libc::SIG_UNBLOCK | libc::SIG_SETMASK
    ) && set != 0
    {
        // So programs ask whether memory may be read.
        return match read_user(set) {
            Some(_) => fails(libc::EINVAL),
            None => fails(libc::EFAULT),
        };
    }
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

/// sigaltstack. The kernel has the pager's (`signal_stacks.rs`), and the thread's is noted.
pub fn altstack(pager: &Pager, context: &mut libc::ucontext_t, arguments: [usize; 6]) -> isize {
    let pagers = context.uc_stack;
    if !pager.signal_stacks.is_one(&pagers) {
        return kernels_altstack(pager, &mut context.uc_stack, arguments);
    }
    let [new, old, ..] = arguments;
    let pointer = context.uc_mcontext.gregs[libc::REG_RSP as usize] as usize;
    let told = pager.signal_stacks.program_stack(&pagers);
    let is_on = has(&told, pointer);
    // SAFETY: the program's pointer.
    if let Some(wanted) = unsafe { get::<libc::stack_t>(new) } {
        let result = judge(&wanted, is_on && told.ss_flags & AUTODISARM == 0);
        if result < 0 {
            return result;
        }
        if pager.is_this_process() {
            pager.signal_stacks.set_program_stack(&pagers, &wanted);
        }
    }
    let before = if has(&pagers, pointer) {
        // In a handler that came while the pager was at work: who looks whether it may jump out
        // of it is told the truth.
        libc::stack_t {
            ss_flags: libc::SS_ONSTACK,
            ..pagers
        }
    } else {
        libc::stack_t {
            ss_flags: told.ss_flags | if is_on { libc::SS_ONSTACK } else { 0 },
            ..told
        }
    };
    // SAFETY: the program's pointer.
    unsafe { put(old, before) };
    0
}

/// What the kernel says to a stack.
fn judge(wanted: &libc::stack_t, is_on_one: bool) -> isize {
    if is_on_one {
        return fails(libc::EPERM);
    }
    match wanted.ss_flags & !AUTODISARM {
        libc::SS_DISABLE => 0,
        0 | libc::SS_ONSTACK if wanted.ss_size >= libc::MINSIGSTKSZ => 0,
        0 | libc::SS_ONSTACK => fails(libc::ENOMEM),
        _ => fails(libc::EINVAL),
    }
}

/// Of a thread that has none of the pager's. The kernel pushes a frame there at any time, so it
/// must be in DRAM. `current` is the stack in the interrupted context, restored on return.
fn kernels_altstack(pager: &Pager, current: &mut libc::stack_t, arguments: [usize; 6]) -> isize {
    let [new, old, ..] = arguments;
    // SAFETY: the program's pointer.
    let wanted = unsafe { get::<libc::stack_t>(new) };
    // The context's flags do not say "disabled".
    let before = in_force();
    if let Some(wanted) = wanted {
        // No signal comes between the kernel's word and ours.
        let signals = block_signals();
        let result = replace_altstack(pager, &before, &wanted);
        restore_signals(signals);
        if result < 0 {
            return result;
        }
        *current = wanted;
    }
    // SAFETY: the program's pointer.
    unsafe { put(old, before) };
    0
}

/// The kernel is asked first: what it refuses is not locked. Signals are blocked.
fn replace_altstack(pager: &Pager, before: &libc::stack_t, wanted: &libc::stack_t) -> isize {
    let managed = |stack: &libc::stack_t| {
        stack.ss_flags & libc::SS_DISABLE == 0 && in_arena(stack.ss_sp as usize)
    };
    let set = |stack: &libc::stack_t| {
        let stack = &raw const *stack as usize;
        // SAFETY: a copy of the program's structure.
        unsafe { syscall::call(libc::SYS_sigaltstack, [stack, 0, 0, 0, 0, 0]) }
    };
    let result = set(wanted);
    if result < 0 {
        return result;
    }
    if managed(wanted) && !pager.lock_stack(wanted.ss_sp as usize, wanted.ss_size) {
        set(before);
        return fails(libc::ENOMEM);
    }
    let is_same =
        managed(wanted) && (before.ss_sp, before.ss_size) == (wanted.ss_sp, wanted.ss_size);
    if managed(before) && !is_same {
        pager.unlock_stack(before.ss_sp as usize, before.ss_size);
    }
    0
}
