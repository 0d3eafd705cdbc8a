// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which pages change places, given how each ranks.

use super::ept::{Ept, Page, Tier};
use super::pool::Standing;
use super::ranks::{Quota, RANKS, Ranked, quota};

/// A page and its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankedPage {
    /// Where it stands among all.
    pub rank: u8,
    /// Which it is.
    pub page: Page,
}

/// A page that comes to FMEM, and what goes for it where FMEM is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Lies in SMEM; none where a page of another guest comes.
    pub up: Option<RankedPage>,
    /// Lies in FMEM; none where there is room.
    pub down: Option<RankedPage>,
}

/// Sorts the pages of a guest, by itself or among those with which it shares FMEM.
#[derive(Clone, Debug)]
pub struct Sorter {
    own: Ranked,
    others: Ranked,
    left_out: u64,
}

impl Sorter {
    /// Before the first sort.
    pub const fn new() -> Self {
        Self {
            own: [[0; RANKS]; 2],
            others: [[0; RANKS]; 2],
            left_out: 0,
        }
    }

    /// How the guest's pages ranked at its last sort, where that put them, and how many it had no
    /// room for.
    pub const fn stand(&self, standing: &mut Standing) {
        standing.ranked = self.own;
        standing.asked_pages += self.left_out;
    }

    /// How those of all others do.
    pub const fn met(&mut self, others: &Ranked) {
        self.others = *others;
    }

    /// Chooses at most `moves` pairs, those first that rank highest: free places are filled by
    /// whatever ranks above nothing, others are taken from what ranks lower. Among pages of one
    /// rank, and of two that rank alike, nothing moves.
    pub fn plan(
        &mut self,
        ept: &Ept,
        pages: impl Iterator<Item = RankedPage>,
        moves: u64,
    ) -> Vec<Pair> {
        let mut sorted: [Vec<RankedPage>; 2] = [Vec::new(), Vec::new()];
        self.own = [[0; RANKS]; 2];
        for page in pages {
            let tier = ept.tier(page.page) as usize;
            sorted[tier].push(page);
            self.own[tier][usize::from(page.rank)] += 1;
        }
        for of in &mut sorted {
            of.sort_by_key(|page| page.rank);
        }
        let quota =
            (ept.sharers() > 1).then(|| quota(&self.own, &self.others, ept.capacity_pages()));
        let pairs = plan(&sorted, ept.room_pages(), moves, quota);
        let came = pairs.iter().filter(|pair| pair.up.is_some()).count() as u64;
        self.left_out = quota.map_or(0, |quota| quota.up.min(moves).saturating_sub(came));
        for Pair { up, down } in &pairs {
            for (page, from) in [(up, Tier::Smem), (down, Tier::Fmem)] {
                if let Some(page) = page {
                    self.own[from as usize][usize::from(page.rank)] -= 1;
                    self.own[1 - from as usize][usize::from(page.rank)] += 1;
                }
            }
        }
        pairs
    }
}

/// Pairs of pages of FMEM and SMEM that are sorted by rank, within a guest's quota if others
/// share FMEM.
fn plan(
    [fmem, smem]: &[Vec<RankedPage>; 2],
    room_pages: u64,
    moves: u64,
    quota: Option<Quota>,
) -> Vec<Pair> {
    let Quota { up, down } = quota.unwrap_or(Quota {
        up: u64::MAX,
        down: u64::MAX,
    });
    let mut coldest = fmem
        .iter()
        .copied()
        .take(usize::try_from(down).unwrap_or(usize::MAX));
    let mut room_pages = room_pages;
    let mut pairs = Vec::new();
    for &hot in smem
        .iter()
        .rev()
        .take(usize::try_from(up).unwrap_or(usize::MAX))
    {
        if hot.rank == 0 || pairs.len() as u64 >= moves {
            break;
        }
        let down = if room_pages > 0 {
            room_pages -= 1;
            None
        } else {
            match coldest.next() {
                Some(cold) if cold.rank < hot.rank => Some(cold),
                _ => break,
            }
        };
        pairs.push(Pair {
            up: Some(hot),
            down,
        });
    }
    if quota.is_some() {
        let left = usize::try_from(moves)
            .unwrap_or(usize::MAX)
            .saturating_sub(pairs.len());
        pairs.extend(coldest.take(left).map(|cold| Pair {
            up: None,
            down: Some(cold),
        }));
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pages(pages: impl IntoIterator<Item = (Page, Tier, u8)>) -> [Vec<RankedPage>; 2] {
        let mut sorted = [Vec::new(), Vec::new()];
        for (page, tier, rank) in pages {
            sorted[tier as usize].push(RankedPage { rank, page });
        }
        for of in &mut sorted {
            of.sort_by_key(|page| page.rank);
        }
        sorted
    }

    fn numbers(pairs: &[Pair]) -> Vec<(Option<Page>, Option<Page>)> {
        let number = |page: Option<RankedPage>| page.map(|page| page.page);
        pairs
            .iter()
            .map(|pair| (number(pair.up), number(pair.down)))
            .collect()
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
        let plan = |free, moves| numbers(&plan(&super::tests::pages(pages), free, moves, None));
        let pair = |up, down| (Some(up), down);
        // 3 against 3: stays.
        assert_eq!(plan(0, 9), [pair(4, Some(1))]);
        assert_eq!(plan(1, 9), [pair(4, None), pair(3, Some(1))]);
        // What was never seen used does not come, were there room.
        assert_eq!(plan(9, 9), [pair(4, None), pair(3, None)]);
        assert_eq!(plan(9, 1), [pair(4, None)]);
        assert_eq!(plan(9, 0), []);
    }

    #[test]
    fn within_a_quota_others_have_their_part() {
        let sorted = pages([
            (0, Tier::Fmem, 0),
            (1, Tier::Fmem, 1),
            (2, Tier::Fmem, 9),
            (3, Tier::Smem, 5),
            (4, Tier::Smem, 7),
        ]);
        let plan =
            |room, moves, up, down| numbers(&plan(&sorted, room, moves, Some(Quota { up, down })));
        assert_eq!(plan(0, 9, 2, 2), [(Some(4), Some(0)), (Some(3), Some(1))]);
        // Another's pages come for ours; or ours for what another will have put down.
        assert_eq!(plan(0, 9, 1, 2), [(Some(4), Some(0)), (None, Some(1))]);
        assert_eq!(plan(0, 9, 2, 1), [(Some(4), Some(0))]);
        assert_eq!(plan(1, 9, 2, 1), [(Some(4), None), (Some(3), Some(0))]);
        assert_eq!(plan(0, 1, 1, 2), [(Some(4), Some(0))]);
        assert_eq!(plan(5, 9, 0, 0), []);
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
            let pairs = plan(&super::tests::pages(pages.iter().copied()), 0, u64::MAX, None);
            let mut after = pages.clone();
            for pair in &pairs {
                let (up, down) = (pair.up.unwrap().page as usize, pair.down.unwrap().page as usize);
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
