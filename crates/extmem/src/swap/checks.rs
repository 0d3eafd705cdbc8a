// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A check of what each slot holds, so that a file or device that returns other bytes
//! than were written is told, and no program computes with them.
//!
//! Contents are still between the moment they are noted and the end of the transfer: pages
//! are written out of copies, or out of where the program cannot reach them. Tables are shared with
//! forks, as slots are.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{Direction, SLOT_BYTES, Slot, SwapError, Transfer};
use crate::region::{PAGE_BYTES, Region, carved_bytes};

/// Slots whose checks share a page of the table.
const SLOTS_PER_PAGE: usize = PAGE_BYTES / size_of::<AtomicU32>();

/// CRC-32 of what was last written to each slot.
#[derive(Debug)]
pub struct Checks {
    of_slot: &'static [AtomicU32],
    /// A bit for each page of the table that holds a check.
    used: &'static [AtomicU64],
    /// Pages of the table that came into use and were not told yet.
    grown_pages: AtomicU32,
}

impl Checks {
    /// Bytes of tables; those of slots never written are never touched.
    pub fn footprint_bytes(capacity: u64) -> usize {
        carved_bytes::<AtomicU32>(capacity as usize)
            + carved_bytes::<AtomicU64>(used_words(capacity))
    }

    /// For `capacity` slots. The region should be shared memory.
    pub fn new(capacity: u64, region: &mut Region) -> Result<Self, SwapError> {
        // SAFETY: zero is an AtomicU32, and an AtomicU64.
        let tables = unsafe {
            (
                region.carve::<AtomicU32>(capacity as usize),
                region.carve::<AtomicU64>(used_words(capacity)),
            )
        };
        match tables {
            (Some(of_slot), Some(used)) => Ok(Self {
                of_slot,
                used,
                grown_pages: AtomicU32::new(0),
            }),
            _ => Err(SwapError::Memory),
        }
    }

    /// Pages of the table that came into use since this was asked last.
    pub fn grown_pages(&self) -> u32 {
        match self.grown_pages.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.grown_pages.swap(0, Ordering::Relaxed),
        }
    }

    /// Before a write: notes what it takes out.
    ///
    /// # Safety
    /// The transfer's memory must be readable.
    pub unsafe fn note(&self, transfer: &Transfer) {
        if transfer.direction == Direction::Read {
            return;
        }
        // SAFETY: the caller vouches for the memory.
        for (slot, contents) in unsafe { pages(transfer) } {
            if let Some(check) = self.of_slot.get(slot.0 as usize) {
                check.store(crc32fast::hash(contents), Ordering::Relaxed);
                self.use_page(slot.0 as usize / SLOTS_PER_PAGE);
            }
        }
    }

    fn use_page(&self, page: usize) {
        let (word, bit) = (&self.used[page / 64], 1 << (page % 64));
        if word.load(Ordering::Relaxed) & bit == 0
            && word.fetch_or(bit, Ordering::Relaxed) & bit == 0
        {
            self.grown_pages.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// After a read: the first slot that did not bring what was written there.
    ///
    /// # Safety
    /// The transfer must have taken place, and its memory must be readable.
    pub unsafe fn altered(&self, transfer: &Transfer) -> Option<Slot> {
        if transfer.direction == Direction::Write {
            return None;
        }
        // SAFETY: the caller vouches for the memory.
        unsafe { pages(transfer) }
            .find(|&(slot, contents)| {
                self.of_slot
                    .get(slot.0 as usize)
                    .is_some_and(|check| check.load(Ordering::Relaxed) != crc32fast::hash(contents))
            })
            .map(|(slot, _)| slot)
    }
}

fn used_words(capacity: u64) -> usize {
    (capacity as usize).div_ceil(SLOTS_PER_PAGE).div_ceil(64)
}

/// Each slot of a transfer with its page.
///
/// # Safety
/// The transfer's memory must be readable.
unsafe fn pages(transfer: &Transfer) -> impl Iterator<Item = (Slot, &[u8])> {
    // SAFETY: whoever made the transfer vouched for `count` pieces of whole pages.
    let pieces = unsafe { std::slice::from_raw_parts(transfer.memory, transfer.count as usize) };
    pieces
        .iter()
        .flat_map(|piece| {
            // SAFETY: as above.
            unsafe { std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len) }
                .chunks_exact(SLOT_BYTES)
        })
        .zip(transfer.first.0..)
        .map(|(contents, slot)| (Slot(slot), contents))
}
