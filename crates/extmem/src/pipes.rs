// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pipes that hold pages of the program while they are unmapped (`withdraw.rs`).

use std::cell::UnsafeCell;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::advice::makes_own;
use crate::descriptor;
use crate::lock::{Guard, Lock};
use crate::region::PAGE_BYTES;
use crate::syscall;

/// Threads that withdraw pages at one time; others wait.
const PIPES: usize = 2;
/// What a pipe must hold: what the evictor takes at a time. Less is not worth it: what does not
/// fit would be protected page by page.
pub const HELD_PAGES: usize = 128;
/// What it is while nothing leaves. All pipes of a user, those of other programs too, have 16384
/// pages together.
const IDLE_PAGES: usize = 1;

/// A pipe; all zero where there is none.
#[derive(Debug, Default)]
pub struct Pipe {
    read: RawFd,
    write: RawFd,
    /// Pages it holds at most; 0 while it is small.
    pub pages: usize,
    /// Since it was last looked at.
    was_used: bool,
    /// What it is: another process by vfork, or a thread with a table of descriptors of its own,
    /// may have something else by these numbers, or nothing.
    identity: [u64; 2],
}

/// The pipes of a process. They are opened as it starts, before it has threads that could take a
/// number which is free for a moment, and are large only while they are used.
#[derive(Debug)]
pub struct Pipes {
    pipes: [Lock<Pipe>; PIPES],
    /// For good: there are none, or they copy what they should hold.
    refused: AtomicBool,
    /// Until somebody looks again: the user's pipes have all that they may, or the kernel shares
    /// pages.
    rests: AtomicBool,
}

impl Pipes {
    /// Opens them. Not for use if a missing page would let the kernel wait for the pager. Nor where
    /// Linux swaps to zram: it reads what is being compressed, so that a page which is wanted
    /// just then is not the program's own after all, and its next write makes a copy.
    pub fn new(usable: bool) -> Self {
        let pipes = Self {
            pipes: [const { Lock::new(Pipe::NONE) }; PIPES],
            refused: AtomicBool::new(!usable || linux_swaps_to_zram()),
            rests: AtomicBool::new(false),
        };
        pipes.open();
        // SAFETY: the process has one thread.
        if pipes.are_usable() && !unsafe { pipes.pipes[0].lock().holds_what_comes() } {
            pipes.refuse();
        }
        pipes
    }

    fn open(&self) {
        if self.refused.load(Ordering::Relaxed) {
            return;
        }
        if !self.pipes.iter().all(|pipe| pipe.lock().open()) {
            self.refuse();
        }
    }

    fn refuse(&self) {
        self.refused.store(true, Ordering::Relaxed);
        self.close();
    }

    fn close(&self) {
        for pipe in &self.pipes {
            pipe.lock().close();
        }
    }

    /// Nothing is held until somebody looks again.
    pub fn rest(&self) {
        self.rests.store(true, Ordering::Relaxed);
    }

    /// Whether pages can be held, as far as is known.
    pub fn are_usable(&self) -> bool {
        !self.refused.load(Ordering::Relaxed) && !self.rests.load(Ordering::Relaxed)
    }

    /// In the child of a fork: pipes of its own.
    pub fn after_fork_in_child(&self) {
        self.close();
        self.open();
    }

    /// A large pipe; None if it is not to be had, or not in this table of descriptors.
    pub fn take(&self) -> Option<Guard<'_, Pipe>> {
        let mut pipe = (self.pipes.iter())
            .find_map(Lock::try_lock)
            .unwrap_or_else(|| self.pipes[0].lock());
        if !pipe.is_here() {
            return None;
        }
        if pipe.pages == 0 && !pipe.grow() {
            self.rest();
            return None;
        }
        pipe.was_used = true;
        Some(pipe)
    }

    /// Gives back what pipes have that were not used since the last time.
    pub fn trim(&self) {
        self.rests.store(false, Ordering::Relaxed);
        for mut pipe in self.pipes.iter().filter_map(Lock::try_lock) {
            if !std::mem::take(&mut pipe.was_used) && pipe.pages > 0 && pipe.is_here() {
                pipe.shrink();
            }
        }
    }
}

impl Pipe {
    const NONE: Self = Self {
        read: 0,
        write: 0,
        pages: 0,
        was_used: false,
        identity: [0; 2],
    };

    /// Opens it in the pager's block of descriptors, where the program cannot close it. False if
    /// it cannot be had there.
    fn open(&mut self) -> bool {
        let mut ends: [RawFd; 2] = [0; 2];
        let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
        // SAFETY: two numbers.
        let opened = unsafe {
            syscall::call(
                libc::SYS_pipe2,
                [ends.as_mut_ptr() as usize, flags, 0, 0, 0, 0],
            )
        };
        if opened < 0 {
            return false;
        }
        let [read, write] = ends.map(descriptor::keep);
        *self = Self {
            read,
            write,
            identity: descriptor::identity(read),
            ..Self::NONE
        };
        let is_kept = descriptor::is_kept(read) && descriptor::is_kept(write);
        if is_kept {
            self.shrink();
        } else {
            self.close();
        }
        is_kept
    }

    /// Makes it large enough. False if the user's pipes may not have as much.
    fn grow(&mut self) -> bool {
        let pages = self.resize(HELD_PAGES);
        self.pages = if pages < HELD_PAGES { 0 } else { pages };
        self.pages > 0
    }

    fn shrink(&mut self) {
        self.resize(IDLE_PAGES);
        self.pages = 0;
    }

    /// Asks for a size; the one it has then, in pages.
    fn resize(&self, pages: usize) -> usize {
        let control = |command: libc::c_int, value: usize| {
            // SAFETY: no pointers.
            unsafe {
                syscall::call(
                    libc::SYS_fcntl,
                    [self.write as usize, command as usize, value, 0, 0, 0],
                )
            }
        };
        control(libc::F_SETPIPE_SZ, pages * PAGE_BYTES);
        control(libc::F_GETPIPE_SZ, 0).max(0) as usize / PAGE_BYTES
    }

    /// Whether there is one, and both numbers are this pipe's.
    fn is_here(&self) -> bool {
        self.write != 0 && [self.read, self.write].map(descriptor::identity) == [self.identity; 2]
    }

    /// Whether what is written to a page that is held is read from the pipe: not where the kernel
    /// makes a copy of it at once.
    ///
    /// # Safety
    /// For one thread at a time.
    unsafe fn holds_what_comes(&self) -> bool {
        let pages = PROOF.0.get().cast::<u8>();
        let whole = PAGE_BYTES as isize;
        // SAFETY: two pages that nothing else is in; what the kernel does to them the compiler
        // does not see.
        unsafe {
            let into = pages.add(PAGE_BYTES);
            let (here, there) = (page_at(pages as usize), page_at(into as usize));
            pages.write_volatile(1);
            let held = makes_own(&[here]) && self.hold(&[here]) == whole;
            pages.write_volatile(2);
            held && self.read(&[there]) == whole && into.read_volatile() == 2
        }
    }

    fn close(&mut self) {
        if self.is_here() {
            descriptor::dispose(self.read);
            descriptor::dispose(self.write);
        }
        *self = Self::NONE;
    }

    /// Takes hold of memory, as much as can be; bytes, or `-errno`.
    pub fn hold(&self, memory: &[libc::iovec]) -> isize {
        // SAFETY: the kernel takes references to pages, and changes nothing.
        unsafe {
            syscall::call(
                libc::SYS_vmsplice,
                [
                    self.write as usize,
                    memory.as_ptr() as usize,
                    memory.len(),
                    libc::SPLICE_F_NONBLOCK as usize,
                    0,
                    0,
                ],
            )
        }
    }

    /// Reads what it holds, all at once; bytes, or `-errno`.
    ///
    /// # Safety
    /// The memory must be writable.
    pub unsafe fn read(&self, into: &[libc::iovec]) -> isize {
        // SAFETY: the caller vouches for the memory.
        unsafe {
            syscall::call(
                libc::SYS_readv,
                [
                    self.read as usize,
                    into.as_ptr() as usize,
                    into.len(),
                    0,
                    0,
                    0,
                ],
            )
        }
    }
}

/// Pages to try a pipe with; not on a stack, which may be small.
#[repr(align(4096))]
struct Proof(UnsafeCell<[u8; 2 * PAGE_BYTES]>);

// SAFETY: used while the process has one thread.
unsafe impl Sync for Proof {}

static PROOF: Proof = Proof(UnsafeCell::new([0; 2 * PAGE_BYTES]));

fn linux_swaps_to_zram() -> bool {
    const NAME: &[u8] = b"/zram";
    let mut room = [0u8; 2048];
    let lines = descriptor::read_in_proc(b"swaps\0", &mut room);
    lines.windows(NAME.len()).any(|word| word == NAME)
}

/// The vector of one page.
pub fn page_at(address: usize) -> libc::iovec {
    libc::iovec {
        iov_base: address as *mut _,
        iov_len: PAGE_BYTES,
    }
}
