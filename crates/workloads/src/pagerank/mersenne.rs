// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The 32-bit Mersenne Twister (Matsumoto and Nishimura, 1998) and the three
//! distributions over it that the GAP generator uses, as GCC's library draws
//! them: so that the same seeds give the same graphs as the published code.

const WORDS: usize = 624;
const MIDDLE: usize = 397;

/// The generator.
pub struct Mersenne {
    state: [u32; WORDS],
    next: usize,
}

impl Mersenne {
    /// Seeds it as `std::mt19937(seed)` does.
    pub fn new(seed: u32) -> Self {
        let mut state = [seed; WORDS];
        for index in 1..WORDS {
            let last = state[index - 1];
            state[index] = (last ^ (last >> 30))
                .wrapping_mul(1_812_433_253)
                .wrapping_add(index as u32);
        }
        Self { state, next: WORDS }
    }

    fn refill(&mut self) {
        for index in 0..WORDS {
            let joined =
                (self.state[index] & 0x8000_0000) | (self.state[(index + 1) % WORDS] & 0x7fff_ffff);
            let twisted = (joined >> 1) ^ if joined & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[index] = self.state[(index + MIDDLE) % WORDS] ^ twisted;
        }
        self.next = 0;
    }

    /// 32 random bits.
    #[inline]
    pub fn word(&mut self) -> u32 {
        if self.next == WORDS {
            self.refill();
        }
        let mut value = self.state[self.next];
        self.next += 1;
        value ^= value >> 11;
        value ^= (value << 7) & 0x9d2c_5680;
        value ^= (value << 15) & 0xefc6_0000;
        value ^ (value >> 18)
    }

    /// A `float` in [0, 1), as `std::uniform_real_distribution<float>`.
    #[inline]
    pub fn unit(&mut self) -> f32 {
        const SPAN: f32 = 4_294_967_296.0;
        let value = self.word() as f32 / SPAN;
        if value < 1.0 {
            value
        } else {
            1.0_f32.next_down()
        }
    }

    /// An integer in [0, `range`), as `std::uniform_int_distribution` draws it
    /// since GCC 11: Lemire, "Fast Random Integer Generation in an Interval", 2019.
    #[inline]
    pub fn below(&mut self, range: u32) -> u32 {
        let mut product = u64::from(self.word()) * u64::from(range);
        if (product as u32) < range {
            let threshold = range.wrapping_neg() % range;
            while (product as u32) < threshold {
                product = u64::from(self.word()) * u64::from(range);
            }
        }
        (product >> 32) as u32
    }

    /// Shuffles as `std::shuffle` of GCC does: two positions from one number
    /// where the generator's range allows it.
    pub fn shuffle(&mut self, values: &mut [u32]) {
        let count = values.len() as u64;
        if count < 2 {
            return;
        }
        if u64::from(u32::MAX) / count < count {
            for index in 1..values.len() {
                let other = self.below(index as u32 + 1) as usize;
                values.swap(index, other);
            }
            return;
        }
        let mut index = 1;
        if count.is_multiple_of(2) {
            let other = self.below(2) as usize;
            values.swap(index, other);
            index += 1;
        }
        while index < values.len() {
            let first = index as u32 + 1;
            let both = self.below(first * (first + 1));
            values.swap(index, (both / (first + 1)) as usize);
            values.swap(index + 1, (both % (first + 1)) as usize);
            index += 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_thousandth_number_of_the_standard() {
        // C++ [rand.predef]: the 10000th invocation of a default mt19937.
        let mut random = Mersenne::new(5489);
        let last = (0..10_000).map(|_| random.word()).last();
        assert_eq!(last, Some(4_123_659_995));
    }

    // The next two were printed by a program of g++ 12 over std::mt19937(27491095).

    #[test]
    fn distributions_are_those_of_gcc() {
        let mut random = Mersenne::new(27_491_095);
        let floats: Vec<u32> = (0..4).map(|_| random.unit().to_bits()).collect();
        assert_eq!(floats, FLOAT_BITS);
        let mut random = Mersenne::new(27_491_095);
        let integers: Vec<u32> = (0..6).map(|_| random.below(3_000_000_000)).collect();
        assert_eq!(integers, INTEGERS);
    }

    #[test]
    fn shuffles_are_those_of_gcc() {
        for (count, expected) in [(8, SHUFFLE_8), (9, SHUFFLE_9), (100_000, SHUFFLE_100_000)] {
            let mut values: Vec<u32> = (0..count).collect();
            Mersenne::new(27_491_095).shuffle(&mut values);
            assert_eq!(values[..8], expected, "{count}");
        }
    }
    const FLOAT_BITS: [u32; 4] = [0x3e4caaa8, 0x3f601850, 0x3c8eb371, 0x3e8aa025];
    const INTEGERS: [u32; 6] = [
        599609235, 2626112957, 52258644, 812259166, 831287271, 1226679061,
    ];
    const SHUFFLE_8: [u32; 8] = [5, 6, 3, 2, 1, 4, 0, 7];
    const SHUFFLE_9: [u32; 8] = [6, 8, 7, 3, 0, 1, 5, 4];
    const SHUFFLE_100_000: [u32; 8] = [71009, 12600, 2911, 69611, 54011, 42696, 12965, 23113];
}
