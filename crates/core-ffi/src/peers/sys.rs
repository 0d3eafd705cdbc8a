// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The C interface, as `core/include/demeter/peers/*.h` declares it.

use crate::sys::TIERS;

use super::memtis::{BINS, Histogram, Period, SPLIT_PAGES, Splitting, Thresholds};
use super::nimble::{Lists, Plan};

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct HememRules {
    pub hot_reads: u32,
    pub hot_writes: u32,
    pub cooling_samples: u32,
    pub writes_first: bool,
}

#[repr(C)]
#[derive(Debug)]
pub struct HememPage {
    pub before: *mut HememPage,
    pub after: *mut HememPage,
    pub clock: u64,
    pub reads: u32,
    pub writes: u32,
    pub tier: u32,
    pub hot: bool,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HememList {
    pub first: *mut HememPage,
    pub last: *mut HememPage,
    pub pages: u64,
}

#[repr(C)]
#[derive(Debug)]
pub struct Hemem {
    pub rules: HememRules,
    pub lists: [[HememList; 2]; TIERS],
    pub cooling: [*mut HememPage; TIERS],
    pub clock: u64,
}

#[repr(C)]
#[derive(Debug)]
pub struct HememMove {
    pub up: *mut HememPage,
    pub down: *mut HememPage,
}

unsafe extern "C" {
    pub fn demeter_hemem_add(hemem: *mut Hemem, page: *mut HememPage, tier: u32);
    pub fn demeter_hemem_count(hemem: *mut Hemem, page: *mut HememPage, write: bool) -> bool;
    pub fn demeter_hemem_cool(hemem: *mut Hemem, pages: u64) -> u64;
    pub fn demeter_hemem_choose(hemem: *const Hemem, room: bool, next: *mut HememMove) -> bool;
    pub fn demeter_hemem_moved(hemem: *mut Hemem, page: *mut HememPage, tier: u32);

    pub fn demeter_memtis_bin(units: u64) -> u32;
    pub fn demeter_memtis_move(histogram: *mut Histogram, from: u32, to: u32, pages: u64);
    pub fn demeter_memtis_choose(histogram: *const Histogram, fmem_pages: u64) -> Thresholds;
    pub fn demeter_memtis_load_period(step: u32) -> u32;
    pub fn demeter_memtis_step(step: u32, used_permille: u64, quota_permille: u64) -> u32;
    pub fn demeter_memtis_skew(samples: *const u32, hot: u32) -> u32;
    pub fn demeter_memtis_split_due(period: *const Period) -> bool;
    pub fn demeter_memtis_split(splitting: *mut Splitting, period: *const Period) -> u64;

    pub fn demeter_nimble_share(pages: u64, permille: u64) -> u64;
    pub fn demeter_nimble_plan(lists: *const Lists) -> Plan;
}

/// As C has them, for those who pass fixed arrays.
const _: () = assert!(BINS == 16 && SPLIT_PAGES == 512);

#[cfg(test)]
mod tests {
    use super::super::memtis::{EXEMPT_BIN, NOWHERE};
    use super::*;
    use std::mem::{offset_of, size_of};

    #[test]
    fn layouts_are_those_of_c() {
        const FACTS: usize = 31;
        unsafe extern "C" {
            static demeter_peers_layout: [usize; FACTS];
        }
        let ours: [usize; FACTS] = [
            size_of::<HememRules>(),
            offset_of!(HememRules, writes_first),
            size_of::<HememPage>(),
            offset_of!(HememPage, clock),
            offset_of!(HememPage, tier),
            offset_of!(HememPage, hot),
            size_of::<HememList>(),
            offset_of!(HememList, pages),
            size_of::<Hemem>(),
            offset_of!(Hemem, lists),
            offset_of!(Hemem, cooling),
            offset_of!(Hemem, clock),
            size_of::<HememMove>(),
            offset_of!(HememMove, down),
            BINS,
            SPLIT_PAGES,
            EXEMPT_BIN as usize,
            NOWHERE as usize,
            size_of::<Histogram>(),
            size_of::<Thresholds>(),
            offset_of!(Thresholds, warm),
            size_of::<Period>(),
            offset_of!(Period, huge_pages),
            offset_of!(Period, gap_permille),
            size_of::<Splitting>(),
            offset_of!(Splitting, off),
            size_of::<Lists>(),
            offset_of!(Lists, room),
            offset_of!(Lists, huge),
            size_of::<Plan>(),
            offset_of!(Plan, trade),
        ];
        // SAFETY: a constant array of that length in src/peers/layout.c.
        assert_eq!(unsafe { &demeter_peers_layout }, &ours);
    }
}
