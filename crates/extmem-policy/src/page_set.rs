// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A set of pages: one bit for each there may be.

use crate::algorithm::Memory;

const WORD: u32 = u64::BITS;

/// Pages below a limit.
#[derive(Debug)]
pub struct PageSet {
    words: &'static mut [u64],
}

impl PageSet {
    /// Bytes of tables.
    pub fn memory_bytes(pages: u32) -> usize {
        Memory::bytes::<u64>(pages.div_ceil(WORD) as usize)
    }

    /// No pages.
    pub fn new(pages: u32, memory: &mut Memory) -> Option<Self> {
        // SAFETY: zero is a u64.
        let words = unsafe { memory.take(pages.div_ceil(WORD) as usize) }?;
        Some(Self { words })
    }

    /// Adds a page. Whether it was in the set; None if there is no such page.
    pub fn insert(&mut self, page: u32) -> Option<bool> {
        let word = self.words.get_mut((page / WORD) as usize)?;
        let bit = 1 << (page % WORD);
        let was_in = *word & bit != 0;
        *word |= bit;
        Some(was_in)
    }

    /// Whether a page is in the set.
    pub fn contains(&self, page: u32) -> bool {
        let word = self.words.get((page / WORD) as usize);
        word.is_some_and(|word| word & (1 << (page % WORD)) != 0)
    }

    /// Takes a page out. Whether it was in the set.
    pub fn remove(&mut self, page: u32) -> bool {
        let Some(word) = self.words.get_mut((page / WORD) as usize) else {
            return false;
        };
        let bit = 1 << (page % WORD);
        let was_in = *word & bit != 0;
        *word &= !bit;
        was_in
    }

    /// Takes a range out. How many pages of it were in the set.
    pub fn remove_range(&mut self, first: u32, pages: u32) -> u32 {
        let mut removed = 0;
        let end = (u64::from(first) + u64::from(pages)).min(self.words.len() as u64 * 64) as u32;
        let mut page = first;
        while page < end {
            let count = (WORD - page % WORD).min(end - page);
            let mask = u64::MAX >> (WORD - count) << (page % WORD);
            let word = &mut self.words[(page / WORD) as usize];
            removed += (*word & mask).count_ones();
            *word &= !mask;
            page += count;
        }
        removed
    }

    /// The highest page below `below` that is in the set, looked for among as many pages as
    /// share a word with the next lower one; or else the first of those.
    pub fn highest_nearby(&self, below: u32) -> Option<Result<u32, u32>> {
        let last = below.checked_sub(1)?;
        let first = last / WORD * WORD;
        let word = self.words.get((first / WORD) as usize)?;
        let lower = word & (u64::MAX >> (WORD - 1 - last % WORD));
        Some(match lower.checked_ilog2() {
            Some(highest) => Ok(first + highest),
            None => Err(first),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::memory;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn is_a_set(steps in proptest::collection::vec((0u8..3, 0u32..210, 0u32..90), 0..200)) {
            let mut set = PageSet::new(192, &mut memory(PageSet::memory_bytes(192))).unwrap();
            let mut model = BTreeSet::new();
            for (step, page, pages) in steps {
                match step {
                    0 if page < 192 => prop_assert_eq!(set.insert(page), Some(!model.insert(page))),
                    0 => prop_assert_eq!(set.insert(page), None),
                    1 => prop_assert_eq!(set.remove(page), model.remove(&page)),
                    _ => {
                        let before = model.len();
                        model.retain(|other| !(page..page + pages).contains(other));
                        let removed = set.remove_range(page, pages) as usize;
                        prop_assert_eq!(removed, before - model.len());
                    }
                }
                prop_assert_eq!(set.contains(page), model.contains(&page));
                let mut below = 192;
                let highest = loop {
                    match set.highest_nearby(below) {
                        Some(Ok(page)) => break Some(page),
                        Some(Err(first)) => below = first,
                        None => break None,
                    }
                };
                prop_assert_eq!(highest, model.last().copied());
            }
        }
    }
}
