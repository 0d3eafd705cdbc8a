// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Byte sizes as people write them: `128M`, `4KiB`, `1.5G`, `4096`.

/// What is wrong with a text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// A letter that is none.
    #[error("'{0}' has an unknown unit; use K, M, G or T")]
    Unit(String),
    /// No number.
    #[error("'{0}' is not a size; write for example 128M")]
    Malformed(String),
    /// More than 64 bits.
    #[error("'{0}' is too large")]
    TooLarge(String),
}

/// Reads a size in bytes; K, M, G and T are powers of 1024.
///
/// # Errors
/// What is wrong with `text`.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let trimmed = text.trim();
    let digits = trimmed
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(SizeError::Unit(text.to_owned())),
    };
    let scale = 1_u64 << shift;
    let malformed = || SizeError::Malformed(text.to_owned());
    let too_large = || SizeError::TooLarge(text.to_owned());
    let Some((whole, fraction)) = number.split_once('.') else {
        let whole: u64 = number.parse().map_err(|_| malformed())?;
        return whole.checked_mul(scale).ok_or_else(too_large);
    };
    let whole: u64 = whole.parse().map_err(|_| malformed())?;
    if fraction.is_empty() || fraction.len() > 9 {
        return Err(malformed());
    }
    let parts: u64 = fraction.parse().map_err(|_| malformed())?;
    let denominator = 10_u128.pow(fraction.len() as u32);
    let fraction_bytes = u64::try_from(u128::from(parts) * u128::from(scale) / denominator)
        .map_err(|_| too_large())?;
    whole
        .checked_mul(scale)
        .and_then(|bytes| bytes.checked_add(fraction_bytes))
        .ok_or_else(too_large)
}

/// Writes a size with the largest unit that divides it.
#[must_use]
pub fn format(bytes: u64) -> String {
    for (shift, unit) in [(40, "T"), (30, "G"), (20, "M"), (10, "K")] {
        if bytes >= 1 << shift && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_units() {
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("128M"), Ok(128 << 20));
        assert_eq!(parse("2 MiB"), Ok(2 << 20));
        assert_eq!(parse("1.5g"), Ok(3 << 29));
        assert_eq!(parse("0"), Ok(0));
    }

    #[test]
    fn refuses_nonsense() {
        for text in ["", "M", "12X", "1.", ".5M", "-1M", "99999999999T", "1.2.3M"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn writes_what_it_reads() {
        for bytes in [1, 1023, 1024, 128 << 20, 3 << 29, 1 << 40] {
            assert_eq!(parse(&format(bytes)), Ok(bytes));
        }
    }
}
