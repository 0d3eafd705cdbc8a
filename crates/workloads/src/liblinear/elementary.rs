// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Exponential and logarithm from additions and multiplications alone: the C
//! library's depend on its version and on the processor's instructions, and a
//! run's digits must not. Errors are a few units of the last place.

use std::f64::consts::{LN_2, LOG2_E, SQRT_2};

/// ln 2 in two parts; the first has so few bits that its products with the
/// exponents that occur are exact.
const LN_2_HIGH: f64 = 0.693_147_180_369_123_8;
const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
/// Where the results stay normal numbers.
const EXPONENT_MOST: f64 = 700.0;
/// Terms of the exponential's series: 0.35^14 / 14! is below 2^-54.
const EXP_TERMS: u32 = 13;
/// Terms of the logarithm's series: 0.172^24 / 25 is below 2^-60.
const LN_TERMS: u32 = 11;

/// e^x, for x cut to [-700, 700].
#[inline]
pub fn exp(x: f64) -> f64 {
    let x = x.clamp(-EXPONENT_MOST, EXPONENT_MOST);
    let power = (x * LOG2_E + if x < 0.0 { -0.5 } else { 0.5 }) as i64;
    let rest = (x - power as f64 * LN_2_HIGH) - power as f64 * LN_2_LOW;
    let mut sum = 1.0;
    for term in (1..=EXP_TERMS).rev() {
        sum = 1.0 + sum * rest * RECIPROCALS[term as usize];
    }
    sum * f64::from_bits(((1023 + power) as u64) << 52)
}

/// The natural logarithm of a positive normal number.
#[inline]
pub fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut power = (bits >> 52) as i64 - 1023;
    let mut fraction = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    if fraction > SQRT_2 {
        fraction *= 0.5;
        power += 1;
    }
    let ratio = (fraction - 1.0) / (fraction + 1.0);
    let square = ratio * ratio;
    let mut sum = 0.0;
    for term in (1..=LN_TERMS).rev() {
        sum = (sum + RECIPROCALS[2 * term as usize + 1]) * square;
    }
    power as f64 * LN_2 + (2.0 * ratio + 2.0 * ratio * sum)
}

const RECIPROCALS: [f64; 24] = {
    let mut reciprocals = [0.0; 24];
    let mut number = 1;
    while number < reciprocals.len() {
        reciprocals[number] = 1.0 / number as f64;
        number += 1;
    }
    reciprocals
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_those_of_the_library() {
        let mut x = -690.0;
        while x < 690.0 {
            assert!((exp(x) / x.exp() - 1.0).abs() < 1e-14, "{x}");
            let small = x * 1e-3;
            assert!((exp(small) / small.exp() - 1.0).abs() < 1e-15, "{small}");
            let positive = x.exp();
            assert!((ln(positive) - x).abs() < 1e-15 * x.abs().max(1.0), "{x}");
            x += 0.137;
        }
        let mut x = 1.0;
        while x < 3.0 {
            assert!((ln(x) - x.ln()).abs() < 4e-16, "{x}");
            x += 0.001_3;
        }
    }

    #[test]
    fn edges() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(ln(1.0), 0.0);
        assert_eq!(exp(1e300), exp(700.0));
        assert_eq!(exp(-1e300), exp(-700.0));
        assert!(exp(-700.0) > 0.0 && exp(700.0).is_finite());
    }
}
