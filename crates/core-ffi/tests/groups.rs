// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Floors and caps: what holds for any input.

use demeter_core::{FMEM, Group, PlanParams, Planner, RankEntry, Ranking, SMEM, Step};
use proptest::prelude::*;

/// A page that sees k samples an epoch is worth k ns over the horizon, and a move must
/// gain 15.
fn params(significance: u32) -> PlanParams {
    PlanParams {
        sample_period: 1,
        epoch_ns: 1000,
        latency_gap_ps: 1000,
        horizon_ns: 1000,
        swap_cost_ns: 10,
        move_cost_ns: 10,
        hysteresis_permille: 500,
        significance,
        ..PlanParams::default()
    }
}

fn ranking(rows: &[(u32, u64, u64, u64)]) -> Ranking {
    let entry = |(at, &(group, samples, fmem, smem)): (usize, &(u32, u64, u64, u64))| RankEntry {
        start: (at as u64) << 21,
        end: (at as u64 + 1) << 21,
        rate: (2 * samples * (fmem + smem)) << 8,
        pages: [fmem, smem],
        age_epochs: 1,
        group,
        ..RankEntry::default()
    };
    let mut ranking = Ranking {
        entries: rows.iter().enumerate().map(entry).collect(),
    };
    ranking.sort();
    ranking
}

fn held(ranking: &Ranking, group: usize) -> u64 {
    let of_group = |entry: &&RankEntry| entry.group as usize == group;
    let entries = ranking.entries.iter().filter(of_group);
    entries.map(|entry| entry.pages[FMEM]).sum()
}

fn apply(ranking: &mut Ranking, steps: &[Step]) {
    let entries = &mut ranking.entries;
    let mut shift = |at: u32, from: usize, to: usize, pages: u64| {
        let held = &mut entries[at as usize].pages;
        held[from] = held[from].checked_sub(pages).expect("only what is there");
        held[to] += pages;
    };
    for step in steps {
        match *step {
            Step::Fill { hot, pages } => shift(hot, SMEM, FMEM, pages),
            Step::Swap { hot, cold, pages } => {
                shift(hot, SMEM, FMEM, pages);
                shift(cold, FMEM, SMEM, pages);
            }
            Step::Demote { cold, pages } => shift(cold, FMEM, SMEM, pages),
        }
    }
}

fn rows() -> impl Strategy<Value = Vec<(u32, u64, u64, u64)>> {
    prop::collection::vec((0u32..4, 0u64..200, 0u64..80, 0u64..80), 0..30)
}

fn limits() -> impl Strategy<Value = Vec<(u64, Option<u64>)>> {
    prop::collection::vec((0u64..400, prop::option::of(0u64..600)), 4)
}

fn groups(limits: &[(u64, Option<u64>)], ranking: &Ranking) -> Vec<Group> {
    (limits.iter().enumerate())
        .map(|(at, &(floor_pages, cap_pages))| {
            let cap_pages = cap_pages.unwrap_or(u64::MAX);
            Group::new(floor_pages, cap_pages, held(ranking, at))
        })
        .collect()
}

proptest! {
    /// A plan leaves nobody below what it is due who was not, and nobody above its cap
    /// further above; what one gains another gives, or it was free.
    #[test]
    fn limits_are_kept(
        rows in rows(),
        limits in limits(),
        significance in 0u32..3,
        free in prop_oneof![Just(0u64), 0u64..500],
        steps in 0u32..60,
    ) {
        let mut ranking = ranking(&rows);
        let mut groups = groups(&limits, &ranking);
        let before: Vec<u64> = groups.iter().map(|group| group.fmem_pages).collect();
        let plan = Planner::new(params(significance), steps)
            .make_grouped(&ranking, &mut groups, 0, free, 0)
            .unwrap();
        apply(&mut ranking, &plan.steps);
        prop_assert!(plan.fill_pages <= free);
        let after: Vec<u64> = (0..groups.len()).map(|at| held(&ranking, at)).collect();
        for ((group, &before), &after) in groups.iter().zip(&before).zip(&after) {
            prop_assert_eq!(group.fmem_pages, after);
            prop_assert!(after <= before.max(group.cap_pages));
            prop_assert!(after >= before.min(group.due_pages));
        }
        prop_assert_eq!(
            after.iter().sum::<u64>(),
            before.iter().sum::<u64>() + plan.fill_pages - plan.demote_pages
        );
    }

    /// Groups without limits end where no groups do: as much of each entry in FMEM.
    #[test]
    fn without_limits_all_are_ranked_together(rows in rows(), free in 0u64..200) {
        let settle = |grouped: bool| {
            let ungrouped: Vec<_> = rows.iter().map(|&(_, s, f, m)| (0, s, f, m)).collect();
            let mut ranking = ranking(if grouped { &rows } else { &ungrouped });
            let mut planner = Planner::new(params(0), 1000);
            let mut free = free;
            for _ in 0..20 {
                let plan = if grouped {
                    let mut groups = groups(&[(0, None); 4], &ranking);
                    planner.make_grouped(&ranking, &mut groups, 0, free, 0).unwrap()
                } else {
                    planner.make(&ranking, free, 0, 0).unwrap()
                };
                apply(&mut ranking, &plan.steps);
                free -= plan.fill_pages;
                if plan.steps.is_empty() {
                    break;
                }
            }
            // What is in FMEM is worth so much, in samples.
            (ranking.entries.iter())
                .map(|e| e.rate / (e.pages[FMEM] + e.pages[SMEM]).max(1) * e.pages[FMEM])
                .sum::<u64>()
        };
        let (grouped, ungrouped) = (settle(true), settle(false));
        // Pairs that do not pay any more may differ: 15 ns for each page at most.
        let pages: u64 = rows.iter().map(|row| row.2 + row.3).sum();
        prop_assert!(grouped.abs_diff(ungrouped) <= pages * 2 * (15 << 8));
    }

    /// Any limits and any unit: no panic, and plans that can be carried out.
    #[test]
    fn any_limits(
        rows in rows(),
        limits in prop::collection::vec(any::<(u64, u64, u64)>(), 1..6),
        unit_shift in 0u32..64,
        free in any::<u64>(),
    ) {
        let mut ranking = ranking(&rows);
        let mut groups: Vec<Group> = limits
            .iter()
            .map(|&(floor_pages, cap_pages, fmem_pages)| {
                Group::new(floor_pages, cap_pages, fmem_pages)
            })
            .collect();
        let plan = Planner::new(params(1), 100)
            .make_grouped(&ranking, &mut groups, unit_shift, free, 0)
            .unwrap();
        apply(&mut ranking, &plan.steps);
    }
}

#[test]
fn no_group_is_an_error() {
    let mut planner = Planner::new(params(0), 10);
    assert!(
        planner
            .make_grouped(&ranking(&[]), &mut [], 0, 0, 0)
            .is_err()
    );
    assert!(
        planner
            .make_grouped(&ranking(&[]), &mut [Group::new(0, 0, 0)], 64, 0, 0)
            .is_err()
    );
}
