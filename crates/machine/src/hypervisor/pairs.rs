// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which pages change places, given how each ranks: a bucket sort.

use super::ept::{Page, Tier};

/// Ranks there are; the highest is the hottest.
const BUCKETS: usize = 256;

/// A page that comes to FMEM, and what goes for it where FMEM is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Lies in SMEM.
    pub up: Page,
    /// Lies in FMEM.
    pub down: Option<Page>,
}

/// Chooses at most `moves` of them, those first that rank highest: free places are filled by
/// whatever ranks above nothing, others are taken from what ranks lower. Among pages of one
/// rank, and of two that rank alike, nothing moves.
pub fn plan(
    ranked: impl Iterator<Item = (Page, Tier, u8)>,
    free_pages: u64,
    moves: u64,
) -> Vec<Pair> {
    let mut buckets = [const { Vec::new() }; 2].map(|_: Vec<Page>| vec![Vec::new(); BUCKETS]);
    for (page, tier, rank) in ranked {
        buckets[tier as usize][usize::from(rank)].push(page);
    }
    let [fmem, smem] = &buckets;
    let by_rank = |of: &Vec<Vec<Page>>| {
        let of = of.iter().enumerate();
        of.flat_map(|(rank, pages)| pages.iter().map(move |&page| (rank, page)))
            .collect::<Vec<_>>()
    };
    let mut coldest = by_rank(fmem).into_iter();
    let mut free_pages = free_pages;
    let mut pairs = Vec::new();
    for (rank, up) in by_rank(smem).into_iter().rev() {
        if rank == 0 || pairs.len() as u64 >= moves {
            break;
        }
        let down = if free_pages > 0 {
            free_pages -= 1;
            None
        } else {
            match coldest.next() {
                Some((colder, page)) if colder < rank => Some(page),
                _ => break,
            }
        };
        pairs.push(Pair { up, down });
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pair(up: Page, down: Option<Page>) -> Pair {
        Pair { up, down }
    }

    #[test]
    fn the_hottest_takes_the_place_of_the_coldest() {
        let pages = [
            (0, Tier::Fmem, 9),
            (1, Tier::Fmem, 0),
            (2, Tier::Fmem, 3),
            (3, Tier::Smem, 3),
            (4, Tier::Smem, 200),
            (5, Tier::Smem, 0),
        ];
        let plan = |free, moves| plan(pages.into_iter(), free, moves);
        // 3 against 3: stays.
        assert_eq!(plan(0, 9), [pair(4, Some(1))]);
        assert_eq!(plan(1, 9), [pair(4, None), pair(3, Some(1))]);
        // What was never seen used does not come, were there room.
        assert_eq!(plan(9, 9), [pair(4, None), pair(3, None)]);
        assert_eq!(plan(9, 1), [pair(4, None)]);
        assert_eq!(plan(9, 0), []);
    }

    proptest! {
        /// No page is named twice, each in its tier; whoever comes outranks whoever goes for it,
        /// and afterwards nobody of SMEM outranks anybody of FMEM.
        #[test]
        fn a_plan_leaves_nothing_to_do(
            ranks in prop::collection::vec((any::<bool>(), 0u8..6), 1..60),
        ) {
            let pages: Vec<_> = (0..).zip(&ranks).map(|(page, &(slow, rank))| {
                (page, if slow { Tier::Smem } else { Tier::Fmem }, rank)
            }).collect();
            let pairs = plan(pages.iter().copied(), 0, u64::MAX);
            let mut after = pages.clone();
            for pair in &pairs {
                let (up, down) = (pair.up as usize, pair.down.unwrap() as usize);
                prop_assert_eq!((after[up].1, after[down].1), (Tier::Smem, Tier::Fmem));
                prop_assert!(after[up].2 > after[down].2);
                after[up].1 = Tier::Fmem;
                after[down].1 = Tier::Smem;
            }
            let of = |tier| after.iter().filter(move |of| of.1 == tier).map(|of| of.2);
            if let (Some(slow), Some(fast)) = (of(Tier::Smem).max(), of(Tier::Fmem).min()) {
                prop_assert!(slow <= fast);
            }
        }
    }
}
