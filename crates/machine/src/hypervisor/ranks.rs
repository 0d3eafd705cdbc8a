// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages by tier and rank, and what guests that share FMEM owe each other by them.

use super::ept::Tier;

/// Ranks there are; the highest is the hottest.
pub const RANKS: usize = 256;

/// Numbers of pages by tier and rank.
pub type Ranked = [[u64; RANKS]; 2];

/// What a guest's part is of what pages change their places in the whole pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Pages of SMEM that belong into FMEM.
    pub up: u64,
    /// Pages of FMEM that others need, or its own.
    pub down: u64,
}

/// Divides what a sort of all pages would do: whatever ranks highest belongs into FMEM, and what
/// ranks lowest goes for it. Where pages of one rank are on both sides, each guest has its part.
pub fn quota(own: &Ranked, others: &Ranked, capacity_pages: u64) -> Quota {
    let [fmem, smem] = [Tier::Fmem as usize, Tier::Smem as usize];
    let both = |tier: usize, rank: usize| own[tier][rank] + others[tier][rank];
    let part = |all: u64, tier: usize, rank: usize| {
        let of = both(tier, rank).max(1);
        (u128::from(all) * u128::from(own[tier][rank]) / u128::from(of)) as u64
    };
    let used: u64 = (0..RANKS).map(|rank| both(fmem, rank)).sum();
    let mut place = capacity_pages;
    let (mut up, mut wanted) = (0, 0);
    // What has never been seen used does not come.
    for rank in (1..RANKS).rev() {
        let stays = both(fmem, rank).min(place);
        let comes = both(smem, rank).min(place - stays);
        up += part(comes, smem, rank);
        wanted += comes;
        place -= stays + comes;
    }
    let free = capacity_pages.saturating_sub(used);
    let (mut needed, mut down) = (wanted.saturating_sub(free), 0);
    for rank in 0..RANKS {
        let goes = both(fmem, rank).min(needed);
        down += part(goes, fmem, rank);
        needed -= goes;
    }
    Quota { up, down }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ranked(fmem: &[(usize, u64)], smem: &[(usize, u64)]) -> Ranked {
        let mut ranked = [[0; RANKS]; 2];
        for (tier, of) in [fmem, smem].into_iter().enumerate() {
            for &(rank, pages) in of {
                ranked[tier][rank] = pages;
            }
        }
        ranked
    }

    #[test]
    fn who_has_the_hotter_pages_gets_the_places() {
        // Ten places, all of them the other's, half of them cold; ours are hotter.
        let own = ranked(&[], &[(9, 8)]);
        let other = ranked(&[(0, 5), (4, 5)], &[(2, 50)]);
        assert_eq!(quota(&own, &other, 10), Quota { up: 8, down: 0 });
        assert_eq!(quota(&other, &own, 10), Quota { up: 0, down: 8 });
        // Three of ten places are free.
        let other = ranked(&[(0, 2), (4, 5)], &[]);
        assert_eq!(quota(&other, &own, 10), Quota { up: 0, down: 5 });
        // Alike: nothing moves.
        let other = ranked(&[(9, 10)], &[]);
        assert_eq!(quota(&own, &other, 10), Quota { up: 0, down: 0 });
        // What was never used does not come, were there room.
        let idle = ranked(&[], &[(0, 8)]);
        assert_eq!(
            quota(&idle, &ranked(&[], &[]), 10),
            Quota { up: 0, down: 0 }
        );
    }

    proptest! {
        /// Together guests do what one sort of all their pages would, but for one page a guest and
        /// rank, and never more.
        #[test]
        fn quotas_add_up(
            capacity in 0u64..60,
            guests in prop::collection::vec(prop::collection::vec((any::<bool>(), 0usize..6), 0..40), 1..4),
        ) {
            let mut free = capacity;
            let guests: Vec<Ranked> = guests.iter().map(|pages| {
                let mut ranked = [[0; RANKS]; 2];
                for &(fast, rank) in pages {
                    let fast = fast && free > 0;
                    free -= u64::from(fast);
                    ranked[usize::from(!fast)][rank] += 1;
                }
                ranked
            }).collect();
            let sum = |of: &[Ranked]| {
                let pages = |tier: usize, rank: usize| of.iter().map(|of| of[tier][rank]).sum();
                [0, 1].map(|tier| std::array::from_fn(|rank| pages(tier, rank)))
            };
            let all = quota(&sum(&guests), &sum(&[]), capacity);
            let mut done = Quota { up: 0, down: 0 };
            for (at, own) in guests.iter().enumerate() {
                let others = [&guests[..at], &guests[at + 1..]].concat();
                let quota = quota(own, &sum(&others), capacity);
                done.up += quota.up;
                done.down += quota.down;
            }
            let slack = guests.len() as u64;
            prop_assert!(done.up <= all.up && done.up + slack >= all.up, "{done:?} {all:?}");
            prop_assert!(done.down <= all.down && done.down + slack >= all.down, "{done:?} {all:?}");
            prop_assert_eq!(all.down, all.up.saturating_sub(free));
        }
    }
}
