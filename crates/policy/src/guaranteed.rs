// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `guaranteed`: everybody has the floor of its service class; what is above
//! goes to whoever gains most from it, up to its hot set; what nobody's hot set
//! needs is divided by weight.
//!
//! The gain of a page is the number of accesses that it takes, so guests are
//! ranked by accesses per hot page and weight. That number does not depend on
//! how much FMEM a guest has: a guest that was served does not fall in rank for
//! it, which is what would make shares swing. A guest that has more than its floor
//! counts a quarter more. Guests that lie within a quarter of each other even so are
//! equals: they share by weight what is there for them, whoever had it before.
//!
//! What a guest says is believed as far as its credit goes, see `account`.

use super::{Claim, Fleet, Guest, Policy, divide};

/// Rank of those who have something over those who want it.
const INCUMBENT: f64 = 1.25;
/// The first of equals is at most so far ahead of the last: a quarter, and what the first
/// may count more because it has something.
const EQUALS: f64 = 1.25 * INCUMBENT;

/// See the module.
pub struct Guaranteed;

impl Policy for Guaranteed {
    fn name(&self) -> &'static str {
        "guaranteed"
    }

    fn believes(&self) -> bool {
        true
    }

    fn sizes(&self, fleet: &Fleet) -> Vec<u64> {
        let floors: Vec<Claim> = (fleet.claims().into_iter())
            .map(|claim| Claim { weight: 0, ..claim })
            .collect();
        let mut sizes = divide(fleet.pool_pages, &floors);
        let mut spare = fleet.pool_pages - sizes.iter().sum::<u64>();
        let shares = divide(fleet.pool_pages, &fleet.claims());
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        order.sort_by(|&a, &b| gain(&fleet.guests[b]).total_cmp(&gain(&fleet.guests[a])));
        // Those whose credit is gone up to their share first; beyond it they get
        // what nobody else's hot set needs.
        for believed in [true, false] {
            let mut rest = order.as_slice();
            while let Some(&first) = rest.first() {
                let equal = gain(&fleet.guests[first]) / EQUALS;
                let count = (rest.iter())
                    .take_while(|&&at| gain(&fleet.guests[at]) >= equal)
                    .count();
                let (group, behind) = rest.split_at(count.max(1));
                rest = behind;
                let wants = |&at: &usize| {
                    let guest = &fleet.guests[at];
                    let most = if believed && !guest.may_borrow {
                        guest.claim.ceiling_pages.min(shares[at])
                    } else {
                        guest.claim.ceiling_pages
                    };
                    let wanted = guest.hot_pages.unwrap_or(0).min(most);
                    Claim {
                        floor_pages: sizes[at],
                        ceiling_pages: wanted.max(sizes[at]),
                        weight: guest.claim.weight,
                    }
                };
                let claims: Vec<Claim> = group.iter().map(wants).collect();
                let have: u64 = claims.iter().map(|claim| claim.floor_pages).sum();
                let given = divide(have + spare, &claims);
                spare -= given.iter().sum::<u64>() - have;
                for (&at, size) in group.iter().zip(given) {
                    sizes[at] = size;
                }
            }
        }
        if spare == 0 {
            return sizes;
        }
        let rest: Vec<Claim> = fleet
            .guests
            .iter()
            .zip(&sizes)
            .map(|(guest, &size)| Claim {
                floor_pages: size,
                ceiling_pages: guest.claim.ceiling_pages.max(size),
                weight: guest.claim.weight,
            })
            .collect();
        divide(fleet.pool_pages, &rest)
    }
}

fn gain(guest: &Guest) -> f64 {
    let hot_pages = guest.hot_pages.unwrap_or(0).max(1);
    let density = guest.access_rate.max(0.0) / hot_pages as f64;
    let incumbent = if guest.size_pages > guest.claim.floor_pages {
        INCUMBENT
    } else {
        1.0
    };
    density * guest.claim.weight as f64 * incumbent
}
