// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One page from wherever it is to where the program wants it.
//!
//! Frames are taken before a page is claimed: whoever must evict to get a frame holds
//! no busy page of the victim cache, so evictors may wait for those. While a page is read
//! from swap, which lies in no cache, the next faults' frames are made.

use std::sync::atomic::Ordering;

use crate::compressed::Handle;
use crate::context::{BATCH_PAGES, Context};
use crate::copies::{NO_PAYLOAD, from_victim};
use crate::futex;
use crate::neighbours::NEIGHBOURS;
use crate::page::{Entry, Flag, PageIndex, State};
use crate::pager::Pager;
use crate::policy::{Arrival, abi};
use crate::queue::Window;
use crate::region::PAGE_BYTES;
use crate::statistics::Event;
use crate::swap::Slot;

/// Pages that a thread evicts at a time when it finds no frame.
const INLINE_BATCH: usize = 32;
/// Pages that a thread evicts at a time while the page that it wants is read.
const BESIDE_PAGES: usize = 16;
/// Untouched pages that are filled together when a program walks through them.
const FIRST_TOUCH_PAGES: usize = 16;

/// What a page is wanted for.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// It will be written.
    pub write: bool,
    /// It must stay until unpinned: a system call is about to use it.
    pub pin: bool,
    /// Who asks, for stream detection.
    pub thread: u32,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// The page is there.
    Done,
    /// Not the pager's page.
    NotManaged,
}

impl Pager {
    /// Brings a page into DRAM, mapped and writable as asked.
    pub fn resolve(&self, page: PageIndex, access: Access, context: &mut Context) -> Resolution {
        loop {
            let entry = self.table.load(page);
            let done = match entry.state() {
                State::Unmapped | State::Foreign => return Resolution::NotManaged,
                _ if access.pin && !entry.has(Flag::Accessible) => return Resolution::NotManaged,
                // On its way in or out of being mapped (or protected from everything).
                State::Untouched if !entry.has(Flag::Accessible) => return Resolution::NotManaged,
                State::Busy => {
                    self.counters().faults_waited.add(1);
                    self.table.wait(page, entry);
                    false
                }
                State::Clean | State::Unpacked | State::Guarded if access.write => {
                    self.make_dirty(page, entry, access)
                }
                State::Dirty if access.write && !access.pin => self.reopen(page, entry, access),
                State::Clean | State::Unpacked | State::Guarded | State::Dirty => {
                    let next = settle(entry, access);
                    next == entry || self.table.change(page, entry, next)
                }
                State::Untouched => self.first_touch(page, entry, access, context),
                State::Swapped => self.swap_in(page, entry, access, context),
                State::Victim => self.take_back(page, entry, access, context),
                State::Compressed => self.decompress(page, entry, access, context),
            };
            if done {
                return Resolution::Done;
            }
        }
    }

    /// Takes frames, evicting until there are some. The caller holds no busy page.
    pub fn take_frames(&self, pages: usize, context: &mut Context) {
        self.take_frames_for(pages, pages as u32, context);
    }

    /// The same; `steps` says how far the program comes by it, to compare ways of eviction.
    fn take_frames_for(&self, pages: usize, steps: u32, context: &mut Context) {
        let turns = self.inline_eviction.among(self.store.readers());
        let inline = turns.step(steps, crate::clock::now_ns);
        let mut stalled = inline;
        loop {
            if self.budget.try_take(pages as i64) {
                if self.budget.may_owe() {
                    // Somebody must be there to give back what others want.
                    self.start_threads();
                }
                if !inline && self.budget.is_short_of(self.budget.reserve_pages(), true) {
                    self.want_eviction();
                }
                return;
            }
            // Whoever evicts: what is learnt, and given back when it is not used, is the
            // evictor's part. In the child of a fork it may not run yet.
            self.start_threads();
            // A full tier is emptied by it.
            if !inline || self.tier.as_ref().is_some_and(|tier| tier.is_full()) {
                self.want_eviction();
            }
            let fill_pages = (!stalled).then(|| self.victims.fill_pages());
            match self.evict(INLINE_BATCH, context) {
                0 => futex::yield_now(),
                pages => self.counters().evictions_inline_pages.add(pages as u64),
            }
            // Once for all that are missing. What the victim cache lacks frees no frame, however
            // many were kept free.
            if let Some(before) = fill_pages {
                let fills = before < u64::from(self.victims.target_pages())
                    && self.victims.fill_pages() > before;
                if !fills {
                    self.budget.stalled();
                    stalled = true;
                }
            }
        }
    }

    /// Claims a page that is out, with a frame for it.
    fn claim_with_frame(&self, page: PageIndex, entry: Entry, context: &mut Context) -> bool {
        // That pages of the victim cache are wanted is a price of eviction, not progress.
        let steps = u32::from(entry.state() != State::Victim);
        self.take_frames_for(1, steps, context);
        let claimed = self.table.claim(page, entry);
        if !claimed {
            self.budget.give(1);
        }
        claimed
    }

    /// A first write to a protected page: a copy elsewhere is out of date from here on.
    fn make_dirty(&self, page: PageIndex, entry: Entry, access: Access) -> bool {
        if !self.table.claim(page, entry) {
            return false;
        }
        self.counters().faults_write_protect.add(1);
        self.forecast.written(entry);
        let next = self.without_copy(entry).with(Flag::PredictDirty, true);
        self.unprotect(page, 1);
        self.table.publish(page, settle(next, access));
        true
    }

    /// The program faulted on a page that is writable here: another thread was faster, or a
    /// protection is left from before a fork. It is lifted under a claim. Without one the page
    /// might have left and be back as a copy, and what is written to it then would be lost, or
    /// be on its way out, protected so that it is copied whole.
    fn reopen(&self, page: PageIndex, entry: Entry, access: Access) -> bool {
        if !self.table.claim(page, entry) {
            return false;
        }
        self.unprotect(page, 1);
        self.table.publish(page, settle(entry, access));
        true
    }

    fn first_touch(
        &self,
        page: PageIndex,
        entry: Entry,
        access: Access,
        context: &mut Context,
    ) -> bool {
        // A neighbour below that is in use: the program walks upwards.
        let in_use =
            |entry: Entry| entry.is_resident() || entry.is_out() || entry.state() == State::Victim;
        let walks = page > 0
            && in_use(self.table.load(page - 1))
            && self.budget.free_pages() > 2 * FIRST_TOUCH_PAGES as i64;
        let most = if walks {
            FIRST_TOUCH_PAGES - page as usize % FIRST_TOUCH_PAGES
        } else {
            1
        };
        self.take_frames(most, context);
        let mut count = 0;
        while count < most {
            let next = page + count as u32;
            let here = if count == 0 {
                entry
            } else if (next as usize) < self.table.pages() {
                self.table.load(next)
            } else {
                break;
            };
            let alike = here.state() == State::Untouched
                && here.has(Flag::Accessible)
                && here.has(Flag::Writable) == entry.has(Flag::Writable);
            if (count > 0 && !alike) || !self.table.claim(next, here) {
                break;
            }
            context.scratch().entries[count] = here;
            context.scratch().pages[count] = next;
            count += 1;
        }
        self.budget.give((most - count) as i64);
        if count == 0 {
            return false;
        }
        self.fill(page, self.zeroes, count, false);
        for at in 0..count {
            let here = context.scratch().entries[at]
                .with_state(State::Dirty)
                .with_payload(NO_PAYLOAD)
                .with(Flag::PredictDirty, false);
            let here = if at == 0 { settle(here, access) } else { here };
            self.table.publish(page + at as u32, here);
        }
        let mut arrivals = [Arrival::default(); FIRST_TOUCH_PAGES];
        for (at, arrival) in arrivals[..count].iter_mut().enumerate() {
            *arrival = Arrival {
                page: page + at as u32,
                source: abi::FIRST_TOUCH,
                flags: if access.write { abi::WRITE } else { 0 },
                thread: access.thread,
                ..Arrival::default()
            };
        }
        self.tell_arrived(&mut arrivals[..count]);
        self.charge_table();
        self.counters().first_touches.add(count as u64);
        true
    }

    fn swap_in(
        &self,
        page: PageIndex,
        entry: Entry,
        access: Access,
        context: &mut Context,
    ) -> bool {
        let start = crate::clock::now_ns();
        // What comes next is on its way while this page is read.
        let (streams, late_pages) = self.look_ahead(page, access);
        if self.catch_up(page, late_pages, access, context) {
            self.count_swap_fault(crate::clock::now_ns() - start);
            // It is there now, most likely: look again.
            return false;
        }
        if !streams && self.neighbours.begins(start) && self.bring_block(page, access, context) {
            let now_ns = crate::clock::now_ns();
            self.neighbours.ended(now_ns);
            self.count_swap_fault(now_ns - start);
            return false;
        }
        if !self.claim_with_frame(page, entry, context) {
            return false;
        }
        let entry = entry.with(Flag::Stream, streams);
        let writable = access.write || self.forecast.expects_write(entry);
        let entry = self
            .foreseen(entry, writable, writable)
            .with_state(State::Clean);
        let buffer = self.buffer(context, 1);
        self.read_slot(page, Slot(entry.payload()), buffer, |waits| {
            self.arrive(page, abi::SWAP, access, streams);
            if waits {
                self.make_room_beside();
            }
        });
        self.land(page, entry, buffer, writable, access);
        let now_ns = crate::clock::now_ns();
        self.neighbours.ended(now_ns);
        self.count_swap_fault(now_ns - start);
        true
    }

    /// Makes frames for the next faults, by a thread that waits for its page anyway.
    fn make_room_beside(&self) {
        let inline = self.inline_eviction.now().is_second();
        let enough = self.budget.free_pages() >= BESIDE_PAGES as i64;
        // Who must wait for others to empty the victim cache is late for his own page.
        if !inline || enough || self.victims_overflow() {
            return;
        }
        // The page that is on its way comes to the buffer of this thread's own context.
        let Some(mut other) = self.contexts.try_borrow(&self.budget) else {
            return;
        };
        self.start_threads();
        let pages = self.evict(BESIDE_PAGES, &mut other);
        self.contexts.give_back(&other);
        self.counters().evictions_inline_pages.add(pages as u64);
    }

    fn count_swap_fault(&self, took_ns: u64) {
        let counters = self.counters();
        counters.faults_swap.add(1);
        counters.fault_ns.add(took_ns);
    }

    /// Brings a page with all that is out of the block around it. False if it would come alone.
    fn bring_block(&self, page: PageIndex, access: Access, context: &mut Context) -> bool {
        let first = page / NEIGHBOURS * NEIGHBOURS;
        let out = (first..first + NEIGHBOURS)
            .filter(|&page| self.is_out(page))
            .count();
        if out < 2 {
            return false;
        }
        let block = Window {
            first,
            pages: NEIGHBOURS,
            // What is known is that this one page is written.
            write: false,
        };
        self.prefetch_for(block, Some((page, access)), context);
        true
    }

    /// Whether a page is in swap or compressed, and nobody is bringing it.
    fn is_out(&self, page: PageIndex) -> bool {
        (page as usize) < self.table.pages() && self.table.load(page).is_out()
    }

    /// The thread of a stream is faster than the prefetchers: to bring several pages takes
    /// hardly longer than one. False when they are not out.
    fn catch_up(
        &self,
        page: PageIndex,
        late_pages: u32,
        access: Access,
        context: &mut Context,
    ) -> bool {
        if late_pages <= 1 || !self.is_out(page + 1) {
            return false;
        }
        let late = Window {
            first: page,
            pages: late_pages,
            write: access.write,
        };
        self.prefetch(late, context);
        true
    }

    /// Tells the stream detector, and asks for what it advises. Whether this is part of a
    /// stream, and how many pages of it are worth one read.
    fn look_ahead(&self, page: PageIndex, access: Access) -> (bool, u32) {
        let write = access.write;
        let advice = self
            .streams
            .observe(access.thread, page, write, |page| self.is_out(page));
        for &window in advice.windows() {
            self.start_threads();
            if self.windows.push(window) {
                self.counters()
                    .prefetch_issued_pages
                    .add(u64::from(window.pages));
                self.note(Event::Prefetch, window.first, u64::from(window.pages));
            }
        }
        (advice.is_stream, advice.late_pages)
    }

    fn take_back(
        &self,
        page: PageIndex,
        entry: Entry,
        access: Access,
        context: &mut Context,
    ) -> bool {
        if !self.claim_with_frame(page, entry, context) {
            return false;
        }
        let position = entry.payload();
        let slot = self.victims.slot(position);
        let entry = from_victim(entry, slot);
        let stay = self.victims.address(position);
        let cache_permille = self.victims.age_permille(position);
        let writable = access.write || entry.state() == State::Dirty;
        // To move it would flush the TLBs of all processors.
        self.fill(page, stay as *const u8, 1, !writable);
        // Before the page can be claimed again, or who drains the cache would wait for
        // whoever evicts the page.
        self.victims.desert(position);
        self.settle_in(page, entry, writable, access);
        let arrival = Arrival {
            cache_permille,
            ..arrival_of(page, abi::VICTIM_CACHE, access, false)
        };
        self.tell_arrived(&mut [arrival]);
        self.note(Event::Fault, page, u64::from(abi::VICTIM_CACHE));
        self.counters().faults_victim_cache.add(1);
        if let Some(mut positions) = self.victims.remember(position) {
            self.free_deserted(&mut positions, context);
        }
        true
    }

    fn decompress(
        &self,
        page: PageIndex,
        entry: Entry,
        access: Access,
        context: &mut Context,
    ) -> bool {
        if let Some(tier) = &self.tier {
            tier.fetch(Handle(entry.payload()));
        }
        self.policy.fetch(page);
        let (streams, late_pages) = self.look_ahead(page, access);
        if self.catch_up(page, late_pages, access, context) {
            self.counters().faults_compressed.add(1);
            return false;
        }
        if !self.claim_with_frame(page, entry, context) {
            return false;
        }
        let entry = entry.with(Flag::Stream, streams);
        let written = access.write || self.forecast.expects_write(entry);
        let buffer = self.buffer(context, 1);
        self.unpack(page, Handle(entry.payload()), buffer);
        let writable = written || !self.keeps_objects();
        let entry = self
            .foreseen(entry, written, writable)
            .with_state(State::Unpacked);
        self.land(page, entry, buffer, writable, access);
        self.arrive(page, abi::COMPRESSED, access, streams);
        let counters = self.counters();
        counters.faults_compressed.add(1);
        counters.decompressions.add(1);
        if writable {
            self.charge_tier();
        }
        true
    }

    /// Notes of a page that is brought whether it is expected to be written. Where it is
    /// writable nobody will see.
    pub fn foreseen(&self, entry: Entry, written: bool, writable: bool) -> Entry {
        if written {
            return entry.with(Flag::PredictDirty, true);
        }
        if !writable {
            self.forecast.brought(entry);
        }
        entry
    }

    /// A page came from swap or from the compressed tier.
    fn arrive(&self, page: PageIndex, source: u8, access: Access, streams: bool) {
        let mut arrivals = [arrival_of(page, source, access, streams)];
        self.tell_arrived(&mut arrivals);
        if let Some(tier) = &self.tier {
            tier.fault(source == abi::COMPRESSED, arrivals[0].distance);
        }
        self.note(Event::Fault, page, u64::from(source));
    }

    /// Tells the policy of pages that came; what its tables take for that counts as DRAM.
    pub fn tell_arrived(&self, arrivals: &mut [Arrival]) {
        let table_pages = self.policy.arrived(arrivals);
        if table_pages > 0 {
            self.budget.charge_overhead(table_pages as i64);
        }
    }

    /// A line in the decision log, if there is one.
    pub fn note(&self, event: Event, page: PageIndex, detail: u64) {
        if let Some(log) = &self.log {
            log.event(event, u64::from(page), detail);
        }
    }

    /// Maps a copy of `contents` and ends the claim. The state of `entry` says where the
    /// same contents are, too.
    fn land(
        &self,
        page: PageIndex,
        entry: Entry,
        contents: *const u8,
        writable: bool,
        access: Access,
    ) {
        self.fill(page, contents, 1, !writable);
        self.settle_in(page, entry, writable, access);
    }

    /// Ends the claim of a page that is mapped now.
    fn settle_in(&self, page: PageIndex, entry: Entry, writable: bool, access: Access) {
        let next = if writable {
            self.without_copy(entry)
        } else {
            entry
        };
        self.table.publish(page, settle(next, access));
    }

    /// Takes one pin off each page of a range.
    pub fn unpin(&self, first: PageIndex, pages: u32) {
        for page in first..first + pages {
            loop {
                let entry = self.table.load(page);
                if entry.state() == State::Busy {
                    self.table.wait(page, entry);
                } else if entry.pins() == 0 || self.table.change(page, entry, entry.unpinned()) {
                    break;
                }
            }
        }
    }

    /// Wakes the evictor.
    pub fn want_eviction(&self) {
        self.start_threads();
        if self.evict_wanted.swap(1, Ordering::SeqCst) == 0 {
            futex::wake(&self.evict_wanted, 1);
        }
    }
}

fn arrival_of(page: PageIndex, source: u8, access: Access, streams: bool) -> Arrival {
    let flag = |on: bool, flag: u8| if on { flag } else { 0 };
    Arrival {
        page,
        source,
        flags: flag(access.write, abi::WRITE) | flag(streams, abi::STREAM),
        thread: access.thread,
        ..Arrival::default()
    }
}

/// The word of a resident page after an access.
fn settle(entry: Entry, access: Access) -> Entry {
    let entry = entry.with(Flag::Prefetched, false);
    if access.pin { entry.pinned() } else { entry }
}

const _: () = assert!(FIRST_TOUCH_PAGES <= BATCH_PAGES && PAGE_BYTES == 4096);
