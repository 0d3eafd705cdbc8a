// SPDX-License-Identifier: Apache-2.0 OR MIT

use super::*;

fn told() -> Told {
    Told {
        elapsed_s: 1.0,
        most_pages: 64_000,
        size_pages: 64_000,
        demand_pages: 10_000,
        held_pages: 2_000,
        ..Told::default()
    }
}

#[test]
fn free_memory_goes_at_once_and_a_reserve_stays() {
    let free = Told {
        free_pages: 41_000,
        ..told()
    };
    let wanted = Probe::default().next(Some(&free));
    assert_eq!(wanted, Some((24_000, Why::Free)));
}

#[test]
fn steps_into_cold_memory_grow_until_the_guest_suffers_and_begin_anew_much_later() {
    let mut probe = Probe::default();
    let mut now = told();
    let mut steps = Vec::new();
    for _ in 0..6 {
        let (pages, why) = probe.next(Some(&now)).unwrap();
        assert_eq!(why, Why::Cold);
        steps.push(now.size_pages - pages);
        now.size_pages = pages;
    }
    assert_eq!(steps, [125, 250, 500, 1000, 1000, 1000]);
    now.refaults = 900;
    let (pages, why) = probe.next(Some(&now)).unwrap();
    assert_eq!((pages - now.size_pages, why), (1800, Why::Suffers));
    now.size_pages = pages;
    now.refaults = 0;
    // What it has just been given is not taken for free memory.
    now.free_pages = 1800;
    for _ in 0..7 {
        assert_eq!(probe.next(Some(&now)), Some((now.size_pages, Why::Waits)));
    }
    now.free_pages = 0;
    // 90 ms were lost: half a percent of 18 s.
    let mut waited_s = 8;
    while probe.next(Some(&now)) == Some((now.size_pages, Why::Waits)) {
        waited_s += 1;
    }
    assert!((17..=19).contains(&waited_s), "{waited_s}");
    assert_eq!(probe.wanted, Some((now.size_pages - 125, Why::Cold)));
    assert_eq!(probe.next_wait_s, 16.0);
}

#[test]
fn nothing_goes_below_a_hot_set_that_is_told() {
    let mut probe = Probe::default();
    let mut now = Told {
        hot_pages: Some(40_000),
        ..told()
    };
    for _ in 0..200 {
        now.size_pages = probe.next(Some(&now)).unwrap().0;
    }
    assert_eq!(probe.next(Some(&now)).unwrap().1, Why::Settled);
    assert!((43_000..43_200).contains(&now.size_pages), "{now:?}");
}

#[test]
fn an_oom_in_the_silence_is_heard_of_after_it() {
    let mut probe = Probe::default();
    let mut now = told();
    for _ in 0..3 {
        now.size_pages = probe.next(Some(&now)).unwrap().0;
    }
    assert_eq!(probe.next(None).unwrap().1, Why::Silent);
    // The first words: nothing to compare with, but the count of what was killed.
    now.elapsed_s = 0.0;
    now.oom = true;
    let (pages, why) = probe.next(Some(&now)).unwrap();
    assert_eq!(why, Why::Suffers);
    assert!(pages > now.size_pages, "{pages}");
}

#[test]
fn whoever_is_silent_busy_or_has_stopped_is_not_asked_for_more() {
    let mut probe = Probe::default();
    assert_eq!(probe.next(None), None);
    let (pages, _) = probe.next(Some(&told())).unwrap();
    // The step that it has not spoken after is given back, once.
    for _ in 0..3 {
        assert_eq!(probe.next(None), Some((64_000, Why::Silent)));
    }
    assert!(pages < 64_000);
    let mut now = told();
    now.is_busy = true;
    assert_eq!(probe.next(Some(&now)), Some((64_000, Why::Moving)));
    now.is_busy = false;
    now.has_stopped = true;
    assert_eq!(probe.next(Some(&now)), Some((64_000, Why::Kept)));
}

fn guest(hot_pages: u64, memory_pages: u64) -> Guest {
    Guest {
        size_pages: 400,
        claim: Claim {
            floor_pages: 10,
            ceiling_pages: 640,
            weight: 100,
        },
        fixed_pages: None,
        hot_pages: Some(hot_pages),
        free_pages: 0,
        access_rate: 0.0,
        slow_permille: None,
        stall_permille: None,
        steady_rounds: 0,
        may_borrow: true,
        memory_pages: Some(memory_pages),
        used_pages: None,
    }
}

/// FMEM of four guests of which the first uses little, and gives back what is free, or does not.
fn fmem_of_four(holds_on: bool) -> Vec<u64> {
    let used = [8_000, 20_000, 20_000, 20_000];
    let mut probes = [Probe::default(); 4];
    let mut now = used.map(|used| Told {
        hot_pages: Some(used - 2_000),
        free_pages: 64_000 - used,
        ..told()
    });
    let mut sizes = Vec::new();
    for _ in 0..40 {
        let mut guests = Vec::new();
        for (at, (probe, told)) in probes.iter_mut().zip(&mut now).enumerate() {
            let (pages, _) = probe.next(Some(told)).unwrap();
            let mut guest = guest(0, pages);
            guest.claim.ceiling_pages = 24_000;
            guest.used_pages = Some(told.used_pages());
            guests.push(guest);
            told.has_stopped = holds_on && at == 0 && pages < told.size_pages;
            if !told.has_stopped {
                told.size_pages = pages;
                told.free_pages = pages - used[at];
            }
        }
        let pool_pages = 60_000;
        sizes = WorkingSet.sizes(&Fleet { pool_pages, guests });
    }
    sizes
}

#[test]
fn whoever_holds_on_to_free_memory_gains_less_than_a_hundredth_of_fmem() {
    let (honest, lying) = (fmem_of_four(false), fmem_of_four(true));
    let gain = lying[0] as f64 / honest[0] as f64 - 1.0;
    assert!(gain <= 0.01, "{honest:?} {lying:?}");
    for at in 1..4 {
        assert!(lying[at] * 100 >= honest[at] * 99, "{honest:?} {lying:?}");
    }
}

#[test]
fn holding_on_costs_nothing_where_nobody_else_has_a_use_for_it() {
    let guests = vec![
        Guest {
            used_pages: Some(100),
            ..guest(90, 300)
        },
        guest(90, 200),
    ];
    let sizes = |pool_pages| {
        let guests = guests.clone();
        WorkingSet.sizes(&Fleet { pool_pages, guests })
    };
    assert_eq!(sizes(1000), [300, 200]);
    assert_eq!(sizes(320), [120, 200]);
}

#[test]
fn alike_guests_are_alike_again_soon_after_one_has_stopped() {
    let used = 30_000;
    let mut probes = [Probe::default(); 2];
    let mut now = [Told {
        elapsed_s: 0.25,
        hot_pages: Some(used - 2_000),
        free_pages: 64_000 - used,
        ..told()
    }; 2];
    // Three seconds without a change are taken for rest.
    for round in 0..12 {
        for (at, (probe, told)) in probes.iter_mut().zip(&mut now).enumerate() {
            let (pages, _) = probe.next(Some(told)).unwrap();
            told.has_stopped = at == 1 && round == 0;
            told.size_pages = if told.has_stopped { 38_600 } else { pages };
            told.free_pages = told.size_pages - used;
        }
    }
    let [one, other] = now.map(|told| told.size_pages as f64);
    assert!((other / one - 1.0).abs() <= 0.05, "{one} {other}");
}

#[test]
fn fmem_that_no_hot_set_needs_stays_with_what_is_used() {
    let sizes = |pool_pages, guests: &[Guest]| {
        let guests = guests.to_vec();
        WorkingSet.sizes(&Fleet { pool_pages, guests })
    };
    let guests = [guest(90, 300), guest(190, 200)];
    assert_eq!(sizes(1000, &guests), [300, 200]);
    // Hot sets and their room first.
    let short = sizes(320, &guests);
    assert!(short[0] >= 100 && short[1] >= 200, "{short:?}");
    assert!(sizes(150, &guests).iter().sum::<u64>() <= 150);
}

#[test]
fn what_taking_memory_costs_is_no_suffering() {
    let mut probe = Probe::default();
    let mut now = told();
    now.size_pages = probe.next(Some(&now)).unwrap().0;
    // As a real guest under load told while its driver reclaimed 17 MiB.
    now.stall_permille = Some(20);
    assert_eq!(probe.next(Some(&now)).unwrap().1, Why::Cold);
    now.stall_permille = Some(60);
    assert_eq!(probe.next(Some(&now)).unwrap().1, Why::Suffers);
    // Nothing was taken since.
    now.stall_permille = Some(20);
    assert_eq!(probe.next(Some(&now)).unwrap().1, Why::Suffers);
}

#[test]
fn whoever_stops_with_free_memory_is_believed_until_it_frees_more() {
    let mut probe = Probe::default();
    let mut now = Told {
        size_pages: 30_000,
        free_pages: 8_600,
        ..told()
    };
    assert_eq!(probe.next(Some(&now)), Some((22_400, Why::Free)));
    // Its driver leaves it more than the reserve.
    now.has_stopped = true;
    assert_eq!(probe.next(Some(&now)), Some((30_000, Why::Kept)));
    now.has_stopped = false;
    now.elapsed_s = 0.125;
    for _ in 0..6 {
        now.free_pages ^= 64;
        let (pages, why) = probe.next(Some(&now)).unwrap();
        assert_eq!((pages, why), (30_000, Why::Waits));
    }
    now.free_pages = 12_600;
    assert_eq!(probe.next(Some(&now)), Some((26_000, Why::Free)));
    now.elapsed_s = 1.0;
    // It is asked again, twice as long after that.
    let mut waits = Vec::new();
    for _ in 0..3 {
        now.size_pages = 26_000;
        now.free_pages = 8_600;
        let mut waited_s = 0;
        while probe.next(Some(&now)).unwrap().1 != Why::Free {
            waited_s += 1;
        }
        waits.push(waited_s);
        now.has_stopped = true;
        assert_eq!(probe.next(Some(&now)), Some((26_000, Why::Kept)));
        now.has_stopped = false;
    }
    assert!(waits[2] >= 2 * waits[1] - 1, "{waits:?}");
}

#[test]
fn growth_and_the_end_of_memory_are_answered_at_once() {
    let mut probe = Probe::default();
    let mut now = Told {
        size_pages: 20_000,
        ..told()
    };
    probe.next(Some(&now));
    now.demand_pages += 800;
    now.free_pages = 200;
    assert_eq!(probe.next(Some(&now)), Some((23_000, Why::Grows)));
    now.oom = true;
    assert_eq!(probe.next(Some(&now)), Some((28_000, Why::Suffers)));
}

#[test]
fn who_has_not_touched_its_memory_lacks_none() {
    let suffers = Told {
        size_pages: 20_000,
        refaults: 1_000_000,
        stall_permille: Some(1000),
        oom: true,
        ..told()
    };
    let after = |resident_pages: u64, free_pages: fn(u64) -> u64| {
        let (mut probe, mut now) = (Probe::default(), suffers);
        for _ in 0..1000 {
            now.untouched_pages = now.size_pages.saturating_sub(resident_pages);
            now.free_pages = free_pages(now.untouched_pages);
            now.size_pages = probe.next(Some(&now)).unwrap().0;
        }
        now.size_pages
    };
    // An eighth more than it has used, and not all that it may have.
    for says_free in [|untouched| untouched, |_| 0] {
        let size = after(20_000, says_free);
        assert!((20_000..=28_000).contains(&size), "{size}");
    }
    // Who uses what it is given gets more.
    assert_eq!(after(64_000, |untouched| untouched), 64_000);
}

#[test]
fn who_cannot_give_what_it_has_set_aside_is_believed_to_suffer() {
    // Huge pages from the start; or set aside later, and it stopped when asked for them.
    for later in [false, true] {
        let mut probe = Probe::default();
        let mut now = Told {
            size_pages: 40_000,
            untouched_pages: if later { 0 } else { 20_000 },
            ..told()
        };
        probe.next(Some(&now));
        now.refaults = 1_000;
        if later {
            now.untouched_pages = 20_000;
            assert_ne!(probe.next(Some(&now)).unwrap().1, Why::Suffers);
            now.has_stopped = true;
        }
        assert_eq!(probe.next(Some(&now)), Some((42_000, Why::Suffers)));
        now.has_stopped = false;
        now.oom = true;
        assert_eq!(probe.next(Some(&now)), Some((48_000, Why::Suffers)));
    }
}

#[test]
fn what_was_set_aside_is_no_room_to_grow() {
    let mut probe = Probe::default();
    let mut now = Told {
        size_pages: 40_000,
        untouched_pages: 20_000,
        free_pages: 1_000,
        ..told()
    };
    probe.next(Some(&now));
    now.demand_pages += 800;
    now.free_pages = 200;
    assert_eq!(probe.next(Some(&now)), Some((43_000, Why::Grows)));
}

#[test]
fn no_words_break_it() {
    let wild = Told {
        elapsed_s: 1e-9,
        most_pages: u64::MAX / 4,
        size_pages: u64::MAX / 4,
        free_pages: u64::MAX / 4,
        free_smem_pages: u64::MAX / 4,
        untouched_pages: u64::MAX / 4,
        demand_pages: u64::MAX / 4,
        held_pages: u64::MAX / 4,
        hot_pages: Some(u64::MAX / 4),
        refaults: u64::MAX,
        stall_permille: Some(u32::MAX),
        oom: true,
        is_busy: true,
        has_stopped: true,
    };
    let mut probe = Probe::default();
    for told in [wild, Told::default(), told(), wild] {
        let (pages, _) = probe.next(Some(&told)).unwrap();
        assert!(pages <= told.most_pages);
    }
}

/// A guest that uses `used_pages`, all hot or the kernel's, and has never touched what it is given beyond them.
fn untouching(used_pages: u64, size_pages: u64) -> Told {
    Told {
        size_pages,
        free_pages: size_pages - used_pages,
        untouched_pages: size_pages - used_pages,
        demand_pages: used_pages,
        hot_pages: Some(18_000),
        ..told()
    }
}

#[test]
fn pain_that_comes_back_is_waited_for_twice_as_long_each_time() {
    let mut probe = Probe::default();
    let mut now = untouching(20_000, 21_000);
    let mut waits = Vec::new();
    for _ in 0..4 {
        now.oom = true;
        now = untouching(20_000, probe.next(Some(&now)).unwrap().0);
        waits.push(probe.whole_wait_s);
        // Who thrashes has no time to talk.
        probe.next(None);
        // All of it is free again, and goes in the end: that is no new job.
        for _ in 0..100 {
            now = untouching(20_000, probe.next(Some(&now)).unwrap().0);
        }
        assert!(now.size_pages <= 21_000, "{now:?}");
    }
    assert_eq!(waits, [8.0, 16.0, 32.0, 64.0]);
}

#[test]
fn what_was_given_and_never_touched_goes_before_the_wait_is_over() {
    let mut probe = Probe::default();
    let mut now = untouching(20_000, 21_000);
    now.oom = true;
    let given = probe.next(Some(&now)).unwrap().0;
    assert_eq!(given, 21_000 + 64_000 / RESCUE - 1000);
    now = untouching(20_000, given);
    assert_eq!(probe.next(Some(&now)), Some((given, Why::Waits)));
    // What it has touched it keeps, free or not.
    let mut touched = untouching(25_000, given);
    touched.free_pages = given - 20_000;
    touched.demand_pages = 20_000;
    let (pages, why) = probe.next(Some(&touched)).unwrap();
    assert_eq!((pages, why), (26_000, Why::Free));
    // Pain begins the quarter anew.
    now = untouching(20_000, pages);
    now.oom = true;
    let given = probe.next(Some(&now)).unwrap().0;
    now = untouching(20_000, given);
    assert_eq!(probe.next(Some(&now)), Some((given, Why::Waits)));
    assert_eq!(probe.next(Some(&now)), Some((21_000, Why::Free)));
}

#[test]
fn nobody_is_believed_to_have_set_more_aside_for_having_been_silent() {
    let mut probe = Probe::default();
    let mut now = untouching(10_000, 12_000);
    for _ in 0..20 {
        // It calls nothing free, and touches nothing.
        now.oom = true;
        now.free_pages = 0;
        let given = probe.next(Some(&now)).unwrap().0;
        now = untouching(10_000, given);
        probe.next(None);
        probe.next(None);
    }
    assert!(now.size_pages <= 12_000 + 64_000 / RESCUE, "{now:?}");
}

#[test]
fn who_has_more_than_it_may_have_is_given_nothing_when_it_suffers() {
    let mut probe = Probe::default();
    let mut now = untouching(69_000, 70_000);
    now.oom = true;
    assert_eq!(probe.next(Some(&now)), Some((64_000, Why::Suffers)));
    assert_eq!(probe.kept_free_pages, 1_000);
}

/// A container at its limit misses pages for ever, whatever the guest has.
#[test]
fn what_is_free_beyond_an_eighth_is_taken_though_a_guest_suffers() {
    let mut probe = Probe::default();
    let (mut size, mut used) = (64_000, 14_000);
    let mut sizes = Vec::new();
    for second in 0..240 {
        // Something else comes and goes meanwhile, faster than the reserve would allow.
        used = match second {
            60..90 => used + 3_000,
            90 => 14_000,
            _ => used,
        };
        let missing = u64::max(used, size) - size;
        let free = size + missing - used;
        let now = Told {
            size_pages: size,
            most_pages: 128_000,
            free_pages: free,
            free_smem_pages: free,
            demand_pages: used,
            // Now and then it does not.
            refaults: if second % 7 == 0 { 0 } else { 30 + missing },
            ..told()
        };
        // What it touches has room, but for a step that looks for cold memory.
        assert!(missing <= 2_000, "{missing} at {second} s");
        size = probe.next(Some(&now)).unwrap().0;
        sizes.push(size);
    }
    assert!(sizes[1] <= 14_000 + 16_000, "{}", sizes[1]);
    assert!(sizes[89] >= 14_000 + 90_000, "{}", sizes[89]);
    assert!(sizes[239] <= 14_000 + 16_000, "{}", sizes[239]);
}

/// What is free in FMEM a task that is bound to SMEM cannot have, and SMEM would become smaller.
#[test]
fn nothing_is_taken_from_who_suffers_for_what_is_free_in_fmem() {
    let mut probe = Probe::default();
    let now = Told {
        free_pages: 20_000,
        refaults: 300,
        ..told()
    };
    for _ in 0..100 {
        let (size, why) = probe.next(Some(&now)).unwrap();
        assert_eq!((size, why), (64_000, Why::Suffers));
    }
}

/// Nor below what it is known to need, nor again and again where its driver finds nothing.
#[test]
fn who_suffers_keeps_its_hot_set_and_is_asked_in_vain_ever_less() {
    let free = Told {
        free_pages: 60_000,
        free_smem_pages: 60_000,
        hot_pages: Some(40_000),
        refaults: 300,
        ..told()
    };
    let mut probe = Probe::default();
    assert_eq!(probe.next(Some(&free)), Some((43_000, Why::Free)));
    let (mut has_stopped, mut asked) = (true, 0);
    for _ in 0..100 {
        let now = Told {
            has_stopped,
            ..free
        };
        has_stopped = probe.next(Some(&now)).unwrap().1 == Why::Free;
        asked += usize::from(has_stopped);
    }
    assert!((3..8).contains(&asked), "{asked}");
}

/// What it was given to save it is not taken for a little pain after that.
#[test]
fn who_ran_out_of_memory_keeps_what_it_was_given_while_it_suffers() {
    let mut probe = Probe::default();
    let mut now = Told {
        size_pages: 30_000,
        oom: true,
        ..told()
    };
    let (size, _) = probe.next(Some(&now)).unwrap();
    assert_eq!(size, 38_000);
    now = Told {
        size_pages: size,
        free_pages: 8_000,
        free_smem_pages: 8_000,
        oom: false,
        refaults: 30,
        ..now
    };
    for _ in 0..100 {
        assert_eq!(probe.next(Some(&now)), Some((size, Why::Suffers)));
    }
}

/// Its programs come back from swap slowly: what it was given for them stays.
#[test]
fn what_is_given_for_pages_that_come_back_is_not_taken_meanwhile() {
    let mut probe = Probe::default();
    let (mut size, mut used) = (40_000, 40_000);
    let mut last = size;
    for _ in 0..60 {
        let now = Told {
            size_pages: size,
            free_pages: size - used,
            free_smem_pages: size - used,
            demand_pages: used,
            refaults: 300,
            ..told()
        };
        used += 300;
        size = probe.next(Some(&now)).unwrap().0;
        assert!(size >= last && size >= used, "{size} of {used}");
        last = size;
    }
}
