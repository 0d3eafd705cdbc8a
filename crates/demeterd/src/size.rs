// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sizes as people write them.

/// Bytes of `4096`, `64K`, `512M`, `2G`, `1T`.
pub fn parse(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.char_indices().next_back() {
        Some((at, 'K' | 'k')) => (&text[..at], 10),
        Some((at, 'M' | 'm')) => (&text[..at], 20),
        Some((at, 'G' | 'g')) => (&text[..at], 30),
        Some((at, 'T' | 't')) => (&text[..at], 40),
        _ => (text, 0),
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|count| count.checked_mul(1 << shift))
        .ok_or_else(|| format!("'{text}' is not a size; write for example 512M or 2G"))
}

/// Bytes of a number in decimal or with 0x.
pub fn parse_address(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("'{text}' is not an address; write for example 0x40000000"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("3M"), Ok(3 << 20));
        assert_eq!(parse("2g"), Ok(2 << 30));
        for wrong in ["", "M", "1.5G", "-1", "99999999999T", "1é"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_address("0x1000"), Ok(4096));
        assert!(parse_address("0xg").is_err());
    }
}
