// SPDX-License-Identifier: Apache-2.0 OR MIT
//! FMEM apportioned between groups: floors and caps.

use crate::plan::{Plan, Planner};
use crate::sys::{self, Group, Groups};
use crate::{Error, Ranking};

impl Planner {
    /// Decides what to relocate under the limits of `groups`, which entries name by
    /// their index; what each is due is filled in. `ranking` is sorted.
    pub fn make_grouped(
        &mut self,
        ranking: &Ranking,
        groups: &mut [Group],
        unit_shift: u32,
        free_fmem_pages: u64,
        now_ns: u64,
    ) -> Result<Plan, Error> {
        if groups.is_empty() || unit_shift >= u64::BITS {
            return Err(Error::Invalid);
        }
        let mut all = Groups {
            nr: u32::try_from(groups.len()).map_err(|_| Error::Invalid)?,
            group: groups.as_mut_ptr(),
            unit_shift,
        };
        let count = u32::try_from(ranking.entries.len()).unwrap_or(u32::MAX);
        self.make_by(0, |plan, state, params| {
            // SAFETY: the ranking has `count` entries at least, `all` as many groups
            // as it says, and the rest is valid for the call.
            unsafe {
                sys::demeter_plan_make_grouped(
                    plan,
                    state,
                    params,
                    ranking.entries.as_ptr(),
                    count,
                    &mut all,
                    free_fmem_pages,
                    now_ns,
                );
            }
        })
    }
}
