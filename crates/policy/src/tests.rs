// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What every policy keeps, and what each is for.

use super::*;
use proptest::prelude::*;

fn policy(name: &str) -> Arc<dyn Policy> {
    by_name(name).unwrap().unwrap()
}

fn guest(floor_pages: u64, ceiling_pages: u64, weight: u64) -> Guest {
    Guest {
        size_pages: floor_pages,
        claim: Claim {
            floor_pages,
            ceiling_pages,
            weight,
        },
        fixed_pages: None,
        hot_pages: None,
        free_pages: 0,
        access_rate: 0.0,
        slow_permille: None,
        stall_permille: None,
        steady_rounds: 100,
        may_borrow: true,
        memory_pages: None,
        used_pages: None,
    }
}

fn any_guest() -> impl Strategy<Value = Guest> {
    (
        (0..500u64, 0..2000u64, 1..10u64, 0..3000u64),
        proptest::option::of(0..3000u64),
        proptest::option::of(0..3000u64),
        (0..1000u64, 0.0..1e6f64, 0..10u32, any::<bool>()),
        proptest::option::of(0..=1000u32),
        proptest::option::of(0..=1000u32),
    )
        .prop_map(
            |(
                (floor, more, weight, size),
                fixed,
                hot,
                (free, rate, steady, borrow),
                slow,
                stall,
            )| Guest {
                size_pages: size,
                fixed_pages: fixed,
                hot_pages: hot,
                free_pages: free,
                access_rate: rate,
                slow_permille: slow,
                stall_permille: stall,
                steady_rounds: steady,
                may_borrow: borrow,
                ..guest(floor, floor + more, weight)
            },
        )
}

fn any_fleet() -> impl Strategy<Value = Fleet> {
    (0..6000u64, proptest::collection::vec(any_guest(), 0..6))
        .prop_map(|(pool_pages, guests)| Fleet { pool_pages, guests })
}

/// A guest as a model: what it would say with that much FMEM. Modelled.
fn respond(guest: &mut Guest, size_pages: u64) {
    guest.steady_rounds = if guest.size_pages == size_pages {
        guest.steady_rounds + 1
    } else {
        0
    };
    guest.size_pages = size_pages;
    if let Some(hot) = guest.hot_pages {
        let served = size_pages.min(hot);
        guest.slow_permille = Some(((hot - served) * 1000 / hot.max(1)) as u32);
        guest.free_pages = size_pages - served;
    } else {
        // Without a memory manager only stalls and free memory tell.
        let used = guest.free_pages.min(size_pages);
        guest.free_pages = used;
    }
}

proptest! {
    #[test]
    fn bounds_hold_for_any_input(fleet in any_fleet()) {
        for name in &NAMES[1..] {
            let sizes = policy(name).sizes(&fleet);
            prop_assert_eq!(sizes.len(), fleet.guests.len());
            let sum: u64 = sizes.iter().sum();
            prop_assert!(sum <= fleet.pool_pages, "{}", name);
            let floors: u64 = fleet.guests.iter().map(|g| g.claim.floor_pages).sum();
            for (size, guest) in sizes.iter().zip(&fleet.guests) {
                prop_assert!(*size <= guest.claim.ceiling_pages, "{}", name);
                prop_assert!(floors > fleet.pool_pages || *size >= guest.claim.floor_pages, "{}", name);
            }
        }
    }

    /// With steady demand every policy comes to rest.
    #[test]
    fn steady_demand_gives_steady_sizes(mut fleet in any_fleet()) {
        for name in &NAMES[1..] {
            let policy = policy(name);
            for guest in &mut fleet.guests {
                guest.size_pages = guest.claim.floor_pages;
            }
            let mut last = Vec::new();
            // `pressure` makes up to 31 steps, five decisions each, up and down.
            for round in 0..800 {
                let sizes = policy.sizes(&fleet);
                for (guest, size) in fleet.guests.iter_mut().zip(&sizes) {
                    respond(guest, *size);
                }
                if round >= 700 {
                    prop_assert_eq!(&sizes, &last, "{} in round {}", name, round);
                }
                last = sizes;
            }
        }
    }
}

#[test]
fn names_are_known() {
    for name in NAMES {
        let policy = by_name(name).unwrap();
        assert_eq!(policy.map_or(EXTERNAL, |policy| policy.name()), name);
    }
    assert!(by_name("generous").is_none());
}

#[test]
fn static_gives_what_was_configured() {
    let mut fleet = Fleet {
        pool_pages: 1000,
        guests: vec![guest(0, 1000, 1), guest(0, 1000, 9), guest(0, 1000, 9)],
    };
    fleet.guests[0].fixed_pages = Some(300);
    assert_eq!(policy("static").sizes(&fleet), [300, 350, 350]);
    fleet.guests[1].fixed_pages = Some(900);
    fleet.guests[2].fixed_pages = Some(800);
    assert_eq!(policy("static").sizes(&fleet), [150, 450, 400]);
}

#[test]
fn proportional_follows_the_weights_only() {
    let mut fleet = Fleet {
        pool_pages: 400,
        guests: vec![guest(0, 1000, 1), guest(0, 1000, 3)],
    };
    assert_eq!(policy("proportional").sizes(&fleet), [100, 300]);
    fleet.guests[0].hot_pages = Some(400);
    fleet.guests[0].slow_permille = Some(1000);
    assert_eq!(policy("proportional").sizes(&fleet), [100, 300]);
}

#[test]
fn guaranteed_serves_the_densest_hot_set_first() {
    let mut fleet = Fleet {
        pool_pages: 1000,
        guests: vec![guest(200, 1000, 1), guest(200, 1000, 1)],
    };
    fleet.guests[0].hot_pages = Some(700);
    fleet.guests[0].access_rate = 70_000.0;
    fleet.guests[1].hot_pages = Some(700);
    fleet.guests[1].access_rate = 700.0;
    assert_eq!(policy("guaranteed").sizes(&fleet), [700, 300]);
    // The load changes sides.
    fleet.guests[0].access_rate = 700.0;
    fleet.guests[1].access_rate = 70_000.0;
    assert_eq!(policy("guaranteed").sizes(&fleet), [300, 700]);
    // Nobody needs it: by weight.
    fleet.guests[0].hot_pages = Some(0);
    fleet.guests[1].hot_pages = Some(0);
    assert_eq!(policy("guaranteed").sizes(&fleet), [500, 500]);
}

#[test]
fn guaranteed_does_not_flip_between_about_equal_guests() {
    let mut fleet = Fleet {
        pool_pages: 1000,
        guests: vec![guest(200, 1000, 1), guest(200, 1000, 1)],
    };
    let mut changes = 0;
    let mut last = vec![0, 0];
    for round in 0..100u32 {
        for (at, guest) in fleet.guests.iter_mut().enumerate() {
            guest.hot_pages = Some(900);
            // Ten percent of noise, in opposite phase.
            let noise = if (round as usize + at).is_multiple_of(2) {
                1.05
            } else {
                0.95
            };
            guest.access_rate = 10_000.0 * noise;
        }
        let sizes = policy("guaranteed").sizes(&fleet);
        changes += u32::from(sizes != last);
        for (guest, size) in fleet.guests.iter_mut().zip(&sizes) {
            respond(guest, *size);
        }
        last = sizes;
    }
    assert_eq!(changes, 1, "the first decision is the only one");
}

/// A day of decisions, one a second, in which guest 1 always claims to be the
/// busiest with all of its memory. Mean sizes, and guest 0's least after the first
/// hour.
fn day_beside_a_liar(honest: impl Fn(u64) -> (u64, f64)) -> ([f64; 2], u64) {
    let mut fleet = Fleet {
        pool_pages: 1000,
        guests: vec![guest(200, 1000, 1), guest(200, 1000, 1)],
    };
    let mut accounts = [Account::default(); 2];
    let mut sums = [0; 2];
    let mut least = u64::MAX;
    let seconds = 24 * 3600;
    for second in 0..seconds {
        let (hot_pages, access_rate) = honest(second);
        fleet.guests[0].hot_pages = Some(hot_pages);
        fleet.guests[0].access_rate = access_rate;
        fleet.guests[1].hot_pages = Some(1000);
        fleet.guests[1].access_rate = 1e12;
        let shares = divide(fleet.pool_pages, &fleet.claims());
        let sizes = policy("guaranteed").sizes(&fleet);
        for at in 0..2 {
            accounts[at].settle(sizes[at], shares[at], 1.0);
            fleet.guests[at].size_pages = sizes[at];
            fleet.guests[at].may_borrow = accounts[at].may_borrow();
            sums[at] += sizes[at];
        }
        if second >= 3600 {
            least = least.min(sizes[0]);
        }
    }
    (sums.map(|sum| sum as f64 / seconds as f64), least)
}

#[test]
fn a_guest_that_lies_gains_less_than_a_hundredth_in_a_day() {
    // Half of the pool is everybody's share.
    let (mean, least) = day_beside_a_liar(|_| (700, 10_000.0));
    assert!(mean[1] <= 505.0, "{mean:?}");
    assert!(least >= 500, "{least}");
    // Nor from lying beside one that works now and then.
    let busy = |second: u64| (second / 600).is_multiple_of(2);
    let (_, least) = day_beside_a_liar(|second| (if busy(second) { 500 } else { 300 }, 100.0));
    assert!(least >= 300, "{least}");
}

#[test]
fn what_nobody_else_needs_costs_nothing() {
    let mut fleet = Fleet {
        pool_pages: 1000,
        guests: vec![guest(200, 1000, 1), guest(200, 1000, 1)],
    };
    fleet.guests[0].hot_pages = Some(700);
    fleet.guests[0].access_rate = 70_000.0;
    fleet.guests[0].may_borrow = false;
    fleet.guests[1].hot_pages = Some(100);
    assert_eq!(policy("guaranteed").sizes(&fleet), [750, 250]);
}

#[test]
fn pressure_moves_from_those_who_do_not_need_it() {
    let mut fleet = Fleet {
        pool_pages: 1600,
        guests: vec![guest(100, 1600, 1), guest(100, 1600, 1)],
    };
    for guest in &mut fleet.guests {
        guest.size_pages = 800;
    }
    fleet.guests[0].hot_pages = Some(1200);
    fleet.guests[1].hot_pages = Some(200);
    for guest in &mut fleet.guests {
        respond(guest, 800);
        guest.steady_rounds = 100;
    }
    for _ in 0..100 {
        let sizes = policy("pressure").sizes(&fleet);
        for (guest, size) in fleet.guests.iter_mut().zip(&sizes) {
            respond(guest, *size);
        }
    }
    // To the hot set, not just below the threshold.
    let sizes: Vec<u64> = fleet.guests.iter().map(|guest| guest.size_pages).collect();
    assert_eq!(sizes, [1200, 400]);
}

#[test]
fn pressure_changes_a_size_once_for_a_change_of_load() {
    let mut fleet = Fleet {
        pool_pages: 1200,
        guests: vec![guest(200, 1024, 1), guest(200, 1024, 1)],
    };
    for guest in &mut fleet.guests {
        guest.size_pages = 600;
    }
    let mut changes = 0;
    for round in 0..600u32 {
        let busy = round as usize / 60 % 2;
        let before: Vec<u64> = fleet.guests.iter().map(|guest| guest.size_pages).collect();
        for (at, guest) in fleet.guests.iter_mut().enumerate() {
            // The hot set is not told alike twice.
            let wobble = u64::from(round * 7 % 20);
            guest.hot_pages = Some(if at == busy { 880 } else { 60 } + wobble);
            respond(guest, before[at]);
            guest.steady_rounds = guest.steady_rounds.max(1);
        }
        let sizes = policy("pressure").sizes(&fleet);
        for (at, guest) in fleet.guests.iter_mut().enumerate() {
            changes += u32::from(before[at] != sizes[at]);
            respond(guest, sizes[at]);
        }
    }
    // Ten changes of sides, two guests.
    assert!(changes <= 20, "{changes}");
}

#[test]
fn pressure_leaves_alone_whom_it_has_just_changed() {
    let mut fleet = Fleet {
        pool_pages: 1600,
        guests: vec![guest(100, 1600, 1), guest(100, 1600, 1)],
    };
    fleet.guests[0].hot_pages = Some(1200);
    fleet.guests[1].hot_pages = Some(200);
    for guest in &mut fleet.guests {
        respond(guest, 800);
        guest.steady_rounds = 3;
    }
    assert_eq!(policy("pressure").sizes(&fleet), [800, 800]);
    for guest in &mut fleet.guests {
        guest.steady_rounds = 4;
    }
    assert_eq!(policy("pressure").sizes(&fleet), [1200, 400]);
}

#[test]
fn pressure_gives_no_less_than_a_step_and_keeps_one() {
    let mut fleet = Fleet {
        pool_pages: 1600,
        guests: vec![guest(0, 1600, 1), guest(0, 1600, 1)],
    };
    for guest in &mut fleet.guests {
        guest.steady_rounds = 100;
        guest.size_pages = 800;
    }
    fleet.guests[0].hot_pages = Some(1600);
    fleet.guests[0].slow_permille = Some(500);
    fleet.guests[1].slow_permille = Some(0);
    // A step is 100.
    for (hot, left) in [(650, 800), (601, 800), (600, 700), (300, 400)] {
        fleet.guests[1].hot_pages = Some(hot);
        assert_eq!(policy("pressure").sizes(&fleet)[1], left, "hot {hot}");
    }
}

#[test]
fn pressure_never_takes_from_a_hot_set() {
    let mut fleet = Fleet {
        pool_pages: 1000,
        guests: vec![guest(0, 1000, 1), guest(0, 1000, 1)],
    };
    for guest in &mut fleet.guests {
        guest.hot_pages = Some(500);
        respond(guest, 500);
        guest.steady_rounds = 100;
    }
    fleet.guests[0].hot_pages = Some(900);
    respond(&mut fleet.guests[0], 500);
    assert_eq!(policy("pressure").sizes(&fleet), [500, 500]);
}

/// Guest 0 has borrowed of guest 1, which needs it by now; guest 2 would like some, too.
fn borrowed() -> Fleet {
    let mut fleet = Fleet {
        pool_pages: 1500,
        guests: vec![guest(0, 1600, 1), guest(0, 1600, 1), guest(0, 1600, 1)],
    };
    for (guest, size) in fleet.guests.iter_mut().zip([800, 200, 500]) {
        guest.hot_pages = Some(800);
        respond(guest, size);
        guest.steady_rounds = 100;
    }
    fleet
}

#[test]
fn pressure_gives_a_share_back_to_whoever_needs_it() {
    // Whatever the borrower's credit.
    assert_eq!(policy("pressure").sizes(&borrowed()), [500, 500, 500]);
    // Of several borrowers each gives the same part of what it borrowed.
    let mut fleet = borrowed();
    fleet.pool_pages = 1800;
    fleet.guests[0].size_pages = 1000;
    fleet.guests[2].size_pages = 650;
    for at in [0, 2] {
        fleet.guests[at].slow_permille = Some(0);
    }
    fleet.guests[1].size_pages = 150;
    assert_eq!(policy("pressure").sizes(&fleet), [600, 600, 600]);
    // Who does not suffer leaves it where it is.
    fleet.guests[1].slow_permille = Some(50);
    assert_eq!(policy("pressure").sizes(&fleet), [1000, 150, 650]);
}

#[test]
fn pressure_beyond_a_share_goes_to_those_with_credit() {
    let mut fleet = borrowed();
    for (guest, size) in fleet.guests.iter_mut().zip([800, 300, 400]) {
        respond(guest, size);
        guest.steady_rounds = 100;
    }
    fleet.guests[1].hot_pages = Some(300);
    fleet.guests[1].slow_permille = Some(50);
    // Its share is due to the last one; beyond that the first one has as much credit.
    assert_eq!(policy("pressure").sizes(&fleet), [700, 300, 500]);
    fleet.guests[0].may_borrow = false;
    assert_eq!(policy("pressure").sizes(&fleet), [500, 300, 700]);
    // What somebody can do without is the first one's even so.
    fleet.guests[0].hot_pages = Some(1500);
    fleet.guests[0].slow_permille = Some(500);
    fleet.guests[1].hot_pages = Some(0);
    fleet.guests[1].slow_permille = Some(0);
    fleet.guests[2].hot_pages = Some(400);
    fleet.guests[2].slow_permille = Some(0);
    assert_eq!(policy("pressure").sizes(&fleet), [1000, 100, 400]);
}

#[test]
fn working_set_serves_whoever_has_no_credit_beyond_its_share_last() {
    let mut fleet = Fleet {
        pool_pages: 1000,
        guests: vec![guest(0, 1024, 1), guest(0, 1024, 1)],
    };
    for guest in &mut fleet.guests {
        guest.memory_pages = Some(1024);
        guest.used_pages = Some(700);
        guest.hot_pages = Some(184);
    }
    // 16 pages are for new ones.
    fleet.guests[0].hot_pages = Some(784);
    assert_eq!(policy("working-set").sizes(&fleet), [800, 200]);
    fleet.guests[0].may_borrow = false;
    assert_eq!(policy("working-set").sizes(&fleet), [500, 500]);
    // It loses nothing by that which the other one has no use for.
    fleet.guests[1].used_pages = Some(300);
    assert_eq!(policy("working-set").sizes(&fleet), [700, 300]);
}
