// SPDX-License-Identifier: Apache-2.0 OR MIT
//! FNV-1a, for digests of what a run produced.

/// A running 64-bit FNV-1a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    /// Adds bytes.
    pub fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    /// Adds words as little-endian bytes.
    pub fn write_words(&mut self, words: &[u64]) {
        for word in words {
            self.write(&word.to_le_bytes());
        }
    }

    /// The hash so far, as 16 hex digits.
    #[must_use]
    pub fn hex(self) -> String {
        format!("{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn published_vectors() {
        let mut hash = super::Fnv::default();
        assert_eq!(hash.hex(), "cbf29ce484222325");
        hash.write(b"foobar");
        assert_eq!(hash.hex(), "85944171f73967e8");
        let mut words = super::Fnv::default();
        words.write_words(&[u64::from_le_bytes(*b"foobar\0\0")]);
        hash.write(&[0, 0]);
        assert_eq!(words, hash);
    }
}
