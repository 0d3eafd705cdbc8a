// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An alternate signal stack for every thread that has none of its own.
//!
//! The kernel does not wait for a page on which it pushes the frame of a signal. A program may
//! run on stacks that it has made in managed memory (coroutines), whose next page is missing
//! sooner or later: the frames of faults and traps go elsewhere. A thread is given its stack by
//! the frame of the first of them, which `sigreturn` puts in force, and does not hear of it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use crate::budget::Budget;
use crate::region::{PAGE_BYTES, Region};
use crate::syscall;

/// Threads that have one at a time. Others go without, as before.
const MOST: usize = 2048;
/// Its guard, then the stack. A trap from managed memory is worked on here, and programs'
/// handlers may come in between.
const STRIDE_BYTES: usize = 128 << 10;
const STACK_BYTES: usize = STRIDE_BYTES - PAGE_BYTES;
/// Pages that a frame and its handler touch.
const CHARGED_PAGES: i64 = 2;
/// Of a stack that nobody has; 0 is one that nobody had.
const FREE: u32 = u32::MAX;
/// Of one that is made ready for a thread before that has a number.
const PROMISED: u32 = u32::MAX - 1;

/// What a thread has that has none.
pub const DISABLED: libc::stack_t = libc::stack_t {
    ss_sp: std::ptr::null_mut(),
    ss_flags: libc::SS_DISABLE,
    ss_size: 0,
};

/// The stacks of this process's threads.
#[derive(Debug)]
pub struct SignalStacks {
    base: usize,
    /// The thread whose stack it is.
    owners: [AtomicU32; MOST],
    /// Those before it have been somebody's.
    used: AtomicUsize,
    /// With so many it is looked first whether their threads are still there.
    look_at: AtomicUsize,
    /// None was left when it was asked for last.
    is_full: AtomicBool,
}

impl SignalStacks {
    /// Bytes of address space.
    pub const fn footprint_bytes() -> usize {
        MOST * STRIDE_BYTES
    }

    /// Nobody has one. The region is of memory that may not be accessed.
    pub fn new(region: &Region) -> Option<Self> {
        (region.left_bytes() >= Self::footprint_bytes()).then(|| Self {
            base: region.address(),
            owners: [const { AtomicU32::new(0) }; MOST],
            used: AtomicUsize::new(0),
            look_at: AtomicUsize::new(64),
            is_full: AtomicBool::new(false),
        })
    }

    /// Whether it is one of these.
    pub fn is_one(&self, stack: &libc::stack_t) -> bool {
        (self.base..self.base + Self::footprint_bytes()).contains(&(stack.ss_sp as usize))
    }

    /// That of a thread of this process, which gets one if there is one left.
    pub fn of_thread(&self, thread: u32, budget: &Budget) -> Option<libc::stack_t> {
        let used = self.used.load(Ordering::Acquire);
        let owners = self.owners.get(..used)?;
        let is_owner = |owner: &AtomicU32| owner.load(Ordering::Relaxed) == thread;
        if let Some(index) = owners.iter().position(is_owner) {
            return Some(self.stack(index));
        }
        self.take(thread, budget)
    }

    /// One for a thread that is about to be made: [`SignalStacks::hand_over`] says which it is.
    pub fn promise(&self, budget: &Budget) -> Option<libc::stack_t> {
        self.take(PROMISED, budget)
    }

    /// The thread for which it was made ready; None if it did not come to be.
    pub fn hand_over(&self, stack: &libc::stack_t, thread: Option<u32>) {
        let index = (stack.ss_sp as usize).wrapping_sub(self.base) / STRIDE_BYTES;
        if let Some(owner) = self.owners.get(index) {
            let _ = owner.compare_exchange(
                PROMISED,
                thread.unwrap_or(FREE),
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
        }
    }

    /// In the child of a fork there is one thread, with another number.
    pub fn after_fork_in_child(&self, before: u32, now: u32) {
        for owner in &self.owners[..self.used.load(Ordering::Relaxed)] {
            let seen = owner.load(Ordering::Relaxed);
            owner.store(if seen == before { now } else { FREE }, Ordering::Relaxed);
        }
        self.is_full.store(false, Ordering::Relaxed);
    }

    fn take(&self, thread: u32, budget: &Budget) -> Option<libc::stack_t> {
        if self.is_full.load(Ordering::Relaxed) {
            return None;
        }
        let used = self.used.load(Ordering::Acquire);
        if let Some(stack) = self.take_free(thread, used) {
            return Some(stack);
        }
        if used >= self.look_at.load(Ordering::Relaxed) {
            let alive = self.let_go_of_the_dead(used);
            let next = (2 * alive).clamp(64, MOST);
            self.look_at.store(next, Ordering::Relaxed);
            if let Some(stack) = self.take_free(thread, used) {
                return Some(stack);
            }
        }
        self.take_fresh(thread, budget)
    }

    fn take_free(&self, thread: u32, used: usize) -> Option<libc::stack_t> {
        let index = (self.owners[..used].iter()).position(|owner| {
            let claimed = owner.compare_exchange(FREE, thread, Ordering::AcqRel, Ordering::Relaxed);
            claimed.is_ok()
        })?;
        Some(self.stack(index))
    }

    fn take_fresh(&self, thread: u32, budget: &Budget) -> Option<libc::stack_t> {
        for index in self.used.load(Ordering::Acquire)..MOST {
            let owner = &self.owners[index];
            let claimed = owner.compare_exchange(0, thread, Ordering::AcqRel, Ordering::Relaxed);
            if claimed.is_err() {
                continue;
            }
            let stack = self.stack(index);
            // SAFETY: memory of ours that nobody has yet.
            let result = unsafe {
                syscall::call(
                    libc::SYS_mprotect,
                    [
                        stack.ss_sp as usize,
                        STACK_BYTES,
                        (libc::PROT_READ | libc::PROT_WRITE) as usize,
                        0,
                        0,
                        0,
                    ],
                )
            };
            if result < 0 {
                owner.store(0, Ordering::Release);
                break;
            }
            self.used.fetch_max(index + 1, Ordering::AcqRel);
            budget.charge_overhead(CHARGED_PAGES);
            return Some(stack);
        }
        self.is_full.store(true, Ordering::Relaxed);
        None
    }

    /// Frees the stacks of threads that have ended; how many have not.
    fn let_go_of_the_dead(&self, used: usize) -> usize {
        // SAFETY: no arguments.
        let process = unsafe { syscall::call(libc::SYS_getpid, [0; 6]) } as usize;
        let mut alive = 0;
        for owner in &self.owners[..used] {
            let thread = owner.load(Ordering::Relaxed);
            if matches!(thread, 0 | FREE) {
                continue;
            }
            let is_dead = thread != PROMISED && {
                // SAFETY: asks whether the thread is there.
                let result = unsafe {
                    syscall::call(libc::SYS_tgkill, [process, thread as usize, 0, 0, 0, 0])
                };
                result == -(libc::ESRCH as isize)
            };
            if is_dead {
                let _ = owner.compare_exchange(thread, FREE, Ordering::AcqRel, Ordering::Relaxed);
            } else {
                alive += 1;
            }
        }
        alive
    }

    fn stack(&self, index: usize) -> libc::stack_t {
        libc::stack_t {
            ss_sp: (self.base + index * STRIDE_BYTES + PAGE_BYTES) as *mut libc::c_void,
            ss_flags: 0,
            ss_size: STACK_BYTES,
        }
    }
}

/// One past the last byte of a stack.
pub fn end_of(stack: &libc::stack_t) -> usize {
    stack.ss_sp as usize + stack.ss_size
}

/// Whether a stack pointer is in it, as the kernel sees it. In one that is disabled none is.
pub fn has(stack: &libc::stack_t, pointer: usize) -> bool {
    let start = stack.ss_sp as usize;
    pointer > start && pointer - start <= stack.ss_size
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stacks() -> (SignalStacks, Budget) {
        let region = Region::reserve(SignalStacks::footprint_bytes()).unwrap();
        (
            SignalStacks::new(&region).unwrap(),
            Budget::new(1_000_000, 1, None),
        )
    }

    fn this_thread() -> u32 {
        // SAFETY: no arguments.
        unsafe { syscall::call(libc::SYS_gettid, [0; 6]) as u32 }
    }

    #[test]
    fn a_thread_keeps_its_stack_and_may_write_to_all_of_it() {
        let (stacks, budget) = stacks();
        let own = stacks.of_thread(this_thread(), &budget).unwrap();
        let other = stacks.promise(&budget).unwrap();
        assert_ne!(own.ss_sp, other.ss_sp);
        let again = stacks.of_thread(this_thread(), &budget).unwrap();
        assert_eq!((own.ss_sp, own.ss_size), (again.ss_sp, again.ss_size));
        assert!(stacks.is_one(&own) && has(&own, end_of(&own)));
        assert!(!has(&own, own.ss_sp as usize) && !has(&own, end_of(&own) + 1));
        // SAFETY: a stack that nobody uses.
        unsafe { own.ss_sp.cast::<u8>().write_bytes(1, own.ss_size) };
        assert_eq!(budget.overhead_pages(), 2 * CHARGED_PAGES);
    }

    #[test]
    fn stacks_of_the_dead_are_others() {
        let (stacks, budget) = stacks();
        let own = stacks.of_thread(this_thread(), &budget).unwrap();
        for _ in 0..300 {
            let of = |()| stacks.of_thread(this_thread(), &budget).is_some();
            assert!(std::thread::scope(|scope| scope
                .spawn(|| of(()))
                .join()
                .unwrap()));
        }
        assert!(stacks.used.load(Ordering::Relaxed) <= 65);
        let again = stacks.of_thread(this_thread(), &budget).unwrap();
        assert_eq!(own.ss_sp, again.ss_sp);
    }

    #[test]
    fn there_may_be_more_threads_than_stacks() {
        let (stacks, budget) = stacks();
        let first = stacks.promise(&budget).unwrap();
        for _ in 1..MOST {
            assert!(stacks.promise(&budget).is_some());
        }
        assert!(stacks.promise(&budget).is_none());
        // What did not come to be gives back; the child of a fork has one only.
        stacks.hand_over(&first, Some(7));
        stacks.after_fork_in_child(7, 8);
        let kept = stacks.of_thread(8, &budget).unwrap();
        assert_eq!(kept.ss_sp, first.ss_sp);
        let next = stacks.promise(&budget).unwrap();
        stacks.hand_over(&next, None);
        assert_eq!(stacks.promise(&budget).unwrap().ss_sp, next.ss_sp);
    }
}
