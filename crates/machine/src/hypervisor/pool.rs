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

/// How much of the guests' clocks lies between two meetings: far below the intervals at which any
/// manager looks at pages, and a tenth of kswapd's.
pub const MEETING_NS: u64 = 1_000_000;

/// How a guest stands at a meeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Pages of the host's that it has of FMEM.
    pub fmem_pages: u64,
    /// Pages demoted so far.
    pub demoted_pages: u64,
    /// Pages for which it found no room so far.
    pub refused_pages: u64,
    /// Its pages by rank in FMEM and in SMEM after its last sort; of managers that sort.
    pub ranked: Ranked,
}

impl Default for Standing {
    fn default() -> Self {
        Self {
            fmem_pages: 0,
            demoted_pages: 0,
            refused_pages: 0,
            ranked: [[0; RANKS]; 2],
        }
    }
}

impl Standing {
    /// Numbers in it.
    pub const WORDS: usize = 3 + 2 * RANKS;

    /// Its numbers, in an order that [`Self::from_words`] knows.
    pub fn words(&self) -> impl Iterator<Item = u64> + '_ {
        let ranked = self.ranked.iter().flatten().copied();
        [self.fmem_pages, self.demoted_pages, self.refused_pages]
            .into_iter()
            .chain(ranked)
    }

    /// From its numbers; those that are missing are 0.
    #[must_use]
    pub fn from_words(words: impl IntoIterator<Item = u64>) -> Self {
        let mut words = words.into_iter();
        let mut next = || words.next().unwrap_or(0);
        let mut standing = Self {
            fmem_pages: next(),
            demoted_pages: next(),
            refused_pages: next(),
            ..Self::default()
        };
        for pages in standing.ranked.iter_mut().flatten() {
            *pages = next();
        }
        standing
    }

    /// How several stand together.
    #[must_use]
    pub fn sum<'a>(standings: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut sum = Self::default();
        for standing in standings {
            sum.change(standing, |all, of| all + of);
        }
        sum
    }

    /// What is left of a sum without one of those in it.
    #[must_use]
    pub(super) fn without(mut self, other: &Self) -> Self {
        self.change(other, u64::saturating_sub);
        self
    }

    fn change(&mut self, other: &Self, by: fn(u64, u64) -> u64) {
        let words: Vec<u64> = self
            .words()
            .zip(other.words())
            .map(|(a, b)| by(a, b))
            .collect();
        *self = Self::from_words(words);
    }
}

/// Which guest one is at a meeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Below the number of guests that are there; another for each.
    pub at: u64,
    /// How many are there.
    pub guests: u64,
    /// Number of the meeting.
    pub meeting: u64,
}

impl Place {
    /// Of all guests of a meeting.
    pub fn all(guests: usize, meeting: u64) -> impl Iterator<Item = Self> {
        let guests = guests as u64;
        (0..guests).map(move |at| Self {
            at,
            guests,
            meeting,
        })
    }

    /// Its place in a row that moves on by one at each meeting.
    pub(super) const fn turn(&self) -> u64 {
        (self.at + self.meeting) % if self.guests == 0 { 1 } else { self.guests }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standing_is_told_by_its_numbers() {
        let mut standing = Standing {
            fmem_pages: 7,
            demoted_pages: 9,
            refused_pages: 11,
            ..Standing::default()
        };
        standing.ranked[0][255] = 4;
        standing.ranked[1][1] = 5;
        assert_eq!(standing.words().count(), Standing::WORDS);
        assert_eq!(Standing::from_words(standing.words()), standing);
        assert_eq!(Standing::from_words([]), Standing::default());
        let sum = Standing::sum([&standing, &standing]);
        assert_eq!((sum.fmem_pages, sum.demoted_pages), (14, 18));
        assert_eq!(sum.refused_pages, 22);
        assert_eq!((sum.ranked[0][255], sum.ranked[1][1]), (8, 10));
        assert_eq!(sum.without(&standing), standing);
    }
}
