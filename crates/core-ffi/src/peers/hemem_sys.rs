// SPDX-License-Identifier: Apache-2.0 OR MIT
//! HeMem's C interface, as `core/include/demeter/peers/hemem.h` declares it.

use crate::sys::TIERS;

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
}
