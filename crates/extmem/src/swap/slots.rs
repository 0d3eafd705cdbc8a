// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which slots are taken, and where the next cluster goes.
//!
//! One bit a slot, 64 slots (256 KiB) a word. A cluster of evicted pages wants
//! to be contiguous, so that one write takes it out and one read brings its
//! neighbours back. The search therefore walks on from where it last was and
//! passes over words that have too few free slots; only when a whole round finds
//! none does it become content with less. From time to time it tries to be
//! choosy again, since words free up behind it. A word is changed by compare and
//! swap: no lock, so that a process that is killed holds none.
//!
//! The tables are shared with children of forks; see `family` for who holds what.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::backing::Backing;
use super::family::{Family, Ticket};
use super::obstacle::Obstacle;
use super::parts::Parts;
use super::{Slot, SwapError};
use crate::region::{Region, carved_bytes};

const SLOTS_PER_WORD: u32 = u64::BITS;
/// Free slots that a word must have, from choosy to content.
const CHOOSINESS: [u32; 5] = [64, 48, 24, 8, 1];
/// Free slots that a word must have while another part of the file could be taken.
const LEAST_BEFORE_GROWTH: u32 = 24;
/// Allocations after which the search becomes one step choosier.
const RETRY_PERIOD: u32 = 128;

/// What all processes of a family count together.
#[derive(Debug)]
struct Shared {
    /// Signed: a slot is taken before it is counted, by whoever is faster.
    free: AtomicI64,
}

/// The slots of a store.
#[derive(Debug)]
pub struct Slots {
    /// Bit set: taken.
    taken: &'static [AtomicU64],
    capacity: u64,
    shared: &'static Shared,
    pub(super) family: Family,
    pub(super) parts: Parts,
    cursor: AtomicUsize,
    choosiness: AtomicUsize,
    allocations: AtomicU32,
}

impl Slots {
    /// Bytes of tables.
    pub fn footprint_bytes(capacity: u64) -> usize {
        carved_bytes::<AtomicU64>(words(capacity))
            + carved_bytes::<Shared>(1)
            + Family::footprint_bytes(capacity)
            + Parts::footprint_bytes()
    }

    /// The slots of what is under a store, all free. The region should be shared memory.
    pub fn new(backing: &Backing, region: &mut Region) -> Result<Self, SwapError> {
        let capacity = backing.slots;
        // SAFETY: zero is an AtomicU64.
        let taken =
            unsafe { region.carve::<AtomicU64>(words(capacity)) }.ok_or(SwapError::Memory)?;
        // SAFETY: zero is a Shared.
        let shared = unsafe { region.carve::<Shared>(1) }
            .and_then(|shared| shared.first())
            .ok_or(SwapError::Memory)?;
        shared.free.store(capacity as i64, Ordering::Relaxed);
        let family = Family::new(capacity, region)?;
        let parts = Parts::new(backing, region)?;
        let tail = (capacity % u64::from(SLOTS_PER_WORD)) as u32;
        if tail != 0
            && let Some(last) = taken.last()
        {
            last.store(!0 << tail, Ordering::Relaxed);
        }
        Ok(Self {
            taken,
            capacity,
            shared,
            family,
            parts,
            cursor: AtomicUsize::new(0),
            choosiness: AtomicUsize::new(0),
            allocations: AtomicU32::new(0),
        })
    }

    /// All slots.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Slots not taken.
    pub fn free_slots(&self) -> u64 {
        self.shared.free.load(Ordering::Relaxed).max(0) as u64
    }

    /// What keeps the store from growing, if that is not its size.
    pub fn obstacle(&self) -> Option<Obstacle> {
        self.parts.obstacle()
    }

    /// A contiguous run of at most `want` slots, as long as there is one near; a part of the
    /// file is taken for it if need be and none was asked for in vain just before. While there is `more` elsewhere, small gaps are left
    /// alone.
    pub fn take(&self, want: u32, more: bool) -> Option<(Slot, u32)> {
        loop {
            let may_grow = self.parts.may_grow();
            let least = if more || may_grow {
                LEAST_BEFORE_GROWTH
            } else {
                1
            };
            if let Some(found) = self.search(want, least) {
                return Some(found);
            }
            if !may_grow || !self.parts.grow(self.family.member()) {
                return None;
            }
        }
    }

    /// The same where nothing is left alone, of the parts that are ours.
    pub fn take_rest(&self, want: u32) -> Option<(Slot, u32)> {
        self.search(want, 1)
    }

    /// The same, with a look for another part however soon after the last one.
    pub fn take_at_last(&self, want: u32) -> Option<(Slot, u32)> {
        self.search(want, 1).or_else(|| {
            (self.parts.may_grow() && self.parts.grow_now(self.family.member()))
                .then(|| self.search(want, 1))
                .flatten()
        })
    }

    /// The same, of what relatives held that are gone.
    pub fn take_swept(&self, want: u32) -> Option<(Slot, u32)> {
        self.search(want, 1)
            .or_else(|| self.sweep().then(|| self.search(want, 1)).flatten())
    }

    /// Whether somebody else's parts of the file, or nobody's, are left to take.
    pub fn may_grow(&self) -> bool {
        self.parts.may_grow()
    }

    /// Whether another thread or relative asks for a part just now, and lives.
    pub fn is_asked_for(&self) -> bool {
        self.parts.is_asked_for() && {
            self.sweep();
            self.parts.is_asked_for()
        }
    }

    /// Gives back what relatives have that are gone. False when there was none.
    fn sweep(&self) -> bool {
        self.family.sweep(
            &|word| self.parts.skip(word),
            &mut |slot| self.release(slot),
            &mut |gone| self.parts.sweep(gone, self.family.member()),
        )
    }

    /// In words with at least `content` free slots.
    fn search(&self, want: u32, content: u32) -> Option<(Slot, u32)> {
        let mut step = self.choosiness.load(Ordering::Relaxed);
        if self
            .allocations
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(RETRY_PERIOD)
        {
            step = step.saturating_sub(1);
        }
        // Who takes the rest has lowered it further than who leaves small gaps alone.
        let lowest = CHOOSINESS.iter().rposition(|&least| least >= content);
        step = step.min(lowest.unwrap_or(0));
        while let Some(&least) = CHOOSINESS.get(step).filter(|&&least| least >= content) {
            let start = self.cursor.load(Ordering::Relaxed);
            let mut distance = 0;
            while distance < self.taken.len() {
                let word = (start + distance) % self.taken.len();
                let skipped = self.parts.skip(word).min(self.taken.len() - word);
                distance += skipped.max(1);
                if skipped > 0 {
                    continue;
                }
                if let Some((first, slots)) = self.take_in_word(word, least, want) {
                    self.choosiness.store(step, Ordering::Relaxed);
                    return Some((first, slots));
                }
            }
            step += 1;
        }
        if content == 1 {
            self.choosiness
                .store(CHOOSINESS.len() - 1, Ordering::Relaxed);
        }
        None
    }

    /// Gives slots back. Those that were not taken stay free; those that relatives hold
    /// too stay theirs.
    pub fn free(&self, first: Slot, slots: u32) {
        let mut slot = u64::from(first.0);
        let end = (slot + u64::from(slots)).min(self.capacity);
        while slot < end {
            let bit = (slot % u64::from(SLOTS_PER_WORD)) as u32;
            let here = (end - slot).min(u64::from(SLOTS_PER_WORD - bit)) as u32;
            let word = (slot / u64::from(SLOTS_PER_WORD)) as usize;
            self.free_in_word(word, run_mask(bit, here));
            slot += u64::from(here);
        }
    }

    fn free_in_word(&self, word: usize, mask: u64) {
        let alone = self
            .family
            .give_up(word, mask, &mut |slot| self.release(slot));
        if alone {
            self.release_in_word(word, mask);
        }
    }

    /// Nobody holds this slot any more.
    fn release(&self, slot: u32) {
        self.release_in_word(
            (slot / SLOTS_PER_WORD) as usize,
            1 << (slot % SLOTS_PER_WORD),
        );
    }

    fn release_in_word(&self, word: usize, mask: u64) {
        let before = self.taken[word].fetch_and(!mask, Ordering::Release);
        if before & !mask == 0 {
            // A whole word is worth looking for again.
            self.choosiness.store(0, Ordering::Relaxed);
        }
        self.shared
            .free
            .fetch_add(i64::from((before & mask).count_ones()), Ordering::Relaxed);
    }

    /// Before a fork, while no other thread uses the store: the child gets a reference
    /// to every slot of this process. None when there are too many relatives.
    pub fn fork_begin(&self) -> Option<Ticket> {
        self.sweep();
        self.family
            .fork_begin(self.taken, self.capacity, &|word| self.parts.skip(word))
    }

    /// In the parent, after the fork.
    pub fn fork_ended(&self, ticket: Ticket, forked: bool) {
        self.family
            .fork_ended(ticket, forked, &|word| self.parts.skip(word), &mut |slot| {
                self.release(slot)
            });
    }

    /// In the child, after the fork.
    pub fn after_fork_in_child(&self, ticket: Ticket) {
        self.family.after_fork_in_child(ticket);
    }

    /// The longest run in `word`, and on into the next words when it reaches
    /// the end, if the word has `least` free slots.
    fn take_in_word(&self, word: usize, least: u32, want: u32) -> Option<(Slot, u32)> {
        let mut taken = self.taken[word].load(Ordering::Relaxed);
        let (bit, mut slots) = loop {
            if taken.count_zeros() < least {
                return None;
            }
            let (bit, run) = longest_run(taken, want.min(SLOTS_PER_WORD))?;
            match self.taken[word].compare_exchange_weak(
                taken,
                taken | run_mask(bit, run),
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    self.family.hold(word, run_mask(bit, run));
                    break (bit, run);
                }
                Err(now) => taken = now,
            }
        };
        let mut last = word;
        while slots < want && (bit + slots).is_multiple_of(SLOTS_PER_WORD) {
            let Some(next) = self.taken.get(last + 1) else {
                break;
            };
            if self.parts.skip(last + 1) > 0 {
                break;
            }
            let before = next.load(Ordering::Relaxed);
            let run = before.trailing_zeros().min(want - slots);
            if run == 0
                || next
                    .compare_exchange(
                        before,
                        before | run_mask(0, run),
                        Ordering::Acquire,
                        Ordering::Relaxed,
                    )
                    .is_err()
            {
                break;
            }
            slots += run;
            last += 1;
            self.family.hold(last, run_mask(0, run));
        }
        self.cursor.store(last, Ordering::Relaxed);
        self.shared
            .free
            .fetch_sub(i64::from(slots), Ordering::Relaxed);
        Some((Slot((word * SLOTS_PER_WORD as usize) as u32 + bit), slots))
    }
}

fn words(capacity: u64) -> usize {
    capacity.div_ceil(u64::from(SLOTS_PER_WORD)) as usize
}

/// `run` bits from `bit` on; `bit + run` is at most 64.
fn run_mask(bit: u32, run: u32) -> u64 {
    let ones = if run >= SLOTS_PER_WORD {
        !0
    } else {
        (1 << run) - 1
    };
    ones << bit
}

/// The first run of zeros of length `enough`, else the longest.
fn longest_run(taken: u64, enough: u32) -> Option<(u32, u32)> {
    let (mut best_bit, mut best) = (0, 0);
    let mut bit = 0;
    while bit < SLOTS_PER_WORD {
        let ahead = taken >> bit;
        let used = ahead.trailing_ones();
        bit += used;
        if bit >= SLOTS_PER_WORD {
            break;
        }
        let run = (taken >> bit).trailing_zeros().min(SLOTS_PER_WORD - bit);
        if run > best {
            (best_bit, best) = (bit, run);
            if best >= enough {
                break;
            }
        }
        bit += run;
    }
    (best > 0).then_some((best_bit, best.min(enough)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found() {
        assert_eq!(longest_run(0, 64), Some((0, 64)));
        assert_eq!(longest_run(!0, 64), None);
        assert_eq!(longest_run(!0 >> 1, 64), Some((63, 1)));
        assert_eq!(longest_run(0b1001_0001 | (!0 << 8), 64), Some((1, 3)));
        assert_eq!(longest_run(0b1001_0001 | (!0 << 8), 2), Some((1, 2)));
    }
}
