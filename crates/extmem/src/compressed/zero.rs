// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages of zeros need neither slot nor object.

use crate::region::PAGE_BYTES;

const CHUNK_WORDS: usize = 16;

/// True when every byte is zero. Most other pages are told by their first bytes.
///
/// # Safety
/// `page` must be aligned to 8 and readable for a page.
pub unsafe fn is_zero_page(page: *const u8) -> bool {
    // SAFETY: the caller says so.
    let words = unsafe { std::slice::from_raw_parts(page.cast::<u64>(), PAGE_BYTES / 8) };
    words
        .chunks_exact(CHUNK_WORDS)
        .all(|chunk| chunk.iter().fold(0, |sum, word| sum | word) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bit_anywhere_counts() {
        let mut page = vec![0u64; 512];
        // SAFETY: a page of words.
        assert!(unsafe { is_zero_page(page.as_ptr().cast()) });
        for index in 0..512 {
            page[index] = 1 << 63;
            // SAFETY: as above.
            assert!(!unsafe { is_zero_page(page.as_ptr().cast()) }, "{index}");
            page[index] = 0;
        }
    }
}
