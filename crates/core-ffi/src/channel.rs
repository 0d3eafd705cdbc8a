// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Samples from many threads to one.

use crate::sys::{self, Sample, Slot};
use crate::{Error, room};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::Arc;

struct Shared {
    raw: UnsafeCell<sys::Channel>,
    /// What `raw.slot` points to; touched by C only.
    _memory: Vec<MaybeUninit<Slot>>,
}

// SAFETY: the pointer in `raw` is to memory that this value owns.
unsafe impl Send for Shared {}
// SAFETY: C synchronises by atomics: any number may push, and the single
// Consumer is the only one to pop.
unsafe impl Sync for Shared {}

/// The end that samples go in; clone it for each thread.
#[derive(Clone)]
pub struct Producer(Arc<Shared>);

/// The end that samples come out.
pub struct Consumer(Arc<Shared>);

/// A channel of `slots` samples, a power of two from 2.
pub fn channel(slots: u32) -> Result<(Producer, Consumer), Error> {
    let mut memory = room::<Slot>(slots as usize)?;
    let mut raw = MaybeUninit::<sys::Channel>::zeroed();
    // SAFETY: `memory` holds `slots` slots and lives as long as `raw`; its heap
    // block does not move with the Vec.
    let code =
        unsafe { sys::demeter_channel_init(raw.as_mut_ptr(), memory.as_mut_ptr().cast(), slots) };
    Error::from_c(code)?;
    let shared = Arc::new(Shared {
        // SAFETY: initialised by C, and all zeros is valid anyway.
        raw: UnsafeCell::new(unsafe { raw.assume_init() }),
        _memory: memory,
    });
    Ok((Producer(Arc::clone(&shared)), Consumer(shared)))
}

impl Producer {
    /// Offers a sample; false when the channel was full and it was dropped.
    pub fn push(&self, sample: Sample) -> bool {
        // SAFETY: any number of threads may push at a time.
        unsafe { sys::demeter_channel_push(self.0.raw.get(), &sample) }
    }
}

impl Consumer {
    /// Takes the oldest sample.
    pub fn pop(&mut self) -> Option<Sample> {
        let mut sample = Sample::default();
        // SAFETY: there is one Consumer and it is borrowed exclusively.
        unsafe { sys::demeter_channel_pop(self.0.raw.get(), &mut sample) }.then_some(sample)
    }

    /// Samples dropped so far.
    pub fn lost(&self) -> u64 {
        // SAFETY: an atomic load.
        unsafe { sys::demeter_channel_lost(self.0.raw.get()) }
    }
}
