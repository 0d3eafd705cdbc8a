// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sequential streams: misses whose latency a prefetcher hides.

/// Streams followed at once, as many as the L2 prefetcher of a Xeon follows: a
/// copy has two, a stencil of blocks a dozen and more.
const STREAMS: usize = 32;
/// Lines a stream may skip: some of its lines hit in a cache and are not seen here.
const REACH: u32 = 2;
/// Misses in sequence after which the following ones are taken for prefetched.
const CONFIDENT: u8 = 2;

/// Detects, per vCPU, misses that continue a run of neighbouring lines.
#[derive(Clone, Debug)]
pub struct Streams {
    /// Low bits of the last line of each stream; a false match needs lines 256 GiB apart.
    last: [u32; STREAMS],
    length: [u8; STREAMS],
    next: usize,
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            last: [0; STREAMS],
            length: [0; STREAMS],
            next: 0,
        }
    }
}

impl Streams {
    /// Takes the virtual address of a miss; whether a stream covers it.
    #[inline]
    pub fn miss(&mut self, va: u64) -> bool {
        let line = (va >> 6) as u32;
        let near = |last: u32| line.wrapping_sub(last).wrapping_add(REACH) <= 2 * REACH;
        // Most misses continue no stream: all are compared at once, without a branch.
        let any = self.last.iter().fold(false, |any, &last| any | near(last));
        let found = any.then(|| self.last.iter().position(|&last| near(last)));
        if let Some(index) = found.flatten() {
            self.last[index] = line;
            let length = self.length[index];
            self.length[index] = length.saturating_add(1).min(CONFIDENT);
            return length >= CONFIDENT;
        }
        self.last[self.next] = line;
        self.length[self.next] = 0;
        self.next = (self.next + 1) % STREAMS;
        false
    }

    /// Forgets all streams.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covered(lines: impl Iterator<Item = u64>) -> usize {
        let mut streams = Streams::default();
        lines.filter(|line| streams.miss(line << 6)).count()
    }

    #[test]
    fn all_but_the_first_three_lines_of_a_run_are_covered() {
        assert_eq!(covered(1000..1100), 97);
        assert_eq!(covered((1000..1100).rev()), 97);
        assert_eq!(covered((1000..1200).step_by(2)), 97);
    }

    #[test]
    fn a_copy_is_two_streams() {
        assert_eq!(covered((0..100).flat_map(|i| [1000 + i, 500_000 + i])), 194);
    }

    #[test]
    fn a_stencil_of_blocks_is_followed_whole() {
        // Seven arrays of blocks, seven places of the vector, one to write.
        let stencil = |streams: u64| {
            covered((0..100).flat_map(move |i| (0..streams).map(move |s| (s << 20) + 1000 + i)))
        };
        assert_eq!(stencil(15), 15 * 97);
        assert_eq!(stencil(STREAMS as u64), STREAMS * 97);
        assert_eq!(stencil(STREAMS as u64 + 1), 0);
    }

    #[test]
    fn strides_and_random_lines_are_not() {
        assert_eq!(covered((1000..9000).step_by(8)), 0);
        let mut x = 88_172_645_463_325_252u64;
        let random = (0..10_000).map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x % (1 << 23)
        });
        assert!(covered(random) < 5);
    }
}
