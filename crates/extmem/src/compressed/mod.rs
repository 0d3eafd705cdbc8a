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
mod age;
mod class;
mod lz4;
mod slab;
mod worth;
mod zero;

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::lock::Lock;
use crate::region::{Region, carved_bytes};
use adaptive::Adaptive;
use age::Age;
use lz4::State;
pub use slab::Handle;
use slab::Slab;
use worth::Worth;
pub use zero::is_zero_page;

/// A page must shrink to this or less: a larger gain than what slots waste.
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
    /// Its span is mostly free slots: [`CompressedTier::relocate`] it.
    Relocate,
    /// The tier is full: write it out and free it.
    WriteBack,
}

/// An object that should go elsewhere.
#[derive(Debug, Clone, Copy)]
pub struct Aged {
    /// The page it was stored for.
    pub owner: u32,
    /// Where it was: claim the page, then see that it still is there.
    pub handle: Handle,
    /// What to do.
    pub advice: Advice,
}

/// A compressor and what it makes.
struct Lane {
    state: State,
    buffer: [u8; MOST_BYTES],
}

/// The tier.
pub struct CompressedTier {
    slab: Slab,
    age: Age,
    lanes: &'static [Lock<Lane>],
    next_lane: AtomicUsize,
    adaptive: Adaptive,
    worth: Worth,
}

impl std::fmt::Debug for CompressedTier {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("CompressedTier")
            .field("slab", &self.slab)
            .field("adaptive", &self.adaptive)
            .finish_non_exhaustive()
    }
}

impl CompressedTier {
    /// Bytes that [`Self::new`] wants; few are physical before they are used.
    pub fn footprint_bytes(options: &CompressedOptions) -> usize {
        Slab::footprint_bytes(options.pool_bytes)
            + Age::footprint_bytes()
            + carved_bytes::<Lock<Lane>>(LANES)
    }

    /// An empty tier.
    pub fn new(options: &CompressedOptions, mut region: Region) -> Result<Self, CompressedError> {
        let slab = Slab::new(options.pool_bytes, &mut region)?;
        let age = Age::new(&mut region)?;
        // SAFETY: zero is an open lock over bytes.
        let lanes = unsafe { region.carve::<Lock<Lane>>(LANES) }.ok_or(CompressedError::Memory)?;
        for lane in lanes.iter() {
            if !lane.lock().state.prepare() {
                return Err(CompressedError::Memory);
            }
        }
        Ok(Self {
            slab,
            age,
            lanes,
            next_lane: AtomicUsize::new(0),
            adaptive: Adaptive::new(options.always_on),
            worth: Worth::new(options.pool_bytes, !options.always_on),
        })
    }

    /// Compresses a page for its owner. None when it does not shrink enough, the tier is
    /// off or full: then it goes to swap.
    ///
    /// # Safety
    /// `page` must be readable for a page and not change meanwhile.
    pub unsafe fn store(&self, owner: u32, page: *const u8) -> Option<Handle> {
        // Where nothing will fit, to compress would be for nothing.
        if self.slab.is_exhausted() || !self.adaptive.tries_next() {
            return None;
        }
        let handle = self.with_lane(|lane| {
            let Lane { state, buffer } = lane;
            // SAFETY: the caller vouches for the page.
            let length = unsafe { state.compress(page, buffer) };
            self.adaptive.tried(length.is_some());
            self.slab.insert(owner, &buffer[..length?], false)
        })?;
        if let Some(header) = self.slab.header(handle) {
            self.age.enter(&self.slab, handle, header);
        }
        Some(handle)
    }

    /// An object will be decompressed in a moment: fetches it.
    pub fn fetch(&self, handle: Handle) {
        // By the end of these the processor sees for itself that a stream is read.
        const DATA_LINES: usize = 7;
        self.slab.fetch(handle, DATA_LINES);
    }

    /// Decompresses an object into a page. It stays until freed.
    ///
    /// # Safety
    /// `into` must be writable for a page, and the caller hold the object.
    pub unsafe fn load(&self, handle: Handle, into: *mut u8) -> Result<(), CompressedError> {
        let (header, data) = self.slab.get(handle)?;
        self.age.prepare(&self.slab, header);
        // SAFETY: the caller vouches for the page.
        if unsafe { lz4::decompress(data, into) } {
            Ok(())
        } else {
            Err(CompressedError::Damaged { handle: handle.0 })
        }
    }

    /// Frees an object. A second time changes nothing.
    pub fn free(&self, handle: Handle) {
        if let Some(header) = self.slab.header(handle) {
            self.age.leave(&self.slab, header);
            self.slab.remove(handle);
        }
    }

    /// Moves an object to a fuller span and frees the old place. None when there is none,
    /// or no such object; then nothing changed.
    pub fn relocate(&self, handle: Handle) -> Option<Handle> {
        let (from, data) = self.slab.get(handle).ok()?;
        let moved = self.slab.insert(from.owner(), data, true)?;
        match self.slab.header(moved) {
            Some(header) if !Slab::share_span(handle, moved) => {
                self.age.moved(&self.slab, from, moved, header);
                self.slab.remove(handle);
                Some(moved)
            }
            _ => {
                self.slab.remove(moved);
                None
            }
        }
    }

    /// DRAM that the tier takes now: count it against the program's share.
    pub fn resident_bytes(&self) -> usize {
        self.slab.resident_bytes() + size_of_val(self.lanes)
    }

    /// Bytes of the objects it holds.
    pub fn live_bytes(&self) -> usize {
        self.slab.live_bytes()
    }

    /// How far it may grow. It does not shrink by this: [`Self::wants_drain`] then holds.
    pub fn set_limit_bytes(&self, bytes: usize) {
        self.slab.set_limit_bytes(bytes);
    }

    /// It is full, or much of it is free slots: [`Self::drain`] it in the background.
    pub fn wants_drain(&self) -> bool {
        self.slab.is_full() || self.slab.is_sparse()
    }

    /// Objects that should go elsewhere, at most as many as `out` takes. For each: claim
    /// the page, see that its handle is still this one, then follow the advice.
    pub fn drain(&self, out: &mut [Aged]) -> usize {
        let mut count = 0;
        let advice = if self.slab.is_full() {
            Advice::WriteBack
        } else {
            Advice::Relocate
        };
        let each = |owner, handle| match out.get_mut(count) {
            Some(place) => {
                *place = Aged {
                    owner,
                    handle,
                    advice,
                };
                count += 1;
                true
            }
            None => false,
        };
        match advice {
            Advice::WriteBack => self.age.oldest(&self.slab, each),
            Advice::Relocate => self.slab.sparsest(each),
        }
        count
    }

    /// A fault was served from the tier or from swap, so many evictions after its page had
    /// left DRAM.
    pub fn fault(&self, from_tier: bool, distance_pages: u32) {
        let taken_pages = (self.slab.resident_bytes() / crate::region::PAGE_BYTES) as u32;
        self.worth.fault(from_tier, distance_pages, taken_pages);
    }

    /// A period ends: the tier may take as much DRAM as it earns, of what `share_of` says
    /// that the program has.
    pub fn settle(&self, share_of: impl Fn(usize) -> usize) {
        // As much as if it had all the DRAM there is.
        let most_bytes = self.worth.most_bytes();
        let share_bytes = share_of(most_bytes).max(1) as u128;
        // By spans, as the limit is.
        let taken_bytes = self.slab.span_bytes() as u128 * most_bytes as u128 / share_bytes;
        let taken_bytes = usize::try_from(taken_bytes).unwrap_or(usize::MAX);
        self.set_limit_bytes(share_of(self.worth.settle(taken_bytes)));
    }

    /// No room but for few objects more: the oldest should go to swap.
    pub fn is_full(&self) -> bool {
        self.slab.is_full()
    }

    /// Whether it takes pages just now without any of them being written out for that.
    pub fn has_room(&self) -> bool {
        self.is_on() && self.slab.has_room()
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
