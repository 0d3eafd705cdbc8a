// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is remembered of a guest from one decision to the next: its counters become rates.

use demeter_balloon::{NodeStatistics, Statistics};

use super::{Account, Claim, Guest, Probe};

/// Samples that one processor can take in a second: writing down one costs it a
/// microsecond.
pub const MOST_SAMPLES_PER_S: f64 = 1e6;
/// Weight of the newest rate in the smoothed one.
const NEWEST: f64 = 0.3;

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    fast_samples: u64,
    slow_samples: u64,
    stall_us: u64,
    /// The guest's clock when it last spoke; 0: it has not.
    pub guest_time_ns: u64,
    /// Sampled accesses a second, smoothed.
    pub access_rate: Option<f64>,
    /// Share of them that went to SMEM, of a thousand.
    pub slow_permille: Option<u32>,
    /// Share of time in which a task waited for memory, of a thousand.
    pub stall_permille: Option<u32>,
    /// Decisions since its size was last changed.
    pub steady_rounds: u32,
    size_pages: u64,
    /// What it may have beyond its share.
    pub account: Account,
    refaults: u64,
    /// Kept while it is silent: what killed its programs may be why.
    ooms: Option<u64>,
    /// Of the newest statistics.
    pub news: News,
    /// Of its memory as a whole.
    pub probe: Probe,
}

/// What the newest statistics add to those of the decision before.
#[derive(Debug, Clone, Copy, Default)]
pub struct News {
    /// The guest's time.
    pub elapsed_s: f64,
    /// Pages that were missed.
    pub refaults: u64,
    /// It ran out of memory.
    pub oom: bool,
}

/// What was configured for a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entitled {
    /// Least FMEM.
    pub floor_pages: u64,
    /// Most; none: all of the tier.
    pub ceiling_pages: Option<u64>,
    /// Part of what is above the floors.
    pub weight: u64,
    /// For `static`.
    pub fixed_pages: Option<u64>,
}

impl Memory {
    /// Of a guest that comes with that account.
    pub fn new(account: Account) -> Self {
        Self {
            account,
            ..Self::default()
        }
    }

    /// Counters of the guest become rates; a guest that was rebooted counts from
    /// zero again and tells nothing this time.
    pub fn learn(&mut self, statistics: Option<&Statistics>, most_per_s: f64) {
        let Some(now) = statistics else {
            // Whoever is silent, or was rebooted, gets no new account for it.
            *self = Self {
                account: self.account,
                steady_rounds: self.steady_rounds,
                size_pages: self.size_pages,
                probe: self.probe,
                ooms: self.ooms,
                ..Self::default()
            };
            return;
        };
        let elapsed_ns = now.guest_time_ns.saturating_sub(self.guest_time_ns);
        let known = self.guest_time_ns > 0;
        let ooms = now.oom_kills.saturating_add(now.oom_deflated_pages);
        self.news = News {
            elapsed_s: elapsed_ns as f64 / 1e9,
            refaults: now.refaults.saturating_sub(self.refaults),
            oom: self.ooms.is_some_and(|before| ooms > before),
        };
        if !known {
            // Of the time before anybody looked.
            self.news = News {
                oom: self.news.oom,
                ..News::default()
            };
        }
        self.refaults = now.refaults;
        self.ooms = Some(ooms);
        if elapsed_ns > 0 {
            let fast = now.fmem_samples.checked_sub(self.fast_samples);
            let slow = now.smem_samples.checked_sub(self.slow_samples);
            let stall = now.psi_some_us.checked_sub(self.stall_us);
            if let (true, true, Some(fast), Some(slow)) = (known, now.has_tmm, fast, slow) {
                let all = fast.saturating_add(slow);
                let rate = (all as f64 * 1e9 / elapsed_ns as f64).min(most_per_s);
                let old = self.access_rate.unwrap_or(rate);
                self.access_rate = Some(old + NEWEST * (rate - old));
                self.slow_permille =
                    (all > 0).then(|| (u128::from(slow) * 1000 / u128::from(all)) as u32);
            } else {
                self.access_rate = None;
                self.slow_permille = None;
            }
            self.stall_permille = match stall {
                Some(stall) if known && now.has_psi => {
                    let permille = u128::from(stall) * 1_000_000 / u128::from(elapsed_ns);
                    Some(permille.min(1000) as u32)
                }
                _ => None,
            };
        }
        self.guest_time_ns = now.guest_time_ns;
        self.fast_samples = now.fmem_samples;
        self.slow_samples = now.smem_samples;
        self.stall_us = now.psi_some_us;
    }

    /// The guest was last told this size: how many decisions that has been so.
    pub fn told_size(&mut self, size_pages: u64) -> u32 {
        self.steady_rounds = if self.size_pages == size_pages {
            self.steady_rounds.saturating_add(1)
        } else {
            0
        };
        self.size_pages = size_pages;
        self.steady_rounds
    }

    /// What a policy knows of a guest that has `size_pages` of a tier of `total_pages`;
    /// `resident_pages` is what the host has allocated, if that can be seen: no more can be hot.
    #[must_use]
    pub fn guest(
        &self,
        entitled: &Entitled,
        total_pages: u64,
        size_pages: u64,
        statistics: Option<&Statistics>,
        resident_pages: Option<u64>,
    ) -> Guest {
        let floor_pages = entitled.floor_pages.min(total_pages);
        let node = statistics.and_then(|statistics| statistics.nodes.first());
        let hot_pages = |statistics: &Statistics| {
            let held = node.map_or(0, |node| held_pages(total_pages, node));
            (statistics.hot_wanted_pages.saturating_add(held))
                .min(resident_pages.unwrap_or(u64::MAX))
        };
        Guest {
            size_pages,
            claim: Claim {
                floor_pages,
                ceiling_pages: (entitled.ceiling_pages)
                    .unwrap_or(total_pages)
                    .clamp(floor_pages, total_pages),
                weight: entitled.weight,
            },
            fixed_pages: entitled.fixed_pages,
            hot_pages: statistics
                .filter(|statistics| statistics.has_tmm)
                .map(hot_pages),
            free_pages: node.map_or(0, |node| node.free_pages),
            access_rate: self.access_rate.unwrap_or(0.0),
            slow_permille: self.slow_permille,
            stall_permille: self.stall_permille,
            steady_rounds: self.steady_rounds,
            may_borrow: self.account.may_borrow(),
            memory_pages: None,
            used_pages: None,
        }
    }
}

/// FMEM that no hot page can have: what the guest's kernel holds of it, or never
/// managed. A size that is to hold the hot set must hold this too.
#[must_use]
pub fn held_pages(total_pages: u64, node: &NodeStatistics) -> u64 {
    total_pages
        .saturating_sub(node.balloon_pages)
        .saturating_sub(node.free_pages)
        .saturating_sub(node.anon_pages)
        .saturating_sub(node.file_pages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use demeter_balloon::statistics::Trigger;

    /// A guest that has sampled 1000 accesses of each tier, and stalled for 1 ms, in each
    /// second that has passed.
    fn at(seconds: u64, guest_time_ns: u64) -> Statistics {
        Statistics {
            sequence: 0,
            guest_time_ns,
            event: Trigger::Periodic,
            has_tmm: true,
            has_psi: true,
            fmem_samples: 1000 * seconds,
            smem_samples: 1000 * seconds,
            hot_wanted_pages: 100,
            psi_some_us: 1000 * seconds,
            psi_full_us: 0,
            oom_kills: 0,
            oom_deflated_pages: 0,
            refaults: 10 * seconds,
            nodes: Vec::new(),
        }
    }

    #[test]
    fn a_clock_that_leaps_to_the_end_of_time_and_back_is_believed_again() {
        const SECOND: u64 = 1_000_000_000;
        let mut memory = Memory::default();
        for seconds in 1..=3 {
            memory.learn(Some(&at(seconds, seconds * SECOND)), 1e6);
        }
        assert_eq!(memory.access_rate, Some(2000.0));
        assert_eq!(memory.stall_permille, Some(1));
        let believed = memory.access_rate;
        // Nothing happened in so long a time; nothing overflows.
        memory.learn(Some(&at(4, u64::MAX)), 1e6);
        assert!(memory.access_rate < believed && memory.access_rate >= Some(0.0));
        assert_eq!(memory.stall_permille, Some(0));
        assert!(memory.news.elapsed_s.is_finite());
        // No time passes backwards: no rate is learned, and none invented.
        let before = memory.access_rate;
        memory.learn(Some(&at(5, 5 * SECOND)), 1e6);
        assert_eq!(memory.access_rate, before);
        assert_eq!(memory.news.elapsed_s, 0.0);
        for seconds in 6..=40 {
            memory.learn(Some(&at(seconds, seconds * SECOND)), 1e6);
            assert_eq!(memory.news.elapsed_s, 1.0);
            assert_eq!(memory.news.refaults, 10);
            assert_eq!(memory.stall_permille, Some(1));
        }
        let rate = memory.access_rate.unwrap();
        assert!((rate - 2000.0).abs() < 1.0, "{rate}");
    }

    #[test]
    fn counters_that_leap_back_with_the_clock_tell_nothing_once() {
        let mut memory = Memory::default();
        memory.learn(Some(&at(1, 1_000_000_000)), 1e6);
        memory.learn(Some(&at(u64::MAX / 1000, u64::MAX)), 1e6);
        assert!(memory.access_rate <= Some(1e6));
        memory.learn(Some(&at(2, 2_000_000_000)), 1e6);
        memory.learn(Some(&at(3, 3_000_000_000)), 1e6);
        assert!(memory.access_rate <= Some(1e6));
        assert_eq!(memory.slow_permille, Some(500));
        assert_eq!((memory.news.elapsed_s, memory.news.refaults), (1.0, 10));
    }
}
