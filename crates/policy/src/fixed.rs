// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `static`: what was configured, for ever. Guests without a configured size
//! share what is left in equal parts.

use super::{Claim, Fleet, Policy, divide};

/// See the module.
pub struct Static;

impl Policy for Static {
    fn name(&self) -> &'static str {
        "static"
    }

    fn sizes(&self, fleet: &Fleet) -> Vec<u64> {
        let claims: Vec<Claim> = fleet
            .guests
            .iter()
            .map(|guest| {
                let claim = guest.claim;
                match guest.fixed_pages {
                    Some(fixed) => {
                        let fixed = fixed.clamp(claim.floor_pages, claim.ceiling_pages);
                        Claim {
                            floor_pages: fixed,
                            ceiling_pages: fixed,
                            weight: 0,
                        }
                    }
                    None => Claim { weight: 1, ..claim },
                }
            })
            .collect();
        let wanted: u128 = claims.iter().map(|c| u128::from(c.floor_pages)).sum();
        if wanted <= u128::from(fleet.pool_pages) {
            return divide(fleet.pool_pages, &claims);
        }
        // More was configured than there is: floors first, as everywhere.
        let fair: Vec<Claim> = fleet
            .guests
            .iter()
            .zip(&claims)
            .map(|(guest, claim)| Claim {
                floor_pages: guest.claim.floor_pages,
                ceiling_pages: claim.floor_pages,
                weight: claim.floor_pages - guest.claim.floor_pages,
            })
            .collect();
        divide(fleet.pool_pages, &fair)
    }
}
