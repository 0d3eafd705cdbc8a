// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names of virtual machines: parts of paths, of addresses of the control interface, and of
//! labels of metrics.

/// Longest name.
const MOST_BYTES: usize = 64;

/// Can this be the name of a machine? Letters, digits, `-`, `_` and `.`, no more than 64, and
/// no dot at the beginning: a file of that name is no hidden one, and no folder above.
pub fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=MOST_BYTES).contains(&text.len()) && text.chars().all(plain) && !text.starts_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_and_short() {
        let longest = "x".repeat(64);
        for name in ["a", "web-1", "A_b.c", "7", "-", &longest] {
            assert!(is_name(name), "{name}");
        }
        let longer = "x".repeat(65);
        let wrong = [
            "", ".", "..", ".a", "a/b", "a b", "a,b", "a\0", "a\n", "%2e", "\u{e9}", &longer,
        ];
        for name in wrong {
            assert!(!is_name(name), "{name:?}");
        }
    }
}
