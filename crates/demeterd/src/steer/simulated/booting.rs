// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests of a model that boot: they pay for what the host saw of it, and for nothing else.

use super::two::{POOL_PAGES, SHARE_PAGES, Two, allocated, allocated_in_huge_pages, half, settled};
use super::*;

fn size_pages(two: &Two) -> u64 {
    two.guests[0].pair.carry();
    two.guests[0].pair.vm.view().tiers[0].size_bytes >> PAGE_SHIFT
}

#[test]
fn a_boot_costs_nothing_while_the_host_sees_no_more_than_the_share() {
    let mut two = settled();
    // Its machine is started anew: no balloon, and little of its memory has been touched.
    two.guests[0].replug();
    assert_eq!(size_pages(&two), TIER_PAGES[0]);
    two.minutes(2, allocated(SHARE_PAGES / 2));
    assert_eq!(two.account("a"), half());
    // Its driver is there, and the balloon is on its way.
    two.guests[0].greet();
    assert_eq!(size_pages(&two), TIER_PAGES[0]);
    two.minutes(2, allocated(SHARE_PAGES / 2));
    assert_eq!(two.account("a"), half());
    two.guests[0].obey();
    assert_eq!(size_pages(&two), SHARE_PAGES);
    two.minutes(2, allocated(SHARE_PAGES / 2));
    assert_eq!(two.account("a"), half());
}

#[test]
fn what_a_boot_touches_is_paid() {
    let mut two = settled();
    two.guests[0].replug();
    two.minutes(2, allocated(TIER_PAGES[0]));
    assert_eq!(two.account("a").credit(), Duration::from_secs(228));
    two.guests[0].greet();
    two.minutes(2, allocated(SHARE_PAGES / 4 * 5));
    assert_eq!(two.account("a").credit(), Duration::from_secs(213));
    // Nor can anybody save by it: who boots keeps what it was promised.
    two.guests[0].obey();
    for _ in 0..10 {
        two.guests[0].replug();
        two.minutes(1, allocated(KERNEL_PAGES[0]));
    }
    assert!(two.account("a").credit() <= Duration::from_secs(213));
}

#[test]
fn a_machine_that_was_never_asked_pays_for_what_it_touches() {
    let mut two = Two::of(POOL_PAGES);
    assert!(
        two.guests[0].pair.vm.view().tiers[0]
            .wanted_size_bytes
            .is_none()
    );
    two.guests[0].pair.guest.reset();
    two.guests[0].pair.carry();
    two.minutes(2, allocated(SHARE_PAGES));
    assert!(two.account("a").is_new());
    two.guests[0].greet();
    two.minutes(1, allocated(SHARE_PAGES));
    assert!(two.account("a").is_new());
}

#[test]
fn who_boots_for_ever_pays_for_what_is_kept_for_it() {
    let mut two = settled();
    for _ in 0..5 {
        two.guests[0].replug();
        two.minutes(1, allocated(KERNEL_PAGES[0]));
        two.guests[0].greet();
        two.minutes(2, allocated(KERNEL_PAGES[0]));
    }
    assert!(!two.account("a").may_borrow());
    // One that does what it is asked for a while may boot again.
    two.guests[0].obey();
    two.minutes(90, allocated(KERNEL_PAGES[0]));
    two.set_account("a", half());
    two.guests[0].greet();
    two.minutes(2, allocated(KERNEL_PAGES[0]));
    assert_eq!(two.account("a"), half());
}

#[test]
fn who_boots_again_and_again_pays_too() {
    let mut two = settled();
    // A word that does next to nothing ends each boot; all of FMEM is kept for it meanwhile.
    for _ in 0..15 {
        two.guests[0].replug();
        two.minutes(1, allocated(KERNEL_PAGES[0]));
        two.guests[0].greet();
        two.guests[0].obey();
    }
    // Five minutes of them cost nothing, the other ten what was kept, less what it did obey.
    let left_s = two.account("a").credit().as_secs_f64();
    assert!(left_s < 120.0, "{left_s}");
}

/// Nobody told of its reset: it has all of FMEM, and its old words are the newest.
fn booting_without_a_word() -> Two {
    let mut two = settled();
    two.guests[0].now_s = 1e5;
    two.minutes(1, allocated(SHARE_PAGES));
    two.guests[0].is_mute = true;
    two.minutes(2, allocated_in_huge_pages(TIER_PAGES[0]));
    assert_eq!(two.account("a"), half());
    two
}

fn left_s(two: &Two) -> f64 {
    two.account("a").credit().as_secs_f64()
}

#[test]
fn a_boot_that_nobody_told_of_is_paid_when_it_has_ended() {
    let mut two = booting_without_a_word();
    // Who says nothing for a while has said so late.
    two.guests[0].is_mute = false;
    two.minutes(1, allocated(SHARE_PAGES));
    assert_eq!(two.account("a"), half());
    let mut two = booting_without_a_word();
    two.guests[0].greet();
    two.guests[0].is_mute = false;
    two.guests[0].now_s = 1.0;
    two.minutes(2, allocated(SHARE_PAGES));
    let left_s = left_s(&two);
    assert!((227.5..228.5).contains(&left_s), "{left_s}");
}

#[test]
fn who_speaks_before_it_greets_owes_what_it_had_without_a_word() {
    let mut two = booting_without_a_word();
    // A clock that is behind is not that of whose driver has greeted.
    two.guests[0].is_mute = false;
    two.guests[0].now_s = 1.0;
    two.minutes(2, allocated_in_huge_pages(TIER_PAGES[0]));
    let before_s = left_s(&two);
    assert!((227.5..228.5).contains(&before_s), "{before_s}");
    two.guests[0].greet();
    two.minutes(1, allocated_in_huge_pages(SHARE_PAGES));
    let owed_s = before_s - left_s(&two);
    assert!((71.5..72.5).contains(&owed_s), "{owed_s}");
    // From then on its clock is this one.
    two.guests[0].obey();
    two.set_account("a", half());
    two.minutes(10, allocated_in_huge_pages(TIER_PAGES[0]));
    assert_eq!(two.account("a"), half());
}

/// The system that has booted speaks by a clock of its own, and pays for its size alone.
fn is_believed(two: &mut Two) {
    two.guests[0].obey();
    two.guests[0].is_mute = false;
    two.guests[0].now_s = 1.0;
    two.set_account("a", half());
    two.minutes(10, allocated_in_huge_pages(TIER_PAGES[0]));
    assert_eq!(two.account("a"), half());
}

#[test]
fn last_words_heard_with_the_greeting_of_the_next_system_are_not_its_clock() {
    for greetings in [1, 2] {
        let mut two = settled();
        two.guests[0].now_s = 1e5;
        two.minutes(1, allocated_in_huge_pages(SHARE_PAGES));
        for _ in 0..greetings {
            // It speaks once more, is started anew, and greets, all between two decisions.
            two.guests[0].now_s += 1.0;
            two.guests[0].tell();
            two.guests[0].greet();
            two.guests[0].is_mute = true;
            two.minutes(1, allocated_in_huge_pages(SHARE_PAGES));
        }
        is_believed(&mut two);
        // From then on that is its clock, and what is behind is another's.
        two.guests[0].now_s = 1.0;
        two.minutes(2, allocated_in_huge_pages(TIER_PAGES[0]));
        let left_s = left_s(&two);
        assert!((227.5..228.5).contains(&left_s), "{left_s}");
    }
}

#[test]
fn what_a_boot_without_a_word_kept_is_paid_whatever_its_clock() {
    for now_s in [1.0, 1e6] {
        let mut two = settled();
        two.guests[0].now_s = now_s;
        two.minutes(1, allocated(SHARE_PAGES));
        // At one end of a minute and both of another, which is 54 s of credit; 30 are let pass at
        // first.
        two.minutes(2, allocated(TIER_PAGES[0]));
        let before_s = left_s(&two);
        assert!((275.5..276.5).contains(&before_s), "{before_s}");
        two.guests[0].greet();
        two.minutes(2, allocated(SHARE_PAGES));
        let owed_s = before_s - left_s(&two);
        assert!((29.5..30.5).contains(&owed_s), "{owed_s}");
    }
}

#[test]
fn where_the_host_sees_nothing_a_boot_is_paid_by_its_size() {
    let mut two = settled();
    two.guests[0].replug();
    two.minutes(2, |_| {});
    assert_eq!(two.account("a").credit(), Duration::from_secs(228));
}

#[test]
fn another_machine_between_two_decisions_is_not_the_one_of_before() {
    let mut two = settled();
    two.guests[0].now_s = 1e5;
    two.minutes(1, allocated_in_huge_pages(SHARE_PAGES));
    // It greets as often as that one did.
    two.guests[0].replug();
    two.guests[0].greet();
    two.guests[0].is_mute = true;
    two.minutes(1, allocated_in_huge_pages(SHARE_PAGES));
    is_believed(&mut two);
}
