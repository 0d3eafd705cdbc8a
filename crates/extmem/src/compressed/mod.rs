// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The compressed tier: evicted pages in DRAM, at a fraction of their size.
//!
//! It lives inside the program's share of DRAM: what it holds is taken from resident
//! pages, so it pays while a page shrinks enough and bringing it back from swap would
//! take much longer than decompressing it. It switches itself off while pages do not
//! shrink, and then holds nothing.
//!
//! The pager owns the objects: only the holder of a page's state may load, relocate or
//! free that page's object. Call with signals blocked.

mod adaptive;
mod log;
mod lz4;
mod worth;
mod zero;

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::lock::Lock;
use crate::region::{Region, carved_bytes};
use adaptive::Adaptive;
pub use log::Handle;
use log::{Head, Log};
use lz4::State;
use worth::Worth;
pub use zero::is_zero_page;

/// A page must shrink to this or less: a larger gain than the log's holes cost.
const MOST_BYTES: usize = 3072;
/// Threads that compress at one time.
const LANES: usize = 4;

/// Failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CompressedError {
    /// The memory passed in is too little, or the library wants other state.
    #[error("the compressed tier got too little memory; next: report this as a defect")]
    Memory,
    /// No object has this handle.
    #[error("the compressed tier has no object {handle:#x}; next: report this as a defect")]
    Handle {
        /// The handle.
        handle: u32,
    },
    /// An object does not decompress to a page: something wrote over it.
    #[error(
        "object {handle:#x} of the compressed tier is damaged; next: look for a wild write in the program"
    )]
    Damaged {
        /// The handle.
        handle: u32,
    },
}

/// How a tier is made.
#[derive(Debug, Clone, Copy)]
pub struct CompressedOptions {
    /// The most it may ever hold; physical only when used.
    pub pool_bytes: usize,
    /// Never switches itself off.
    pub always_on: bool,
}

/// What to do with an aged object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Its segment is mostly holes: [`CompressedTier::relocate`] it.
    Relocate,
    /// The tier is full: write it out and free it.
    WriteBack,
}

/// An object of an old segment.
#[derive(Debug, Clone, Copy)]
pub struct Aged {
    /// The page it was stored for.
    pub owner: u32,
    /// Where it was: claim the page, then see that it still is there.
    pub handle: Handle,
    /// What to do.
    pub advice: Advice,
}

/// A compressor and the segment it appends to.
struct Lane {
    state: State,
    buffer: [u8; MOST_BYTES],
    head: Head,
}

/// The tier.
pub struct CompressedTier {
    log: Log,
    lanes: &'static [Lock<Lane>],
    next_lane: AtomicUsize,
    adaptive: Adaptive,
    worth: Worth,
}

impl std::fmt::Debug for CompressedTier {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("CompressedTier")
            .field("log", &self.log)
            .field("adaptive", &self.adaptive)
            .finish_non_exhaustive()
    }
}

impl CompressedTier {
    /// Bytes that [`Self::new`] wants; few are physical before they are used.
    pub fn footprint_bytes(options: &CompressedOptions) -> usize {
        Log::footprint_bytes(options.pool_bytes) + carved_bytes::<Lock<Lane>>(LANES)
    }

    /// An empty tier.
    pub fn new(options: &CompressedOptions, mut region: Region) -> Result<Self, CompressedError> {
        let log = Log::new(options.pool_bytes, &mut region)?;
        // SAFETY: zero is an open lock over bytes and a head that is set below.
        let lanes = unsafe { region.carve::<Lock<Lane>>(LANES) }.ok_or(CompressedError::Memory)?;
        for lane in lanes.iter() {
            let mut lane = lane.lock();
            lane.head = Head::NEW;
            if !lane.state.prepare() {
                return Err(CompressedError::Memory);
            }
        }
        Ok(Self {
            log,
            lanes,
            next_lane: AtomicUsize::new(0),
            adaptive: Adaptive::new(options.always_on),
            worth: Worth::new(options.pool_bytes),
        })
    }

    /// Compresses a page for its owner. None when it does not shrink enough, the tier is
    /// off or full: then it goes to swap.
    ///
    /// # Safety
    /// `page` must be readable for a page and not change meanwhile.
    pub unsafe fn store(&self, owner: u32, page: *const u8) -> Option<Handle> {
        if !self.adaptive.tries_next() {
            return None;
        }
        self.with_lane(|lane| {
            let Lane {
                state,
                buffer,
                head,
            } = lane;
            // SAFETY: the caller vouches for the page.
            let length = unsafe { state.compress(page, buffer) };
            self.adaptive.tried(length.is_some());
            self.log.append(head, owner, &buffer[..length?], false)
        })
    }

    /// Decompresses an object into a page. It stays until freed.
    ///
    /// # Safety
    /// `into` must be writable for a page, and the caller hold the object.
    pub unsafe fn load(&self, handle: Handle, into: *mut u8) -> Result<(), CompressedError> {
        let (_, data) = self.log.get(handle)?;
        // SAFETY: the caller vouches for the page.
        if unsafe { lz4::decompress(data, into) } {
            Ok(())
        } else {
            Err(CompressedError::Damaged { handle: handle.0 })
        }
    }

    /// Frees an object.
    pub fn free(&self, handle: Handle) {
        self.log.free(handle);
    }

    /// Moves an object to the young end and frees the old place. None when there is no
    /// room or no such object; then nothing changed.
    pub fn relocate(&self, handle: Handle) -> Option<Handle> {
        let (owner, data) = self.log.get(handle).ok()?;
        let moved = self.with_lane(|lane| self.log.append(&mut lane.head, owner, data, true))?;
        self.log.free(handle);
        Some(moved)
    }

    /// DRAM that the tier takes now: count it against the program's share.
    pub fn resident_bytes(&self) -> usize {
        self.log.resident_bytes() + size_of_val(self.lanes)
    }

    /// Bytes of the objects it holds.
    pub fn live_bytes(&self) -> usize {
        self.log.live_bytes()
    }

    /// How far it may grow. It does not shrink by this: [`Self::wants_drain`] then holds.
    pub fn set_limit_bytes(&self, bytes: usize) {
        self.log.set_limit_bytes(bytes);
    }

    /// It is full, or full of holes: [`Self::drain`] it in the background.
    pub fn wants_drain(&self) -> bool {
        self.log.is_tight() || self.log.is_sparse()
    }

    /// Objects of the oldest segments, at most as many as `out` takes. For each: claim the
    /// page, see that its handle is still this one, then follow the advice.
    pub fn drain(&self, out: &mut [Aged]) -> usize {
        /// Dense segments are passed over that often.
        const PATIENCE: usize = 16;
        /// A segment with less is always worth moving.
        const SPARSE_PERCENT: usize = 60;
        /// So is one with less than this while the tier is full of holes: copying costs a
        /// hundredth of reading back what would be written out instead.
        const DENSE_PERCENT: usize = 92;
        /// With more the tier is full, not full of holes.
        const FULL_PERCENT: usize = 88;
        let tight = self.log.is_tight();
        let full = self.log.live_percent() >= FULL_PERCENT;
        for turn in 1..=PATIENCE {
            let mut count = 0;
            let percent = self.log.oldest(|owner, handle| match out.get_mut(count) {
                Some(place) => {
                    *place = Aged {
                        owner,
                        handle,
                        advice: Advice::WriteBack,
                    };
                    count += 1;
                    true
                }
                None => false,
            });
            let Some(percent) = percent else {
                return 0;
            };
            if percent < SPARSE_PERCENT || (tight && !full && percent < DENSE_PERCENT) {
                for aged in &mut out[..count] {
                    aged.advice = Advice::Relocate;
                }
                return count;
            }
            if tight && (full || turn == PATIENCE) {
                return count;
            }
        }
        0
    }

    /// A fault was served from the tier or from swap, so many evictions after its page had
    /// left DRAM.
    pub fn fault(&self, from_tier: bool, distance_pages: u32) {
        let taken_pages = (self.log.resident_bytes() / crate::region::PAGE_BYTES) as u32;
        self.worth.fault(from_tier, distance_pages, taken_pages);
    }

    /// A period ends: the tier may take as much DRAM as it earns.
    pub fn settle(&self) {
        self.set_limit_bytes(self.worth.settle());
    }

    /// Whether it takes pages just now without any of them being written out for that.
    pub fn has_room(&self) -> bool {
        self.is_on() && !self.log.is_tight()
    }

    /// Whether pages are compressed just now.
    pub fn is_on(&self) -> bool {
        self.adaptive.is_on()
    }

    fn with_lane<T>(&self, work: impl FnOnce(&mut Lane) -> T) -> T {
        let start = self.next_lane.fetch_add(1, Ordering::Relaxed);
        for distance in 0..LANES {
            if let Some(mut lane) = self.lanes[(start + distance) % LANES].try_lock() {
                return work(&mut lane);
            }
        }
        work(&mut self.lanes[start % LANES].lock())
    }
}

#[cfg(test)]
mod tests;
