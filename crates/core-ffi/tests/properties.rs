// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What holds for any input.

use demeter_core::{
    FMEM, MAX_AREAS, PlanEnd, PlanParams, Planner, Ranges, RangesParams, RankEntry, Ranking, SMEM,
    Sample, Step, channel,
};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Area(u32, u64, u64),
    Sample(u64),
    Many(u64, u16),
    Epoch,
    Params(RangesParams),
}

/// Addresses close enough to each other to meet, and the extremes.
fn address() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => 0u64..(64 << 20),
        1 => any::<u64>(),
        1 => prop_oneof![Just(0), Just(u64::MAX), Just(1 << 63)],
    ]
}

fn ranges_params() -> impl Strategy<Value = RangesParams> {
    prop_oneof![
        9 => (1u32..30, 0u32..4, 1u32..4, 1u32..6, 12u32..24).prop_map(|(s, a, v, m, g)| {
            RangesParams {
                split_samples: s,
                significance: a,
                vcpus: v,
                merge_epochs: m,
                granule_bytes: 1 << g,
            }
        }),
        1 => any::<(u32, u32, u32, u32, u64)>().prop_map(|(s, a, v, m, g)| RangesParams {
            split_samples: s,
            significance: a,
            vcpus: v,
            merge_epochs: m,
            granule_bytes: g,
        }),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => (0u32..5, address(), address()).prop_map(|(a, s, e)| Op::Area(a, s, e)),
        4 => address().prop_map(Op::Sample),
        4 => (address(), 1u16..500).prop_map(|(a, n)| Op::Many(a, n)),
        3 => Just(Op::Epoch),
        1 => ranges_params().prop_map(Op::Params),
    ]
}

fn check_shape(ranges: &Ranges, granule: u64) {
    let slice = ranges.as_slice();
    let mut covered = [0u64; MAX_AREAS];
    for (i, range) in slice.iter().enumerate() {
        assert!(range.start < range.end);
        assert_eq!((range.start | range.end) & (granule - 1), 0);
        assert!(range.quarter.iter().sum::<u64>() <= range.rate);
        if i > 0 {
            assert!(slice[i - 1].end <= range.start, "sorted and disjoint");
        }
        covered[range.area as usize] += range.end - range.start;
        assert_eq!(ranges.find(range.start), Some(range));
        assert_eq!(ranges.find(range.end - 1), Some(range));
    }
    for (area, covered) in ranges.areas().iter().zip(covered) {
        assert_eq!(area.end - area.start, covered, "areas are covered");
    }
}

proptest! {
    #[test]
    fn ranges_keep_their_shape(
        capacity in 1u32..40,
        start in ranges_params(),
        ops in prop::collection::vec(op(), 1..200),
    ) {
        let Ok(mut ranges) = Ranges::new(capacity, &start) else { return Ok(()) };
        let mut granule = start.granule_bytes;
        let (mut inside, mut outside) = (0, 0);
        for op in ops {
            match op {
                Op::Area(area, start, end) => {
                    let before = ranges.as_slice().to_vec();
                    let full = before.len() == capacity as usize;
                    if ranges.set_area(area, start, end).is_err() && !full {
                        prop_assert_eq!(ranges.as_slice(), &before[..]);
                    }
                }
                Op::Sample(gva) => {
                    let found = ranges.find(gva).is_some();
                    prop_assert_eq!(ranges.sample(gva), found);
                    if found { inside += 1 } else { outside += 1 }
                }
                Op::Many(gva, count) => for _ in 0..count {
                    if ranges.sample(gva) { inside += 1 } else { outside += 1 }
                },
                Op::Epoch => {
                    // Conservation: half of what was, plus what came, less rounding.
                    let rate = |r: &Ranges| r.as_slice().iter().map(|r| r.rate).sum::<u64>();
                    let hits: u64 = ranges.as_slice().iter()
                        .flat_map(|r| r.hits).map(u64::from).sum();
                    let expected = rate(&ranges) / 2 + (hits << 8);
                    let rounding = 5 * ranges.as_slice().len() as u64;
                    ranges.end_epoch();
                    prop_assert!(rate(&ranges) <= expected);
                    prop_assert!(rate(&ranges) + rounding >= expected);
                }
                Op::Params(params) => if ranges.set_params(&params).is_ok() {
                    granule = params.granule_bytes;
                },
            }
            check_shape(&ranges, granule);
        }
        prop_assert_eq!(ranges.counters().samples, inside);
        prop_assert_eq!(ranges.counters().strays, outside);
    }

    #[test]
    fn a_ranking_does_not_depend_on_the_order_before(
        rows in prop::collection::vec((0u64..4, 0u64..3, 0u64..3, 0u32..3), 0..100),
        turn in any::<prop::sample::Index>(),
    ) {
        let entries: Vec<RankEntry> = rows.iter().enumerate().map(|(i, &(rate, f, s, age))| RankEntry {
            start: (i as u64) << 21,
            end: (i as u64 + 1) << 21,
            rate: rate << 8,
            pages: [f, s],
            age_epochs: age,
            ..RankEntry::default()
        }).collect();
        let mut one = Ranking { entries };
        let mut other = one.clone();
        if !rows.is_empty() {
            let by = turn.index(rows.len());
            other.entries.rotate_left(by);
        }
        one.sort();
        other.sort();
        prop_assert_eq!(&one, &other);
        prop_assert!(one.entries.windows(2).all(|w| w[0].density >= w[1].density));
        let fit: u64 = one.entries[..one.cut(50)].iter().map(|e| e.pages[0] + e.pages[1]).sum();
        prop_assert!(fit <= 50);
    }

    #[test]
    fn a_plan_moves_only_what_is_there(
        rows in prop::collection::vec(any::<(u64, u64, u64, u32)>(), 0..40),
        small in any::<bool>(),
        money in any::<(u64, u64, u64, u64, u64, u64)>(),
        caution in (any::<u32>(), 0u32..6),
        bucket in any::<(u64, u64)>(),
        free in any::<u64>(),
        now in any::<u64>(),
        max_steps in 0u32..20,
    ) {
        let shrink = |x: u64| if small { x % 100_000 } else { x };
        let mut ranking = Ranking {
            entries: rows.iter().enumerate().map(|(i, &(rate, f, s, age))| RankEntry {
                start: i as u64,
                rate: shrink(rate),
                pages: [shrink(f), shrink(s)],
                age_epochs: age,
                ..RankEntry::default()
            }).collect(),
        };
        ranking.sort();
        let params = PlanParams {
            sample_period: shrink(money.0),
            epoch_ns: shrink(money.1),
            latency_gap_ps: shrink(money.2),
            remote_ps: 0,
            horizon_ns: shrink(money.3),
            swap_cost_ns: shrink(money.4),
            move_cost_ns: shrink(money.5),
            hysteresis_permille: caution.0,
            significance: caution.1,
            rate_pages_per_s: bucket.0,
            burst_pages: bucket.1,
        };
        let free = shrink(free);
        let plan = Planner::new(params, max_steps).make(&ranking, free, now, 0).unwrap();
        let (mut filled, mut swapped) = (0u64, 0u64);
        for step in &plan.steps {
            match *step {
                Step::Fill { hot, pages } => {
                    let held = &mut ranking.entries[hot as usize].pages[SMEM];
                    prop_assert!(pages > 0 && pages <= *held);
                    *held -= pages;
                    filled = filled.saturating_add(pages);
                }
                Step::Swap { hot, cold, pages } => {
                    prop_assert!(hot < cold && pages > 0);
                    let held = &mut ranking.entries[hot as usize].pages[SMEM];
                    prop_assert!(pages <= *held);
                    *held -= pages;
                    let held = &mut ranking.entries[cold as usize].pages[FMEM];
                    prop_assert!(pages <= *held);
                    *held -= pages;
                    swapped = swapped.saturating_add(pages);
                }
                Step::Demote { .. } => prop_assert!(false, "nobody has a cap"),
            }
        }
        prop_assert!(filled <= free);
        prop_assert_eq!((plan.fill_pages, plan.swap_pages), (filled, swapped));
        if plan.end == PlanEnd::Full {
            prop_assert_eq!(plan.steps.len(), max_steps as usize);
        }
    }
}

#[test]
fn absurd_sizes_are_errors() {
    assert!(Ranges::new(0, &RangesParams::default()).is_err());
    assert!(channel(0).is_err());
    assert!(channel(1).is_err());
    assert!(channel(100).is_err());
}

#[test]
fn a_channel_between_threads_loses_nothing_uncounted() {
    const PRODUCERS: u64 = 3;
    const EACH: u64 = 50_000;
    let (producer, mut consumer) = channel(64).unwrap();
    let sent: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..PRODUCERS)
            .map(|space| {
                let producer = producer.clone();
                scope.spawn(move || {
                    (0..EACH)
                        .filter(|&gva| {
                            producer.push(Sample {
                                gva,
                                space: space as u32,
                                ..Sample::default()
                            })
                        })
                        .count() as u64
                })
            })
            .collect();
        let mut next = [0; PRODUCERS as usize];
        let mut received = 0;
        loop {
            let last = threads.iter().all(|thread| thread.is_finished());
            while let Some(sample) = consumer.pop() {
                let next = &mut next[sample.space as usize];
                assert!(sample.gva >= *next, "in order");
                *next = sample.gva + 1;
                received += 1;
            }
            if last {
                break;
            }
        }
        let sent = threads.into_iter().map(|t| t.join().unwrap()).sum();
        assert_eq!(sent, received);
        sent
    });
    assert_eq!(sent + consumer.lost(), PRODUCERS * EACH);
}
