// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From sizes that a policy wants to sizes that guests are asked for.

/// Differences below this part of a tier are not worth a request.
pub const DEAD_BAND: u64 = 64;
/// The same where memory as a whole is sized, step by step.
pub const FINE_BAND: u64 = 512;

/// What a guest has of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// What it has or was promised, whichever is more.
    pub held_pages: u64,
    /// As it was last asked for.
    pub wanted_pages: u64,
}

/// Do two sizes of a tier differ by so much that it is worth a request?
#[must_use]
pub fn differs(total_pages: u64, dead_band: u64, one_pages: u64, other_pages: u64) -> bool {
    one_pages.abs_diff(other_pages) >= (total_pages / dead_band).max(1)
}

/// Who is to be asked for which size, in this order: losers at once; winners as far as the
/// losers have let go. The rest follows in a later round. `is_worth` says whether a size of a
/// guest is worth a request, `or_else` whether it is for another reason than its FMEM.
pub fn changes(
    pool_pages: u64,
    guests: &[Held],
    sizes: &[u64],
    is_worth: impl Fn(usize, u64) -> bool,
    or_else: impl Fn(usize, u64) -> bool,
) -> Vec<(usize, u64)> {
    let mut taken: u64 = guests.iter().map(|guest| guest.held_pages).sum();
    let order = |loses: bool| {
        (guests.iter().zip(sizes).enumerate())
            .filter(move |(_, (guest, size))| (**size < guest.wanted_pages) == loses)
    };
    let missing: u64 = order(false)
        .filter(|&(at, (_, &size))| is_worth(at, size))
        .map(|(_, (guest, size))| size.saturating_sub(guest.held_pages))
        .sum();
    // What one guest misses may be very little of each of many.
    let is_short = missing > pool_pages.saturating_sub(taken);
    let mut changes = Vec::new();
    for (at, (guest, &size)) in order(true).chain(order(false)) {
        let gives = is_short && size < guest.wanted_pages;
        let has = guest.held_pages;
        let more = size
            .saturating_sub(has)
            .min(pool_pages.saturating_sub(taken));
        let size = if size > has { has + more } else { size };
        if gives || is_worth(at, size) || or_else(at, size) {
            taken += more;
            changes.push((at, size));
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn held(pages: u64) -> Held {
        Held {
            held_pages: pages,
            wanted_pages: pages,
        }
    }

    fn worth(at: usize, size: u64, guests: &[Held]) -> bool {
        differs(640, DEAD_BAND, guests[at].wanted_pages, size)
    }

    #[test]
    fn losers_let_go_before_winners_have_it() {
        let guests = [held(100), held(100)];
        let ask = |pool, sizes: [u64; 2]| {
            changes(
                pool,
                &guests,
                &sizes,
                |at, size| worth(at, size, &guests),
                |_, _| false,
            )
        };
        // What the loser has is there in a later round.
        assert_eq!(ask(200, [150, 50]), [(1, 50)]);
        assert_eq!(ask(230, [150, 80]), [(1, 80), (0, 130)]);
        // Little is not worth it, unless somebody is short of just that.
        assert_eq!(ask(300, [105, 95]), []);
        assert_eq!(ask(200, [195, 95]), [(1, 95)]);
    }

    proptest! {
        #[test]
        fn guests_never_hold_more_than_the_pool(
            sizes in prop::collection::vec((0..900u64, 0..900u64), 1..9),
            more in 0..2000u64,
        ) {
            let guests: Vec<Held> = sizes.iter().map(|&(has, _)| held(has)).collect();
            let wanted: Vec<u64> = sizes.iter().map(|&(_, size)| size).collect();
            let pool = guests.iter().map(|guest| guest.held_pages).sum::<u64>() + more;
            let mut has: Vec<u64> = guests.iter().map(|guest| guest.held_pages).collect();
            for (at, size) in changes(pool, &guests, &wanted, |at, size| worth(at, size, &guests), |_, _| false) {
                prop_assert!(size == wanted[at] || size > has[at]);
                has[at] = has[at].max(size);
            }
            prop_assert!(has.iter().sum::<u64>() <= pool);
        }
    }
}
