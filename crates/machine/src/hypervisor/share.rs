// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's share of FMEM that is one pool for several.
//!
//! Between two meetings ([`super::pool`]) nobody hears of anybody. Of what was free at the last one
//! each takes at most its part, so that the pool is never exceeded, and what comes of it is the same
//! whichever guest is modelled first.

/// A guest's view of the pool since the last meeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Guests that were there, this one among them.
    guests: u64,
    /// What the others had of FMEM then, and this one.
    others_pages: u64,
    own_pages: u64,
    /// What it may take of what was free.
    part_pages: u64,
    /// Its part of kswapd's time, and so of what is given back of what lacks.
    kswapd_permille: u64,
}

impl Share {
    /// Before the first meeting of so many guests, none of which has anything of `capacity_pages`.
    pub const fn new(guests: u64, capacity_pages: u64) -> Self {
        let guests = if guests == 0 { 1 } else { guests };
        Self::met(guests, [0; 2], capacity_pages / guests, 1000)
    }

    /// After a meeting of so many guests, at which the others and this one had so much.
    pub const fn met(
        guests: u64,
        [others_pages, own_pages]: [u64; 2],
        part_pages: u64,
        kswapd_permille: u64,
    ) -> Self {
        Self {
            guests,
            others_pages,
            own_pages,
            part_pages,
            kswapd_permille: if kswapd_permille == 0 {
                1
            } else {
                kswapd_permille
            },
        }
    }

    /// Its part of kswapd's time.
    pub const fn kswapd_permille(&self) -> u64 {
        self.kswapd_permille
    }

    /// Guests that were there, this one among them.
    pub const fn guests(&self) -> u64 {
        self.guests
    }

    /// What is free of `capacity_pages` where this guest has `used_pages` by now: what marks and
    /// watermarks are compared with. The others are taken to use their parts of what was free as
    /// far as this guest has used its own, and to give back by their parts of kswapd's time.
    pub const fn free_pages(&self, capacity_pages: u64, used_pages: u64) -> u64 {
        let free = capacity_pages.saturating_sub(self.others_pages + self.own_pages);
        if used_pages <= self.own_pages {
            return free + (self.own_pages - used_pages) * 1000 / self.kswapd_permille;
        }
        let taken = used_pages - self.own_pages;
        if taken >= self.part_pages {
            return 0;
        }
        (free as u128 * (self.part_pages - taken) as u128 / self.part_pages as u128) as u64
    }

    /// What this guest may take: what it gave back itself, and its part of what was free. Whoever
    /// puts a page into FMEM has to ask for this.
    pub const fn room_pages(&self, used_pages: u64) -> u64 {
        (self.own_pages + self.part_pages).saturating_sub(used_pages)
    }
}

/// Divides what is free by weights: what guests asked for. Pages that cannot be divided go to those
/// with the largest rest, of equals to whoever has the `turn`, which moves on at each meeting.
pub fn parts(free_pages: u64, weights: &[u64], turn: u64) -> Vec<u64> {
    let sum: u128 = weights.iter().map(|&weight| u128::from(weight)).sum();
    if sum == 0 {
        return vec![0; weights.len()];
    }
    let shares = weights
        .iter()
        .map(|&weight| u128::from(free_pages) * u128::from(weight));
    let shares: Vec<u128> = shares.collect();
    let mut parts: Vec<u64> = shares.iter().map(|share| (share / sum) as u64).collect();
    let left = free_pages - parts.iter().sum::<u64>();
    let count = weights.len() as u64;
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|&at| {
        (
            std::cmp::Reverse(shares[at] % sum),
            (at as u64 + turn) % count,
        )
    });
    for &at in order.iter().take(left as usize) {
        parts[at] += 1;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn others_are_taken_to_use_their_parts_alike() {
        // Before they met, each of three may fill a third.
        let share = Share::new(3, 100);
        assert_eq!((share.free_pages(100, 0), share.room_pages(0)), (100, 33));
        assert_eq!((share.free_pages(100, 33), share.room_pages(33)), (0, 0));
        // 50 of 100 are free, two guests, half each.
        let share = Share::met(2, [30, 20], 25, 500);
        assert_eq!((share.free_pages(100, 20), share.room_pages(20)), (50, 25));
        assert_eq!((share.free_pages(100, 30), share.room_pages(30)), (30, 15));
        assert_eq!((share.free_pages(100, 45), share.room_pages(45)), (0, 0));
        // What it gave back is its own, and the other gave as much.
        assert_eq!((share.free_pages(100, 10), share.room_pages(10)), (70, 35));
        // Who has nearly all that is free finds it as one alone would.
        let asker = Share::met(9, [30, 20], 50, 1000);
        assert_eq!((asker.free_pages(100, 45), asker.room_pages(45)), (25, 25));
        let alone = Share::met(1, [0, 20], 80, 1000);
        assert_eq!((alone.free_pages(100, 30), alone.room_pages(30)), (70, 70));
        let none = Share::met(2, [100, 0], 0, 1000);
        assert_eq!((none.free_pages(100, 0), none.room_pages(0)), (0, 0));
    }

    #[test]
    fn who_asks_has_what_is_free() {
        assert_eq!(parts(50, &[1, 1, 1], 0), [17, 17, 16]);
        assert_eq!(parts(50, &[1, 1, 1], 1), [17, 16, 17]);
        assert_eq!(parts(1, &[1, 9, 1], 2), [0, 1, 0]);
        assert_eq!(parts(10, &[1, 1 + 4 * 1000, 1], 0), [0, 10, 0]);
        assert_eq!(parts(7, &[5], 3), [7]);
        assert_eq!(parts(7, &[], 3), [0; 0]);
        assert_eq!(
            parts(u64::MAX, &[u64::MAX, 1], 0).iter().sum::<u64>(),
            u64::MAX
        );
    }

    /// What guests may still take at once.
    fn takes(guests: &[(u64, Share)]) -> u64 {
        let rooms = guests.iter().map(|(used, share)| share.room_pages(*used));
        rooms.sum()
    }

    proptest! {
        /// Whatever guests take, give and ask for, in whatever order they are modelled, the pool is
        /// never exceeded, nor could it be.
        #[test]
        fn a_pool_is_never_exceeded(
            capacity in 0u64..200,
            count in 1usize..5,
            steps in prop::collection::vec((0usize..5, 0u64..80, any::<bool>(), 0u8..10), 0..200),
        ) {
            let mut guests = vec![(0_u64, Share::new(count as u64, capacity)); count];
            for (at, pages, takes_pages, meets) in steps {
                let (used, share) = &mut guests[at % count];
                if takes_pages {
                    *used += pages.min(share.room_pages(*used));
                } else {
                    *used -= pages.min(*used);
                }
                if meets == 0 {
                    let all: u64 = guests.iter().map(|of| of.0).sum();
                    let weights: Vec<u64> = (0..count as u64).map(|at| 1 + pages * at % 7).collect();
                    let parts = parts(capacity - all, &weights, pages);
                    prop_assert_eq!(parts.iter().sum::<u64>(), capacity - all);
                    for ((used, share), part) in guests.iter_mut().zip(parts) {
                        *share = Share::met(count as u64, [all - *used, *used], part, 700);
                    }
                }
                let used: u64 = guests.iter().map(|of| of.0).sum();
                prop_assert!(used + takes(&guests) <= capacity);
            }
        }
    }
}
