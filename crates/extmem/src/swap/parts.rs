// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parts of a file or device that several programs swap to.
//!
//! A script that is managed starts programs that are managed too, and all of them were
//! given the same file. So it is divided, and a program takes a part when it first needs
//! it, by a lock that goes when the program and its forks are gone. An unnamed file is
//! nobody else's and needs no parts.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{SwapError, byte_lock};
use crate::region::{Region, carved_bytes};

/// Words of a part at least: 16 MiB.
const LEAST_WORDS: usize = 64;
/// Parts at most.
const MOST_PARTS: usize = 2048;

/// Which parts are ours. Shared by forks.
#[derive(Debug)]
pub struct Parts {
    /// None: all of the file is ours.
    descriptor: Option<RawFd>,
    part_words: usize,
    count: usize,
    ours: &'static [AtomicU64],
}

impl Parts {
    /// Bytes of tables.
    pub fn footprint_bytes() -> usize {
        carved_bytes::<AtomicU64>(MOST_PARTS / 64)
    }

    /// The parts of `words` words of slots. Without a descriptor all are ours.
    pub fn new(
        words: usize,
        descriptor: Option<RawFd>,
        region: &mut Region,
    ) -> Result<Self, SwapError> {
        let part_words = words.div_ceil(MOST_PARTS).max(LEAST_WORDS);
        Ok(Self {
            descriptor,
            part_words,
            count: words.div_ceil(part_words),
            // SAFETY: zero is an AtomicU64.
            ours: unsafe { region.carve::<AtomicU64>(MOST_PARTS / 64) }.ok_or(SwapError::Memory)?,
        })
    }

    /// How many words from this one on may not be used: 0 if it may.
    pub fn skip(&self, word: usize) -> usize {
        if self.descriptor.is_none() || self.is_ours(word / self.part_words) {
            return 0;
        }
        self.part_words - word % self.part_words
    }

    /// Whether somebody else's parts, or nobody's, are left to take.
    pub fn may_grow(&self) -> bool {
        self.descriptor.is_some() && (0..self.count).any(|part| !self.is_ours(part))
    }

    /// Takes another part. False when all are taken.
    pub fn grow(&self) -> bool {
        let Some(descriptor) = self.descriptor else {
            return false;
        };
        (0..self.count).any(|part| {
            let taken =
                !self.is_ours(part) && byte_lock::take(descriptor, byte_lock::PARTS + part as i64);
            if taken {
                self.ours[part / 64].fetch_or(1 << (part % 64), Ordering::AcqRel);
            }
            taken
        })
    }

    fn is_ours(&self, part: usize) -> bool {
        self.ours[part / 64].load(Ordering::Acquire) >> (part % 64) & 1 == 1
    }
}
