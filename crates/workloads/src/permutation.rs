// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A shuffle that needs no memory: a bijection of [0, n), computed number by
//! number. Inside, multiplications by odd numbers and shifted XORs, each a
//! bijection of the next power of two; numbers that leave the range go round
//! again ("cycle walking": Black and Rogaway, CT-RSA 2002).

use crate::random::Random;

/// Rounds of mixing.
const ROUNDS: usize = 3;

/// A bijection of the numbers below some end.
#[derive(Clone, Debug)]
pub struct Permutation {
    end: u64,
    mask: u64,
    shift: u32,
    rounds: [(u64, u64); ROUNDS],
}

impl Permutation {
    /// One of the numbers below `end`, which is at most 2^63.
    pub fn new(end: u64, seed: u64) -> Self {
        let bits = end.max(1).next_power_of_two().trailing_zeros();
        let mut random = Random::new(seed, 0x7065_726d);
        Self {
            end,
            mask: (1 << bits) - 1,
            shift: bits.div_ceil(2).max(1),
            rounds: std::array::from_fn(|_| (random.word() | 1, random.word())),
        }
    }

    /// Where `number` goes; `number` is below the end.
    #[inline(always)]
    pub fn of(&self, number: u64) -> u64 {
        debug_assert!(number < self.end);
        let mut at = number;
        loop {
            for (factor, offset) in self.rounds {
                at = at.wrapping_mul(factor).wrapping_add(offset) & self.mask;
                at ^= at >> self.shift;
            }
            if at < self.end {
                return at;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_hit_once() {
        for end in [1, 2, 3, 8, 1000, 4096, 4097] {
            let permutation = Permutation::new(end, 5);
            let mut seen: Vec<u64> = (0..end).map(|number| permutation.of(number)).collect();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..end), "{end}");
        }
    }

    #[test]
    fn neighbours_are_torn_apart() {
        let end = 1 << 16;
        let permutation = Permutation::new(end, 1);
        let far: f64 = (1..end)
            .map(|number| permutation.of(number).abs_diff(permutation.of(number - 1)) as f64)
            .sum::<f64>()
            / end as f64;
        // Two random points are a third of the range apart.
        assert!((far / end as f64 - 1.0 / 3.0).abs() < 0.1, "{far}");
        assert_ne!(permutation.of(0), Permutation::new(end, 2).of(0));
    }
}
