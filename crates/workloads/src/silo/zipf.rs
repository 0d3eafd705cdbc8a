// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ranks with Zipf's distribution, by the method that YCSB uses (Gray et al.,
//! "Quickly Generating Billion-Record Synthetic Databases", SIGMOD 1994).
//!
//! Powers are computed here with plain arithmetic: those of a C library differ
//! in the last digit from one CPU to the next, and runs would with them.

use crate::random::Random;

/// Draws ranks.
#[derive(Clone, Debug)]
pub struct Zipf {
    count: f64,
    theta: f64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    /// Of ranks below `count`, which is not zero; `theta` is above 0 and below 1,
    /// the larger the more skewed.
    pub fn new(count: u64, theta: f64) -> Self {
        let zeta = zeta(count, theta);
        let count = count as f64;
        Self {
            count,
            theta,
            zeta,
            alpha: 1.0 / (1.0 - theta),
            eta: (1.0 - power(2.0 / count, 1.0 - theta)) / (1.0 - (1.0 + power(0.5, theta)) / zeta),
        }
    }

    /// A rank, 0 the most frequent.
    #[inline]
    pub fn rank(&self, random: &mut Random) -> u64 {
        let unit = random.unit();
        let scaled = unit * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + power(0.5, self.theta) {
            return 1.min(self.count as u64 - 1);
        }
        let rank = self.count * power(self.eta * unit - self.eta + 1.0, self.alpha);
        (rank as u64).min(self.count as u64 - 1)
    }
}

/// The sum of `1 / rank^theta` over ranks 1 to `count`: the first by hand, the
/// rest by the formula of Euler and Maclaurin.
fn zeta(count: u64, theta: f64) -> f64 {
    const BY_HAND: u64 = 1000;
    let by_hand = count.min(BY_HAND);
    let head: f64 = (1..=by_hand)
        .map(|rank| power(rank as f64, -theta))
        .sum::<f64>();
    if count <= BY_HAND {
        return head;
    }
    let (from, to) = (BY_HAND as f64, count as f64);
    let integral = (power(to, 1.0 - theta) - power(from, 1.0 - theta)) / (1.0 - theta);
    let ends = (power(to, -theta) - power(from, -theta)) / 2.0;
    head + integral + ends
}

/// `base` to the power of `exponent`; zero of a base that is not positive.
fn power(base: f64, exponent: f64) -> f64 {
    if base <= 0.0 {
        return 0.0;
    }
    exponential(exponent * logarithm(base))
}

/// Natural logarithm of a positive normal number, to 1e-13 or so.
fn logarithm(value: f64) -> f64 {
    const EXPONENT_BIAS: i64 = 1023;
    let bits = value.to_bits();
    let exponent = (bits >> 52 & 0x7ff) as i64 - EXPONENT_BIAS;
    // In [1, 2); then ln m = 2 artanh((m - 1) / (m + 1)), around the root of two.
    let mantissa = f64::from_bits(bits & ((1 << 52) - 1) | (EXPONENT_BIAS as u64) << 52);
    let root = std::f64::consts::SQRT_2;
    let part = (mantissa - root) / (mantissa + root);
    let square = part * part;
    let mut sum = 0.0;
    for odd in (1..=17).rev().step_by(2) {
        sum = sum * square + 1.0 / f64::from(odd);
    }
    (exponent as f64 + 0.5) * std::f64::consts::LN_2 + 2.0 * part * sum
}

/// e to the power of a number, to 1e-13 or so; zero below the range.
fn exponential(value: f64) -> f64 {
    let twos = (value / std::f64::consts::LN_2 + 0.5).floor();
    if twos < -1000.0 {
        return 0.0;
    }
    let rest = value - twos * std::f64::consts::LN_2;
    let mut sum = 1.0;
    for term in (1..=13).rev() {
        sum = 1.0 + sum * rest / f64::from(term);
    }
    sum * f64::from_bits(((twos.min(1000.0) as i64 + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_those_of_the_library() {
        for base in [1e-9, 0.3, 0.5, 0.999_999, 1.0, 1.5, 2.0, 1000.0, 4e6] {
            for exponent in [-0.99, -0.5, 0.0, 0.01, 0.5, 1.0, 2.0, 3.3] {
                let exact = f64::powf(base, exponent);
                let found = power(base, exponent);
                assert!(
                    (found / exact - 1.0).abs() < 1e-11,
                    "{base}^{exponent}: {found} {exact}"
                );
            }
        }
        assert_eq!(power(0.0, 0.5), 0.0);
        assert_eq!(power(1e-300, 100.0), 0.0);
    }

    #[test]
    fn sums_are_exact() {
        for theta in [0.2, 0.5, 0.99] {
            let exact: f64 = (1..=50_000).map(|rank| f64::from(rank).powf(-theta)).sum();
            assert!((zeta(50_000, theta) / exact - 1.0).abs() < 1e-6);
        }
    }

    #[test]
    fn ranks_come_as_often_as_they_should() {
        const DRAWS: u32 = 200_000;
        for theta in [0.5, 0.99] {
            let zipf = Zipf::new(1000, theta);
            let mut random = Random::new(1, 0);
            let mut counts = vec![0_u32; 1000];
            (0..DRAWS).for_each(|_| counts[zipf.rank(&mut random) as usize] += 1);
            // The method is exact for two ranks and close for the others; by tenths.
            let share = |ranks: std::ops::Range<usize>| {
                ranks
                    .map(|rank| ((rank + 1) as f64).powf(-theta))
                    .sum::<f64>()
                    / zeta(1000, theta)
            };
            for ranks in [0..1, 1..2, 0..100, 100..500, 500..1000] {
                let found = f64::from(counts[ranks.clone()].iter().sum::<u32>()) / f64::from(DRAWS);
                assert!(
                    (found - share(ranks.clone())).abs() < 0.02,
                    "{theta} {ranks:?} {found}"
                );
            }
        }
        assert_eq!(Zipf::new(1, 0.5).rank(&mut Random::new(1, 1)), 0);
    }
}
