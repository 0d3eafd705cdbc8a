// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is believed of guests, and when they are asked.

use super::*;
use demeter_balloon::statistics::Trigger;
use demeter_balloon::{NodeStatistics, Statistics};

use crate::args::settings_of;
use crate::pair::driven_with;
use crate::policy::Told;
use demeter_balloon::view::PolicyView;
use told::MOVING_S;

fn tier(total_pages: u64) -> TierView {
    TierView {
        tier: "fmem".into(),
        node: 0,
        total_bytes: total_pages << PAGE_SHIFT,
        balloon_bytes: 0,
        size_bytes: total_pages << PAGE_SHIFT,
        wanted_size_bytes: None,
        backing_bytes: Some(total_pages << PAGE_SHIFT),
        kept_bytes: None,
        busy: false,
        last: None,
        ticket: 0,
        ended_ticket: 0,
        traffic: demeter_balloon::device::Traffic::default(),
    }
}

/// A guest that has sampled that often by then and calls all of its memory hot.
fn claims(samples: u64, guest_time_ns: u64) -> VmView {
    let node = NodeStatistics {
        anon_pages: 1000,
        ..NodeStatistics::default()
    };
    VmView {
        name: "liar".into(),
        stage: Stage::Driven,
        problem: None,
        tiers: vec![tier(1000)],
        violations: BTreeMap::new(),
        statistics: Some(Statistics {
            sequence: 0,
            guest_time_ns,
            event: Trigger::Periodic,
            has_tmm: true,
            has_psi: false,
            fmem_samples: samples,
            smem_samples: 0,
            hot_wanted_pages: 1000,
            psi_some_us: 0,
            psi_full_us: 0,
            oom_kills: 0,
            oom_deflated_pages: 0,
            refaults: 0,
            nodes: vec![node],
        }),
        statistics_age_ms: Some(0),
        churn: demeter_balloon::view::Churn::default(),
        sizing: None,
        account: None,
        worker: demeter_balloon::view::WorkerView::default(),
    }
}

fn share() -> Share {
    let line = "liar,socket=/s,fmem=/f";
    let description = crate::spec::Description::parse(line).unwrap();
    description.finish(&BTreeMap::new()).unwrap().share
}

#[test]
fn nobody_samples_more_than_its_processors_can() {
    let mut memory = Memory::default();
    let most = most_samples_per_s(Some(2));
    memory.learn(claims(1, 1_000_000_000).statistics.as_ref(), most);
    memory.learn(
        claims(1_000_000_000_000, 2_000_000_000).statistics.as_ref(),
        most,
    );
    assert_eq!(memory.access_rate, Some(2e6));
    // Nor by a clock that stands still.
    memory.learn(
        claims(2_000_000_000_000, 2_000_000_001).statistics.as_ref(),
        most,
    );
    assert!(memory.access_rate <= Some(2e6));
}

#[test]
fn who_says_nothing_any_more_is_not_believed_and_keeps_its_account() {
    let mut memory = Memory::default();
    memory.learn(claims(1, 1_000_000_000).statistics.as_ref(), 1e6);
    memory.learn(claims(100_000, 2_000_000_000).statistics.as_ref(), 1e6);
    memory.account.settle(2000, 1000, 1e9);
    let mut silent = claims(100_000, 2_000_000_000);
    silent.statistics = None;
    memory.learn(silent.statistics.as_ref(), 1e6);
    assert_eq!(memory.access_rate, None);
    assert!(!memory.account.may_borrow());
    let guest = guest(&share(), &silent, 1000, &memory);
    assert_eq!((guest.hot_pages, guest.access_rate), (None, 0.0));
    assert_eq!(stale_after(1000, PolicyClock::Host), STALE);
    let seldom = stale_after(60_000, PolicyClock::Host);
    assert_eq!(seldom, Duration::from_secs(300));
}

#[test]
fn nobody_has_more_hot_pages_than_the_host_has_allocated() {
    let mut view = claims(1, 1);
    let hot = |view: &VmView| guest(&share(), view, 1000, &Memory::default()).hot_pages;
    assert_eq!(hot(&view), Some(1000));
    view.tiers[0].backing_bytes = Some(300 << PAGE_SHIFT);
    assert_eq!(hot(&view), Some(300));
    view.tiers[0].backing_bytes = None;
    assert_eq!(hot(&view), Some(1000));
}

#[test]
fn a_guest_that_stopped_early_is_asked_again_later() {
    let mut tier = TierView {
        tier: "fmem".into(),
        node: 0,
        total_bytes: 6400 << PAGE_SHIFT,
        balloon_bytes: 0,
        size_bytes: 6000 << PAGE_SHIFT,
        wanted_size_bytes: Some(5000 << PAGE_SHIFT),
        backing_bytes: None,
        kept_bytes: None,
        busy: false,
        last: None,
        ticket: 7,
        ended_ticket: 7,
        traffic: demeter_balloon::device::Traffic::default(),
    };
    assert!(is_worth(&tier, 4000, 1, DEAD_BAND), "another size");
    assert!(
        !is_worth(&tier, 5000 + 99, 1, DEAD_BAND),
        "within the dead band"
    );
    assert!(!is_worth(&tier, 5000, 1, DEAD_BAND), "not at once");
    assert!(is_worth(&tier, 5000, RETRY_ROUNDS - 1, DEAD_BAND));
    tier.ended_ticket = 6;
    assert!(
        !is_worth(&tier, 5000, RETRY_ROUNDS - 1, DEAD_BAND),
        "still at work"
    );
    tier.ended_ticket = 7;
    tier.size_bytes = 5000 << PAGE_SHIFT;
    assert!(
        !is_worth(&tier, 5000, RETRY_ROUNDS - 1, DEAD_BAND),
        "it is there"
    );
}

#[test]
fn what_the_kernel_holds_is_no_room_for_hot_pages() {
    let mut node = NodeStatistics {
        balloon_pages: 200,
        free_pages: 300,
        anon_pages: 350,
        file_pages: 50,
        ..NodeStatistics::default()
    };
    assert_eq!(held_pages(1000, &node), 100);
    // Whatever a guest says.
    node.free_pages = 5000;
    assert_eq!(held_pages(1000, &node), 0);
}

#[test]
fn what_a_kernel_holds_elsewhere_the_host_has_allocated() {
    let mut view = claims(1, 1);
    view.tiers.push(TierView {
        tier: "smem".into(),
        node: 1,
        ..tier(6400)
    });
    // Nothing is free, nothing anonymous: its kernel holds all of SMEM, it says.
    let statistics = view.statistics.as_mut().unwrap();
    statistics.nodes.push(NodeStatistics::default());
    assert_eq!(elsewhere(&view), 6400 + 6400 / FINE_BAND);
    // What the host has not allocated is set aside at most, an eighth.
    view.tiers[1].backing_bytes = Some(100 << PAGE_SHIFT);
    assert_eq!(elsewhere(&view), 100 + 800 + 6400 / FINE_BAND);
}

#[test]
fn a_clock_that_leaps_to_the_end_of_time_and_back_holds_up_nobody() {
    let at = |name: &str, guest_time_ns: u64| VmView {
        name: name.into(),
        ..claims(0, guest_time_ns)
    };
    let second = 1_000_000_000;
    let interval = Duration::from_secs(1);
    let mut coordinator = Coordinator::default();
    let learn = |coordinator: &mut Coordinator, name: &str, guest_time_ns: u64| {
        let memory = coordinator.memories.entry(name.into()).or_default();
        memory.learn(at(name, guest_time_ns).statistics.as_ref(), 1e6);
    };
    for name in ["a", "b"] {
        learn(&mut coordinator, name, 10 * second);
    }
    let came = |coordinator: &Coordinator, a: u64, b: u64| {
        coordinator.time_has_come([at("a", a), at("b", b)], interval)
    };
    // The leap is one decision, and no more while the clock stands there: the others go on
    // by theirs.
    assert!(came(&coordinator, u64::MAX, 10 * second));
    learn(&mut coordinator, "a", u64::MAX);
    assert!(!came(&coordinator, u64::MAX, 10 * second));
    assert!(came(&coordinator, u64::MAX, 14 * second));
    learn(&mut coordinator, "b", 14 * second);
    // Back again: as one that was rebooted, once, and then as ever.
    assert!(came(&coordinator, 15 * second, 15 * second));
    learn(&mut coordinator, "a", 15 * second);
    learn(&mut coordinator, "b", 15 * second);
    assert!(!came(&coordinator, 15 * second, 15 * second));
    assert!(came(&coordinator, 16 * second, 16 * second));
}

#[test]
fn one_slow_clock_does_not_hold_up_the_others() {
    let at = |name: &str, seconds: u64| VmView {
        name: name.into(),
        ..claims(0, seconds * 1_000_000_000)
    };
    let interval = Duration::from_secs(1);
    let mut coordinator = Coordinator::default();
    let came = |coordinator: &Coordinator, a: u64, b: u64| {
        coordinator.time_has_come([at("a", a), at("b", b)], interval)
    };
    for name in ["a", "b"] {
        let mut memory = Memory::default();
        memory.learn(claims(1, 10_000_000_000).statistics.as_ref(), 1e6);
        coordinator.memories.insert(name.into(), memory);
    }
    assert!(came(&coordinator, 11, 11));
    // In step with each other, all are waited for.
    assert!(!came(&coordinator, 11, 10) && !came(&coordinator, 13, 10));
    assert!(came(&coordinator, 14, 10));
    // Rebooted.
    assert!(came(&coordinator, 11, 3));
    assert!(!coordinator.time_has_come([], interval));
}

/// A guest that has all of both tiers, and says that nothing is free and all is hot, but
/// of which the host has allocated this.
fn grasps(resident_pages: [u64; 2], held_pages: u64) -> Told {
    let mut view = claims(1, 1_000_000_000);
    view.tiers = vec![tier(1000), tier(3000)];
    let nodes = [1000, 3000].map(|total_pages: u64| NodeStatistics {
        anon_pages: total_pages.saturating_sub(held_pages),
        ..NodeStatistics::default()
    });
    let statistics = view.statistics.as_mut().unwrap();
    statistics.nodes = nodes.to_vec();
    statistics.hot_wanted_pages = 4000;
    for (tier, pages) in view.tiers.iter_mut().zip(resident_pages) {
        tier.backing_bytes = Some(pages << PAGE_SHIFT);
    }
    judged(&view)
}

fn judged(view: &VmView) -> Told {
    told(
        &share(),
        view,
        &Memory::default(),
        &mut Quiet::default(),
        0.25,
    )
    .unwrap()
}

#[test]
fn what_the_host_has_not_allocated_is_not_used_whoever_says_what() {
    let told = grasps([400, 600], 0);
    // What cannot be given is not used either: it is free only where the guest says so.
    assert_eq!((told.size_pages, told.free_pages), (4000, 0));
    assert_eq!((told.untouched_pages, told.demand_pages), (3000, 1000));
    assert_eq!(told.hot_pages, Some(1000));
    assert!(told.used_pages() <= 1000 + 4000 / 64);
    // All that it has it has touched.
    let told = grasps([1000, 3000], 0);
    assert_eq!((told.free_pages, told.untouched_pages), (0, 0));
    assert_eq!(told.demand_pages, 4000);
}

#[test]
fn what_a_kernel_has_set_aside_is_neither_untouched_nor_allocated_up_to_an_eighth() {
    let told = grasps([400, 600], 100);
    assert_eq!((told.untouched_pages, told.held_pages), (2800, 200));
    // One that says so of all.
    let told = grasps([400, 600], 3000);
    assert_eq!(told.untouched_pages, 600 - 125 + 2400 - 375);
    assert_eq!(told.held_pages, 400 + 125 + 600 + 375);
}

#[test]
fn a_balloon_that_changes_is_judged_by_what_was_seen_before_for_a_while() {
    let mut view = claims(1, 1_000_000_000);
    let mut quiet = Quiet::default();
    let mut judge = |view: &VmView, passed_s| {
        let told = told(&share(), view, &Memory::default(), &mut quiet, passed_s).unwrap();
        (told.untouched_pages, told.is_busy)
    };
    view.tiers[0].backing_bytes = Some(300 << PAGE_SHIFT);
    assert_eq!(judge(&view, 1.0), (700, false));
    view.tiers[0].busy = true;
    view.tiers[0].backing_bytes = Some(900 << PAGE_SHIFT);
    assert_eq!(judge(&view, 1.0), (700, true));
    // It never ends the request.
    assert_eq!(judge(&view, MOVING_S), (100, false));
    view.tiers[0].busy = false;
    assert_eq!(judge(&view, 1.0), (100, false));
    // It never tells the balloon that it has.
    view.tiers[0].balloon_bytes = 1 << PAGE_SHIFT;
    assert_eq!(judge(&view, 1.0), (100, true));
    assert_eq!(judge(&view, MOVING_S), (100, false));
}

#[test]
fn memory_that_nobody_sees_is_judged_by_words_alone() {
    let mut view = claims(1, 1_000_000_000);
    view.tiers[0].backing_bytes = Some(300 << PAGE_SHIFT);
    assert_eq!(judged(&view).untouched_pages, 700);
    // A file system that counts no blocks; or nobody could look.
    for unseen in [Some(0), None] {
        view.tiers[0].backing_bytes = unseen;
        let told = judged(&view);
        assert_eq!((told.untouched_pages, told.hot_pages), (0, Some(1000)));
    }
}

#[test]
fn a_kernel_holds_no_more_than_the_host_has_allocated_and_what_may_be_set_aside() {
    let mut tier = tier(8000);
    tier.backing_bytes = Some(2000 << PAGE_SHIFT);
    assert_eq!(told::allocated(&tier, 1500), 1500);
    assert_eq!(told::allocated(&tier, 8000), 3000);
    tier.backing_bytes = None;
    assert_eq!(told::allocated(&tier, 8000), 8000);
}

fn policy_view(name: &str, interval_ms: u64) -> PolicyView {
    PolicyView {
        name: name.into(),
        fmem_pool_bytes: 16 << PAGE_SHIFT,
        interval_ms,
        clock: PolicyClock::Host,
    }
}

/// Nobody is in it.
fn fleet_under(policy: &str, interval_ms: u64) -> Arc<Fleet> {
    let settings = settings_of("file".as_ref(), "").unwrap();
    let fleet = Fleet::start(settings, None).unwrap();
    fleet.set_policy(&policy_view(policy, interval_ms)).unwrap();
    Arc::new(fleet)
}

#[tokio::test]
async fn what_was_seen_under_older_orders_decides_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let pair = driven_with(directory.path(), "a", "fmem-size=32K");
    let wanted_pages = || {
        let wanted_bytes = pair.vm.view().tiers[0].wanted_size_bytes;
        wanted_bytes.map(|bytes| bytes >> PAGE_SHIFT)
    };
    let fleet = fleet_under("static", 1000);
    let mut coordinator = Coordinator::default();
    // While it looks, which takes long, the operator takes over and says something else.
    let seen = async {
        fleet.set_policy(&policy_view("external", 1000)).unwrap();
        pair.vm.ask(0, 12 << PAGE_SHIFT, "operator").unwrap();
        vec![(pair.vm.clone(), pair.vm.view())]
    };
    let orders = Orders::of(&fleet);
    coordinator.decide_by(&fleet, &orders, seen).await;
    assert_eq!(wanted_pages(), Some(12));
    assert_eq!(fleet.with_steering(|steering| steering.decisions), 0);
    fleet.set_policy(&policy_view("static", 1000)).unwrap();
    let seen = async { vec![(pair.vm.clone(), pair.vm.view())] };
    let orders = Orders::of(&fleet);
    coordinator.decide_by(&fleet, &orders, seen).await;
    assert_eq!(wanted_pages(), Some(8));
    assert_eq!(fleet.with_steering(|steering| steering.decisions), 1);
}

#[tokio::test]
async fn a_new_interval_does_not_wait_for_the_end_of_the_old_one() {
    let fleet = fleet_under("static", 3_600_000);
    let deciding = tokio::spawn(run(fleet.clone()));
    let limit = Instant::now() + Duration::from_secs(60);
    for (interval_ms, decisions) in [(3_600_000, 1), (100, 4)] {
        fleet
            .set_policy(&policy_view("static", interval_ms))
            .unwrap();
        while fleet.with_steering(|steering| steering.decisions) < decisions {
            assert!(Instant::now() < limit, "none at {interval_ms} ms");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    deciding.abort();
}
