// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a page holds: a header word that names the page and its version, and a
//! body that follows from both. Every byte can be told again from those two
//! numbers, so a page that was lost, torn or mixed up is found.

/// 64-bit words of a page.
pub const WORDS: usize = 512;
/// Random words and a repeated one alternate in blocks of this many words.
const BLOCK_WORDS: usize = 128;

/// How the body of pages is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contents {
    /// Share of random words in a page, in percent
    pub entropy_percent: u8,
    /// The body changes with the version, not only the header
    pub whole_page: bool,
    /// Seed of all bodies
    pub seed: u64,
}

/// Header of a page.
#[inline(always)]
pub fn header(page: u64, version: u32) -> u64 {
    (u64::from(version) << 32) | (page & 0xffff_ffff)
}

impl Contents {
    /// Calls `word(index, value)` for every word of the page, header first.
    #[inline(always)]
    fn each(&self, page: u64, version: u32, mut word: impl FnMut(usize, u64)) {
        word(0, header(page, version));
        let body_version = if self.whole_page { version } else { 0 };
        let mut state = mix(self.seed ^ mix(header(page, body_version)));
        let random_words = BLOCK_WORDS * usize::from(self.entropy_percent) / 100;
        let repeated = mix(state);
        for index in 1..WORDS {
            let value = if index % BLOCK_WORDS < random_words {
                // xorshift64, period 2^64 - 1; `mix` gives no zero in practice,
                // and a zero would only make a body of zeros.
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state
            } else {
                repeated
            };
            word(index, value);
        }
    }

    /// Writes the whole page.
    ///
    /// # Safety
    /// `at` points to `WORDS` words that nobody else writes.
    pub unsafe fn write(&self, at: *mut u64, page: u64, version: u32) {
        self.each(page, version, |index, value| {
            // SAFETY: index < WORDS, by the caller's promise.
            unsafe { at.add(index).write_volatile(value) }
        });
    }

    /// Number of words that differ from what they must be.
    ///
    /// # Safety
    /// `at` points to `WORDS` readable words that nobody writes.
    pub unsafe fn wrong_words(&self, at: *const u64, page: u64, version: u32) -> u64 {
        let mut wrong = 0;
        self.each(page, version, |index, value| {
            // SAFETY: index < WORDS, by the caller's promise.
            wrong += u64::from(unsafe { at.add(index).read_volatile() } != value);
        });
        wrong
    }
}

/// The finaliser of splitmix64.
pub fn mix(mut value: u64) -> u64 {
    value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(contents: Contents, number: u64, version: u32) -> Vec<u64> {
        let mut words = vec![0; WORDS];
        // SAFETY: the vector has WORDS words.
        unsafe { contents.write(words.as_mut_ptr(), number, version) };
        words
    }

    const FULL: Contents = Contents {
        entropy_percent: 100,
        whole_page: true,
        seed: 7,
    };

    #[test]
    fn every_word_is_checked() {
        for entropy_percent in [0, 30, 100] {
            let contents = Contents {
                entropy_percent,
                ..FULL
            };
            let mut words = page(contents, 3, 9);
            for index in 0..WORDS {
                words[index] ^= 1 << 40;
                // SAFETY: the vector has WORDS words.
                assert_eq!(unsafe { contents.wrong_words(words.as_ptr(), 3, 9) }, 1);
                words[index] ^= 1 << 40;
            }
            // SAFETY: as above.
            assert_eq!(unsafe { contents.wrong_words(words.as_ptr(), 3, 9) }, 0);
        }
    }

    #[test]
    fn pages_and_versions_differ() {
        assert_ne!(page(FULL, 1, 1)[1..], page(FULL, 2, 1)[1..]);
        assert_ne!(page(FULL, 1, 1)[1..], page(FULL, 1, 2)[1..]);
        let header_only = Contents {
            whole_page: false,
            ..FULL
        };
        assert_eq!(page(header_only, 1, 1)[1..], page(header_only, 1, 2)[1..]);
    }

    #[test]
    fn entropy_is_the_share_of_distinct_words() {
        for (entropy_percent, low, high) in [(0, 1, 2), (30, 150, 156), (100, 512, 512)] {
            let mut words = page(
                Contents {
                    entropy_percent,
                    ..FULL
                },
                5,
                0,
            );
            words.sort_unstable();
            words.dedup();
            assert!((low..=high).contains(&words.len()), "{}", words.len());
        }
    }
}
