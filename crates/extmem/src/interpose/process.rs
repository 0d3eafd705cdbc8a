// SPDX-License-Identifier: Apache-2.0 OR MIT
//! fork: the child gets the pager's state as a copy and pages on by itself.

use std::sync::atomic::Ordering;

use libc::c_long;

use crate::fatal;
use crate::interpose::ending;
use crate::interpose::transfer::Held;
use crate::page::{Entry, Flag, PageIndex, State};
use crate::pager::{Pager, block_signals, in_arena, restore_signals};
use crate::region::PAGE_BYTES;
use crate::signal_frame::Frame;
use crate::signal_stacks::{DISABLED, end_of, in_force};
use crate::syscall;

/// Flags that a process with a memory of its own cannot have. With the parent's table of
/// descriptors it would put its own userfaultfd where the parent has his; while a parent waits for
/// its exec nobody else could fault; and another thread pointer would come in the middle of a
/// handler.
const REFUSED: i32 = libc::CLONE_FILES | libc::CLONE_VFORK | libc::CLONE_SETTLS;
/// From its thread pointer on, what the C library and the kernel know of a thread.
const THREAD_BYTES: usize = 4096;

/// clone of a process with a memory of its own; the stack that it is given is left to the
/// caller.
///
/// One in the arena is refused to a thread that `has_alternate` stack for signals none: at its
/// first missing page the kernel would find no place for the frame of one.
pub fn clone(pager: &'static Pager, arguments: [usize; 6], has_alternate: bool) -> isize {
    let [flags, stack, parent_word, child_word, ..] = arguments;
    if flags & REFUSED as usize != 0 || (in_arena(stack.wrapping_sub(1)) && !has_alternate) {
        return -(libc::EINVAL as isize);
    }
    // The kernel writes to these at once, in a child that has no userfaultfd yet.
    let mut held = Held::new(pager, false);
    hold_words(&mut held, flags, parent_word, child_word);
    let mut here = arguments;
    here[1] = 0;
    let result = fork(pager, libc::SYS_clone, here);
    if result == 0 {
        // Pins are taken off the copy already.
        std::mem::forget(held);
        if stack != 0 {
            ending::by_threads();
        }
    }
    result
}

/// The words that clone writes.
fn hold_words(held: &mut Held<'_>, flags: usize, parent_word: usize, child_word: usize) {
    const WORD_BYTES: usize = size_of::<i32>();
    if flags & (libc::CLONE_PARENT_SETTID | libc::CLONE_PIDFD) as usize != 0 {
        held.hold(parent_word, WORD_BYTES, true);
    }
    if flags & libc::CLONE_CHILD_SETTID as usize != 0 {
        held.hold(child_word, WORD_BYTES, true);
    }
}

/// clone of what shares this memory, with a stack of its own: a thread whose stack is in the arena,
/// or a child that its parent waits for. The latter would have the parent's alternate signal
/// stack, on which he may be at work: it has none.
pub fn clone_sharing(pager: &Pager, arguments: [usize; 6], frame: Frame) -> isize {
    let [flags, stack, parent_word, child_word, thread_pointer, _] = arguments;
    let has = |flag: i32| flags & flag as usize != 0;
    let is_managed = in_arena(stack.wrapping_sub(1));
    let alternate = match is_managed {
        true => pager.signal_stacks.promise(pager),
        false => Some(DISABLED),
    };
    let Some(alternate) = alternate else {
        return -(libc::EAGAIN as isize);
    };
    // The C library keeps what it knows of a thread at the end of its stack. The kernel writes
    // there, too, without waiting for a page.
    let is_known = has(libc::CLONE_SETTLS) && in_arena(thread_pointer) && thread_pointer > stack;
    let is_kept = !(is_managed && is_known)
        || (pager.signal_stacks).lock(
            pager,
            &alternate,
            stack,
            thread_pointer - stack + THREAD_BYTES,
        );
    // The kernel writes to these without waiting.
    let mut held = Held::new(pager, false);
    hold_words(&mut held, flags, parent_word, child_word);
    let end = if is_managed {
        end_of(&alternate)
    } else {
        stack
    };
    let result = if is_kept {
        // SAFETY: the child's own stack, or the pager's for it, which nobody uses; the words are
        // the program's.
        unsafe {
            let mut child = frame.copy_below(end);
            let context = child.context();
            context.uc_mcontext.gregs[libc::REG_RSP as usize] = stack as i64;
            context.uc_stack = alternate;
            child.clone_into(flags, [parent_word, child_word, thread_pointer])
        }
    } else {
        -(libc::EAGAIN as isize)
    };
    match result {
        1.. if !has(libc::CLONE_VFORK) => {
            pager.signal_stacks.hand_over(&alternate, result as u32);
        }
        _ => pager.signal_stacks.give_back(pager, &alternate),
    }
    result
}

/// clone or fork of a process with its own memory. Runs on the caller's stack, of
/// which the child has a copy, so both sides return from here.
pub fn fork(pager: &'static Pager, number: c_long, arguments: [usize; 6]) -> isize {
    let signals = block_signals();
    let before = syscall::this_thread();
    // Nobody is half way through anything from here on.
    pager.gate.close();
    let Some(ticket) = pager.store.fork_begin() else {
        pager.gate.open();
        restore_signals(signals);
        return -(libc::EAGAIN as isize);
    };
    // SAFETY: the program's own call: no new stack.
    let result = unsafe { syscall::call(number, arguments) };
    if result == 0 {
        pager.store.after_fork_in_child(ticket);
        pager.after_fork_in_child();
        let now = syscall::this_thread();
        (pager.signal_stacks).after_fork_in_child(before, now, &in_force());
    } else {
        pager.store.fork_ended(ticket, result > 0);
    }
    pager.gate.open();
    if result == 0 {
        pager.start_handlers();
        if pager.budget.may_owe() {
            // What it writes to that it has in common with its parent becomes its own
            // without a word to us: somebody must be there to give back.
            pager.start_threads();
        }
    }
    restore_signals(signals);
    result
}

impl Pager {
    /// Puts the copy in order: its own fault descriptor, its own threads when needed.
    fn after_fork_in_child(&self) {
        // SAFETY: no arguments.
        let process = unsafe { syscall::call(libc::SYS_getpid, [0; 6]) } as i32;
        self.process.store(process, Ordering::Relaxed);
        if let Some(share) = self.budget.share() {
            share.after_fork_in_child();
        }
        self.gate.reset();
        self.contexts.reset();
        // Nobody is in a call here.
        self.pinned_pages.store(0, Ordering::Relaxed);
        self.table.reset_sleepers();
        self.threads_started.store(false, Ordering::SeqCst);
        self.own_threads.store(0, Ordering::SeqCst);
        ending::after_fork_in_child();
        crate::descriptor::after_fork_in_child();
        self.evict_wanted.store(0, Ordering::SeqCst);
        if let Err(errno) = self.uffd.reopen() {
            fatal!(
                "the child of a fork cannot open a userfaultfd (error {errno}); next: raise its descriptor limit"
            );
        }
        // The copy of the parent's file shows the parent's memory: it must not stay.
        let before = self.memory_file.load(Ordering::Relaxed);
        let fresh = open_memory_file();
        let now = match (before >= 0, fresh >= 0) {
            (true, true) => crate::descriptor::replace(before, fresh),
            _ => fresh,
        };
        self.memory_file.store(now, Ordering::Relaxed);
        self.pipes.after_fork_in_child();
        self.statistics.after_fork_in_child(&self.about("(fork)"));
        let (base, bytes) = self.victims.memory();
        if let Err(errno) = self.uffd.register(base, bytes) {
            fatal!(
                "the child of a fork cannot take over the victim cache (error {errno}); next: report this"
            );
        }
        self.rearm_mappings();
    }

    /// The registration of a mapping is not inherited, nor is write protection.
    fn rearm_mappings(&self) {
        for range in self.table.known_ranges() {
            self.each_run(
                &range,
                |entry| entry.has(Flag::Accessible) && entry.state() != State::Foreign,
                |address, pages| self.uffd.register(address, pages * PAGE_BYTES),
            );
            self.each_run(&range, Entry::is_protected, |address, pages| {
                self.uffd.protect(address, pages, true)
            });
            // Calls in flight on other threads do not exist here.
            for page in range {
                let entry = self.table.load(page);
                if entry.pins() > 0 {
                    self.table.publish(page, entry.without_pins());
                }
            }
        }
    }

    fn each_run(
        &self,
        range: &std::ops::Range<PageIndex>,
        alike: impl Fn(Entry) -> bool,
        work: impl Fn(usize, usize) -> Result<(), i32>,
    ) {
        let mut page = range.start;
        while page < range.end {
            let run = self.run_of(page, range.end, &alike);
            let address = self.table.address(page);
            if run > 0
                && let Err(errno) = work(address, run as usize)
            {
                fatal!(
                    "the child of a fork cannot take over {run} pages at {address:#x} (error {errno}); next: report this"
                );
            }
            page += run.max(1);
        }
    }

    fn run_of(&self, first: PageIndex, end: PageIndex, alike: impl Fn(Entry) -> bool) -> u32 {
        let mut run = 0;
        while first + run < end && alike(self.table.load(first + run)) {
            run += 1;
        }
        run
    }
}

/// Opens `/proc/self/mem`; negative without (a process that has changed its user may not).
pub fn open_memory_file() -> i32 {
    crate::descriptor::open_in_proc(b"self/mem\0", libc::O_RDONLY) as i32
}
