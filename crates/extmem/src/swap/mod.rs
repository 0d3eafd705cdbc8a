// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The swap store: slots of 4 KiB on a file or block device.
//!
//! Slots are handed out so that pages evicted together lie together. Transfers
//! go around the page cache; many at once through io_uring, and single reads where
//! threads look for their page (`polling.rs`); others by plain system calls. The
//! store is opened once; after that nothing allocates, and all of it may be called
//! from signal handlers, with signals blocked.

mod backing;
mod backoff;
mod checks;
mod error;
mod family;
mod inject;
mod node_memory;
mod obstacle;
mod parts;
mod plain;
mod polling;
mod ring;
mod slots;
mod spans;

use std::os::fd::RawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use error::SwapError;
pub use inject::{Failure, Injection, InjectionError};
pub use obstacle::Obstacle;
pub use ring::DEPTH as QUEUE_DEPTH;
pub use spans::{MOST_PLACES, Tickets};

use demeter_extmem_tree::{DESCRIPTORS, Handed, Promises};

use crate::lock::{Guard, Lock};
use crate::region::Region;
use backing::Backing;
use inject::Injector;
use polling::{Look, Polling};
use ring::Ring;
use spans::{Span, Spans, lay_out};

/// Bytes of a slot: one page.
pub const SLOT_BYTES: usize = 4096;
/// Slots that one allocation, and pages that one transfer, may have.
pub const MOST_PAGES: u32 = 256;
/// Rings at most, where there is one place.
const MOST_RINGS: usize = 32;
/// Descriptors of a place: what is swapped to, the locks on it, of a memory node what is free
/// there, and from the first fork on the family's file and lock.
const PLACE_DESCRIPTORS: usize = 5;
/// Descriptors that the pager has beside those and its rings, four of them of pipes, and some
/// to spare.
const OTHER_DESCRIPTORS: usize = 14;

/// How many rings there may be beside so many places: a descriptor that finds no room among the
/// protected ones can be closed by the program, and a lock on swap that is lost is a relative
/// that is taken for dead.
const fn most_rings(places: usize) -> usize {
    let room = DESCRIPTORS as usize - OTHER_DESCRIPTORS - PLACE_DESCRIPTORS * places;
    if room < MOST_RINGS { room } else { MOST_RINGS }
}

const _: () = assert!(most_rings(1) == MOST_RINGS && most_rings(MOST_PLACES) >= 8);

/// Number of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

impl Slot {
    /// No slot. Real ones have the top bit clear.
    pub const NONE: Self = Self(u32::MAX);
}

/// Which way data moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the store into memory.
    Read,
    /// From memory into the store.
    Write,
}

/// How many transfers at once are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EngineChoice {
    /// io_uring if the kernel lets us, else plain calls.
    #[default]
    Auto,
    /// io_uring or failure.
    Uring,
    /// Plain calls.
    Plain,
}

/// What is swapped to.
#[derive(Debug, Clone, Copy)]
pub struct SwapPlace<'a> {
    /// The file of the run, handed on by whoever started this program.
    pub handed: Option<Handed>,
    /// Directory, file or block device, or `node:N`.
    pub path: &'a Path,
    /// Size; None takes all of a file or device, four times DRAM in a directory or on a node.
    pub capacity_bytes: Option<u64>,
}

/// How a store is opened.
#[derive(Debug, Clone, Copy)]
pub struct SwapOptions<'a> {
    /// At least one, and [`MOST_PLACES`] at most, in the order in which they are filled.
    pub places: &'a [SwapPlace<'a>],
    /// The program's share of DRAM, for that default.
    pub dram_bytes: u64,
    /// How many transfers at once are made.
    pub engine: EngineChoice,
    /// Rings; 0 for four a CPU.
    pub rings: u32,
    /// Failures on request.
    pub inject: Injection,
}

/// One contiguous run of slots to or from scattered pages.
#[derive(Debug, Clone, Copy)]
pub struct Transfer {
    direction: Direction,
    first: Slot,
    memory: *const libc::iovec,
    count: u32,
    /// It took place.
    pub done: bool,
}

impl Transfer {
    /// `count` pieces at `memory`, each whole pages at a page boundary, to or from the
    /// slots from `first` on.
    pub fn new(direction: Direction, first: Slot, memory: *const libc::iovec, count: u32) -> Self {
        Self {
            direction,
            first,
            memory,
            count,
            done: false,
        }
    }

    /// Bytes to move.
    fn total_bytes(&self) -> u64 {
        // SAFETY: whoever made this vouched for `count` entries.
        let pieces = unsafe { std::slice::from_raw_parts(self.memory, self.count as usize) };
        pieces.iter().map(|piece| piece.iov_len as u64).sum()
    }

    fn byte_offset(&self, start_bytes: u64) -> u64 {
        start_bytes + u64::from(self.first.0) * SLOT_BYTES as u64
    }

    fn failed(&self, backing: &Backing, done_bytes: u64, errno: i32) -> SwapError {
        SwapError::Transfer {
            place: backing.place,
            direction: self.direction,
            slot: self.first.0 + (done_bytes / SLOT_BYTES as u64) as u32,
            byte_offset: self.byte_offset(backing.start_bytes) + done_bytes,
            errno,
        }
    }

    fn altered(&self, backing: &Backing, slot: Slot) -> SwapError {
        SwapError::Altered {
            place: backing.place,
            slot: slot.0,
            byte_offset: backing.start_bytes + u64::from(slot.0) * SLOT_BYTES as u64,
        }
    }

    fn short(&self, backing: &Backing, done_bytes: u64, moved_bytes: u32) -> SwapError {
        SwapError::Short {
            place: backing.place,
            direction: self.direction,
            slot: self.first.0 + (done_bytes / SLOT_BYTES as u64) as u32,
            byte_offset: self.byte_offset(backing.start_bytes) + done_bytes,
            moved_bytes,
        }
    }
}

/// Transfers so far.
#[derive(Debug, Default)]
pub struct IoCounts {
    /// Read transfers.
    pub reads: AtomicU64,
    /// Bytes read.
    pub read_bytes: AtomicU64,
    /// Write transfers.
    pub writes: AtomicU64,
    /// Bytes written.
    pub write_bytes: AtomicU64,
    /// Transfers that failed.
    pub errors: AtomicU64,
}

/// A place for evicted pages.
#[derive(Debug)]
pub struct SwapStore {
    spans: Spans,
    rings: Vec<Lock<Ring>>,
    rings_usable: AtomicBool,
    injector: Injector,
    polling: Polling,
    counts: IoCounts,
}

impl SwapStore {
    /// Opens the path and says what tables it will need, before it is a store.
    pub fn prepare(options: &SwapOptions<'_>) -> Result<Prepared, SwapError> {
        let mut backings = Vec::new();
        let mut promises = Promises::default();
        for place in options.places.iter().take(MOST_PLACES) {
            let inherited = place
                .handed
                .as_ref()
                .and_then(|handed| Backing::inherited(handed, place.path));
            let backing = match inherited {
                Some(backing) => backing,
                None => Backing::open(
                    place.path,
                    place.capacity_bytes,
                    options.dram_bytes,
                    &mut promises,
                )?,
            };
            backings.push(backing.settle());
        }
        if backings.is_empty() {
            return Err(SwapError::Nowhere);
        }
        let firsts = lay_out(&backings)?;
        Ok(Prepared {
            backings,
            firsts,
            engine: options.engine,
            rings: options.rings,
            inject: options.inject,
        })
    }

    /// Opens the path.
    pub fn open(options: &SwapOptions<'_>) -> Result<Self, SwapError> {
        Self::prepare(options)?.complete()
    }

    /// All slots.
    pub fn capacity_slots(&self) -> u64 {
        self.spans.capacity()
    }

    /// Slots not taken.
    pub fn free_slots(&self) -> u64 {
        self.spans.free_slots()
    }

    /// What keeps the store from growing, if that is not its size.
    pub fn obstacle(&self) -> Option<Obstacle> {
        self.spans.obstacle()
    }

    /// Promises slots; false when fewer are left to promise.
    pub fn reserve(&self, slots: u64) -> bool {
        self.spans.reserve(slots)
    }

    /// Takes a promise back.
    pub fn unreserve(&self, slots: u64) {
        self.spans.unreserve(slots);
    }

    /// A contiguous run of 1 to `want` slots; None when the store is full.
    pub fn allocate(&self, want: u32) -> Option<(Slot, u32)> {
        self.spans.allocate(want.min(MOST_PAGES))
    }

    /// Gives a run back.
    pub fn free(&self, first: Slot, slots: u32) {
        self.spans.free(first, slots);
    }

    /// Pages of DRAM that the store's tables took since this was asked last.
    pub fn grown_pages(&self) -> u32 {
        self.spans.grown_pages()
    }

    /// Transfers so far.
    pub fn counts(&self) -> &IoCounts {
        &self.counts
    }

    /// True when io_uring carries batches.
    pub fn uses_uring(&self) -> bool {
        !self.rings.is_empty() && self.rings_usable.load(Ordering::Relaxed)
    }

    /// Of each file or device its path, its slots and those that are taken.
    pub fn places(&self) -> impl Iterator<Item = (&'static str, u64, u64)> + '_ {
        self.spans.iter().map(|span| {
            let (all, free) = (span.capacity(), span.free_slots());
            (span.backing.place, all, all.saturating_sub(free))
        })
    }

    /// Of each what it is, for people.
    pub fn kinds(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.spans.iter().map(|span| span.backing.kind)
    }

    /// True when transfers bypass the page cache.
    pub fn is_direct(&self) -> bool {
        self.spans.iter().all(|span| span.backing.direct)
    }

    /// Descriptors that the managed program must not close: what is swapped to, then rings.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.spans
            .descriptors()
            .chain(self.rings.iter().map(|ring| ring.lock().descriptor()))
    }

    /// Reads `pages` slots from `first` on.
    ///
    /// # Safety
    /// `memory` must be page aligned and writable for that many pages.
    pub unsafe fn read(&self, first: Slot, memory: *mut u8, pages: u32) -> Result<(), SwapError> {
        // SAFETY: the caller's promise.
        unsafe { self.read_beside(first, memory, pages, |_| {}) }
    }

    /// The same, and other work, which is told whether the device is at it meanwhile: so it is
    /// where the thread looks for its page.
    ///
    /// # Safety
    /// As for [`Self::read`]; the work must leave that memory alone.
    pub unsafe fn read_beside(
        &self,
        first: Slot,
        memory: *mut u8,
        pages: u32,
        work: impl FnOnce(bool),
    ) -> Result<(), SwapError> {
        let piece = libc::iovec {
            iov_base: memory.cast(),
            iov_len: pages as usize * SLOT_BYTES,
        };
        let transfer = Transfer::new(Direction::Read, first, &raw const piece, 1);
        if pages > 1 {
            work(false);
            // SAFETY: the caller vouches for the memory; the piece outlives the call.
            return unsafe { self.run_plain(&transfer) };
        }
        let others = self.polling.begin();
        let can_look = self.uses_uring() && !self.is_copied(&transfer);
        let look = can_look.then(|| self.polling.look(others)).flatten();
        let ring = look.as_ref().and_then(|_| self.free_ring());
        // SAFETY: as above.
        let result = unsafe {
            match (look, ring) {
                (Some(look), Some(ring)) => self.run_polled(ring, &transfer, look, work),
                _ => {
                    work(false);
                    self.run_plain(&transfer)
                }
            }
        };
        self.polling.end();
        result
    }

    /// Threads that read a single page just now.
    pub fn readers(&self) -> u32 {
        self.polling.readers()
    }

    /// Writes scattered pages to the slots from `first` on.
    ///
    /// # Safety
    /// Each piece must be whole readable pages at a page boundary, at most
    /// [`MOST_PAGES`] in all.
    pub unsafe fn write(&self, first: Slot, memory: &[libc::iovec]) -> Result<(), SwapError> {
        let transfer = Transfer::new(
            Direction::Write,
            first,
            memory.as_ptr(),
            memory.len() as u32,
        );
        // SAFETY: the caller vouches for the memory.
        unsafe { self.run_plain(&transfer) }
    }

    /// Makes all transfers, as many at once as a ring takes; returns when none is in
    /// flight any more. The first failure is returned; `done` tells which took place.
    ///
    /// # Safety
    /// Memory and pieces of every transfer must be valid.
    pub unsafe fn transfer(&self, batch: &mut [Transfer]) -> Result<(), SwapError> {
        let ring = (batch.len() > 1).then(|| self.free_ring()).flatten();
        let Some(mut ring) = ring else {
            let mut outcome = Ok(());
            for transfer in batch {
                // SAFETY: the caller vouches for the memory.
                let result = unsafe { self.run_plain(transfer) };
                transfer.done = result.is_ok();
                outcome = outcome.and(result);
            }
            return outcome;
        };
        let mut outcome = Ok(());
        let mut next = 0;
        loop {
            while let Some(transfer) = batch.get_mut(next) {
                if !ring.has_room() {
                    break;
                }
                if self.is_copied(transfer) {
                    // SAFETY: the caller vouches for the memory.
                    let result = unsafe { self.run_plain(transfer) };
                    transfer.done = result.is_ok();
                    outcome = outcome.and(result);
                } else if let Some(failure) = self.injector.next(transfer.direction) {
                    outcome = outcome.and(self.injected(transfer, failure));
                    // SAFETY: as above; the token is the index.
                } else if !unsafe { self.push(&mut ring, transfer, next as u64) } {
                    break;
                }
                next += 1;
            }
            if ring.in_flight() == 0 || !ring.submit(1) {
                break;
            }
            while let Some((token, moved)) = ring.pop() {
                if let Some(transfer) = batch.get_mut(token as usize) {
                    // SAFETY: as above.
                    let result = unsafe { self.complete(transfer, moved) };
                    transfer.done = result.is_ok();
                    outcome = outcome.and(result);
                }
            }
        }
        drop(ring);
        if outcome.is_ok() {
            // A ring that got lost on the way: transfers may be repeated.
            for transfer in batch.iter_mut().filter(|transfer| !transfer.done) {
                // SAFETY: as above.
                let result = unsafe { self.run_plain(transfer) };
                transfer.done = result.is_ok();
                outcome = outcome.and(result);
            }
        }
        outcome
    }

    /// Before a fork, while no other thread uses the store. None: the family is too
    /// large or /proc is not there; the fork must not take place.
    pub fn fork_begin(&self) -> Option<Tickets> {
        self.spans.fork_begin()
    }

    /// In the parent, after the fork or its failure.
    pub fn fork_ended(&self, tickets: Tickets, forked: bool) {
        self.spans.fork_ended(tickets, forked);
    }

    /// In the child: it holds what its parent held. The parent's rings are not mapped
    /// here, so transfers are plain from now on.
    pub fn after_fork_in_child(&self, tickets: Tickets) {
        self.rings_usable.store(false, Ordering::Relaxed);
        self.polling.forget_readers();
        self.spans.after_fork_in_child(tickets);
        // What the parent moved is the parent's.
        let counts = &self.counts;
        for count in [
            &counts.reads,
            &counts.read_bytes,
            &counts.writes,
            &counts.write_bytes,
            &counts.errors,
        ] {
            count.store(0, Ordering::Relaxed);
        }
    }

    fn free_ring(&self) -> Option<Guard<'_, Ring>> {
        if !self.rings_usable.load(Ordering::Relaxed) {
            return None;
        }
        self.rings
            .iter()
            .filter_map(Lock::try_lock)
            .find(|ring| ring.has_room() && ring.in_flight() == 0)
    }

    /// Starts a transfer by a ring; false where it has no room.
    unsafe fn push(&self, ring: &mut Ring, transfer: &Transfer, token: u64) -> bool {
        let (span, local) = self.local(transfer);
        // SAFETY: the caller vouches for the memory.
        unsafe {
            span.checks.note(&local);
            ring.push(span.index, span.backing.start_bytes, &local, token)
        }
    }

    /// Whether a transfer is a copy that the thread itself makes: there is no device to be
    /// waited for, and a ring would give it to another thread.
    fn is_copied(&self, transfer: &Transfer) -> bool {
        self.spans.of(transfer.first).0.backing.node.is_some()
    }

    /// Where a transfer goes, and the same counted from there.
    fn local(&self, transfer: &Transfer) -> (&Span, Transfer) {
        let (span, first) = self.spans.of(transfer.first);
        (span, Transfer { first, ..*transfer })
    }

    unsafe fn run_plain(&self, transfer: &Transfer) -> Result<(), SwapError> {
        if let Some(failure) = self.injector.next(transfer.direction) {
            return self.injected(transfer, failure);
        }
        let (span, local) = self.local(transfer);
        // SAFETY: the caller vouches for the memory.
        unsafe {
            span.checks.note(&local);
            let result = plain::run(&span.backing, &local);
            self.count(transfer, checked(span, &local, result))
        }
    }

    /// One transfer by a ring whose thread looks for its end.
    unsafe fn run_polled(
        &self,
        mut ring: Guard<'_, Ring>,
        transfer: &Transfer,
        look: Look<'_>,
        work: impl FnOnce(bool),
    ) -> Result<(), SwapError> {
        if let Some(failure) = self.injector.next(transfer.direction) {
            return self.injected(transfer, failure);
        }
        // SAFETY: the caller vouches for the memory, which we wait for.
        let pushed = unsafe { self.push(&mut ring, transfer, 0) } && ring.submit(0);
        work(pushed);
        look.resume();
        let moved = if pushed {
            ring.poll(|| look.next())
        } else {
            None
        };
        look.found();
        // A lost ring brought nothing: as if the call had been interrupted.
        let moved = moved.map_or(-libc::EINTR, |(_, moved)| moved);
        // SAFETY: as above.
        unsafe { self.complete(transfer, moved) }
    }

    /// Takes note of what a ring brought, and does the rest if it is not all.
    unsafe fn complete(&self, transfer: &Transfer, moved: i32) -> Result<(), SwapError> {
        let (span, local) = self.local(transfer);
        // SAFETY: the caller vouches for the memory.
        unsafe {
            let result = plain::finish(&span.backing, &local, moved as isize);
            self.count(transfer, checked(span, &local, result))
        }
    }

    fn count(&self, transfer: &Transfer, result: Result<(), SwapError>) -> Result<(), SwapError> {
        let (transfers, bytes) = match transfer.direction {
            Direction::Read => (&self.counts.reads, &self.counts.read_bytes),
            Direction::Write => (&self.counts.writes, &self.counts.write_bytes),
        };
        if result.is_ok() {
            transfers.fetch_add(1, Ordering::Relaxed);
            bytes.fetch_add(transfer.total_bytes(), Ordering::Relaxed);
        } else {
            self.counts.errors.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    fn injected(&self, transfer: &Transfer, failure: Failure) -> Result<(), SwapError> {
        let (span, local) = self.local(transfer);
        self.count(
            transfer,
            Err(match failure {
                Failure::Errno(errno) => local.failed(&span.backing, 0, errno),
                Failure::Short => local.short(&span.backing, 0, SLOT_BYTES as u32 / 8),
            }),
        )
    }
}

/// What a transfer came to, with a read held against what was written.
///
/// # Safety
/// The transfer's memory must be valid.
unsafe fn checked(
    span: &Span,
    transfer: &Transfer,
    result: Result<(), SwapError>,
) -> Result<(), SwapError> {
    result?;
    // SAFETY: it took place, and the caller vouches for the memory.
    match unsafe { span.checks.altered(transfer) } {
        Some(slot) => Err(transfer.altered(&span.backing, slot)),
        None => Ok(()),
    }
}

/// Places that were opened and checked, not yet a store.
#[derive(Debug)]
pub struct Prepared {
    backings: Vec<Backing>,
    firsts: Vec<u32>,
    engine: EngineChoice,
    rings: u32,
    inject: Injection,
}

impl Prepared {
    /// Bytes of tables that [`Self::complete`] maps; few of them become physical.
    pub fn footprint_bytes(&self) -> usize {
        Spans::footprint_bytes(&self.backings)
    }

    /// Slots it will have.
    pub fn capacity_slots(&self) -> u64 {
        self.backings.iter().map(|backing| backing.slots).sum()
    }

    /// The store, with its tables in memory that forks share.
    pub fn complete(self) -> Result<SwapStore, SwapError> {
        let mut region =
            Region::map_shared(self.footprint_bytes()).map_err(|_| SwapError::Memory)?;
        let spans = Spans::new(self.backings, &self.firsts, &mut region)?;
        let files: Vec<RawFd> = spans.descriptors().collect();
        let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
        let wanted = match self.rings {
            0 => cpus * 4,
            rings => rings as usize,
        };
        let mut rings = Vec::new();
        if self.engine != EngineChoice::Plain {
            for _ in 0..wanted.min(most_rings(files.len())) {
                match Ring::new(&files) {
                    Ok(ring) => rings.push(Lock::new(ring)),
                    Err(error) if self.engine == EngineChoice::Uring => return Err(error),
                    // What there is will do; none at all means plain calls.
                    Err(_) => break,
                }
            }
        }
        Ok(SwapStore {
            spans,
            rings,
            rings_usable: AtomicBool::new(true),
            injector: Injector::new(self.inject),
            polling: Polling::new(cpus as u32),
            counts: IoCounts::default(),
        })
    }
}

#[cfg(test)]
mod tests;
