// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parts of a file or device that several programs swap to.
//!
//! A script that is managed starts programs that are managed too, and all of them were
//! given the same file. So it is divided, and a program takes a part when it first needs
//! it, by a lock on that part's range of words, which goes when the program and its forks
//! are gone. The lock has a description of its own: the kernel drops rings, and with them
//! what they do with the file, a good while after the program. In a sparse file the disk
//! space of a part is taken with it, so that no write can fail for want of it.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use demeter_extmem_tree::{MOST_PARTS, PARTS, largest_file_bytes, part_words, parts};

use super::backing::{Backing, Shared};
use super::{SLOT_BYTES, SwapError};
use crate::region::{Region, carved_bytes};
use crate::{byte_lock, descriptor, syscall};

/// Which parts are ours. Shared by forks.
#[derive(Debug)]
pub struct Parts {
    file: RawFd,
    start_bytes: u64,
    /// Where locks are taken; None: nobody else uses the file.
    locks: Option<RawFd>,
    sparse: bool,
    /// Bytes of all parts; the last one may be smaller.
    total_bytes: u64,
    part_words: usize,
    count: usize,
    ours: &'static [AtomicU64],
    /// The disk had no space for another part when one was last asked for.
    disk_full: AtomicBool,
}

impl Parts {
    /// Bytes of tables.
    pub fn footprint_bytes() -> usize {
        carved_bytes::<AtomicU64>(MOST_PARTS / 64)
    }

    /// The parts of what is under a store.
    pub fn new(backing: &Backing, region: &mut Region) -> Result<Self, SwapError> {
        let file = backing.descriptor();
        let locks = match backing.shared {
            Shared::Alone => None,
            _ => Some(descriptor::keep(
                descriptor::open_again(file).ok_or(SwapError::Locks)?,
            )),
        };
        Ok(Self {
            file,
            start_bytes: backing.start_bytes,
            locks,
            sparse: backing.sparse,
            total_bytes: backing.slots * SLOT_BYTES as u64,
            part_words: part_words(backing.slots),
            count: parts(backing.slots),
            // SAFETY: zero is an AtomicU64.
            ours: unsafe { region.carve::<AtomicU64>(MOST_PARTS / 64) }.ok_or(SwapError::Memory)?,
            disk_full: AtomicBool::new(false),
        })
    }

    /// How many words from this one on may not be used: 0 if it may.
    pub fn skip(&self, word: usize) -> usize {
        if self.is_ours(word / self.part_words) {
            return 0;
        }
        self.part_words - word % self.part_words
    }

    /// Whether somebody else's parts, or nobody's, are left to take.
    pub fn may_grow(&self) -> bool {
        (0..self.count).any(|part| !self.is_ours(part))
    }

    /// Whether the disk, not the size given, is what keeps the store from growing.
    pub fn disk_is_full(&self) -> bool {
        self.disk_full.load(Ordering::Relaxed)
    }

    /// Takes another part. False when all are taken, or the disk has no space for it.
    pub fn grow(&self) -> bool {
        self.disk_full.store(false, Ordering::Relaxed);
        (0..self.count).any(|part| {
            if self.is_ours(part) || !self.lock(part) {
                return false;
            }
            if self.fill(part) {
                let bit = 1 << (part % 64);
                self.ours[part / 64].fetch_or(bit, Ordering::AcqRel) & bit == 0
            } else {
                // One that somebody had before may have its space yet.
                self.disk_full.store(true, Ordering::Relaxed);
                self.unlock(part);
                false
            }
        })
    }

    fn lock(&self, part: usize) -> bool {
        let (first, words) = self.range(part);
        self.locks
            .is_none_or(|locks| byte_lock::take(locks, first, words))
    }

    fn unlock(&self, part: usize) {
        let (first, words) = self.range(part);
        if let Some(locks) = self.locks {
            byte_lock::give(locks, first, words);
        }
    }

    /// The words of a part, as they are locked. Whoever divides the same file in another way
    /// is kept out by the same ranges.
    fn range(&self, part: usize) -> (i64, i64) {
        let words = self.part_words as i64;
        (PARTS + part as i64 * words, words)
    }

    /// Takes the disk space of a part. True also where the file system cannot.
    fn fill(&self, part: usize) -> bool {
        if !self.sparse {
            return true;
        }
        let part_bytes = (self.part_words * 64 * SLOT_BYTES) as u64;
        let start = part as u64 * part_bytes;
        let bytes = part_bytes.min(self.total_bytes - start);
        // The program may have set a limit since. To run into it is a signal that kills.
        if self.start_bytes + start + bytes > largest_file_bytes() {
            return false;
        }
        let result = loop {
            // SAFETY: no pointers.
            let result = unsafe {
                syscall::call(
                    libc::SYS_fallocate,
                    [
                        self.file as usize,
                        0,
                        (self.start_bytes + start) as usize,
                        bytes as usize,
                        0,
                        0,
                    ],
                )
            };
            if result != -(libc::EINTR as isize) {
                break result;
            }
        };
        let full = [libc::ENOSPC, libc::EDQUOT, libc::EFBIG].map(|errno| -(errno as isize));
        !full.contains(&result)
    }

    fn is_ours(&self, part: usize) -> bool {
        self.ours[part / 64].load(Ordering::Acquire) >> (part % 64) & 1 == 1
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        if let Some(locks) = self.locks {
            // SAFETY: ours; the locks go with it.
            unsafe { syscall::call(libc::SYS_close, [locks as usize, 0, 0, 0, 0, 0]) };
        }
    }
}
