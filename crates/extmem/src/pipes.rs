// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pipes that hold pages of the program while they are unmapped (`withdraw.rs`).

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::advice::makes_own;
use crate::descriptor;
use crate::lock::{Guard, Lock};
use crate::region::PAGE_BYTES;
use crate::syscall;

/// Threads that withdraw pages at one time; others wait.
const PIPES: usize = 4;
/// What a pipe must hold: what the evictor takes at a time. Less is not worth it: what does not
/// fit would be protected page by page.
const LEAST_PAGES: usize = 128;

/// A pipe; all zero before it is opened.
#[derive(Debug, Default)]
pub struct Pipe {
    read: RawFd,
    write: RawFd,
    /// Pages it holds at most; 0 before it is opened.
    pub pages: usize,
    /// What it is: another process by vfork, or a thread with a table of descriptors of its own,
    /// may have something else by these numbers, or nothing.
    identity: [u64; 2],
}

/// The pipes of a process, opened as they are needed.
#[derive(Debug)]
pub struct Pipes {
    pipes: [Lock<Pipe>; PIPES],
    refused: AtomicBool,
}

impl Pipes {
    /// None open. Not for use if a missing page would let the kernel wait for the pager.
    pub fn new(usable: bool) -> Self {
        Self {
            pipes: [const { Lock::new(Pipe::CLOSED) }; PIPES],
            refused: AtomicBool::new(!usable),
        }
    }

    /// Whether pages can be held, as far as is known.
    pub fn are_usable(&self) -> bool {
        !self.refused.load(Ordering::Relaxed)
    }

    /// In the child of a fork: pipes of its own.
    pub fn after_fork_in_child(&self) {
        for pipe in &self.pipes {
            pipe.lock().close();
        }
    }

    /// A pipe, opened if it was not; None if it is not to be had in this table of descriptors.
    /// Not for a child by vfork: what it opened would be there for nobody else.
    pub fn take(&self) -> Option<Guard<'_, Pipe>> {
        let mut pipe = (self.pipes.iter())
            .find_map(Lock::try_lock)
            .unwrap_or_else(|| self.pipes[0].lock());
        if pipe.pages == 0 {
            pipe.open();
            if pipe.pages < LEAST_PAGES {
                pipe.close();
                self.refused.store(true, Ordering::Relaxed);
                return None;
            }
        }
        pipe.is_here().then_some(pipe)
    }
}

impl Pipe {
    const CLOSED: Self = Self {
        read: 0,
        write: 0,
        pages: 0,
        identity: [0; 2],
    };

    /// Opens it in the pager's block of descriptors, where the program cannot close it.
    fn open(&mut self) {
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
            return;
        }
        let [read, write] = ends.map(descriptor::keep);
        let control = |command: libc::c_int, value: usize| {
            // SAFETY: no pointers.
            unsafe {
                syscall::call(
                    libc::SYS_fcntl,
                    [write as usize, command as usize, value, 0, 0, 0],
                )
            }
        };
        control(libc::F_SETPIPE_SZ, LEAST_PAGES * PAGE_BYTES);
        let bytes = control(libc::F_GETPIPE_SZ, 0).max(0) as usize;
        *self = Self {
            read,
            write,
            pages: bytes / PAGE_BYTES,
            identity: descriptor::identity(read),
        };
        // What the kernel or a container refuses once it refuses each time.
        let is_safe = descriptor::is_kept(read) && descriptor::is_kept(write);
        if !(is_safe && self.holds_what_comes()) {
            self.pages = 0;
        }
    }

    /// Whether both numbers are this pipe's.
    fn is_here(&self) -> bool {
        [self.read, self.write].map(descriptor::identity) == [self.identity; 2]
    }

    /// Whether what is written to a page that is held is read from the pipe: not where the kernel
    /// makes a copy of it at once.
    fn holds_what_comes(&self) -> bool {
        let mut room = [0u8; 2 * PAGE_BYTES];
        let mut into = [0u8; PAGE_BYTES];
        let aside = room.as_ptr().align_offset(PAGE_BYTES);
        let (page, into_page) = (&raw mut room[aside], into.as_mut_ptr());
        let (here, there) = (page_at(page as usize), page_at(into_page as usize));
        let whole = PAGE_BYTES as isize;
        // SAFETY: a page of this stack that nothing else is in, and another one's memory; what
        // the kernel does to them the compiler does not see.
        unsafe {
            page.write_volatile(1);
            let held = makes_own(&[here]) && self.hold(&[here]) == whole;
            page.write_volatile(2);
            held && self.read(&[there]) == whole && into_page.read_volatile() == 2
        }
    }

    fn close(&mut self) {
        if self.write != 0 {
            descriptor::dispose(self.read);
            descriptor::dispose(self.write);
        }
        *self = Self::CLOSED;
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

/// The vector of one page.
pub fn page_at(address: usize) -> libc::iovec {
    libc::iovec {
        iov_base: address as *mut _,
        iov_len: PAGE_BYTES,
    }
}
