// SPDX-License-Identifier: Apache-2.0 OR MIT
//! userfaultfd: the kernel calls the pager needs, and nothing more.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::region::PAGE_BYTES;
use crate::{descriptor, syscall};

const API: u64 = 0xaa;
const IOC_API: usize = 0xc018_aa3f;
const IOC_REGISTER: usize = 0xc020_aa00;
const IOC_WAKE: usize = 0x8010_aa02;
const IOC_COPY: usize = 0xc028_aa03;
const IOC_MOVE: usize = 0xc028_aa05;
const IOC_WRITEPROTECT: usize = 0xc018_aa06;

const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
const FEATURE_SIGBUS: u64 = 1 << 7;
const FEATURE_THREAD_ID: u64 = 1 << 8;
const FEATURE_MOVE: u64 = 1 << 16;

const REGISTER_MISSING: u64 = 1;
const REGISTER_WP: u64 = 2;
const COPY_DONTWAKE: u64 = 1;
const COPY_WP: u64 = 2;
const WP_ON: u64 = 1;
const WP_DONTWAKE: u64 = 2;
const MOVE_DONTWAKE: u64 = 1;
const USER_MODE_ONLY: usize = 1;

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct Copy {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    done: i64,
}

#[repr(C)]
struct WriteProtect {
    start: u64,
    len: u64,
    mode: u64,
}

/// A message of the kernel about one fault (`struct uffd_msg`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Message {
    /// 0x12 for a page fault.
    pub event: u8,
    reserved: [u8; 7],
    /// Bit 0: a write; bit 1: write protection.
    pub flags: u64,
    /// Faulting address.
    pub address: u64,
    /// Thread that faulted.
    pub thread: u32,
    padding: u32,
}

/// `Message::event` of a page fault.
pub const EVENT_PAGEFAULT: u8 = 0x12;

/// Who resolves a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The faulting thread gets SIGBUS.
    Signal,
    /// The faulting thread sleeps; a handler thread reads a message.
    Message,
}

/// What kept a move from happening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Pages that did move, from the start of the range.
    pub pages: usize,
    /// Why it stopped: 0 when all moved.
    pub errno: i32,
}

/// An open userfaultfd.
#[derive(Debug)]
pub struct Uffd {
    fd: AtomicI32,
    delivery: Delivery,
}

impl Uffd {
    /// Opens a userfaultfd with all that the pager uses; unprivileged if it must be.
    pub fn open(delivery: Delivery) -> Result<Self, i32> {
        let uffd = Self {
            fd: AtomicI32::new(descriptor::keep(open_descriptor()?)),
            delivery,
        };
        uffd.agree()?;
        Ok(uffd)
    }

    /// In the child of a fork: a new one in the place of the parent's.
    pub fn reopen(&self) -> Result<(), i32> {
        let kept = descriptor::replace(self.fd.load(Ordering::Relaxed), open_descriptor()?);
        self.fd.store(kept, Ordering::Relaxed);
        self.agree()
    }

    /// Whether a page that the kernel misses is an error to it at once.
    pub fn never_waits(&self) -> bool {
        self.delivery == Delivery::Signal
    }

    fn agree(&self) -> Result<(), i32> {
        let mut api = Api {
            api: API,
            features: FEATURE_PAGEFAULT_FLAG_WP
                | FEATURE_MOVE
                | match self.delivery {
                    Delivery::Signal => FEATURE_SIGBUS,
                    Delivery::Message => FEATURE_THREAD_ID,
                },
            ioctls: 0,
        };
        self.ioctl(IOC_API, &raw mut api as usize)
    }

    /// Makes missing and write-protected pages of the range fault to the pager.
    pub fn register(&self, start: usize, bytes: usize) -> Result<(), i32> {
        let mut register = Register {
            start: start as u64,
            len: bytes as u64,
            mode: REGISTER_MISSING | REGISTER_WP,
            ioctls: 0,
        };
        self.ioctl(IOC_REGISTER, &raw mut register as usize)
    }

    /// Fills missing pages with copies, write-protected if asked. A page that is
    /// there already is left alone and counts as an error (EEXIST). What came before an error
    /// is there: it must not be filled again.
    pub fn copy(
        &self,
        to: usize,
        from: *const u8,
        pages: usize,
        protect: bool,
    ) -> Result<(), Moved> {
        let mut done = 0;
        let bytes = pages * PAGE_BYTES;
        let mut mode = if protect { COPY_WP } else { 0 };
        if self.delivery == Delivery::Signal {
            mode |= COPY_DONTWAKE;
        }
        while done < bytes {
            let mut copy = Copy {
                dst: (to + done) as u64,
                src: (from as usize + done) as u64,
                len: (bytes - done) as u64,
                mode,
                done: 0,
            };
            match self.ioctl(IOC_COPY, &raw mut copy as usize) {
                Ok(()) => return Ok(()),
                Err(_) if copy.done > 0 => done += copy.done as usize,
                Err(libc::EAGAIN) => {}
                Err(errno) => {
                    return Err(Moved {
                        pages: done / PAGE_BYTES,
                        errno,
                    });
                }
            }
        }
        Ok(())
    }

    /// Moves present pages to a missing range without copying. The caller owns both: what
    /// lies in the new place afterwards has been moved there.
    pub fn transplant(&self, to: usize, from: usize, pages: usize) -> Moved {
        let mut done = 0;
        let bytes = pages * PAGE_BYTES;
        let mut busy = 0;
        let mut piece = bytes;
        while done < bytes {
            let mut request = Copy {
                dst: (to + done) as u64,
                src: (from + done) as u64,
                len: piece.min(bytes - done) as u64,
                mode: MOVE_DONTWAKE,
                done: 0,
            };
            match self.ioctl(IOC_MOVE, &raw mut request as usize) {
                Ok(()) => done += request.len as usize,
                // More than one kernel mapping: page by page.
                Err(libc::EINVAL | libc::ENOENT) if piece > PAGE_BYTES => piece = PAGE_BYTES,
                Err(_) if request.done > 0 => done += request.done as usize,
                Err(libc::EAGAIN) => {}
                // Linux 6.18 forgets to count what it moved after it had to wait for a
                // page (one that compaction was migrating), tries it again, and finds its
                // place taken. Nobody else puts anything there.
                Err(libc::EEXIST) if is_empty(from + done) => done += PAGE_BYTES,
                // Busy for a moment (a folio lock) or for good (shared by a fork).
                Err(libc::EBUSY) if busy < 3 => busy += 1,
                Err(errno) => {
                    return Moved {
                        pages: done / PAGE_BYTES,
                        errno,
                    };
                }
            }
        }
        Moved { pages, errno: 0 }
    }

    /// Protects present pages against writing, or lifts that.
    pub fn protect(&self, start: usize, pages: usize, on: bool) -> Result<(), i32> {
        let mut request = WriteProtect {
            start: start as u64,
            len: (pages * PAGE_BYTES) as u64,
            mode: match (on, self.delivery) {
                (true, _) => WP_ON,
                (false, Delivery::Signal) => WP_DONTWAKE,
                (false, Delivery::Message) => 0,
            },
        };
        loop {
            match self.ioctl(IOC_WRITEPROTECT, &raw mut request as usize) {
                Err(libc::EAGAIN) => {}
                other => return other,
            }
        }
    }

    /// Wakes threads that sleep on a fault in the range.
    pub fn wake(&self, start: usize, pages: usize) {
        if self.delivery == Delivery::Message {
            let mut range = [start as u64, (pages * PAGE_BYTES) as u64];
            let _ = self.ioctl(IOC_WAKE, &raw mut range as usize);
        }
    }

    /// Reads one message, waiting for it.
    pub fn receive(&self) -> Option<Message> {
        let mut message = Message::default();
        loop {
            // SAFETY: reads into `message`.
            let read = unsafe {
                syscall::call(
                    libc::SYS_read,
                    [
                        self.fd.load(Ordering::Relaxed) as usize,
                        &raw mut message as usize,
                        size_of::<Message>(),
                        0,
                        0,
                        0,
                    ],
                )
            };
            if read == size_of::<Message>() as isize {
                return Some(message);
            }
            match -read as i32 {
                libc::EAGAIN => {
                    let mut poll = libc::pollfd {
                        fd: self.fd.load(Ordering::Relaxed),
                        events: libc::POLLIN,
                        revents: 0,
                    };
                    // SAFETY: one pollfd.
                    unsafe {
                        syscall::call(
                            libc::SYS_poll,
                            [&raw mut poll as usize, 1, usize::MAX, 0, 0, 0],
                        );
                    }
                }
                libc::EINTR => {}
                _ => return None,
            }
        }
    }

    fn ioctl(&self, request: usize, argument: usize) -> Result<(), i32> {
        // SAFETY: `argument` points to the structure that `request` takes.
        let result = unsafe {
            syscall::call(
                libc::SYS_ioctl,
                [
                    self.fd.load(Ordering::Relaxed) as usize,
                    request,
                    argument,
                    0,
                    0,
                    0,
                ],
            )
        };
        if result < 0 {
            Err(-result as i32)
        } else {
            Ok(())
        }
    }
}

/// With kernel faults if we may: what is missed by the system call filter then waits
/// instead of failing (in handler mode).
fn open_descriptor() -> Result<RawFd, i32> {
    let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
    // SAFETY: no pointers.
    let mut fd = unsafe { syscall::call(libc::SYS_userfaultfd, [flags, 0, 0, 0, 0, 0]) };
    if fd == -(libc::EPERM as isize) {
        // SAFETY: no pointers.
        fd = unsafe {
            syscall::call(
                libc::SYS_userfaultfd,
                [flags | USER_MODE_ONLY, 0, 0, 0, 0, 0],
            )
        };
    }
    if fd < 0 {
        Err(-fd as i32)
    } else {
        Ok(fd as RawFd)
    }
}

/// Whether nothing at all lies at a page's address. False where the kernel does not say.
#[cold]
fn is_empty(address: usize) -> bool {
    /// In memory, in swap (or under migration).
    const PRESENT_OR_SWAPPED: u64 = 0b11 << 62;
    let path = c"/proc/self/pagemap".as_ptr() as usize;
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    let mut word = [u64::MAX];
    // SAFETY: a constant path, a descriptor of our own, one word to fill.
    unsafe {
        let file = syscall::call(libc::SYS_open, [path, flags, 0, 0, 0, 0]);
        if file < 0 {
            return false;
        }
        let (into, offset) = (word.as_mut_ptr() as usize, address / PAGE_BYTES * 8);
        let read = syscall::call(libc::SYS_pread64, [file as usize, into, 8, offset, 0, 0]);
        syscall::call(libc::SYS_close, [file as usize, 0, 0, 0, 0, 0]);
        read == 8 && word[0] & PRESENT_OR_SWAPPED == 0
    }
}
