// SPDX-License-Identifier: Apache-2.0 OR MIT
//! LEB128.

/// Appends a number.
pub fn put(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Reads numbers one after the other.
pub struct Numbers<'a> {
    bytes: &'a [u8],
}

impl<'a> Numbers<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// The next one; `None` if there is none, or it is above 64 bits.
    #[inline]
    pub fn take(&mut self) -> Option<u64> {
        let (&first, rest) = self.bytes.split_first()?;
        if first < 0x80 {
            self.bytes = rest;
            return Some(u64::from(first));
        }
        let mut value = 0u64;
        for (index, &byte) in self.bytes.iter().enumerate().take(10) {
            let part = u64::from(byte & 0x7f);
            if index == 9 && part > 1 {
                return None;
            }
            value |= part << (index * 7);
            if byte < 0x80 {
                self.bytes = &self.bytes[index + 1..];
                return Some(value);
            }
        }
        None
    }

    /// Whether all have been taken.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bytes left: no fewer than numbers.
    pub fn left(&self) -> usize {
        self.bytes.len()
    }
}
