// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory for compressed pages, by size classes.
//!
//! The pool is cut into spans; a span holds slots of one class. A freed slot is used
//! again at once, and the fullest spans are used first, so that others run empty: an
//! empty span serves any class, or its memory goes back to the kernel. A class that has
//! shrunk may still hold many spans with few objects each; those of the emptiest span
//! are moved to the others (`sparsest`).

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use demeter_extmem_policy::fetch_line;

use super::CompressedError;
use super::class::{CLASSES, HEADER_BYTES, MOST_SLOTS, SPAN_BYTES, class_for, slot_bytes, slots};
use crate::lock::Lock;
use crate::region::{PAGE_BYTES, Region, carved_bytes};
use crate::syscall;

/// Handles have 30 bits.
const MOST_SPANS: usize = (1 << 30) / MOST_SLOTS;
/// Spans of a class by how full they are, full ones aside.
const GROUPS: usize = 8;
/// Empty spans whose memory is kept: this many, and one in 128 in use.
const SPARE: usize = 4;
/// Less than one free slot in so many is little where there is no other room.
const FULL_SHARE: usize = 16;
/// One free slot in so many is much, and in a large pool, where half a span of each class does
/// not count, one in so many.
const SPARSE_SHARES: (usize, usize) = (10, 20);
/// No span.
const NONE: u32 = u32::MAX;
const RELAXED: Ordering = Ordering::Relaxed;

/// Where an object is. The top two bits are never set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle(pub u32);

impl Handle {
    fn new(span: u32, slot: usize) -> Self {
        Self(span * MOST_SLOTS as u32 + slot as u32)
    }

    fn span(self) -> usize {
        self.0 as usize / MOST_SLOTS
    }

    fn slot(self) -> usize {
        self.0 as usize % MOST_SLOTS
    }
}

/// Before each object.
#[derive(Debug)]
#[repr(C)]
pub struct Header {
    /// The next older object, for `age.rs`.
    pub older: AtomicU32,
    /// The next newer one.
    pub newer: AtomicU32,
    owner: AtomicU32,
    length: AtomicU16,
    unused: u16,
}

const _: () = assert!(size_of::<Header>() == HEADER_BYTES);

impl Header {
    /// The page the object was stored for.
    pub fn owner(&self) -> u32 {
        self.owner.load(RELAXED)
    }
}

/// All zero is a span without a class. Links and counts are for who holds the lock of the
/// class, or of the pool while there is none.
#[derive(Debug)]
struct Span {
    /// One more than the class.
    class: AtomicU32,
    live: AtomicU32,
    /// In the list of this group; `GROUPS` is none (full).
    group: AtomicU32,
    previous: AtomicU32,
    next: AtomicU32,
    /// Its first pages that have memory: no more than its slots have ever reached.
    touched_pages: AtomicU32,
    taken: [AtomicU64; MOST_SLOTS / 64],
}

/// A class: its spans with free slots, fullest last.
#[derive(Debug)]
struct Class {
    first: [u32; GROUPS],
    last: [u32; GROUPS],
    free_slots: usize,
}

/// Spans without a class, linked through `next`.
#[derive(Debug)]
struct Pool {
    /// With memory.
    spare: u32,
    spares: usize,
    /// Without memory.
    empty: u32,
    /// Never used from here on.
    fresh: u32,
}

/// The pool and its tables.
#[derive(Debug)]
pub struct Slab {
    base: usize,
    spans: &'static [Span],
    classes: &'static [Lock<Class>],
    pool: Lock<Pool>,
    /// Spans that have a class.
    used: AtomicUsize,
    limit: AtomicUsize,
    /// Pages that have memory, of spans with and without a class.
    touched_pages: AtomicUsize,
    /// Bytes of slots with an object, with their part of what is behind the last slot.
    taken_bytes: AtomicUsize,
    /// Bytes of the objects.
    live_bytes: AtomicUsize,
}

impl Slab {
    fn span_count(pool_bytes: usize) -> usize {
        (pool_bytes / SPAN_BYTES).min(MOST_SPANS)
    }

    /// Bytes of pool and tables.
    pub fn footprint_bytes(pool_bytes: usize) -> usize {
        let count = Self::span_count(pool_bytes);
        carved_bytes::<u8>(count * SPAN_BYTES)
            + carved_bytes::<Span>(count)
            + carved_bytes::<Lock<Class>>(CLASSES)
    }

    /// An empty slab of at most `pool_bytes`.
    pub fn new(pool_bytes: usize, region: &mut Region) -> Result<Self, CompressedError> {
        let count = Self::span_count(pool_bytes);
        // SAFETY: zero is a u8, a span, and an open lock over numbers.
        let (pool, spans, classes) = unsafe {
            (
                region.carve::<u8>(count * SPAN_BYTES),
                region.carve::<Span>(count),
                region.carve::<Lock<Class>>(CLASSES),
            )
        };
        let (Some(pool), Some(spans), Some(classes)) = (pool, spans, classes) else {
            return Err(CompressedError::Memory);
        };
        for class in classes.iter() {
            *class.lock() = Class {
                first: [NONE; GROUPS],
                last: [NONE; GROUPS],
                free_slots: 0,
            };
        }
        Ok(Self {
            base: pool.as_mut_ptr() as usize,
            spans,
            classes,
            pool: Lock::new(Pool {
                spare: NONE,
                spares: 0,
                empty: NONE,
                fresh: 0,
            }),
            used: AtomicUsize::new(0),
            limit: AtomicUsize::new(count),
            touched_pages: AtomicUsize::new(0),
            taken_bytes: AtomicUsize::new(0),
            live_bytes: AtomicUsize::new(0),
        })
    }

    /// How far the slab may grow.
    pub fn set_limit_bytes(&self, bytes: usize) {
        self.limit
            .store((bytes / SPAN_BYTES).min(self.spans.len()), RELAXED);
        if bytes < SPAN_BYTES {
            self.drop_spares();
        }
    }

    /// Memory in use: a span that is new takes what its slots have reached.
    pub fn resident_bytes(&self) -> usize {
        self.touched_pages.load(RELAXED) * PAGE_BYTES
            + self.used.load(RELAXED) * size_of::<Span>()
            + size_of_val(self.classes)
    }

    /// Bytes of the spans that have objects: what the limit bounds.
    pub fn span_bytes(&self) -> usize {
        self.used.load(RELAXED) * SPAN_BYTES
    }

    /// Bytes of the objects.
    pub fn live_bytes(&self) -> usize {
        self.live_bytes.load(RELAXED)
    }

    /// Bytes of free slots.
    fn free_bytes(&self) -> usize {
        (self.used.load(RELAXED) * SPAN_BYTES).saturating_sub(self.taken_bytes.load(RELAXED))
    }

    /// New spans will soon be refused.
    fn is_near_limit(&self) -> bool {
        let limit = self.limit.load(RELAXED);
        self.used.load(RELAXED) + (limit / 32).max(4) >= limit
    }

    /// Close to the limit, and not for want of order. Where nothing may be kept, anything is.
    pub fn is_full(&self) -> bool {
        if self.limit.load(RELAXED) == 0 {
            return self.used.load(RELAXED) > 0;
        }
        self.is_near_limit()
            && self.free_bytes() < self.used.load(RELAXED) * SPAN_BYTES / FULL_SHARE
    }

    /// Far enough from the limit to take what need not be taken: less room than this is
    /// for what would have to be written.
    pub fn has_room(&self) -> bool {
        let limit_bytes = self.limit.load(RELAXED) * SPAN_BYTES;
        self.taken_bytes.load(RELAXED) + limit_bytes / 12 < limit_bytes
    }

    /// New objects are refused but for what slots are free by chance.
    pub fn is_exhausted(&self) -> bool {
        let (used, limit) = (self.used.load(RELAXED), self.limit.load(RELAXED));
        used + kept_spans(limit) >= limit
            && (used == 0 || limit == 0 || self.free_bytes() < used * SPAN_BYTES / 64)
    }

    /// Much of it is free slots: worth moving objects. Less will do when there is no room.
    pub fn is_sparse(&self) -> bool {
        let used = self.used.load(RELAXED);
        let used_bytes = used * SPAN_BYTES;
        let ends_bytes = CLASSES * SPAN_BYTES / 2;
        let share = if self.is_near_limit() {
            FULL_SHARE
        } else {
            SPARSE_SHARES.0
        };
        let much_bytes = (used_bytes / share).min(used_bytes / SPARSE_SHARES.1 + ends_bytes);
        used > 2 * SPARE && self.free_bytes() >= much_bytes
    }

    /// Fetches an object's header, should there be one, and so many lines of its data.
    pub fn fetch(&self, handle: Handle, lines: usize) {
        const LINE_BYTES: usize = 64;
        if let Some(class) = self.class_of(handle) {
            let start = self.address(handle, class);
            for line in 0..=lines {
                fetch_line((start + line * LINE_BYTES) as *const u8);
            }
        }
    }

    /// Stores an object; None when the slab may not grow. What is moved within it may take
    /// the last spans, so that there is room to do so.
    pub fn insert(&self, owner: u32, data: &[u8], moved: bool) -> Option<Handle> {
        let bytes = HEADER_BYTES + data.len();
        let class = class_for(bytes);
        let handle = self.take(class, owner, data.len() as u16, moved)?;
        // SAFETY: the slot is ours, and has room for `bytes`.
        unsafe {
            std::ptr::copy_nonoverlapping(
                data.as_ptr(),
                (self.address(handle, class) + HEADER_BYTES) as *mut u8,
                data.len(),
            );
        }
        self.live_bytes.fetch_add(bytes, RELAXED);
        Some(handle)
    }

    /// The header of an object; None when there is no object.
    pub fn header(&self, handle: Handle) -> Option<&Header> {
        let class = self.class_of(handle)?;
        let word = self.spans[handle.span()].taken[handle.slot() / 64].load(Ordering::Acquire);
        let is_taken = word & (1 << (handle.slot() % 64)) != 0;
        (is_taken && handle.slot() < slots(class)).then(|| self.header_at(handle, class))
    }

    /// An object's header and data. The caller holds the object: nobody frees it meanwhile.
    pub fn get(&self, handle: Handle) -> Result<(&Header, &[u8]), CompressedError> {
        let corrupt = CompressedError::Handle { handle: handle.0 };
        let header = self.header(handle).ok_or(corrupt)?;
        let length = usize::from(header.length.load(RELAXED));
        let room = slot_bytes(self.class_of(handle).ok_or(corrupt)?);
        if HEADER_BYTES + length > room {
            return Err(corrupt);
        }
        let start = std::ptr::from_ref(header).wrapping_add(1).cast::<u8>();
        // SAFETY: a live object of that length lies there, and stays (the caller says).
        Ok((header, unsafe { std::slice::from_raw_parts(start, length) }))
    }

    /// Frees an object's slot.
    pub fn remove(&self, handle: Handle) {
        let Some(header) = self.header(handle) else {
            return;
        };
        let Some(class) = self.class_of(handle) else {
            return;
        };
        let bytes = HEADER_BYTES + usize::from(header.length.load(RELAXED));
        self.live_bytes.fetch_sub(bytes, RELAXED);
        self.release(handle, class);
    }

    /// Objects of the emptiest span of the class that would gain most by it, until `each`
    /// has enough: whoever moves them all frees the span. None when no class has as much
    /// room elsewhere.
    pub fn sparsest(&self, mut each: impl FnMut(u32, Handle) -> bool) {
        let gain = |class: usize| {
            let free = self.classes[class].lock().free_slots;
            if free >= slots(class) {
                free * slot_bytes(class)
            } else {
                0
            }
        };
        let best = (0..CLASSES).map(|class| (gain(class), class)).max();
        let Some((1.., number)) = best else {
            return;
        };
        // Held to the end: no object comes or goes meanwhile.
        let class = self.classes[number].lock();
        let Some(&index) = class.last.iter().find(|&&span| span != NONE) else {
            return;
        };
        let span = &self.spans[index as usize];
        for slot in 0..slots(number) {
            let word = span.taken[slot / 64].load(RELAXED);
            let handle = Handle::new(index, slot);
            if word & (1 << (slot % 64)) != 0
                && !each(self.header_at(handle, number).owner(), handle)
            {
                return;
            }
        }
    }

    /// Whether two objects lie in one span.
    pub fn share_span(first: Handle, second: Handle) -> bool {
        first.span() == second.span()
    }

    fn class_of(&self, handle: Handle) -> Option<usize> {
        let class = self.spans.get(handle.span())?.class.load(RELAXED);
        (class as usize).checked_sub(1)
    }

    fn address(&self, handle: Handle, class: usize) -> usize {
        self.base + handle.span() * SPAN_BYTES + handle.slot() * slot_bytes(class)
    }

    fn header_at(&self, handle: Handle, class: usize) -> &Header {
        // SAFETY: inside the pool, aligned to 8; all its fields are atomic.
        unsafe { &*(self.address(handle, class) as *const Header) }
    }

    /// Takes a slot.
    fn take(&self, number: usize, owner: u32, length: u16, moved: bool) -> Option<Handle> {
        let mut class = self.classes[number].lock();
        let index = match class.first.iter().rev().find(|&&span| span != NONE) {
            Some(&index) => index,
            None => {
                let index = self.open(moved)?;
                let span = &self.spans[index as usize];
                span.class.store(number as u32 + 1, RELAXED);
                class.free_slots += slots(number);
                self.link(&mut class, index, 0);
                index
            }
        };
        let span = &self.spans[index as usize];
        let (at, word) = span
            .taken
            .iter()
            .map(|word| word.load(RELAXED))
            .enumerate()
            .find(|(_, word)| *word != u64::MAX)?;
        let bit = word.trailing_ones() as usize;
        let handle = Handle::new(index, at * 64 + bit);
        self.touch(span, (handle.slot() + 1) * slot_bytes(number));
        let header = self.header_at(handle, number);
        header.owner.store(owner, RELAXED);
        header.length.store(length, RELAXED);
        // Acquire and Release: whoever finds the bit set finds the span's class, and in place
        // of what an object of another class had there, the header.
        span.taken[at].store(word | 1 << bit, Ordering::Release);
        class.free_slots -= 1;
        self.recount(&mut class, index, number, 1);
        self.taken_bytes
            .fetch_add(SPAN_BYTES / slots(number), RELAXED);
        Some(handle)
    }

    /// Counts the pages of a span up to its byte `end`, which are about to be written to.
    fn touch(&self, span: &Span, end: usize) {
        let pages = end.div_ceil(PAGE_BYTES) as u32;
        let before = span.touched_pages.load(RELAXED);
        if pages > before {
            span.touched_pages.store(pages, RELAXED);
            self.touched_pages
                .fetch_add((pages - before) as usize, RELAXED);
        }
    }

    /// Gives a slot back.
    fn release(&self, handle: Handle, number: usize) {
        let (index, mask) = (handle.span() as u32, 1 << (handle.slot() % 64));
        let span = &self.spans[handle.span()];
        {
            let mut class = self.classes[number].lock();
            let before = span.taken[handle.slot() / 64].fetch_and(!mask, Ordering::AcqRel);
            if before & mask == 0 {
                return;
            }
            self.taken_bytes
                .fetch_sub(SPAN_BYTES / slots(number), RELAXED);
            class.free_slots += 1;
            if self.recount(&mut class, index, number, -1) > 0 {
                return;
            }
            self.unlink(&mut class, index);
            class.free_slots -= slots(number);
            span.class.store(0, RELAXED);
        }
        self.close(index);
    }

    /// Counts an object of a span and puts the span where it belongs. Objects left.
    fn recount(&self, class: &mut Class, index: u32, number: usize, change: i32) -> u32 {
        let span = &self.spans[index as usize];
        let live = span.live.load(RELAXED).wrapping_add_signed(change);
        span.live.store(live, RELAXED);
        let group = live as usize * GROUPS / slots(number);
        if group != span.group.load(RELAXED) as usize {
            self.unlink(class, index);
            self.link(class, index, group);
        }
        live
    }

    /// Appends a span to a group of its class.
    fn link(&self, class: &mut Class, index: u32, group: usize) {
        let span = &self.spans[index as usize];
        span.group.store(group as u32, RELAXED);
        let Some(&last) = class.last.get(group) else {
            return;
        };
        span.previous.store(last, RELAXED);
        span.next.store(NONE, RELAXED);
        match self.spans.get(last as usize) {
            Some(last) => last.next.store(index, RELAXED),
            None => class.first[group] = index,
        }
        class.last[group] = index;
    }

    fn unlink(&self, class: &mut Class, index: u32) {
        let span = &self.spans[index as usize];
        let group = span.group.load(RELAXED) as usize;
        if group >= GROUPS {
            return;
        }
        let (previous, next) = (span.previous.load(RELAXED), span.next.load(RELAXED));
        match self.spans.get(previous as usize) {
            Some(previous) => previous.next.store(next, RELAXED),
            None => class.first[group] = next,
        }
        match self.spans.get(next as usize) {
            Some(next) => next.previous.store(previous, RELAXED),
            None => class.last[group] = previous,
        }
    }

    /// A span without a class.
    fn open(&self, moved: bool) -> Option<u32> {
        let limit = self.limit.load(RELAXED);
        let kept = if moved { 0 } else { kept_spans(limit) };
        let mut pool = self.pool.lock();
        if self.used.load(RELAXED) + kept >= limit {
            return None;
        }
        let index = if pool.spare != NONE {
            let index = pool.spare;
            pool.spare = self.spans[index as usize].next.load(RELAXED);
            pool.spares -= 1;
            index
        } else if pool.empty != NONE {
            let index = pool.empty;
            pool.empty = self.spans[index as usize].next.load(RELAXED);
            index
        } else if (pool.fresh as usize) < self.spans.len() {
            pool.fresh += 1;
            pool.fresh - 1
        } else {
            return None;
        };
        self.used.fetch_add(1, RELAXED);
        Some(index)
    }

    /// A span has no objects and no class any more.
    fn close(&self, index: u32) {
        let span = &self.spans[index as usize];
        {
            let mut pool = self.pool.lock();
            let used = self.used.fetch_sub(1, RELAXED) - 1;
            if self.limit.load(RELAXED) > 0 && pool.spares < SPARE + used / 128 {
                span.next.store(pool.spare, RELAXED);
                pool.spare = index;
                pool.spares += 1;
                return;
            }
        }
        self.drop_span(index);
        if self.limit.load(RELAXED) == 0 {
            self.drop_spares();
        }
    }

    /// Where nothing may be held, nothing is kept for later either.
    fn drop_spares(&self) {
        loop {
            let index = {
                let mut pool = self.pool.lock();
                let index = pool.spare;
                if index == NONE {
                    return;
                }
                pool.spare = self.spans[index as usize].next.load(RELAXED);
                pool.spares -= 1;
                index
            };
            self.drop_span(index);
        }
    }

    /// Gives the memory of a span that is in no list back to the kernel.
    fn drop_span(&self, index: u32) {
        // SAFETY: the span is in no list: ours.
        unsafe {
            syscall::call(
                libc::SYS_madvise,
                [
                    self.base + index as usize * SPAN_BYTES,
                    SPAN_BYTES,
                    libc::MADV_DONTNEED as usize,
                    0,
                    0,
                    0,
                ],
            );
        }
        let span = &self.spans[index as usize];
        let pages = span.touched_pages.swap(0, RELAXED);
        self.touched_pages.fetch_sub(pages as usize, RELAXED);
        let mut pool = self.pool.lock();
        span.next.store(pool.empty, RELAXED);
        pool.empty = index;
    }
}

/// Of the limit, spans kept for what is moved.
fn kept_spans(limit: usize) -> usize {
    (limit / 64).max(2)
}
