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
/// as many as lie in that, others by [`Contexts::charge_buffer`].
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
    /// Pages of its buffer that were charged, 0 before it is first used.
    charged: [AtomicU32; CONTEXTS],
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
            charged: [const { AtomicU32::new(0) }; CONTEXTS],
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
                return Some(Context {
                    index,
                    // SAFETY: inside the pool.
                    base: unsafe { self.base.add(index * self.stride_bytes) },
                });
            }
        }
        None
    }

    /// So many pages of a context's buffer are about to be used, and stay physical.
    pub fn charge_buffer(&self, context: &Context, pages: usize, budget: &Budget) {
        let before = self.charged[context.index].load(Ordering::Relaxed);
        let now = pages as u32;
        if now > before {
            self.charged[context.index].store(now, Ordering::Relaxed);
            budget.charge_overhead(i64::from(now - before));
        }
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

    /// `BATCH_PAGES` pages for transfers.
    pub fn buffer(&self) -> *mut u8 {
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
}
