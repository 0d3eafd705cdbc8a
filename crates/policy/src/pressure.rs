// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `pressure`: a guest that suffers grows; a guest that does not suffer gives of
//! what it does not need, if somebody suffers.
//!
//! To suffer is to have many accesses go to SMEM, where a memory manager tells,
//! or else to wait for memory. What a guest does not need is above its hot set
//! or, where nobody tells that, free: of its share nothing is taken that would make it suffer.
//!
//! What a guest says is believed up to its share, which is there for it when it suffers: who has
//! more than that by then has borrowed it, and gives it back. Beyond its share a guest grows by
//! what others do not need, and as far as its credit goes, see `account`, by what those have
//! whose credit is gone.
//!
//! Four things keep sizes from following every breath of the load. Between two
//! thresholds nobody grows or gives. Who grows grows to its hot set, far below
//! the threshold that made it grow. Who gives keeps a step more than its hot set,
//! and does not begin for less than a step. And whoever's size was changed is
//! left alone for some decisions. Without a hot set to aim at, sizes change by
//! steps.

use super::{Claim, Fleet, Guest, Policy, divide};

/// From here on a guest suffers.
const HIGH_PERMILLE: u32 = 100;
/// Up to here it does not.
const LOW_PERMILLE: u32 = 20;
/// After a change a guest is left alone for so many decisions.
const COOL_ROUNDS: u32 = 4;
/// A step is this part of the most that a guest may have.
const STEPS: u64 = 16;

/// See the module.
pub struct Pressure;

impl Policy for Pressure {
    fn name(&self) -> &'static str {
        "pressure"
    }

    fn believes(&self) -> bool {
        true
    }

    fn sizes(&self, fleet: &Fleet) -> Vec<u64> {
        // Now within everybody's bounds and the pool.
        let now: Vec<Claim> = fleet
            .guests
            .iter()
            .map(|guest| {
                let claim = guest.claim;
                let size = guest
                    .size_pages
                    .clamp(claim.floor_pages, claim.ceiling_pages);
                Claim {
                    floor_pages: claim.floor_pages,
                    ceiling_pages: size,
                    weight: size - claim.floor_pages,
                }
            })
            .collect();
        let mut sizes = divide(fleet.pool_pages, &now);
        let floors: u128 = now.iter().map(|claim| u128::from(claim.floor_pages)).sum();
        if floors >= u128::from(fleet.pool_pages) {
            // Nothing to pass on.
            return sizes;
        }
        let shares = divide(fleet.pool_pages, &fleet.claims());
        let growth: Vec<u64> = (fleet.guests.iter().zip(&sizes))
            .map(|(guest, &size)| growth(guest, size))
            .collect();
        // Up to its share a guest has a right to it; beyond that it is believed as far as its
        // credit goes.
        let due: Vec<u64> = (growth.iter().zip(&sizes).zip(&shares))
            .map(|((&growth, &size), &share)| growth.min(share.saturating_sub(size)))
            .collect();
        let believed: Vec<u64> = (fleet.guests.iter().zip(&growth).zip(&due))
            .map(|((guest, &growth), &due)| if guest.may_borrow { growth } else { due })
            .collect();
        let mut missing = missing(fleet.pool_pages, &sizes, &growth);
        for (guest, size) in fleet.guests.iter().zip(&mut sizes) {
            let gift = gift(guest, *size).min(missing);
            *size -= gift;
            missing -= gift;
        }
        let over = |sizes: &[u64], is_meant: &dyn Fn(&Guest) -> bool| -> Vec<u64> {
            (fleet.guests.iter().zip(sizes).zip(&shares))
                .map(|((guest, size), &share)| {
                    let over = size.saturating_sub(share.max(guest.claim.floor_pages));
                    if is_meant(guest) { over } else { 0 }
                })
                .collect()
        };
        // Those without credit first, for all that are believed; the others for shares only.
        let spent = over(&sizes, &|guest| !guest.may_borrow);
        take(fleet.pool_pages, &mut sizes, &believed, &spent);
        let borrowed = over(&sizes, &|_| true);
        take(fleet.pool_pages, &mut sizes, &due, &borrowed);
        let least = sizes.clone();
        for growth in [due, believed, growth] {
            let claims: Vec<Claim> = (fleet.guests.iter().zip(&sizes))
                .zip(least.iter().zip(growth))
                .map(|((guest, &size), (least, growth))| Claim {
                    floor_pages: size,
                    ceiling_pages: least + growth,
                    weight: guest.claim.weight.max(1),
                })
                .collect();
            sizes = divide(fleet.pool_pages, &claims);
        }
        sizes
    }
}

/// What those sizes and what they grow by are short of.
fn missing(pool_pages: u64, sizes: &[u64], growth: &[u64]) -> u64 {
    let wanted: u64 = growth.iter().sum();
    wanted.saturating_sub(pool_pages - sizes.iter().sum::<u64>())
}

/// Takes what that growth is short of from those who can spare so much, from each the same part.
fn take(pool_pages: u64, sizes: &mut [u64], growth: &[u64], spare: &[u64]) {
    let claims: Vec<Claim> = (spare.iter())
        .map(|&spare| Claim {
            floor_pages: 0,
            ceiling_pages: spare,
            weight: spare,
        })
        .collect();
    let taken = divide(missing(pool_pages, sizes, growth), &claims);
    for (size, taken) in sizes.iter_mut().zip(taken) {
        *size -= taken;
    }
}

fn suffers_permille(guest: &Guest) -> Option<u32> {
    guest.slow_permille.or(guest.stall_permille)
}

fn step(guest: &Guest) -> u64 {
    (guest.claim.ceiling_pages / STEPS).max(1)
}

fn is_cool(guest: &Guest) -> bool {
    guest.steady_rounds >= COOL_ROUNDS
}

fn growth(guest: &Guest, size_pages: u64) -> u64 {
    let suffers = suffers_permille(guest).is_some_and(|permille| permille >= HIGH_PERMILLE);
    if !suffers || !is_cool(guest) {
        return 0;
    }
    let room = guest.claim.ceiling_pages.saturating_sub(size_pages);
    match guest.hot_pages {
        Some(hot_pages) => hot_pages.saturating_sub(size_pages).min(room),
        None => step(guest).min(room),
    }
}

fn gift(guest: &Guest, size_pages: u64) -> u64 {
    let content = suffers_permille(guest).is_some_and(|permille| permille <= LOW_PERMILLE);
    if !content || !is_cool(guest) {
        return 0;
    }
    let step = step(guest);
    let needless = match guest.hot_pages {
        Some(hot_pages) => {
            let spare = size_pages.saturating_sub(hot_pages.saturating_add(step));
            if spare < step { 0 } else { spare }
        }
        None => step.min(guest.free_pages / 2),
    };
    needless.min(size_pages.saturating_sub(guest.claim.floor_pages))
}
