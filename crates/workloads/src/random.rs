// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random numbers that follow from a seed: splitmix64 (Steele, Lea and Flood,
//! "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014).

use crate::page::mix;

/// A stream of numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A stream of its own for each pair of numbers.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self(mix(seed ^ mix(stream)))
    }

    /// 64 random bits.
    #[inline(always)]
    pub fn word(&mut self) -> u64 {
        let word = mix(self.0);
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        word
    }

    /// A number below `end`; 0 if `end` is 0. The bias is below `end` / 2^64.
    #[inline(always)]
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(end)) >> 64) as u64
    }

    /// A number in [0, 1).
    #[inline(always)]
    pub fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Shuffles (Fisher and Yates).
    pub fn shuffle<T>(&mut self, values: &mut [T]) {
        for end in (2..=values.len()).rev() {
            values.swap(end - 1, self.below(end as u64) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_numbers_and_other_streams_differ() {
        let of = |seed, stream| Random::new(seed, stream).word();
        assert_eq!(of(1, 0), of(1, 0));
        assert_ne!(of(1, 0), of(1, 1));
        assert_ne!(of(1, 0), of(2, 0));
    }

    #[test]
    fn numbers_are_even_and_in_range() {
        let mut random = Random::new(1, 1);
        let mut counts = [0_u32; 10];
        for _ in 0..100_000 {
            counts[random.below(10) as usize] += 1;
            assert!((0.0..1.0).contains(&random.unit()));
        }
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)));
        assert_eq!(random.below(0), 0);
    }

    #[test]
    fn a_shuffle_keeps_all() {
        let mut values: Vec<u32> = (0..1000).collect();
        Random::new(3, 0).shuffle(&mut values);
        assert!(!values.is_sorted());
        values.sort_unstable();
        assert!(values.into_iter().eq(0..1000));
    }
}
