// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A physically tagged set-associative cache of lines, replaced round robin.

/// Bytes of a cache line.
pub const LINE_BYTES: u64 = 64;

/// Tags of a cache with `WAYS` ways; it holds no data and knows no dirty lines.
///
/// Round robin needs one counter a set and no update on a hit, which is what
/// makes the model fast; against LRU it costs a few per cent of hit ratio.
#[derive(Clone, Debug)]
pub struct Cache<const WAYS: usize> {
    tags: Vec<[u32; WAYS]>,
    next: Vec<u8>,
    mask: u64,
}

impl<const WAYS: usize> Cache<WAYS> {
    /// An empty cache of `bytes`, a power of two of at least one set
    /// (as [`crate::MachineConfig::validate`] checks); rounded down otherwise.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        let lines = (bytes / LINE_BYTES / WAYS as u64).max(1);
        let sets = 1u64 << lines.ilog2();
        let count = usize::try_from(sets).unwrap_or(1);
        Self {
            tags: vec![[0; WAYS]; count],
            next: vec![0; count],
            mask: count as u64 - 1,
        }
    }

    /// Looks the line of `pa` up and, where it is missing, puts it in.
    #[inline]
    pub fn access(&mut self, pa: u64) -> bool {
        let line = pa / LINE_BYTES;
        // High bits take part in the choice of the set, as in a sliced LLC:
        // buddy-allocated pages share their low bits.
        let index = ((line ^ (line >> 13)) & self.mask) as usize;
        // Folded to 32 bits: exact up to 256 GiB. 0 marks an empty way.
        let tag = ((line ^ (line >> 32)) as u32).wrapping_add(1).max(1);
        let set = &mut self.tags[index];
        // No early exit: this compiles to four vector compares.
        let mut found = false;
        for &way in set.iter() {
            found |= way == tag;
        }
        if found {
            return true;
        }
        let next = &mut self.next[index];
        set[*next as usize % WAYS] = tag;
        *next = next.wrapping_add(1);
        false
    }

    /// Empties the cache.
    pub fn clear(&mut self) {
        self.tags.fill([0; WAYS]);
        self.next.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{HashMap, VecDeque};

    #[test]
    fn seventeenth_line_of_a_set_evicts_the_first() {
        let mut cache = Cache::<16>::new(16 * 64); // one set
        for line in 0..16u64 {
            assert!(!cache.access(line * 64));
        }
        assert!((0..16u64).all(|line| cache.access(line * 64)));
        assert!(!cache.access(16 * 64));
        assert!(!cache.access(0)); // evicted, and now evicts line 1
        assert!(cache.access(2 * 64));
        assert!(!cache.access(64));
    }

    #[test]
    fn bytes_of_a_line_share_it() {
        let mut cache = Cache::<16>::new(1 << 20);
        assert!(!cache.access(0x1000));
        assert!(cache.access(0x103f));
        assert!(!cache.access(0x1040));
    }

    #[test]
    fn whole_capacity_is_usable() {
        let mut cache = Cache::<16>::new(1 << 20);
        for pass in 0..3 {
            for line in 0..(1u64 << 14) {
                assert_eq!(cache.access(line * 64), pass > 0);
            }
        }
    }

    proptest! {
        /// Against a list per set that forgets its oldest line.
        #[test]
        fn same_as_a_fifo_per_set(lines in prop::collection::vec(0u64..600, 1..2000)) {
            let mut cache = Cache::<8>::new(8 * 64 * 16);
            let mut sets: HashMap<u64, VecDeque<u64>> = HashMap::new();
            for line in lines {
                let set = sets.entry((line ^ (line >> 13)) & 15).or_default();
                let expected = set.contains(&line);
                if !expected {
                    set.push_back(line);
                    if set.len() > 8 { set.pop_front(); }
                }
                prop_assert_eq!(cache.access(line * 64), expected);
            }
        }
    }
}
