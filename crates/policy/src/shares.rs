// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Dividing a pool by weight between floors and ceilings, to the page.

/// What one may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// Least.
    pub floor_pages: u64,
    /// Most; not below the floor.
    pub ceiling_pages: u64,
    /// Part of what is above the floors. 0: nothing.
    pub weight: u64,
}

/// Gives every claim its floor, then the rest by weight until it is gone or all
/// are at their ceilings. Max-min fair in pages per weight above the floor.
pub fn divide(pool_pages: u64, claims: &[Claim]) -> Vec<u64> {
    let floors: u128 = claims
        .iter()
        .map(|claim| u128::from(claim.floor_pages))
        .sum();
    if floors > u128::from(pool_pages) {
        return cut(pool_pages, floors, claims);
    }
    let mut sizes: Vec<u64> = claims.iter().map(|claim| claim.floor_pages).collect();
    let mut left = pool_pages - floors as u64;
    let room = |claim: &Claim, size: u64| claim.ceiling_pages.saturating_sub(size);
    let mut open: Vec<usize> = (0..claims.len())
        .filter(|&at| claims[at].weight > 0 && room(&claims[at], sizes[at]) > 0)
        .collect();
    while left > 0 && !open.is_empty() {
        let weights: u128 = open.iter().map(|&at| u128::from(claims[at].weight)).sum();
        let share = |at: usize| (u128::from(left) * u128::from(claims[at].weight) / weights) as u64;
        let full: Vec<usize> = (open.iter().copied())
            .filter(|&at| room(&claims[at], sizes[at]) <= share(at))
            .collect();
        if full.is_empty() {
            // Nobody is limited: divide, the odd pages to the first ones.
            let parts: Vec<u64> = open.iter().map(|&at| share(at)).collect();
            let mut odd = left - parts.iter().sum::<u64>();
            for (&at, part) in open.iter().zip(parts) {
                let extra = odd.min(1);
                odd -= extra;
                sizes[at] += part + extra;
            }
            break;
        }
        for at in full {
            let room = room(&claims[at], sizes[at]);
            sizes[at] += room;
            left -= room;
            open.retain(|&other| other != at);
        }
    }
    sizes
}

/// The pool does not even hold the floors.
fn cut(pool_pages: u64, floors: u128, claims: &[Claim]) -> Vec<u64> {
    claims
        .iter()
        .map(|claim| (u128::from(pool_pages) * u128::from(claim.floor_pages) / floors) as u64)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn claim(floor_pages: u64, ceiling_pages: u64, weight: u64) -> Claim {
        Claim {
            floor_pages,
            ceiling_pages,
            weight,
        }
    }

    #[test]
    fn by_weight() {
        let claims = [claim(0, 1000, 1), claim(0, 1000, 3)];
        assert_eq!(divide(400, &claims), [100, 300]);
    }

    #[test]
    fn what_one_cannot_take_goes_to_the_others() {
        let claims = [claim(0, 50, 1), claim(10, 1000, 1), claim(0, 1000, 2)];
        // 50; the other 340 above the floor as 1 to 2.
        assert_eq!(divide(400, &claims), [50, 10 + 114, 226]);
    }

    #[test]
    fn floors_are_cut_when_they_do_not_fit() {
        let claims = [claim(300, 1000, 1), claim(100, 1000, 9)];
        assert_eq!(divide(200, &claims), [150, 50]);
    }

    #[test]
    fn huge_numbers_do_not_overflow() {
        let claims = [claim(u64::MAX, u64::MAX, 1), claim(u64::MAX, u64::MAX, 1)];
        assert_eq!(divide(u64::MAX, &claims), [u64::MAX / 2; 2]);
    }

    proptest! {
        #[test]
        fn is_exact_and_within_bounds(
            pool in 0..5000u64,
            raw in proptest::collection::vec((0..500u64, 0..2000u64, 0..10u64), 0..8),
        ) {
            let claims: Vec<Claim> = raw.iter().map(|&(floor, more, weight)| claim(floor, floor + more, weight)).collect();
            let sizes = divide(pool, &claims);
            let floors: u64 = claims.iter().map(|c| c.floor_pages).sum();
            let most: u64 = claims.iter().map(|c| if c.weight > 0 { c.ceiling_pages } else { c.floor_pages }).sum();
            let sum: u64 = sizes.iter().sum();
            prop_assert!(sum <= pool);
            if floors <= pool {
                prop_assert_eq!(sum, pool.min(most));
                for (size, claim) in sizes.iter().zip(&claims) {
                    prop_assert!((claim.floor_pages..=claim.ceiling_pages).contains(size));
                }
            } else {
                prop_assert!(sum + claims.len() as u64 >= pool);
            }
        }
    }
}
