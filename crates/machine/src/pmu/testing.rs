// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A machine around a unit, for tests: memory is what was mapped.

use std::collections::BTreeMap;

use super::Port;

/// Memory of single words, and interrupts that are counted.
#[derive(Default)]
pub struct Machine {
    words: BTreeMap<u64, (u64, bool)>,
    pub tsc: u64,
    pub interrupts: u64,
    pub extended: u64,
    pub masked: bool,
}

impl Machine {
    /// Maps a word and gives it a value.
    pub fn set(&mut self, va: u64, value: u64) {
        self.words.insert(va, (value, false));
    }

    /// Maps zeroed memory.
    pub fn map(&mut self, va: u64, bytes: u64) {
        for word in 0..bytes / 8 {
            self.set(va + word * 8, 0);
        }
    }

    pub fn get(&self, va: u64) -> u64 {
        self.words[&va].0
    }

    /// Whether the unit has written the word.
    pub fn written(&self, va: u64) -> bool {
        self.words.get(&va).is_some_and(|word| word.1)
    }
}

impl Port for Machine {
    fn read(&mut self, va: u64, words: &mut [u64]) -> bool {
        words.iter_mut().enumerate().all(|(index, word)| {
            let found = self.words.get(&va.wrapping_add(index as u64 * 8));
            if let Some((value, _)) = found {
                *word = *value;
            }
            found.is_some()
        })
    }

    fn write(&mut self, va: u64, words: &[u64]) -> bool {
        words.iter().enumerate().all(|(index, value)| {
            let found = self.words.get_mut(&va.wrapping_add(index as u64 * 8));
            found.is_some_and(|word| {
                *word = (*value, true);
                true
            })
        })
    }

    fn tsc(&mut self) -> u64 {
        self.tsc
    }

    fn counter_interrupt(&mut self) -> bool {
        self.interrupts += u64::from(!self.masked);
        !self.masked
    }

    fn extended_interrupt(&mut self, _: u8) -> bool {
        self.extended += u64::from(!self.masked);
        !self.masked
    }
}
