// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sampling unit: one in so many eligible loads.
//!
//! In which order the loads of a window came is not recorded. Those that are sampled
//! are drawn at random, the same in each run.

/// Counts loads, and picks some.
#[derive(Clone, Debug)]
pub struct Sampler {
    state: u64,
    /// Loads until the next sample.
    left: u64,
    /// Loads of the running window that are sampled, the last first.
    picked: Vec<u64>,
}

impl Sampler {
    /// The first sample comes after `period` loads; of different seeds others are drawn.
    pub fn new(period: u64, seed: u64) -> Self {
        Self {
            state: 0x5eed ^ seed << 32,
            left: period.max(1),
            picked: Vec::new(),
        }
    }

    /// `splitmix64`.
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// The counter begins anew.
    pub fn restart(&mut self, period: u64) {
        self.left = period.max(1);
    }

    /// A window of so many eligible loads begins.
    pub fn begin(&mut self, eligible: u64, period: u64) {
        self.picked.clear();
        let period = period.max(1);
        if eligible < self.left {
            self.left -= eligible;
            return;
        }
        let beyond = eligible - self.left;
        let samples = 1 + beyond / period;
        self.left = period - beyond % period;
        for _ in 0..samples {
            let at = (u128::from(self.random()) * u128::from(eligible)) >> 64;
            self.picked.push(at as u64);
        }
        self.picked.sort_unstable_by(|a, b| b.cmp(a));
    }

    /// The next `before` loads of the window are of one page: how many are sampled.
    /// `before` counts from the window's first.
    #[inline]
    pub fn picked(&mut self, before: u64) -> u32 {
        let mut count = 0;
        while self.picked.last().is_some_and(|&at| at < before) {
            self.picked.pop();
            count += 1;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_a_period_and_evenly() {
        let mut sampler = Sampler::new(10, 0);
        let (mut low, mut all) = (0, 0);
        for window in 0..1000_u64 {
            let eligible = 37 + window % 7;
            sampler.begin(eligible, 10);
            low += sampler.picked(eligible / 2);
            all += sampler.picked(eligible);
        }
        let loads: u64 = (0..1000_u64).map(|window| 37 + window % 7).sum();
        all += low;
        assert_eq!(u64::from(all), loads / 10);
        let share = f64::from(low) / f64::from(all);
        assert!((share - 0.49).abs() < 0.03, "{share}");
        sampler.restart(50);
        sampler.begin(49, 10);
        assert_eq!(sampler.picked(49), 0);
    }
}
