// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The frame that the kernel pushes for a signal, and its move to another stack.
//!
//! What the kernel restores on return is what it finds where the stack pointer is then, so a
//! frame may be copied, and the handler go on beneath the copy.

use crate::pager::{Pager, in_arena};
use crate::signal_stacks::{end_of, has};
use crate::syscall;

/// Below the stack pointer of a function that calls nobody (System V ABI).
const RED_ZONE_BYTES: usize = 128;
/// Of `fxsave`, without what follows it.
const LEGACY_STATE_BYTES: usize = 512;
/// In the frame, where the CPU's state begins.
const STATE_ALIGNMENT: usize = 64;
/// Where the kernel says how much there is of it (`struct _fpx_sw_bytes`): a magic number, bytes.
const SOFTWARE_WORDS_AT: usize = 464;
const EXTENDED_STATE: u32 = 0x4650_5853;

/// Signature of a handler with SA_SIGINFO.
pub type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::ucontext_t);

/// A frame: the handler's return address, the context, what is known of the signal, the CPU's
/// state.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::ucontext_t,
}

impl Frame {
    /// # Safety
    /// The arguments must be a handler's, which has not returned.
    pub unsafe fn new(
        signal: i32,
        info: *mut libc::siginfo_t,
        context: *mut libc::ucontext_t,
    ) -> Self {
        Self {
            signal,
            info,
            context,
        }
    }

    /// What was interrupted.
    pub fn context(&mut self) -> &mut libc::ucontext_t {
        // SAFETY: the kernel's, or a copy (the word of `new`).
        unsafe { &mut *self.context }
    }

    /// Where the stack is to end on which a handler that may wait goes on; None for where it is.
    ///
    /// That of what was interrupted, as if there were no alternate stack: while the handler
    /// waits, others may come, and a child by vfork may take signals on that one. But never
    /// managed memory, which the pager does not touch in the midst of its work.
    pub fn better_end(&mut self, pager: &Pager) -> Option<usize> {
        let here = self.context as usize;
        let context = self.context();
        let interrupted = context.uc_mcontext.gregs[libc::REG_RSP as usize] as usize;
        let alternate = context.uc_stack;
        let is_on_alternate = has(&alternate, here) && !has(&alternate, interrupted);
        if !in_arena(interrupted) || has(&alternate, interrupted) {
            return is_on_alternate.then(|| interrupted - RED_ZONE_BYTES);
        }
        if is_on_alternate && pager.signal_stacks.is_one(&alternate) {
            return None;
        }
        pager.own_signal_stack().map(|stack| end_of(&stack))
    }

    /// A copy that lies below an address.
    ///
    /// # Safety
    /// Below `end` must be as much of a stack that nobody uses as a frame takes.
    pub unsafe fn copy_below(mut self, end: usize) -> Self {
        let from = self.context as usize - size_of::<usize>();
        let state = self.context().uc_mcontext.fpregs as usize;
        let (bytes, moved) = match state {
            0 => {
                let bytes = self.info as usize + size_of::<libc::siginfo_t>() - from;
                let moved = (end - bytes).wrapping_sub(from) & !(STATE_ALIGNMENT - 1);
                (bytes, moved)
            }
            state => {
                // SAFETY: the kernel's, of so many bytes.
                let state_bytes = unsafe { state_bytes(state) };
                let at = (end - state_bytes) & !(STATE_ALIGNMENT - 1);
                (state + state_bytes - from, at.wrapping_sub(state))
            }
        };
        let to = from.wrapping_add(moved);
        // SAFETY: the frame, and memory that the caller vouches for.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
        let mut copy = Self {
            signal: self.signal,
            info: (self.info as usize).wrapping_add(moved) as *mut libc::siginfo_t,
            context: (self.context as usize).wrapping_add(moved) as *mut libc::ucontext_t,
        };
        if state != 0 {
            copy.context().uc_mcontext.fpregs = state.wrapping_add(moved) as *mut _;
        }
        copy
    }

    /// Goes on in a handler that has this frame, as if the kernel had called it. What the caller
    /// has on its stack is left there: nothing that wants to be dropped may be.
    ///
    /// # Safety
    /// The frame must lie on a stack on which the handler may run.
    #[inline(always)]
    pub unsafe fn go_on(self, handler: Handler) -> ! {
        // SAFETY: the frame begins with the address to which the handler returns, at the
        // alignment that the kernel gave it.
        unsafe {
            std::arch::asm!(
                "mov rsp, {start}",
                "jmp {handler}",
                start = in(reg) self.start(),
                handler = in(reg) handler,
                in("edi") self.signal,
                in("rsi") self.info,
                in("rdx") self.context,
                options(noreturn),
            );
        }
    }

    /// `clone` of what shares this memory, on a stack of its own: it begins by the return from
    /// this frame, with the call's result 0. Its thread, or `-errno`.
    ///
    /// # Safety
    /// `flags` and the words that follow must be a program's own call, the frame one that
    /// nobody else returns from.
    pub unsafe fn clone_into(mut self, flags: usize, words: [usize; 3]) -> isize {
        self.context().uc_mcontext.gregs[libc::REG_RAX as usize] = 0;
        let [parent_word, child_word, thread_pointer] = words;
        // SAFETY: the caller's word. The child comes out of the stub with this frame's start as
        // its stack pointer, and so returns to where the frame says.
        unsafe {
            syscall::call(
                libc::SYS_clone,
                [
                    flags,
                    self.start(),
                    parent_word,
                    child_word,
                    thread_pointer,
                    0,
                ],
            )
        }
    }

    fn start(&self) -> usize {
        self.context as usize - size_of::<usize>()
    }
}

/// # Safety
/// At `state` the CPU's state must be, as the kernel lays it out in a frame.
unsafe fn state_bytes(state: usize) -> usize {
    let words = (state + SOFTWARE_WORDS_AT) as *const [u32; 2];
    // SAFETY: the caller's word.
    match unsafe { words.read_unaligned() } {
        [EXTENDED_STATE, bytes] => bytes as usize,
        _ => LEGACY_STATE_BYTES,
    }
}
