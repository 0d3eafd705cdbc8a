// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pager's own threads: one evicts, some prefetch, and in handler mode some
//! resolve faults. They start when they are first needed: a small program that never
//! fills its DRAM has none.

use std::sync::atomic::Ordering;

use crate::compressed::{Advice, Aged, Handle};
use crate::config::Mode;
use crate::context::{BATCH_PAGES, Context};
use crate::evict::Packs;
use crate::fatal;
use crate::fault::Access;
use crate::futex::{self, pause, yield_now};
use crate::interpose::ending;
use crate::page::{Entry, Flag, PageIndex, State};
use crate::pager::{HANDLERS, PREFETCHERS, Pager, most_pinned_bytes, pager};
use crate::pipes::HELD_PAGES;
use crate::policy::{Arrival, abi};
use crate::queue::Window;
use crate::region::PAGE_BYTES;
use crate::swap::{Direction, Slot, Transfer};
use crate::uffd::EVENT_PAGEFAULT;

/// Seats to provide.
pub const SEATS: usize = 1 + PREFETCHERS + HANDLERS;
const EVICTION_BATCH: usize = 128;
const _: () = assert!(EVICTION_BATCH <= HELD_PAGES);
/// Pages prefetched in one read.
const MOST_RUN: usize = BATCH_PAGES / 4;
/// How often the compressed tier is drained between two looks for frames.
const TIER_ROUNDS: usize = 16;
/// Time between samples of the statistics.
const SAMPLE_NS: u32 = 100_000_000;
/// Rest of the evictor when nothing can be evicted.
const NOTHING_EVICTABLE_NS: u32 = 200_000;

/// Faults so far, by where the page was.
#[derive(Default)]
struct Faults {
    tier: u64,
    swap: u64,
}

/// What the evictor knows since it last learnt.
#[derive(Default)]
struct Settled {
    at_ns: u64,
    faults: Faults,
}

impl Pager {
    /// Starts the evictor and the prefetchers, once. Signals must be blocked.
    ///
    /// Not in a child by vfork, which has our memory: they would be threads of that process,
    /// and end with it or by its exec, wherever they are, while we count on them. Who needs
    /// frames there evicts by himself until the parent starts them.
    pub fn start_threads(&self) {
        if self.threads_started.load(Ordering::SeqCst)
            || !self.is_this_process()
            || self.threads_started.swap(true, Ordering::SeqCst)
        {
            return;
        }
        self.start(0, evictor);
        for seat in 1..=PREFETCHERS {
            self.start(seat, prefetcher);
        }
    }

    /// Starts the threads that handler mode cannot do without.
    pub fn start_handlers(&self) {
        if self.mode == Mode::Handler {
            for seat in 1 + PREFETCHERS..SEATS {
                self.start(seat, handler);
            }
        }
    }

    fn start(&self, seat: usize, thread: extern "C" fn(usize) -> !) {
        self.budget.charge_overhead(self.seats[seat].charge_pages());
        // SAFETY: each seat is taken once in a process, or again in a forked child,
        // where the parent's threads do not exist.
        if let Err(errno) = unsafe { self.seats[seat].start(thread, seat) } {
            fatal!(
                "cannot start a paging thread (error {errno}); next: raise the limit on processes (ulimit -u)"
            );
        }
        self.own_threads.fetch_add(1, Ordering::SeqCst);
    }

    /// Brings the pages of a window into DRAM: those in swap by many reads at once, as few
    /// as their slots allow.
    pub fn prefetch(&self, window: Window, context: &mut Context) {
        self.prefetch_for(window, None, context);
    }

    /// The same, not as part of a stream but for the sake of one page, which somebody waits
    /// for.
    pub fn prefetch_for(
        &self,
        window: Window,
        wanted: Option<(PageIndex, Access)>,
        context: &mut Context,
    ) {
        let end = (window.first as usize + window.pages as usize).min(self.table.pages()) as u32;
        let mut page = window.first;
        while page < end {
            let most = ((end - page) as usize).min(MOST_RUN);
            self.take_frames(most, context);
            let claimed = self.claim_out(page, most, context);
            self.budget.give((most - claimed) as i64);
            if claimed > 0 {
                self.read_claimed(claimed, context);
                self.land_claimed(claimed, window.write, wanted, context);
            }
            page += most as u32;
        }
    }

    /// Claims the swapped and compressed pages among `most` from `first` on.
    fn claim_out(&self, first: PageIndex, most: usize, context: &mut Context) -> usize {
        let scratch = context.scratch();
        let mut claimed = 0;
        for page in first..first + most as u32 {
            let entry = self.table.load(page);
            if entry.is_out() && self.table.claim(page, entry) {
                scratch.pages[claimed] = page;
                scratch.entries[claimed] = entry;
                claimed += 1;
            }
        }
        claimed
    }

    /// Reads or unpacks the first `count` pages of scratch into the buffer, in order.
    fn read_claimed(&self, count: usize, context: &mut Context) {
        let buffer = self.buffer(context, count);
        let scratch = context.scratch();
        let empty = Transfer::new(Direction::Read, Slot::NONE, std::ptr::null(), 0);
        let mut batch = [empty; MOST_RUN];
        let (mut transfers, mut unpacked) = (0, 0);
        let mut at = 0;
        while at < count {
            let entry = scratch.entries[at];
            let slot = entry.payload();
            if entry.state() == State::Compressed {
                // SAFETY: as below.
                let place = unsafe { buffer.add(at * PAGE_BYTES) };
                self.unpack(scratch.pages[at], Handle(slot), place);
                unpacked += 1;
                at += 1;
                continue;
            }
            let follows = |entry: Entry, run: usize| {
                entry.state() == State::Swapped && entry.payload() == slot + run as u32
            };
            let mut run = 1;
            while at + run < count && follows(scratch.entries[at + run], run) {
                run += 1;
            }
            scratch.vectors[transfers] = libc::iovec {
                // SAFETY: the buffer has BATCH_PAGES pages, more than `count`.
                iov_base: unsafe { buffer.add(at * PAGE_BYTES) }.cast(),
                iov_len: run * PAGE_BYTES,
            };
            let vector = &raw const scratch.vectors[transfers];
            batch[transfers] = Transfer::new(Direction::Read, Slot(slot), vector, 1);
            transfers += 1;
            at += run;
        }
        self.counters().decompressions.add(unpacked);
        if transfers == 0 {
            return;
        }
        // SAFETY: the vectors point to pages of the buffer, which is ours until the end.
        if let Err(error) = unsafe { self.store.transfer(&mut batch[..transfers]) } {
            fatal!(
                "one of {count} pages from {:#x} on cannot be read back: {error}",
                self.table.address(scratch.pages[0])
            );
        }
    }

    /// Maps what was read, and ends the claims.
    fn land_claimed(
        &self,
        count: usize,
        write: bool,
        wanted: Option<(PageIndex, Access)>,
        context: &mut Context,
    ) {
        let streams = wanted.is_none();
        let buffer = self.buffer(context, count);
        let scratch = context.scratch();
        let forecast = self.forecast.of_stream();
        let keeps_objects = self.keeps_objects();
        let written = |entry: Entry| write || (streams && forecast.expects_write(entry));
        let writable =
            |entry: Entry| written(entry) || (entry.state() == State::Compressed && !keeps_objects);
        let mut freed = false;
        let mut at = 0;
        while at < count {
            let (first, open) = (scratch.pages[at], writable(scratch.entries[at]));
            let mut run = 1;
            while at + run < count
                && scratch.pages[at + run] == first + run as u32
                && writable(scratch.entries[at + run]) == open
            {
                run += 1;
            }
            // SAFETY: inside the buffer.
            let contents = unsafe { buffer.add(at * PAGE_BYTES) };
            self.fill(first, contents, run, !open);
            for step in at..at + run {
                let entry = scratch.entries[step];
                let marked = entry
                    .with(Flag::Prefetched, true)
                    .with(Flag::Stream, streams);
                let entry = self.foreseen(marked, written(entry), open);
                let entry = if entry.state() == State::Compressed {
                    entry.with_state(State::Unpacked)
                } else {
                    entry.with_state(State::Clean)
                };
                let entry = if open {
                    freed |= entry.state() == State::Unpacked;
                    self.without_copy(entry)
                } else {
                    entry
                };
                self.table.publish(scratch.pages[step], entry);
            }
            self.uffd.wake(self.table.address(first), run);
            at += run;
        }
        let mut arrivals = [Arrival::default(); MOST_RUN];
        let came = scratch.pages[..count].iter().zip(&scratch.entries[..count]);
        for (arrival, (&page, entry)) in arrivals.iter_mut().zip(came) {
            let asked = wanted.filter(|&(wanted, _)| wanted == page);
            let flags = match asked {
                Some((_, access)) if access.write => abi::WRITE,
                Some(_) => 0,
                None if streams => {
                    abi::STREAM | abi::PREFETCHED | if write { abi::WRITE } else { 0 }
                }
                None => abi::PREFETCHED,
            };
            *arrival = Arrival {
                page,
                thread: asked.map_or(0, |(_, access)| access.thread),
                source: if entry.state() == State::Compressed {
                    abi::COMPRESSED
                } else {
                    abi::SWAP
                },
                flags,
                ..Arrival::default()
            };
        }
        self.tell_arrived(&mut arrivals[..count]);
        if freed {
            self.charge_tier();
        }
    }

    /// Sleeps until eviction is wanted, or a sample is due.
    fn wait_for_eviction(&self) {
        futex::wait(&self.evict_wanted, 0, Some(SAMPLE_NS));
    }

    /// Empties the compressed tier from its old end, as far as it asks for that. Returns
    /// objects looked at.
    fn drain_tier(&self, context: &mut Context) -> usize {
        const MOST: usize = BATCH_PAGES;
        let Some(tier) = &self.tier else { return 0 };
        let mut aged = [Aged {
            owner: 0,
            handle: Handle(0),
            advice: Advice::Relocate,
        }; MOST];
        // Twice as many as the evictor brings at a time.
        let most = 2 * self.budget.batch_pages(EVICTION_BATCH);
        let found = tier.drain(&mut aged[..most.min(MOST)]);
        let mut count = 0;
        for aged in &aged[..found] {
            let entry = self.table.load(aged.owner);
            let is_there = matches!(entry.state(), State::Compressed | State::Unpacked)
                && entry.payload() == aged.handle.0;
            if !is_there || !self.table.claim(aged.owner, entry) {
                continue;
            }
            if aged.advice == Advice::Relocate {
                let handle = tier.relocate(aged.handle).unwrap_or(aged.handle);
                self.table.publish(aged.owner, entry.with_payload(handle.0));
                continue;
            }
            if entry.state() == State::Unpacked {
                self.give_up_object(aged.owner, entry);
                continue;
            }
            // SAFETY: the buffer has BATCH_PAGES pages, as many as MOST.
            let place = unsafe { self.buffer(context, count + 1).add(count * PAGE_BYTES) };
            self.unpack(aged.owner, aged.handle, place);
            let scratch = context.scratch();
            scratch.pages[count] = aged.owner;
            scratch.entries[count] = self.without_copy(entry);
            scratch.positions[count] = count as u32;
            count += 1;
        }
        let buffer = self.buffer(context, count);
        self.write_out(count, Packs::None, context, |_, at| {
            buffer as usize + at as usize * PAGE_BYTES
        });
        let scratch = context.scratch();
        for at in 0..count {
            self.table.publish(
                scratch.pages[at],
                crate::copies::departed(scratch.entries[at]),
            );
        }
        self.charge_tier();
        found
    }

    /// How large the victim cache may be, from what happened since `before`: where evicted
    /// pages come back from the tier, the cache spares next to nothing, and what it holds
    /// faults more often than it would in its place.
    fn most_victim_cache_pages(&self, before: &mut Faults) -> u32 {
        /// For each fault that reads from swap the tier serves more than so many.
        const TIMES_TIER: u64 = 2;
        const LEAST_SHARE: u32 = 64;
        let counters = self.counters();
        let now = Faults {
            tier: counters.faults_compressed.get(),
            swap: counters.faults_swap.get(),
        };
        let (tier, swap) = (now.tier - before.tier, now.swap - before.swap);
        *before = now;
        if tier > swap * TIMES_TIER {
            self.budget.dram_pages() as u32 / LEAST_SHARE
        } else {
            u32::MAX
        }
    }

    /// The victim cache is to have what the policy says. It changes its mind after some
    /// hundred pages, and counts on being heard.
    pub fn size_victim_cache(&self) {
        let wanted = self.policy.victim_cache_pages();
        self.victims
            .set_target_pages(self.budget.share_of(wanted.into()) as u32);
    }

    /// Every tenth of a second: gauges, and what is learnt from the time since.
    fn settle(&self, settled: &mut Settled) {
        let now_ns = crate::clock::now_ns();
        if now_ns - settled.at_ns <= u64::from(SAMPLE_NS) {
            return;
        }
        settled.at_ns = now_ns;
        ending::end_if_alone(self);
        let operation = self.enter_masked();
        self.sample();
        self.budget.relax_reserve();
        self.budget.settle_share();
        self.most_pinned_bytes
            .store(most_pinned_bytes(&self.budget), Ordering::Relaxed);
        if let Some(tier) = &self.tier {
            tier.settle(|bytes| self.budget.share_of(bytes as u64) as usize);
        }
        let most_pages = self.most_victim_cache_pages(&mut settled.faults);
        self.victims.set_most_pages(most_pages);
        self.size_victim_cache();
        drop(operation);
        // A fork copies all of it, or nothing.
        let pass = self.gate.enter();
        self.contexts.trim(&self.budget);
        self.pipes.trim();
        drop(pass);
        self.counters()
            .evict_cpu_ns
            .set(crate::clock::thread_cpu_ns());
    }

    /// Brings gauges and history up to date.
    pub fn sample(&self) {
        let gauges = &self.statistics.block().gauges;
        let bytes = |pages: i64| pages.max(0) as u64 * PAGE_BYTES as u64;
        gauges
            .managed_bytes
            .set(bytes(self.budget.promised_pages()));
        gauges
            .resident_bytes
            .set(bytes(self.budget.resident_pages()));
        gauges.metadata_bytes.set(bytes(
            self.budget.overhead_pages() - self.tier_pages.load(Ordering::Relaxed),
        ));
        let compressed = self.tier.as_ref().map_or(0, |tier| tier.resident_bytes());
        gauges.compressed_bytes.set(compressed as u64);
        let used = self.store.capacity_slots() - self.store.free_slots();
        gauges.swap_used_bytes.set(used * PAGE_BYTES as u64);
        let places = self.statistics.block().swap.iter();
        for (place, (_, _, used)) in places.zip(self.store.places()) {
            place.used_bytes.set(used * PAGE_BYTES as u64);
        }
        gauges
            .victim_cache_bytes
            .set(self.victims.fill_pages() * PAGE_BYTES as u64);
        let io = self.store.counts();
        let counters = self.counters();
        counters.reads.set(io.reads.load(Ordering::Relaxed));
        counters
            .read_bytes
            .set(io.read_bytes.load(Ordering::Relaxed));
        counters.writes.set(io.writes.load(Ordering::Relaxed));
        counters
            .write_bytes
            .set(io.write_bytes.load(Ordering::Relaxed));
        self.statistics.sample();
    }
}

fn this_pager() -> &'static Pager {
    match pager() {
        Some(pager) => pager,
        None => fatal!("a paging thread runs without a pager; next: report this"),
    }
}

extern "C" fn evictor(_seat: usize) -> ! {
    let pager = this_pager();
    let mut settled = Settled::default();
    loop {
        pager.wait_for_eviction();
        pager.settle(&mut settled);
        // Frames come first: a bounded part of the mending at a time.
        for _ in 0..TIER_ROUNDS {
            if !pager.tier.as_ref().is_some_and(|tier| tier.wants_drain()) {
                break;
            }
            let mut operation = pager.enter_masked();
            let found = pager.drain_tier(&mut operation.context);
            drop(operation);
            if found == 0 {
                break;
            }
        }
        pager.evict_wanted.store(0, Ordering::SeqCst);
        // A little ahead of the reserve, so that it is not woken for each page.
        while pager.budget.is_short_of(pager.budget.ahead_pages(), false)
            && (pager.budget.owes_pages() || !pager.inline_eviction.now().is_second())
        {
            let mut operation = pager.enter_masked();
            // What is oldest in the tier goes to swap, not what would come to the tier now.
            if pager.tier.as_ref().is_some_and(|tier| tier.is_full()) {
                pager.drain_tier(&mut operation.context);
            }
            let done = pager.evict(
                pager.budget.batch_pages(EVICTION_BATCH),
                &mut operation.context,
            );
            drop(operation);
            pager.budget.made_frames();
            // Who never has enough free frames must learn, too.
            pager.settle(&mut settled);
            pager.budget.settle_share();
            if done == 0 {
                pause(NOTHING_EVICTABLE_NS);
            }
        }
    }
}

extern "C" fn prefetcher(_seat: usize) -> ! {
    let pager = this_pager();
    let mut charged_ns = 0;
    loop {
        let ticket = pager.windows.ticket();
        let mut operation = pager.enter_masked();
        let Some(window) = pager.windows.pop() else {
            drop(operation);
            let cpu_ns = crate::clock::thread_cpu_ns();
            pager.counters().prefetch_cpu_ns.add(cpu_ns - charged_ns);
            charged_ns = cpu_ns;
            pager.windows.sleep(ticket);
            continue;
        };
        pager.prefetch(window, &mut operation.context);
    }
}

extern "C" fn handler(_seat: usize) -> ! {
    let pager = this_pager();
    loop {
        let Some(message) = pager.uffd.receive() else {
            yield_now();
            continue;
        };
        if message.event != EVENT_PAGEFAULT {
            continue;
        }
        let address = message.address as usize & !(PAGE_BYTES - 1);
        let Some(page) = pager.table.page_of(address) else {
            pager.uffd.wake(address, 1);
            continue;
        };
        let mut operation = pager.enter_masked();
        let access = Access {
            write: message.flags & 3 != 0,
            pin: false,
            thread: message.thread,
        };
        pager.resolve(page, access, &mut operation.context);
        drop(operation);
        pager.uffd.wake(address, 1);
    }
}
