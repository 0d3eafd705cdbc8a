// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Times in buckets that grow with them, so that every percentile is known to
//! three percent (the scheme of HdrHistogram, hdrhistogram.org).

/// Buckets of each power of two.
const PARTS: u64 = 32;
const PART_BITS: u32 = PARTS.trailing_zeros();
const BUCKETS: usize = ((64 - PART_BITS + 1) as u64 * PARTS) as usize;

/// How often each time came.
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum_ns: u128,
    most_ns: u64,
}

impl Histogram {
    /// An empty one.
    pub fn new() -> Self {
        Self {
            counts: vec![0; BUCKETS],
            count: 0,
            sum_ns: 0,
            most_ns: 0,
        }
    }

    #[inline(always)]
    fn bucket(time_ns: u64) -> usize {
        let shift = (64 - time_ns.leading_zeros()).saturating_sub(PART_BITS + 1);
        (u64::from(shift) * PARTS + (time_ns >> shift)) as usize
    }

    /// The longest time of a bucket.
    fn most_of(bucket: usize) -> u64 {
        let bucket = bucket as u64;
        let shift = (bucket / PARTS).saturating_sub(1);
        let first = (bucket - shift * PARTS) << shift;
        first + ((1 << shift) - 1)
    }

    /// Adds a time.
    #[inline(always)]
    pub fn add(&mut self, time_ns: u64) {
        self.counts[Self::bucket(time_ns)] += 1;
        self.count += 1;
        self.sum_ns += u128::from(time_ns);
        self.most_ns = self.most_ns.max(time_ns);
    }

    /// Adds all times of another one.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.count += other.count;
        self.sum_ns += other.sum_ns;
        self.most_ns = self.most_ns.max(other.most_ns);
    }

    /// The time that `permille` of all times do not exceed; zero of none.
    pub fn percentile(&self, permille: u64) -> u64 {
        let wanted = (u128::from(self.count) * u128::from(permille)).div_ceil(1000);
        let mut seen = 0;
        for (bucket, &count) in self.counts.iter().enumerate() {
            seen += u128::from(count);
            if count > 0 && seen >= wanted {
                return Self::most_of(bucket).min(self.most_ns);
            }
        }
        self.most_ns
    }

    /// Mean of all times.
    pub fn mean(&self) -> u64 {
        self.sum_ns
            .checked_div(u128::from(self.count))
            .map_or(0, |mean| mean as u64)
    }

    /// The longest time.
    pub fn most(&self) -> u64 {
        self.most_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn buckets_hold_what_they_say() {
        for time in (0..2000).chain([u64::MAX, u64::MAX / 3, 1 << 40, (1 << 40) - 1]) {
            let bucket = Histogram::bucket(time);
            assert!(bucket < BUCKETS, "{time}");
            assert!(Histogram::most_of(bucket) >= time, "{time}");
            assert!(
                bucket == 0 || Histogram::most_of(bucket - 1) < time,
                "{time}"
            );
        }
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_times() {
        let mut random = Random::new(1, 0);
        let mut times: Vec<u64> = (0..10_000)
            .map(|_| {
                let bits = random.below(40);
                random.below(1 << bits)
            })
            .collect();
        let (mut one, mut other) = (Histogram::new(), Histogram::new());
        for (index, &time) in times.iter().enumerate() {
            if index % 3 == 0 { &mut one } else { &mut other }.add(time);
        }
        one.merge(&other);
        times.sort_unstable();
        for permille in [1, 500, 900, 990, 999, 1000] {
            let exact = times[(10 * permille as usize) - 1] as f64;
            let found = one.percentile(permille) as f64;
            assert!(found >= exact && found <= exact * 1.04 + 1.0, "{permille}");
        }
        assert_eq!(one.mean(), times.iter().sum::<u64>() / 10_000);
        assert_eq!(one.most(), times[9_999]);
        assert_eq!(Histogram::new().percentile(990), 0);
    }
}
