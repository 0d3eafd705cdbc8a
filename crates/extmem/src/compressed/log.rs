// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compressed pages in a log of segments.
//!
//! Objects are appended to an open segment; a full one is closed and queued by age. A
//! segment whose last object goes is free at once and its memory goes back to the
//! kernel, so the log is as large as what it holds. Objects freed in the middle leave
//! holes; the oldest segments are therefore drained: their few objects are appended
//! again, or written out when the log is full of live ones. That also makes room in
//! order of age, which classes of equal sizes would not.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicUsize, Ordering};

use super::CompressedError;
use crate::lock::Lock;
use crate::region::{Region, carved_bytes};
use crate::syscall;

/// Bytes of a segment.
pub const SEGMENT_BYTES: usize = 64 << 10;
/// Objects begin at multiples of this.
const UNIT_BYTES: usize = 32;
const UNITS: usize = SEGMENT_BYTES / UNIT_BYTES;
/// Handles have 30 bits.
const MOST_SEGMENTS: usize = (1 << 30) / UNITS;
/// Free segments whose memory is kept: this many, and one in 32 in use.
const SPARE: usize = 8;
const NONE: u32 = u32::MAX;

/// Where an object is. The top two bits are never set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle(pub u32);

impl Handle {
    fn new(segment: u32, offset: usize) -> Self {
        Self(segment * UNITS as u32 + (offset / UNIT_BYTES) as u32)
    }

    fn segment(self) -> usize {
        self.0 as usize / UNITS
    }

    fn offset(self) -> usize {
        self.0 as usize % UNITS * UNIT_BYTES
    }
}

/// Before each object.
#[derive(Debug)]
#[repr(C)]
struct Header {
    owner: AtomicU32,
    length: AtomicU16,
    live: AtomicU16,
}

/// Nobody's.
const FREE: u32 = 0;
/// Objects are appended.
const OPEN: u32 = 1;
/// Full, in the queue.
const CLOSED: u32 = 2;

/// All zero is a free segment.
#[derive(Debug)]
struct Segment {
    state: AtomicU32,
    /// Live objects, and readers that keep the segment from being freed.
    pins: AtomicU32,
    /// Units of live objects.
    live_units: AtomicU32,
    /// Bytes written.
    used_bytes: AtomicU32,
    older: AtomicU32,
    newer: AtomicU32,
}

/// Closed segments by age, and free ones. Segments are linked through themselves.
#[derive(Debug)]
struct Order {
    oldest: u32,
    newest: u32,
    /// Free, with memory.
    spare: u32,
    spares: usize,
    /// Free, without memory.
    empty: u32,
    /// Never used from here on.
    fresh: u32,
}

/// Where a lane appends.
#[derive(Debug)]
pub struct Head {
    segment: u32,
    offset: usize,
}

impl Head {
    /// Without a segment yet.
    pub const NEW: Self = Self {
        segment: NONE,
        offset: 0,
    };
}

/// The log.
#[derive(Debug)]
pub struct Log {
    base: usize,
    segments: &'static [Segment],
    order: Lock<Order>,
    /// Segments open or closed.
    used: AtomicUsize,
    /// Spare ones.
    spares: AtomicUsize,
    limit: AtomicUsize,
    live_units: AtomicUsize,
}

impl Log {
    fn count(pool_bytes: usize) -> usize {
        (pool_bytes / SEGMENT_BYTES).min(MOST_SEGMENTS)
    }

    /// Bytes of pool and tables.
    pub fn footprint_bytes(pool_bytes: usize) -> usize {
        let count = Self::count(pool_bytes);
        carved_bytes::<u8>(count * SEGMENT_BYTES) + carved_bytes::<Segment>(count)
    }

    /// An empty log of at most `pool_bytes`.
    pub fn new(pool_bytes: usize, region: &mut Region) -> Result<Self, CompressedError> {
        let count = Self::count(pool_bytes);
        // SAFETY: zero is a u8 and a free segment.
        let (pool, segments) = unsafe {
            (
                region.carve::<u8>(count * SEGMENT_BYTES),
                region.carve::<Segment>(count),
            )
        };
        let (Some(pool), Some(segments)) = (pool, segments) else {
            return Err(CompressedError::Memory);
        };
        Ok(Self {
            base: pool.as_mut_ptr() as usize,
            segments,
            order: Lock::new(Order {
                oldest: NONE,
                newest: NONE,
                spare: NONE,
                spares: 0,
                empty: NONE,
                fresh: 0,
            }),
            used: AtomicUsize::new(0),
            spares: AtomicUsize::new(0),
            limit: AtomicUsize::new(count),
            live_units: AtomicUsize::new(0),
        })
    }

    /// How far the log may grow.
    pub fn set_limit_bytes(&self, bytes: usize) {
        let limit = (bytes / SEGMENT_BYTES).min(self.segments.len());
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Memory in use.
    pub fn resident_bytes(&self) -> usize {
        let segments = self.used.load(Ordering::Relaxed) + self.spares.load(Ordering::Relaxed);
        segments * SEGMENT_BYTES
            + size_of_val(self.segments) / self.segments.len().max(1) * segments
    }

    /// Bytes of live objects.
    pub fn live_bytes(&self) -> usize {
        self.live_units.load(Ordering::Relaxed) * UNIT_BYTES
    }

    /// Close to the limit: new objects will soon be refused.
    pub fn is_tight(&self) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        self.used.load(Ordering::Relaxed) + (limit / 32).max(4) >= limit
    }

    /// More than two fifths are holes.
    pub fn is_sparse(&self) -> bool {
        let used = self.used.load(Ordering::Relaxed);
        used > 2 * SPARE && self.live_units.load(Ordering::Relaxed) * 5 < used * UNITS * 3
    }

    /// Share of the segments' room that live objects take, in percent.
    pub fn live_percent(&self) -> usize {
        let room = self.used.load(Ordering::Relaxed).max(1) * UNITS;
        self.live_units.load(Ordering::Relaxed) * 100 / room
    }

    /// Appends an object; None when the log may not grow. What is moved within the log may
    /// take the last segments, so that there is room to mend holes.
    pub fn append(&self, head: &mut Head, owner: u32, data: &[u8], moved: bool) -> Option<Handle> {
        let bytes = (size_of::<Header>() + data.len()).next_multiple_of(UNIT_BYTES);
        if head.segment == NONE || head.offset + bytes > SEGMENT_BYTES {
            let fresh = self.open_segment(moved)?;
            self.close(head);
            *head = Head {
                segment: fresh,
                offset: 0,
            };
        }
        let segment = &self.segments[head.segment as usize];
        let handle = Handle::new(head.segment, head.offset);
        let header = self.header(handle);
        header.owner.store(owner, Ordering::Relaxed);
        header.length.store(data.len() as u16, Ordering::Relaxed);
        // SAFETY: the room behind the header up to `bytes` lies in the open segment, which
        // only the holder of `head` writes.
        unsafe {
            std::ptr::copy_nonoverlapping(
                data.as_ptr(),
                self.data_address(handle) as *mut u8,
                data.len(),
            );
        }
        let units = (bytes / UNIT_BYTES) as u32;
        segment.pins.fetch_add(1, Ordering::SeqCst);
        segment.live_units.fetch_add(units, Ordering::Relaxed);
        self.live_units.fetch_add(units as usize, Ordering::Relaxed);
        header.live.store(1, Ordering::Release);
        head.offset += bytes;
        segment
            .used_bytes
            .store(head.offset as u32, Ordering::Release);
        Some(handle)
    }

    /// An object's owner and data. The caller holds the object: nobody frees it meanwhile.
    pub fn get(&self, handle: Handle) -> Result<(u32, &[u8]), CompressedError> {
        let corrupt = CompressedError::Handle { handle: handle.0 };
        if handle.segment() >= self.segments.len() {
            return Err(corrupt);
        }
        let header = self.header(handle);
        let length = usize::from(header.length.load(Ordering::Relaxed));
        if header.live.load(Ordering::Acquire) != 1
            || handle.offset() + size_of::<Header>() + length > SEGMENT_BYTES
        {
            return Err(corrupt);
        }
        // SAFETY: a live object of that length lies there, and stays (the caller says).
        let data =
            unsafe { std::slice::from_raw_parts(self.data_address(handle) as *const u8, length) };
        Ok((header.owner.load(Ordering::Relaxed), data))
    }

    /// Frees an object. A second time changes nothing.
    pub fn free(&self, handle: Handle) {
        if handle.segment() >= self.segments.len() {
            return;
        }
        let header = self.header(handle);
        if header.live.swap(0, Ordering::AcqRel) != 1 {
            return;
        }
        let units = units(header.length.load(Ordering::Relaxed));
        let segment = &self.segments[handle.segment()];
        segment.live_units.fetch_sub(units, Ordering::Relaxed);
        self.live_units.fetch_sub(units as usize, Ordering::Relaxed);
        self.unpin(handle.segment() as u32);
    }

    /// Live objects of the oldest segment, and what share of its room they take, in
    /// percent. The segment then counts as the newest, so that the next call sees another.
    /// None when there is none.
    pub fn oldest(&self, mut each: impl FnMut(u32, Handle) -> bool) -> Option<usize> {
        let index = {
            let mut order = self.order.lock();
            let index = order.oldest;
            let segment = self.segments.get(index as usize)?;
            // In the queue, so it has objects: the pin keeps it until we are done.
            segment.pins.fetch_add(1, Ordering::SeqCst);
            self.unlink(&mut order, index);
            self.link_newest(&mut order, index);
            index
        };
        let segment = &self.segments[index as usize];
        let percent = segment.live_units.load(Ordering::Relaxed) as usize * 100 / UNITS;
        let end = segment.used_bytes.load(Ordering::Acquire) as usize;
        let mut offset = 0;
        while offset < end {
            let handle = Handle::new(index, offset);
            let header = self.header(handle);
            if header.live.load(Ordering::Acquire) == 1
                && !each(header.owner.load(Ordering::Relaxed), handle)
            {
                break;
            }
            offset += units(header.length.load(Ordering::Relaxed)) as usize * UNIT_BYTES;
        }
        self.unpin(index);
        Some(percent)
    }

    fn header(&self, handle: Handle) -> &Header {
        // SAFETY: inside the pool, aligned to a unit; all its fields are atomic.
        unsafe { &*(self.address(handle) as *const Header) }
    }

    fn address(&self, handle: Handle) -> usize {
        self.base + handle.segment() * SEGMENT_BYTES + handle.offset()
    }

    fn data_address(&self, handle: Handle) -> usize {
        self.address(handle) + size_of::<Header>()
    }

    fn open_segment(&self, moved: bool) -> Option<u32> {
        let limit = self.limit.load(Ordering::Relaxed);
        let limit = if moved {
            limit
        } else {
            limit.saturating_sub((limit / 64).max(2))
        };
        let mut order = self.order.lock();
        if self.used.load(Ordering::Relaxed) >= limit {
            return None;
        }
        let index = if order.spare != NONE {
            let index = order.spare;
            order.spare = self.segments[index as usize].newer.load(Ordering::Relaxed);
            order.spares -= 1;
            self.spares.store(order.spares, Ordering::Relaxed);
            index
        } else if order.empty != NONE {
            let index = order.empty;
            order.empty = self.segments[index as usize].newer.load(Ordering::Relaxed);
            index
        } else if (order.fresh as usize) < self.segments.len() {
            order.fresh += 1;
            order.fresh - 1
        } else {
            return None;
        };
        self.used.fetch_add(1, Ordering::Relaxed);
        let segment = &self.segments[index as usize];
        segment.used_bytes.store(0, Ordering::Relaxed);
        segment.live_units.store(0, Ordering::Relaxed);
        segment.state.store(OPEN, Ordering::SeqCst);
        Some(index)
    }

    /// The head's segment is full.
    fn close(&self, head: &Head) {
        let Some(segment) = self.segments.get(head.segment as usize) else {
            return;
        };
        // The pin keeps it out of the free list until it is in the queue.
        segment.pins.fetch_add(1, Ordering::SeqCst);
        {
            let mut order = self.order.lock();
            self.link_newest(&mut order, head.segment);
        }
        segment.state.store(CLOSED, Ordering::SeqCst);
        self.unpin(head.segment);
    }

    /// Drops a pin; whoever drops the last one of a closed segment frees it.
    fn unpin(&self, index: u32) {
        let segment = &self.segments[index as usize];
        if segment.pins.fetch_sub(1, Ordering::SeqCst) != 1
            || segment.state.load(Ordering::SeqCst) != CLOSED
        {
            return;
        }
        let mut order = self.order.lock();
        // Somebody may have pinned it through the queue, or freed it already.
        if segment.pins.load(Ordering::SeqCst) != 0
            || segment
                .state
                .compare_exchange(CLOSED, FREE, Ordering::SeqCst, Ordering::SeqCst)
                .is_err()
        {
            return;
        }
        self.unlink(&mut order, index);
        let used = self.used.fetch_sub(1, Ordering::Relaxed) - 1;
        if order.spares < SPARE + used / 32 {
            segment.newer.store(order.spare, Ordering::Relaxed);
            order.spare = index;
            order.spares += 1;
            self.spares.store(order.spares, Ordering::Relaxed);
            return;
        }
        // Its headers must read as dead when the memory is gone: zero is dead.
        // SAFETY: the segment is free and ours.
        unsafe {
            syscall::call(
                libc::SYS_madvise,
                [
                    self.base + index as usize * SEGMENT_BYTES,
                    SEGMENT_BYTES,
                    libc::MADV_DONTNEED as usize,
                    0,
                    0,
                    0,
                ],
            );
        }
        segment.newer.store(order.empty, Ordering::Relaxed);
        order.empty = index;
    }

    fn link_newest(&self, order: &mut Order, index: u32) {
        let segment = &self.segments[index as usize];
        segment.older.store(order.newest, Ordering::Relaxed);
        segment.newer.store(NONE, Ordering::Relaxed);
        match self.segments.get(order.newest as usize) {
            Some(newest) => newest.newer.store(index, Ordering::Relaxed),
            None => order.oldest = index,
        }
        order.newest = index;
    }

    fn unlink(&self, order: &mut Order, index: u32) {
        let segment = &self.segments[index as usize];
        let older = segment.older.load(Ordering::Relaxed);
        let newer = segment.newer.load(Ordering::Relaxed);
        match self.segments.get(older as usize) {
            Some(older) => older.newer.store(newer, Ordering::Relaxed),
            None => order.oldest = newer,
        }
        match self.segments.get(newer as usize) {
            Some(newer) => newer.older.store(older, Ordering::Relaxed),
            None => order.newest = older,
        }
    }
}

fn units(length: u16) -> u32 {
    (size_of::<Header>() + usize::from(length)).div_ceil(UNIT_BYTES) as u32
}
