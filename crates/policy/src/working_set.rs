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
//! time since then, however often the load changes. One that stops before the size it was asked for is believed.
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
/// Part of a guest's time that looking for cold memory may cost it in the long run.
const SEARCH_PART: f64 = 0.005;
/// What one search may cost: more, and it ends until that was earned.
const SEARCH_MOST_S: f64 = 0.3;
/// After running out of memory a guest has this part of all more.
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
    /// Free when it stopped before the size that it was asked for.
    kept_free_pages: u64,
    /// Until it is asked again for that, and how long that is the next time.
    again_s: f64,
    next_again_s: f64,
    wait_s: f64,
    next_wait_s: f64,
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
                next_again_s: self.next_again_s,
                again_s: self.again_s,
                safe_pages: self.safe_pages,
                lost_s: self.lost_s,
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

    fn look(&mut self, told: &Told) -> (u64, Why) {
        let reserve = told.reserve_pages();
        let grown = (self.demand_pages.replace(told.demand_pages))
            .map_or(0, |before| told.demand_pages.saturating_sub(before));
        self.wait_s = (self.wait_s - told.elapsed_s).max(0.0);
        self.again_s = (self.again_s - told.elapsed_s).max(0.0);
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
            self.kept_free_pages = 0;
            self.step_pages = 0;
            return (self.safe_pages, Why::Suffers);
        }
        // Room for as much again as it has just grown by, and half of that is needed now.
        let room = reserve.max(2 * grown);
        if grown > 0 && told.free_pages < room / 2 {
            return (size.saturating_add(room - told.free_pages), Why::Grows);
        }
        if told.is_busy {
            return (self.wanted.map_or(size, |(pages, _)| pages), Why::Moving);
        }
        let least = told.held_pages + told.hot_pages.unwrap_or(0) + reserve;
        // What it has freed itself since it suffered it does not miss.
        let freed = self.used_pages.saturating_sub(used);
        let is_left_alone = self.wait_s > 0.0 || self.again_s > 0.0;
        if told.has_stopped && !is_left_alone {
            // It keeps more than it was left with, free memory too: it is believed.
            if told.free_pages > reserve {
                self.safe_pages = size;
                self.again_s = self.next_again_s;
                self.next_again_s = (2.0 * self.next_again_s).min(WAIT_S.1);
            } else {
                self.leave_alone(size);
            }
            self.used_pages = used;
            self.kept_free_pages = told.free_pages;
            return (size, Why::Kept);
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

    fn leave_alone(&mut self, safe_pages: u64) {
        self.safe_pages = safe_pages;
        // Pain that goes on while it is left alone is the same pain.
        if self.wait_s == 0.0 {
            self.wait_s = self.next_wait_s;
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
mod tests {
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
        assert_eq!(probe.next(Some(&now)), Some((21_400, Why::Grows)));
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
        assert_eq!(probe.next(Some(&now)), Some((41_400, Why::Grows)));
    }

    #[test]
    fn no_words_break_it() {
        let wild = Told {
            elapsed_s: 1e-9,
            most_pages: u64::MAX / 4,
            size_pages: u64::MAX / 4,
            free_pages: u64::MAX / 4,
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
}
