// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Records: a TID word and a value of 100 bytes. The TID is lock, version and
//! state in one, so that a reader needs no write to read a record in one piece.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::Error;
use crate::array::{self, Pages};
use crate::memory::Region;
use crate::page::mix;

/// Somebody is writing.
const LOCK: u64 = 1;
/// No such record, for the time being.
pub const ABSENT: u64 = 2;
/// What is no version: the bits above, sequence and epoch.
const STATUS: u64 = LOCK | ABSENT;
/// One more version.
const STEP: u64 = STATUS + 1;
/// The epoch is above these.
const EPOCH_SHIFT: u32 = 32;

/// Words of a value.
pub const WORDS: usize = 13;
/// Words of a record: TID and value.
const RECORD_WORDS: usize = 1 + WORDS;
/// Bytes of a record.
pub const RECORD_BYTES: u64 = RECORD_WORDS as u64 * 8;
/// The last word of a value holds four bytes: 100 in all.
const LAST_MASK: u64 = 0xffff_ffff;

/// A value: key, number of writes, and a body that every write changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value(pub [u64; WORDS]);

impl Value {
    /// What a blind write leaves.
    pub fn of(key: u64, seed: u64) -> Self {
        let first = mix(key ^ mix(seed));
        let mut words = [key, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        for (place, word) in words.iter_mut().enumerate().skip(2) {
            *word = mix(first ^ place as u64);
        }
        words[WORDS - 1] &= LAST_MASK;
        Self(words)
    }

    /// What a read-modify-write leaves of this one.
    pub fn modified(&self, seed: u64) -> Self {
        let mut words = self.0;
        for word in &mut words[2..] {
            *word = mix(*word ^ seed);
        }
        words[WORDS - 1] &= LAST_MASK;
        Self(words)
    }

    /// Key of the record.
    pub fn key(&self) -> u64 {
        self.0[0]
    }

    /// Writes that it has seen.
    pub fn writes(&self) -> u64 {
        self.0[1]
    }

    /// A digest of all but the number of writes.
    #[inline]
    pub fn digest(&self) -> u64 {
        self.0[2..].iter().fold(self.0[0], |digest, word| {
            (digest ^ word)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29)
        })
    }
}

/// All records.
pub struct Store {
    region: Region,
    count: AtomicU64,
}

impl Store {
    /// Room for so many records; none is there.
    pub fn new(most: u64, pages: Pages) -> Result<Self, Error> {
        Ok(Self {
            region: array::region(most.saturating_mul(RECORD_BYTES), pages)?,
            count: AtomicU64::new(0),
        })
    }

    #[inline(always)]
    fn words(&self, record: u64) -> &[AtomicU64; RECORD_WORDS] {
        let first = record as usize * RECORD_WORDS;
        match self.region.atomics()[first..].first_chunk() {
            Some(words) => words,
            None => unreachable!("record {record} lies beyond the mapping"),
        }
    }

    #[inline(always)]
    fn tid_word(&self, record: u64) -> &AtomicU64 {
        &self.words(record)[0]
    }

    /// Makes a record that is absent.
    pub fn make(&self) -> u64 {
        let record = self.count.fetch_add(1, Ordering::Relaxed);
        self.tid_word(record).store(ABSENT, Ordering::Release);
        record
    }

    /// Number of records, absent ones included.
    pub fn records(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Bytes of all records.
    pub fn bytes(&self) -> u64 {
        self.records() * RECORD_BYTES
    }

    /// Reads a record in one piece; returns its TID, which is not locked.
    #[inline]
    pub fn read(&self, record: u64, value: &mut Value) -> u64 {
        let words = self.words(record);
        loop {
            let before = words[0].load(Ordering::Acquire);
            if before & LOCK == 0 {
                for (to, from) in value.0.iter_mut().zip(&words[1..]) {
                    *to = from.load(Ordering::Relaxed);
                }
                fence(Ordering::Acquire);
                if words[0].load(Ordering::Relaxed) == before {
                    return before;
                }
            }
            std::thread::yield_now();
        }
    }

    /// Locks a record; returns its TID.
    pub fn lock(&self, record: u64) -> u64 {
        let word = self.tid_word(record);
        loop {
            let tid = word.load(Ordering::Relaxed) & !LOCK;
            if word
                .compare_exchange_weak(tid, tid | LOCK, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
            {
                fence(Ordering::Release);
                return tid;
            }
            std::thread::yield_now();
        }
    }

    /// Unlocks a record that was not changed.
    pub fn unlock(&self, record: u64, tid: u64) {
        self.tid_word(record).store(tid, Ordering::Release);
    }

    /// Writes a value, whose number of writes is added to that of the record,
    /// and a TID that unlocks it. The record is locked by the caller.
    pub fn install(&self, record: u64, value: &Value, tid: u64) {
        let words = self.words(record);
        let writes = words[2].load(Ordering::Relaxed);
        for (to, from) in words[1..].iter().zip(&value.0) {
            to.store(*from, Ordering::Relaxed);
        }
        words[2].store(writes + value.writes(), Ordering::Relaxed);
        words[0].store(tid, Ordering::Release);
    }

    /// A record is as it was read: the same TID and, unless by the caller, not locked.
    #[inline]
    pub fn is_unchanged(&self, record: u64, tid: u64, locked_by_caller: bool) -> bool {
        let now = self.tid_word(record).load(Ordering::Acquire);
        now == tid || (locked_by_caller && now == tid | LOCK)
    }

    /// Puts a record back to a state, when no thread works.
    pub fn reset(&self, record: u64, value: &Value, tid: u64) {
        let words = self.words(record);
        words[2].store(0, Ordering::Relaxed);
        self.install(record, value, tid);
    }

    /// Spoils a word of a value, for tests of the checks.
    #[cfg(test)]
    pub fn spoil(&self, record: u64, word: usize) {
        self.words(record)[1 + word].fetch_xor(1, Ordering::Relaxed);
    }
}

/// The TID of a transaction: above all that it saw, above the last of its
/// thread, and of this epoch.
pub fn next_tid(seen: u64, last: u64, epoch: u64) -> u64 {
    let base = seen.max(last) & !STATUS;
    (base + STEP).max(epoch << EPOCH_SHIFT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_a_hundred_bytes_and_differ() {
        let value = Value::of(7, 1);
        assert_eq!((value.key(), value.writes()), (7, 0));
        assert_eq!(value.0[WORDS - 1] >> 32, 0);
        assert_ne!(value.digest(), Value::of(7, 2).digest());
        assert_ne!(value.digest(), Value::of(8, 1).digest());
        assert_ne!(value.digest(), value.modified(1).digest());
        assert_eq!(value.modified(1).key(), 7);
    }

    #[test]
    fn tids_ascend_and_carry_the_epoch() {
        assert_eq!(next_tid(0, 0, 0), STEP);
        assert!(next_tid((100 * STEP) | ABSENT, 7 * STEP, 0) > 100 * STEP);
        assert_eq!(next_tid(100, 7, 3), 3 << EPOCH_SHIFT);
        let late = 5 << EPOCH_SHIFT;
        assert_eq!(next_tid(late, 0, 3), late + STEP);
        assert_eq!(next_tid(STEP | LOCK, 0, 0) & STATUS, 0);
    }

    #[test]
    fn a_record_is_read_in_one_piece() {
        let store = Store::new(1, Pages::System).unwrap();
        let record = store.make();
        store.reset(record, &Value::of(1, 0), 0);
        std::thread::scope(|scope| {
            for thread in 0..2_u64 {
                let store = &store;
                scope.spawn(move || {
                    for round in 0..2000 {
                        let tid = store.lock(record);
                        let mut value = Value::of(1, thread << 32 | round);
                        value.0[1] = 1;
                        store.install(record, &value, next_tid(tid, 0, 0));
                    }
                });
            }
            let mut value = Value::of(0, 0);
            for _ in 0..2000 {
                store.read(record, &mut value);
                let seeds = std::iter::once(0).chain((0..2000).flat_map(|n| [n, 1 << 32 | n]));
                // Whole is what some writer wrote; the first body word tells which.
                let whole = seeds
                    .map(|seed| Value::of(1, seed))
                    .find(|one| one.0[2] == value.0[2]);
                assert!(whole.is_some_and(|one| one.0[3..] == value.0[3..]));
            }
        });
        let mut value = Value::of(0, 0);
        assert_eq!(store.read(record, &mut value), 4000 * STEP);
        assert_eq!(value.writes(), 4000);
    }
}
