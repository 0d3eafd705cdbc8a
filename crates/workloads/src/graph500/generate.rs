// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The edges of Graph500: Kronecker with its published parameters, vertices
//! renamed at random.

use crate::permutation::Permutation;
use crate::random::Random;

/// Shares of the four quarters of the adjacency matrix; the last is the rest.
const A: f64 = 0.57;
const B: f64 = 0.19;
const C: f64 = 0.19;

/// An edge of the input list.
pub type Edge = (u64, u64);

/// Draws edges, each from a stream of its own, so that any of them can be told
/// from its number.
pub struct Generator {
    seed: u64,
    scale: u32,
    names: Permutation,
    upper: u32,
    within: [u32; 2],
}

impl Generator {
    /// Of a graph of 2^`scale` vertices.
    pub fn new(scale: u32, seed: u64) -> Self {
        let share = |part: f64| (part * f64::from(u32::MAX)) as u32;
        Self {
            seed,
            scale,
            names: Permutation::new(1 << scale, seed),
            // First the row, then the column in it: one number for both.
            upper: share(A + B),
            within: [share(A), share(A + B + C)],
        }
    }

    /// Edge `number`.
    pub fn edge(&self, number: u64) -> Edge {
        let mut random = Random::new(self.seed, number);
        let (mut from, mut to) = (0, 0);
        let mut bits = 0;
        for level in 0..self.scale {
            if level.is_multiple_of(2) {
                bits = random.word();
            }
            let point = bits as u32;
            bits >>= 32;
            let row = usize::from(point >= self.upper);
            let column = u64::from(point >= self.within[row]);
            from = from << 1 | row as u64;
            to = to << 1 | column;
        }
        (self.names.of(from), self.names.of(to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quarters_have_their_shares() {
        let generator = Generator::new(1, 1);
        let names = &generator.names;
        let mut counts = [[0_u32; 2]; 2];
        for number in 0..100_000 {
            let (from, to) = generator.edge(number);
            let index = |name| usize::from(names.of(0) != name);
            counts[index(from)][index(to)] += 1;
        }
        for (count, share) in counts.as_flattened().iter().zip([A, B, C, 0.05]) {
            let found = f64::from(*count) / 100_000.0;
            assert!((found - share).abs() < 0.005, "{found} for {share}");
        }
    }

    #[test]
    fn edges_follow_from_seed_and_number() {
        let edges = |seed| -> Vec<Edge> {
            let generator = Generator::new(12, seed);
            (0..100).map(|number| generator.edge(number)).collect()
        };
        assert_eq!(edges(1), edges(1));
        assert_ne!(edges(1), edges(2));
        assert!(edges(1).iter().all(|&(a, b)| a < 4096 && b < 4096));
    }
}
