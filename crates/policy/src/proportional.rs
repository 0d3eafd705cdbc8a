// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `proportional`: by weight, between floors and ceilings, whatever the guests
//! do with it.

use super::{Fleet, Policy, divide};

/// See the module.
pub struct Proportional;

impl Policy for Proportional {
    fn name(&self) -> &'static str {
        "proportional"
    }

    fn sizes(&self, fleet: &Fleet) -> Vec<u64> {
        divide(fleet.pool_pages, &fleet.claims())
    }
}
