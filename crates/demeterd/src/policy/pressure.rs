// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `pressure`: a guest that suffers grows a step; a guest that does not suffer
//! gives a step of what it does not need, if somebody suffers. Between the two
//! thresholds nothing happens, and nobody gives twice within a few decisions.
//!
//! To suffer is to have many accesses go to SMEM, where a memory manager tells,
//! or else to wait for memory. What a guest does not need is above its hot set
//! or, where nobody tells that, free: a step never takes what would make it
//! suffer, which is what would make it swing.

use super::{Claim, Fleet, Guest, Policy, divide};

/// From here on a guest suffers.
const HIGH_PERMILLE: u32 = 100;
/// Up to here it does not.
const LOW_PERMILLE: u32 = 20;
/// A guest is left alone so many decisions before it gives.
const COOL_ROUNDS: u32 = 4;
/// A step is this part of the most that a guest may have.
const STEPS: u64 = 16;

/// See the module.
pub struct Pressure;

impl Policy for Pressure {
    fn name(&self) -> &'static str {
        "pressure"
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
        let growth: Vec<u64> = fleet
            .guests
            .iter()
            .zip(&sizes)
            .map(|(guest, &size)| growth(guest, size))
            .collect();
        let wanted: u64 = growth.iter().sum();
        let free = fleet.pool_pages - sizes.iter().sum::<u64>();
        let mut missing = wanted.saturating_sub(free);
        for (guest, size) in fleet.guests.iter().zip(&mut sizes) {
            let gift = gift(guest, *size).min(missing);
            *size -= gift;
            missing -= gift;
        }
        let claims: Vec<Claim> = (fleet.guests.iter().zip(&sizes).zip(&growth))
            .map(|((guest, &size), &growth)| Claim {
                floor_pages: size,
                ceiling_pages: size + growth,
                weight: guest.claim.weight.max(1),
            })
            .collect();
        divide(fleet.pool_pages, &claims)
    }
}

fn suffers_permille(guest: &Guest) -> Option<u32> {
    guest.slow_permille.or(guest.stall_permille)
}

fn step(guest: &Guest) -> u64 {
    (guest.claim.ceiling_pages / STEPS).max(1)
}

fn growth(guest: &Guest, size_pages: u64) -> u64 {
    if suffers_permille(guest).is_none_or(|permille| permille < HIGH_PERMILLE) {
        return 0;
    }
    let most = guest
        .hot_pages
        .unwrap_or(u64::MAX)
        .min(guest.claim.ceiling_pages);
    step(guest).min(most.saturating_sub(size_pages))
}

fn gift(guest: &Guest, size_pages: u64) -> u64 {
    if suffers_permille(guest).is_none_or(|permille| permille > LOW_PERMILLE)
        || guest.steady_rounds < COOL_ROUNDS
    {
        return 0;
    }
    let needless = match guest.hot_pages {
        Some(hot_pages) => size_pages.saturating_sub(hot_pages),
        None => guest.free_pages / 2,
    };
    step(guest)
        .min(needless)
        .min(size_pages.saturating_sub(guest.claim.floor_pages))
}
