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
/// What a pipe is to hold: what the evictor takes at a time.
const WANTED_PAGES: usize = 128;
/// Less is not worth it: what the kernel gives whose user has many pipes.
const LEAST_PAGES: usize = 16;

/// A pipe; all zero before it is opened.
#[derive(Debug, Default)]
pub struct Pipe {
    read: RawFd,
    write: RawFd,
    /// Pages it holds at most; 0 before it is opened.
    pub pages: usize,
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

    /// A pipe, opened if `may_open`.
    pub fn take(&self, may_open: impl FnOnce() -> bool) -> Option<Guard<'_, Pipe>> {
        if !self.are_usable() {
            return None;
        }
        let mut pipe = (self.pipes.iter())
            .find_map(Lock::try_lock)
            .unwrap_or_else(|| self.pipes[0].lock());
        if pipe.pages == 0 {
            if !may_open() {
                return None;
            }
            pipe.open();
            if pipe.pages < LEAST_PAGES {
                pipe.close();
                self.refused.store(true, Ordering::Relaxed);
                return None;
            }
        }
        Some(pipe)
    }
}

impl Pipe {
    const CLOSED: Self = Self {
        read: 0,
        write: 0,
        pages: 0,
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
        control(libc::F_SETPIPE_SZ, WANTED_PAGES * PAGE_BYTES);
        let bytes = control(libc::F_GETPIPE_SZ, 0).max(0) as usize;
        let here = page_at(ends.as_ptr() as usize & !(PAGE_BYTES - 1));
        *self = Self {
            read,
            write,
            pages: bytes / PAGE_BYTES,
        };
        // What the kernel or a container refuses once it refuses each time.
        let is_safe = descriptor::is_kept(read) && descriptor::is_kept(write);
        if !(is_safe && makes_own(&[here]) && self.carries(here)) {
            self.pages = 0;
        }
    }

    /// Whether a page can be held and read.
    fn carries(&self, page: libc::iovec) -> bool {
        let mut into = [0u8; PAGE_BYTES];
        let into = libc::iovec {
            iov_base: into.as_mut_ptr().cast(),
            iov_len: PAGE_BYTES,
        };
        let whole = PAGE_BYTES as isize;
        // SAFETY: a page of this stack.
        self.hold(&[page]) == whole && unsafe { self.read(&[into]) } == whole
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
