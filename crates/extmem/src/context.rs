// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What one operation works with: a stack, a transfer buffer, scratch arrays.
//!
//! A fault can come on any stack, be it a few KiB of a thread or an alternate
//! signal stack, and on any thread, known or not. So nothing is kept per thread:
//! an operation borrows a context from a pool and gives it back.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::budget::Budget;
use crate::page::{Entry, PageIndex};
use crate::region::{PAGE_BYTES, Region, round_up};
use crate::syscall;

/// Pages in one batch of any kind.
pub const BATCH_PAGES: usize = 256;
/// Stack of an operation.
const STACK_BYTES: usize = 64 * 1024;
/// Transfer buffer of an operation.
const BUFFER_BYTES: usize = BATCH_PAGES * PAGE_BYTES;
/// Operations at one time. More wait.
const CONTEXTS: usize = 512;
/// Physical pages a context is expected to touch, charged when it is first used; of its buffer
/// as many as lie in that, others by [`Contexts::buffer`].
const CHARGED_PAGES: i64 = 12;
const CHARGED_BUFFER_PAGES: u32 = 8;

/// Arrays of one operation, too large for a borrowed stack.
#[repr(C)]
#[derive(Debug)]
pub struct Scratch {
    /// Pages worked on.
    pub pages: [PageIndex; BATCH_PAGES],
    /// Their words as claimed.
    pub entries: [Entry; BATCH_PAGES],
    /// A second list of pages.
    pub chosen: [PageIndex; BATCH_PAGES],
    /// Scattered memory.
    pub vectors: [libc::iovec; BATCH_PAGES],
    /// Positions belonging to `pages`.
    pub positions: [u32; BATCH_PAGES],
    /// Pages to be worked on later, and their words as claimed.
    pub later_pages: [PageIndex; BATCH_PAGES],
    pub later_entries: [Entry; BATCH_PAGES],
}

/// One borrowed context.
#[derive(Debug)]
pub struct Context {
    index: usize,
    base: *mut u8,
}

/// The pool.
#[derive(Debug)]
pub struct Contexts {
    base: *mut u8,
    stride_bytes: usize,
    in_use: [AtomicU64; CONTEXTS / 64],
    /// Borrowed since [`Contexts::trim`] looked last.
    borrowed: [AtomicU64; CONTEXTS / 64],
    /// Pages of its buffer that are charged, 0 while it has no memory.
    charged: [AtomicU32; CONTEXTS],
    /// Pages of its buffer that were asked for since [`Contexts::trim`] looked last.
    asked: [AtomicU32; CONTEXTS],
}

// SAFETY: a context belongs to one borrower at a time; the bitmap is atomic.
unsafe impl Sync for Contexts {}
// SAFETY: as above.
unsafe impl Send for Contexts {}

const SCRATCH_BYTES: usize = round_up(size_of::<Scratch>(), PAGE_BYTES);
const STRIDE_BYTES: usize = PAGE_BYTES + STACK_BYTES + SCRATCH_BYTES + BUFFER_BYTES;

impl Contexts {
    /// Bytes of address space for the pool.
    pub const fn footprint_bytes() -> usize {
        CONTEXTS * STRIDE_BYTES
    }

    /// A pool in a region. Below each stack lies a page that faults.
    pub fn new(mut region: Region) -> Option<Self> {
        // SAFETY: zero is a u8.
        let memory = unsafe { region.carve::<u8>(CONTEXTS * STRIDE_BYTES) }?;
        let base = memory.as_mut_ptr();
        for index in 0..CONTEXTS {
            // SAFETY: the first page of each context is nothing but its guard.
            unsafe {
                syscall::call(
                    libc::SYS_mprotect,
                    [
                        base as usize + index * STRIDE_BYTES,
                        PAGE_BYTES,
                        libc::PROT_NONE as usize,
                        0,
                        0,
                        0,
                    ],
                );
            }
        }
        Some(Self {
            base,
            stride_bytes: STRIDE_BYTES,
            in_use: [const { AtomicU64::new(0) }; CONTEXTS / 64],
            borrowed: [const { AtomicU64::new(0) }; CONTEXTS / 64],
            charged: [const { AtomicU32::new(0) }; CONTEXTS],
            asked: [const { AtomicU32::new(0) }; CONTEXTS],
        })
    }

    /// Borrows a context, waiting for one if all are out.
    pub fn borrow(&self, budget: &Budget) -> Context {
        loop {
            if let Some(context) = self.try_borrow(budget) {
                return context;
            }
            // SAFETY: no arguments.
            unsafe { syscall::call(libc::SYS_sched_yield, [0; 6]) };
        }
    }

    /// Borrows a context unless all are out: whoever has one already may not wait for another.
    pub fn try_borrow(&self, budget: &Budget) -> Option<Context> {
        for (word_index, word) in self.in_use.iter().enumerate() {
            let seen = word.load(Ordering::Relaxed);
            let bit = seen.trailing_ones();
            if bit == 64 {
                continue;
            }
            if word.fetch_or(1 << bit, Ordering::Acquire) & (1 << bit) == 0 {
                let index = word_index * 64 + bit as usize;
                if self.charged[index].load(Ordering::Relaxed) == 0 {
                    self.charged[index].store(CHARGED_BUFFER_PAGES, Ordering::Relaxed);
                    budget.charge_overhead(CHARGED_PAGES);
                }
                let borrowed = &self.borrowed[word_index];
                if borrowed.load(Ordering::Relaxed) & (1 << bit) == 0 {
                    borrowed.fetch_or(1 << bit, Ordering::Relaxed);
                }
                return Some(Context {
                    index,
                    // SAFETY: inside the pool.
                    base: unsafe { self.base.add(index * self.stride_bytes) },
                });
            }
        }
        None
    }

    /// The first pages of a context's buffer, at most `BATCH_PAGES`, for transfers. They are
    /// charged while they have memory.
    pub fn buffer(&self, context: &Context, pages: usize, budget: &Budget) -> *mut u8 {
        let pages = pages as u32;
        let asked = &self.asked[context.index];
        if pages > asked.load(Ordering::Relaxed) {
            asked.store(pages, Ordering::Relaxed);
        }
        let before = self.charged[context.index].load(Ordering::Relaxed);
        if pages > before {
            self.charged[context.index].store(pages, Ordering::Relaxed);
            budget.charge_overhead(i64::from(pages - before));
        }
        context.buffer()
    }

    /// Gives memory back that was not asked for since the last time: of contexts that nobody
    /// borrowed all of it, of others the ends of their buffers.
    pub fn trim(&self, budget: &Budget) {
        for (word_index, borrowed) in self.borrowed.iter().enumerate() {
            let borrowed = borrowed.swap(0, Ordering::Relaxed);
            for bit in 0..64 {
                let index = word_index * 64 + bit;
                let charged = self.charged[index].load(Ordering::Relaxed);
                let asked = self.asked[index].load(Ordering::Relaxed);
                let idle = borrowed & (1 << bit) == 0;
                if charged == 0 || (!idle && charged <= asked.max(CHARGED_BUFFER_PAGES)) {
                    self.asked[index].store(0, Ordering::Relaxed);
                    continue;
                }
                // Not while somebody works with it.
                let mask = 1 << bit;
                if self.in_use[word_index].fetch_or(mask, Ordering::Acquire) & mask == 0 {
                    self.shrink(index, if idle { 0 } else { asked.max(1) }, budget);
                    self.in_use[word_index].fetch_and(!mask, Ordering::Release);
                }
            }
        }
    }

    /// Leaves a context that is ours so many pages of its buffer, at least those that all
    /// have; or with 0 nothing at all.
    fn shrink(&self, index: usize, pages: u32, budget: &Budget) {
        let before = self.charged[index].load(Ordering::Relaxed);
        let buffer_at = STRIDE_BYTES - BUFFER_BYTES;
        let (from, now, freed) = if pages == 0 {
            let freed = CHARGED_PAGES + i64::from(before - CHARGED_BUFFER_PAGES);
            (PAGE_BYTES, 0, freed)
        } else {
            let now = pages.max(CHARGED_BUFFER_PAGES);
            let from = buffer_at + now as usize * PAGE_BYTES;
            (from, now, i64::from(before) - i64::from(now))
        };
        let end = buffer_at + before as usize * PAGE_BYTES;
        if freed <= 0 {
            return;
        }
        // SAFETY: memory of a context that nobody has, past its guard. It reads as zero next
        // time, which is valid wherever something is kept there.
        unsafe {
            syscall::call(
                libc::SYS_madvise,
                [
                    self.base.add(index * self.stride_bytes + from) as usize,
                    end - from,
                    libc::MADV_DONTNEED as usize,
                    0,
                    0,
                    0,
                ],
            );
        }
        self.charged[index].store(now, Ordering::Relaxed);
        self.asked[index].store(0, Ordering::Relaxed);
        budget.charge_overhead(-freed);
    }

    /// Gives a context back.
    pub fn give_back(&self, context: &Context) {
        self.in_use[context.index / 64].fetch_and(!(1 << (context.index % 64)), Ordering::Release);
    }

    /// In the child of a fork: all contexts are free.
    pub fn reset(&self) {
        for word in &self.in_use {
            word.store(0, Ordering::SeqCst);
        }
    }
}

impl Context {
    /// Top of the stack, 16-byte aligned.
    pub fn stack_top(&self) -> *mut u8 {
        // SAFETY: inside the context.
        unsafe { self.base.add(PAGE_BYTES + STACK_BYTES) }
    }

    /// The scratch arrays.
    pub fn scratch(&mut self) -> &mut Scratch {
        // SAFETY: inside the context, page aligned, borrowed alone; zero is valid for
        // every field, and what an earlier borrower left is too.
        unsafe { &mut *self.base.add(PAGE_BYTES + STACK_BYTES).cast::<Scratch>() }
    }

    /// `BATCH_PAGES` pages for transfers; [`Contexts::buffer`] charges them.
    fn buffer(&self) -> *mut u8 {
        // SAFETY: inside the context.
        unsafe { self.base.add(PAGE_BYTES + STACK_BYTES + SCRATCH_BYTES) }
    }
}

/// Calls `function(argument)` on another stack.
///
/// # Safety
/// `stack_top` must be the 16-byte aligned end of a stack that nobody uses.
pub unsafe fn call_on_stack(
    stack_top: *mut u8,
    function: extern "C" fn(*mut std::ffi::c_void),
    argument: *mut std::ffi::c_void,
) {
    // SAFETY: r12 keeps the old stack pointer over the call, as the ABI demands of
    // the callee; everything else a call may clobber is declared.
    unsafe {
        std::arch::asm!(
            "mov r12, rsp",
            "mov rsp, rcx",
            "call rax",
            "mov rsp, r12",
            out("r12") _,
            in("rcx") stack_top,
            in("rax") function,
            in("rdi") argument,
            clobber_abi("C"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::c_void;

    extern "C" fn where_am_i(argument: *mut c_void) {
        let local = 0u8;
        // SAFETY: the test passes a usize.
        unsafe { *argument.cast::<usize>() = &raw const local as usize };
    }

    #[test]
    fn runs_on_the_borrowed_stack() {
        let region = Region::map_anonymous(Contexts::footprint_bytes()).unwrap();
        let pool = Contexts::new(region).unwrap();
        let budget = Budget::new(100_000, 1, None);
        let first = pool.borrow(&budget);
        let second = pool.borrow(&budget);
        assert_ne!(first.stack_top(), second.stack_top());
        assert_eq!(budget.overhead_pages(), 2 * CHARGED_PAGES);
        let mut seen = 0usize;
        // SAFETY: the stack is borrowed here alone.
        unsafe {
            call_on_stack(
                second.stack_top(),
                where_am_i,
                (&raw mut seen).cast::<c_void>(),
            );
        }
        let top = second.stack_top() as usize;
        assert!(seen < top && seen > top - STACK_BYTES);
        pool.give_back(&first);
        let again = pool.borrow(&budget);
        assert_eq!(again.stack_top(), first.stack_top());
    }

    #[test]
    fn what_nobody_asks_for_any_more_goes_back() {
        let region = Region::map_anonymous(Contexts::footprint_bytes()).unwrap();
        let pool = Contexts::new(region).unwrap();
        let budget = Budget::new(100_000, 1, None);
        let fill = |context: &Context, pages: usize| {
            let buffer = pool.buffer(context, pages, &budget);
            // SAFETY: so many pages of a buffer that is borrowed here alone.
            unsafe { buffer.write_bytes(7, pages * PAGE_BYTES) };
        };
        let first_of = |context: &Context, page: usize| {
            // SAFETY: as above.
            unsafe { *context.buffer().add(page * PAGE_BYTES) }
        };
        let (busy, idle) = (pool.borrow(&budget), pool.borrow(&budget));
        fill(&busy, 100);
        fill(&idle, 50);
        // SAFETY: as below.
        unsafe { *idle.stack_top().sub(1) = 7 };
        assert_eq!(budget.overhead_pages(), 2 * CHARGED_PAGES + 92 + 42);
        // Not what somebody works with, however long.
        (0..3).for_each(|_| pool.trim(&budget));
        assert_eq!(budget.overhead_pages(), 2 * CHARGED_PAGES + 92 + 42);
        assert_eq!((first_of(&busy, 99), first_of(&idle, 49)), (7, 7));
        pool.give_back(&busy);
        pool.give_back(&idle);
        // One is borrowed again and asks for less: its buffer's end goes, the other one whole.
        let busy = pool.borrow(&budget);
        fill(&busy, 20);
        pool.give_back(&busy);
        pool.trim(&budget);
        assert_eq!(budget.overhead_pages(), CHARGED_PAGES + 12);
        assert_eq!((first_of(&busy, 19), first_of(&busy, 20)), (7, 0));
        assert_eq!((first_of(&idle, 0), first_of(&idle, 49)), (0, 0));
        // SAFETY: the last byte of a stack that nobody uses.
        assert_eq!(unsafe { *idle.stack_top().sub(1) }, 0);
        pool.trim(&budget);
        assert_eq!(budget.overhead_pages(), 0);
        // One without a buffer is kept while it is used, and goes whole when it is not.
        let other = pool.borrow(&budget);
        pool.give_back(&other);
        pool.trim(&budget);
        assert_eq!(budget.overhead_pages(), CHARGED_PAGES);
        pool.trim(&budget);
        assert_eq!(budget.overhead_pages(), 0);
        // And is charged again when it is used again.
        pool.borrow(&budget);
        assert_eq!(budget.overhead_pages(), CHARGED_PAGES);
    }

    #[test]
    fn nobody_loses_what_they_work_with() {
        let region = Region::map_anonymous(Contexts::footprint_bytes()).unwrap();
        let pool = Contexts::new(region).unwrap();
        let budget = Budget::new(1_000_000, 1, None);
        std::thread::scope(|scope| {
            for thread in 1..=3u8 {
                let (pool, budget) = (&pool, &budget);
                scope.spawn(move || {
                    for round in 0..2000usize {
                        let context = pool.borrow(budget);
                        let bytes = (round % 37 + 1) * PAGE_BYTES;
                        let buffer = pool.buffer(&context, bytes / PAGE_BYTES, budget);
                        // SAFETY: so many bytes of a buffer that is borrowed here alone.
                        let buffer = unsafe { std::slice::from_raw_parts_mut(buffer, bytes) };
                        buffer.fill(thread);
                        std::thread::yield_now();
                        assert!(buffer.iter().all(|&byte| byte == thread));
                        pool.give_back(&context);
                    }
                });
            }
            scope.spawn(|| (0..4000).for_each(|_| pool.trim(&budget)));
        });
        (0..2).for_each(|_| pool.trim(&budget));
        assert_eq!(budget.overhead_pages(), 0);
    }
}
