// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests of a model that speak, do as they are told, and touch what is in their balloon.

use super::two::{SHARE_PAGES, allocated, allocated_in_huge_pages, half, settled};
use super::*;

#[test]
fn who_speaks_pays_for_what_it_touches_of_its_balloon() {
    let mut two = settled();
    two.minutes(5, allocated(TIER_PAGES[0]));
    // The first minute was seen at one end, and 30 s are let pass.
    let left_s = two.account("a").credit().as_secs_f64();
    assert!((167.5..168.5).contains(&left_s), "{left_s}");
    let account = two.guests[0].pair.vm.view().account.unwrap();
    let charged_pages = account.charged_bytes.unwrap() >> PAGE_SHIFT;
    assert!(charged_pages.abs_diff(TIER_PAGES[0]) <= TIER_PAGES[0] / 100);
    two.minutes(6, allocated(TIER_PAGES[0]));
    assert!(!two.account("a").may_borrow());
    // Once it has given that back it earns again.
    let (before, half_pages) = (two.account("a").credit(), SHARE_PAGES / 2);
    (two.guests[0]
        .pair
        .vm
        .ask(0, half_pages << PAGE_SHIFT, "test"))
    .unwrap();
    two.guests[0].obey();
    two.minutes(2, allocated(half_pages));
    assert!(two.account("a").credit() > before);
}

#[test]
fn who_does_as_it_is_told_pays_no_more_for_what_is_seen_for_a_moment() {
    let mut two = settled();
    // A balloon that fills is seen with what is not dropped yet, and one that empties is seen
    // late: of a 32nd of its share, every half hour.
    for _ in 0..48 {
        two.minutes(1, allocated(SHARE_PAGES / 32 * 33));
        two.minutes(29, allocated(SHARE_PAGES));
    }
    assert_eq!(two.account("a"), half());
}

#[test]
fn who_lets_go_at_every_other_look_pays_for_half_of_it() {
    let mut two = settled();
    // 18 s of credit a minute.
    for _ in 0..5 {
        two.minutes(1, allocated(TIER_PAGES[0]));
        two.minutes(1, allocated(SHARE_PAGES));
    }
    let left_s = two.account("a").credit().as_secs_f64();
    assert!((149.0..152.0).contains(&left_s), "{left_s}");
    for _ in 0..10 {
        two.minutes(1, allocated(TIER_PAGES[0]));
        two.minutes(1, allocated(SHARE_PAGES));
    }
    assert!(!two.account("a").may_borrow());
}

#[test]
fn who_keeps_next_to_nothing_for_days_does_not_owe_an_account() {
    let mut two = settled();
    // Less than the 512th that is forgotten.
    two.minutes(3 * 24 * 60, allocated(SHARE_PAGES + SHARE_PAGES / 585));
    assert_eq!(two.account("a"), half());
    two.guests[0].greet();
    two.minutes(1, allocated(SHARE_PAGES));
    let left_s = two.account("a").credit().as_secs_f64();
    assert!((299.5..=300.0).contains(&left_s), "{left_s}");
}

#[test]
fn what_a_guest_was_promised_it_pays_for_once() {
    // It has not taken it out of its balloon, and has touched it or not.
    let left_s = [SHARE_PAGES, TIER_PAGES[0]].map(|pages| {
        let mut two = settled();
        two.minutes(5, |view| {
            allocated(pages)(view);
            view.tiers[0].wanted_size_bytes = Some(TIER_PAGES[0] << PAGE_SHIFT);
        });
        two.account("a").credit().as_secs_f64()
    });
    assert_eq!(left_s, [120.0; 2]);
}

#[test]
fn where_huge_pages_cover_the_balloon_who_speaks_is_believed() {
    let mut two = settled();
    two.minutes(60, allocated_in_huge_pages(TIER_PAGES[0]));
    assert_eq!(two.account("a"), half());
}
