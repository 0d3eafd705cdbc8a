// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Nimble: how much of a list is looked at, and which pages are moved how.

unsafe extern "C" {
    fn demeter_nimble_share(pages: u64, permille: u64) -> u64;
    fn demeter_nimble_plan(lists: *const Lists) -> Plan;
}

/// Base pages that could be moved; see `struct demeter_nimble_lists`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lists {
    /// Of huge pages in SMEM that are active.
    pub hot_huge: u64,
    /// Of other pages there.
    pub hot_base: u64,
    /// Of huge pages in FMEM that are inactive.
    pub cold_huge: u64,
    /// Of other pages there.
    pub cold_base: u64,
    /// Free in FMEM.
    pub room: u64,
    /// Of one huge page.
    pub huge: u64,
}

/// Base pages to be moved, in this order; see `struct demeter_nimble_plan`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Of huge pages, into what is free.
    pub fill_huge: u64,
    /// Of other pages, into what is free.
    pub fill_base: u64,
    /// Of huge pages, each way, by exchange.
    pub exchange: u64,
    /// Of other pages: so many out, then as many in.
    pub trade: u64,
}

impl Lists {
    /// What to move.
    #[must_use]
    pub fn plan(mut self) -> Plan {
        // C divides by it.
        self.huge = self.huge.max(1);
        // SAFETY: valid for the call.
        unsafe { demeter_nimble_plan(&self) }
    }
}

/// How much of a list is looked at, rounded up.
#[must_use]
pub fn share(pages: u64, permille: u64) -> u64 {
    // SAFETY: no pointers.
    unsafe { demeter_nimble_share(pages, permille) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_comes_first_then_the_smaller_side() {
        let lists = Lists {
            hot_huge: 3 * 512,
            hot_base: 100,
            cold_huge: 5 * 512,
            cold_base: 30,
            room: 600,
            huge: 512,
        };
        let plan = Plan {
            fill_huge: 512,
            fill_base: 88,
            exchange: 2 * 512,
            trade: 12,
        };
        assert_eq!(lists.plan(), plan);
        let nothing = Lists { huge: 0, ..lists };
        assert_eq!(nothing.plan().fill_huge, 600);
        assert_eq!([0, 1, 7].map(|pages| share(pages, 500)), [0, 1, 4]);
    }
}
