// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `working-set`: every guest has what it uses, and the host has the rest back. FMEM is for
//! hot sets first, then for what else guests use.
//!
//! Free memory above a reserve is taken at once: nobody misses it. Cold memory cannot be
//! told from warm by its size, so it is found by asking for a little less, a little more
//! each time, while the guest does not suffer. Where a memory manager tells the hot set,
//! nothing goes below that, and steps become smaller as they come near it.
//!
//! A guest that refaults, stalls or runs out of memory gets back at once more than it
//! misses, and is then left alone for a while, twice as long each time; the next attempt
//! begins with small steps, and not before what the last one cost is a small part of the
//! time since then, however often the load changes. What is free beyond an eighth while it
//! suffers is taken even so. One that stops before the size it was asked for is believed.
//! One that says nothing keeps what it has, and gets back what the last step took if it has
//! said nothing since then: that may be why.
//!
//! Nobody can check what a guest says of its hot set, of what it uses and of what it suffers,
//! so FMEM beyond its share is paid for, see `account`: without credit it has what no
//! other guest needs. Memory as a whole is bounded by what the host was told to give it. What a
//! kernel has set aside (a pool of huge pages) was never touched either, and cannot be given. So
//! a guest that leaves more than an eighth untouched is not believed to lack memory, beside what it
//! did not call free when it first spoke, or stopped with when it was asked for memory.

use demeter_balloon::view::Why;

use super::{Claim, Fleet, Guest, Policy, divide};

/// Part of its memory that a guest always has free, to grow into between two decisions.
const RESERVE: u64 = 64;
/// Largest step into cold memory, and the first one after a guest has suffered.
const LARGE_STEP: u64 = 64;
const SMALL_STEP: u64 = 512;
/// Near a hot set that is told, a step is this part of what is above it.
const NEAR: u64 = 8;
/// What fetching a page costs a guest that misses it: a read of an SSD.
const REFAULT_S: f64 = 100e-6;
/// Part of a guest's time that may go into refaults before it counts as suffering: while
/// a step finds cold memory, that is misses less than one page of so many, and otherwise.
const REFAULT_PART: (f64, f64) = (0.01, 0.002);
const WARM: u64 = 16;
/// The same for what its kernel counts as stalls for memory: while memory is being taken,
/// as its driver's own reclaim counts, and for longer the busier the guest is; otherwise.
const STALL_PERMILLE: (u32, u32) = (50, 10);
/// How soon a guest that stopped with free memory is asked again, and then half as often each
/// time: that costs it nothing, and alike guests stop at different sizes.
const AGAIN_S: f64 = 1.0;
/// How long a guest that suffered is left alone.
const WAIT_S: (f64, f64) = (8.0, 600.0);
/// When so much of that time has passed without pain, what it was given and did not touch is
/// taken back.
const CALM_PART: f64 = 0.25;
/// Part of a guest's time that looking for cold memory may cost it in the long run.
const SEARCH_PART: f64 = 0.005;
/// What one search may cost: more, and it ends until that was earned.
const SEARCH_MOST_S: f64 = 0.3;
/// Room that a guest has while it grows, by what it grew since the last decision. With twice as
/// much it had enough, and no huge pages: what is free is in pieces, but for what has just come.
const GROWTH: u64 = 4;
/// After running out of memory a guest has this part of all more. While it suffers it keeps so much
/// free, if it is, and the rest of what is free is not what it lacks: a container at a limit of its
/// own misses pages and waits for memory where gigabytes are free.
const RESCUE: u64 = 8;

/// What a guest has told since the last decision; pages of all tiers together.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Told {
    /// Its time since then; 0: it has said nothing new.
    pub elapsed_s: f64,
    /// Most that it may have.
    pub most_pages: u64,
    /// What it has, or was promised if that is more.
    pub size_pages: u64,
    /// Free, of what it has, as it says.
    pub free_pages: u64,
    /// Of those, in SMEM.
    pub free_smem_pages: u64,
    /// Surely not used, whatever it says: the host has never allocated it. Not surely free:
    /// huge pages that were set aside look the same.
    pub untouched_pages: u64,
    /// Anonymous memory, and what the kernel holds.
    pub demand_pages: u64,
    /// What the kernel holds.
    pub held_pages: u64,
    /// Its hot set, if a memory manager tells.
    pub hot_pages: Option<u64>,
    /// Pages that were missed.
    pub refaults: u64,
    /// Share of time in which a task waited for memory, if that is known.
    pub stall_permille: Option<u32>,
    /// It ran out of memory.
    pub oom: bool,
    /// It has not ended the last request.
    pub is_busy: bool,
    /// It ended the last one before its size.
    pub has_stopped: bool,
}

impl Told {
    /// Always free.
    fn reserve_pages(&self) -> u64 {
        (self.most_pages / RESERVE).max(1)
    }

    /// What it is known to need.
    fn least_pages(&self) -> u64 {
        self.held_pages + self.hot_pages.unwrap_or(0) + self.reserve_pages()
    }

    /// What it uses, and the reserve: who holds on to free memory has no use for FMEM for it,
    /// nor for what it never touched.
    #[must_use]
    pub fn used_pages(&self) -> u64 {
        let unused = self.free_pages.max(self.untouched_pages);
        (self.size_pages.saturating_sub(unused)).saturating_add(self.reserve_pages())
    }
}

/// What one guest should have, as far as is known by now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Probe {
    wanted: Option<(u64, Why)>,
    demand_pages: Option<u64>,
    step_pages: u64,
    /// Not below this while it is left alone.
    safe_pages: u64,
    /// Not free at that time.
    used_pages: u64,
    /// Free when it stopped before the size that it was asked for, or once it had what it was given
    /// as it suffered.
    kept_free_pages: u64,
    /// Until it is asked again for that, and how long that is the next time.
    again_s: f64,
    next_again_s: f64,
    wait_s: f64,
    next_wait_s: f64,
    /// How long this wait is in all, and how much of it passed since it last suffered.
    whole_wait_s: f64,
    calm_s: f64,
    /// Time that refaults have cost it, less what they may.
    lost_s: f64,
    /// What was taken from it when it last spoke.
    unheard_pages: u64,
    /// What it has never touched, and did not call free when it first spoke, or stopped with when
    /// it was asked for memory: it cannot be given, as far as is known.
    set_aside_pages: Option<u64>,
}

impl Default for Probe {
    fn default() -> Self {
        Self {
            wanted: None,
            demand_pages: None,
            step_pages: 0,
            safe_pages: 0,
            used_pages: 0,
            kept_free_pages: 0,
            again_s: 0.0,
            next_again_s: AGAIN_S,
            wait_s: 0.0,
            next_wait_s: WAIT_S.0,
            whole_wait_s: 0.0,
            calm_s: 0.0,
            lost_s: 0.0,
            unheard_pages: 0,
            set_aside_pages: None,
        }
    }
}

impl Probe {
    /// Its memory, and why it is that much.
    pub fn next(&mut self, told: Option<&Told>) -> Option<(u64, Why)> {
        let Some(told) = told else {
            // Whatever it needs by now, it needs no less for being silent.
            let kept = (self.wanted)
                .map(|(pages, _)| (pages.saturating_add(self.unheard_pages), Why::Silent));
            *self = Self {
                next_wait_s: self.next_wait_s,
                wait_s: self.wait_s,
                whole_wait_s: self.whole_wait_s,
                next_again_s: self.next_again_s,
                again_s: self.again_s,
                safe_pages: self.safe_pages,
                lost_s: self.lost_s,
                // Silence is nothing new: what it could not give it cannot give now, and what it was
                // given is no sign that it does something else.
                set_aside_pages: self.set_aside_pages,
                used_pages: self.used_pages,
                kept_free_pages: self.kept_free_pages,
                ..Self::default()
            };
            self.wanted = kept;
            return kept;
        };
        if told.elapsed_s > 0.0 || told.oom || self.wanted.is_none() {
            let (pages, why) = self.look(told);
            self.wanted = Some((pages, why));
            self.unheard_pages = told.size_pages.saturating_sub(pages);
        }
        (self.wanted).map(|(pages, why)| (pages.min(told.most_pages), why))
    }

    /// It has no monitor any more: who comes next has memory that nobody touched.
    pub fn unplugged(&mut self) {
        self.set_aside_pages = None;
    }

    fn look(&mut self, told: &Told) -> (u64, Why) {
        let reserve = told.reserve_pages();
        let grown = (self.demand_pages.replace(told.demand_pages))
            .map_or(0, |before| told.demand_pages.saturating_sub(before));
        self.wait_s = (self.wait_s - told.elapsed_s).max(0.0);
        self.again_s = (self.again_s - told.elapsed_s).max(0.0);
        self.calm_s += told.elapsed_s;
        let idle = told.untouched_pages - self.set_aside(told);
        // It has not even used what it is given when it says that it lacks memory.
        let is_believed = idle <= told.most_pages / RESCUE;
        let stall_permille = (told.stall_permille.unwrap_or(0)).saturating_sub(STALL_PERMILLE.1);
        let lost_s = if is_believed {
            told.refaults as f64 * REFAULT_S + told.elapsed_s * f64::from(stall_permille) / 1000.0
        } else {
            0.0
        };
        self.lost_s = (self.lost_s + lost_s - SEARCH_PART * told.elapsed_s)
            .clamp(0.0, SEARCH_PART * WAIT_S.1);
        let size = told.size_pages;
        let used = size.saturating_sub(told.free_pages);
        if is_believed && self.suffers(told) {
            let missed = (2 * told.refaults.min(told.most_pages)).saturating_add(grown);
            // What is free has room for what comes back; it may take its time.
            let more = if told.oom {
                (told.most_pages / RESCUE).saturating_sub(idle)
            } else {
                missed.max(reserve).saturating_sub(told.free_pages)
            };
            self.leave_alone(size.saturating_add(more).min(told.most_pages));
            self.used_pages = used;
            // What it is given is free at first: that is no sign that it does something else.
            let given = self.safe_pages.saturating_sub(size);
            let unused = self.unused_in_pain(told, missed);
            self.safe_pages -= unused.min(self.safe_pages);
            self.kept_free_pages = told.free_pages.saturating_add(given) - unused;
            self.calm_s = 0.0;
            self.step_pages = 0;
            if unused == 0 {
                return (self.safe_pages, Why::Suffers);
            }
            return match self.wanted {
                // It is on its way there: its size and what it calls free are of two moments.
                Some((pages, Why::Free))
                    if told.is_busy && pages.abs_diff(self.safe_pages) < reserve =>
                {
                    (pages, Why::Free)
                }
                _ => (self.safe_pages, Why::Free),
            };
        }
        // Half of that is needed now.
        let room = reserve.max(GROWTH * grown);
        if grown > 0 && told.free_pages < room / 2 {
            return (size.saturating_add(room - told.free_pages), Why::Grows);
        }
        if told.is_busy {
            return (self.wanted.map_or(size, |(pages, _)| pages), Why::Moving);
        }
        let least = told.least_pages();
        // What it has freed itself since it suffered it does not miss.
        let freed = self.used_pages.saturating_sub(used);
        let is_left_alone = self.wait_s > 0.0 || self.again_s > 0.0;
        if told.has_stopped && !is_left_alone {
            // It keeps more than it was left with, free memory too: it is believed.
            if told.free_pages > reserve {
                self.safe_pages = size;
                self.ask_later();
            } else {
                self.leave_alone(size);
            }
            self.used_pages = used;
            self.kept_free_pages = told.free_pages;
            return (size, Why::Kept);
        }
        if self.wait_s > 0.0 && self.calm_s >= CALM_PART * self.whole_wait_s {
            // What it has not even touched since then it was not in need of.
            let unused = (idle.min(told.free_pages)).saturating_sub(reserve);
            self.safe_pages = self.safe_pages.min(size.saturating_sub(unused));
        }
        let safe = if is_left_alone {
            self.safe_pages - freed.min(self.safe_pages)
        } else {
            0
        };
        let spare = told.free_pages.saturating_sub(room);
        let without = size.saturating_sub(spare).max(least).max(safe).min(size);
        if size - without >= (told.most_pages / SMALL_STEP).max(1) {
            if spare > self.kept_free_pages.saturating_add(2 * reserve) {
                // It does something else than it did when it suffered.
                self.next_wait_s = WAIT_S.0;
                self.next_again_s = AGAIN_S;
            }
            return (without, Why::Free);
        }
        if self.lost_s > SEARCH_MOST_S {
            self.step_pages = 0;
        }
        let has_begun = self.step_pages > 0;
        if is_left_alone || (!has_begun && self.lost_s > 0.0) {
            return (size, Why::Waits);
        }
        self.colder(told, least)
    }

    /// A step into what may be cold.
    fn colder(&mut self, told: &Told, least: u64) -> (u64, Why) {
        let small = (told.most_pages / SMALL_STEP).max(1);
        let large = (told.most_pages / LARGE_STEP).max(1);
        let room = told.size_pages.saturating_sub(least);
        let most = match told.hot_pages {
            Some(_) => room.min((room / NEAR).max(small)),
            None => room,
        };
        let step = (2 * self.step_pages).clamp(small, large).min(most);
        if step < small {
            return (told.size_pages, Why::Settled);
        }
        if step == large {
            // That much was cold.
            self.next_wait_s = (self.next_wait_s / 2.0).max(WAIT_S.0);
        }
        self.step_pages = step;
        (told.size_pages - step, Why::Cold)
    }

    /// Of what it has never touched, what it cannot give, as far as is known: at first what it does
    /// not call free; less when it has touched more; more when it stopped before the size that it
    /// was asked for. One that stops for no reason keeps memory by that, as it does anyway, and gains
    /// no FMEM.
    fn set_aside(&mut self, told: &Told) -> u64 {
        let not_free = told.untouched_pages.saturating_sub(told.free_pages);
        let before = self.set_aside_pages.unwrap_or(not_free);
        let now = if told.is_busy {
            // Its size, its words and what is allocated are of different moments.
            before
        } else if told.has_stopped {
            before.min(told.untouched_pages).max(not_free)
        } else {
            before.min(told.untouched_pages)
        };
        self.set_aside_pages = Some(now);
        now.min(told.untouched_pages)
    }

    fn suffers(&self, told: &Told) -> bool {
        let lost_part = told.refaults as f64 * REFAULT_S / told.elapsed_s;
        let is_warm = told.refaults > self.step_pages / WARM;
        let bound = if is_warm {
            REFAULT_PART.1
        } else {
            REFAULT_PART.0
        };
        let is_taken_from = matches!(self.wanted, Some((_, Why::Free | Why::Cold | Why::Moving)));
        let stall_bound = if is_taken_from {
            STALL_PERMILLE.0
        } else {
            STALL_PERMILLE.1
        };
        told.oom
            || told
                .stall_permille
                .is_some_and(|stall| stall >= stall_bound)
            || (told.refaults > 0 && lost_part > bound)
    }

    /// What it does not use although it suffers. Of SMEM's own, as it is that which becomes smaller:
    /// what is free in FMEM alone a task that is bound to SMEM could not have instead.
    fn unused_in_pain(&mut self, told: &Told, missed: u64) -> u64 {
        let small = (told.most_pages / SMALL_STEP).max(1);
        if told.has_stopped && !told.is_busy && self.again_s == 0.0 {
            self.ask_later();
        }
        if told.oom || self.again_s > 0.0 {
            return 0;
        }
        let room = missed.max(told.most_pages / RESCUE);
        let unused = (told.free_pages.saturating_sub(room))
            .min(told.free_smem_pages.saturating_sub(told.reserve_pages()))
            .min(told.size_pages.saturating_sub(told.least_pages()));
        if unused < small { 0 } else { unused }
    }

    /// It stopped with free memory.
    fn ask_later(&mut self) {
        self.again_s = self.next_again_s;
        self.next_again_s = (2.0 * self.next_again_s).min(WAIT_S.1);
    }

    fn leave_alone(&mut self, safe_pages: u64) {
        self.safe_pages = safe_pages;
        // Pain that goes on while it is left alone is the same pain.
        if self.wait_s == 0.0 {
            self.wait_s = self.next_wait_s;
            self.whole_wait_s = self.wait_s;
            self.calm_s = 0.0;
            self.next_wait_s = (2.0 * self.next_wait_s).min(WAIT_S.1);
        }
    }
}

/// FMEM for hot sets, then for all that is used; the memory as a whole is the guest's [`Probe`]'s.
pub struct WorkingSet;

impl Policy for WorkingSet {
    fn name(&self) -> &'static str {
        "working-set"
    }

    fn believes(&self) -> bool {
        true
    }

    fn sizes_memory(&self) -> bool {
        true
    }

    fn sizes(&self, fleet: &Fleet) -> Vec<u64> {
        let floors: Vec<u64> = (fleet.guests.iter())
            .map(|guest| guest.claim.floor_pages)
            .collect();
        let shares = divide(fleet.pool_pages, &fleet.claims());
        let up_to = |least: &[u64], most: &dyn Fn(usize, &Guest) -> u64| {
            let claims: Vec<Claim> = (fleet.guests.iter().enumerate())
                .map(|(at, guest)| Claim {
                    floor_pages: least[at],
                    ceiling_pages: most(at, guest).max(least[at]),
                    ..guest.claim
                })
                .collect();
            divide(fleet.pool_pages, &claims)
        };
        // Beyond its share a guest is believed as far as its credit goes.
        let believed = |at: usize, guest: &Guest, pages: u64| {
            if guest.may_borrow {
                pages
            } else {
                pages.min(shares[at])
            }
        };
        let hot = up_to(&floors, &|at, guest| {
            believed(at, guest, useful_pages(guest))
        });
        // What no hot set needs is better used for warm memory than by nobody: a guest that
        // has it in FMEM would be slower without.
        let used = up_to(&hot, &|at, guest| believed(at, guest, used_pages(guest)));
        // What is left others do not need, whoever says that it does.
        let hot = up_to(&used, &|_, guest| useful_pages(guest));
        let used = up_to(&hot, &|_, guest| used_pages(guest));
        // Room that a guest keeps free comes last.
        up_to(&used, &|_, guest| kept_pages(guest))
    }
}

/// FMEM that could hold memory which this guest keeps, used or free.
fn kept_pages(guest: &Guest) -> u64 {
    (guest.memory_pages.unwrap_or(guest.size_pages))
        .clamp(guest.claim.floor_pages, guest.claim.ceiling_pages)
}

/// FMEM that could hold memory which this guest uses, hot or not.
fn used_pages(guest: &Guest) -> u64 {
    let kept = kept_pages(guest);
    (guest.used_pages.unwrap_or(kept).min(kept)).max(guest.claim.floor_pages)
}

/// FMEM that this guest has a use for: its hot set and room for new pages, or all of its
/// memory where nobody tells what is hot.
pub fn useful_pages(guest: &Guest) -> u64 {
    let memory = guest.memory_pages.unwrap_or(guest.size_pages);
    let useful = match guest.hot_pages {
        Some(hot) => hot
            .saturating_add(guest.claim.ceiling_pages / RESERVE)
            .min(memory),
        None => memory.min(guest.used_pages.unwrap_or(memory)),
    };
    useful.clamp(guest.claim.floor_pages, guest.claim.ceiling_pages)
}

#[cfg(test)]
mod tests;
