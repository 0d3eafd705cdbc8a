// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The page table of the arena: one atomic word a page.
//!
//! Whoever wants to change what a page is first makes it `Busy` with one
//! compare-and-swap; from then on the page is theirs until they store the next
//! state. Threads that meet a busy page sleep on its word.
//!
//! A word takes DRAM from the program, so one is written only for a page that somebody has
//! touched: of a block in which no word was ever written, a bit says what they all stand for
//! (see [`PageTable::map_fresh`]).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use demeter_extmem_policy::fetch_line;

use crate::futex;
use crate::region::{PAGE_BYTES, Region, carved_bytes};

/// Page number inside the arena.
pub type PageIndex = u32;

/// Where a page's contents are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Not handed out: reserved address space.
    Unmapped = 0,
    /// All zero, never touched since it was handed out or dropped.
    Untouched = 1,
    /// Somebody is changing it.
    Busy = 2,
    /// In DRAM, write-protected, and the same in its swap slot.
    Clean = 3,
    /// In DRAM only.
    Dirty = 4,
    /// In its swap slot only.
    Swapped = 5,
    /// In the compressed tier only.
    Compressed = 6,
    /// In the victim cache: in DRAM, but not mapped at its address.
    Victim = 7,
    /// A mapping the pager does not manage lies here (a file inside the arena).
    Foreign = 8,
    /// In DRAM, write-protected, and the same in the compressed tier.
    Unpacked = 9,
    /// In DRAM only, like a dirty page, but still write-protected since its copy was given up:
    /// to lift that would flush the TLBs of all processors, for a page that may only be read.
    Guarded = 10,
}

/// The value of a page's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry(u64);

const STATE_MASK: u64 = 0xf;
const PINS_SHIFT: u32 = 8;
const PINS_MASK: u64 = 0xff << PINS_SHIFT;
const PINS_MAX: u64 = 0xff;
const PAYLOAD_SHIFT: u32 = 32;

/// A bit that a page carries from state to state.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
pub enum Flag {
    /// Is expected to be written when it is back in DRAM: load it writable, spare the second
    /// fault (`forecast.rs`).
    PredictDirty = 1 << 4,
    /// Brought by prefetch and not known to be used yet.
    Prefetched = 1 << 5,
    /// Part of a stream: not worth a place in the victim cache.
    Stream = 1 << 6,
    /// Must stay in DRAM until unlocked (mlock, alternate stacks).
    Locked = 1 << 7,
    /// The program may read or write it: it counts as promised.
    Accessible = 1 << 16,
    /// The program may write it.
    Writable = 1 << 17,
}

impl Entry {
    /// A page of a mapping that may be read and written, which nobody has touched yet.
    pub const FRESH: Self =
        Self(State::Untouched as u64 | Flag::Accessible as u64 | Flag::Writable as u64);

    /// An entry of nothing but a state.
    pub const fn new(state: State) -> Self {
        Self(state as u64)
    }

    /// The state.
    pub fn state(self) -> State {
        match self.0 & STATE_MASK {
            0 => State::Unmapped,
            1 => State::Untouched,
            2 => State::Busy,
            3 => State::Clean,
            4 => State::Dirty,
            5 => State::Swapped,
            6 => State::Compressed,
            7 => State::Victim,
            8 => State::Foreign,
            9 => State::Unpacked,
            _ => State::Guarded,
        }
    }

    /// The same page in another state.
    #[must_use]
    pub fn with_state(self, state: State) -> Self {
        Self((self.0 & !STATE_MASK) | state as u64)
    }

    /// In DRAM, write-protected, and the same elsewhere: it may leave without being written.
    pub fn has_copy(self) -> bool {
        matches!(self.state(), State::Clean | State::Unpacked)
    }

    /// In DRAM, and a write to it is a fault.
    pub fn is_protected(self) -> bool {
        self.has_copy() || self.state() == State::Guarded
    }

    /// The same for who takes the page away from its place, and its protection with it. It was
    /// not written while it was there.
    #[must_use]
    pub fn unguarded(self) -> Self {
        if self.state() == State::Guarded {
            self.with_state(State::Dirty)
                .with(Flag::PredictDirty, false)
        } else {
            self
        }
    }

    /// In swap or compressed.
    pub fn is_out(self) -> bool {
        matches!(self.state(), State::Swapped | State::Compressed)
    }

    /// Slot, handle or ring position, by state.
    pub fn payload(self) -> u32 {
        (self.0 >> PAYLOAD_SHIFT) as u32
    }

    /// The same with another payload.
    #[must_use]
    pub fn with_payload(self, payload: u32) -> Self {
        Self((self.0 & 0xffff_ffff) | u64::from(payload) << PAYLOAD_SHIFT)
    }

    /// Whether the flag is set.
    pub fn has(self, flag: Flag) -> bool {
        self.0 & flag as u64 != 0
    }

    /// The same with the flag set or not.
    #[must_use]
    pub fn with(self, flag: Flag, on: bool) -> Self {
        if on {
            Self(self.0 | flag as u64)
        } else {
            Self(self.0 & !(flag as u64))
        }
    }

    /// System calls in flight that use the page.
    pub fn pins(self) -> u64 {
        (self.0 & PINS_MASK) >> PINS_SHIFT
    }

    /// One more pin. The highest count sticks: such a page stays for good.
    #[must_use]
    pub fn pinned(self) -> Self {
        if self.pins() == PINS_MAX {
            self
        } else {
            Self(self.0 + (1 << PINS_SHIFT))
        }
    }

    /// One pin less.
    #[must_use]
    pub fn unpinned(self) -> Self {
        match self.pins() {
            0 | PINS_MAX => self,
            _ => Self(self.0 - (1 << PINS_SHIFT)),
        }
    }

    /// No pins.
    #[must_use]
    pub fn without_pins(self) -> Self {
        Self(self.0 & !PINS_MASK)
    }

    /// In DRAM and mapped.
    pub fn is_resident(self) -> bool {
        self.is_protected() || self.state() == State::Dirty
    }

    /// May leave DRAM now.
    pub fn is_evictable(self) -> bool {
        self.is_resident() && self.pins() == 0 && !self.has(Flag::Locked)
    }
}

/// The word of a page that is unmapped and was not always. No entry is stored as this.
const UNMAPPED_AGAIN: u64 = 1 << 18;

/// Pages of a block that can be reserved, or fresh: those whose words share a page of the
/// table.
pub const BLOCK_PAGES: u32 = WORDS as u32;
/// Words in a page of the table.
const WORDS: usize = PAGE_BYTES / size_of::<AtomicU64>();

/// A word of the block was written, or is about to be. Once set it stays.
const USED: u64 = 1;
/// A word of zero is a fresh page; without, it is an unmapped one. Once the block is used it
/// stays as it is, so that what a word of zero means does not change under who writes the first.
const FRESH: u64 = 2;
/// Blocks whose bits share a word.
const BLOCKS: usize = 32;

/// The words of all pages.
#[derive(Debug)]
pub struct PageTable {
    base: usize,
    entries: &'static [AtomicU64],
    /// Two bits for each page of the table, [`USED`] and [`FRESH`].
    blocks: &'static [AtomicU64],
    /// One bit for each page of the table whose pages are all reserved: handed out, and not
    /// accessible. They are unmapped by their words.
    reserved: &'static [AtomicU64],
    /// Pages of the table that were written for the first time since somebody last asked.
    newly_used: AtomicU32,
    sleepers: AtomicU32,
}

impl PageTable {
    /// Bytes of address space for `pages` words.
    pub fn footprint_bytes(pages: usize) -> usize {
        carved_bytes::<AtomicU64>(pages)
            + carved_bytes::<AtomicU64>(words_of_bits(pages, BLOCKS))
            + carved_bytes::<AtomicU64>(words_of_bits(pages, 64))
    }

    /// A table for the arena at `base`.
    pub fn new(base: usize, pages: usize, mut region: Region) -> Option<Self> {
        Some(Self {
            base,
            // SAFETY: zero is an AtomicU64.
            entries: unsafe { region.carve::<AtomicU64>(pages) }?,
            // SAFETY: as above.
            blocks: unsafe { region.carve::<AtomicU64>(words_of_bits(pages, BLOCKS)) }?,
            // SAFETY: as above.
            reserved: unsafe { region.carve::<AtomicU64>(words_of_bits(pages, 64)) }?,
            newly_used: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
        })
    }

    /// Pages of the arena.
    pub fn pages(&self) -> usize {
        self.entries.len()
    }

    /// Address of a page.
    pub fn address(&self, page: PageIndex) -> usize {
        self.base + page as usize * PAGE_BYTES
    }

    /// The page that holds an address of the arena.
    pub fn page_of(&self, address: usize) -> Option<PageIndex> {
        let page = address.checked_sub(self.base)? / PAGE_BYTES;
        (page < self.entries.len()).then_some(page as PageIndex)
    }

    /// The page's word.
    pub fn load(&self, page: PageIndex) -> Entry {
        match self.entries[page as usize].load(Ordering::SeqCst) {
            0 => meaning_of_zero(self.bits_of(page as usize / WORDS)),
            UNMAPPED_AGAIN => UNMAPPED,
            word => Entry(word),
        }
    }

    /// The page's word will be wanted in a moment.
    pub fn fetch(&self, page: PageIndex) {
        if let Some(entry) = self.entries.get(page as usize) {
            fetch_line(entry);
        }
    }

    /// Replaces the word if it is still `old`.
    pub fn change(&self, page: PageIndex, old: Entry, new: Entry) -> bool {
        self.change_word(page, stored(old), new) || self.change_first(page, old, new)
    }

    fn change_word(&self, page: PageIndex, old: u64, new: Entry) -> bool {
        self.entries[page as usize]
            .compare_exchange(old, stored(new), Ordering::SeqCst, Ordering::Relaxed)
            .is_ok()
    }

    /// The same of a word that was never written. Only who has taken the place of an unmapped
    /// page changes its word.
    fn change_first(&self, page: PageIndex, old: Entry, new: Entry) -> bool {
        let block = page as usize / WORDS;
        let is_zero = self.entries[page as usize].load(Ordering::SeqCst) == 0;
        if !is_zero || old != meaning_of_zero(self.bits_of(block)) {
            return false;
        }
        // What zero means is sure only once the block is used: it may just have been unmapped.
        old == meaning_of_zero(self.mark_used(block)) && self.change_word(page, 0, new)
    }

    /// Makes the page busy if its word is still `old`.
    pub fn claim(&self, page: PageIndex, old: Entry) -> bool {
        self.change(page, old, old.with_state(State::Busy))
    }

    /// Ends a claim: only for the thread that made the page busy.
    pub fn publish(&self, page: PageIndex, entry: Entry) {
        self.entries[page as usize].store(stored(entry), Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // SAFETY: the word lives as long as the process.
            unsafe { futex::wake_at(self.low_half(page), futex::ALL) };
        }
    }

    /// Sleeps while the page's word is `seen` (or a little longer).
    pub fn wait(&self, page: PageIndex, seen: Entry) {
        for _ in 0..200 {
            if self.load(page) != seen {
                return;
            }
            std::hint::spin_loop();
        }
        // A bound on the sleep, so that a relative killed in the middle of a
        // claim shows up as a busy loop in a profile and not as silence.
        const MOST_NS: u32 = 50_000_000;
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the word lives as long as the process.
        unsafe { futex::wait_at(self.low_half(page), seen.0 as u32, Some(MOST_NS)) };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// The page's word, as soon as nobody is changing it.
    pub fn settled(&self, page: PageIndex) -> Entry {
        loop {
            let entry = self.load(page);
            if entry.state() != State::Busy {
                return entry;
            }
            self.wait(page, entry);
        }
    }

    /// Waits until the page is not busy and claims it, whatever it is.
    pub fn seize(&self, page: PageIndex) -> Entry {
        loop {
            let entry = self.load(page);
            if entry.state() == State::Busy {
                self.wait(page, entry);
            } else if self.claim(page, entry) {
                return entry;
            }
        }
    }

    /// Notes that a word of a block is about to be written. Returns its bits from before.
    fn mark_used(&self, block: usize) -> u64 {
        let before = self.bits_of(block);
        if before & USED != 0 {
            return before;
        }
        let (word, shift) = self.bits_at(block);
        let before = word.fetch_or(USED << shift, Ordering::SeqCst) >> shift & (USED | FRESH);
        if before & USED == 0 {
            self.newly_used.fetch_add(1, Ordering::Relaxed);
        }
        before
    }

    /// Pages of the table that are in use and were not when this was last asked.
    pub fn take_newly_used(&self) -> u32 {
        match self.newly_used.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.newly_used.swap(0, Ordering::Relaxed),
        }
    }

    /// Makes the block that starts with a page a mapping of fresh pages, without its words.
    /// False if they were written before. The caller has taken the whole block, and nothing is
    /// mapped there.
    pub fn map_fresh(&self, first: PageIndex) -> bool {
        self.change_unused(first, 0, FRESH)
    }

    /// Makes the pages of a block that are all fresh unmapped ones. False if they are not, or
    /// any of their words was ever written.
    pub fn unmap_fresh(&self, first: PageIndex) -> bool {
        self.change_unused(first, FRESH, 0)
    }

    fn change_unused(&self, first: PageIndex, from: u64, to: u64) -> bool {
        debug_assert!(first.is_multiple_of(BLOCK_PAGES));
        let (word, shift) = self.bits_at(first as usize / WORDS);
        let mask = (USED | FRESH) << shift;
        word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |bits| {
            (bits & mask == from << shift).then_some(bits & !mask | to << shift)
        })
        .is_ok()
    }

    fn bits_at(&self, block: usize) -> (&AtomicU64, usize) {
        (&self.blocks[block / BLOCKS], block % BLOCKS * 2)
    }

    fn bits_of(&self, block: usize) -> u64 {
        let (word, shift) = self.bits_at(block);
        word.load(Ordering::SeqCst) >> shift & (USED | FRESH)
    }

    /// Whether something was ever mapped in a block, or is.
    fn is_known(&self, block: usize) -> bool {
        self.bits_of(block) != 0
    }

    /// Reserves blocks of [`BLOCK_PAGES`] whose pages are unmapped.
    pub fn reserve(&self, first: PageIndex, count: u32) {
        self.each_reserved_word(first, count, |word, mask| {
            word.fetch_or(mask, Ordering::SeqCst);
        });
    }

    /// The blocks are not reserved any more.
    pub fn unreserve(&self, first: PageIndex, count: u32) {
        self.each_reserved_word(first, count, |word, mask| {
            word.fetch_and(!mask, Ordering::SeqCst);
        });
    }

    fn each_reserved_word(&self, first: PageIndex, count: u32, work: impl Fn(&AtomicU64, u64)) {
        debug_assert!(first.is_multiple_of(BLOCK_PAGES) && count.is_multiple_of(BLOCK_PAGES));
        let (mut block, end) = (first / BLOCK_PAGES, (first + count) / BLOCK_PAGES);
        while block < end {
            let here = (end - block).min(64 - block % 64);
            let ones = if here == 64 { !0 } else { (1 << here) - 1 };
            work(&self.reserved[block as usize / 64], ones << (block % 64));
            block += here;
        }
    }

    /// Whether the page is reserved.
    pub fn is_reserved(&self, page: PageIndex) -> bool {
        let block = page / BLOCK_PAGES;
        self.reserved[block as usize / 64].load(Ordering::SeqCst) >> (block % 64) & 1 == 1
    }

    /// One past the last page from `page` on, before `end`, that is reserved (or not, as
    /// `reserved` says). So is `page` itself, as the caller has found: who looked again might
    /// find a block that another thread has just made something else, and those behind it.
    pub fn alike_until(&self, page: PageIndex, end: PageIndex, reserved: bool) -> PageIndex {
        let last = end.div_ceil(BLOCK_PAGES);
        let mut block = page / BLOCK_PAGES + 1;
        while block < last {
            let word = self.reserved[block as usize / 64].load(Ordering::SeqCst);
            let ahead = (if reserved { !word } else { word }) >> (block % 64);
            let alike = ahead.trailing_zeros().min(64 - block % 64);
            block += alike;
            if ahead != 0 {
                break;
            }
        }
        // The last block of the arena may end behind the last number.
        block.saturating_mul(BLOCK_PAGES).min(end)
    }

    /// The pages of a range in blocks where something was ever mapped, in runs.
    pub fn known_runs(
        &self,
        first: PageIndex,
        end: PageIndex,
        mut work: impl FnMut(PageIndex, u32),
    ) {
        let is_known = |page: PageIndex| self.is_known(page as usize / WORDS);
        let after = |page: PageIndex| (page / BLOCK_PAGES + 1).saturating_mul(BLOCK_PAGES);
        let mut page = first;
        while page < end {
            let start = page;
            while page < end && is_known(page) {
                page = after(page).min(end);
            }
            if page > start {
                work(start, page - start);
            } else {
                page = after(page).min(end);
            }
        }
    }

    /// Ranges of pages in blocks where something was ever mapped, in order.
    pub fn known_ranges(&self) -> impl Iterator<Item = std::ops::Range<PageIndex>> + '_ {
        let blocks = self.entries.len().div_ceil(WORDS);
        let mut next = 0;
        std::iter::from_fn(move || {
            while next < blocks && !self.is_known(next) {
                // Whole words of unknown blocks go in one step.
                let empty = next.is_multiple_of(BLOCKS)
                    && self.blocks[next / BLOCKS].load(Ordering::Relaxed) == 0;
                next += if empty { BLOCKS } else { 1 };
            }
            if next >= blocks {
                return None;
            }
            let first = next;
            while next < blocks && self.is_known(next) {
                next += 1;
            }
            let end = (next * WORDS).min(self.entries.len());
            Some((first * WORDS) as PageIndex..end as PageIndex)
        })
    }

    /// In the child of a fork nobody sleeps.
    pub fn reset_sleepers(&self) {
        self.sleepers.store(0, Ordering::SeqCst);
    }

    /// The kernel's futex is 32 bits: the low half, where the state is.
    fn low_half(&self, page: PageIndex) -> *const u32 {
        self.entries[page as usize].as_ptr() as *const u32
    }
}

const UNMAPPED: Entry = Entry::new(State::Unmapped);

/// The word of an entry. Zero is left to words that were never written.
fn stored(entry: Entry) -> u64 {
    match entry {
        UNMAPPED => UNMAPPED_AGAIN,
        entry => entry.0,
    }
}

/// What a word that was never written stands for, by the bits of its block.
fn meaning_of_zero(bits: u64) -> Entry {
    if bits & FRESH == 0 {
        UNMAPPED
    } else {
        Entry::FRESH
    }
}

fn words_of_bits(pages: usize, blocks: usize) -> usize {
    pages.div_ceil(WORDS).div_ceil(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_keeps_its_parts_apart() {
        let entry = Entry::new(State::Untouched)
            .with_payload(0xdead_beef)
            .with(Flag::Locked, true)
            .pinned()
            .with_state(State::Dirty);
        assert_eq!(entry.state(), State::Dirty);
        assert_eq!(entry.payload(), 0xdead_beef);
        assert_eq!(entry.pins(), 1);
        assert!(entry.has(Flag::Locked) && !entry.has(Flag::Stream));
        assert!(!entry.is_evictable());
        let free = entry.unpinned().with(Flag::Locked, false);
        assert!(free.is_evictable());
        assert_eq!(free.payload(), 0xdead_beef);
    }

    #[test]
    fn a_guarded_page_is_protected_and_has_no_copy() {
        let guarded = Entry::FRESH.with_state(State::Guarded);
        assert!(guarded.is_evictable() && guarded.is_protected() && !guarded.has_copy());
        assert_eq!(guarded.unguarded(), Entry::FRESH.with_state(State::Dirty));
        let unpacked = Entry::FRESH.with_state(State::Unpacked);
        assert!(unpacked.is_protected() && unpacked.unguarded() == unpacked);
    }

    #[test]
    fn the_highest_pin_count_sticks() {
        let mut entry = Entry::new(State::Dirty);
        for _ in 0..300 {
            entry = entry.pinned();
        }
        assert_eq!(entry.pins(), PINS_MAX);
        assert_eq!(entry.unpinned().pins(), PINS_MAX);
        assert_eq!(entry.state(), State::Dirty);
    }

    fn table_of(pages: usize) -> PageTable {
        let region = Region::map_anonymous(PageTable::footprint_bytes(pages)).unwrap();
        PageTable::new(0x1000, pages, region).unwrap()
    }

    #[test]
    fn table_pages_are_counted_once() {
        let pages = 300 * WORDS + 5;
        let block = WORDS as u32;
        let table = table_of(pages);
        assert_eq!(table.known_ranges().count(), 0);
        let map = |page| {
            let old = table.seize(page);
            assert_eq!(old, UNMAPPED);
            table.publish(page, Entry::new(State::Untouched));
        };
        for page in [10, 11, block, 200 * block, 300 * block] {
            map(page);
        }
        assert_eq!(table.take_newly_used(), 4);
        map(0);
        assert_eq!(table.take_newly_used(), 0);
        let mut runs = Vec::new();
        table.known_runs(5, 250 * block + 9, |first, count| runs.push((first, count)));
        assert_eq!(runs, [(5, 2 * block - 5), (200 * block, block)]);
        let ranges: Vec<_> = table.known_ranges().collect();
        assert_eq!(ranges[0], 0..2 * block);
        assert_eq!(ranges[1], 200 * block..201 * block);
        assert_eq!(ranges[2], 300 * block..pages as u32);
        assert_eq!(ranges.len(), 3);
    }

    #[test]
    fn a_fresh_block_has_no_words_until_a_page_of_it_is_touched() {
        let block = BLOCK_PAGES;
        let table = table_of(4 * WORDS);
        assert!(table.map_fresh(2 * block));
        assert!(!table.map_fresh(2 * block));
        assert_eq!(table.known_ranges().next(), Some(2 * block..3 * block));
        assert_eq!(table.load(2 * block + 7), Entry::FRESH);
        assert_eq!(table.load(block + 7), UNMAPPED);
        assert_eq!(table.take_newly_used(), 0);

        // Only from what it is; its neighbours stay fresh.
        let page = 2 * block + 7;
        assert!(!table.claim(page, UNMAPPED) && !table.claim(block, Entry::FRESH));
        assert!(table.claim(page, Entry::FRESH) && !table.claim(page, Entry::FRESH));
        assert_eq!(table.take_newly_used(), 1);
        table.publish(page, Entry::FRESH.with_state(State::Dirty));
        assert_eq!(table.load(page).state(), State::Dirty);
        assert_eq!(table.load(page + 1), Entry::FRESH);

        // Unmapped is unmapped there too, and fresh again is claimed as such.
        table.seize(page);
        table.publish(page, UNMAPPED);
        assert_eq!(table.load(page), UNMAPPED);
        assert!(!table.claim(page, Entry::FRESH));
        assert_eq!(table.seize(page), UNMAPPED);
        table.publish(page, Entry::FRESH);
        assert!(table.claim(page, Entry::FRESH));
        assert_eq!(table.take_newly_used(), 0);
    }

    #[test]
    fn a_fresh_block_is_unmapped_as_long_as_no_page_was_touched() {
        let table = table_of(2 * WORDS);
        for _ in 0..2 {
            assert!(table.map_fresh(BLOCK_PAGES));
            assert!(!table.unmap_fresh(0) && table.unmap_fresh(BLOCK_PAGES));
            assert_eq!(table.load(BLOCK_PAGES + 3), UNMAPPED);
            assert!(!table.unmap_fresh(BLOCK_PAGES) && table.known_ranges().next().is_none());
        }
        assert!(table.map_fresh(BLOCK_PAGES));
        assert!(table.claim(BLOCK_PAGES + 3, Entry::FRESH));
        assert!(!table.unmap_fresh(BLOCK_PAGES));
        assert_eq!(table.load(BLOCK_PAGES + 4), Entry::FRESH);
    }

    /// Whoever is first: a page that is claimed is not unmapped, nor one unmapped claimed.
    #[test]
    fn a_page_is_claimed_or_its_block_unmapped() {
        const TURNS: u32 = 4000;
        let table = table_of(TURNS as usize * WORDS);
        let (mapped, met) = (AtomicU32::new(0), AtomicU32::new(0));
        let claimed: Vec<bool> = std::thread::scope(|scope| {
            let toucher = scope.spawn(|| {
                let touch = |turn: u32| {
                    while mapped.load(Ordering::SeqCst) <= turn {
                        std::thread::yield_now();
                    }
                    let claimed = table.claim(turn * BLOCK_PAGES + 9, Entry::FRESH);
                    met.store(turn + 1, Ordering::SeqCst);
                    claimed
                };
                (0..TURNS).map(touch).collect()
            });
            for turn in 0..TURNS {
                assert!(table.map_fresh(turn * BLOCK_PAGES));
                mapped.store(turn + 1, Ordering::SeqCst);
                // Now later, now earlier than the other.
                (0..turn % 64).for_each(|_| std::hint::spin_loop());
                let unmapped = table.unmap_fresh(turn * BLOCK_PAGES);
                while met.load(Ordering::SeqCst) <= turn {
                    std::thread::yield_now();
                }
                let state = table.load(turn * BLOCK_PAGES + 9).state();
                let expected = if unmapped {
                    State::Unmapped
                } else {
                    State::Busy
                };
                assert_eq!(state, expected, "turn {turn}");
            }
            toucher.join().unwrap()
        });
        for (turn, claimed) in claimed.into_iter().enumerate() {
            let state = table.load(turn as u32 * BLOCK_PAGES + 9).state();
            assert_eq!(claimed, state == State::Busy, "turn {turn}");
        }
    }

    #[test]
    fn a_block_with_a_word_is_not_made_fresh() {
        let table = table_of(2 * WORDS);
        table.seize(5);
        table.publish(5, UNMAPPED);
        assert!(!table.map_fresh(0));
        assert_eq!(table.load(6), UNMAPPED);
    }

    #[test]
    fn reserved_blocks_are_found_in_long_steps() {
        let block = BLOCK_PAGES;
        let pages = 300 * WORDS + 5;
        let table = table_of(pages);
        let end = pages as u32;
        assert_eq!(table.alike_until(7, end, false), end);
        table.reserve(3 * block, 200 * block);
        assert!(!table.is_reserved(3 * block - 1) && table.is_reserved(3 * block));
        assert_eq!(table.alike_until(7, end, false), 3 * block);
        assert_eq!(table.alike_until(7, 3 * block - 1, false), 3 * block - 1);
        assert_eq!(table.alike_until(3 * block + 9, end, true), 203 * block);
        assert_eq!(
            table.alike_until(100 * block, 101 * block + 1, true),
            101 * block + 1
        );
        table.unreserve(64 * block, 64 * block);
        assert_eq!(table.alike_until(3 * block, end, true), 64 * block);
        assert_eq!(table.alike_until(64 * block, end, false), 128 * block);
        assert_eq!(table.alike_until(203 * block, end, false), end);
        // Given words since it was looked at: what is not reserved behind it is not passed over.
        assert_eq!(table.alike_until(64 * block, end, true), 65 * block);
    }

    #[test]
    fn one_claims_others_wait() {
        let table = table_of(8);
        let seized = table.seize(3);
        assert_eq!(seized.state(), State::Unmapped);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| table.seize(3).state());
            std::thread::sleep(std::time::Duration::from_millis(5));
            table.publish(3, Entry::new(State::Dirty));
            assert_eq!(waiter.join().unwrap(), State::Dirty);
        });
        assert_eq!(table.page_of(0x1000 + 7 * 4096 + 5), Some(7));
        assert_eq!(table.page_of(0x1000 + 8 * 4096), None);
        assert_eq!(table.page_of(0xfff), None);
    }
}
