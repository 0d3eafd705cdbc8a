// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which ranges give and take pages.

use crate::sys::{self, PlanParams, PlanState, PlanStep};
use crate::{Error, Ranking, room};

/// One line of a plan; `hot` and `cold` index the ranked entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Promote into free FMEM.
    Fill {
        /// Entry whose pages leave SMEM.
        hot: u32,
        /// How many.
        pages: u64,
    },
    /// Promote as many as are demoted.
    Swap {
        /// Entry whose pages leave SMEM.
        hot: u32,
        /// Entry whose pages leave FMEM.
        cold: u32,
        /// How many of each.
        pages: u64,
    },
    /// Demote from a group that is above its cap.
    Demote {
        /// Entry whose pages leave FMEM.
        cold: u32,
        /// How many.
        pages: u64,
    },
}

/// What a step is said to gain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promise {
    /// Latency that each of its pages saves while it lasts, its cost not taken off.
    pub gain_ps: u64,
    /// How long the placement is believed to last.
    pub lasts_ns: u64,
    /// Latency that is added where the tiers are of two sockets.
    pub remote_ps: u64,
    /// By the floor or the cap of a group, whatever it gains.
    pub imposed: bool,
}

/// Why a plan ends where it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanEnd {
    /// Nothing hot is left in SMEM above anything in FMEM.
    Done,
    /// The rest would not pay.
    NoGain,
    /// Rate cap.
    NoTokens,
    /// More steps than the planner holds.
    Full,
}

/// What to relocate this epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// In order.
    pub steps: Vec<Step>,
    /// What each of them is said to gain.
    pub promises: Vec<Promise>,
    /// Sum over fill steps.
    pub fill_pages: u64,
    /// Sum over swap steps, in pairs.
    pub swap_pages: u64,
    /// Sum over demotions.
    pub demote_pages: u64,
    /// Why it ends.
    pub end: PlanEnd,
    /// Digest of the plan, continued from the seed that was given.
    pub digest: u64,
}

/// Makes plans and remembers the token bucket in between.
#[derive(Clone, Debug)]
pub struct Planner {
    /// May be changed between plans.
    pub params: PlanParams,
    state: PlanState,
    max_steps: u32,
}

impl Planner {
    /// A planner of at most `max_steps` steps a plan.
    pub fn new(params: PlanParams, max_steps: u32) -> Self {
        Self {
            params,
            state: PlanState::default(),
            max_steps,
        }
    }

    /// Changes how many steps a plan may have.
    pub fn set_max_steps(&mut self, max_steps: u32) {
        self.max_steps = max_steps;
    }

    /// Decides what to relocate; `ranking` is sorted.
    pub fn make(
        &mut self,
        ranking: &Ranking,
        free_fmem_pages: u64,
        now_ns: u64,
        digest_seed: u64,
    ) -> Result<Plan, Error> {
        let count = u32::try_from(ranking.entries.len()).unwrap_or(u32::MAX);
        self.make_by(digest_seed, |plan, state, params| {
            // SAFETY: the ranking has `count` entries at least, the rest is valid for
            // the call.
            unsafe {
                sys::demeter_plan_make(
                    plan,
                    state,
                    params,
                    ranking.entries.as_ptr(),
                    count,
                    free_fmem_pages,
                    now_ns,
                );
            }
        })
    }

    /// Has `make` write a plan into memory of its own, and reads it.
    pub(crate) fn make_by(
        &mut self,
        digest_seed: u64,
        make: impl FnOnce(&mut sys::Plan, &mut PlanState, &PlanParams),
    ) -> Result<Plan, Error> {
        let mut memory = room::<PlanStep>(self.max_steps as usize)?;
        let mut raw = sys::Plan {
            step: memory.as_mut_ptr().cast(),
            capacity: self.max_steps,
            nr: 0,
            fill_pages: 0,
            swap_pages: 0,
            demote_pages: 0,
            end: 0,
        };
        make(&mut raw, &mut self.state, &self.params);
        // SAFETY: `raw.step` has room for `capacity` steps, and the first `nr` of them
        // were written.
        let digest = unsafe { sys::demeter_plan_digest(&raw, digest_seed) };
        let (steps, promises) = memory[..raw.nr as usize]
            .iter()
            .map(|step| {
                // SAFETY: the first `nr` steps were written by C.
                let step = unsafe { step.assume_init_ref() };
                let (hot, cold, pages) = (step.hot, step.cold, step.pages);
                let promise = Promise {
                    gain_ps: step.gain_ps,
                    lasts_ns: step.lasts_ns,
                    remote_ps: step.remote_ps,
                    imposed: step.imposed,
                };
                let step = match step.kind {
                    0 => Step::Fill { hot, pages },
                    1 => Step::Swap { hot, cold, pages },
                    _ => Step::Demote { cold, pages },
                };
                (step, promise)
            })
            .unzip();
        Ok(Plan {
            steps,
            promises,
            fill_pages: raw.fill_pages,
            swap_pages: raw.swap_pages,
            demote_pages: raw.demote_pages,
            end: match raw.end {
                0 => PlanEnd::Done,
                1 => PlanEnd::NoGain,
                2 => PlanEnd::NoTokens,
                _ => PlanEnd::Full,
            },
            digest,
        })
    }
}
