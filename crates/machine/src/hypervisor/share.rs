// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's share of FMEM that is one pool for several.
//!
//! Between two meetings ([`super::pool`]) each guest takes the others to do as it does itself: of
//! what was free it takes at most its part, of what kswapd lacks it frees its part. So the pool is
//! never exceeded, and what comes of it is the same whichever guest is modelled first.

/// A guest's view of the pool since the last meeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Guests that were there, this one among them.
    guests: u64,
    /// Its place among them; those in front have the pages that cannot be divided.
    turn: u64,
    /// What the others had of FMEM then, and this one.
    others_pages: u64,
    own_pages: u64,
}

impl Share {
    /// Before the first meeting of so many guests, none of which has anything.
    pub const fn new(guests: u64) -> Self {
        let guests = if guests == 0 { 1 } else { guests };
        // Nobody is in front.
        Self::met(guests, guests - 1, 0, 0)
    }

    /// After a meeting of so many guests, of which each had another `turn` below their number.
    pub const fn met(guests: u64, turn: u64, others_pages: u64, own_pages: u64) -> Self {
        Self {
            guests,
            turn,
            others_pages,
            own_pages,
        }
    }

    pub const fn guests(&self) -> u64 {
        self.guests
    }

    /// What was free of `capacity_pages` at the meeting.
    const fn was_free_pages(&self, capacity_pages: u64) -> u64 {
        capacity_pages.saturating_sub(self.others_pages + self.own_pages)
    }

    /// What is free where this guest has `used_pages` by now, and the others did alike.
    pub const fn free_pages(&self, capacity_pages: u64, used_pages: u64) -> u64 {
        let free = self.was_free_pages(capacity_pages);
        if used_pages >= self.own_pages {
            free.saturating_sub((used_pages - self.own_pages) * self.guests)
        } else {
            free + (self.own_pages - used_pages) * self.guests
        }
    }

    /// What this guest may take: what it gave back itself, and its part of what was free.
    pub const fn room_pages(&self, capacity_pages: u64, used_pages: u64) -> u64 {
        let free = self.was_free_pages(capacity_pages);
        let in_front = self.turn < free % self.guests;
        let part = free / self.guests + in_front as u64;
        (self.own_pages + part).saturating_sub(used_pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn others_are_taken_to_do_alike() {
        // Before they met, each of three may fill a third.
        let share = Share::new(3);
        assert_eq!(
            (share.free_pages(100, 0), share.room_pages(100, 0)),
            (100, 33)
        );
        assert_eq!(
            (share.free_pages(100, 33), share.room_pages(100, 33)),
            (1, 0)
        );
        // Of 50 that are free after that, two of three have 17.
        let rooms = [0, 1, 2].map(|turn| Share::met(3, turn, 40, 10).room_pages(100, 10));
        assert_eq!(rooms, [17, 17, 16]);
        // 50 of 100 are free, two guests.
        let share = Share::met(2, 0, 30, 20);
        assert_eq!(
            (share.free_pages(100, 20), share.room_pages(100, 20)),
            (50, 25)
        );
        assert_eq!(
            (share.free_pages(100, 45), share.room_pages(100, 45)),
            (0, 0)
        );
        // What it gave back is its own, and the other gave as much.
        assert_eq!(
            (share.free_pages(100, 10), share.room_pages(100, 10)),
            (70, 35)
        );
        let alone = Share::met(1, 0, 0, 20);
        assert_eq!(
            (alone.free_pages(100, 20), alone.room_pages(100, 30)),
            (80, 70)
        );
    }

    /// What guests may still take at once.
    fn takes(guests: &[(u64, Share)], capacity: u64) -> u64 {
        guests
            .iter()
            .map(|(used, share)| share.room_pages(capacity, *used))
            .sum()
    }

    proptest! {
        /// Whatever guests take and give, in whatever order they are modelled, the pool is never
        /// exceeded, nor could it be.
        #[test]
        fn a_pool_is_never_exceeded(
            capacity in 0u64..200,
            count in 1usize..5,
            steps in prop::collection::vec((0usize..5, 0u64..80, any::<bool>(), 0u8..10), 0..200),
        ) {
            let mut guests = vec![(0_u64, Share::new(count as u64)); count];
            for (at, pages, takes_pages, meets) in steps {
                let (used, share) = &mut guests[at % count];
                if takes_pages {
                    *used += pages.min(share.room_pages(capacity, *used));
                } else {
                    *used -= pages.min(*used);
                }
                if meets == 0 {
                    let all: u64 = guests.iter().map(|of| of.0).sum();
                    for (at, (used, share)) in guests.iter_mut().enumerate() {
                        let turn = (at as u64 + pages) % count as u64;
                        *share = Share::met(count as u64, turn, all - *used, *used);
                    }
                }
                let used: u64 = guests.iter().map(|of| of.0).sum();
                prop_assert!(used + takes(&guests, capacity) <= capacity);
            }
        }
    }
}
