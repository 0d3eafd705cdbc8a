// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Accounts of guests that are a model: who pays, and what outlasts whom.

use super::two::{Two, allocated, allocated_in_huge_pages};
use super::*;

use crate::accounts::Accounts;
use crate::policy::Account;

const BOTH: [usize; 2] = [0, 1];

#[test]
fn nobody_pays_under_a_policy_that_does_not_listen() {
    let mut two = Two::of_whom_each_has_twice_its_share();
    for (name, pays) in [("static", false), ("guaranteed", true)] {
        two.host.orders.policy = policy::by_name(name).unwrap();
        two.unmoved_minutes(&BOTH, 20);
        assert_eq!(two.account("a").may_borrow(), !pays, "{name}");
    }
    // Whose credit is gone is not told so by one that does not ask for it.
    let memory = &two.host.coordinator.memories["a"];
    let vm = &two.guests[0].pair.vm;
    let guest = guest(&vm.share(), &vm.view(), 0, memory);
    for (name, tells) in [
        ("static", false),
        ("proportional", false),
        ("pressure", true),
    ] {
        let policy = policy::by_name(name).unwrap().unwrap();
        let words = cause(policy.as_ref(), &guest, None);
        assert_eq!(words.contains("no credit"), tells, "{words}");
    }
}

#[test]
fn who_goes_and_comes_again_has_the_account_of_before() {
    let mut two = Two::of_whom_each_has_twice_its_share();
    two.unmoved_minutes(&BOTH, 20);
    assert!(!two.account("a").may_borrow());
    // Away for two minutes of the ten that an account takes to fill.
    two.unmoved_minutes(&[1], 2);
    two.unmoved_minutes(&BOTH, 3);
    let may_borrow = two.account("a").may_borrow();
    assert!(!may_borrow, "a new account for an old guest");
    two.unmoved_minutes(&[1], 10);
    two.unmoved_minutes(&BOTH, 1);
    assert!(
        two.account("a").may_borrow(),
        "it had nothing for ten minutes"
    );
}

#[test]
fn a_restart_gives_no_guest_a_new_account() {
    let mut two = Two::of_whom_each_has_twice_its_share();
    // The file is between the two daemons.
    let restart = |two: &mut Two| {
        let open = || Accounts::open(Some(two.directory.path()), PolicyClock::Host);
        let accounts = open();
        accounts.set(two.host.coordinator.accounts());
        accounts.write();
        two.host.coordinator = Coordinator::new(open().newest());
    };
    two.unmoved_minutes(&BOTH, 5);
    assert!(two.account("a").may_borrow());
    restart(&mut two);
    // The ten minutes are over soon, and do not begin anew.
    two.unmoved_minutes(&BOTH, 4);
    assert!(two.account("a").may_borrow());
    two.unmoved_minutes(&BOTH, 4);
    assert!(!two.account("a").may_borrow());
    for _ in 0..3 {
        restart(&mut two);
        two.unmoved_minutes(&BOTH, 1);
        assert!(!two.account("a").may_borrow(), "a new account");
    }
    // One that is away meanwhile is remembered, too.
    two.unmoved_minutes(&[0], 1);
    restart(&mut two);
    assert!(!two.host.coordinator.away.back("b").is_new());
}

#[test]
fn who_was_reset_and_never_greets_pays_for_what_it_keeps() {
    const LEFT_PAGES: u64 = 20_000;
    let mut two = Two::of(TIER_PAGES[0] + LEFT_PAGES);
    // It has all of its FMEM, which is half as much again as its share.
    two.guests[0].pair.guest.reset();
    two.guests[0].pair.carry();
    assert_eq!(two.guests[0].pair.vm.view().stage, Stage::Connected);
    two.minutes(1, |_| {});
    two.set_account("b", Account::restored(Duration::from_secs(300), false));
    two.minutes(17, |_| {});
    assert!(two.account("a").may_borrow());
    two.minutes(3, |_| {});
    assert!(!two.account("a").may_borrow());
    // The other one has what is left, and earns by it.
    assert_eq!(TIER_PAGES[0] - two.guests[1].balloon[0], LEFT_PAGES);
    assert!(two.account("b").is_new());
    // Its driver is there again, and it is a guest without credit like any other.
    two.guests[0].greet();
    two.minutes(1, |_| {});
    let view = two.guests[0].pair.vm.view();
    assert_eq!(view.stage, Stage::Driven);
    let wanted_bytes = view.tiers[0].wanted_size_bytes.unwrap();
    assert_eq!(wanted_bytes >> PAGE_SHIFT, (TIER_PAGES[0] + LEFT_PAGES) / 2);
    assert!(!two.account("a").may_borrow());
}

#[test]
fn who_keeps_no_more_than_its_share_pays_nothing_without_a_driver_either() {
    let mut two = Two::of(TIER_PAGES[0]);
    let share_pages = TIER_PAGES[0] / 2;
    let half_bytes = (share_pages / 2) << PAGE_SHIFT;
    (two.guests[0].pair.vm.ask(0, half_bytes, "test")).unwrap();
    two.guests[0].obey();
    two.guests[0].pair.guest.reset();
    two.guests[0].pair.carry();
    two.minutes(30, |_| {});
    two.minutes(30, allocated(share_pages));
    // What it does not keep nobody but the other one could have.
    assert!(TIER_PAGES[0] - two.guests[1].balloon[0] > share_pages);
    assert!(two.account("a").is_new() && two.account("b").is_new());
    // Its balloon is gone with its driver: all of FMEM is its own as soon as it touches it.
    two.minutes(12, allocated(TIER_PAGES[0]));
    assert!(!two.account("a").may_borrow());
}

#[test]
fn a_reset_that_nobody_told_of_is_paid_as_well() {
    let mut two = Two::of(TIER_PAGES[0]);
    two.minutes(1, |_| {});
    two.guests[0].obey();
    let all = allocated_in_huge_pages(TIER_PAGES[0]);
    // Whoever speaks gives back in its own time.
    two.minutes(30, &all);
    assert!(two.account("a").may_borrow());
    two.minutes(30, |view| {
        view.statistics = None;
        all(view);
    });
    assert_eq!(two.guests[0].pair.vm.view().stage, Stage::Driven);
    assert!(!two.account("a").may_borrow());
    // Silence alone costs nothing.
    let account = Account::restored(Duration::from_secs(300), false);
    two.set_account("a", account);
    two.minutes(12, |view| view.statistics = None);
    assert_eq!(two.account("a"), account);
}

#[test]
fn who_lends_and_who_borrows_can_be_seen() {
    let mut two = Two::of_whom_each_has_twice_its_share();
    let seen = |two: &Two, at: usize| two.guests[at].pair.vm.view().account;
    two.unmoved_minutes(&BOTH, 1);
    let share_bytes = Some((TIER_PAGES[0] / 2) << PAGE_SHIFT);
    // `b` does as it is told, and less than its share is asked of it.
    two.minutes(3, |_| {});
    let (a, b) = (seen(&two, 0).unwrap(), seen(&two, 1).unwrap());
    assert_eq!((a.share_bytes, b.share_bytes), (share_bytes, share_bytes));
    assert_eq!(a.charged_bytes, Some(TIER_PAGES[0] << PAGE_SHIFT));
    assert!(b.charged_bytes <= share_bytes, "{b:?}");
    let account = two.account("a");
    assert_eq!(Duration::from_millis(a.credit_ms), account.credit());
    assert!(a.credit_ms < 600_000 && !a.spent);
    two.unmoved_minutes(&BOTH, 20);
    assert!(seen(&two, 0).unwrap().spent);
    // Whoever is not connected neither pays nor earns.
    two.guests[0].pair.guest.disconnected();
    two.guests[0].pair.carry();
    two.minutes(1, |_| {});
    let a = seen(&two, 0).unwrap();
    assert_eq!((a.share_bytes, a.charged_bytes), (None, None));
    // Nobody pays where nobody listens.
    two.host.orders.policy = policy::by_name("static").unwrap();
    two.unmoved_minutes(&BOTH, 1);
    assert_eq!((seen(&two, 0), seen(&two, 1)), (None, None));
}
