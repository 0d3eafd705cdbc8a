// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What Rust takes for the layout of C's structures is what C has: all fields, as two of equal size
//! could change places.

use std::mem::{offset_of, size_of};

use super::hemem_sys::{Hemem, HememList, HememMove, HememPage, HememRules};
use super::memtis::{
    BINS, EXEMPT_BIN, Histogram, NOWHERE, Period, SPLIT_PAGES, Splitting, Thresholds,
};
use super::nimble::{Lists, Plan};

#[test]
fn layouts_are_those_of_c() {
    const FACTS: usize = 59;
    unsafe extern "C" {
        static demeter_peers_layout: [usize; FACTS];
    }
    let ours: [usize; FACTS] = [
        BINS,
        SPLIT_PAGES,
        EXEMPT_BIN as usize,
        NOWHERE as usize,
        size_of::<HememRules>(),
        offset_of!(HememRules, hot_reads),
        offset_of!(HememRules, hot_writes),
        offset_of!(HememRules, cooling_samples),
        offset_of!(HememRules, writes_first),
        size_of::<HememPage>(),
        offset_of!(HememPage, before),
        offset_of!(HememPage, after),
        offset_of!(HememPage, clock),
        offset_of!(HememPage, reads),
        offset_of!(HememPage, writes),
        offset_of!(HememPage, tier),
        offset_of!(HememPage, hot),
        size_of::<HememList>(),
        offset_of!(HememList, first),
        offset_of!(HememList, last),
        offset_of!(HememList, pages),
        size_of::<Hemem>(),
        offset_of!(Hemem, rules),
        offset_of!(Hemem, lists),
        offset_of!(Hemem, cooling),
        offset_of!(Hemem, clock),
        size_of::<HememMove>(),
        offset_of!(HememMove, up),
        offset_of!(HememMove, down),
        size_of::<Histogram>(),
        offset_of!(Histogram, pages),
        size_of::<Thresholds>(),
        offset_of!(Thresholds, hot),
        offset_of!(Thresholds, warm),
        size_of::<Period>(),
        offset_of!(Period, samples),
        offset_of!(Period, hits),
        offset_of!(Period, base_hits),
        offset_of!(Period, huge_samples),
        offset_of!(Period, huge_pages),
        offset_of!(Period, resident_pages),
        offset_of!(Period, fmem_pages),
        offset_of!(Period, gap_permille),
        size_of::<Splitting>(),
        offset_of!(Splitting, before_permille),
        offset_of!(Splitting, tried),
        offset_of!(Splitting, off),
        size_of::<Lists>(),
        offset_of!(Lists, hot_huge),
        offset_of!(Lists, hot_base),
        offset_of!(Lists, cold_huge),
        offset_of!(Lists, cold_base),
        offset_of!(Lists, room),
        offset_of!(Lists, huge),
        size_of::<Plan>(),
        offset_of!(Plan, fill_huge),
        offset_of!(Plan, fill_base),
        offset_of!(Plan, exchange),
        offset_of!(Plan, trade),
    ];
    // SAFETY: a constant array of that length in src/peers/layout.c.
    assert_eq!(unsafe { &demeter_peers_layout }, &ours);
}
