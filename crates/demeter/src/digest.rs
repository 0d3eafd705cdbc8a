// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SHA-256, in hexadecimal.

use sha2::{Digest, Sha256};

/// Of one piece.
pub fn sha256(bytes: &[u8]) -> String {
    sha256_of([bytes])
}

/// Of several pieces; their lengths are part of it.
pub fn sha256_of<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hasher = Sha256::new();
    let mut first = true;
    for piece in pieces {
        if !first {
            hasher.update((piece.len() as u64).to_le_bytes());
        }
        first = false;
        hasher.update(piece);
    }
    hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_value() {
        assert!(sha256(b"").starts_with("e3b0c44298fc1c14"));
    }

    #[test]
    fn borders_count() {
        assert_ne!(
            sha256_of([b"x".as_slice(), b"ab", b"c"]),
            sha256_of([b"x".as_slice(), b"a", b"bc"])
        );
    }
}
