// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A set of page numbers that costs a bit a page where pages are, and nothing
//! where none are: the guest cannot make the host allocate more than one 4 KiB
//! chunk for each 128 MiB of its own memory that it touches.

use std::collections::BTreeMap;

const WORD_BITS: u64 = 64;
const CHUNK_WORDS: usize = 512;
const CHUNK_PAGES: u64 = WORD_BITS * CHUNK_WORDS as u64;

#[derive(Debug, Clone)]
struct Chunk {
    words: [u64; CHUNK_WORDS],
    held: u64,
}

/// A set of page numbers.
#[derive(Debug, Clone, Default)]
pub struct Pages {
    chunks: BTreeMap<u64, Box<Chunk>>,
    held: u64,
}

/// The words that a run of pages touches: chunk, word, mask.
fn spans(first: u64, nr_pages: u64) -> impl Iterator<Item = (u64, usize, u64)> {
    let end = first + nr_pages;
    let mut at = first;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let bit = at % WORD_BITS;
        let count = (WORD_BITS - bit).min(end - at);
        let mask = (u64::MAX >> (WORD_BITS - count)) << bit;
        let word = (at % CHUNK_PAGES / WORD_BITS) as usize;
        let chunk = at / CHUNK_PAGES;
        at += count;
        Some((chunk, word, mask))
    })
}

impl Pages {
    /// Number of pages in the set.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.held
    }

    /// No pages.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Bytes of memory that the set takes, roughly.
    #[must_use]
    pub fn footprint_bytes(&self) -> usize {
        self.chunks.len() * (size_of::<Chunk>() + 64)
    }

    fn word(&self, chunk: u64, word: usize) -> u64 {
        self.chunks.get(&chunk).map_or(0, |chunk| chunk.words[word])
    }

    /// True if all of these pages are in the set.
    #[must_use]
    pub fn contains_all(&self, first: u64, nr_pages: u64) -> bool {
        spans(first, nr_pages).all(|(chunk, word, mask)| self.word(chunk, word) & mask == mask)
    }

    /// True if any of these pages is in the set.
    #[must_use]
    pub fn contains_any(&self, first: u64, nr_pages: u64) -> bool {
        spans(first, nr_pages).any(|(chunk, word, mask)| self.word(chunk, word) & mask != 0)
    }

    /// Adds pages. Says how many were new.
    pub fn insert(&mut self, first: u64, nr_pages: u64) -> u64 {
        let mut added = 0;
        for (chunk, word, mask) in spans(first, nr_pages) {
            added += self.insert_word(chunk, word, mask);
        }
        added
    }

    fn insert_word(&mut self, chunk: u64, word: usize, mask: u64) -> u64 {
        let chunk = self.chunks.entry(chunk).or_insert_with(|| {
            Box::new(Chunk {
                words: [0; CHUNK_WORDS],
                held: 0,
            })
        });
        let new = u64::from((mask & !chunk.words[word]).count_ones());
        chunk.words[word] |= mask;
        chunk.held += new;
        self.held += new;
        new
    }

    /// Adds those of another set.
    pub fn merge(&mut self, other: &Self) {
        for (&index, chunk) in &other.chunks {
            for (word, bits) in chunk
                .words
                .iter()
                .enumerate()
                .filter(|(_, bits)| **bits != 0)
            {
                self.insert_word(index, word, *bits);
            }
        }
    }

    /// Takes pages out. Says how many were there.
    pub fn remove(&mut self, first: u64, nr_pages: u64) -> u64 {
        let mut removed = 0;
        for (index, word, mask) in spans(first, nr_pages) {
            let Some(chunk) = self.chunks.get_mut(&index) else {
                continue;
            };
            let there = u64::from((mask & chunk.words[word]).count_ones());
            chunk.words[word] &= !mask;
            chunk.held -= there;
            removed += there;
            if chunk.held == 0 {
                self.chunks.remove(&index);
            }
        }
        self.held -= removed;
        removed
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.chunks.clear();
        self.held = 0;
    }

    /// Keeps the pages for which `keep` says so. The others.
    #[must_use]
    pub fn part(&mut self, mut keep: impl FnMut(u64) -> bool) -> Self {
        let mut others = Self::default();
        for (&index, chunk) in &mut self.chunks {
            for (word, bits) in chunk.words.iter_mut().enumerate() {
                let (mut left, mut gone) = (*bits, 0);
                while left != 0 {
                    let bit = left.trailing_zeros();
                    left &= left - 1;
                    let page = index * CHUNK_PAGES + word as u64 * WORD_BITS + u64::from(bit);
                    if !keep(page) {
                        gone |= 1 << bit;
                    }
                }
                if gone != 0 {
                    let count = others.insert_word(index, word, gone);
                    *bits &= !gone;
                    chunk.held -= count;
                    self.held -= count;
                }
            }
        }
        self.chunks.retain(|_, chunk| chunk.held > 0);
        others
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[derive(Debug, Clone)]
    enum Step {
        Insert(u64, u64),
        Remove(u64, u64),
        Part(u64),
    }

    fn run() -> impl Strategy<Value = (u64, u64)> {
        // Around the borders of words and chunks.
        let first = prop_oneof![
            0..200u64,
            CHUNK_PAGES - 100..CHUNK_PAGES + 100,
            Just((1 << 52) - 700)
        ];
        (first, 1..600u64)
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            run().prop_map(|(first, nr)| Step::Insert(first, nr)),
            run().prop_map(|(first, nr)| Step::Remove(first, nr)),
            (2..5u64).prop_map(Step::Part),
        ];
        proptest::collection::vec(step, 1..24)
    }

    proptest! {
        #[test]
        fn is_a_set(steps in steps(), (first, nr) in run()) {
            let mut pages = Pages::default();
            let mut model = BTreeSet::new();
            for step in steps {
                match step {
                    Step::Insert(first, nr) => {
                        let new = (first..first + nr).filter(|page| model.insert(*page)).count();
                        prop_assert_eq!(pages.insert(first, nr), new as u64);
                    }
                    Step::Remove(first, nr) => {
                        let gone = (first..first + nr).filter(|page| model.remove(page)).count();
                        prop_assert_eq!(pages.remove(first, nr), gone as u64);
                    }
                    Step::Part(modulus) => {
                        let all = pages.clone();
                        model.retain(|page| page % modulus == 0);
                        let others = pages.part(|page| page % modulus == 0);
                        prop_assert_eq!(pages.len() + others.len(), all.len());
                        let mut again = pages.clone();
                        again.merge(&others);
                        prop_assert_eq!(again.len(), all.len());
                        prop_assert_eq!(again.part(|page| page % modulus == 0).len(), others.len());
                    }
                }
                prop_assert_eq!(pages.len(), model.len() as u64);
            }
            let range = first..first + nr;
            prop_assert_eq!(pages.contains_all(first, nr), range.clone().all(|p| model.contains(&p)));
            prop_assert_eq!(pages.contains_any(first, nr), range.clone().any(|p| model.contains(&p)));
            pages.clear();
            prop_assert!(pages.is_empty() && pages.footprint_bytes() == 0);
        }
    }

    #[test]
    fn empties_leave_nothing_behind() {
        let mut pages = Pages::default();
        pages.insert(0, 10 * CHUNK_PAGES);
        assert_eq!(pages.chunks.len(), 10);
        pages.remove(0, 10 * CHUNK_PAGES);
        assert_eq!(pages.footprint_bytes(), 0);
    }
}
