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
    /// Pages that it touched first, promoted or had no room for since the last meeting, and those that
    /// its last sort had no room for.
    pub asked_pages: u64,
    /// Pages demoted so far.
    pub demoted_pages: u64,
    /// Pages for which it found no room so far.
    pub refused_pages: u64,
    /// Pages that kswapd has to look after here: all of FMEM's while it runs, else none.
    pub kswapd_pages: u64,
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
            kswapd_pages: 0,
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
            self.kswapd_pages,
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
            &mut self.kswapd_pages,
        ];
        for (own, word) in numbers.into_iter().chain(ranked).zip(words) {
            change(own, word);
        }
    }
}

/// A meeting: how all guests stand that are there.
#[derive(Clone, Debug)]
pub struct Meeting {
    sum: Standing,
    standings: Vec<Standing>,
    /// What each may take of what is free: most of it goes where it was asked for.
    parts_pages: Vec<u64>,
}

impl Meeting {
    /// Of that number, of guests in an order that is the same for all, which share so much.
    #[must_use]
    pub fn new(number: u64, capacity_pages: u64, standings: Vec<Standing>) -> Self {
        let mut sum = Standing::default();
        for standing in &standings {
            sum.each_with(standing.words(), |sum, word| *sum += word);
        }
        let weight = |standing: &Standing| {
            (standing.asked_pages)
                .saturating_mul(ASKED_WEIGHT)
                .saturating_add(1)
        };
        let weights: Vec<u64> = standings.iter().map(weight).collect();
        let free = capacity_pages.saturating_sub(sum.fmem_pages);
        Self {
            parts_pages: parts(free, &weights, number),
            sum,
            standings,
        }
    }

    /// How many guests are there.
    #[must_use]
    pub fn guests(&self) -> u64 {
        self.standings.len() as u64
    }

    /// How all others than the guest in that place stand, together.
    pub(super) fn others(&self, at: usize) -> Standing {
        let mut others = self.sum.clone();
        if let Some(own) = self.standings.get(at) {
            others.each_with(own.words(), |sum, word| *sum -= word);
        }
        others
    }

    /// What that guest may take.
    pub(super) fn part_pages(&self, at: usize) -> u64 {
        self.parts_pages.get(at).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ept::{Mark, Page};
    use super::super::tests::{PAGE, hypervisor, hypervisor_of};
    use super::super::{Hypervisor, Manager, NoMemory};
    use super::*;

    #[test]
    fn a_standing_is_told_by_its_numbers() {
        let mut standing = Standing {
            fmem_pages: 7,
            asked_pages: 13,
            demoted_pages: 9,
            refused_pages: 11,
            kswapd_pages: 15,
            ..Standing::default()
        };
        standing.ranked[0][255] = 4;
        standing.ranked[1][1] = 5;
        assert_eq!(standing.words().count(), Standing::WORDS);
        assert_eq!(Standing::from_words(standing.words()), standing);
        assert_eq!(Standing::from_words([]), Standing::default());
        let meeting = Meeting::new(3, 90, vec![standing.clone(), standing.clone()]);
        assert_eq!((meeting.sum.demoted_pages, meeting.guests()), (18, 2));
        assert_eq!(
            (meeting.sum.ranked[0][255], meeting.sum.ranked[1][1]),
            (8, 10)
        );
        assert_eq!(
            (meeting.others(0), meeting.others(1)),
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
        let part = |asked: [u64; 3], at| Meeting::new(0, 90, asked.map(of).to_vec()).part_pages(at);
        assert_eq!([0, 1, 2].map(|at| part([0; 3], at)), [20; 3]);
        assert_eq!([0, 1, 2].map(|at| part([0, 500, 0], at)), [0, 60, 0]);
        assert_eq!([0, 1, 2].map(|at| part([10, 10, 0], at)), [30, 29, 1]);
    }

    /// Guests that share `fmem_pages` and have touched so many pages each.
    fn pooled(fmem_pages: u64, touched: &[u64], set: &[(&str, u64)]) -> Vec<Hypervisor> {
        let guest = |&pages: &u64| {
            let mut guest = hypervisor(fmem_pages, set);
            guest.share_among(touched.len() as u64);
            for page in 0..pages {
                guest.resident(page * PAGE);
                guest.host.ept.put(page as Page, Mark::Accessed, false);
            }
            guest
        };
        touched.iter().map(guest).collect()
    }

    fn meet(guests: &mut [Hypervisor]) -> Vec<u64> {
        let standings: Vec<Standing> = guests.iter_mut().map(Hypervisor::standing).collect();
        let pages = standings.iter().map(|standing| standing.fmem_pages);
        let pages = pages.collect();
        let meeting = Meeting::new(0, guests[0].capacity_pages(), standings);
        for (at, guest) in guests.iter_mut().enumerate() {
            guest.meet(at, &meeting);
        }
        pages
    }

    #[test]
    fn what_one_leaves_another_takes() {
        let mut guests = pooled(300, &[20, 400], &[("demote_basis_points", 0)]);
        // Before they met, half of it each.
        assert_eq!(meet(&mut guests), [20, 150]);
        for page in 400..500 {
            guests[1].resident(page * PAGE);
        }
        // The other asks for nothing.
        assert_eq!(meet(&mut guests), [20, 250]);
        for page in 500..1000 {
            guests[1].resident(page * PAGE);
            meet(&mut guests);
        }
        assert_eq!(meet(&mut guests), [20, 280]);
        assert_eq!(guests[1].counters().fmem_pages, 280);
        // Who leaves is told no more.
        let guest = &mut guests[1];
        let alone = guest.standing();
        guest.meet(0, &Meeting::new(2, 300, vec![alone]));
        for page in 1001..1050 {
            guest.resident(page * PAGE);
        }
        assert_eq!(guest.standing().fmem_pages, 300);
    }

    #[test]
    fn kswapd_takes_from_all() {
        let set = [("steal_permille", 0), ("demote_basis_points", 1000)];
        let mut guests = pooled(300, &[200, 200], &set);
        // A third of the mark of 10 % stays free at first; each begins alone, and frees all that lacks.
        assert_eq!(meet(&mut guests), [145, 145]);
        for guest in &mut guests {
            guest.run(1_000_000, &NoMemory);
            guest.run(9_000_000, &NoMemory);
        }
        assert_eq!(meet(&mut guests), [125, 125]);
        // One whose pages are all young gives nothing; the other then gives for both.
        let mut guests = pooled(300, &[200, 200], &set);
        meet(&mut guests);
        for ms in 1..200 {
            for page in 0..200 {
                guests[0].host.ept.put(page, Mark::Accessed, true);
            }
            for guest in &mut guests {
                guest.run(ms * 1_000_000, &NoMemory);
            }
            meet(&mut guests);
        }
        let [hot, cold] = [0, 1].map(|at: usize| guests[at].host.ept.used_pages());
        assert!(hot >= 140 && hot + cold <= 271, "{hot} {cold}");
    }

    /// One of `count` guests uses 30 of 40 pages for each all the time, the others none; how many of
    /// them are in FMEM after each look.
    fn hot_beside_idle(count: usize, looks: u64) -> Vec<usize> {
        let fmem_pages = 40 * count as u64;
        let guest = |_| {
            let set = [("interval_ms", 10), ("steal_permille", 0)];
            let mut guest = hypervisor_of(Manager::Abit, fmem_pages, &set);
            guest.share_among(count as u64);
            for page in 0..200 {
                guest.resident(page * PAGE);
                guest.host.ept.put(page as Page, Mark::Accessed, false);
            }
            guest
        };
        let mut guests: Vec<Hypervisor> = (0..count).map(guest).collect();
        meet(&mut guests);
        let used = 100..100 + 30 * count as u64;
        let mut seen = Vec::new();
        for look in 1..=looks {
            for page in used.clone() {
                guests[0].walked(page * PAGE, true, false);
            }
            for guest in &mut guests {
                guest.run(look * 10_000_000, &NoMemory);
            }
            let all = meet(&mut guests);
            assert!(all.iter().sum::<u64>() <= fmem_pages, "{all:?}");
            let fast = used
                .clone()
                .filter(|&page| guests[0].node(page * PAGE) == 0);
            seen.push(fast.count());
        }
        seen
    }

    #[test]
    fn hot_pages_of_one_take_the_places_of_anothers_cold_ones() {
        assert_eq!(hot_beside_idle(1, 2), [30, 30]);
        // It has first its own places, then all that the others' sort has put down meanwhile.
        let two = hot_beside_idle(2, 4);
        assert!(two[0] >= 20 && two[2] >= 59, "{two:?}");
        let three = hot_beside_idle(3, 4);
        assert!(three[0] >= 10 && three[2] >= 87, "{three:?}");
    }

    /// Pages of FMEM that are left of 800 after so many ms, of which half are to go; all others have
    /// nothing there.
    fn left_of_800(count: usize, ms: u64) -> u64 {
        let set = [("steal_permille", 0), ("demote_basis_points", 5000)];
        let mut touched = vec![0; count];
        touched[0] = 800;
        let mut guests = pooled(800, &touched[..1], &set);
        guests.extend((1..count).map(|_| hypervisor(800, &set)));
        for now_ms in 1..=ms {
            meet(&mut guests);
            for tenth in 0..10 {
                for guest in &mut guests {
                    guest.run(now_ms * 1_000_000 + tenth * 100_000, &NoMemory);
                }
            }
        }
        guests[0].standing().fmem_pages
    }

    #[test]
    fn kswapd_works_for_one_at_full_speed_while_others_need_nothing() {
        let alone = [1, 3, 5, 8].map(|ms| left_of_800(1, ms));
        assert!(alone[0] > alone[3] && alone[3] <= 400, "{alone:?}");
        for count in [2, 4, 16] {
            assert_eq!(
                [1, 3, 5, 8].map(|ms| left_of_800(count, ms)),
                alone,
                "{count}"
            );
        }
    }

    #[test]
    fn kswapd_is_one_thread_for_those_that_keep_it_busy() {
        let set = [("steal_permille", 0), ("demote_basis_points", 5000)];
        let demoted = |count: usize| {
            let mut guests = pooled(2000 * count as u64, &vec![2000; count], &set);
            for now_ms in 1..=2 {
                meet(&mut guests);
                for tenth in 0..10 {
                    for guest in &mut guests {
                        guest.run(now_ms * 1_000_000 + tenth * 100_000, &NoMemory);
                    }
                }
            }
            let each = guests.iter().map(|guest| guest.counters().demoted_pages);
            each.sum::<u64>()
        };
        let alone = demoted(1);
        // In the first ms nobody knows of the others.
        for count in [2, 4] {
            let all = demoted(count);
            assert!(
                all >= alone && all <= alone * (count as u64 + 2) / 2,
                "{alone} {all}"
            );
        }
    }
}
