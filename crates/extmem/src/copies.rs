// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a page has beside its place in DRAM, a slot of swap or an object of the compressed
//! tier, and what its word says of that when it leaves and comes back.

use std::sync::atomic::Ordering;

use crate::compressed::Handle;
use crate::fatal;
use crate::page::{Entry, Flag, PageIndex, State};
use crate::pager::Pager;
use crate::region::PAGE_BYTES;
use crate::swap::Slot;

/// No slot, handle or position.
pub const NO_PAYLOAD: u32 = u32::MAX;

/// The slot a clean page has.
pub fn slot_of(entry: Entry) -> u32 {
    if entry.state() == State::Clean {
        entry.payload()
    } else {
        NO_PAYLOAD
    }
}

/// The word that a page of the victim cache has in DRAM, by the slot it has.
pub fn from_victim(entry: Entry, slot: u32) -> Entry {
    let state = if slot == NO_PAYLOAD {
        State::Dirty
    } else {
        State::Clean
    };
    entry.with_state(state).with_payload(slot)
}

/// The word of a page that has left DRAM.
pub fn departed(entry: Entry) -> Entry {
    let state = match entry.state() {
        kept @ (State::Untouched | State::Compressed) => kept,
        State::Unpacked => State::Compressed,
        _ => State::Swapped,
    };
    // What was to show whether it is written, and was not, is not expected to be any more.
    let predicted = entry.has(Flag::PredictDirty) && !entry.has_copy();
    entry
        .with_state(state)
        .with(Flag::PredictDirty, predicted)
        .with(Flag::Stream, false)
        .with(Flag::Prefetched, false)
}

impl Pager {
    /// Decompresses a claimed page into a buffer. The object stays.
    pub fn unpack(&self, page: PageIndex, handle: Handle, buffer: *mut u8) {
        let Some(tier) = &self.tier else {
            fatal!(
                "page {:#x} is compressed, but there is no compressed tier; next: report this",
                self.table.address(page)
            );
        };
        // SAFETY: a page of a context's buffer; the claim holds the object.
        if let Err(error) = unsafe { tier.load(handle, buffer) } {
            fatal!("page {:#x}: {error}", self.table.address(page));
        }
    }

    /// Whether pages that are only read keep their objects in the tier: they leave DRAM for
    /// next to nothing then. Not where others must be written out for want of room.
    pub fn keeps_objects(&self) -> bool {
        self.tier.as_ref().is_some_and(|tier| !tier.is_full())
    }

    /// Frees what a page has outside its place in DRAM: a swap slot, or an object of the
    /// compressed tier.
    pub fn free_copy(&self, entry: Entry) {
        match entry.state() {
            State::Clean | State::Swapped => self.free_slots(Slot(entry.payload()), 1),
            State::Unpacked | State::Compressed => {
                if let Some(tier) = &self.tier {
                    tier.free(Handle(entry.payload()));
                }
            }
            _ => {}
        }
    }

    /// The word of a page in DRAM whose copy elsewhere is freed.
    pub fn without_copy(&self, entry: Entry) -> Entry {
        self.free_copy(entry);
        entry.with_state(State::Dirty).with_payload(NO_PAYLOAD)
    }

    /// The tier's DRAM counts: brings the charge up to date.
    pub fn charge_tier(&self) {
        let Some(tier) = &self.tier else { return };
        let now = tier.resident_bytes().div_ceil(PAGE_BYTES) as i64;
        let before = self.tier_pages.swap(now, Ordering::Relaxed);
        if now != before {
            self.budget.charge_overhead(now - before);
        }
    }

    /// Reads a slot and does other work (see [`crate::swap::SwapStore::read_beside`]), or ends
    /// the process naming the page.
    pub fn read_slot(&self, page: PageIndex, slot: Slot, buffer: *mut u8, work: impl FnOnce(bool)) {
        // SAFETY: the buffer is a context's.
        if let Err(error) = unsafe { self.store.read_beside(slot, buffer, 1, work) } {
            fatal!(
                "page {:#x} cannot be read back: {error}",
                self.table.address(page)
            );
        }
    }

    /// Gives swap slots back.
    pub fn free_slots(&self, first: Slot, slots: u32) {
        self.store.free(first, slots);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_leaves_for_its_slot_or_for_nothing() {
        let dirty = Entry::new(State::Dirty).with_payload(7);
        assert_eq!(departed(dirty).state(), State::Swapped);
        assert_eq!(departed(dirty).payload(), 7);
        // Being dirty is no evidence of a write: it may have been loaded so.
        assert!(!departed(dirty).has(Flag::PredictDirty));
        // Not to have been written is evidence.
        let written = dirty.with(Flag::PredictDirty, true);
        assert!(departed(written).has(Flag::PredictDirty));
        for state in [State::Clean, State::Unpacked] {
            assert!(!departed(written.with_state(state)).has(Flag::PredictDirty));
        }
        assert_eq!(
            departed(Entry::new(State::Untouched)).state(),
            State::Untouched
        );
    }
}
