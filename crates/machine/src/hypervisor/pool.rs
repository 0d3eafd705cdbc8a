// SPDX-License-Identifier: Apache-2.0 OR MIT
//! FMEM that is one pool for several guests.
//!
//! Each guest has a table, lists and a scanner of its own, as each monitor has in Linux, where
//! libvirt and Kubernetes put it into a memory cgroup of its own. What is shared is FMEM, kswapd's
//! one thread, and the order of those managers that sort pages.
//!
//! Guests *meet* at equal distances of their clocks and tell each other how they stand. In between
//! nobody hears of anybody ([`super::share`]).

use super::ranks::{RANKS, Ranked};
use super::share::parts;

/// How much of the guests' clocks lies between two meetings: far below the intervals at which any
/// manager looks at pages, and a tenth of kswapd's.
pub const MEETING_NS: u64 = 1_000_000;

/// How much more a page counts that was asked for than a guest that might ask.
const ASKED_WEIGHT: u64 = 4;

/// How a guest stands at a meeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Pages of the host's that it has of FMEM.
    pub fmem_pages: u64,
    /// Pages that it could have used beside: of its last sort, or since the last meeting.
    pub asked_pages: u64,
    /// Pages demoted so far.
    pub demoted_pages: u64,
    /// Pages for which it found no room so far.
    pub refused_pages: u64,
    /// What kswapd's thread has worked for it so far.
    pub kswapd_ps: u64,
    /// Its pages by rank in FMEM and in SMEM after its last sort; of managers that sort.
    pub ranked: Ranked,
}

impl Default for Standing {
    fn default() -> Self {
        Self {
            fmem_pages: 0,
            asked_pages: 0,
            demoted_pages: 0,
            refused_pages: 0,
            kswapd_ps: 0,
            ranked: [[0; RANKS]; 2],
        }
    }
}

impl Standing {
    /// Numbers in it.
    pub const WORDS: usize = 5 + 2 * RANKS;

    /// Its numbers, in an order that [`Self::from_words`] knows.
    pub fn words(&self) -> impl Iterator<Item = u64> + '_ {
        let ranked = self.ranked.iter().flatten().copied();
        [
            self.fmem_pages,
            self.asked_pages,
            self.demoted_pages,
            self.refused_pages,
            self.kswapd_ps,
        ]
        .into_iter()
        .chain(ranked)
    }

    /// From its numbers; those that are missing are 0.
    #[must_use]
    pub fn from_words(words: impl IntoIterator<Item = u64>) -> Self {
        let mut standing = Self::default();
        standing.each_with(words, |own, word| *own = word);
        standing
    }

    /// Changes each number by one of `words`, as far as there are any.
    fn each_with(&mut self, words: impl IntoIterator<Item = u64>, change: fn(&mut u64, u64)) {
        let ranked = self.ranked.iter_mut().flatten();
        let numbers = [
            &mut self.fmem_pages,
            &mut self.asked_pages,
            &mut self.demoted_pages,
            &mut self.refused_pages,
            &mut self.kswapd_ps,
        ];
        for (own, word) in numbers.into_iter().chain(ranked).zip(words) {
            change(own, word);
        }
    }
}

/// A meeting: how all guests stand that are there.
#[derive(Clone, Debug)]
pub struct Meeting {
    number: u64,
    standings: Vec<Standing>,
    sum: Standing,
}

impl Meeting {
    /// Of that number, of guests in an order that is the same for all.
    #[must_use]
    pub fn new(number: u64, standings: Vec<Standing>) -> Self {
        let mut sum = Standing::default();
        for standing in &standings {
            sum.each_with(standing.words(), |sum, word| *sum += word);
        }
        Self {
            number,
            standings,
            sum,
        }
    }

    /// How many guests are there.
    #[must_use]
    pub fn guests(&self) -> u64 {
        self.standings.len() as u64
    }

    /// How the guest in that place stands.
    pub(super) fn own(&self, at: usize) -> Standing {
        self.standings.get(at).cloned().unwrap_or_default()
    }

    /// How all others stand, together.
    pub(super) fn others(&self, at: usize) -> Standing {
        let mut others = self.sum.clone();
        if let Some(own) = self.standings.get(at) {
            others.each_with(own.words(), |sum, word| *sum -= word);
        }
        others
    }

    /// What that guest may take of what is free of `capacity_pages`: most of it goes where it was
    /// asked for.
    pub(super) fn part_pages(&self, at: usize, capacity_pages: u64) -> u64 {
        let free = capacity_pages.saturating_sub(self.sum.fmem_pages);
        let weight = |standing: &Standing| {
            (standing.asked_pages)
                .saturating_mul(ASKED_WEIGHT)
                .saturating_add(1)
        };
        let weights: Vec<u64> = self.standings.iter().map(weight).collect();
        let parts = parts(free, &weights, self.number);
        parts.get(at).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standing_is_told_by_its_numbers() {
        let mut standing = Standing {
            fmem_pages: 7,
            asked_pages: 13,
            demoted_pages: 9,
            refused_pages: 11,
            kswapd_ps: 15,
            ..Standing::default()
        };
        standing.ranked[0][255] = 4;
        standing.ranked[1][1] = 5;
        assert_eq!(standing.words().count(), Standing::WORDS);
        assert_eq!(Standing::from_words(standing.words()), standing);
        assert_eq!(Standing::from_words([]), Standing::default());
        let meeting = Meeting::new(3, vec![standing.clone(), standing.clone()]);
        assert_eq!((meeting.sum.demoted_pages, meeting.guests()), (18, 2));
        assert_eq!(
            (meeting.sum.ranked[0][255], meeting.sum.ranked[1][1]),
            (8, 10)
        );
        assert_eq!(
            (meeting.others(1), meeting.own(0)),
            (standing.clone(), standing)
        );
    }

    #[test]
    fn what_is_free_goes_where_it_is_asked_for() {
        let of = |asked_pages| Standing {
            fmem_pages: 10,
            asked_pages,
            ..Standing::default()
        };
        let part = |asked: [u64; 3], at| Meeting::new(0, asked.map(of).to_vec()).part_pages(at, 90);
        assert_eq!([0, 1, 2].map(|at| part([0; 3], at)), [20; 3]);
        assert_eq!([0, 1, 2].map(|at| part([0, 500, 0], at)), [0, 60, 0]);
        assert_eq!([0, 1, 2].map(|at| part([10, 10, 0], at)), [30, 29, 1]);
    }
}
