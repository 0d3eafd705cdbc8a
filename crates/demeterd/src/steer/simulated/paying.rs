// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Accounts of guests that are a model: who pays, and what outlasts whom.

use super::*;

use crate::accounts::Accounts;

#[test]
fn nobody_pays_under_a_policy_that_does_not_listen() {
    let directory = tempfile::tempdir().unwrap();
    let mut guests = ["a", "b"].map(|name| Model::new(directory.path(), name, true, ""));
    let mut host = Host::new(ALL_PAGES / 4);
    host.orders.interval_ms = 60_000;
    let may_borrow = |host: &Host| host.coordinator.memories["a"].account.may_borrow();
    for (name, pays) in [("static", false), ("guaranteed", true)] {
        host.orders.policy = policy::by_name(name).unwrap();
        for _ in 0..20 {
            for guest in &mut guests {
                guest.now_s += 60.0;
                guest.tell();
            }
            // All of FMEM, as nobody obeys: twice its share.
            let seen = guests
                .iter()
                .map(|guest| (guest.pair.vm.clone(), guest.pair.vm.view()));
            assert!((host.coordinator).decide(seen.collect(), &host.orders));
        }
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
    host.orders.interval_ms = 60_000;
    host.orders.policy = policy::by_name("guaranteed").unwrap();
    let mut decide = |guests: &mut [Model], decisions| {
        for _ in 0..decisions {
            for guest in &mut *guests {
                guest.now_s += 60.0;
                guest.tell();
            }
            let seen = guests
                .iter()
                .map(|guest| (guest.pair.vm.clone(), guest.pair.vm.view()));
            assert!((host.coordinator).decide(seen.collect(), &host.orders));
        }
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
    host.orders.interval_ms = 60_000;
    host.orders.policy = policy::by_name("guaranteed").unwrap();
    let may_borrow = |host: &mut Host, guests: &mut [Model], decisions| {
        for _ in 0..decisions {
            for guest in &mut *guests {
                guest.now_s += 60.0;
                guest.tell();
            }
            let seen = guests
                .iter()
                .map(|guest| (guest.pair.vm.clone(), guest.pair.vm.view()));
            assert!((host.coordinator).decide(seen.collect(), &host.orders));
        }
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
