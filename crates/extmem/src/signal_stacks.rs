// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An alternate signal stack of the pager's for every thread.
//!
//! The kernel does not wait for a page on which it pushes the frame of a signal. A program may
//! run on stacks that it has made in managed memory (coroutines), whose next page is missing
//! sooner or later: the frames of faults and traps go elsewhere. A thread is given its stack by
//! the frame of the first of them, which `sigreturn` puts in force, and does not hear of it. What
//! it tells `sigaltstack` itself is noted here: on that the kernel would push frames of which the
//! program knows nothing, also when it has freed it, or is at work there.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::lock::Lock;
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
/// Where none is left it is not looked again before it was asked for so many times.
const FULL_FOR: u32 = 1000;

/// Which flag the kernel has since Linux 4.7 (`SS_AUTODISARM`).
pub const AUTODISARM: i32 = 1 << 31;

/// What a thread has that has none.
pub const DISABLED: libc::stack_t = libc::stack_t {
    ss_sp: std::ptr::null_mut(),
    ss_flags: libc::SS_DISABLE,
    ss_size: 0,
};

/// What the stacks need of the process that they are in.
pub trait Process {
    /// Its number.
    fn number(&self) -> i32;
    /// So many pages of DRAM are taken by them.
    fn charge(&self, pages: i64);
    /// Keeps managed memory in DRAM. False if too much would be.
    fn lock_memory(&self, start: usize, bytes: usize) -> bool;
    /// It may leave again.
    fn unlock_memory(&self, start: usize, bytes: usize);
    /// Works with all signals of this thread blocked.
    fn without_signals<R>(&self, work: impl FnOnce() -> R) -> R;
}

/// The stacks of this process's threads.
#[derive(Debug)]
pub struct SignalStacks {
    base: usize,
    /// The thread whose stack it is.
    owners: [AtomicU32; MOST],
    /// What is locked in managed memory for that thread: first byte, and how many.
    locked: [[AtomicUsize; 2]; MOST],
    /// Whose turn it is to lock and unlock.
    turn: Lock<()>,
    /// What the thread has told `sigaltstack`: first byte, bytes (0: none), flags.
    told: [[AtomicUsize; 3]; MOST],
    /// Those before it have been somebody's.
    used: AtomicUsize,
    /// With so many it is looked first whether their threads are still there.
    look_at: AtomicUsize,
    /// None was left; so often it is not looked again.
    full: AtomicU32,
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
            locked: [const { [const { AtomicUsize::new(0) }; 2] }; MOST],
            turn: Lock::new(()),
            told: [const { [const { AtomicUsize::new(0) }; 3] }; MOST],
            used: AtomicUsize::new(0),
            look_at: AtomicUsize::new(64),
            full: AtomicU32::new(0),
        })
    }

    /// Whether it is one of these.
    pub fn is_one(&self, stack: &libc::stack_t) -> bool {
        self.index_of(stack).is_some()
    }

    /// What the thread that has one of these has told `sigaltstack`.
    pub fn program_stack(&self, stack: &libc::stack_t) -> libc::stack_t {
        let told = self.index_of(stack).map(|index| &self.told[index]);
        let [start, bytes, flags] = told.map_or([0; 3], |told| {
            told.each_ref().map(|word| word.load(Ordering::Relaxed))
        });
        match bytes {
            0 => DISABLED,
            _ => libc::stack_t {
                ss_sp: start as *mut libc::c_void,
                ss_flags: flags as i32,
                ss_size: bytes,
            },
        }
    }

    /// It tells so now.
    pub fn set_program_stack(&self, stack: &libc::stack_t, wanted: &libc::stack_t) {
        if let Some(index) = self.index_of(stack) {
            let is_none = wanted.ss_flags & libc::SS_DISABLE != 0;
            let words = match is_none {
                true => [0; 3],
                false => [
                    wanted.ss_sp as usize,
                    wanted.ss_size,
                    (wanted.ss_flags & AUTODISARM) as u32 as usize,
                ],
            };
            for (word, value) in self.told[index].iter().zip(words) {
                word.store(value, Ordering::Relaxed);
            }
        }
    }

    /// That of a thread of this process, which gets one if there is one left.
    pub fn of_thread(&self, process: &impl Process, thread: u32) -> Option<libc::stack_t> {
        let used = self.used.load(Ordering::Acquire);
        let owners = self.owners.get(..used)?;
        let is_owner = |owner: &AtomicU32| owner.load(Ordering::Relaxed) == thread;
        if let Some(index) = owners.iter().position(is_owner) {
            return Some(self.stack(index));
        }
        self.take(process, thread)
    }

    /// One for a thread that is about to be made: [`SignalStacks::hand_over`] says which it is.
    pub fn promise(&self, process: &impl Process) -> Option<libc::stack_t> {
        self.take(process, PROMISED)
    }

    /// The thread, or process that shares this memory, for which it was made ready.
    pub fn hand_over(&self, stack: &libc::stack_t, thread: u32) {
        if let Some(index) = self.index_of(stack) {
            self.owners[index].store(thread, Ordering::Release);
        }
    }

    /// It did not come to be, or has ended.
    pub fn give_back(&self, process: &impl Process, stack: &libc::stack_t) {
        if let Some(index) = self.index_of(stack) {
            self.let_go(process, index, PROMISED);
        }
    }

    /// Locks what the C library and the kernel know of the thread to which it is promised, for as
    /// long as that has the stack. False if too much would be locked.
    pub fn lock(
        &self,
        process: &impl Process,
        stack: &libc::stack_t,
        start: usize,
        bytes: usize,
    ) -> bool {
        let Some(index) = self.index_of(stack) else {
            return false;
        };
        process.without_signals(|| {
            let _turn = self.turn.lock();
            // Whoever had this memory has ended.
            for [known, length] in &self.locked {
                let (at, known_bytes) = (known.load(Ordering::Relaxed), length);
                let known_bytes = known_bytes.load(Ordering::Relaxed);
                if at < start + bytes && start < at + known_bytes {
                    length.store(0, Ordering::Relaxed);
                    process.unlock_memory(at, known_bytes);
                }
            }
            let locked = process.lock_memory(start, bytes);
            if locked {
                self.locked[index][0].store(start, Ordering::Relaxed);
                self.locked[index][1].store(bytes, Ordering::Relaxed);
            }
            locked
        })
    }

    /// In the child of a fork there is one thread, with another number, on the alternate stack
    /// that it had. What was locked for others stays so.
    pub fn after_fork_in_child(&self, before: u32, now: u32, current: &libc::stack_t) {
        let used = self.used.load(Ordering::Relaxed);
        for (index, owner) in self.owners.iter().enumerate() {
            let seen = owner.load(Ordering::Relaxed);
            let is_own = seen == before || self.stack(index).ss_sp == current.ss_sp;
            let next = match index < used {
                true if is_own => now,
                true => FREE,
                false => 0,
            };
            owner.store(next, Ordering::Relaxed);
        }
        // SAFETY: nobody else is here, and this thread is in the midst of a fork.
        unsafe { self.turn.reset() };
        self.full.store(0, Ordering::Relaxed);
    }

    fn take(&self, process: &impl Process, thread: u32) -> Option<libc::stack_t> {
        let full = self.full.load(Ordering::Relaxed);
        if full > 0 {
            self.full.store(full - 1, Ordering::Relaxed);
            return None;
        }
        let used = self.used.load(Ordering::Acquire);
        if let Some(stack) = self.take_free(thread, used) {
            return Some(stack);
        }
        if used >= self.look_at.load(Ordering::Relaxed) {
            let alive = self.let_go_of_the_dead(process, used);
            let next = (2 * alive).clamp(64, MOST);
            self.look_at.store(next, Ordering::Relaxed);
            if let Some(stack) = self.take_free(thread, used) {
                return Some(stack);
            }
        }
        let fresh = self.take_fresh(process, thread);
        if fresh.is_none() {
            self.full.store(FULL_FOR, Ordering::Relaxed);
        }
        fresh
    }

    fn take_free(&self, thread: u32, used: usize) -> Option<libc::stack_t> {
        let index = (self.owners[..used].iter()).position(|owner| {
            let claimed = owner.compare_exchange(FREE, thread, Ordering::AcqRel, Ordering::Relaxed);
            claimed.is_ok()
        })?;
        // A fork may have come between the claim of a fresh one and this.
        if !self.make_ready(index) {
            self.owners[index].store(FREE, Ordering::Release);
            return None;
        }
        Some(self.stack(index))
    }

    fn take_fresh(&self, process: &impl Process, thread: u32) -> Option<libc::stack_t> {
        for index in self.used.load(Ordering::Acquire)..MOST {
            let owner = &self.owners[index];
            let claimed = owner.compare_exchange(0, thread, Ordering::AcqRel, Ordering::Relaxed);
            if claimed.is_err() {
                continue;
            }
            if !self.make_ready(index) {
                owner.store(0, Ordering::Release);
                break;
            }
            self.used.fetch_max(index + 1, Ordering::AcqRel);
            process.charge(CHARGED_PAGES);
            return Some(self.stack(index));
        }
        None
    }

    /// Makes one's memory accessible, all but its guard. Nothing is told of it yet.
    fn make_ready(&self, index: usize) -> bool {
        self.set_program_stack(&self.stack(index), &DISABLED);
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let start = self.stack(index).ss_sp as usize;
        // SAFETY: memory of ours that nobody uses.
        let result = unsafe {
            syscall::call(
                libc::SYS_mprotect,
                [start, STACK_BYTES, protection, 0, 0, 0],
            )
        };
        result >= 0
    }

    fn index_of(&self, stack: &libc::stack_t) -> Option<usize> {
        let offset = (stack.ss_sp as usize).checked_sub(self.base)?;
        (offset < Self::footprint_bytes()).then_some(offset / STRIDE_BYTES)
    }

    /// Frees the stacks of threads that have ended; how many have not.
    fn let_go_of_the_dead(&self, process: &impl Process, used: usize) -> usize {
        let own = process.number() as u32;
        let is_there = |group: u32, thread: u32| {
            // SAFETY: asks whether the thread is there.
            let result = unsafe {
                syscall::call(
                    libc::SYS_tgkill,
                    [group as usize, thread as usize, 0, 0, 0, 0],
                )
            };
            result != -(libc::ESRCH as isize)
        };
        let mut alive = 0;
        for (index, owner) in self.owners[..used].iter().enumerate() {
            let thread = owner.load(Ordering::Relaxed);
            if matches!(thread, 0 | FREE) {
                continue;
            }
            // A thread of this process, or the first of one that shares its memory.
            if thread == PROMISED || is_there(own, thread) || is_there(thread, thread) {
                alive += 1;
            } else {
                self.let_go(process, index, thread);
            }
        }
        alive
    }

    /// Of one that is still that thread's.
    fn let_go(&self, process: &impl Process, index: usize, thread: u32) {
        process.without_signals(|| {
            let _turn = self.turn.lock();
            let owner = &self.owners[index];
            if owner.load(Ordering::Acquire) == thread {
                let [start, length] = &self.locked[index];
                let bytes = length.swap(0, Ordering::Relaxed);
                if bytes > 0 {
                    process.unlock_memory(start.load(Ordering::Relaxed), bytes);
                }
                owner.store(FREE, Ordering::Release);
            }
        });
    }

    fn stack(&self, index: usize) -> libc::stack_t {
        libc::stack_t {
            ss_sp: (self.base + index * STRIDE_BYTES + PAGE_BYTES) as *mut libc::c_void,
            ss_flags: 0,
            ss_size: STACK_BYTES,
        }
    }
}

/// The alternate stack of this thread, as the kernel has it.
pub fn in_force() -> libc::stack_t {
    let mut stack = DISABLED;
    // SAFETY: fills one structure.
    unsafe {
        syscall::call(
            libc::SYS_sigaltstack,
            [0, &raw mut stack as usize, 0, 0, 0, 0],
        );
    }
    stack
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
    use crate::syscall::this_thread;

    #[derive(Default)]
    struct Told {
        pages: AtomicUsize,
        locked: AtomicUsize,
    }

    impl Process for Told {
        fn number(&self) -> i32 {
            std::process::id() as i32
        }
        fn charge(&self, pages: i64) {
            self.pages.fetch_add(pages as usize, Ordering::Relaxed);
        }
        fn lock_memory(&self, _: usize, bytes: usize) -> bool {
            self.locked.fetch_add(bytes, Ordering::Relaxed);
            bytes < 1 << 20
        }
        fn unlock_memory(&self, _: usize, bytes: usize) {
            self.locked.fetch_sub(bytes, Ordering::Relaxed);
        }
        fn without_signals<R>(&self, work: impl FnOnce() -> R) -> R {
            work()
        }
    }

    fn stacks() -> (SignalStacks, Told) {
        let region = Region::reserve(SignalStacks::footprint_bytes()).unwrap();
        (SignalStacks::new(&region).unwrap(), Told::default())
    }

    #[test]
    fn a_thread_keeps_its_stack_and_may_write_to_all_of_it() {
        let (stacks, place) = stacks();
        let own = stacks.of_thread(&place, this_thread()).unwrap();
        let other = stacks.promise(&place).unwrap();
        assert_ne!(own.ss_sp, other.ss_sp);
        let again = stacks.of_thread(&place, this_thread()).unwrap();
        assert_eq!((own.ss_sp, own.ss_size), (again.ss_sp, again.ss_size));
        assert!(stacks.is_one(&own) && has(&own, end_of(&own)));
        assert!(!has(&own, own.ss_sp as usize) && !has(&own, end_of(&own) + 1));
        // SAFETY: a stack that nobody uses.
        unsafe { own.ss_sp.cast::<u8>().write_bytes(1, own.ss_size) };
        assert_eq!(
            place.pages.load(Ordering::Relaxed),
            2 * CHARGED_PAGES as usize
        );
    }

    #[test]
    fn stacks_of_the_dead_are_others() {
        let (stacks, place) = stacks();
        let own = stacks.of_thread(&place, this_thread()).unwrap();
        for _ in 0..300 {
            let of = |()| stacks.of_thread(&place, this_thread()).is_some();
            assert!(std::thread::scope(|scope| scope
                .spawn(|| of(()))
                .join()
                .unwrap()));
        }
        assert!(stacks.used.load(Ordering::Relaxed) <= 65);
        let again = stacks.of_thread(&place, this_thread()).unwrap();
        assert_eq!(own.ss_sp, again.ss_sp);
    }

    #[test]
    fn there_may_be_more_threads_than_stacks() {
        let (stacks, place) = stacks();
        let first = stacks.promise(&place).unwrap();
        for _ in 1..MOST {
            assert!(stacks.promise(&place).is_some());
        }
        assert!(stacks.promise(&place).is_none());
        // Some end, which is seen when it was asked for often enough.
        stacks.give_back(&place, &first);
        let asked = (0..2 * FULL_FOR).find(|_| stacks.promise(&place).is_some());
        assert_eq!(asked, Some(FULL_FOR));
        // The child of a fork has its own, by whichever name.
        stacks.hand_over(&first, 7);
        let second = stacks.stack(1);
        stacks.after_fork_in_child(7, 8, &DISABLED);
        assert_eq!(stacks.of_thread(&place, 8).unwrap().ss_sp, first.ss_sp);
        stacks.after_fork_in_child(1, 9, &second);
        assert_eq!(stacks.of_thread(&place, 9).unwrap().ss_sp, second.ss_sp);
        assert_eq!(stacks.promise(&place).unwrap().ss_sp, first.ss_sp);
    }

    #[test]
    fn what_is_locked_for_a_thread_goes_with_it() {
        let (stacks, place) = stacks();
        let locked = || place.locked.load(Ordering::Relaxed);
        let [first, second, third] = [(); 3].map(|()| stacks.promise(&place).unwrap());
        assert!(stacks.lock(&place, &first, 0x10000, 0x1000));
        assert!(stacks.lock(&place, &second, 0x20000, 0x1000));
        stacks.give_back(&place, &first);
        assert_eq!(locked(), 0x1000);
        // Its memory is another's by now.
        assert!(stacks.lock(&place, &third, 0x20800, 0x1000));
        assert_eq!(locked(), 0x1000);
        stacks.give_back(&place, &second);
        assert_eq!(locked(), 0x1000);
        stacks.give_back(&place, &third);
        assert_eq!(locked(), 0);
    }

    #[test]
    fn what_a_thread_tells_is_gone_with_it() {
        let (stacks, place) = stacks();
        let own = stacks.promise(&place).unwrap();
        let none = |stack: &libc::stack_t| stacks.program_stack(stack).ss_flags == libc::SS_DISABLE;
        assert!(none(&own) && none(&DISABLED));
        let told = libc::stack_t {
            ss_sp: 0x5000 as *mut libc::c_void,
            ss_flags: AUTODISARM | libc::SS_ONSTACK,
            ss_size: 0x3000,
        };
        stacks.set_program_stack(&own, &told);
        let known = stacks.program_stack(&own);
        assert_eq!((known.ss_sp, known.ss_size), (told.ss_sp, 0x3000));
        assert_eq!(known.ss_flags, AUTODISARM);
        stacks.give_back(&place, &own);
        assert!(none(&stacks.promise(&place).unwrap()));
        stacks.set_program_stack(&own, &told);
        stacks.set_program_stack(&own, &DISABLED);
        assert!(none(&own));
    }
}
