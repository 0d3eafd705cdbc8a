// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Chosen pages come into the victim cache (`victim.rs`), or are told to go straight out.
//!
//! Pages side by side are moved, all by one call. A page by itself is copied, and taken away
//! together with others, for each time that the program loses pages its processors flush their
//! TLBs: one that is protected is copied where it is, one that is written is held by a pipe
//! until nobody can write it (`withdraw.rs`).

use std::ops::Range;

use crate::context::{BATCH_PAGES, Context, Scratch};
use crate::copies::slot_of;
use crate::futex::yield_now;
use crate::page::{Entry, Flag, PageIndex, State};
use crate::pager::Pager;
use crate::pipes::HELD_PAGES;
use crate::region::PAGE_BYTES;
use crate::together::{Marks, dirty_in_blocks};
use crate::victim::Span;

/// Pages side by side that are moved to the victim cache though they are clean.
const LEAST_MOVED: usize = 4;
/// Pages that are in the victim cache and in their place for a moment. Charged from the
/// start; the lock on the cache lets one thread do this at a time.
pub const COPIES: usize = 32;

/// Claimed pages that were copied to the victim cache, and are still in their place.
struct Copies {
    pages: [PageIndex; COPIES],
    /// What the pages will be.
    entries: [Entry; COPIES],
    count: usize,
}

/// Where the victim cache has at most one page in so many of DRAM, dirty pages do not go there,
/// but for those that lie side by side.
const SMALL_CACHE_SHARE: i64 = 64;

impl Pager {
    /// Brings claimed pages into the victim cache: those side by side are moved by one call, those
    /// by themselves copied, and the pages that they are copies of freed together. Those that must
    /// go the short way are left, claimed, at the front of the scratch arrays; returns how many.
    pub fn stash(&self, claimed: usize, context: &mut Context) -> usize {
        let teaches = self.victims.target_pages() > 0;
        let welcome = self.tier.as_ref().is_some_and(|tier| tier.has_room());
        let hardly_teaches =
            i64::from(self.victims.target_pages()) <= self.budget.dram_pages() / SMALL_CACHE_SHARE;
        let together = match hardly_teaches {
            true if self.pipes.are_usable() => scattered(context.scratch(), claimed),
            true => dirty_in_blocks(context.scratch(), claimed),
            false => Marks::default(),
        };
        let goes_straight = |at: usize, entry: Entry| match entry.state() {
            _ if !entry.has(Flag::Writable) => true,
            State::Unpacked => true,
            State::Clean => entry.has(Flag::Stream) || !(teaches || welcome),
            _ => together.has(at),
        };
        let entries = &context.scratch().entries[..claimed];
        if (entries.iter().enumerate()).all(|(at, &entry)| goes_straight(at, entry)) {
            return claimed;
        }
        let mut span = loop {
            let span = self.victims.span.lock();
            if span.tail - span.head + claimed as u64 <= self.victims.capacity() {
                break span;
            }
            drop(span);
            // Scratch holds our claims: draining needs a context of its own. Where everybody
            // waits for one there is none, and the pages go the short way.
            let Some(mut other) = self.contexts.try_borrow(&self.budget) else {
                return claimed;
            };
            let drained = self.drain(BATCH_PAGES, &mut other);
            self.contexts.give_back(&other);
            if drained == 0 {
                yield_now();
            }
        };
        let spare = self.buffer(context, 1);
        let scratch = context.scratch();
        let mut copies = Copies {
            pages: [0; COPIES],
            entries: [Entry::new(State::Untouched); COPIES],
            count: 0,
        };
        // Written pages that lie alone: they follow together.
        let mut singles = 0;
        let can_hold = self.pipes.are_usable();
        let mut left = 0;
        let mut at = 0;
        while at < claimed {
            let (page, entry) = (scratch.pages[at], scratch.entries[at]);
            if goes_straight(at, entry) {
                scratch.pages[left] = page;
                scratch.entries[left] = entry;
                left += 1;
                at += 1;
                continue;
            }
            let room = self.victims.until_wrap(span.tail) as usize;
            let follows = |more: usize, joins: &dyn Fn(Entry) -> bool| {
                let next = at + more;
                let entry = scratch.entries[next];
                scratch.pages[next] == page + more as u32
                    && !goes_straight(next, entry)
                    && joins(entry)
            };
            let run_of = |joins: &dyn Fn(Entry) -> bool| {
                let most = (claimed - at).min(room);
                (1..most)
                    .find(|&more| !follows(more, joins))
                    .unwrap_or(most)
            };
            let first = self.victims.position(span.tail);
            let mut run = run_of(&|_| true);
            if run < LEAST_MOVED {
                if entry.is_protected() {
                    self.copy_aside(first, page, entry, spare, &mut copies);
                    if copies.count == COPIES {
                        self.leave_copies(&mut copies, &mut scratch.vectors);
                    }
                    span.tail += 1;
                    at += 1;
                    continue;
                }
                run = run_of(&|entry| entry.state() == State::Dirty);
                if can_hold {
                    let (from, to) = (at..at + run, singles..singles + run);
                    scratch.later_pages[to.clone()].copy_from_slice(&scratch.pages[from.clone()]);
                    scratch.later_entries[to].copy_from_slice(&scratch.entries[from]);
                    singles += run;
                    at += run;
                    continue;
                }
            }
            let moved = self
                .uffd
                .transplant(self.victims.address(first), self.table.address(page), run)
                .pages;
            for step in at..at + moved {
                self.enter_ring(scratch.pages[step], scratch.entries[step], &mut span);
            }
            at += moved;
            if moved < run {
                // This one does not move; it goes the short way, the rest is tried again.
                scratch.pages[left] = scratch.pages[at];
                scratch.entries[left] = scratch.entries[at];
                left += 1;
                at += 1;
            }
        }
        self.leave_copies(&mut copies, &mut scratch.vectors);
        self.stash_singles(singles, left, &mut span, context)
    }

    /// Brings the first `count` of the pages that were left for later, written ones that lie alone,
    /// to the victim cache: a pipe holds them while they are freed together. Those that do not
    /// move are put behind the first `left` of scratch; returns how many there are then.
    fn stash_singles(
        &self,
        count: usize,
        mut left: usize,
        span: &mut Span,
        context: &mut Context,
    ) -> usize {
        let before = left;
        for first in (0..count).step_by(HELD_PAGES) {
            let from = first..(first + HELD_PAGES).min(count);
            let to = left..left + from.len();
            let scratch = context.scratch();
            scratch.pages[to.clone()].copy_from_slice(&scratch.later_pages[from.clone()]);
            scratch.entries[to.clone()].copy_from_slice(&scratch.later_entries[from]);
            let Some(held) = self.hold(to.clone(), context) else {
                left = self.move_singles(to, left, span, context);
                continue;
            };
            let scratch = context.scratch();
            let pages = &scratch.pages[to.clone()];
            self.drop_pages(self.table.address(0), pages, &mut scratch.vectors);
            self.read_held(&held, context);
            drop(held);
            let buffer = self.buffer(context, to.end);
            let mut at = to.start;
            while at < to.end {
                let run = (to.end - at).min(self.victims.until_wrap(span.tail) as usize);
                let place = self.victims.address(self.victims.position(span.tail));
                // SAFETY: inside the buffer, where the pages were read to.
                let contents = unsafe { buffer.add(at * PAGE_BYTES) };
                self.fill_at(place, contents, run, false);
                let scratch = context.scratch();
                for step in at..at + run {
                    self.enter_ring(scratch.pages[step], scratch.entries[step], span);
                }
                at += run;
            }
        }
        if left > before {
            sort_by_page(context, left);
        }
        left
    }

    /// The same where they cannot be held: each is moved by itself.
    fn move_singles(
        &self,
        singles: Range<usize>,
        mut left: usize,
        span: &mut Span,
        context: &mut Context,
    ) -> usize {
        let scratch = context.scratch();
        for at in singles {
            let (page, entry) = (scratch.pages[at], scratch.entries[at]);
            let place = self.victims.address(self.victims.position(span.tail));
            let from = self.table.address(page);
            if self.uffd.transplant(place, from, 1).pages == 1 {
                self.enter_ring(page, entry, span);
            } else {
                scratch.pages[left] = page;
                scratch.entries[left] = entry;
                left += 1;
            }
        }
        left
    }

    /// A claimed page lies at the next position of the victim cache now.
    fn enter_ring(&self, page: PageIndex, entry: Entry, span: &mut Span) {
        let position = self.victims.position(span.tail);
        self.victims.enter(position, page, slot_of(entry));
        self.table
            .publish(page, entry.with_state(State::Victim).with_payload(position));
        span.tail += 1;
    }

    /// Copies a claimed page that is protected to a position of the victim cache, by way of
    /// `spare`, a page of a buffer, if it must be.
    fn copy_aside(
        &self,
        position: u32,
        page: PageIndex,
        entry: Entry,
        spare: *mut u8,
        copies: &mut Copies,
    ) {
        let (to, from) = (self.victims.address(position), self.table.address(page));
        if self.uffd.copy(to, from as *const u8, 1, false).is_err() {
            // The program has made it unreadable meanwhile.
            self.copy_out(from, spare);
            self.fill_at(to, spare, 1, false);
        }
        self.victims.enter(position, page, slot_of(entry));
        let at = copies.count;
        copies.pages[at] = page;
        copies.entries[at] = (entry.unguarded())
            .with_state(State::Victim)
            .with_payload(position);
        copies.count += 1;
    }

    /// Takes away pages that were copied to the victim cache, all at once.
    fn leave_copies(&self, copies: &mut Copies, vectors: &mut [libc::iovec]) {
        let pages = &copies.pages[..copies.count];
        self.drop_pages(self.table.address(0), pages, vectors);
        for (&page, &entry) in pages.iter().zip(&copies.entries) {
            self.table.publish(page, entry);
        }
        copies.count = 0;
    }
}

/// Pages among the first `count` that have few others side by side: those are moved by one call.
fn scattered(scratch: &Scratch, count: usize) -> Marks {
    let mut marks = Marks::default();
    let mut first = 0;
    for run in scratch.pages[..count].chunk_by(|page, next| page + 1 == *next) {
        if run.len() < LEAST_MOVED {
            (first..first + run.len()).for_each(|at| marks.set(at));
        }
        first += run.len();
    }
    marks
}

/// Sorts the first `count` pages of scratch with their entries: runs become one call.
pub fn sort_by_page(context: &mut Context, count: usize) {
    let scratch = context.scratch();
    for at in 1..count {
        let (page, entry): (PageIndex, Entry) = (scratch.pages[at], scratch.entries[at]);
        let mut hole = at;
        while hole > 0 && scratch.pages[hole - 1] > page {
            scratch.pages[hole] = scratch.pages[hole - 1];
            scratch.entries[hole] = scratch.entries[hole - 1];
            hole -= 1;
        }
        scratch.pages[hole] = page;
        scratch.entries[hole] = entry;
    }
}
