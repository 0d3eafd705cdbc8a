// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A day beside a guest that lies, under each policy that goes by what guests say and for
//! each kind of lie. Guests and their loads are a model; accounts, probes and policies are not.

use super::*;
use demeter_balloon::statistics::Trigger;
use demeter_balloon::{NodeStatistics, Statistics};

const GUESTS: usize = 10;
/// Everybody's part of the pool.
const SHARE: u64 = 1_000;
/// Of each tier; all of FMEM is twice a share.
const TIER_PAGES: u64 = 2 * SHARE;
const MEMORY_PAGES: u64 = 2 * TIER_PAGES;
/// What each honest guest uses: more than its share of FMEM.
const USED_PAGES: u64 = 3 * SHARE / 2;
/// Its hot set, by turns.
const HOT_PAGES: [u64; 2] = [6 * SHARE / 5, 2 * SHARE / 5];
const PHASE_S: u64 = 3_600;
const STEP_S: u64 = 2;
const DAY_S: u64 = 24 * 3_600;
const ACCESSES_PER_S: u64 = 10_000;
/// How often its counters of suffering go on.
const EACH_STEP: u64 = 1_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lie {
    /// All is hot, and all accesses go to SMEM.
    Hot,
    /// It misses pages all the time.
    Refaults,
    /// It waits for memory all the time.
    Stalls,
    /// It runs out of memory all the time.
    Oom,
    /// Nothing of what it has is free; those above say so, too.
    Free,
}

const LIES: [Lie; 5] = [Lie::Hot, Lie::Refaults, Lie::Stalls, Lie::Oom, Lie::Free];

struct Model {
    lie: Option<Lie>,
    memory: Memory,
    fmem_pages: u64,
    memory_pages: u64,
    samples: [u64; 2],
    refaults: u64,
    ooms: u64,
    stall_us: u64,
}

impl Model {
    fn new(lie: Option<Lie>) -> Self {
        Self {
            lie,
            memory: Memory::default(),
            fmem_pages: SHARE,
            memory_pages: MEMORY_PAGES,
            samples: [0; 2],
            refaults: 0,
            ooms: 0,
            stall_us: 0,
        }
    }

    fn used_pages(&self) -> u64 {
        match self.lie {
            Some(_) => self.memory_pages,
            None => USED_PAGES.min(self.memory_pages),
        }
    }

    /// What it says after a step.
    fn say(&mut self, now_s: u64, hot_pages: u64) -> Statistics {
        let accesses = ACCESSES_PER_S * STEP_S;
        let fast = match self.lie {
            Some(Lie::Hot) => 0,
            _ => accesses * self.fmem_pages.min(hot_pages) / hot_pages,
        };
        self.samples[0] += fast;
        self.samples[1] += accesses - fast;
        // An honest one misses what it has no room for.
        self.refaults += USED_PAGES.saturating_sub(self.memory_pages);
        match self.lie {
            Some(Lie::Hot) => self.samples[1] += EACH_STEP,
            Some(Lie::Refaults) => self.refaults += EACH_STEP,
            Some(Lie::Stalls) => self.stall_us += STEP_S * 1_000_000,
            Some(Lie::Oom) => self.ooms += 1,
            Some(Lie::Free) | None => {}
        }
        let node = |total_pages: u64, size_pages: u64, free_pages: u64| NodeStatistics {
            total_pages,
            free_pages,
            balloon_pages: total_pages - size_pages,
            anon_pages: size_pages - free_pages,
            ..NodeStatistics::default()
        };
        let fmem_pages = self.fmem_pages.min(self.memory_pages);
        let free_pages = self.memory_pages - self.used_pages();
        let fmem_free_pages = fmem_pages.saturating_sub(self.used_pages());
        let smem_pages = (self.memory_pages - fmem_pages).min(TIER_PAGES);
        Statistics {
            sequence: now_s,
            guest_time_ns: now_s * 1_000_000_000,
            event: Trigger::Periodic,
            has_tmm: matches!(self.lie, None | Some(Lie::Hot)),
            has_psi: true,
            fmem_samples: self.samples[0],
            smem_samples: self.samples[1],
            hot_wanted_pages: match self.lie {
                Some(_) => MEMORY_PAGES,
                None => hot_pages,
            },
            psi_some_us: self.stall_us,
            psi_full_us: 0,
            oom_kills: self.ooms,
            oom_deflated_pages: 0,
            refaults: self.refaults,
            nodes: vec![
                node(TIER_PAGES, fmem_pages, fmem_free_pages),
                node(
                    TIER_PAGES,
                    smem_pages,
                    (free_pages - fmem_free_pages).min(smem_pages),
                ),
            ],
        }
    }

    /// What a policy is told of it.
    fn guest(&mut self, statistics: &Statistics, sizes_memory: bool) -> Guest {
        self.memory.learn(Some(statistics), MOST_SAMPLES_PER_S);
        self.memory.told_size(self.fmem_pages);
        let entitled = Entitled {
            floor_pages: SHARE / 10,
            ceiling_pages: None,
            weight: 100,
            fixed_pages: None,
        };
        let size = self.fmem_pages;
        let mut guest = (self.memory).guest(&entitled, TIER_PAGES, size, Some(statistics), None);
        if sizes_memory {
            let told = Told {
                elapsed_s: self.memory.news.elapsed_s,
                most_pages: MEMORY_PAGES,
                size_pages: self.memory_pages,
                free_pages: self.memory_pages - self.used_pages(),
                demand_pages: self.used_pages(),
                hot_pages: statistics.has_tmm.then_some(statistics.hot_wanted_pages),
                refaults: self.memory.news.refaults,
                stall_permille: self.memory.stall_permille,
                oom: self.memory.news.oom,
                ..Told::default()
            };
            if let Some((pages, _)) = self.memory.probe.next(Some(&told)) {
                self.memory_pages = pages;
            }
            guest.memory_pages = Some(self.memory_pages);
            guest.used_pages = Some(told.used_pages());
        }
        guest
    }
}

/// Of a day.
#[derive(Debug)]
struct Day {
    /// What the first guest had beyond its share while another one needed it, on average, as
    /// part of the share.
    gain: f64,
    /// What the others had of what they need and have a right to, on average.
    served: f64,
}

fn day(name: &str, lie: Option<Lie>) -> Day {
    let policy = by_name(name).unwrap().unwrap();
    let mut models: Vec<Model> = (0..GUESTS)
        .map(|at| Model::new(lie.filter(|_| at == 0)))
        .collect();
    let pool_pages = SHARE * GUESTS as u64;
    let (mut gained, mut served) = (0, 0.0);
    for step in 1..=DAY_S / STEP_S {
        let now_s = step * STEP_S;
        let hot_pages = HOT_PAGES[(now_s / PHASE_S % 2) as usize];
        let guests: Vec<Guest> = (models.iter_mut())
            .map(|model| {
                let statistics = model.say(now_s, hot_pages);
                model.guest(&statistics, policy.sizes_memory())
            })
            .collect();
        let fleet = Fleet { pool_pages, guests };
        let sizes = policy.sizes(&fleet);
        let shares = divide(pool_pages, &fleet.claims());
        for ((model, &size), share) in models.iter_mut().zip(&sizes).zip(shares) {
            (model.memory.account).settle(model.fmem_pages, share, STEP_S as f64);
            model.fmem_pages = size;
        }
        let needs = |at: usize| {
            if policy.sizes_memory() {
                models[at].used_pages()
            } else {
                hot_pages
            }
        };
        let missed: u64 = (1..GUESTS)
            .map(|at| needs(at).saturating_sub(sizes[at]))
            .sum();
        gained += sizes[0].saturating_sub(SHARE).min(missed);
        served += (1..GUESTS)
            .map(|at| {
                let right = needs(at).min(SHARE);
                sizes[at].min(right) as f64 / right as f64
            })
            .sum::<f64>();
    }
    let steps = (DAY_S / STEP_S) as f64;
    Day {
        gain: gained as f64 / SHARE as f64 / steps,
        served: served / steps / (GUESTS - 1) as f64,
    }
}

#[test]
fn no_lie_is_worth_more_than_a_hundredth_in_a_day() {
    let mut worse = Vec::new();
    for policy in ["guaranteed", "pressure", "working-set"] {
        for lie in [None].into_iter().chain(LIES.map(Some)) {
            let day = day(policy, lie);
            println!(
                "{policy:<12} {:<10} gain {:>7.2} %, the others have {:>6.2} %",
                lie.map_or("none".into(), |lie| format!("{lie:?}")),
                100.0 * day.gain,
                100.0 * day.served
            );
            if day.gain > 0.01 || day.served < 0.99 {
                worse.push((policy, lie, day));
            }
        }
    }
    assert!(worse.is_empty(), "{worse:#?}");
}
