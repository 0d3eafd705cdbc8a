// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The linear congruential generator of XSBench, with skipping ahead (Brown,
//! "Random Number Generation with Arbitrary Strides", 1994).

const MULTIPLIER: u64 = 2_806_196_910_506_780_709;
const INCREMENT: u64 = 1;
const MODULUS: u64 = 1 << 63;

/// A state of the generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lcg(pub u64);

impl Lcg {
    /// The next number in [0, 1).
    #[inline(always)]
    pub fn unit(&mut self) -> f64 {
        self.0 = MULTIPLIER.wrapping_mul(self.0).wrapping_add(INCREMENT) % MODULUS;
        self.0 as f64 / MODULUS as f64
    }

    /// The state `steps` numbers later.
    #[inline]
    pub fn ahead(self, steps: u64) -> Self {
        let (mut multiplier, mut increment) = (MULTIPLIER, INCREMENT);
        let (mut all_multiplier, mut all_increment) = (1_u64, 0_u64);
        let mut rest = steps % MODULUS;
        while rest > 0 {
            if rest & 1 == 1 {
                all_multiplier = all_multiplier.wrapping_mul(multiplier);
                all_increment = all_increment
                    .wrapping_mul(multiplier)
                    .wrapping_add(increment);
            }
            increment = increment.wrapping_mul(multiplier.wrapping_add(1));
            multiplier = multiplier.wrapping_mul(multiplier);
            rest >>= 1;
        }
        Self(
            all_multiplier
                .wrapping_mul(self.0)
                .wrapping_add(all_increment)
                % MODULUS,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ahead_is_as_many_steps() {
        for steps in [0, 1, 2, 77, 1000] {
            let mut walked = Lcg(42);
            (0..steps).for_each(|_| {
                walked.unit();
            });
            assert_eq!(Lcg(42).ahead(steps), walked);
        }
    }
}
