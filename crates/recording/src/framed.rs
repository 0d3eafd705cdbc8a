// SPDX-License-Identifier: Apache-2.0 OR MIT
//! For the fuzzer: bytes that get as far as to be unpacked, whatever they are.

use crate::{KIND_END, KIND_HEADER, KIND_RESIDENT, KIND_WINDOW, MAGIC, checksum};

/// A file whose blocks have right checksums. Each is made of a byte that says its kind and
/// form, its length in two bytes, and as many bytes, which are packed or taken as such.
#[must_use]
pub fn framed(mut bytes: &[u8]) -> Vec<u8> {
    let mut file = MAGIC.to_vec();
    block(&mut file, KIND_HEADER, b"{}", false);
    while let [form, low, high, rest @ ..] = bytes {
        let length = usize::from(*low) | usize::from(*high) << 8;
        let (payload, left) = rest.split_at(length.min(rest.len()));
        bytes = left;
        let kind = match form % 8 {
            0..=3 => KIND_WINDOW,
            4 | 5 => KIND_RESIDENT,
            6 => KIND_END,
            _ => *form,
        };
        block(&mut file, kind, payload, form & 0x80 != 0);
    }
    file
}

/// `is_stored`: the first four bytes are the length that the others claim to unpack to.
fn block(file: &mut Vec<u8>, kind: u8, payload: &[u8], is_stored: bool) {
    let (length, stored) = match payload {
        [a, b, c, d, stored @ ..] if is_stored => {
            (u32::from_le_bytes([*a, *b, *c, *d]), stored.to_vec())
        }
        _ => (payload.len() as u32, lz4_flex::block::compress(payload)),
    };
    file.push(kind);
    for number in [length, stored.len() as u32, checksum(kind, length, &stored)] {
        file.extend(number.to_le_bytes());
    }
    file.extend(stored);
}
