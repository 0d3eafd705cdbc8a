// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Numbers of the command line that have to be within bounds, and digests of computed ones.

use std::fmt::Display;
use std::str::FromStr;

/// Not a number, or one out of bounds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("give {what} from {least} to {most}")]
pub struct OutOfBounds {
    what: &'static str,
    least: String,
    most: String,
}

/// Reads `what`, which is from `least` to `most`.
///
/// # Errors
/// [`OutOfBounds`].
pub fn within<T>(text: &str, what: &'static str, least: T, most: T) -> Result<T, OutOfBounds>
where
    T: FromStr + PartialOrd + Display,
{
    (text.parse().ok())
        .filter(|number| (&least..=&most).contains(&number))
        .ok_or_else(|| OutOfBounds {
            what,
            least: least.to_string(),
            most: most.to_string(),
        })
}

/// Digest of numbers to their last bit, in their order.
pub fn digest<'a>(numbers: impl IntoIterator<Item = &'a f64>) -> u64 {
    numbers.into_iter().fold(0, |sum: u64, number| {
        (sum ^ number.to_bits())
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(23)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_belong_to_what_is_taken() {
        assert_eq!(within("0.5", "a share", 0.5, 1.0), Ok(0.5));
        assert_eq!(within("7", "rows", 2, 7), Ok(7));
        for bad in ["0.4", "1.1", "nan", "", "x"] {
            let error = within(bad, "a share", 0.5, 1.0).unwrap_err();
            assert_eq!(error.to_string(), "give a share from 0.5 to 1", "{bad}");
        }
    }

    #[test]
    fn the_digest_sees_order_and_the_last_bit() {
        let close = f64::from_bits(1.0_f64.to_bits() + 1);
        let digests = [&[1.0, 2.0][..], &[2.0, 1.0], &[close, 2.0], &[1.0]].map(digest);
        for (index, one) in digests.iter().enumerate() {
            assert!(!digests[index + 1..].contains(one));
        }
    }
}
