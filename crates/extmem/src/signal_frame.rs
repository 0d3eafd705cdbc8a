// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The frame that the kernel pushes for a signal, and its move to another stack.
//!
//! What the kernel restores on return is what it finds where the stack pointer is then, so a
//! frame may be copied, and the handler go on beneath the copy. It does not wait for a page of it:
//! from a frame in managed memory, which may leave while its handler runs, a handler returns by
//! way of a trap (`stub.rs`) and of a copy that the kernel finds.

use crate::pager::{Pager, in_arena};
use crate::signal_stacks::{end_of, has};
use crate::{stub, syscall};

/// Below the stack pointer of a function that calls nobody (System V ABI).
const RED_ZONE_BYTES: usize = 128;
/// Of `fxsave`, without what follows it.
const LEGACY_STATE_BYTES: usize = 512;
/// In the frame, where the CPU's state begins.
const STATE_ALIGNMENT: usize = 64;
/// Where the kernel says how much there is of it (`struct _fpx_sw_bytes`): a magic number, bytes.
const SOFTWARE_WORDS_AT: usize = 464;
const EXTENDED_STATE: u32 = 0x4650_5853;
/// Of a context, as much as the kernel knows; the C library's is longer.
const CONTEXT_BYTES: usize = 304;
/// What copying a frame may take of the stack, with the frames of faults that come meanwhile.
const MOST_OF_COPYING_BYTES: usize = 32 << 10;

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

    /// Its stack pointer.
    pub fn pointer(&mut self) -> usize {
        self.context().uc_mcontext.gregs[libc::REG_RSP as usize] as usize
    }

    /// The signals that it had blocked.
    pub fn mask(&mut self) -> u64 {
        // SAFETY: the kernel's, or a copy (the word of `new`).
        unsafe { *mask_of(self.context) }
    }

    /// Where the stack ends on which a system call of the program's is worked on; None where the
    /// frame is.
    ///
    /// | interrupted on | goes on |
    /// |---|---|
    /// | memory of the kernel's | there, as without an alternate stack: while the call waits other signals may come, and a child by vfork may take some on the alternate one |
    /// | the alternate stack | there |
    /// | managed memory | on the pager's stack: the pager does not touch managed memory in the midst of its work |
    pub fn end_for_call(&mut self, pager: &Pager) -> Option<usize> {
        let (interrupted, alternate) = (self.pointer(), self.context().uc_stack);
        let is_elsewhere = self.is_elsewhere();
        if !in_arena(interrupted) || has(&alternate, interrupted) {
            return is_elsewhere.then(|| interrupted - RED_ZONE_BYTES);
        }
        if is_elsewhere && pager.signal_stacks.is_one(&alternate) {
            return None;
        }
        pager.own_signal_stack().map(|stack| end_of(&stack))
    }

    /// Where the stack ends on which a handler of the program's runs, which asks for an alternate
    /// one or not; None where the frame is.
    ///
    /// | interrupted on | goes on |
    /// |---|---|
    /// | the pager's stack (it works on a call) | there |
    /// | any other | on the program's alternate stack, if it is asked for, there is one and is large enough, and it is not on it; else there, managed memory or not |
    pub fn end_for_handler(&mut self, pager: &Pager, asks: bool) -> Option<usize> {
        let (interrupted, alternate) = (self.pointer(), self.context().uc_stack);
        if !self.is_elsewhere() {
            return None;
        }
        if asks && !pager.signal_stacks.is_one(&alternate) {
            // One that the kernel has of the program.
            return None;
        }
        let own = pager.signal_stacks.program_stack(&alternate);
        if asks && !has(&own, interrupted) && own.ss_size > self.bytes() + STATE_ALIGNMENT {
            return Some(end_of(&own));
        }
        Some(interrupted - RED_ZONE_BYTES)
    }

    /// On an alternate stack, and what was interrupted is not.
    fn is_elsewhere(&mut self) -> bool {
        let (here, interrupted) = (self.context as usize, self.pointer());
        let alternate = self.context().uc_stack;
        has(&alternate, here) && !has(&alternate, interrupted)
    }

    /// From the return address to the end.
    fn bytes(&mut self) -> usize {
        let state = self.context().uc_mcontext.fpregs as usize;
        let end = match state {
            0 => self.info as usize + size_of::<libc::siginfo_t>(),
            // SAFETY: the kernel's.
            state => state + unsafe { state_bytes(state) },
        };
        end - self.start()
    }

    /// A copy that lies below an address.
    ///
    /// # Safety
    /// Below `end` must be as much of a stack that nobody uses as a frame takes, or a place where
    /// the kernel would have pushed it.
    pub unsafe fn copy_below(mut self, end: usize) -> Self {
        let (from, bytes) = (self.start(), self.bytes());
        let state = self.context().uc_mcontext.fpregs as usize;
        // The end of the frame is that of the CPU's state, whose start is aligned.
        let below = end - bytes;
        let moved = below.wrapping_sub(from) & !(STATE_ALIGNMENT - 1);
        let to = from.wrapping_add(moved);
        // SAFETY: the frame, and memory that the caller vouches for. They may overlap where the
        // program's alternate stack is a part of its stack.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
        let mut copy = Self {
            signal: self.signal,
            info: (self.info as usize).wrapping_add(moved) as *mut libc::siginfo_t,
            context: (self.context as usize).wrapping_add(moved) as *mut libc::ucontext_t,
        };
        if state != 0 {
            copy.context().uc_mcontext.fpregs = state.wrapping_add(moved) as *mut _;
        }
        if in_arena(to) {
            // SAFETY: a frame begins with the address to which its handler returns.
            unsafe { (to as *mut usize).write(stub::RETURN) };
        }
        copy
    }

    /// Whether it was interrupted behind the call by which a handler ends whose frame
    /// [`Frame::copy_below`] has laid into managed memory.
    pub fn is_of_return(&mut self) -> bool {
        self.context().uc_mcontext.gregs[libc::REG_RIP as usize] as usize == stub::RETURNED
    }

    /// Ends the handler whose return was trapped by this frame, as the kernel would: from a copy of
    /// that handler's frame, beneath what the caller has on its stack. Nothing that wants to be
    /// dropped may be there.
    ///
    /// # Safety
    /// What was interrupted must be a handler's return; its frame is the program's, which may have
    /// changed it. `never_blocked` must be what the pager cannot do without.
    pub unsafe fn end_handler(&mut self, never_blocked: u64) -> ! {
        let ended = self.pointer() as *mut libc::ucontext_t;
        // The thread keeps its alternate stack: a coroutine's handler may have begun on another
        // one's.
        // SAFETY: where the kernel would look for it; nobody else needs it any more.
        unsafe {
            *mask_of(ended) &= !never_blocked;
            (&raw mut (*ended).uc_stack).write(self.context().uc_stack);
        }
        // SAFETY: where the kernel would look for it.
        let state = unsafe { (*ended).uc_mcontext.fpregs } as usize;
        let state_bytes = match in_arena(state) {
            // SAFETY: where the kernel would look for it.
            true => unsafe { state_bytes(state) },
            // One that the program has put elsewhere, or none.
            false => 0,
        };
        let (stack, here) = (self.context().uc_stack, self.start());
        let room = CONTEXT_BYTES.next_multiple_of(STATE_ALIGNMENT) + state_bytes;
        let is_room =
            has(&stack, here) && here - stack.ss_sp as usize > room + MOST_OF_COPYING_BYTES;
        // SAFETY: room for the copy is made below whatever is on the stack; on return from it
        // nothing of that is used any more. Where there is no room the kernel looks itself.
        unsafe {
            if !is_room {
                std::arch::asm!(
                    "mov rsp, {ended}",
                    "syscall",
                    ended = in(reg) ended,
                    in("rax") libc::SYS_rt_sigreturn,
                    options(noreturn),
                );
            }
            std::arch::asm!(
                "sub rsp, {room}",
                "and rsp, {alignment}",
                "mov rdi, rsp",
                "call {copy}",
                "mov eax, {number}",
                "syscall",
                room = in(reg) room,
                alignment = const -(STATE_ALIGNMENT as isize),
                copy = sym copy_context,
                number = const libc::SYS_rt_sigreturn,
                in("rsi") ended,
                in("rdx") state_bytes,
                options(noreturn),
            );
        }
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
        // SAFETY: the caller's word. The child leaves the stub by its `ret`, whose stack pointer is
        // this frame's start: to the restorer that the frame begins with, as from a handler.
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
/// At `context` a context must be. The kernel's mask is the first 64 bits of the C library's.
unsafe fn mask_of(context: *mut libc::ucontext_t) -> *mut u64 {
    // SAFETY: the caller's word.
    unsafe { (&raw mut (*context).uc_sigmask).cast() }
}

/// What a handler's return needs: a context and, behind it, so much of the CPU's state, if any.
///
/// # Safety
/// `from` must be a context with so much state, `to` room for both, aligned for the state.
unsafe extern "C" fn copy_context(to: *mut u8, from: *const libc::ucontext_t, state_bytes: usize) {
    // SAFETY: the caller's word.
    unsafe {
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), to, CONTEXT_BYTES);
        if state_bytes > 0 {
            let state = (&raw const (*from).uc_mcontext.fpregs).read();
            let copy = to.add(CONTEXT_BYTES.next_multiple_of(STATE_ALIGNMENT));
            std::ptr::copy_nonoverlapping(state.cast::<u8>(), copy, state_bytes);
            let context = to.cast::<libc::ucontext_t>();
            (&raw mut (*context).uc_mcontext.fpregs).write(copy.cast());
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// As the kernel lays one out: return address, context, siginfo, then the CPU's state.
    #[repr(C, align(64))]
    struct Laid([u64; 512]);

    const CONTEXT_AT: usize = 8;
    const INFO_AT: usize = 8 + 304;
    const STATE_AT: usize = 512;

    fn laid(state_bytes: u32) -> Laid {
        let mut laid = Laid([0; 512]);
        (1..)
            .zip(&mut laid.0)
            .for_each(|(number, word)| *word = number);
        let software = (STATE_AT + SOFTWARE_WORDS_AT) / 8;
        laid.0[software] = u64::from(EXTENDED_STATE) | u64::from(state_bytes) << 32;
        laid
    }

    #[test]
    fn a_copy_is_whole_and_points_into_itself() {
        for (has_state, state_bytes) in [(true, 836), (true, 2700), (false, 0)] {
            let mut laid = laid(state_bytes);
            let start = laid.0.as_mut_ptr() as usize;
            let mut room = Laid([0; 512]);
            let end = room.0.as_mut_ptr() as usize + 4090;
            // SAFETY: a frame as above, which nobody returns from, and room for its copy.
            let (mut frame, copy) = unsafe {
                let mut frame = Frame::new(
                    7,
                    (start + INFO_AT) as *mut libc::siginfo_t,
                    (start + CONTEXT_AT) as *mut libc::ucontext_t,
                );
                let state = if has_state { start + STATE_AT } else { 0 };
                frame.context().uc_mcontext.fpregs = state as *mut _;
                (frame, frame.copy_below(end))
            };
            let mut copy = copy;
            let moved = copy.start() - start;
            assert_eq!(moved % STATE_ALIGNMENT, 0);
            assert!(copy.start() + copy.bytes() <= end && end - copy.start() < copy.bytes() + 64);
            assert_eq!(copy.bytes(), frame.bytes());
            assert_eq!(copy.info as usize - start, INFO_AT + moved);
            let bytes = frame.bytes();
            // The word that points into the frame is another one.
            frame.context().uc_mcontext.fpregs = copy.context().uc_mcontext.fpregs;
            // SAFETY: both are so long.
            let [was, is] = [start, copy.start()]
                .map(|at| unsafe { std::slice::from_raw_parts(at as *const u8, bytes) });
            assert!(was == is);
            let state = copy.context().uc_mcontext.fpregs as usize;
            assert_eq!(
                state,
                if has_state {
                    start + STATE_AT + moved
                } else {
                    0
                }
            );
        }
    }
}
