// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two ways of doing the same thing, the faster of which is found by trying.
//!
//! Which is faster depends on the machine, the program and the moment. So both take turns
//! of so many steps by all threads together; the way whose turns are over sooner, with all
//! that the program did meanwhile, has most of them, and the other is tried now and then.
//! Only turns next to each other are compared, one way round and the other: what the
//! program does changes, and with it what a turn takes.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The slower way is tried after so many turns at least, and at most.
const PROBE_TURNS: (u64, u64) = (12, 128);
/// Within them so seldom that it costs one turn in so many.
const PROBE_COST_SHARE: u64 = 100;
/// After so many turns in a row that take half as long again as before the last try, or two
/// thirds as long, the program is another one, and what was learnt may be wrong.
const CHANGED_TURNS: u32 = 2;
/// No comparison counts for more than so many times longer or shorter, in permille: a
/// program that rests is chance.
const MOST_PERMILLE: u64 = 3000;
const LEAST_PERMILLE: u64 = 333;
/// The weight of one comparison, one in so many.
const WEIGHT: u64 = 2;
const RELAXED: Ordering = Ordering::Relaxed;

/// What the turn that ends now is to its neighbours.
const SAME: u32 = 0;
/// The first of its way after a change that is compared.
const COMPARED: u32 = 1;
/// The first after a change, which is not: what one way leaves behind helps or burdens
/// the other.
const SETTLING: u32 = 2;

/// How the ways compare. Races between threads cost a vote, nothing else.
#[derive(Debug)]
pub struct Turns {
    steps_in_turn: u32,
    settles: bool,
    /// The second way must take less than so much of the first's time.
    below_permille: u64,
    steps: AtomicU32,
    began_ns: AtomicU64,
    /// This turn is the second way's.
    second: AtomicBool,
    /// `SAME`, `COMPARED` or `SETTLING`.
    kind: AtomicU32,
    since_probe: AtomicU64,
    /// A turn before the last try; 0 is not known.
    usual_ns: AtomicU64,
    /// Turns in a row that took another time.
    changed: AtomicU32,
    /// The program is another one: the next comparison counts alone.
    forgets: AtomicBool,
    /// The last turn of either way; 0 is not known.
    last_ns: [AtomicU64; 2],
    /// What a turn of the second way takes, in permille of the first; 0 is not known.
    ratio_permille: AtomicU64,
}

impl Turns {
    /// The first way begins.
    pub const fn new(steps_in_turn: u32, settles: bool, below_permille: u64) -> Self {
        Self {
            steps_in_turn,
            settles,
            below_permille,
            steps: AtomicU32::new(0),
            began_ns: AtomicU64::new(0),
            second: AtomicBool::new(false),
            kind: AtomicU32::new(SAME),
            since_probe: AtomicU64::new(0),
            usual_ns: AtomicU64::new(0),
            changed: AtomicU32::new(0),
            forgets: AtomicBool::new(false),
            last_ns: [AtomicU64::new(0), AtomicU64::new(0)],
            ratio_permille: AtomicU64::new(0),
        }
    }

    /// Whether it is the second way's turn.
    pub fn is_second(&self) -> bool {
        self.second.load(RELAXED)
    }

    /// So many steps are about to be done; whether by the second way. `now_ns` tells the
    /// time, seldom asked.
    pub fn step(&self, steps: u32, now_ns: impl FnOnce() -> u64) -> bool {
        if steps == 0 {
            return self.is_second();
        }
        let before = self.steps.fetch_add(steps, RELAXED);
        let after = before.wrapping_add(steps);
        if before == 0 || before / self.steps_in_turn != after / self.steps_in_turn {
            self.turn(now_ns());
        }
        self.is_second()
    }

    /// Ends a turn of the second way that has taken so much longer than one of the first
    /// that the rest of it would not count.
    pub fn cut_short(&self, now_ns: u64) {
        let took_ns = now_ns.saturating_sub(self.began_ns.load(RELAXED));
        let first_ns = self.last_ns[0].load(RELAXED);
        if first_ns > 0 && self.is_second() && took_ns / MOST_PERMILLE > first_ns / 1000 {
            let left = self.steps_in_turn - self.steps.load(RELAXED) % self.steps_in_turn;
            self.step(left, || now_ns);
        }
    }

    /// What is known of other turns is the best guess for these, as long as nothing else is,
    /// and soon tried.
    pub fn guess(&self, others: &Self) {
        if self.ratio_permille.load(RELAXED) == 0 {
            self.ratio_permille
                .store(others.ratio_permille.load(RELAXED), RELAXED);
            self.second.store(others.is_second(), RELAXED);
            self.since_probe.store(PROBE_TURNS.1, RELAXED);
        }
    }

    /// Other turns are taken for a while: what lies between does not count.
    pub fn interrupt(&self) {
        self.began_ns.store(0, RELAXED);
        self.steps.store(0, RELAXED);
        self.changed.store(0, RELAXED);
        self.forgets.store(false, RELAXED);
        self.last_ns.iter().for_each(|last| last.store(0, RELAXED));
        if self.settles || self.kind.load(RELAXED) != SAME {
            self.kind.store(SETTLING, RELAXED);
        }
    }

    /// A turn ends and the next begins.
    fn turn(&self, now_ns: u64) {
        let began_ns = self.began_ns.swap(now_ns, RELAXED);
        if began_ns == 0 {
            return;
        }
        let kind = self.kind.swap(SAME, RELAXED);
        if kind == SETTLING {
            self.kind.store(COMPARED, RELAXED);
            return;
        }
        let second = self.is_second();
        let took_ns = now_ns.saturating_sub(began_ns).max(1);
        self.last_ns[usize::from(second)].store(took_ns, RELAXED);
        if kind == COMPARED {
            self.compare();
        }
        // A way that is not known counts as the faster: it is tried.
        let ratio_permille = self.ratio_permille.load(RELAXED);
        let probes = self.probes(took_ns, ratio_permille);
        let next = (ratio_permille < self.below_permille) != probes;
        if next != second {
            let kind = if self.settles { SETTLING } else { COMPARED };
            self.kind.store(kind, RELAXED);
        }
        self.second.store(next, RELAXED);
    }

    /// Whether the way that seems slower has the next turn.
    fn probes(&self, took_ns: u64, ratio_permille: u64) -> bool {
        let usual_ns = self.usual_ns.load(RELAXED);
        let (more_ns, less_ns) = (took_ns.max(usual_ns), took_ns.min(usual_ns));
        let changed = if usual_ns > 0 && more_ns / 3 > less_ns / 2 {
            self.changed.fetch_add(1, RELAXED) + 1
        } else {
            self.changed.store(0, RELAXED);
            0
        };
        let least_permille = ratio_permille.clamp(1, 1000);
        let loss_permille = ratio_permille.abs_diff(1000) * 1000 / least_permille;
        let turns = (1 + u64::from(self.settles)) * loss_permille * PROBE_COST_SHARE / 1000;
        let is_another = changed >= CHANGED_TURNS;
        let interval = if is_another {
            PROBE_TURNS.0
        } else {
            turns.clamp(PROBE_TURNS.0, PROBE_TURNS.1)
        };
        if self.since_probe.fetch_add(1, RELAXED) + 1 < interval {
            return false;
        }
        if is_another {
            self.forgets.store(true, RELAXED);
        }
        self.since_probe.store(0, RELAXED);
        self.usual_ns.store(took_ns, RELAXED);
        self.changed.store(0, RELAXED);
        true
    }

    fn compare(&self) {
        let [first, second] = [0, 1].map(|way| self.last_ns[way].load(RELAXED));
        if first == 0 || second == 0 {
            return;
        }
        let seen = (second.saturating_mul(1000) / first).clamp(LEAST_PERMILLE, MOST_PERMILLE);
        let forgets = self.forgets.swap(false, RELAXED);
        let before = self.ratio_permille.load(RELAXED);
        let now = if before == 0 || forgets {
            seen
        } else {
            (before * (WEIGHT - 1) + seen) / WEIGHT
        };
        self.ratio_permille.store(now, RELAXED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: u32 = 128;

    /// How a program behaves in the tests.
    #[derive(Clone, Copy, Default)]
    struct Program {
        /// Time of a step of either way, with what the program does in between.
        way_ns: [u64; 2],
        /// A change of way gives so many steps for next to nothing.
        free_steps: u32,
        /// After so many steps each takes twice as long; 0 is never.
        doubles_after: u32,
    }

    /// Share of steps that go the second way once both are known.
    fn second(turns: &Turns, program: Program) -> f64 {
        const KNOWN: u32 = 100_000;
        const COUNTED: u32 = 100_000;
        let mut count = 0;
        let mut free = 0;
        let mut now_ns = turns.began_ns.load(RELAXED).max(1);
        for step in 0..KNOWN + COUNTED {
            let before = turns.is_second();
            let second = turns.step(1, || now_ns);
            count += u32::from(second && step >= KNOWN);
            if before != second {
                free = program.free_steps;
            }
            let late = if step % 1000 == 0 { 40 } else { 1 };
            let took_ns = late * program.way_ns[usize::from(second)];
            let drift = f64::from(step) / f64::from(program.doubles_after.max(1));
            let drift = if program.doubles_after > 0 {
                drift.exp2()
            } else {
                1.0
            };
            now_ns += (took_ns as f64 * drift) as u64 / if free > 0 { 10 } else { 1 };
            free = free.saturating_sub(1);
        }
        f64::from(count) / f64::from(COUNTED)
    }

    #[test]
    fn the_faster_way_has_most_turns_and_the_other_is_tried() {
        for (settles, doubles_after) in [(false, 0), (true, 0), (false, 20_000), (true, 20_000)] {
            let turns = Turns::new(STEPS, settles, 1000);
            let share = |way_ns| {
                let program = Program {
                    way_ns,
                    doubles_after,
                    ..Program::default()
                };
                second(&turns, program)
            };
            for _ in 0..3 {
                let faster = share([80_000, 68_000]);
                assert!((0.75..0.97).contains(&faster), "{faster}");
                let slower = share([80_000, 93_000]);
                assert!((0.03..0.25).contains(&slower), "{slower}");
                // Far worse: tried less often.
                let far = share([80_000, 160_000]);
                assert!((0.005..0.03).contains(&far), "{far}");
            }
        }
    }

    #[test]
    fn another_program_is_noticed() {
        let turns = Turns::new(STEPS, false, 1000);
        let way_ns = [80_000, 160_000];
        second(
            &turns,
            Program {
                way_ns,
                ..Program::default()
            },
        );
        // Both ways take another time, and the other is faster.
        let mut now_ns = turns.began_ns.load(RELAXED);
        let soon = 4 * PROBE_TURNS.0 as u32;
        let mut last = 0;
        for step in 0..2 * soon * STEPS {
            let second = turns.step(1, || now_ns);
            now_ns += if second { 120_000 } else { 240_000 };
            last += u32::from(second && step >= soon * STEPS);
        }
        assert!(last > soon * STEPS / 4 * 3, "{last}");
    }

    /// What was far better for the program before says nothing of this one.
    #[test]
    fn another_program_is_compared_anew() {
        let turns = Turns::new(STEPS, true, 900);
        let way_ns = [160_000, 60_000];
        let program = Program {
            way_ns,
            ..Program::default()
        };
        assert!(second(&turns, program) > 0.9);
        let mut now_ns = turns.began_ns.load(RELAXED);
        let mut seconds = 0;
        let soon = 2 * PROBE_TURNS.0 as u32 * STEPS;
        for step in 0..3 * soon {
            let second = turns.step(1, || now_ns);
            now_ns += if second { 250_000 } else { 260_000 };
            seconds += u32::from(second && step >= soon);
        }
        assert!(seconds < soon / 2, "{seconds} of {}", 2 * soon);
    }

    #[test]
    fn what_a_change_brings_for_nothing_does_not_count() {
        let turns = Turns::new(STEPS, true, 1000);
        let share = second(
            &turns,
            Program {
                way_ns: [80_000, 160_000],
                free_steps: STEPS,
                ..Program::default()
            },
        );
        assert!((0.005..0.03).contains(&share), "{share}");
    }

    #[test]
    fn a_way_that_is_far_too_slow_loses_its_turn() {
        let turns = Turns::new(STEPS, false, 1000);
        let mut now_ns = 1;
        let mut seconds = 0;
        const TURNS: u32 = 1000;
        for _ in 0..TURNS * STEPS {
            let second = turns.step(1, || now_ns);
            now_ns += if second { 1_000_000 } else { 10_000 };
            seconds += u32::from(second);
            turns.cut_short(now_ns);
        }
        // Tried, each time for a few steps.
        assert!(seconds > TURNS / PROBE_TURNS.1 as u32, "{seconds}");
        assert!(seconds < TURNS / PROBE_TURNS.1 as u32 * 8, "{seconds}");
    }

    /// Who looks at the clock after an interruption ends no turn, and begins none: what lies
    /// between is in no turn.
    #[test]
    fn what_interrupts_is_in_no_turn() {
        let turns = Turns::new(STEPS, false, 1000);
        let (mut now_ns, mut longest_ns) = (1, 0);
        for step in 0..2 * STEPS * PROBE_TURNS.1 as u32 {
            let second = turns.step(1, || now_ns);
            now_ns += if second { 600 } else { 1000 };
            if step % (STEPS * 7) == 5 {
                turns.interrupt();
                turns.cut_short(now_ns);
                now_ns += 1_000_000_000;
            }
            let last = turns.last_ns.each_ref().map(|last| last.load(RELAXED));
            longest_ns = longest_ns.max(last[0]).max(last[1]);
        }
        assert!(longest_ns > 0 && longest_ns <= 1000 * u64::from(STEPS));
    }

    #[test]
    fn a_clock_that_jumps_does_not_overflow() {
        let turns = Turns::new(STEPS, false, 1000);
        let mut times = [u64::MAX, 0, u64::MAX, 1].into_iter().cycle();
        for _ in 0..100 * STEPS {
            turns.step(1, || times.next().unwrap_or(0));
        }
        // Neither stuck at an absurd value nor at none.
        let ratio = turns.ratio_permille.load(RELAXED);
        assert!((LEAST_PERMILLE..=MOST_PERMILLE).contains(&ratio), "{ratio}");
    }
}
