// SPDX-License-Identifier: Apache-2.0 OR MIT
//! io_uring: several transfers in flight by one system call.
//!
//! A ring serves one thread at a time. Which threads will come is not known and
//! thread-local storage is not to be trusted inside handlers, so there is a small
//! pool; whoever needs a ring takes the first free one. The files of swap are
//! registered with each, so that a program that closes descriptors it does not
//! know cannot redirect a transfer.

use std::os::fd::{AsRawFd, RawFd};

use io_uring::{IoUring, Parameters, opcode, types};

use super::polling::Wait;
use super::{Direction, SwapError, Transfer};
use crate::futex::yield_now;
use crate::{descriptor, syscall};

/// Transfers that one ring has in flight at most.
pub const DEPTH: u32 = 64;

/// `IORING_ENTER_GETEVENTS`: wait for completions.
const GETEVENTS: usize = 1;

/// `IORING_SETUP_COOP_TASKRUN`: completions may wait until we are in the kernel.
const IORING_SETUP_COOP_TASKRUN: u32 = 1 << 8;
/// `IORING_SETUP_TASKRUN_FLAG`: and a flag of the ring says that some do.
const IORING_SETUP_TASKRUN_FLAG: u32 = 1 << 9;
/// Looks at a ring's flags between two looks at the clock.
const SPINS: u32 = 32;
/// Words of `struct io_uring_params`, and which of them has the flags.
const PARAMETER_WORDS: usize = 30;
const FLAGS_WORD: usize = 2;

/// Makes a ring through the pager's own door: the filter of the program image before an
/// exec refuses rings to everybody else. Fails with an error number.
fn set_up(flags: u32) -> Result<IoUring, i32> {
    let mut words = [0u32; PARAMETER_WORDS];
    words[FLAGS_WORD] = flags;
    let parameters = words.as_mut_ptr() as usize;
    // SAFETY: the kernel fills in a structure of that size.
    let descriptor = unsafe {
        syscall::call(
            libc::SYS_io_uring_setup,
            [DEPTH as usize, parameters, 0, 0, 0, 0],
        )
    };
    if descriptor < 0 {
        return Err(-descriptor as i32);
    }
    // SAFETY: `Parameters` is that structure, transparently, and the kernel filled it in
    // for this descriptor, which is given away.
    unsafe {
        let parameters = std::mem::transmute::<[u32; PARAMETER_WORDS], Parameters>(words);
        IoUring::from_fd(descriptor as RawFd, parameters)
    }
    .map_err(|error| error.raw_os_error().unwrap_or(libc::ENOSYS))
}

/// One ring, with which the files of swap are registered in their order.
pub struct Ring {
    uring: IoUring,
    in_flight: u32,
    /// Completions that wait for us are told by a flag.
    tells: bool,
    /// The kernel no longer takes calls on it: its descriptor was closed.
    broken: bool,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Ring")
            .field("in_flight", &self.in_flight)
            .field("broken", &self.broken)
            .finish()
    }
}

impl Ring {
    /// Sets a ring up. A forked child must leave it alone.
    pub fn new(swap: &[RawFd]) -> Result<Self, SwapError> {
        let refused = |error: std::io::Error| SwapError::Uring {
            errno: error.raw_os_error().unwrap_or(libc::ENOSYS),
        };
        let telling = set_up(IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG);
        let tells = telling.is_ok();
        let low = telling
            .or_else(|_| set_up(0))
            .map_err(|errno| SwapError::Uring { errno })?;
        // SAFETY: duplicates an open descriptor.
        let second = unsafe { libc::fcntl(low.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 0) };
        let uring = if second < 0 {
            low
        } else {
            // SAFETY: the duplicate is a ring of these parameters, and given away.
            unsafe { IoUring::from_fd(descriptor::keep(second), low.params().clone()) }
                .map_err(refused)?
        };
        uring.submitter().register_files(swap).map_err(refused)?;
        Ok(Self {
            uring,
            in_flight: 0,
            tells,
            broken: false,
        })
    }

    /// Descriptor of the ring.
    pub fn descriptor(&self) -> RawFd {
        self.uring.as_raw_fd()
    }

    /// Room for another transfer.
    pub fn has_room(&self) -> bool {
        !self.broken && self.in_flight < DEPTH
    }

    /// Transfers started and not finished.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Queues a transfer with one of the files; [`Self::submit`] starts it. False without room.
    ///
    /// # Safety
    /// The transfer's memory and its list of pieces must stay valid until it finished.
    pub unsafe fn push(
        &mut self,
        file: usize,
        start_bytes: u64,
        transfer: &Transfer,
        token: u64,
    ) -> bool {
        if !self.has_room() {
            return false;
        }
        let offset = transfer.byte_offset(start_bytes);
        let file = types::Fixed(file as u32);
        let entry = if transfer.count == 1 {
            // SAFETY: there is one piece.
            let piece = unsafe { *transfer.memory };
            let (base, bytes) = (piece.iov_base.cast::<u8>(), piece.iov_len as u32);
            match transfer.direction {
                Direction::Read => opcode::Read::new(file, base, bytes).offset(offset).build(),
                Direction::Write => opcode::Write::new(file, base, bytes).offset(offset).build(),
            }
        } else {
            let (pieces, count) = (transfer.memory, transfer.count);
            match transfer.direction {
                Direction::Read => opcode::Readv::new(file, pieces, count)
                    .offset(offset)
                    .build(),
                Direction::Write => opcode::Writev::new(file, pieces, count)
                    .offset(offset)
                    .build(),
            }
        };
        // SAFETY: the caller keeps the memory valid.
        let pushed = unsafe {
            self.uring
                .submission()
                .push(&entry.user_data(token))
                .is_ok()
        };
        self.in_flight += u32::from(pushed);
        pushed
    }

    /// Starts what was pushed and waits until `want` transfers can be taken with
    /// [`Self::pop`]. False when the ring is lost; then nothing more comes out.
    pub fn submit(&mut self, want: usize) -> bool {
        self.enter(want, if want > 0 { GETEVENTS } else { 0 })
    }

    /// Looks for a finished transfer as `next` says, or sleeps until there is one. None when
    /// the ring is lost, or nothing was submitted.
    pub fn poll(&mut self, next: impl Fn() -> Wait) -> Option<(u64, i32)> {
        if self.in_flight == 0 {
            return None;
        }
        loop {
            if let Some(finished) = self.pop() {
                return Some(finished);
            }
            // In the kernel, whatever the call, the device's answer becomes a completion.
            match next() {
                Wait::Yield => yield_now(),
                Wait::Look if self.tells && !self.spin() => {}
                wait => {
                    if !self.enter(usize::from(wait == Wait::Sleep), GETEVENTS) {
                        return None;
                    }
                }
            }
        }
    }

    /// Looks for a while without entering the kernel; whether something can be had by that.
    /// A completion that came meanwhile, by an interrupt, is found without.
    fn spin(&mut self) -> bool {
        for _ in 0..SPINS {
            if self.uring.submission().taskrun() {
                return true;
            }
            if !self.uring.completion().is_empty() {
                return false;
            }
            std::hint::spin_loop();
        }
        false
    }

    /// Hands over what was pushed, under these flags.
    fn enter(&mut self, want: usize, flags: usize) -> bool {
        if self.broken {
            return false;
        }
        loop {
            let pending = {
                let mut submission = self.uring.submission();
                submission.sync();
                submission.len()
            };
            // SAFETY: the ring is ours; what it was given stays valid (see `push`).
            let result = unsafe {
                syscall::call(
                    libc::SYS_io_uring_enter,
                    [self.uring.as_raw_fd() as usize, pending, want, flags, 0, 0],
                )
            };
            match i32::try_from(-result).unwrap_or(0) {
                ..=0 => return true,
                libc::EINTR => {}
                // Short of memory or of room for completions: take some first.
                libc::EAGAIN | libc::EBUSY | libc::ENOMEM => {
                    if !self.uring.completion().is_empty() {
                        return true;
                    }
                    yield_now();
                }
                _ => {
                    self.broken = true;
                    return false;
                }
            }
        }
    }

    /// A finished transfer: its token, and bytes moved or `-errno`.
    pub fn pop(&mut self) -> Option<(u64, i32)> {
        let entry = self.uring.completion().next()?;
        self.in_flight -= 1;
        Some((entry.user_data(), entry.result()))
    }
}
