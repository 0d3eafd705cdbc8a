// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What steps were promised to gain and gained, and who stops those that do not pay
//! (`guest/tmm/ledger.c`, `stopped.c`).

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use demeter_core::{Judge, Placement, Plan, Ranges, Ranking, SMEM, Step};

/// Decisions that are followed (`ledger.h`).
const MOST_DECISIONS: usize = 1024;
/// Places that are allowed to come back while a stop lasts (`ledger.h`).
const MOST_RETURNS: usize = 16;

struct Decision {
    taken_ns: u64,
    is_swap: bool,
    imposed: bool,
    is_open: bool,
    placement: Placement,
}

/// The length of an epoch that is over, and what its samples stand for.
#[derive(Clone, Copy)]
pub struct Epoch {
    /// Now, on the guest's clock.
    pub now_ns: u64,
    /// How long it was.
    pub passed_ns: u64,
    /// How long a placement is expected to last.
    pub horizon_ns: u64,
    /// Accesses that one sample stands for.
    pub period: u64,
    /// SMEM latency less FMEM latency.
    pub gap_ps: u64,
}

/// Decisions of late, and a judge for each address space.
#[derive(Default)]
pub struct Ledger {
    decisions: VecDeque<Decision>,
    judges: BTreeMap<u32, Judge>,
}

impl Ledger {
    /// A plan was carried out: for each of its steps the pages that were moved, and what
    /// each is said to have cost.
    pub fn book(&mut self, plan: &Plan, ranking: &Ranking, moved: &[(u64, u64)], now_ns: u64) {
        for ((step, promise), &(pages, each_ns)) in plan.steps.iter().zip(&plan.promises).zip(moved)
        {
            let Some(mut placement) = Placement::new(step, promise, ranking) else {
                continue;
            };
            placement.moved(pages, pages.saturating_mul(each_ns));
            if self.decisions.len() == MOST_DECISIONS
                && let Some(oldest) = self.decisions.pop_front()
                && oldest.is_open
                && !oldest.imposed
            {
                let judge = self.judges.entry(oldest.placement.spaces()[0]).or_default();
                judge.conclude(&oldest.placement, oldest.taken_ns);
            }
            self.decisions.push_back(Decision {
                taken_ns: now_ns,
                is_swap: matches!(step, Step::Swap { .. }),
                imposed: promise.imposed,
                is_open: placement.is_open(),
                placement,
            });
        }
    }

    /// An epoch of an address space is over, in which it had so many samples; whether a
    /// stop begins.
    pub fn realise(&mut self, space: u32, ranges: &Ranges, samples: u64, epoch: &Epoch) -> bool {
        let judge = self.judges.entry(space).or_default();
        for decision in self
            .decisions
            .iter_mut()
            .filter(|decision| decision.is_open)
        {
            let placement = &mut decision.placement;
            let [hot, cold] = placement.spaces();
            if hot != space && cold != space {
                continue;
            }
            placement.realise(ranges, space, epoch.period, epoch.gap_ps);
            if hot != space {
                continue;
            }
            placement.age(epoch.passed_ns, samples > 0);
            decision.is_open = placement.is_open();
            if decision.imposed {
                continue;
            }
            if !decision.is_open {
                judge.settle(placement, decision.taken_ns);
            } else if samples > 0 {
                judge.hear(
                    placement,
                    decision.taken_ns,
                    epoch.passed_ns,
                    epoch.horizon_ns,
                );
            }
        }
        while self.decisions.front().is_some_and(|first| !first.is_open) {
            self.decisions.pop_front();
        }
        samples > 0 && judge.end_epoch(epoch.now_ns, epoch.passed_ns, epoch.horizon_ns)
    }

    /// Hides from the planner what is in SMEM of address spaces whose moves are stopped, but
    /// for what may come back.
    pub fn hide(&self, ranking: &mut Ranking, now_ns: u64) {
        for (&space, judge) in &self.judges {
            if !judge.is_stopped(now_ns) {
                continue;
            }
            let returns = self.returns(space, judge);
            for entry in ranking.entries.iter_mut() {
                let returns_it = || {
                    (returns.iter()).any(|span| span.start < entry.end && entry.start < span.end)
                };
                if entry.space == space && !returns_it() {
                    entry.pages[SMEM] = 0;
                }
            }
        }
    }

    /// Where what was demoted may come back to.
    fn returns(&self, space: u32, judge: &Judge) -> Vec<Range<u64>> {
        (self.decisions.iter())
            .filter(|decision| {
                let placement = &decision.placement;
                let span = placement.demoted_span();
                decision.is_open
                    && decision.is_swap
                    && placement.spaces()[1] == space
                    && judge.may_return(
                        placement,
                        decision.taken_ns,
                        self.returned_pages(space, judge, &span),
                    )
            })
            .take(MOST_RETURNS)
            .map(|decision| decision.placement.demoted_span())
            .collect()
    }

    /// Pages that came to `span` since the stop.
    fn returned_pages(&self, space: u32, judge: &Judge, span: &Range<u64>) -> u64 {
        (self.decisions.iter().rev())
            .take_while(|decision| decision.taken_ns >= judge.since_ns())
            .map(|decision| &decision.placement)
            .filter(|placement| {
                let hot = placement.promoted_span();
                placement.spaces()[0] == space && hot.start < span.end && span.start < hot.end
            })
            .map(Placement::pages)
            .sum()
    }
}
