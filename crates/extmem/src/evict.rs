// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Making room: choose, move to the victim cache, write out, free.
//!
//! A page leaves in two steps. First it is moved into the victim cache (still DRAM).
//! When the cache is full enough, its oldest pages are written, many in one write, and
//! their memory is freed. Five kinds of page take the short way, straight out: clean
//! pages of a stream, which nobody will want back soon; pages whose object in the
//! compressed tier was kept; other clean ones while the policy has no use for the cache;
//! dirty ones while it has hardly any (`withdraw.rs`; on kernels without what that takes,
//! those that lie close together, `together.rs`); and pages that the kernel will not move,
//! because a fork shares them or they are not writable. Many of them are freed by one call
//! and one flush of the TLB.

use std::sync::atomic::Ordering;

use crate::compressed::is_zero_page;
use crate::context::{BATCH_PAGES, Context, Scratch};
use crate::copies::{departed, from_victim};
use crate::crowd::CrowdTurns;
use crate::fatal;
use crate::page::{Entry, Flag, PageIndex, State};
use crate::pager::Pager;
use crate::region::PAGE_BYTES;
use crate::stash::sort_by_page;
use crate::statistics::Event;
use crate::swap::{Obstacle, Slot};
use crate::together::Marks;
use crate::turns::Turns;
use crate::victim::{DESERTED, Tenant};

/// Which pages on their way out may go to the compressed tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packs {
    /// None: they come from there.
    None,
    /// Those that would be written; contents of clean ones are not at hand.
    Dirty,
    /// Clean ones too.
    All,
}

/// What a compressed tier holds is not worth asking for where it takes less than one page in
/// so many of DRAM.
const SMALL_TIER_SHARE: i64 = 16;

/// Frames taken in a turn of one way of eviction: more than what the evictor keeps free.
const TURN_FRAMES: u32 = 2048;

/// The evictor and the threads that need frames make room in turns.
///
/// The evictor's work costs the program nothing where it runs beside it, and reads and
/// writes at the same time. But each page that it moves is flushed from the TLBs of all
/// processors where the program runs, by an interrupt, which a virtual machine pays for
/// twice; a thread that moves pages itself has no TLB to flush but its own, as long as it
/// is the only one. Where the difference is small the evictor has the work, for its turns
/// are more even.
pub fn who_evicts() -> CrowdTurns {
    CrowdTurns::new(|| Turns::new(TURN_FRAMES, true, 900))
}

impl Pager {
    /// One batch of work towards free frames. Returns pages that moved a step; 0 means
    /// that nothing could be done just now.
    pub fn evict(&self, want: usize, context: &mut Context) -> usize {
        let want = want.clamp(1, BATCH_PAGES);
        let drains = self.victims.drains();
        let (idle, target) = (
            self.victims.idle_pages(),
            u64::from(self.victims.target_pages()),
        );
        if idle >= target {
            let drained = self.drain(want, context);
            if drained > 0 {
                return drained;
            }
        }
        // Others empty it. To move ever more pages in frees no frame, and takes pages from
        // the program that it uses.
        if self.victims.fill_pages() >= overflow_of(target) {
            self.victims.wait_for_drain(drains);
            return 0;
        }
        let given_up = self.give_up_objects(want, context);
        if given_up > 0 {
            return given_up;
        }
        let claimed = self.claim_victims(want, context);
        if claimed == 0 {
            // Everything left in DRAM may be in the victim cache, or pinned.
            return self.drain(want, context);
        }
        sort_by_page(context, claimed);
        let direct = self.stash(claimed, context);
        self.evict_directly(direct, context);
        claimed
    }

    /// Whether the victim cache has twice what it should have, and more comes to nothing.
    pub fn victims_overflow(&self) -> bool {
        self.victims.fill_pages() >= overflow_of(u64::from(self.victims.target_pages()))
    }

    /// Frees objects of the compressed tier whose pages will stay in DRAM: they would be of use
    /// only when those leave. Returns how many.
    fn give_up_objects(&self, want: usize, context: &mut Context) -> usize {
        let tier_pages = self.tier_pages.load(Ordering::Relaxed);
        if tier_pages < self.budget.dram_pages() / SMALL_TIER_SHARE {
            return 0;
        }
        let staying = &mut context.scratch().chosen[..want];
        let count = self.policy.staying(staying);
        let mut given_up = 0;
        for &page in &staying[..count] {
            let entry = self.table.load(page);
            if entry.state() == State::Unpacked && self.table.claim(page, entry) {
                self.give_up_object(page, entry);
                given_up += 1;
            }
        }
        if given_up > 0 {
            self.counters().objects_given_up.add(given_up as u64);
            self.charge_tier();
        }
        given_up
    }

    /// Frees what the compressed tier has of a claimed page that is in DRAM, too, and ends the
    /// claim.
    pub fn give_up_object(&self, page: PageIndex, entry: Entry) {
        let entry = self.without_copy(entry).with_state(State::Guarded);
        self.table.publish(page, entry);
    }

    /// Claims up to `want` pages into `scratch.pages` / `entries`.
    fn claim_victims(&self, want: usize, context: &mut Context) -> usize {
        let scratch = context.scratch();
        let mut claimed = 0;
        // Pages in use go back when others are found: the policy might name them again.
        let mut back = 0;
        while claimed == 0 && back < BATCH_PAGES {
            let first = back;
            let end = (first + want).min(BATCH_PAGES);
            let chosen = self.policy.choose(&mut scratch.chosen[first..end]);
            if chosen == 0 {
                break;
            }
            for &page in &scratch.chosen[first..first + chosen] {
                self.table.fetch(page);
            }
            for at in first..first + chosen {
                let page = scratch.chosen[at];
                let entry = self.table.load(page);
                if entry.is_evictable() && self.table.claim(page, entry) {
                    scratch.pages[claimed] = page;
                    scratch.entries[claimed] = entry;
                    claimed += 1;
                } else if (entry.is_resident() || entry.state() == State::Busy)
                    && !entry.has(Flag::Locked)
                {
                    scratch.chosen[back] = page;
                    back += 1;
                }
            }
        }
        if back > 0 {
            self.policy.returned(&scratch.chosen[..back]);
        }
        claimed
    }

    /// Frees the memory of deserted positions of the victim cache, unless that was done.
    pub fn free_deserted(&self, positions: &mut [u32; DESERTED], context: &mut Context) {
        let vectors = &mut context.scratch().vectors;
        // While it is held no position is filled again.
        let span = self.victims.span.lock();
        let mut count = 0;
        for at in 0..DESERTED {
            if self.victims.tenant(positions[at]) == Tenant::Stale {
                positions[count] = positions[at];
                count += 1;
            }
        }
        let positions = &mut positions[..count];
        positions.sort_unstable();
        self.drop_pages(self.victims.address(0), positions, vectors);
        let freed = positions
            .iter()
            .filter(|&&position| self.victims.clear_deserted(position))
            .count();
        drop(span);
        self.budget.give(freed as i64);
    }

    /// Empties the oldest positions of the victim cache. Returns positions freed; 0 if
    /// other threads are at all of them, or the cache is empty.
    pub fn drain(&self, want: usize, context: &mut Context) -> usize {
        let Some((number, count)) = self.victims.take_oldest(want) else {
            return 0;
        };
        let first = self.victims.position(number);
        let (live, physical) = self.claim_tenants(first, count, context);
        self.write_out(live, Packs::All, context, |victims, at| victims.address(at));
        let scratch = context.scratch();
        for at in 0..live {
            let (page, entry) = (scratch.pages[at], scratch.entries[at]);
            self.table.publish(page, departed(entry));
        }
        self.policy.evicted(&scratch.pages[..live]);
        self.size_victim_cache();
        self.drop_memory(self.victims.address(first), count);
        self.victims.emptied(number, count);
        self.budget.give(physical as i64);
        count
    }

    /// Claims the pages whose contents lie at the positions. Returns how many, and how
    /// many positions hold memory. An entry's payload becomes the slot with the same
    /// contents, its state what the page was: clean or dirty.
    fn claim_tenants(&self, first: u32, count: usize, context: &mut Context) -> (usize, usize) {
        let scratch = context.scratch();
        let (mut live, mut physical) = (0, 0);
        for position in first..first + count as u32 {
            loop {
                let page = match self.victims.tenant(position) {
                    Tenant::Hole => break,
                    Tenant::Stale => {
                        physical += usize::from(self.victims.clear_deserted(position));
                        break;
                    }
                    Tenant::Page(page) => page,
                };
                let entry = self.table.load(page);
                if entry.state() == State::Victim && entry.payload() == position {
                    if self.table.claim(page, entry) {
                        scratch.pages[live] = page;
                        scratch.entries[live] = from_victim(entry, self.victims.slot(position));
                        scratch.positions[live] = position;
                        live += 1;
                        physical += 1;
                        break;
                    }
                } else if entry.state() == State::Busy {
                    // Its owner is copying it out, or throwing it away.
                    self.table.wait(page, entry);
                }
            }
        }
        (live, physical)
    }

    /// Gives every dirty page among the first `count` of scratch a slot with its contents,
    /// or a place in the compressed tier, or neither, if it is all zero. `place` says where
    /// the contents of a position lie.
    pub fn write_out(
        &self,
        count: usize,
        packs: Packs,
        context: &mut Context,
        place: impl Fn(&crate::victim::VictimCache, u32) -> usize,
    ) {
        let scratch = context.scratch();
        let mut dirty = 0;
        let mut packed = 0;
        for at in 0..count {
            let entry = scratch.entries[at];
            let is_dirty = entry.state() == State::Dirty;
            // A clean page could be dropped, but while there is room for it in the tier it
            // will be back from there ten times sooner.
            let is_welcome =
                packs == Packs::All && self.tier.as_ref().is_some_and(|tier| tier.has_room());
            if !is_dirty && (!is_welcome || entry.has(Flag::Stream)) {
                continue;
            }
            let contents = place(&self.victims, scratch.positions[at]);
            // SAFETY: a claimed page's contents, present and ours.
            if is_dirty && unsafe { is_zero_page(contents as *const u8) } {
                scratch.entries[at] = entry.with_state(State::Untouched);
                continue;
            }
            if packs != Packs::None
                && let Some(tier) = &self.tier
                // SAFETY: as above.
                && let Some(handle) = unsafe { tier.store(scratch.pages[at], contents as *const u8) }
            {
                if !is_dirty {
                    self.free_slots(Slot(entry.payload()), 1);
                }
                scratch.entries[at] = departed(entry)
                    .with_state(State::Compressed)
                    .with_payload(handle.0);
                packed += 1;
                continue;
            }
            if !is_dirty {
                continue;
            }
            scratch.vectors[dirty] = libc::iovec {
                iov_base: contents as *mut _,
                iov_len: PAGE_BYTES,
            };
            scratch.chosen[dirty] = at as u32;
            dirty += 1;
        }
        let mut done = 0;
        while done < dirty {
            let Some((slot, run)) = self.store.allocate((dirty - done) as u32) else {
                let page = scratch.pages[scratch.chosen[done] as usize];
                self.swap_is_full(self.table.address(page));
            };
            let run = run as usize;
            let vectors = merge(&mut scratch.vectors[done..done + run]);
            // SAFETY: page-aligned memory that stays ours until the call returns.
            if let Err(error) = unsafe { self.store.write(slot, vectors) } {
                fatal!(
                    "page {:#x} cannot be written: {error}",
                    self.table
                        .address(scratch.pages[scratch.chosen[done] as usize])
                );
            }
            for step in 0..run {
                let at = scratch.chosen[done + step] as usize;
                // Dirty with a slot: `departed` remembers that it was dirty.
                scratch.entries[at] = scratch.entries[at].with_payload(slot.0 + step as u32);
            }
            done += run;
        }
        let table_pages = self.store.grown_pages();
        if table_pages > 0 {
            self.budget.charge_overhead(table_pages.into());
        }
        let counters = self.counters();
        counters.evicted_dirty_pages.add(dirty as u64);
        counters.evicted_compressed_pages.add(packed as u64);
        counters
            .evicted_clean_pages
            .add((count - dirty - packed) as u64);
        if packed > 0 {
            self.charge_tier();
        }
        if self.log.is_some() {
            for at in 0..count {
                let detail = match scratch.entries[at].state() {
                    State::Dirty => 1,
                    State::Compressed => 2,
                    _ => 0,
                };
                self.note(Event::Evict, scratch.pages[at], detail);
            }
        }
    }

    /// The short way for the first `count` claimed pages of scratch.
    fn evict_directly(&self, count: usize, context: &mut Context) {
        if count == 0 {
            return;
        }
        let held = self.hold(0..count, context);
        let scratch = context.scratch();
        for at in 0..count {
            scratch.entries[at] = scratch.entries[at].unguarded();
            scratch.positions[at] = at as u32;
        }
        match held {
            Some(held) => {
                self.copy_rest(&held.marks, count, context);
                let scratch = context.scratch();
                self.drop_pages(
                    self.table.address(0),
                    &scratch.pages[..count],
                    &mut scratch.vectors,
                );
                self.read_held(&held, context);
            }
            None => self.take_protected(count, context),
        }
        let written = written_among(context.scratch(), count);
        let buffer = self.buffer(context, written);
        self.write_out(count, Packs::Dirty, context, |_, at| {
            buffer as usize + at as usize * PAGE_BYTES
        });
        let scratch = context.scratch();
        for at in 0..count {
            self.table
                .publish(scratch.pages[at], departed(scratch.entries[at]));
        }
        self.policy.evicted(&scratch.pages[..count]);
        self.size_victim_cache();
        self.budget.give(count as i64);
    }

    /// Copies those dirty pages among the first `count` of scratch that are not marked into the
    /// context's buffer, each to its position there, one by one. They are protected then.
    pub fn copy_rest(&self, marks: &Marks, count: usize, context: &mut Context) {
        let written = written_among(context.scratch(), count);
        let buffer = self.buffer(context, written);
        let scratch = context.scratch();
        for at in 0..count {
            if scratch.entries[at].state() == State::Dirty && !marks.has(at) {
                let address = self.table.address(scratch.pages[at]);
                // The program could still write to it: no longer.
                if let Err(errno) = self.uffd.protect(address, 1, true) {
                    fatal!("cannot protect page {address:#x} (error {errno}); next: report this");
                }
                // SAFETY: one page of the context's buffer.
                self.copy_out(address, unsafe { buffer.add(at * PAGE_BYTES) });
            }
        }
    }

    #[cold]
    fn swap_is_full(&self, address: usize) -> ! {
        match self.store.obstacle() {
            Some(Obstacle::Disk) => fatal!(
                "the disk under the swap file is full while writing page {address:#x}; next: free some space there, or name another place"
            ),
            Some(Obstacle::Limit) => fatal!(
                "the limit on the size of files (ulimit -f) keeps swap from growing while writing page {address:#x}; next: raise that limit, or name a block device"
            ),
            Some(Obstacle::Node) => fatal!(
                "the memory node for swap is full while writing page {address:#x}; next: free memory of that node, or name another place beside it"
            ),
            None => {}
        }
        fatal!(
            "swap is full ({} MiB for all programs of the run, and of others that swap there) while writing page {address:#x}; next: give more by --swap-size, name another place, or run fewer programs at a time",
            self.store.capacity_slots() / 256
        );
    }
}

/// Pages of a buffer that has room for each dirty one among the first `count`, by position.
fn written_among(scratch: &Scratch, count: usize) -> usize {
    let last = (scratch.entries[..count].iter()).rposition(|entry| entry.state() == State::Dirty);
    last.map_or(0, |last| last + 1)
}

/// More than a victim cache of this size should hold.
fn overflow_of(target_pages: u64) -> u64 {
    2 * target_pages + BATCH_PAGES as u64
}

/// Joins vectors that touch; returns the shorter list, in place.
fn merge(vectors: &mut [libc::iovec]) -> &[libc::iovec] {
    let mut last = 0;
    for at in 1..vectors.len() {
        let end = vectors[last].iov_base as usize + vectors[last].iov_len;
        if end == vectors[at].iov_base as usize {
            vectors[last].iov_len += vectors[at].iov_len;
        } else {
            last += 1;
            vectors[last] = vectors[at];
        }
    }
    let used = if vectors.is_empty() { 0 } else { last + 1 };
    &vectors[..used]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(base: usize, len: usize) -> libc::iovec {
        libc::iovec {
            iov_base: base as *mut _,
            iov_len: len,
        }
    }

    #[test]
    fn touching_vectors_become_one() {
        let mut vectors = [
            vector(0x1000, 0x1000),
            vector(0x2000, 0x1000),
            vector(0x8000, 0x1000),
            vector(0x9000, 0x2000),
        ];
        let merged = merge(&mut vectors);
        assert_eq!(merged.len(), 2);
        assert_eq!(merged[0].iov_len, 0x2000);
        assert_eq!(merged[1].iov_base as usize, 0x8000);
        assert_eq!(merged[1].iov_len, 0x3000);
        assert!(merge(&mut []).is_empty());
    }
}
