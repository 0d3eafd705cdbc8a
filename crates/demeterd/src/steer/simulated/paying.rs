// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Accounts of guests that are a model: who pays, and what outlasts whom.

use super::*;

use crate::accounts::Accounts;
use crate::policy::Account;

/// Minutes with a decision each, which nobody obeys.
fn unmoved_minutes(host: &mut Host, guests: &mut [Model], count: u32) {
    host.orders.interval_ms = 60_000;
    for _ in 0..count {
        for guest in &mut *guests {
            guest.now_s += 60.0;
            guest.tell();
        }
        let seen = guests
            .iter()
            .map(|guest| (guest.pair.vm.clone(), guest.pair.vm.view()));
        assert!((host.coordinator).decide(seen.collect(), &host.orders));
    }
}

#[test]
fn nobody_pays_under_a_policy_that_does_not_listen() {
    let directory = tempfile::tempdir().unwrap();
    let mut guests = ["a", "b"].map(|name| Model::new(directory.path(), name, true, ""));
    let mut host = Host::new(ALL_PAGES / 4);
    let may_borrow = |host: &Host| host.coordinator.memories["a"].account.may_borrow();
    for (name, pays) in [("static", false), ("guaranteed", true)] {
        host.orders.policy = policy::by_name(name).unwrap();
        // All of FMEM, as nobody obeys: twice its share.
        unmoved_minutes(&mut host, &mut guests, 20);
        assert_eq!(may_borrow(&host), !pays, "{name}");
    }
    // Whose credit is gone is not told so by one that does not ask for it.
    let memory = &host.coordinator.memories["a"];
    let vm = &guests[0].pair.vm;
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
    let directory = tempfile::tempdir().unwrap();
    let mut guests = ["a", "b"].map(|name| Model::new(directory.path(), name, true, ""));
    let mut host = Host::new(ALL_PAGES / 4);
    host.orders.policy = policy::by_name("guaranteed").unwrap();
    let mut decide = |guests: &mut [Model], decisions| {
        unmoved_minutes(&mut host, guests, decisions);
        let memory = host.coordinator.memories.get(&guests[0].pair.vm.spec.name);
        memory.is_some_and(|memory| memory.account.may_borrow())
    };
    // Both have all of FMEM, as nobody obeys: twice their share.
    assert!(!decide(&mut guests, 20));
    // Away for two minutes of the ten that an account takes to fill.
    decide(&mut guests[1..], 2);
    assert!(!decide(&mut guests, 3), "a new account for an old guest");
    decide(&mut guests[1..], 10);
    assert!(decide(&mut guests, 1), "it had nothing for ten minutes");
}

#[test]
fn a_restart_gives_no_guest_a_new_account() {
    let directory = tempfile::tempdir().unwrap();
    let mut guests = ["a", "b"].map(|name| Model::new(directory.path(), name, true, ""));
    let mut host = Host::new(ALL_PAGES / 4);
    host.orders.policy = policy::by_name("guaranteed").unwrap();
    let may_borrow = |host: &mut Host, guests: &mut [Model], decisions| {
        unmoved_minutes(host, guests, decisions);
        let memory = &host.coordinator.memories["a"];
        memory.account.may_borrow()
    };
    // The file is between the two daemons.
    let restart = |host: &mut Host| {
        let open = || Accounts::open(Some(directory.path()), PolicyClock::Host);
        let accounts = open();
        accounts.set(host.coordinator.accounts());
        accounts.write();
        host.coordinator = Coordinator::new(open().newest());
    };
    // Both have all of FMEM, as nobody obeys: twice their share.
    assert!(may_borrow(&mut host, &mut guests, 5));
    restart(&mut host);
    // The ten minutes are over soon, and do not begin anew.
    assert!(may_borrow(&mut host, &mut guests, 4));
    assert!(!may_borrow(&mut host, &mut guests, 4));
    for _ in 0..3 {
        restart(&mut host);
        assert!(!may_borrow(&mut host, &mut guests, 1), "a new account");
    }
    // One that is away meanwhile is remembered, too.
    may_borrow(&mut host, &mut guests[..1], 1);
    restart(&mut host);
    assert!(!host.coordinator.away.back("b").is_new());
}

/// Minutes in which `a` looks like that and obeys nobody, and `b` does as it is told.
fn minutes(host: &mut Host, guests: &mut [Model; 2], count: u64, a: impl Fn(&mut VmView)) {
    host.orders.interval_ms = 60_000;
    for _ in 0..count {
        for guest in &mut *guests {
            guest.now_s += 60.0;
            if guest.pair.vm.view().stage == Stage::Driven {
                guest.tell();
            }
        }
        let mut view = guests[0].pair.vm.view();
        a(&mut view);
        let seen = vec![
            (guests[0].pair.vm.clone(), view),
            (guests[1].pair.vm.clone(), guests[1].pair.vm.view()),
        ];
        assert!((host.coordinator).decide(seen, &host.orders));
        guests[1].obey();
    }
}

/// Two guests under `guaranteed`, who have the same share.
fn two_of(directory: &std::path::Path, fmem_pool_pages: u64) -> (Host, [Model; 2]) {
    let mut host = Host::new(fmem_pool_pages);
    host.orders.policy = policy::by_name("guaranteed").unwrap();
    let guests = ["a", "b"].map(|name| Model::new(directory, name, true, ""));
    (host, guests)
}

#[test]
fn who_was_reset_and_never_greets_pays_for_what_it_keeps() {
    const LEFT_PAGES: u64 = 20_000;
    let directory = tempfile::tempdir().unwrap();
    let (mut host, mut guests) = two_of(directory.path(), TIER_PAGES[0] + LEFT_PAGES);
    let account = |host: &Host, name: &str| host.coordinator.memories[name].account;
    // It has all of its FMEM, which is half as much again as its share.
    guests[0].pair.guest.reset();
    guests[0].pair.carry();
    assert_eq!(guests[0].pair.vm.view().stage, Stage::Connected);
    minutes(&mut host, &mut guests, 1, |_| {});
    let half = Account::restored(Duration::from_secs(300), false);
    host.coordinator.memories.get_mut("b").unwrap().account = half;
    minutes(&mut host, &mut guests, 17, |_| {});
    assert!(account(&host, "a").may_borrow());
    minutes(&mut host, &mut guests, 3, |_| {});
    assert!(!account(&host, "a").may_borrow());
    // The other one has what is left, and earns by it.
    assert_eq!(TIER_PAGES[0] - guests[1].balloon[0], LEFT_PAGES);
    assert!(account(&host, "b").is_new());
    // Its driver is there again, and it is a guest without credit like any other.
    for node in 0..2 {
        guests[0].pair.greet(node);
    }
    guests[0].pair.carry();
    minutes(&mut host, &mut guests, 1, |_| {});
    let view = guests[0].pair.vm.view();
    assert_eq!(view.stage, Stage::Driven);
    let wanted_bytes = view.tiers[0].wanted_size_bytes.unwrap();
    assert_eq!(wanted_bytes >> PAGE_SHIFT, (TIER_PAGES[0] + LEFT_PAGES) / 2);
    assert!(!account(&host, "a").may_borrow());
}

#[test]
fn who_keeps_no_more_than_its_share_pays_nothing_without_a_driver_either() {
    let directory = tempfile::tempdir().unwrap();
    let (mut host, mut guests) = two_of(directory.path(), TIER_PAGES[0]);
    let share_pages = TIER_PAGES[0] / 2;
    guests[0]
        .pair
        .vm
        .ask(0, (share_pages / 2) << PAGE_SHIFT, "test")
        .unwrap();
    guests[0].obey();
    guests[0].pair.guest.reset();
    guests[0].pair.carry();
    let allocated = |pages: u64| {
        move |view: &mut VmView| view.tiers[0].backing_bytes = Some(pages << PAGE_SHIFT)
    };
    minutes(&mut host, &mut guests, 30, |_| {});
    minutes(&mut host, &mut guests, 30, allocated(share_pages));
    // What it does not keep nobody but the other one could have.
    assert!(TIER_PAGES[0] - guests[1].balloon[0] > share_pages);
    let is_new = |host: &Host, name: &str| host.coordinator.memories[name].account.is_new();
    assert!(is_new(&host, "a") && is_new(&host, "b"));
    // Its balloon is gone with its driver: all of FMEM is its own as soon as it touches it.
    minutes(&mut host, &mut guests, 12, allocated(TIER_PAGES[0]));
    assert!(!host.coordinator.memories["a"].account.may_borrow());
}

#[test]
fn a_reset_that_nobody_told_of_is_paid_as_well() {
    let directory = tempfile::tempdir().unwrap();
    let (mut host, mut guests) = two_of(directory.path(), TIER_PAGES[0]);
    minutes(&mut host, &mut guests, 1, |_| {});
    guests[0].obey();
    let all = |view: &mut VmView| view.tiers[0].backing_bytes = Some(TIER_PAGES[0] << PAGE_SHIFT);
    let may_borrow = |host: &Host| host.coordinator.memories["a"].account.may_borrow();
    // Whoever speaks gives back in its own time.
    minutes(&mut host, &mut guests, 30, all);
    assert!(may_borrow(&host));
    minutes(&mut host, &mut guests, 30, |view| {
        view.statistics = None;
        all(view);
    });
    assert_eq!(guests[0].pair.vm.view().stage, Stage::Driven);
    assert!(!may_borrow(&host));
    // Silence alone costs nothing.
    let account = Account::restored(Duration::from_secs(300), false);
    host.coordinator.memories.get_mut("a").unwrap().account = account;
    minutes(&mut host, &mut guests, 12, |view| view.statistics = None);
    assert_eq!(host.coordinator.memories["a"].account, account);
}
