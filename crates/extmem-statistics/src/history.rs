// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A few values over the whole run in bounded room.
//!
//! When the room is used up every second sample goes, and from then on samples are
//! taken half as often: a run of any length has between 128 and 256 of them.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use serde::Serialize;

const ROOM: usize = 256;
const FIELDS: usize = 5;

/// Values at one time. Sums are since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// Time since the start.
    pub time_ns: u64,
    /// Managed memory in DRAM.
    pub resident_bytes: u64,
    /// DRAM of the compressed tier.
    pub compressed_bytes: u64,
    /// Faults that needed the swap store, so far.
    pub faults_swap: u64,
    /// Bytes read and written, so far.
    pub io_bytes: u64,
}

/// Samples. All bits zero is an empty history.
#[derive(Debug)]
#[repr(C)]
pub struct History {
    /// Odd while samples move.
    generation: AtomicU32,
    length: AtomicU32,
    /// One sample of this many offered is kept, as a power of two.
    thinning: AtomicU32,
    offered: AtomicU32,
    samples: [[AtomicU64; FIELDS]; ROOM],
}

impl History {
    pub(crate) fn clear(&self) {
        for word in [&self.length, &self.thinning, &self.offered] {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Adds a sample, if it is its turn. One thread at a time.
    pub(crate) fn push(&self, sample: &Sample) {
        let thinning = self.thinning.load(Ordering::Relaxed).min(31);
        let offered = self.offered.fetch_add(1, Ordering::Relaxed);
        if offered & ((1 << thinning) - 1) != 0 {
            return;
        }
        let mut length = (self.length.load(Ordering::Relaxed) as usize).min(ROOM);
        if length == ROOM {
            self.generation.fetch_add(1, Ordering::AcqRel);
            for kept in 0..ROOM / 2 {
                for field in 0..FIELDS {
                    let value = self.samples[kept * 2][field].load(Ordering::Relaxed);
                    self.samples[kept][field].store(value, Ordering::Relaxed);
                }
            }
            length = ROOM / 2;
            self.thinning.store(thinning + 1, Ordering::Relaxed);
            self.length.store(length as u32, Ordering::Relaxed);
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
        let values = [
            sample.time_ns,
            sample.resident_bytes,
            sample.compressed_bytes,
            sample.faults_swap,
            sample.io_bytes,
        ];
        for (place, value) in self.samples[length].iter().zip(values) {
            place.store(value, Ordering::Relaxed);
        }
        self.length.store(length as u32 + 1, Ordering::Release);
    }

    /// All samples, oldest first.
    pub fn read(&self) -> Vec<Sample> {
        const TRIES: usize = 100;
        let mut samples = Vec::new();
        for _ in 0..TRIES {
            let generation = self.generation.load(Ordering::Acquire);
            let length = (self.length.load(Ordering::Acquire) as usize).min(ROOM);
            samples = self.samples[..length]
                .iter()
                .map(|fields| {
                    let [
                        time_ns,
                        resident_bytes,
                        compressed_bytes,
                        faults_swap,
                        io_bytes,
                    ] = fields.each_ref().map(|field| field.load(Ordering::Relaxed));
                    Sample {
                        time_ns,
                        resident_bytes,
                        compressed_bytes,
                        faults_swap,
                        io_bytes,
                    }
                })
                .collect();
            if generation.is_multiple_of(2) && self.generation.load(Ordering::Acquire) == generation
            {
                break;
            }
            std::thread::yield_now();
        }
        samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_is_thinned_evenly_from_start_to_end() {
        // SAFETY: all bits zero is an empty history.
        let history: Box<History> = unsafe { Box::new_zeroed().assume_init() };
        for turn in 0..10_000u64 {
            history.push(&Sample {
                time_ns: turn * 10,
                resident_bytes: turn,
                compressed_bytes: 0,
                faults_swap: 0,
                io_bytes: 0,
            });
        }
        let samples = history.read();
        assert!(
            (ROOM / 2..=ROOM).contains(&samples.len()),
            "{}",
            samples.len()
        );
        let gap = samples[1].time_ns;
        assert_eq!(samples[0].time_ns, 0);
        for (index, sample) in samples.iter().enumerate() {
            assert_eq!(sample.time_ns, gap * index as u64);
            assert_eq!(sample.resident_bytes * 10, sample.time_ns);
        }
        assert!(samples.last().unwrap().time_ns > 99_000);
    }
}
